package broker

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/passkey"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/scopes"
	"golang.org/x/sync/errgroup"
)

// WaitingLimit is how many requests of one sandbox may wait for approval at once, of any scope, so that approvers are not
// flooded. The schema enforces the same number. A sandbox over the limit is asked to retry after WaitingRetry.
var WaitingLimit = scopes.Limit{Per: scopes.PerSandbox, Live: 20}

// AskingLimit is how many requests of one sandbox may start to wait for approval per hour, over all scopes. Withdrawn requests
// count too, because people are notified of each request. Requests that an earlier approval covers do not count.
var AskingLimit = scopes.Limit{Per: scopes.PerSandbox, Count: 60, Window: time.Hour}

// WaitingRetry is an estimate: the real delay depends on people.
const WaitingRetry = 30 * time.Second

// ApprovalRequest is a request that waits for approval, or has waited, with the votes on it.
type ApprovalRequest struct {
	View
	VotesCast []approval.Vote // oldest first
	// Reused is how many later requests have reused its approval.
	Reused int
	// Voted means that the call that returned the request has recorded a vote.
	Voted bool
	// of is the request whose approval this one reuses. It is loaded only if approvals must be signed.
	of *ApprovalRequest
}

// Hash identifies the content that a vote is about. See [approval.Canonical.Hash].
func (c *ApprovalRequest) Hash() [32]byte { return approval.Canonical(c.Canonical).Hash() }

// NeedsPasskey reports whether an approval of the request must be signed by a passkey. It goes by what people were shown.
func (c *ApprovalRequest) NeedsPasskey() bool { return approval.Canonical(c.Canonical).NeedsPasskey() }

// GroupKey is equal for requests that people may decide together. See [approval.Canonical.GroupKey].
func (c *ApprovalRequest) GroupKey() string {
	return cmp.Or(approval.Canonical(c.Canonical).GroupKey(), c.ID) // a request that cannot be read is equal to no other
}

// facts returns what decisions on the request depend on.
func (c *ApprovalRequest) facts() *approval.Request {
	r := &approval.Request{
		ID: c.ID, SPIFFEID: c.Subject.ID.String(), User: userID(c.User), Group: c.ApprovalGroup, Quorum: c.ApprovalQuorum,
		BreakGlass: c.BreakGlass, Status: approval.Status(c.Status), Time: c.Time, Expires: c.Expires,
		Canonical: approval.Canonical(c.Canonical), Votes: c.VotesCast, Reuses: c.Remembered,
	}
	if c.of != nil {
		r.Reused = c.of.facts()
	}
	return r
}

// Entitled returns nil if a person may cast this verdict on a request, going by the person's identity and groups. The console
// uses it to choose which buttons to show; Vote and the mint check again.
func (b *Broker) Entitled(who people.Person, says approval.Verdict, c *ApprovalRequest) error {
	return b.cfg.ApprovalPolicy.Entitled(approval.VoterOf(who), says, c.facts())
}

// Owner returns the owner that a SPIFFE ID names. It returns "" if it names none.
func (b *Broker) Owner(spiffeID string) string {
	owner, _ := b.cfg.ApprovalPolicy.Owners.Of(spiffeID)
	return owner
}

// Within returns where a person holds a role. See [people.Rules.Within].
func (b *Broker) Within(who people.Person, role people.Role) []string {
	return b.cfg.ApprovalPolicy.Rules.Within(who.Groups(), role)
}

// VoteCast is a person's vote on one request.
type VoteCast struct {
	Request string // its id
	Hash    [32]byte
	Verdict approval.Verdict
	Covers  approval.Cover
	Note    string
	// Assertion is the browser's response when a passkey has signed Hash. It is ignored if the approval needs no signature.
	Assertion []byte
}

const (
	// maxOvertaken limits how often a vote is retried because another vote was faster. Each faster vote brings the request closer
	// to a decision.
	maxOvertaken = 32
	// takeBackTimeout limits how long a denial waits while it revokes credentials. The sweeper continues after that.
	takeBackTimeout = 15 * time.Second
)

// Vote casts a person's vote and returns the request as it then is. It returns ErrDecided if the request is already decided,
// ErrStale if the request is not what the person saw, ErrVoid if the catalogue has changed, and ErrPasskey if an approval lacks a required passkey signature. A denial
// of a redeemed request revokes its credential and still returns ErrDecided. If Vote returns a request with an error, Voted
// reports whether the vote was recorded.
func (b *Broker) Vote(ctx context.Context, who people.Person, cast VoteCast) (*ApprovalRequest, error) {
	voter, err := b.upsertPerson(ctx, who)
	if err != nil {
		return nil, err
	}
	for range maxOvertaken {
		c, err := b.requestFor(ctx, voter, cast.Request)
		if err != nil {
			return nil, err
		}
		if c.Canonical == "" || c.Hash() != cast.Hash {
			return nil, ErrStale
		}
		reusable := cast.Verdict != approval.BreakGlass && approval.Canonical(c.Canonical).Reusable()
		if cast.Covers == approval.CoverTask && !reusable {
			return nil, ErrNotRemembered
		}
		vote, err := b.filled(ctx, c, voter, cast)
		if err != nil {
			return nil, err
		}
		err = b.recordVote(ctx, c, vote)
		if errors.Is(err, ErrConcurrentChange) {
			continue
		}
		if err == nil && cast.Verdict == approval.Deny {
			err = b.takeBack(ctx, c, voter)
		}
		if err == nil && cast.Verdict == approval.Deny && c.Status == StatusRedeemed {
			err = ErrDecided
		}
		return c, err
	}
	return nil, ErrConcurrentChange
}

// recordVote records a vote and updates c.
func (b *Broker) recordVote(ctx context.Context, c *ApprovalRequest, v approval.Vote) error {
	facts := c.facts()
	status, err := b.cfg.ApprovalPolicy.Next(facts, v)
	if errors.Is(err, ErrVoid) {
		return c.Voided()
	}
	if err != nil {
		return err
	}
	if facts.HasVoteOf(v) {
		return nil // it already counts
	}
	next := Status(status)
	err = b.cfg.Approvals.Apply(ctx, Transition{
		Request: c.ID, Was: c.Status, Votes: c.Votes, Becomes: next, Time: v.Time, Actor: v.Voter.ID, Vote: &v, Hash: c.Hash(),
	})
	if err != nil {
		return fmt.Errorf("recording a vote: %w", err)
	}
	c.Status, c.StatusTime, c.Votes, c.VotesCast, c.Voted = next, v.Time, c.Votes+1, append(c.VotesCast, v), true
	if v.Verdict == approval.BreakGlass {
		c.Broken = true
		b.cfg.Log.ErrorContext(ctx, "break-glass approval: a person approves in place of the approver group", "request", c.ID,
			"status", string(next), "person", v.Voter.ID, "group", c.BreakGlass, "spiffe_id", c.Subject.ID.String(), "scope", c.Scope)
	}
	return nil
}

// filled returns the complete vote. If the vote must be signed, filled adds the signature and the voter's passkey that made it.
func (b *Broker) filled(ctx context.Context, c *ApprovalRequest, voter approval.Voter, cast VoteCast) (approval.Vote, error) {
	v := approval.Vote{Voter: voter, Verdict: cast.Verdict, Covers: cast.Covers, Time: b.cfg.Now().UTC(), Note: cast.Note}
	facts := c.facts()
	if v.Verdict == approval.Deny || c.Status != StatusPending || !c.NeedsPasskey() || facts.HasVoteOf(v) {
		return v, nil // no signature is needed, or the vote cannot count anyway
	}
	if err := b.cfg.ApprovalPolicy.Entitled(voter, v.Verdict, facts); err != nil {
		return approval.Vote{}, err
	}
	if !b.cfg.RelyingParty.Configured() {
		return approval.Vote{}, ErrNoPasskeys
	}
	assertion, err := passkey.ParseAssertion(cast.Assertion)
	if err != nil {
		return approval.Vote{}, fmt.Errorf("%w: %w", ErrPasskey, err)
	}
	has, err := b.cfg.Passkeys.Passkeys(ctx, voter.ID)
	if err != nil {
		return approval.Vote{}, fmt.Errorf("reading passkeys: %w", err)
	}
	for _, p := range has {
		if bytes.Equal(p.Key.Credential, assertion.Credential()) {
			v.Assertion, v.Key = assertion.String(), &p.Key
			return v, nil
		}
	}
	return approval.Vote{}, fmt.Errorf("%w: %w", ErrPasskey, passkey.ErrOtherKey)
}

// takeBack revokes the credential that a request was redeemed for, and all credentials that reused its approval, even if the
// voter disconnects. It reads the record again, because the request may have been redeemed once more before the denial was
// recorded. If this replica fails, the sweeper does the same for every denial.
func (b *Broker) takeBack(ctx context.Context, c *ApprovalRequest, by approval.Voter) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeBackTimeout)
	defer cancel()
	now, err := b.cfg.Ledger.Get(ctx, c.ID, Reach{All: true})
	if err != nil {
		return fmt.Errorf("reading a denied request: %w", err)
	}
	reusers, err := b.cfg.Approvals.ReusedBy(ctx, c.ID)
	if err != nil {
		return fmt.Errorf("reading requests that reused an approval: %w", err)
	}
	var workers errgroup.Group
	workers.SetLimit(endRevokers)
	for _, issuance := range append(reusers, now.RedeemedBy) {
		if issuance == "" {
			continue
		}
		workers.Go(func() error {
			e := ending{cause: CauseRevoked, actor: by.ID}
			_, err := b.endAll(ctx, Selector{ID: issuance}, Reach{Subject: c.Subject.ID.String()}, e)
			return err
		})
	}
	return workers.Wait()
}

// upsertPerson records the caller's data on every call, so that groups that the person has left no longer count.
func (b *Broker) upsertPerson(ctx context.Context, who people.Person) (approval.Voter, error) {
	voter, err := b.cfg.Approvals.UpsertPerson(ctx, approval.VoterOf(who), b.cfg.Now().UTC())
	if err != nil {
		return approval.Voter{}, fmt.Errorf("recording the caller: %w", err)
	}
	return voter, nil
}

// ApprovalRequest returns a request that waits for approval, or has waited. It returns ErrNotFound if the person may not see it.
func (b *Broker) ApprovalRequest(ctx context.Context, who people.Person, id string) (*ApprovalRequest, error) {
	voter, err := b.upsertPerson(ctx, who)
	if err != nil {
		return nil, err
	}
	return b.requestFor(ctx, voter, id)
}

func (b *Broker) requestFor(ctx context.Context, v approval.Voter, id string) (*ApprovalRequest, error) {
	c, err := b.readRequest(ctx, id, Reach{All: true})
	if err != nil {
		return nil, err
	}
	if !b.cfg.ApprovalPolicy.Rules.May(v.Groups, people.RoleApprover, c.Subject.ID.String()) {
		return nil, ErrNotFound
	}
	if !approval.Canonical(c.Canonical).Reusable() {
		return c, nil
	}
	reusers, err := b.cfg.Approvals.ReusedBy(ctx, c.ID)
	c.Reused = len(reusers)
	return c, err
}

// readRequest reads a request with its votes. If the votes come from another request and must be signed, it reads that request too.
func (b *Broker) readRequest(ctx context.Context, id string, reach Reach) (*ApprovalRequest, error) {
	c, err := b.readVotes(ctx, id, reach)
	if err != nil || c.Remembered == "" || !c.NeedsPasskey() {
		return c, err
	}
	c.of, err = b.readVotes(ctx, c.Remembered, reach)
	return c, err
}

// readVotes reads a request and then its votes. It drops votes that arrived in between, which the request does not count yet.
func (b *Broker) readVotes(ctx context.Context, id string, reach Reach) (*ApprovalRequest, error) {
	view, err := b.cfg.Ledger.Get(ctx, id, reach)
	if err != nil {
		return nil, err
	}
	if view.Decision != string(scopes.Pending) {
		return nil, ErrNotFound
	}
	cast, err := b.cfg.Approvals.Votes(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("reading the votes: %w", err)
	}
	return &ApprovalRequest{View: *view, VotesCast: cast[:min(len(cast), view.Votes)]}, nil
}

// Waiting lists the requests that wait for a person's groups and that the person may see, and reports whether there are more. The
// order is that of Inbox.Waiting.
func (b *Broker) Waiting(ctx context.Context, who people.Person, limit int) (cases []ApprovalRequest, more bool, err error) {
	voter, err := b.upsertPerson(ctx, who)
	if err != nil {
		return nil, false, err
	}
	views, more, err := b.cfg.Approvals.Waiting(ctx, WaitingQuery{
		Groups: voter.Groups, Within: b.cfg.ApprovalPolicy.Rules.Within(voter.Groups, people.RoleApprover), Limit: limit,
	})
	if err != nil {
		return nil, false, fmt.Errorf("listing pending requests: %w", err)
	}
	cases = make([]ApprovalRequest, len(views))
	for i, v := range views {
		cases[i].View = v
	}
	return cases, more, nil
}

// Withdraw withdraws a sandbox's own request before it is redeemed. It returns ErrNotFound if the request is not the caller's.
func (b *Broker) Withdraw(ctx context.Context, who attest.Identity, id string) error {
	actor := who.ID().String()
	for range maxOvertaken {
		c, err := b.readRequest(ctx, id, Reach{Subject: actor})
		switch {
		case err != nil:
			return err
		case c.Status == StatusWithdrawn:
			return nil
		case c.Status == StatusVoid:
			return c.Voided()
		case c.Status != StatusPending && c.Status != StatusApproved:
			return ErrDecided
		}
		err = b.cfg.Approvals.Apply(ctx, Transition{
			Request: id, Was: c.Status, Votes: c.Votes, Becomes: StatusWithdrawn, Time: b.cfg.Now().UTC(), Actor: actor,
		})
		if !errors.Is(err, ErrConcurrentChange) {
			return err
		}
	}
	return ErrConcurrentChange
}
