package scopes_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/scopes"
)

// FuzzLoad: any input is either refused with Problems or loads as a catalogue that can decide.
func FuzzLoad(f *testing.F) {
	f.Add([]byte(worldScopes), []byte(worldPolicies))
	f.Add([]byte("scopes: [*a]"), []byte(`@id("a") permit (principal, action, resource) when { 1 < };`))
	f.Add([]byte("scopes:\n- {name: a.b}\n---\n"), []byte("\xff\x00"))
	f.Add([]byte("? [a]\n: {<<: b}\n"), []byte(strings.Repeat("(", 5000)))
	for _, name := range []string{"github.yaml", "office.yaml"} {
		yaml, err := os.ReadFile(filepath.Join("../examples/catalog", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(yaml, []byte(worldPolicies))
	}
	f.Fuzz(func(t *testing.T, yaml, cedar []byte) {
		c, err := scopes.Load([]scopes.File{{Name: "s.yaml", Data: yaml}, {Name: "p.cedar", Data: cedar}})
		if err != nil {
			var problems scopes.Problems
			if !errors.As(err, &problems) || len(problems) == 0 || c != nil {
				t.Fatalf("got %v and error %T %v, want Problems alone", c, err, err)
			}
			return
		}
		if len(c.Scopes()) == 0 || len(c.Policies()) == 0 || !strings.HasPrefix(c.Digest(), "sha256:") {
			t.Fatalf("an empty catalogue was loaded: %s", c.Digest())
		}
		for _, s := range c.Scopes() {
			if s.TTL.Default > s.TTL.Max || s.TTL.Max > 24*time.Hour || (s.Credential.Kind == "jwt") != (s.Credential.Audience != "") || s.Authority.Rank() < 0 {
				t.Fatalf("a scope without bounds was loaded: %+v", s)
			}
			_, err := c.Decide(boundSubject(ids[0]), scopes.Ask{Scope: s.Name, Params: repo("acme/api"), RequestContext: scopes.RequestContext{Task: "t"}}, noon)
			var bad *scopes.InvalidAsk
			if err != nil && !errors.As(err, &bad) {
				t.Fatalf("deciding %s: %v", s.Name, err)
			}
		}
	})
}

// clean is written independently of the code: no value may contain anything else.
var clean = regexp.MustCompile(`\A[A-Za-z0-9._/:@-]{1,1000}\z`)

// refusals lists all possible messages about a value. None repeats the value.
var refusals = []string{
	"params.value must not be empty",
	"params.value may contain only letters, digits and . _ - / : @",
	"params.value must not begin with -",
	"params.value must not contain an empty, . or .. segment",
	"params.value must be at most 1000 bytes long",
	"params.value produces a resource that is longer than 1000 bytes",
}

// FuzzParamValue: no value gets past the baseline, whatever the pattern allows.
func FuzzParamValue(f *testing.F) {
	for _, s := range []string{"acme/api", "../sys/seal", "a//b", "x\n", "ａ", "{{a}}", "-x", "a/./b", "\xff", "a%2eb"} {
		f.Add(s)
	}
	c := anything(f)
	f.Fuzz(func(t *testing.T, value string) {
		d, err := ask(t, c, "any.thing", map[string]any{"value": value})
		if err != nil {
			if !slices.Contains(refusals, err.Error()) {
				t.Fatalf("got %q for %q, want one of the fixed sentences", err, value)
			}
			return
		}
		padded := "/" + value + "/"
		if !clean.MatchString(value) || strings.HasPrefix(value, "-") ||
			strings.Contains(padded, "//") || strings.Contains(padded, "/./") || strings.Contains(padded, "/../") {
			t.Fatalf("%q was accepted", value)
		}
		if d.Resource != "any:"+value || len(d.Resource) > 1000 {
			t.Fatalf("got resource %q for %q", d.Resource, value)
		}
	})
}
