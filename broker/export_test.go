package broker

import (
	"time"

	"github.com/brevet-dev/brevet/internal/passkey"
)

// Next is the state machine of what waits for people, for tests of what it says without a ledger.
func (e ApprovalPolicy) Next(c *ApprovalRequest, v Vote) (Status, error) { return e.next(c, v) }

// Places gives out places in status lists.
type Places struct{ places }

// Take is the list and the place of the next token of a trust domain.
func (p *Places) Take(trustDomain string, now time.Time) (string, int, error) {
	in, err := p.take(trustDomain, now)
	return in.list, in.index, err
}

// At is an electorate that signs on a site.
func At(e ApprovalPolicy, site passkey.RelyingParty) ApprovalPolicy {
	e.site = site
	return e
}

// Redeemable is what redeeming a request begins with.
func Redeemable(e ApprovalPolicy, c *ApprovalRequest, now time.Time) error {
	return e.redeemable(c, now)
}

// RememberedOf is a request with the one of which its votes are remembered.
func RememberedOf(c, before *ApprovalRequest) *ApprovalRequest {
	with := *c
	with.of = before
	return &with
}
