package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/brevet-dev/brevet/internal/wait"
)

const (
	// outcomeTimeout bounds the write of an outcome, which goes on when the caller has gone.
	outcomeTimeout = 5 * time.Second
	// patience is how long a request may take until what it was given is used. Later, the sweeper might take it for
	// abandoned, or its time without renewal might run out on the way to the caller.
	patience = Unrenewed / 2
)

var errLate = fmt.Errorf("%w: it took too long", ErrVaultUnavailable)

// mint redeems what was recorded. A JWT needs no second record; of everything else the outcome is durable before it
// is returned.
func (b *Broker) mint(ctx context.Context, rec Record, key Key) (Result, error) {
	credential, err := b.mintOnce(ctx, rec, key)
	if err != nil {
		b.fail(ctx, rec, err)
		return Result{}, fmt.Errorf("minting %s: %w", rec.ID, err)
	}
	if credential.Minted == nil {
		return Result{Record: rec, Credential: &credential}, nil
	}
	out := Outcome{ID: rec.ID, Time: b.cfg.Now(), Status: StatusIssued, Minted: credential.Minted}
	if err := b.recordOutcome(ctx, out); err != nil {
		b.discard(ctx, rec, credential.Minted.VaultLease)
		return Result{}, fmt.Errorf("recording what was minted for %s: %w", rec.ID, overtaken(err))
	}
	rec.Status = StatusIssued
	return Result{Record: rec, Credential: &credential}, nil
}

// mintOnce asks for the credential as long as there is time.
func (b *Broker) mintOnce(ctx context.Context, rec Record, key Key) (Credential, error) {
	left := patience - b.cfg.Now().Sub(rec.Time)
	if left <= 0 {
		return Credential{}, errLate
	}
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	return b.cfg.Minter.Mint(ctx, &Order{intent: *rec.Intent, key: key})
}

// overtaken names the one reason for which the record of an intent has moved on: somebody revoked it.
func overtaken(err error) error {
	if errors.Is(err, ErrNotForward) {
		return ErrRevoked
	}
	return err
}

// recordOutcome writes an outcome whether or not the caller is still there.
func (b *Broker) recordOutcome(ctx context.Context, out Outcome) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), outcomeTimeout)
	defer cancel()
	return b.cfg.Ledger.RecordOutcome(ctx, out)
}

// fail moves a record whose mint did not succeed. Should the store be down, the record of a JWT goes on saying
// issued, which claims too much and never too little, and that of anything else says intent until the sweeper sees
// it.
func (b *Broker) fail(ctx context.Context, rec Record, cause error) {
	out := Outcome{ID: rec.ID, Time: b.cfg.Now(), Status: StatusFailed, Detail: failureCode(cause)}
	var lost *Lost
	if errors.As(cause, &lost) {
		out.Status, out.Minted = StatusUnknown, &Minted{VaultLease: lost.VaultLease}
	}
	if err := b.recordOutcome(ctx, out); err != nil {
		b.cfg.Log.ErrorContext(ctx, "outcome not recorded", "issuance", rec.ID, "status", string(out.Status), "error", err)
	}
}

func failureCode(cause error) string {
	switch {
	case errors.Is(cause, ErrMintMismatch):
		return "mint_mismatch"
	case errors.Is(cause, ErrVaultRefused):
		return "vault_refused"
	case errors.Is(cause, ErrVaultUnavailable):
		return "vault_unavailable"
	case errors.Is(cause, ErrLedgerUnavailable):
		return "ledger_unavailable"
	default:
		return "internal"
	}
}

// discard ends what was minted and cannot be delivered. It is not renewed in any case; this only makes it quicker.
// The record may say intent, issued or, when somebody was quicker, revoking. Only the last is clear by now; the others
// are for the sweeper to see.
func (b *Broker) discard(ctx context.Context, rec Record, h VaultLease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), outcomeTimeout)
	defer cancel()
	if h.Accessor != "" {
		if err := b.cfg.Minter.Revoke(ctx, h); err != nil {
			b.cfg.Log.WarnContext(ctx, "undelivered credential left to die", "issuance", rec.ID, "error", err)
			return
		}
	}
	reach := Reach{Subject: rec.Subject.ID.String()}
	held, err := b.cfg.Live.Live(ctx, Selector{ID: rec.ID}, reach, LivePage{Limit: 1})
	if err != nil || len(held) == 0 || held[0].Status != StatusRevoking {
		return
	}
	if err := b.cfg.Ledger.RecordOutcome(ctx, finally(held[0], b.cfg.Now(), 0)); err != nil {
		b.cfg.Log.WarnContext(ctx, "end of a credential left to the sweeper", "issuance", rec.ID, "error", err)
	}
}

// Delivered is told how the write of a result's credential went. A credential that lives in Vault is renewed to its
// full time once it was written, and revoked when it was not. It has to be called once for every Result that holds
// a credential.
func (b *Broker) Delivered(ctx context.Context, res Result, failure error) {
	if res.Credential == nil || res.Credential.Minted == nil || res.Credential.Minted.Accessor == "" {
		return // a JWT or a certificate for the caller's own key opens nothing for anybody else
	}
	rec, minted := res.Record, *res.Credential.Minted
	if failure != nil {
		b.end(ctx, []LiveCredential{liveOf(rec, minted.VaultLease)}, ending{cause: CauseUndelivered})
		return
	}
	if err := b.renew(ctx, minted); err != nil {
		b.renewals.Go(func() { b.renewLater(context.WithoutCancel(ctx), rec, minted, err) })
	}
}

func (b *Broker) renew(ctx context.Context, minted Minted) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), outcomeTimeout)
	defer cancel()
	return b.cfg.Minter.Renew(ctx, minted)
}

// renewLater goes on trying while there is something to renew. What is not renewed dies early; the sweeper finds it
// and the record says so.
func (b *Broker) renewLater(ctx context.Context, rec Record, minted Minted, err error) {
	for errors.Is(err, ErrVaultUnavailable) && b.cfg.Now().Sub(rec.Time) < Unrenewed {
		wait.For(ctx, time.Second)
		err = b.renew(ctx, minted)
	}
	if err == nil {
		return
	}
	b.cfg.Log.ErrorContext(ctx, "delivered credential not renewed: it dies early", "issuance", rec.ID, "error", err)
	if errors.Is(err, ErrMintMismatch) { // it was renewed, for longer than was granted
		b.end(ctx, []LiveCredential{liveOf(rec, minted.VaultLease)}, ending{cause: CauseOverdue})
	}
}

func liveOf(rec Record, h VaultLease) LiveCredential {
	return LiveCredential{
		ID: rec.ID, Subject: rec.Subject.ID.String(), Task: rec.Request.Task, Scope: rec.Request.Scope,
		Kind: rec.Intent.Kind, Status: StatusIssued, StatusTime: rec.Time, Expires: rec.Expires, VaultLease: h,
	}
}
