package httpapi_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"math"
	"testing"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/httpapi"
)

func TestCursorContinuesItsOwnListingOnly(t *testing.T) {
	t.Parallel()
	key := bytes.Repeat([]byte{7}, 32)
	cursors, err := httpapi.NewCursors(key)
	if err != nil {
		t.Fatal(err)
	}
	listing := func(reader string, q broker.Query) []byte {
		name, err := httpapi.ListingOf(reader, q, broker.Reach{Subject: reader})
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	mine := listing("spiffe://a.test/x", broker.Query{Scope: "a.b", Limit: 10})
	for _, place := range []int64{1, 500, math.MaxInt64} {
		got, err := httpapi.CursorOpen(cursors, httpapi.CursorSeal(cursors, place, mine), mine)
		if err != nil || got != place {
			t.Errorf("got %d, %v, want %d", got, err, place)
		}
	}
	if a, b := listing("r", broker.Query{Limit: 1}), listing("r", broker.Query{Limit: 9, Before: 3}); !bytes.Equal(a, b) {
		t.Error("the page's size and place change the listing")
	}

	sealed := httpapi.CursorSeal(cursors, 42, mine)
	other, err := httpapi.NewCursors(bytes.Repeat([]byte{8}, 32))
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		cursor  string
		listing []byte
	}{
		"another reader":     {sealed, listing("spiffe://a.test/y", broker.Query{Scope: "a.b"})},
		"another filter":     {sealed, listing("spiffe://a.test/x", broker.Query{Scope: "a.c"})},
		"another deployment": {httpapi.CursorSeal(other, 42, mine), mine},
		"a plain number":     {base64.RawURLEncoding.EncodeToString([]byte{0, 0, 0, 0, 0, 0, 0, 42}), mine},
		"cut":                {sealed[:len(sealed)-4], mine},
		"padded":             {sealed + "==", mine},
		"another spelling":   {sealed + "\n", mine},
		"empty":              {"", mine},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := httpapi.CursorOpen(cursors, tc.cursor, tc.listing); !errors.Is(err, httpapi.ErrCursor) {
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
		if _, err := httpapi.CursorOpen(cursors, base64.RawURLEncoding.EncodeToString(flipped), mine); !errors.Is(err, httpapi.ErrCursor) {
			t.Fatalf("bit %d flipped: got %v, want it refused", i, err)
		}
	}
}
