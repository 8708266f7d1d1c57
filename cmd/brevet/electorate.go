package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/people"
)

// electors are the configured people: how they authenticate, and what they may do.
type electors struct {
	verifier *people.Verifier
	policy   approval.Policy
	// bootstrap is the id of the bootstrap admin, if there is one.
	bootstrap string
}

// open turns the configuration into what the broker and the server need. If no people are configured, nobody can
// authenticate as a person.
func (p *PeopleConfig) open() (electors, error) {
	if p == nil {
		return electors{}, nil
	}
	var rules []people.Rule
	for _, r := range p.Roles {
		rules = append(rules, people.Rule{Role: people.Role(r.Role), Group: r.Group, Within: r.Within})
	}
	var e electors
	var errs [5]error
	e.policy.Rules, errs[0] = people.NewRules(rules)
	e.policy.Owners, errs[1] = people.NewOwners(p.Owners)
	var carrier *http.Client
	carrier, errs[2] = p.carrier()
	e.verifier, errs[3] = people.New(people.Config{
		Issuer: p.Issuer, ClientID: p.ClientID, Delegations: p.DelegationAudiences, GroupsClaim: p.GroupsClaim, OwnerClaim: p.OwnerClaim,
		HTTPClient: carrier, Now: time.Now,
	})
	if p.BootstrapAdmin != "" {
		e.bootstrap, errs[4] = people.ParseID(p.Issuer, p.BootstrapAdmin)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return electors{}, fmt.Errorf("people: %w", err)
	}
	return e, nil
}

// openElectors opens the configured people, and logs whether the bootstrap admin is on.
func (s *service) openElectors(ctx context.Context, cfg *PeopleConfig, book *ledger.Ledger) (electors, error) {
	e, err := cfg.open()
	if err != nil || e.bootstrap == "" {
		return e, err
	}
	end, on, err := book.Bootstrap(ctx)
	switch {
	case err != nil:
		return electors{}, err
	case on:
		s.log.WarnContext(ctx, "bootstrap admin is on", "person", e.bootstrap, "until", end)
	default:
		s.log.InfoContext(ctx, "bootstrap admin is off", "person", e.bootstrap, "since", end)
	}
	return e, nil
}

// carrier returns an HTTP client that trusts the configured roots and no others. Without configured roots it returns nil,
// for the system's.
func (p *PeopleConfig) carrier() (*http.Client, error) {
	if p.CAFile == "" {
		return nil, nil //nolint:nilnil // the system's roots
	}
	roots, err := readRoots(p.CAFile)
	if err != nil {
		return nil, fmt.Errorf("ca_file: %w", err)
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}}, nil
}
