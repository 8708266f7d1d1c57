package audit_test

import (
	"bytes"
	"testing"

	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/go-json-experiment/json/jsontext"
)

var spellings = []string{
	`{}`, `[]`, `{"a":1,"b":[1,-2,null,true,false,"x"]}`, `{"b":1,"a":2}`, `{"a":1,"a":2}`, `{"a": 1}`, ` {}`, `{} `, `{"a":1}{}`,
	`0`, `-0`, `01`, `-1`, `-`, `1.5`, `1.50`, `1e5`, `100000`, `1E5`, `123456789012345678901234567890`, `1e+30`, `1e30`, `0.1`,
	`""`, `"é"`, `"\u00e9"`, `"\n"`, `"\u000a"`, `"\u001f"`, `"\u001F"`, `"\u0000"`, `"\/"`, `"/"`, `"\\"`, `"\u005c"`, `"\x"`, `"`,
	"\"\x01\"", "\"\xff\"", "\"\xed\xa0\x80\"", `"\ud83d\ude00"`, `"😀"`, "\"\u2028\"", `"\u007f"`, "\"\x7f\"",
	`{"":1,"a":2}`, `{"😀":1,"ﬁ":2}`, `{"ﬁ":1,"😀":2}`, `{"\n":1,"a":2}`, `{"a":2,"\n":1}`, `{"a\\":1,"a]":2}`, `{"a":1,}`, `[1,]`,
	`tru`, `nul`, ``, `{`, `[`, `{"a"}`, `{"a":}`, `{a:1}`, `[[[[]]]]`, `"\uFFFD"`, "\"\ufffd\"",
}

// The walk and the rewrite give the same verdict on any text.
func FuzzCanonical(f *testing.F) {
	for _, text := range spellings {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		value := jsontext.Value(bytes.Clone(text))
		want := value.Canonicalize(jsontext.CanonicalizeRawInts(false)) == nil && bytes.Equal(value, text)
		if got := audit.Canonical(text); got != want {
			t.Errorf("%q: got %t, want %t", text, got, want)
		}
	})
}
