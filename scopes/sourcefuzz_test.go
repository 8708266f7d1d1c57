package scopes_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/scopes"
	"github.com/brevet-dev/brevet/scopes/diff"
)

// FuzzReadExamples: any input is either refused with Problems or gives examples that can be checked.
func FuzzReadExamples(f *testing.F) {
	table, err := os.ReadFile("../examples/catalog/examples.test.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(table)
	f.Add([]byte("examples: []"))
	f.Add([]byte("examples:\n- {name: a, as: spiffe://a/b, scope: a, params: {a: 99999999999999999999, b: ~}, want: {outcome: deny, policies: {}}}\n"))
	c := world(f)
	f.Fuzz(func(t *testing.T, yaml []byte) {
		examples, err := scopes.ReadExamples([]scopes.File{{Name: "a.test.yaml", Data: yaml}})
		if err != nil {
			var problems scopes.Problems
			if !errors.As(err, &problems) || len(problems) == 0 || examples != nil {
				t.Fatalf("got %v and error %T %v, want Problems alone", examples, err, err)
			}
			return
		}
		for _, result := range c.Check(examples) {
			want := result.Example.Want
			if result.Why == "" || len(result.Failures) == 0 && result.Got != want.Outcome || result.Example.As.Path() == "" {
				t.Fatalf("got %+v", result)
			}
		}
	})
}

// FuzzPolicyText: the quoted texts of a catalogue's policies contain all of its policies and nothing else.
func FuzzPolicyText(f *testing.F) {
	f.Add(worldPolicies)
	f.Add("// ;\n@id(\"a\") /* \" ; */ permit (principal, action, resource) // \"\n when { context.task == \"\\\";/*\" };// ;")
	f.Add("@id(\"a\") @b(\"// ;\") forbid (principal, action, resource) when { context.task like \"*\\*;\" };@id(\"b\")permit(principal,action,resource);")
	f.Fuzz(func(t *testing.T, cedar string) {
		c, err := scopes.Load([]scopes.File{file("s.yaml", worldScopes), file("p.cedar", cedar)})
		if err != nil {
			return
		}
		var texts []string
		for _, id := range c.Policies() {
			p, ok := c.Policy(id)
			if !ok || !strings.HasSuffix(p.Text, ";") || !strings.Contains(cedar, p.Text) {
				t.Fatalf("got %+v of %q", p, cedar)
			}
			texts = append(texts, p.Text)
		}
		again, err := scopes.Load([]scopes.File{file("s.yaml", worldScopes), file("p.cedar", strings.Join(texts, "\n"))})
		if err != nil {
			t.Fatalf("the texts of %q are no policies: %v", cedar, err)
		}
		if d := diff.Compare(c, again); len(d.Policies) != 0 {
			t.Fatalf("the texts of %q are others: %+v", cedar, d.Policies)
		}
	})
}

// FuzzScopesSchema: the schema accepts everything that Load accepts.
func FuzzScopesSchema(f *testing.F) {
	f.Add(worldScopes)
	f.Add(vaultScopes)
	f.Add(strings.Replace(worldScopes, "max: 1h", "max: +1h1.5m.5s", 1))
	f.Add(strings.Replace(worldScopes, "default: 10m", "default: 600000ms", 1))
	for _, mistake := range slices.Concat(mistakes, egressMistakes) {
		f.Add(strings.Replace(worldScopes, mistake.old, mistake.with, 1))
	}
	f.Fuzz(func(t *testing.T, yaml string) {
		_, err := scopes.Load([]scopes.File{file("s.yaml", yaml), file("p.cedar", `@id("all") permit (principal, action, resource);`)})
		if err != nil {
			return
		}
		if err := asEditor(compiled(t, scopes.ScopesSchema()), yaml); err != nil {
			t.Fatalf("loaded, and refused by the schema: %v\n%s", err, yaml)
		}
	})
}
