package attest_test

import (
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/internal/refusal"
)

// badIDs are H32, H34 and other IDs that ParseID must reject.
var badIDs = map[string]string{
	"H32 uppercase domain":   "spiffe://ACME.test/a",
	"H32 uppercase scheme":   "SPIFFE://acme.test/a",
	"H32 encoded dot":        "spiffe://acme.test/%2e%2e/a",
	"H32 encoded letter":     "spiffe://acme.test/%61",
	"H32 encoded slash":      "spiffe://acme.test/a%2fb",
	"H32 empty segment":      "spiffe://acme.test//a",
	"H32 dot segment":        "spiffe://acme.test/./a",
	"H32 dot dot segment":    "spiffe://acme.test/a/../b",
	"H32 trailing slash":     "spiffe://acme.test/a/",
	"H32 port":               "spiffe://acme.test:443/a",
	"H32 empty port":         "spiffe://acme.test:/a",
	"H32 userinfo":           "spiffe://root@acme.test/a",
	"H32 empty userinfo":     "spiffe://@acme.test/a",
	"H32 query":              "spiffe://acme.test/a?b",
	"H32 empty query":        "spiffe://acme.test/a?",
	"H32 fragment":           "spiffe://acme.test/a#b",
	"H32 empty fragment":     "spiffe://acme.test/a#",
	"H32 2049 bytes":         "spiffe://acme.test/" + strings.Repeat("a", 2049-len("spiffe://acme.test/")),
	"H32 domain 256 bytes":   "spiffe://" + strings.Repeat("a", 256) + "/a",
	"H21 root path":          "spiffe://acme.test",
	"H21 slash only":         "spiffe://acme.test/",
	"H34 IDN twin":           "spiffe://аcme.test/a", // the first letter is Cyrillic
	"no domain":              "spiffe:///a",
	"another scheme":         "https://acme.test/a",
	"empty":                  "",
	"NUL":                    "spiffe://acme.test/a\x00",
	"newline":                "spiffe://acme.test/a\n",
	"space":                  "spiffe://acme.test/a b",
	"path letter not ASCII":  "spiffe://acme.test/ä",
	"wildcard":               "spiffe://acme.test/*",
	"leading space":          " spiffe://acme.test/a",
	"backslash":              `spiffe://acme.test\a`,
	"domain with a wildcard": "spiffe://*.test/a",
}

func TestParseIDRefuses(t *testing.T) {
	for name, text := range badIDs {
		t.Run(name, func(t *testing.T) {
			id, err := attest.ParseID(text)
			if got := refusal.Reason(err); got != "spiffe_id_invalid" {
				t.Errorf("got %q, reason %q, want spiffe_id_invalid", id, got)
			}
			if !id.IsZero() {
				t.Errorf("got ID %s along with an error", id)
			}
		})
	}
}

func TestParseIDAccepts(t *testing.T) {
	for name, text := range map[string]string{
		"plain":      "spiffe://acme.test/agents/a",
		"2048 bytes": "spiffe://acme.test/" + strings.Repeat("a", 2048-len("spiffe://acme.test/")),
		"domain 255": "spiffe://" + strings.Repeat("a", 255) + "/a",
		"case kept":  "spiffe://acme.test/Agents/A.b-c_d",
	} {
		t.Run(name, func(t *testing.T) {
			id, err := attest.ParseID(text)
			if err != nil || id.String() != text {
				t.Errorf("got %q, %v, want the same ID", id, err)
			}
		})
	}
}

// An accepted ID prints as it was read, so that two texts are never one identity.
func FuzzParseID(f *testing.F) {
	f.Add("spiffe://acme.test/agents/a")
	for _, text := range badIDs {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id, err := attest.ParseID(text)
		switch {
		case err != nil && !id.IsZero():
			t.Errorf("got ID %s along with %v", id, err)
		case err != nil:
			return
		case id.String() != text:
			t.Errorf("got %q of %q, want the same", id, text)
		case id.Path() == "" || len(text) > 2048 || strings.ToLower(id.TrustDomain().Name()) != id.TrustDomain().Name():
			t.Errorf("got %q accepted, want it refused", text)
		}
	})
}
