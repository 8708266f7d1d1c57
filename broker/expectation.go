package broker

import "github.com/brevet-dev/brevet/scopes"

// Expectation is what a caller takes a grant to be, beyond what it asks for. An empty field expects nothing.
type Expectation struct {
	Kind      string // of the credential
	Audience  string
	Authority string
	Resource  string
}

// What of a grant can be another than was expected.
const (
	UnexpectedKind      = "kind"
	UnexpectedAudience  = "audience"
	UnexpectedAuthority = "authority"
	UnexpectedResource  = "resource"
)

// Unexpected means that what would be granted is not what the caller takes it to be. Nothing was decided.
type Unexpected struct{ Field string } //nolint:errname // it reads as what the grant is

func (u *Unexpected) Error() string { return "granted " + u.Field + " is not the expected one" }

// check holds a decision to what is expected. What is denied is told to nobody.
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
