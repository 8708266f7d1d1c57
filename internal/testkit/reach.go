package testkit

import (
	"slices"
	"strings"

	"github.com/brevet-dev/brevet/broker"
)

// Places are the SPIFFE IDs from which reaches are drawn. Their bytes lie before, at and after the slash, so that a prefix
// that ends Inside a segment would show.
var Places = []string{
	"spiffe://acme.test", "spiffe://acme.test/a", "spiffe://acme.test/a/b", "spiffe://acme.test/a/b/c", "spiffe://acme.test/a-b",
	"spiffe://acme.test/a.b", "spiffe://acme.test/a0", "spiffe://acme.test/ab", "spiffe://acme.test/A", "spiffe://acme.test0/a",
	"spiffe://acme.test.evil/a", "spiffe://other.test", "spiffe://other.test/a", "spiffe://other.test/a/b",
}

// Inside reports whether a reach holds an id, segment by segment.
func Inside(r broker.Reach, id string) bool {
	segments := strings.Split(id, "/")
	under := func(prefix string) bool {
		want := strings.Split(prefix, "/")
		return len(want) <= len(segments) && slices.Equal(want, segments[:len(want)])
	}
	limited := len(r.TrustDomains)+len(r.Within) > 0
	switch {
	case r.Subject != "" && id != r.Subject:
		return false
	case slices.ContainsFunc(r.TrustDomains, func(td string) bool { return under("spiffe://" + td) }):
		return true
	case slices.ContainsFunc(r.Within, func(prefix string) bool {
		return !slices.Contains(NotPlaces, prefix) && under(prefix)
	}):
		return true
	}
	return !limited && (r.Subject != "" || r.All)
}

// NotPlaces are prefixes that reach nothing, though some are a prefix of every SPIFFE ID.
var NotPlaces = []string{"", "/", "spiffe:", "spiffe:/", "spiffe://", "acme.test", "%", "spiffe://acme.test/", "spiffe://acme.test/\x00", "' OR true --"}
