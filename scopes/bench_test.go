package scopes_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/scopes"
)

// policiesOf writes n policies: two that match the request and others for other sandboxes.
func policiesOf(n int) string {
	var b strings.Builder
	b.WriteString(`@id("agents") permit (principal in Path::"spiffe://td.example/agents", action in Action::"git.issues.*", resource)
when { context.params.repo like "acme/*" };
@id("writes") forbid (principal, action in Action::"authority:write", resource) unless { context.approved };
`)
	for i := 2; i < n; i++ {
		fmt.Fprintf(&b, "@id(\"team-%d\") permit (principal in Path::\"spiffe://td.example/team-%d\", action in Action::\"git.issues.*\", resource)\nwhen { context.params.repo like \"team-%d/*\" };\n", i, i, i)
	}
	return b.String()
}

func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{2, 200, 1000} {
		c := load(b, worldScopes, policiesOf(n))
		for name, a := range map[string]scopes.Ask{
			"allow":   {Scope: "git.issues.read", Params: repo("acme/api"), RequestContext: scopes.RequestContext{Task: "t"}},
			"pending": {Scope: "git.issues.write", Params: repo("acme/api"), RequestContext: scopes.RequestContext{Task: "t"}},
			"deny":    {Scope: "git.issues.write", Params: repo("evil/api"), RequestContext: scopes.RequestContext{Task: "t"}},
		} {
			b.Run(fmt.Sprintf("%s/policies=%d", name, n), func(b *testing.B) {
				who := subject("spiffe://td.example/agents/a")
				b.ReportAllocs()
				for b.Loop() {
					d, err := c.Decide(who, a, noon)
					if err != nil || string(d.Outcome) != name {
						b.Fatalf("got %s and %v", d.Outcome, err)
					}
				}
			})
		}
	}
}

func BenchmarkLoad(b *testing.B) {
	files := []scopes.File{file("s.yaml", worldScopes), file("p.cedar", policiesOf(200))}
	for b.Loop() {
		if _, err := scopes.Load(files); err != nil {
			b.Fatal(err)
		}
	}
}
