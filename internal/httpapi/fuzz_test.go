package httpapi_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/brevet-dev/brevet/internal/httpapi"
)

// Every reader takes accepted authorization_details for one object with the known members.
func FuzzDetails(f *testing.F) {
	for _, text := range []string{
		`[{"type":"git.issues.read"}]`,
		`[{"type":"a.b","actions":["read"],"locations":["https://x.test"],"identifier":"git:x","params":{"n":1e400}}]`,
		`[{"type":"a.b"},{"type":"a.c"}]`, `[]`, `null`, `{}`, `[{"type":"a.b","type":"a.c"}]`, `[{"Type":"a.b"}]`,
		`[{"type":"a.b","actions":[]}]`, `[{"type":"a.b"}],"x":[`, `[{"type":"\u0000"}]`, `[{"type":"a.b","params":[1]}]`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		scope, err := httpapi.ReadDetails(text)
		if err != nil || text == "" {
			return
		}
		var all []map[string]any
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.UseNumber()
		if decoder.Decode(&all) != nil || len(all) != 1 {
			t.Fatalf("accepted %q", text)
		}
		for name := range all[0] {
			switch name {
			case "type", "actions", "locations", "identifier", "params":
			default:
				t.Errorf("accepted the member %q of %q", name, text)
			}
		}
		if all[0]["type"] != scope || scope == "" || !utf8.ValidString(text) || bytes.ContainsRune([]byte(text), 0) {
			t.Errorf("got %q of %q", scope, text)
		}
	})
}

// A cursor continues its own listing, from its position. Without the key, nobody can create one.
func FuzzCursor(f *testing.F) {
	cursors, err := httpapi.NewCursors(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(int64(42), []byte("mine"), "")
	f.Add(int64(-1), []byte{}, "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
	f.Add(int64(1)<<62, []byte("mine"), "A\n==")
	f.Fuzz(func(t *testing.T, place int64, listing []byte, forged string) {
		sealed := httpapi.CursorSeal(cursors, place, listing)
		if got, err := httpapi.CursorOpen(cursors, sealed, listing); err != nil || got != place {
			t.Errorf("got %d, %v, want %d", got, err, place)
		}
		for _, bad := range []struct {
			cursor  string
			listing []byte
		}{{forged, listing}, {sealed + forged, append(listing, 'x')}, {sealed, append(listing, 0)}, {"A" + sealed, listing}} {
			if got, err := httpapi.CursorOpen(cursors, bad.cursor, bad.listing); !errors.Is(err, httpapi.ErrCursor) {
				t.Errorf("%q opens at %d, %v", bad.cursor, got, err)
			}
		}
	})
}
