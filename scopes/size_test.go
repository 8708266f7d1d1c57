package scopes_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/scopes"
)

// grown is a catalogue of n scopes, each with its own policy.
func grown(n int) []scopes.File {
	var files []scopes.File
	var yaml, cedar strings.Builder
	for i := range n {
		if i%200 == 0 {
			yaml.Reset()
			cedar.Reset()
			yaml.WriteString("scopes:\n")
		}
		fmt.Fprintf(&yaml, `  - name: app%d.verb%d
    title: Do one thing
    authority: read
    params: {repo: {type: string, pattern: '[a-z/-]+'}}
    resource: app%d:verb%d/{repo}
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://app.example}
`, i%100, i, i%100, i)
		fmt.Fprintf(&cedar, `@id("p-%d") permit (principal in Path::"spiffe://td.example/agents", action == Action::"app%d.verb%d", resource) when { context.params.repo like "acme/*" };
`, i, i%100, i)
		if i%200 == 199 || i == n-1 {
			files = append(files, file(fmt.Sprintf("s%d.yaml", i), yaml.String()), file(fmt.Sprintf("p%d.cedar", i), cedar.String()))
		}
	}
	return files
}

// BenchmarkGrown measures one decision for catalogues from small to the largest.
func BenchmarkGrown(b *testing.B) {
	for _, n := range []int{10, 1000, scopes.MaxScopes} {
		began := time.Now()
		c, err := scopes.Load(grown(n))
		if err != nil {
			b.Fatal(err)
		}
		loaded := time.Since(began)
		b.Run(fmt.Sprintf("scopes=%d", n), func(b *testing.B) {
			who := subject("spiffe://td.example/agents/a")
			ask := scopes.Ask{Scope: fmt.Sprintf("app%d.verb%d", (n-1)%100, n-1), Params: repo("acme/api"), RequestContext: scopes.RequestContext{Task: "t"}}
			b.ReportAllocs()
			for b.Loop() {
				if d, err := c.Decide(who, ask, noon); err != nil || d.Outcome != scopes.Allow {
					b.Fatalf("got %s and %v", d.Outcome, err)
				}
			}
			b.ReportMetric(loaded.Seconds(), "s/load")
		})
	}
}
