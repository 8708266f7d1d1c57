package httpapi_test

import (
	"testing"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/testkit"
)

// BenchmarkIssue measures a whole request: attested over mutual TLS, decided, recorded, signed by Vault, verified.
func BenchmarkIssue(b *testing.B) {
	s := testkit.NewStack(b, testkit.Options{Catalogue: catalogue})
	c := s.Client(b, agent)
	ask := client.Ask{Scope: "git.issues.read", Params: map[string]any{"repo": "acme/api"}, Task: "bench"}
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if answer, err := c.Request(b.Context(), ask); err != nil || answer.Token == nil {
				b.Errorf("got %v, %v", answer, err)
				return
			}
		}
	})
}
