package record_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/go-json-experiment/json/jsontext"
)

// nested has members in no order, at two depths, in the forms that bodies of entries have.
type nested struct {
	Z      string         `json:"z"`
	Params map[string]any `json:"params,omitempty"`
	A      *nested        `json:"a,omitempty"`
	AB     []byte         `json:"ab,omitempty"`
	List   []nested       `json:"list,omitempty"`
	Number json.Number    `json:"number,omitzero"`
}

var bodies = []string{
	`{}`, `{"b":1,"a":2}`, `{"b":{"d":1,"c":[{"y":1,"x":2}]},"a":[]}`, `{"a!":1,"a":2,"a#":3}`, `{"b":"}","a":"\\"}`, `{"b":"\"{","a":"]"}`,
	`{"z":1.50,"y":1e2,"x":-0,"w":123456789012345678901,"v":0.1,"u":1E400}`, `{"\n":1,"\"":2,"a":3}`, `{"é":1,"z":2,"ﬁ":3,"😀":4}`,
	`{"b":null,"a":true}`, `[{"b":1,"a":2}]`, `"x"`, `1`, `null`, `{"a":"\u2028<>&\u007f\u001f\u00e9"}`, `{"":1,"a":2}`, `{"b":[[],{},""],"a":[1,[2]]}`,
}

// Whatever a body holds, its form is the one that a canonicalizer for RFC 8785 gives it.
func FuzzBodiesAreCanonical(f *testing.F) {
	for _, body := range bodies {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, text string) {
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.UseNumber()
		var value any
		if decoder.Decode(&value) != nil {
			return
		}
		params, _ := value.(map[string]any)
		inner := nested{Z: text, Params: params, AB: []byte(text)}
		for _, body := range []any{value, nested{Z: "z", Params: params, A: &inner, List: []nested{inner, {}}, Number: "1.50"}} {
			plain, err := json.Marshal(body)
			if err != nil {
				t.Fatal(err)
			}
			want := jsontext.Value(plain)
			unfit := want.Canonicalize(jsontext.CanonicalizeRawInts(false))
			got, _, err := record.Encode(body)
			keepable := utf8.ValidString(text) && !strings.Contains(string(want), `\u0000`) && len(want) <= 64<<10
			if keepable && (err != nil || unfit != nil) || err == nil && string(got) != string(want) {
				t.Errorf("%q: got %s, %v, want %s, %v", text, got, err, want, unfit)
			}
		}
	})
}
