package server

import (
	"slices"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Role is a workload that may do more than a sandbox, in some trust domains.
type Role struct {
	ID           spiffeid.ID
	TrustDomains []spiffeid.TrustDomain
}

// holders are those who have one role, with the names of the trust domains in which they do.
type holders map[spiffeid.ID][]string

type roles struct{ auditor, admin, orchestrator holders }

func newRoles(cfg Config) roles {
	return roles{auditor: holdersOf(cfg.Auditors), admin: holdersOf(cfg.Admins), orchestrator: holdersOf(cfg.Orchestrators)}
}

func holdersOf(all []Role) holders {
	h := holders{}
	for _, role := range all {
		for _, td := range role.TrustDomains {
			h[role.ID] = append(h[role.ID], td.Name())
		}
	}
	return h
}

// reach is how far who gets by any of the roles. Without one it is errNotAllowed.
func reach(who attest.Identity, of ...holders) (broker.Reach, error) {
	var domains []string
	for _, h := range of {
		domains = append(domains, h[who.ID()]...)
	}
	if len(domains) == 0 {
		return broker.Reach{}, &finding{kind: errNotAllowed, detail: "role"}
	}
	slices.Sort(domains)
	return broker.Reach{TrustDomains: slices.Compact(domains)}, nil
}

// covers tells whether who has one of the roles in the trust domain.
func covers(who attest.Identity, td spiffeid.TrustDomain, of ...holders) bool {
	for _, h := range of {
		if slices.Contains(h[who.ID()], td.Name()) {
			return true
		}
	}
	return false
}

func subjectOf(who attest.Identity) broker.Subject {
	return broker.Subject{ID: who.ID(), Kind: who.Kind(), Thumbprint: who.Thumbprint()}
}
