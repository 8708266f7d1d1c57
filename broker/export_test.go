package broker

import (
	"time"

	"github.com/brevet-dev/brevet/internal/passkey"
)

// Next is the state machine for votes. Tests use it without a ledger.
func (e ApprovalPolicy) Next(c *ApprovalRequest, v Vote) (Status, error) { return e.next(c, v) }

// Places assigns places in status lists.
type Places struct{ places }

// Take returns the list and the index for the next token of a trust domain.
func (p *Places) Take(trustDomain string, now time.Time) (string, int, error) {
	in, err := p.take(trustDomain, now)
	return in.list, in.index, err
}

// At returns the policy for passkeys of a site.
func At(e ApprovalPolicy, site passkey.RelyingParty) ApprovalPolicy {
	e.site = site
	return e
}

// Redeemable is the first check of a redemption.
func Redeemable(e ApprovalPolicy, c *ApprovalRequest, now time.Time) error {
	return e.redeemable(c, now)
}

// RememberedOf returns a request that reuses the approval of another.
func RememberedOf(c, before *ApprovalRequest) *ApprovalRequest {
	with := *c
	with.of = before
	return &with
}
