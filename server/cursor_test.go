package server_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"math"
	"testing"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/server"
)

func TestCursorContinuesItsOwnListingOnly(t *testing.T) {
	key := bytes.Repeat([]byte{7}, 32)
	cursors, err := server.NewCursors(key)
	if err != nil {
		t.Fatal(err)
	}
	listing := func(reader string, q broker.Query) []byte {
		name, err := server.ListingOf(reader, q, broker.Reach{Subject: reader})
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	mine := listing("spiffe://a.test/x", broker.Query{Scope: "a.b", Limit: 10})
	for _, place := range []int64{1, 500, math.MaxInt64} {
		got, err := server.CursorOpen(cursors, server.CursorSeal(cursors, place, mine), mine)
		if err != nil || got != place {
			t.Errorf("got %d, %v, want %d", got, err, place)
		}
	}
	if a, b := listing("r", broker.Query{Limit: 1}), listing("r", broker.Query{Limit: 9, Before: 3}); !bytes.Equal(a, b) {
		t.Error("the page's size and place change the listing")
	}

	sealed := server.CursorSeal(cursors, 42, mine)
	other, err := server.NewCursors(bytes.Repeat([]byte{8}, 32))
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		cursor  string
		listing []byte
	}{
		"another reader":     {sealed, listing("spiffe://a.test/y", broker.Query{Scope: "a.b"})},
		"another filter":     {sealed, listing("spiffe://a.test/x", broker.Query{Scope: "a.c"})},
		"another deployment": {server.CursorSeal(other, 42, mine), mine},
		"a plain number":     {base64.RawURLEncoding.EncodeToString([]byte{0, 0, 0, 0, 0, 0, 0, 42}), mine},
		"cut":                {sealed[:len(sealed)-4], mine},
		"padded":             {sealed + "==", mine},
		"another spelling":   {sealed + "\n", mine},
		"empty":              {"", mine},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := server.CursorOpen(cursors, tc.cursor, tc.listing); !errors.Is(err, server.ErrCursor) {
				t.Errorf("got place %d and %v, want it refused", got, err)
			}
		})
	}
	// H98: no single flipped bit is accepted.
	raw, err := base64.RawURLEncoding.DecodeString(sealed)
	if err != nil {
		t.Fatal(err)
	}
	for i := range len(raw) * 8 {
		flipped := bytes.Clone(raw)
		flipped[i/8] ^= 1 << (i % 8)
		if _, err := server.CursorOpen(cursors, base64.RawURLEncoding.EncodeToString(flipped), mine); !errors.Is(err, server.ErrCursor) {
			t.Fatalf("bit %d flipped: got %v, want it refused", i, err)
		}
	}
}
