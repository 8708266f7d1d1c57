package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/scopes"
)

const (
	// lookUpsAtOnce is how many sandboxes may look for earlier requests at once. The last place is only for a trust domain that has none.
	lookUpsAtOnce = 3
	// lookUpPatience is how long a sandbox waits for such a place.
	lookUpPatience = 10 * time.Second
)

// reuseApproval redeems a pending request at once, because people approved another one for the whole task. It is recorded like any
// other request, with the votes that it relies on. If the reuse cannot be recorded, the request waits for approval.
func (b *Broker) reuseApproval(ctx context.Context, who attest.Identity, id string, req Request, of string, deliver Deliver) error {
	// A disconnect must not stop this: the request would then wait for people, although it was not counted against AskingLimit.
	err := b.cfg.Approvals.Apply(context.WithoutCancel(ctx), Transition{
		Request: id, Was: StatusPending, Becomes: StatusApproved, Time: b.cfg.Now().UTC(), Actor: who.ID().String(), Remembered: of,
	})
	if err != nil { // RedeemApproval delivers that it is pending, or what became of it meanwhile
		b.cfg.Log.WarnContext(ctx, "an approval was not reused", "request", id, "of", of, "error", err)
	}
	return b.RedeemApproval(ctx, who, redemptionOf(id, req), deliver)
}

// giveWay withdraws a pending request with votes, so that an equal one can reuse an approval: votes that are reused never count together
// with others. The error is ErrAlreadyAsked, because the request has to be decided again.
func (b *Broker) giveWay(ctx context.Context, who attest.Identity, open *View) error {
	err := b.cfg.Approvals.Apply(ctx, Transition{
		Request: open.ID, Was: StatusPending, Votes: open.Votes, Becomes: StatusWithdrawn, Time: b.cfg.Now().UTC(), Actor: who.ID().String(),
	})
	if err != nil && !errors.Is(err, ErrConcurrentChange) {
		return fmt.Errorf("withdrawing an equal request: %w", err)
	}
	return ErrAlreadyAsked
}

// lookUp waits for a place to look for earlier requests, in turn with the other trust domains and sandboxes, so that a sandbox which
// repeats its requests does not take the connections that are for reads. The caller must call leave to free the place.
func (b *Broker) lookUp(ctx context.Context, who attest.Identity) (leave func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lookUpPatience)
	defer cancel()
	leave, err = b.lookUps.Enter(ctx, who.ID().TrustDomain().Name(), who.ID().String())
	if err != nil {
		return nil, fmt.Errorf("%w: waiting to look for earlier requests: %w", ErrLedgerUnavailable, err)
	}
	return leave, nil
}

// openRequest returns an open request that rec would repeat, or nil. The ledger finds a repeated idempotency key itself.
func (b *Broker) openRequest(ctx context.Context, rec Record, closed []string) (*View, error) {
	if rec.Request.IdempotencyKey != "" {
		return nil, nil //nolint:nilnil // there is none
	}
	open, err := b.cfg.Approvals.EqualRequest(ctx, rec, closed)
	if err != nil {
		return nil, fmt.Errorf("looking for an equal request: %w", err)
	}
	return open, nil
}

// reusableApproval returns the ID of the request whose approval covers rec. It returns "" if there is none, or if rec needs no
// approval.
func (b *Broker) reusableApproval(ctx context.Context, rec Record) (string, error) {
	if rec.Status != StatusPending || rec.Decision.Approval.Remember != scopes.RememberTask {
		return "", nil
	}
	asked := ReuseKey{SPIFFEID: rec.Subject.ID.String(), Task: rec.Request.Task, Scope: rec.Request.Scope}
	earlier, err := b.cfg.Approvals.ReusableApprovals(ctx, asked, rec.Time.Add(-approval.ReuseFor))
	if err != nil {
		return "", fmt.Errorf("looking for earlier requests: %w", err)
	}
	for _, v := range earlier {
		cast, err := b.cfg.Approvals.Votes(ctx, v.ID)
		if err != nil {
			return "", fmt.Errorf("reading the votes: %w", err)
		}
		if b.cfg.ApprovalPolicy.Covers((&ApprovalRequest{View: v, VotesCast: cast}).facts(), approval.Canonical(rec.Canonical), rec.Time) {
			return v.ID, nil
		}
	}
	return "", nil
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

func redemptionOf(id string, req Request) Redemption {
	return Redemption{Request: id, CSR: req.CSR, PublicKey: req.PublicKey, JKT: req.JKT, Expect: req.Expect}
}

// RedeemApproval decides an approved request again, and then issues and delivers the credential. If the request is pending, was
// rejected or is void, the result has Earlier and no record. Errors are as for Issue. RedeemApproval also returns ErrStale if the decision
// or the caller's certificate has changed since the vote, and ErrNotApproved if the request was already redeemed or its approval
// no longer counts.
func (b *Broker) RedeemApproval(ctx context.Context, who attest.Identity, r Redemption, deliver Deliver) error {
	leave, err := b.lookUp(ctx, who)
	if err != nil {
		return err
	}
	c, err := b.readRequest(ctx, r.Request, Reach{Subject: who.ID().String()})
	leave()
	if err != nil {
		return err
	}
	if c.Status == StatusPending || c.Status == StatusRejected || c.Status == StatusVoid {
		return deliver(Result{Earlier: &c.View})
	}
	rec, key, _, err := b.begin(ctx, who, func(catalogue *scopes.Catalogue, now time.Time) (Record, Key, error) {
		if err := b.cfg.ApprovalPolicy.Redeemable(c.facts(), now); err != nil {
			return Record{}, Key{}, err
		}
		return b.prepareApproved(catalogue, who, c, r, now)
	})
	if errors.Is(err, ErrStale) || errors.Is(err, ErrNotApproved) { // perhaps because another catalogue has just come into force
		if now, failed := b.cfg.Ledger.Get(ctx, c.ID, Reach{Subject: who.ID().String()}); failed == nil && now.Status == StatusVoid {
			return now.Voided()
		}
	}
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
		Scope: c.Scope, Params: c.Params, TTL: c.TTLAsked, RequestContext: c.RequestContext, Reason: c.Reason, CSR: r.CSR, PublicKey: r.PublicKey,
		JKT: r.JKT,
	}
	if c.User != nil {
		// The person's ID token may have expired since. If it limited the TTL that people were shown, that TTL remains the limit.
		user := *c.User
		if slices.Contains(c.Clamps, scopes.BoundUser) {
			user.Until = now.Add(c.TTL)
		}
		req.User = &user
	}
	decide := catalogue.DecideApproved
	if b.cfg.ApprovalPolicy.ApprovedBy(c.facts()) == scopes.ReasonBreakGlass {
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

// sameAsShown returns nil if the credential to issue is, byte for byte, what people were shown: the same catalogue, the same
// request with the same key, and the same certificate if the credential is bound to it. Only the TTL may be shorter.
func sameAsShown(who attest.Identity, c *ApprovalRequest, req Request, d scopes.Decision) error {
	digest, err := requestDigest(req)
	if err != nil {
		return err
	}
	d.TTL = c.TTL
	if d.Scope.Approval == nil {
		return ErrStale
	}
	then := Record{ID: c.ID, Subject: workload(who), Request: req, Decision: d, Digest: digest, Expires: c.Expires}
	text, err := canonical(then, *d.Scope.Approval) // as in the catalogue, not as in the record
	if err != nil {
		return err
	}
	if text != c.Canonical {
		return ErrStale
	}
	return nil
}
