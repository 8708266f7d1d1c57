// Package approval is the state machine of requests that wait for approval: who may vote, when enough people have approved, what
// a vote changes, and what voters are shown.
//
// It must never do I/O or read a clock. It must never count a vote of a person who is not entitled to it, or who has not signed
// it as required.
package approval

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/internal/passkey"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/scopes"
)

// RedeemGrace is how long after the end of the wait a sandbox can still redeem a request that was approved in time.
const RedeemGrace = time.Minute

// ReuseFor is how long an approval for the task is valid at most.
const ReuseFor = 8 * time.Hour

// The errors of votes and redemptions. Package broker returns and documents them under the same names.
var (
	ErrNotFound    = errors.New("record not found")
	ErrNotEligible = errors.New("person is not a member of the approver group")
	ErrOwnRequest  = errors.New("voter may not decide their own request")
	ErrDecided     = errors.New("request is already decided")
	ErrNoNote      = errors.New("break-glass vote has no note")
	ErrPasskey     = errors.New("approval is not signed by a passkey of the voter")
	ErrNotApproved = errors.New("request is not approved")
	ErrStale       = errors.New("request has changed")
	ErrVoid        = fmt.Errorf("%w: it is void", ErrStale)
)

// Verdict is a person's answer to a request.
type Verdict string

// The verdicts. BreakGlass is an approval in place of the group that was asked.
const (
	Approve    Verdict = "approve"
	Deny       Verdict = "deny"
	BreakGlass Verdict = "break_glass"
)

// Cover is the extent of an approval.
type Cover string

// The extents of an approval: only this request, or also later requests for the same thing during the task, if the scope permits
// it.
const (
	CoverRequest Cover = "request"
	CoverTask    Cover = "task"
)

// Voter is a person who votes, with the latest known data from the identity provider.
type Voter struct {
	ID     string // issuer, "#" and subject
	Name   string // for display: not unique, and untrusted
	Handle string // the name by which SPIFFE IDs identify this person as an owner
	Groups []string
	SaidAt time.Time // when the provider issued this data
}

// VoterOf returns a person as a voter.
func VoterOf(p people.Person) Voter {
	return Voter{ID: p.ID(), Name: p.Name(), Handle: p.Handle(), Groups: p.Groups(), SaidAt: p.Issued()}
}

// Vote is one vote on a request.
type Vote struct {
	Voter   Voter
	Verdict Verdict
	Covers  Cover
	Time    time.Time
	Note    string // free text of the voter: untrusted
	// Assertion is the passkey's signature of the vote, as [passkey.Assertion] writes it. It is empty if no signature is
	// required. Key is the voter's passkey that Assertion names, if the voter had it at the time of the vote and still has it.
	Assertion string
	Key       *passkey.Key
}

// Status is the state of a request that waits for approval, or has waited.
type Status string

// The states. Package broker documents them.
const (
	Pending   Status = "pending"
	Approved  Status = "approved"
	Redeemed  Status = "redeemed"
	Rejected  Status = "rejected"
	Withdrawn Status = "withdrawn"
	Void      Status = "void"
)

// Request holds the facts that votes and redemptions are checked against.
type Request struct {
	ID, SPIFFEID  string
	User          string // the ID of the person that the sandbox acts for; empty if there is none
	Group         string // the approver group
	Quorum        int
	BreakGlass    string // the group that may approve in place of Group; empty if there is none
	Status        Status
	Time, Expires time.Time // when the request was made; when the wait ends
	Canonical     Canonical
	Votes         []Vote // oldest first
	// Reuses is the ID of the request whose approval this one reuses, and Reused is that request. Reused is needed only if
	// approvals must be signed.
	Reuses string
	Reused *Request
}

// HasVoteOf reports whether the same person has voted the same way before. A second approval adds nothing, whether Approve or
// BreakGlass.
func (r *Request) HasVoteOf(v Vote) bool {
	return slices.ContainsFunc(r.Votes, func(old Vote) bool {
		return old.Voter.ID == v.Voter.ID && (old.Verdict == Deny) == (v.Verdict == Deny)
	})
}

// Policy determines who may vote on which requests. The zero value lets nobody vote.
type Policy struct {
	Rules  people.Rules
	Owners people.Owners
	// Site is the site whose passkeys sign. The broker sets it.
	Site passkey.RelyingParty
}

// Entitled returns nil if a person may cast this verdict on a request now. It returns ErrNotFound if the person may not even see
// the request. It is checked at the vote, and again at the mint.
func (p Policy) Entitled(v Voter, says Verdict, r *Request) error {
	asked := says != BreakGlass && slices.Contains(v.Groups, r.Group)
	standsIn := says != Approve && r.BreakGlass != "" && slices.Contains(v.Groups, r.BreakGlass)
	switch {
	case !p.Rules.May(v.Groups, people.RoleApprover, r.SPIFFEID):
		return ErrNotFound
	case !asked && !standsIn:
		return ErrNotEligible
	case p.Owners.Owns(v.Handle, r.SPIFFEID), r.User != "" && r.User == v.ID:
		return ErrOwnRequest
	}
	return nil
}

// saying counts the distinct people who cast a verdict on a request, are entitled to it and, where required, have signed it.
func (p Policy) saying(says Verdict, r *Request) int {
	distinct := map[string]bool{}
	for _, v := range r.Votes {
		if v.Verdict == says && p.Entitled(v.Voter, says, r) == nil && p.signed(v, r) == nil {
			distinct[v.Voter.ID] = true
		}
	}
	return len(distinct)
}

// ApprovedBy returns ReasonApproved if the approver group has enough votes, else ReasonBreakGlass if the break-glass group has,
// else "". The votes of the two groups are never added.
func (p Policy) ApprovedBy(r *Request) string {
	switch {
	case p.saying(Approve, r) >= r.Quorum:
		return scopes.ReasonApproved
	case p.saying(BreakGlass, r) >= scopes.BreakGlassQuorum:
		return scopes.ReasonBreakGlass
	}
	return ""
}

// Next returns the status of a request after a vote. If the same person has voted the same way before, the status does not
// change. Next returns ErrDecided if the vote is too late, and ErrVoid if the request is void.
func (p Policy) Next(r *Request, v Vote) (Status, error) {
	if err := p.Entitled(v.Voter, v.Verdict, r); err != nil {
		return "", err
	}
	open := r.Status == Pending && v.Time.Before(r.Expires) || r.Status == Approved && v.Time.Before(r.Expires.Add(RedeemGrace))
	switch {
	case r.Status == Void:
		return "", ErrVoid
	case r.HasVoteOf(v):
		return r.Status, nil
	case r.Status == Redeemed && v.Verdict == Deny:
		return Redeemed, nil // too late to reject, but the denial is recorded, and the credential is revoked
	case !open:
		return "", ErrDecided
	case v.Verdict == Deny:
		return Rejected, nil
	case r.Status == Approved:
		return "", ErrDecided
	case v.Verdict == BreakGlass && strings.TrimSpace(v.Note) == "":
		return "", ErrNoNote
	}
	if err := p.signed(v, r); err != nil {
		return "", err
	}
	with := *r
	with.Votes = append(slices.Clone(r.Votes), v)
	if p.ApprovedBy(&with) != "" {
		return Approved, nil
	}
	return Pending, nil
}

// Redeemable returns nil if a request can be redeemed now, as far as this is known without the ledger's lock.
func (p Policy) Redeemable(r *Request, now time.Time) error {
	late := !now.Before(r.Expires.Add(RedeemGrace)) || slices.ContainsFunc(r.Votes, func(v Vote) bool { return v.Verdict == Deny })
	if r.Status != Approved && r.Status != Redeemed || late || p.ApprovedBy(r) == "" {
		return ErrNotApproved
	}
	return nil
}

// Covers reports whether the approval of an earlier request covers a new one: enough distinct people have approved it for the
// whole task, nobody has denied it, and people were shown the same thing.
func (p Policy) Covers(earlier *Request, asked Canonical, now time.Time) bool {
	if earlier.Status != Approved && earlier.Status != Redeemed || earlier.Reuses != "" ||
		!now.Before(earlier.Time.Add(ReuseFor)) || !sameAsk(earlier.Canonical, asked) {
		return false
	}
	forTask := *earlier
	forTask.Votes = nil
	for _, v := range earlier.Votes {
		if v.Verdict == Deny {
			return false
		}
		if v.Covers == CoverTask {
			forTask.Votes = append(forTask.Votes, v)
		}
	}
	return p.saying(Approve, &forTask) >= earlier.Quorum
}

// signed returns nil if an approval is signed as the request demands: by a passkey that the voter had then and still has, over
// exactly what the voter was shown. It is checked at the vote, and again at the mint.
func (p Policy) signed(v Vote, r *Request) error {
	switch {
	case v.Verdict == Deny || !r.Canonical.NeedsPasskey():
		return nil
	case r.Reuses != "":
		return p.signedBefore(v, r)
	case v.Key == nil:
		return ErrPasskey
	}
	assertion, err := passkey.ParseAssertion([]byte(v.Assertion))
	if err == nil {
		hash := r.Canonical.Hash()
		err = passkey.Verify(*v.Key, assertion, hash[:], p.Site)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrPasskey, err)
	}
	return nil
}

// signedBefore is signed for a request that reuses the approval of an earlier one. It checks the signature of the voter's earlier
// approval, which must cover the task and be for the same thing.
func (p Policy) signedBefore(v Vote, r *Request) error {
	first := r.Reused
	if first == nil || first.ID != r.Reuses || first.Reuses != "" || !sameAsk(first.Canonical, r.Canonical) {
		return ErrPasskey
	}
	for _, before := range first.Votes {
		if before.Voter.ID == v.Voter.ID && before.Verdict == Approve && before.Covers == CoverTask {
			return p.signed(before, first)
		}
	}
	return ErrPasskey
}
