package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/scopes"
	"golang.org/x/sync/errgroup"
)

// VoteCast is a person's vote on one request.
type VoteCast struct {
	Request string // its id
	Hash    [32]byte
	Verdict Verdict
	Covers  Cover
	Note    string
	// Assertion is what the voter's browser answers when a passkey has signed the hash, where a yes has to be signed; else
	// it is not looked at.
	Assertion []byte
}

// mostOvertaken bounds how often a vote is cast anew because others were quicker. Each of them brings the request
// nearer to its end.
const mostOvertaken = 32

// Vote casts a person's vote, and returns the request as it is then. A vote on a request that is decided is ErrDecided,
// on one that is not what the person saw ErrStale; a yes that has to be signed by a passkey and is not is ErrPasskey. A no to what has been redeemed revokes it, and is ErrDecided still. With
// an error too the request says whether a vote was recorded, where there is one.
func (b *Broker) Vote(ctx context.Context, who people.Person, cast VoteCast) (*ApprovalRequest, error) {
	voter, err := b.upsertPerson(ctx, who)
	if err != nil {
		return nil, err
	}
	for range mostOvertaken {
		c, err := b.caseFor(ctx, voter, cast.Request)
		if err != nil {
			return nil, err
		}
		if c.Canonical == "" || c.Hash() != cast.Hash {
			return nil, ErrStale
		}
		if cast.Covers == CoverTask && (cast.Verdict == BreakGlass || !remembers(c)) {
			return nil, ErrNotRemembered
		}
		vote, err := b.filled(ctx, c, voter, cast)
		if err != nil {
			return nil, err
		}
		err = b.recordVote(ctx, c, vote)
		if errors.Is(err, ErrOvertaken) {
			continue
		}
		if err == nil && cast.Verdict == Deny {
			err = b.takeBack(ctx, c, voter)
		}
		if err == nil && cast.Verdict == Deny && c.Status == StatusRedeemed {
			err = ErrDecided
		}
		return c, err
	}
	return nil, ErrOvertaken
}

// recordVote records a vote, and moves c by it.
func (b *Broker) recordVote(ctx context.Context, c *ApprovalRequest, v Vote) error {
	next, err := b.cfg.ApprovalPolicy.next(c, v)
	if err != nil {
		return err
	}
	if c.hasVoteOf(v) {
		return nil // it counts already
	}
	err = b.cfg.Approvals.Apply(ctx, Transition{
		Request: c.ID, Was: c.Status, Votes: c.Votes, Becomes: next, Time: v.Time, Actor: v.Voter.ID, Vote: &v, Hash: c.Hash(),
	})
	if err != nil {
		return fmt.Errorf("recording a vote: %w", err)
	}
	c.Status, c.StatusTime, c.Votes, c.VotesCast, c.Voted = next, v.Time, c.Votes+1, append(c.VotesCast, v), true
	if v.Verdict == BreakGlass {
		c.Broken = true
		b.cfg.Log.ErrorContext(ctx, "glass is broken: somebody approves in place of the group that was asked", "request", c.ID,
			"status", string(next), "person", v.Voter.ID, "group", c.BreakGlass, "spiffe_id", c.Subject.ID.String(), "scope", c.Scope)
	}
	return nil
}

// remembers tells whether the scope lets a yes to a request cover the task, as people were shown.
func remembers(c *ApprovalRequest) bool {
	s, ok := shownIn(c.Canonical)
	return ok && s.Remember == scopes.RememberTask
}

// takeBackTimeout bounds what a no does about what was issued. What is left then is left to the sweeper.
const takeBackTimeout = 15 * time.Second

// takeBack revokes what a request was redeemed by, and all those that its approval stood for, also when the voter hangs up.
// It looks again: until the no was recorded, the request may have been redeemed once more. The sweeper does the same for
// every no, should this replica not get to it.
func (b *Broker) takeBack(ctx context.Context, c *ApprovalRequest, by Voter) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeBackTimeout)
	defer cancel()
	now, err := b.cfg.Ledger.Get(ctx, c.ID, Reach{All: true})
	if err != nil {
		return fmt.Errorf("looking for what a no comes too late for: %w", err)
	}
	reusers, err := b.cfg.Approvals.ReusedBy(ctx, c.ID)
	if err != nil {
		return fmt.Errorf("looking for what a yes stood for: %w", err)
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

// reuseApproval redeems a request at once, because people have let their yes to the same ask stand for the task. It is recorded
// like any other, with the votes that it stands on. What keeps it from that leaves it waiting.
func (b *Broker) reuseApproval(ctx context.Context, who attest.Identity, rec Record, of string, deliver Deliver) error {
	// A caller who hangs up now would leave a request to people that was not counted as one for them.
	err := b.cfg.Approvals.Apply(context.WithoutCancel(ctx), Transition{
		Request: rec.ID, Was: StatusPending, Becomes: StatusApproved, Time: b.cfg.Now().UTC(), Actor: rec.Subject.ID.String(),
		Remembered: of,
	})
	if err != nil {
		b.cfg.Log.WarnContext(ctx, "an approval was not reused", "request", rec.ID, "of", of, "error", err)
		return deliver(Result{Record: rec})
	}
	return b.RedeemApproval(ctx, who, Redemption{
		Request: rec.ID, CSR: rec.Request.CSR, PublicKey: rec.Request.PublicKey, JKT: rec.Request.JKT,
	}, deliver)
}

// reusableApproval is the request whose approval stands for a new one; empty when there is none, or nobody is to be asked.
func (b *Broker) reusableApproval(ctx context.Context, rec Record) (string, error) {
	if rec.Status != StatusPending || rec.Decision.Approval.Remember != scopes.RememberTask {
		return "", nil
	}
	asked := ReuseKey{SPIFFEID: rec.Subject.ID.String(), Task: rec.Request.Task, Scope: rec.Request.Scope}
	earlier, err := b.cfg.Approvals.ReusableApprovals(ctx, asked, rec.Time.Add(-rememberFor))
	if err != nil {
		return "", fmt.Errorf("looking for earlier requests: %w", err)
	}
	for _, v := range earlier {
		cast, err := b.cfg.Approvals.Votes(ctx, v.ID)
		if err != nil {
			return "", fmt.Errorf("reading the votes: %w", err)
		}
		if b.cfg.ApprovalPolicy.remembers(&ApprovalRequest{View: v, VotesCast: cast}, rec) {
			return v.ID, nil
		}
	}
	return "", nil
}

// upsertPerson records who somebody is whenever they call, so that a group that they have left counts no more.
func (b *Broker) upsertPerson(ctx context.Context, who people.Person) (Voter, error) {
	voter, err := b.cfg.Approvals.UpsertPerson(ctx, voterOf(who), b.cfg.Now().UTC())
	if err != nil {
		return Voter{}, fmt.Errorf("recording who calls: %w", err)
	}
	return voter, nil
}

// ApprovalRequest returns a request that waits for people, or has, to somebody who may know of it, else ErrNotFound.
func (b *Broker) ApprovalRequest(ctx context.Context, who people.Person, id string) (*ApprovalRequest, error) {
	voter, err := b.upsertPerson(ctx, who)
	if err != nil {
		return nil, err
	}
	return b.caseFor(ctx, voter, id)
}

func (b *Broker) caseFor(ctx context.Context, v Voter, id string) (*ApprovalRequest, error) {
	c, err := b.readCase(ctx, id, Reach{All: true})
	if err != nil {
		return nil, err
	}
	if !b.cfg.ApprovalPolicy.sees(v, c) {
		return nil, ErrNotFound
	}
	if !remembers(c) {
		return c, nil
	}
	reusers, err := b.cfg.Approvals.ReusedBy(ctx, c.ID)
	c.Reused = len(reusers)
	return c, err
}

// readCase reads a request with its votes, and with that of which they are remembered where they have to be signed.
func (b *Broker) readCase(ctx context.Context, id string, reach Reach) (*ApprovalRequest, error) {
	c, err := b.readVotes(ctx, id, reach)
	if err != nil || c.Remembered == "" || !c.NeedsPasskey() {
		return c, err
	}
	c.of, err = b.readVotes(ctx, c.Remembered, reach)
	return c, err
}

// readVotes reads a request, and then its votes: votes that come between are none that the request's count has.
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

// Waiting lists the requests that wait for the groups of a person, and which the person may know of, and tells whether
// there are more. They come in turn, as Inbox has it.
func (b *Broker) Waiting(ctx context.Context, who people.Person, limit int) (cases []ApprovalRequest, more bool, err error) {
	voter, err := b.upsertPerson(ctx, who)
	if err != nil {
		return nil, false, err
	}
	views, more, err := b.cfg.Approvals.Waiting(ctx, WaitingQuery{
		Groups: voter.Groups, Within: b.cfg.ApprovalPolicy.Rules.Within(voter.Groups, people.RoleApprover), Limit: limit,
	})
	if err != nil {
		return nil, false, fmt.Errorf("listing what waits: %w", err)
	}
	cases = make([]ApprovalRequest, len(views))
	for i, v := range views {
		cases[i].View = v
	}
	return cases, more, nil
}

// Withdraw takes a sandbox's own request back, before it is redeemed. ErrNotFound when it is not its own.
func (b *Broker) Withdraw(ctx context.Context, who attest.Identity, id string) error {
	actor := who.ID().String()
	for range mostOvertaken {
		c, err := b.readCase(ctx, id, Reach{Subject: actor})
		switch {
		case err != nil:
			return err
		case c.Status == StatusWithdrawn:
			return nil
		case c.Status != StatusPending && c.Status != StatusApproved:
			return ErrDecided
		}
		err = b.cfg.Approvals.Apply(ctx, Transition{
			Request: id, Was: c.Status, Votes: c.Votes, Becomes: StatusWithdrawn, Time: b.cfg.Now().UTC(), Actor: actor,
		})
		if !errors.Is(err, ErrOvertaken) {
			return err
		}
	}
	return ErrOvertaken
}

// Redemption is a sandbox's claim on a request of its own that people have approved.
type Redemption struct {
	Request string // its id
	// CSR and PublicKey are as they were asked with, since only their digest is kept.
	CSR, PublicKey string
	// JKT is of the key that the caller has proved, which has to be the one that it asked with.
	JKT    string
	Expect Expectation
}

// RedeemApproval issues what people have approved, after policy has decided again, and delivers it. The result has no record, but Earlier, when the
// request is pending or was rejected. Errors are as for Issue, and also ErrStale when the decision or the caller's certificate has
// changed since the vote, and ErrNotApproved when the request was redeemed before or its approval no longer counts.
func (b *Broker) RedeemApproval(ctx context.Context, who attest.Identity, r Redemption, deliver Deliver) error {
	c, err := b.readCase(ctx, r.Request, Reach{Subject: who.ID().String()})
	if err != nil {
		return err
	}
	if c.Status == StatusPending || c.Status == StatusRejected {
		return deliver(Result{Earlier: &c.View})
	}
	rec, key, _, err := b.begin(ctx, who, func(catalogue *scopes.Catalogue, now time.Time) (Record, Key, error) {
		if err := b.cfg.ApprovalPolicy.redeemable(c, now); err != nil {
			return Record{}, Key{}, err
		}
		return b.prepareApproved(catalogue, who, c, r, now)
	})
	if err != nil {
		return err
	}
	if rec.Intent != nil && rec.Decision.Reason == scopes.ReasonBreakGlass {
		b.cfg.Log.ErrorContext(ctx, "break-glass approval used: a credential is issued", "request", c.ID, "issuance", rec.ID,
			"spiffe_id", c.Subject.ID.String(), "scope", c.Scope)
	}
	return b.mint(ctx, rec, key, deliver)
}

// prepareApproved is prepare for what people have approved. It holds the decision to what they were shown.
func (b *Broker) prepareApproved(catalogue *scopes.Catalogue, who attest.Identity, c *ApprovalRequest, r Redemption, now time.Time) (Record, Key, error) {
	req := Request{
		Scope: c.Scope, Params: c.Params, TTL: c.TTLAsked, Task: c.Task, Reason: c.Reason, CSR: r.CSR, PublicKey: r.PublicKey,
		JKT: r.JKT, User: userThen(c, now),
	}
	decide := catalogue.DecideApproved
	if b.cfg.ApprovalPolicy.approvedBy(c) == scopes.ReasonBreakGlass {
		decide = catalogue.DecideBreakGlass
	}
	d, err := decide(asking(who, req), askOf(req), now)
	if err != nil {
		return Record{}, Key{}, err
	}
	req = bindable(req, d)
	if err := r.Expect.check(d); err != nil {
		return Record{}, Key{}, err
	}
	if d.Outcome == scopes.Allow {
		if err := sameAsShown(who, c, req, d); err != nil {
			return Record{}, Key{}, err
		}
		d.TTL = min(d.TTL, c.TTL)
	}
	rec, key, err := b.prepare(who, req, d, now)
	if err == nil && rec.Intent != nil {
		rec.Approves, rec.Canonical = c.ID, c.Canonical
		// It counted when it was asked for. What is alive is counted when it is.
		rec.Limits = slices.DeleteFunc(rec.Limits, func(l Limit) bool { return l.Live == 0 })
	}
	return rec, key, err
}

// userThen is the person on whose behalf a request was asked. Their ID token need not live any more: it has bounded the TTL
// that people were shown, and bounds it still.
func userThen(c *ApprovalRequest, now time.Time) *scopes.User {
	if c.User == nil {
		return nil
	}
	user := *c.User
	if slices.Contains(c.Clamps, scopes.BoundUser) {
		user.Until = now.Add(c.TTL)
	}
	return &user
}

// sameAsShown is nil when what would be issued is, byte for byte, what people were shown: the same catalogue, the same
// request with the same key, and the same certificate if it will be bound to one. The TTL may have become shorter.
func sameAsShown(who attest.Identity, c *ApprovalRequest, req Request, d scopes.Decision) error {
	digest, err := requestDigest(req)
	if err != nil {
		return err
	}
	d.TTL = c.TTL
	then := Record{
		ID: c.ID, Subject: Subject{ID: who.ID(), Kind: who.Kind(), Thumbprint: who.Thumbprint()}, Request: req, Decision: d,
		Digest: digest, Expires: c.Expires,
	}
	if d.Scope.Approval == nil {
		return ErrStale
	}
	text, err := canonical(then, *d.Scope.Approval) // as the catalogue has it, whatever the record says
	if err != nil {
		return err
	}
	if text != c.Canonical {
		return ErrStale
	}
	return nil
}
