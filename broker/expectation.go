package broker

import "github.com/brevet-dev/brevet/scopes"

// Expectation is what a caller expects of a grant, beyond its request. An empty field expects nothing.
type Expectation struct {
	Kind      string // of the credential
	Audience  string
	Authority string
	Resource  string
}

// The properties of a grant that can differ from the expectation.
const (
	UnexpectedKind      = "kind"
	UnexpectedAudience  = "audience"
	UnexpectedAuthority = "authority"
	UnexpectedResource  = "resource"
)

// Unexpected means that the grant would differ from what the caller expects. Nothing was decided.
type Unexpected struct{ Field string } //nolint:errname // it reads as what the grant is

func (u *Unexpected) Error() string { return "granted " + u.Field + " differs from the expected one" }

// check compares a decision with the expectation. It ignores denials, because they grant nothing.
func (e Expectation) check(d scopes.Decision) error {
	if d.Outcome == scopes.Deny {
		return nil
	}
	for _, f := range []struct{ field, want, got string }{
		{UnexpectedKind, e.Kind, d.Scope.Credential.Kind},
		{UnexpectedAudience, e.Audience, d.Scope.Credential.Audience},
		{UnexpectedAuthority, e.Authority, string(d.Scope.Authority)},
		{UnexpectedResource, e.Resource, d.Resource},
	} {
		if f.want != "" && f.want != f.got {
			return &Unexpected{f.field}
		}
	}
	return nil
}
