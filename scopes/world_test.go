package scopes_test

import (
	"os"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit/testscopes"
	"github.com/brevet-dev/brevet/scopes"
)

const (
	worldScopes, worldPolicies = testscopes.Scopes, testscopes.Policies
	mailRule, postRule         = testscopes.MailRule, testscopes.PostRule
)

var (
	noon         = testscopes.Noon
	load         = testscopes.Load
	world        = testscopes.World
	subject      = testscopes.Subject
	repo         = testscopes.Repo
	replace      = testscopes.Replace
	ids          = testscopes.IDs
	heads        = testscopes.Heads
	conditions   = testscopes.Conditions
	drawSubject  = testscopes.DrawSubject
	drawAsk      = testscopes.DrawAsk
	drawPolicy   = testscopes.DrawPolicy
	drawPolicies = testscopes.DrawPolicies
	mustLoad     = testscopes.MustLoad
)

// example is the catalogue that we ship.
func example(tb testing.TB) *scopes.Catalogue {
	tb.Helper()
	c, err := scopes.LoadFS(os.DirFS("../examples/catalog"))
	if err != nil {
		tb.Fatalf("loading the example catalogue:\n%v", err)
	}
	return c
}

func boundSubject(id string) scopes.Subject {
	s := subject(id)
	s.Bound = true
	return s
}
