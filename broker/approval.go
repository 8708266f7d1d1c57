package broker

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/internal/passkey"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/scopes"
)

// RedeemGrace is how long after the end of the wait a sandbox can still redeem a request that was approved in time.
const RedeemGrace = time.Minute

// WaitingLimit is how many requests of one sandbox may wait for approval at once, of any scope, so that approvers are not
// flooded. The schema holds the same number and enforces it. A sandbox over the limit is asked to retry after WaitingRetry.
var WaitingLimit = scopes.Limit{Per: scopes.PerSandbox, Live: 20}

// AskingLimit is how many requests of one sandbox may start to wait for approval per hour, over all scopes. Withdrawn requests
// count too, because people are notified of each request. Requests that an earlier approval covers do not count.
var AskingLimit = scopes.Limit{Per: scopes.PerSandbox, Count: 60, Window: time.Hour}

// WaitingRetry is an estimate: the real delay depends on people.
const WaitingRetry = 30 * time.Second

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

// rememberFor is how long an approval for the task is valid at most.
const rememberFor = 8 * time.Hour

// Voter is a person who votes, with the latest known data from the identity provider.
type Voter struct {
	ID     string // issuer, "#" and subject
	Name   string // for display: not unique, and untrusted
	Handle string // the name under which SPIFFE IDs name this person as an owner
	Groups []string
	SaidAt time.Time // when the provider issued this data
}

func voterOf(p people.Person) Voter {
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

// ApprovalRequest is a request that waits for approval, or has waited, with the votes on it.
type ApprovalRequest struct {
	View
	VotesCast []Vote // oldest first
	// Reused is how many later requests have reused its approval.
	Reused int
	// Voted means that the call that returned the request has recorded a vote.
	Voted bool
	// of is the request whose approval this one reuses. It is set if approvals must be signed.
	of *ApprovalRequest
}

// hasVoteOf reports whether the same person has voted the same way before. A second approval adds nothing, whether Approve or
// BreakGlass.
func (c *ApprovalRequest) hasVoteOf(v Vote) bool {
	return slices.ContainsFunc(c.VotesCast, func(old Vote) bool {
		return old.Voter.ID == v.Voter.ID && (old.Verdict == Deny) == (v.Verdict == Deny)
	})
}

// Hash identifies the content that a vote is about: the SHA-256 of what the voter is shown. For a request that nobody can vote
// on, it is the SHA-256 of the empty string.
func (c *ApprovalRequest) Hash() [32]byte { return sha256.Sum256([]byte(c.Canonical)) }

// ApprovalPolicy determines who may vote on which requests.
type ApprovalPolicy struct {
	Rules  people.Rules
	Owners people.Owners

	site passkey.RelyingParty // the broker's relying party
}

// Within returns where a person holds a role. See [people.Rules.Within].
func (b *Broker) Within(who people.Person, role people.Role) []string {
	return b.cfg.ApprovalPolicy.Rules.Within(who.Groups(), role)
}

// sees reports whether a person may see a request at all.
func (e ApprovalPolicy) sees(v Voter, c *ApprovalRequest) bool {
	return e.Rules.May(v.Groups, people.RoleApprover, c.Subject.ID.String())
}

// entitled returns nil if a person may cast this verdict on a request now. It is checked at the vote, and again at the mint.
func (e ApprovalPolicy) entitled(v Voter, says Verdict, c *ApprovalRequest) error {
	asked := says != BreakGlass && slices.Contains(v.Groups, c.ApprovalGroup)
	standsIn := says != Approve && c.BreakGlass != "" && slices.Contains(v.Groups, c.BreakGlass)
	switch {
	case !e.sees(v, c):
		return ErrNotFound
	case !asked && !standsIn:
		return ErrNotEligible
	case e.Owners.Owns(v.Handle, c.Subject.ID.String()), c.User != nil && c.User.ID == v.ID:
		return ErrOwnRequest
	}
	return nil
}

// saying counts the distinct people who cast a verdict on a request, are entitled to it and, where required, have signed it.
func (e ApprovalPolicy) saying(says Verdict, c *ApprovalRequest) int {
	distinct := map[string]bool{}
	for _, v := range c.VotesCast {
		if v.Verdict == says && e.entitled(v.Voter, says, c) == nil && e.signed(v, c) == nil {
			distinct[v.Voter.ID] = true
		}
	}
	return len(distinct)
}

// approvedBy returns the reason code for an issuance that the votes on a request allow: the votes of the approver group, or else
// those of the break-glass group. It does not add the two together. It returns "" if neither has enough votes.
func (e ApprovalPolicy) approvedBy(c *ApprovalRequest) string {
	switch {
	case e.saying(Approve, c) >= c.ApprovalQuorum:
		return scopes.ReasonApproved
	case e.saying(BreakGlass, c) >= scopes.BreakGlassQuorum:
		return scopes.ReasonBreakGlass
	}
	return ""
}

// next returns the status of a request after a vote. If the same person has voted the same way before, the status does not
// change. next returns ErrDecided if the vote is too late.
func (e ApprovalPolicy) next(c *ApprovalRequest, v Vote) (Status, error) {
	if err := e.entitled(v.Voter, v.Verdict, c); err != nil {
		return "", err
	}
	open := c.Status == StatusPending && v.Time.Before(c.Expires) ||
		c.Status == StatusApproved && v.Time.Before(c.Expires.Add(RedeemGrace))
	switch {
	case c.hasVoteOf(v):
		return c.Status, nil
	case c.Status == StatusRedeemed && v.Verdict == Deny:
		return StatusRedeemed, nil // too late to reject, but the denial is recorded, and the credential is revoked
	case !open:
		return "", ErrDecided
	case v.Verdict == Deny:
		return StatusRejected, nil
	case c.Status == StatusApproved:
		return "", ErrDecided
	case v.Verdict == BreakGlass && strings.TrimSpace(v.Note) == "":
		return "", ErrNoNote
	}
	if err := e.signed(v, c); err != nil {
		return "", err
	}
	with := *c
	with.VotesCast = append(slices.Clone(c.VotesCast), v)
	if e.approvedBy(&with) != "" {
		return StatusApproved, nil
	}
	return StatusPending, nil
}

// remembers reports whether the approval of an earlier request covers a new one.
func (e ApprovalPolicy) remembers(earlier *ApprovalRequest, now Record) bool {
	if earlier.Status != StatusApproved && earlier.Status != StatusRedeemed || earlier.Remembered != "" ||
		!now.Time.Before(earlier.Time.Add(rememberFor)) {
		return false
	}
	return sameAsk(earlier.Canonical, now.Canonical) && e.standing(earlier) >= earlier.ApprovalQuorum
}

// sameAsk compares what people were shown of two requests. It reports whether the second asks for the same thing, for no longer,
// and within rememberFor.
func sameAsk(before, now string) bool {
	then, ok := shownIn(before)
	asked, okToo := shownIn(now)
	if !ok || !okToo || asked.TTL > then.TTL || asked.Expires-then.Expires >= int64(rememberFor/time.Second) {
		return false
	}
	for _, s := range []*shown{&then, &asked} {
		s.Request, s.Digest, s.Expires, s.TTL = "", nil, 0, 0
	}
	return reflect.DeepEqual(then, asked)
}

func shownIn(canonical string) (s shown, ok bool) {
	ok = json.Unmarshal([]byte(canonical), &s) == nil
	return s, ok
}

// standing counts the distinct people who approved for the whole task and may approve. It returns 0 if anybody denied.
func (e ApprovalPolicy) standing(c *ApprovalRequest) int {
	forTask := *c
	forTask.VotesCast = nil
	for _, v := range c.VotesCast {
		if v.Verdict == Deny {
			return 0
		}
		if v.Covers == CoverTask {
			forTask.VotesCast = append(forTask.VotesCast, v)
		}
	}
	return e.saying(Approve, &forTask)
}

// redeemable returns nil if a request can be redeemed now, as far as this is known without the ledger's lock.
func (e ApprovalPolicy) redeemable(c *ApprovalRequest, now time.Time) error {
	late := !now.Before(c.Expires.Add(RedeemGrace)) ||
		slices.ContainsFunc(c.VotesCast, func(v Vote) bool { return v.Verdict == Deny })
	if c.Status != StatusApproved && c.Status != StatusRedeemed || late || e.approvedBy(c) == "" {
		return ErrNotApproved
	}
	return nil
}

// shown is what people decide on: everything that determines the credential, and nothing that can change before the mint. People
// are shown its JSON form, with the members in this order and the parameters sorted. Votes name this form by its SHA-256.
type shown struct {
	Version     int            `json:"v"`
	Request     string         `json:"request"` // random, so no two requests have the same form
	TrustDomain string         `json:"trust_domain"`
	SPIFFEID    string         `json:"spiffe_id"`
	User        string         `json:"on_behalf_of,omitempty"` // the person that the sandbox acts for
	Thumbprint  string         `json:"thumbprint,omitempty"`   // of the certificate that the credential is bound to
	JKT         string         `json:"jkt,omitempty"`          // of the DPoP key that the token is bound to
	Scope       string         `json:"scope"`
	Authority   string         `json:"authority"`
	Resource    string         `json:"resource"`
	Params      map[string]any `json:"params"`
	TTL         int64          `json:"ttl"` // maximum, in seconds
	Task        string         `json:"task"`
	Key         string         `json:"key,omitempty"` // SHA-256 of the caller's public key or signing request
	Audience    string         `json:"audience,omitempty"`
	Catalogue   string         `json:"catalogue"`
	Digest      []byte         `json:"digest"` // of the request, including its reason and keys
	Group       string         `json:"group"`
	Quorum      int            `json:"quorum"`
	BreakGlass  string         `json:"break_glass,omitempty"` // the group that may approve in place of Group
	Remember    string         `json:"remember,omitempty"`    // "task" if an approval may cover the task
	Passkey     string         `json:"passkey,omitempty"`     // "required" if an approval must be signed by a passkey
	Expires     int64          `json:"expires"`               // end of the wait, in Unix seconds
}

// canonical describes what a record asks people to approve.
func canonical(rec Record, approval scopes.Approval) (string, error) {
	d := rec.Decision
	s := shown{
		Version: 1, Request: rec.ID, TrustDomain: rec.Subject.ID.TrustDomain().Name(), SPIFFEID: rec.Subject.ID.String(),
		Scope: d.Scope.Name, Authority: string(d.Scope.Authority), Resource: d.Resource, Params: d.Params,
		TTL: int64(d.TTL / time.Second), Task: rec.Request.Task, Audience: d.Scope.Credential.Audience,
		Catalogue: d.Catalogue, Digest: rec.Digest[:], Group: approval.Group, Quorum: approval.Quorum,
		BreakGlass: approval.BreakGlass, Expires: rec.Expires.Unix(), JKT: rec.Request.JKT, User: userID(rec.Request.User),
	}
	if d.Scope.Credential.Bind == scopes.BindMTLS {
		s.Thumbprint = rec.Subject.Thumbprint
	}
	if key := rec.Request.CSR + rec.Request.PublicKey; key != "" {
		digest := sha256.Sum256([]byte(key))
		s.Key = hex.EncodeToString(digest[:])
	}
	if d.Scope.Approval != nil && d.Scope.Approval.Remember == scopes.RememberTask {
		s.Remember = scopes.RememberTask
	}
	if approval.Passkey == scopes.PasskeyRequired {
		s.Passkey = scopes.PasskeyRequired
	}
	text, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("describing the request to people: %w", err)
	}
	return string(text), nil
}
