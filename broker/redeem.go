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
	// Assertion is the browser's response when a passkey has signed Hash. It is ignored if the approval needs no signature.
	Assertion []byte
}

// mostOvertaken limits how often a vote is retried because another vote was faster. Each faster vote brings the request closer to
// a decision.
const mostOvertaken = 32

// Vote casts a person's vote and returns the request as it then is. It returns ErrDecided if the request is already decided,
// ErrStale if the request is not what the person saw, and ErrPasskey if an approval lacks a required passkey signature. A denial
// of a redeemed request revokes its credential and still returns ErrDecided. If Vote returns a request with an error, Voted
// reports whether the vote was recorded.
func (b *Broker) Vote(ctx context.Context, who people.Person, cast VoteCast) (*ApprovalRequest, error) {
	voter, err := b.upsertPerson(ctx, who)
	if err != nil {
		return nil, err
	}
	for range mostOvertaken {
		c, err := b.requestFor(ctx, voter, cast.Request)
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

// recordVote records a vote and updates c.
func (b *Broker) recordVote(ctx context.Context, c *ApprovalRequest, v Vote) error {
	next, err := b.cfg.ApprovalPolicy.next(c, v)
	if err != nil {
		return err
	}
	if c.hasVoteOf(v) {
		return nil // it already counts
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
		b.cfg.Log.ErrorContext(ctx, "break-glass approval: a person approves in place of the approver group", "request", c.ID,
			"status", string(next), "person", v.Voter.ID, "group", c.BreakGlass, "spiffe_id", c.Subject.ID.String(), "scope", c.Scope)
	}
	return nil
}

// remembers reports whether the scope lets an approval of this request cover the task. It goes by what people were shown.
func remembers(c *ApprovalRequest) bool {
	s, ok := shownIn(c.Canonical)
	return ok && s.Remember == scopes.RememberTask
}

// takeBackTimeout limits how long a denial waits while it revokes credentials. The sweeper continues after that.
const takeBackTimeout = 15 * time.Second

// takeBack revokes the credential that a request was redeemed for, and all credentials that reused its approval, even if the
// voter disconnects. It reads the record again, because the request may have been redeemed once more before the denial was
// recorded. If this replica fails, the sweeper does the same for every denial.
func (b *Broker) takeBack(ctx context.Context, c *ApprovalRequest, by Voter) error {
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

// reuseApproval redeems a request at once, because people approved an earlier one for the whole task. It is recorded like any
// other request, with the votes that it relies on. If the reuse cannot be recorded, the request waits for approval.
func (b *Broker) reuseApproval(ctx context.Context, who attest.Identity, rec Record, of string, deliver Deliver) error {
	// If the caller disconnected now, the request would wait for people without having counted against AskingLimit.
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

// reusableApproval returns the ID of the request whose approval covers rec. It returns "" if there is none, or if rec needs no
// approval.
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

// upsertPerson records the caller's data on every call, so that groups that the person has left no longer count.
func (b *Broker) upsertPerson(ctx context.Context, who people.Person) (Voter, error) {
	voter, err := b.cfg.Approvals.UpsertPerson(ctx, voterOf(who), b.cfg.Now().UTC())
	if err != nil {
		return Voter{}, fmt.Errorf("recording the caller: %w", err)
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

func (b *Broker) requestFor(ctx context.Context, v Voter, id string) (*ApprovalRequest, error) {
	c, err := b.readRequest(ctx, id, Reach{All: true})
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
	for range mostOvertaken {
		c, err := b.readRequest(ctx, id, Reach{Subject: actor})
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

// Redemption is a sandbox's claim on its own approved request.
type Redemption struct {
	Request string // its id
	// CSR and PublicKey must be those of the request. The record holds only their digest.
	CSR, PublicKey string
	// JKT is the thumbprint of the key that the caller has proved. It must be that of the request.
	JKT    string
	Expect Expectation
}

// RedeemApproval decides an approved request again, and then issues and delivers the credential. If the request is pending or was
// rejected, the result has Earlier and no record. Errors are as for Issue. RedeemApproval also returns ErrStale if the decision
// or the caller's certificate has changed since the vote, and ErrNotApproved if the request was already redeemed or its approval
// no longer counts.
func (b *Broker) RedeemApproval(ctx context.Context, who attest.Identity, r Redemption, deliver Deliver) error {
	c, err := b.readRequest(ctx, r.Request, Reach{Subject: who.ID().String()})
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

// prepareApproved is prepare for an approved request. It checks that the decision matches what people were shown.
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
		// The request was counted when it was made. Only the limits on live credentials apply now.
		rec.Limits = slices.DeleteFunc(rec.Limits, func(l Limit) bool { return l.Live == 0 })
	}
	return rec, key, err
}

// userThen returns the person that the sandbox acted for when it asked. The person's ID token may have expired since. If it
// limited the TTL that people were shown, that TTL remains the limit.
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

// sameAsShown returns nil if the credential to issue is, byte for byte, what people were shown: the same catalogue, the same
// request with the same key, and the same certificate if the credential is bound to it. Only the TTL may be shorter.
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
	text, err := canonical(then, *d.Scope.Approval) // as in the catalogue, not as in the record
	if err != nil {
		return err
	}
	if text != c.Canonical {
		return ErrStale
	}
	return nil
}
