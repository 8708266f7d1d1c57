package httpapi_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/httpapi"
	"github.com/google/go-cmp/cmp"
)

var members = map[string]bool{"scope": true, "params": true, "ttl": true, "task": true, "reason": true}

func TestParseObject(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ body, want string }{
		"plain":                         {`{"scope":"a.b","params":{"x":1,"Y":[true]},"task":"t"}`, ""},
		"surrogate pair":                {`{"reason":"\ud83d\ude00"}`, ""},
		"white space around":            {" \n{\"scope\":\"a\"}\t", ""},
		"depth 32":                      {`{"params":` + strings.Repeat("[", 31) + strings.Repeat("]", 31) + `}`, ""},
		"H36 duplicate key":             {`{"scope":"a","scope":"b"}`, "duplicate_member"},
		"H36 duplicate key, escaped":    {`{"scope":"a","sc\u006fpe":"b"}`, "duplicate_member"},
		"H36 duplicate key, nested":     {`{"params":{"x":1,"x":2}}`, "duplicate_member"},
		"H37 other case":                {`{"Scope":"a"}`, "unknown_member"},
		"H38 unknown":                   {`{"scope":"a","subject":"spiffe://x/y"}`, "unknown_member"},
		"H39 trailing value":            {`{"scope":"a"}{"scope":"b"}`, "trailing_data"},
		"H39 trailing junk":             {`{"scope":"a"} x`, "trailing_data"},
		"H40 depth 33":                  {`{"params":` + strings.Repeat("[", 32) + strings.Repeat("]", 32) + `}`, "too_deep"},
		"H40 many":                      {`{"params":[` + strings.Repeat("1,", 2000) + `1]}`, "too_many_tokens"},
		"H44 NUL in a value":            {`{"reason":"a\u0000b"}`, "nul_character"},
		"H44 NUL in a name":             {`{"params":{"\u0000":1}}`, "nul_character"},
		"H44 raw NUL":                   {"{\"reason\":\"a\x00b\"}", "syntax"},
		"H44 invalid UTF-8":             {"{\"reason\":\"\xff\"}", "utf8"},
		"H44 overlong UTF-8":            {"{\"reason\":\"\xc0\xaf\"}", "utf8"},
		"H44 lone surrogate":            {`{"reason":"\ud800"}`, "syntax"},
		"H44 surrogates, wrong way":     {`{"reason":"\ude00\ud83d"}`, "syntax"},
		"byte order mark":               {"\ufeff{}", "not_an_object"},
		"array":                         {`[{"scope":"a"}]`, "not_an_object"},
		"nothing":                       {``, "not_an_object"},
		"cut off":                       {`{"scope":"a"`, "syntax"},
		"comment":                       {`{"scope":"a"/**/}`, "syntax"},
		"NaN":                           {`{"ttl":NaN}`, "syntax"},
		"leading zero":                  {`{"ttl":060}`, "syntax"},
		"single quotes":                 {`{'scope':'a'}`, "syntax"},
		"trailing comma":                {`{"scope":"a",}`, "syntax"},
		"value that is a member's name": {`{"scope":"subject"}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := httpapi.ParseObject([]byte(tc.body), members, httpapi.MaxTokens)
			if got := httpapi.DetailOf(err); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if err != nil && !errors.Is(err, httpapi.ErrMalformed) {
				t.Errorf("got %v, want a malformed body", err)
			}
		})
	}
}

// FuzzParseObject checks that every accepted body is what the strict reader promises.
func FuzzParseObject(f *testing.F) {
	f.Add([]byte(`{"scope":"a.b","params":{"x":[1,{"y":null}]}}`))
	f.Add([]byte(`{"scope":"a","scope":"b"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		object, err := httpapi.ParseObject(body, members, httpapi.MaxTokens)
		if err != nil {
			return
		}
		var want map[string]any
		decoder := json.NewDecoder(bytes.NewReader(body))
		decoder.UseNumber()
		if err := decoder.Decode(&want); err != nil {
			t.Fatalf("accepted what encoding/json refuses: %q: %v", body, err)
		}
		if diff := cmp.Diff(want, object); diff != "" {
			t.Errorf("another object than encoding/json reads (-want +got):\n%s", diff)
		}
		text := strings.TrimSpace(string(body))
		if !strings.HasPrefix(text, "{") || !strings.HasSuffix(text, "}") {
			t.Errorf("accepted what is no object: %q", body)
		}
		if strings.ContainsRune(text, 0) {
			t.Errorf("accepted a NUL: %q", body)
		}
	})
}
