package jws_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/jws"
	"github.com/go-json-experiment/json/jsontext"
)

// Encoding the parts again gives the original text: no two texts decode to one token.
func FuzzSplit(f *testing.F) {
	f.Add("eyJhbGciOiJFUzI1NiJ9.e30.AA")
	f.Add("..")
	f.Add("AB.AA.AA")
	f.Add("AA==.AA.AA")
	f.Add("A\r\nA.AA.AA")
	f.Fuzz(func(t *testing.T, text string) {
		const limit = 1 << 10
		parts, err := jws.Split(text, limit)
		if err != nil {
			if !errors.Is(err, jws.ErrMalformed) && !errors.Is(err, jws.ErrTooLarge) {
				t.Errorf("got %v", err)
			}
			return
		}
		var again []string
		for _, part := range parts {
			again = append(again, base64.RawURLEncoding.EncodeToString(part))
		}
		if joined := strings.Join(again, "."); joined != text || len(text) > limit {
			t.Errorf("accepted %q, which is %q", text, joined)
		}
	})
}

// A time is a whole number that every parser reads in the same way.
func FuzzSeconds(f *testing.F) {
	for _, text := range []string{"0", "1760000000", "1e3", "1.5", "-1", `"1"`, "253402300800", "9223372036854775808", "00", "null"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v := jsontext.Value(text)
		if !v.IsValid() {
			return // the input always comes from parsed JSON
		}
		at, err := jws.Seconds(v)
		if err == nil && strconv.FormatInt(at.Unix(), 10) != text {
			t.Errorf("got %d of %q", at.Unix(), text)
		}
		if err == nil && (at.Year() > 9999 || at.Unix() < 0) {
			t.Errorf("got %s of %q, which cannot be printed", at, text)
		}
	})
}

// An audience is a single one for every parser.
func FuzzSoleAudience(f *testing.F) {
	for _, text := range []string{`"a"`, `["a"]`, `["a","b"]`, `[]`, `[["a"]]`, `{"a":1}`, `null`, `[null]`, `[1]`, `"\ud800"`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v := jsontext.Value(text)
		if !v.IsValid() {
			return
		}
		sole, ok := jws.SoleAudience(v)
		if !ok {
			return
		}
		var one string
		var list []string
		if json.Unmarshal([]byte(text), &one) != nil && (json.Unmarshal([]byte(text), &list) != nil || len(list) != 1) {
			t.Fatalf("accepted %q", text)
		}
		if list != nil {
			one = list[0]
		}
		if one != sole || sole == "" {
			t.Errorf("got %q of %q", sole, text)
		}
	})
}
