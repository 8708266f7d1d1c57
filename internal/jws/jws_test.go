package jws_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/jws"
	"github.com/go-json-experiment/json/jsontext"
)

// The first example of RFC 7515, appendix A.1.
const example = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"

func TestSplit(t *testing.T) {
	parts, err := jws.Split(example, len(example))
	if err != nil || string(parts[0]) != "{\"typ\":\"JWT\",\r\n \"alg\":\"HS256\"}" || len(parts[2]) != 32 {
		t.Errorf("got %q, %v", parts[0], err)
	}
	if _, err := jws.Split(example, len(example)-1); !errors.Is(err, jws.ErrTooLarge) {
		t.Errorf("got %v, want %v", err, jws.ErrTooLarge)
	}
	for name, token := range map[string]string{
		"nothing":      "",
		"two parts":    "e30.e30",
		"four parts":   "e30.e30.e30.e30",
		"a hole":       "e30..e30",
		"a line break": "e3\n0.e30.e30",
		"padding":      "e30=.e30.e30",
		"stray bits":   "e31.e31.e31",
		"the alphabet": "e+0.e30.e30",
		"dots":         strings.Repeat(".", 1000),
	} {
		if _, err := jws.Split(token, 10000); !errors.Is(err, jws.ErrMalformed) {
			t.Errorf("%s: got %v, want %v", name, err, jws.ErrMalformed)
		} else if token != "" && strings.Contains(err.Error(), token) {
			t.Errorf("%s: %v quotes the token", name, err)
		}
	}
}

func TestClaims(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "1300819380": 1300819380, "253402300799": 253402300799} {
		if got, err := jws.Seconds(jsontext.Value(text)); err != nil || got.Unix() != want {
			t.Errorf("%s: got %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "-1", "1.0", "1e3", `"1"`, "null", "253402300800", "9223372036854775808"} {
		if got, err := jws.Seconds(jsontext.Value(text)); !errors.Is(err, jws.ErrMalformed) {
			t.Errorf("%s: got %v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{`"a"`: "a", `["a"]`: "a", `["a","b"]`: "", `[]`: "", `[1]`: "", `{}`: "", "": "", "null": ""} {
		if got, ok := jws.SoleAudience(jsontext.Value(text)); got != want || ok != (want != "") {
			t.Errorf("%s: got %q, %v", text, got, ok)
		}
	}
}
