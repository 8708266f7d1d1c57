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

// RedeemGrace is how long after the end of the wait a request that was approved in time can still be redeemed.
const RedeemGrace = time.Minute

// WaitingLimit is how many requests of one sandbox may wait for people at a time, whatever they are for: people are not
// to be worn out. The schema holds the number too, and counts. Who is over it is asked to come back after WaitingRetry.
var WaitingLimit = scopes.Limit{Per: scopes.PerSandbox, Live: 20}

// AskingLimit is how many requests of one sandbox may come to wait for people, whatever they are for and however soon they
// are withdrawn: people are told of each. What an earlier yes covers does not count.
var AskingLimit = scopes.Limit{Per: scopes.PerSandbox, Count: 60, Window: time.Hour}

// WaitingRetry is a guess: it depends on people.
const WaitingRetry = 30 * time.Second

// Verdict is what a person says to a request.
type Verdict string

// The verdicts. BreakGlass is a yes in place of the group that was asked.
const (
	Approve    Verdict = "approve"
	Deny       Verdict = "deny"
	BreakGlass Verdict = "break_glass"
)

// Cover is how far a yes goes.
type Cover string

// What a yes can cover: this request, or the same ask again while the task goes on, where the scope lets it.
const (
	CoverRequest Cover = "request"
	CoverTask    Cover = "task"
)

// rememberFor is how long a yes for the task stands at most.
const rememberFor = 8 * time.Hour

// Voter is who has voted, as far as the provider has said lately.
type Voter struct {
	ID     string // issuer, "#" and subject
	Name   string // for people to read: not unique, and untrusted
	Handle string // by which sandboxes name their owner
	Groups []string
	SaidAt time.Time // when the provider said so
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
	// Assertion is what a passkey has signed for it, as [passkey.Assertion] writes it; empty where nothing has to be signed.
	// Key is the one of the voter that it names, if they had it then and have it still.
	Assertion string
	Key       *passkey.Key
}

// ApprovalRequest is a request that waits for people, or has, with the votes on it.
type ApprovalRequest struct {
	View
	VotesCast []Vote // oldest first
	// Reused is how often its approval has stood for the same ask since.
	Reused int
	// Voted tells that the call which returns it has recorded a vote.
	Voted bool
	// of is the request whose votes are remembered, where they have to be signed.
	of *ApprovalRequest
}

// hasVoteOf tells whether a person has said the same to a request before: a second yes adds nothing, of whichever kind.
func (c *ApprovalRequest) hasVoteOf(v Vote) bool {
	return slices.ContainsFunc(c.VotesCast, func(old Vote) bool {
		return old.Voter.ID == v.Voter.ID && (old.Verdict == Deny) == (v.Verdict == Deny)
	})
}

// Hash is what a vote names: the SHA-256 of what the voter is shown. It is that of nothing for a request that nobody can
// vote on.
func (c *ApprovalRequest) Hash() [32]byte { return sha256.Sum256([]byte(c.Canonical)) }

// ApprovalPolicy says who may decide on what.
type ApprovalPolicy struct {
	Rules  people.Rules
	Owners people.Owners

	site passkey.RelyingParty // the broker's
}

// Within is where somebody holds a role, as in [people.Rules.Within].
func (b *Broker) Within(who people.Person, role people.Role) []string {
	return b.cfg.ApprovalPolicy.Rules.Within(who.Groups(), role)
}

// sees tells whether a person may know of a request at all.
func (e ApprovalPolicy) sees(v Voter, c *ApprovalRequest) bool {
	return e.Rules.May(v.Groups, people.RoleApprover, c.Subject.ID.String())
}

// entitled is nil when a person may say something to a request, now: it is asked at the vote, and again at the mint.
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

// saying counts the distinct people who say something to a request, are entitled to, and have signed it where that is asked.
func (e ApprovalPolicy) saying(says Verdict, c *ApprovalRequest) int {
	distinct := map[string]bool{}
	for _, v := range c.VotesCast {
		if v.Verdict == says && e.entitled(v.Voter, says, c) == nil && e.signed(v, c) == nil {
			distinct[v.Voter.ID] = true
		}
	}
	return len(distinct)
}

// approvedBy is the code of what is issued on the votes on a request: those of its group, else those of the people who
// stand in for it. The two are not added up. It is empty when neither are enough.
func (e ApprovalPolicy) approvedBy(c *ApprovalRequest) string {
	switch {
	case e.saying(Approve, c) >= c.ApprovalQuorum:
		return scopes.ReasonApproved
	case e.saying(BreakGlass, c) >= scopes.BreakGlassQuorum:
		return scopes.ReasonBreakGlass
	}
	return ""
}

// next is what a request becomes by a vote. It is the request's status when the vote changes nothing, because the same
// person has said the same before; ErrDecided when it is too late.
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
		return StatusRedeemed, nil // it comes too late, and is heeded all the same
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

// remembers tells whether the yes to an earlier request stands for one that is asked now.
func (e ApprovalPolicy) remembers(earlier *ApprovalRequest, now Record) bool {
	if earlier.Status != StatusApproved && earlier.Status != StatusRedeemed || earlier.Remembered != "" ||
		!now.Time.Before(earlier.Time.Add(rememberFor)) {
		return false
	}
	return sameAsk(earlier.Canonical, now.Canonical) && e.standing(earlier) >= earlier.ApprovalQuorum
}

// sameAsk tells from what people were shown whether it is the same ask again, for no longer, within rememberFor.
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

// standing counts the distinct people whose yes covers the task and who are entitled to it; none once anybody said no.
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

// redeemable is nil when a request can be redeemed at a time, as far as is known without the ledger's lock.
func (e ApprovalPolicy) redeemable(c *ApprovalRequest, now time.Time) error {
	late := !now.Before(c.Expires.Add(RedeemGrace)) ||
		slices.ContainsFunc(c.VotesCast, func(v Vote) bool { return v.Verdict == Deny })
	if c.Status != StatusApproved && c.Status != StatusRedeemed || late || e.approvedBy(c) == "" {
		return ErrNotApproved
	}
	return nil
}

// shown is what people decide on: all that the credential will be, and nothing that can change until then. Its JSON
// form, with the members in this order and the parameters sorted, is what they are shown and what their votes name
// by its SHA-256.
type shown struct {
	Version     int            `json:"v"`
	Request     string         `json:"request"` // made of chance: no two requests have the same form
	TrustDomain string         `json:"trust_domain"`
	SPIFFEID    string         `json:"spiffe_id"`
	User        string         `json:"on_behalf_of,omitempty"` // on whose behalf the sandbox asks
	Thumbprint  string         `json:"thumbprint,omitempty"`   // of the certificate that the credential is bound to
	JKT         string         `json:"jkt,omitempty"`          // of the key whose proofs the token needs
	Scope       string         `json:"scope"`
	Authority   string         `json:"authority"`
	Resource    string         `json:"resource"`
	Params      map[string]any `json:"params"`
	TTL         int64          `json:"ttl"` // seconds, at most
	Task        string         `json:"task"`
	Key         string         `json:"key,omitempty"` // SHA-256 of the caller's own key that is certified
	Audience    string         `json:"audience,omitempty"`
	Catalogue   string         `json:"catalogue"`
	Digest      []byte         `json:"digest"` // of the request, its reason and keys included
	Group       string         `json:"group"`
	Quorum      int            `json:"quorum"`
	BreakGlass  string         `json:"break_glass,omitempty"` // the group that may stand in
	Remember    string         `json:"remember,omitempty"`    // "task" when a yes may cover the task
	Passkey     string         `json:"passkey,omitempty"`     // "required" when a yes has to be signed by one
	Expires     int64          `json:"expires"`               // of the wait, in seconds since 1970
}

// canonical describes what a record asks people for.
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
