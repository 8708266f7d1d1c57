package broker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/scopes"
	"golang.org/x/sync/errgroup"
)

const (
	// endPage is how many records are ended per batch. mostReceipts is how many credentials a receipt lists.
	endPage      = 500
	mostReceipts = 1000
	// Many records move concurrently, because they share commits. Few Vault calls run concurrently, because they share nothing.
	endWriters, endRevokers = 64, 8
	// revokeTimeout is how long the caller that orders an end waits for Vault. The sweeper continues after that.
	revokeTimeout = 5 * time.Second
)

// ending is the cause of an end and the actor that ordered it. If before is set, records that began at that ledger index or later
// are spared.
type ending struct {
	cause, actor string
	term         int64
	before       int64
}

// final returns the last status of a record that was ended for a cause.
func final(cause string) Status {
	if cause == CauseReleased {
		return StatusReleased
	}
	return StatusRevoked
}

// finally returns the last outcome of a record in StatusRevoking.
func finally(h LiveCredential, now time.Time, term int64) Outcome {
	return Outcome{ID: h.ID, Time: now, Status: final(h.Detail), Detail: h.Detail, Actor: h.Actor, Term: term}
}

// endAll ends all matching credentials. It first makes all of them inactive on every replica, and then revokes them in Vault. The
// list in the receipt is limited; the work is not.
func (b *Broker) endAll(ctx context.Context, sel Selector, reach Reach, e ending) (Receipt, error) {
	receipt := Receipt{Time: b.cfg.Now()}
	done, open, err := b.stopAll(ctx, sel, reach, e)
	if err != nil {
		return Receipt{}, err
	}
	b.cfg.Tokens.WaitForReplicas(ctx)
	listed := open[:min(len(open), max(0, mostReceipts-len(done)))]
	receipt.More = len(listed) < len(open) || len(done) > mostReceipts
	receipt.Ended = append(done[:min(len(done), mostReceipts)], b.revokeAll(ctx, listed, e.term)...)
	return receipt, nil
}

// stopAll calls stop for all matching records.
func (b *Broker) stopAll(ctx context.Context, sel Selector, reach Reach, e ending) (done []Ended, open []LiveCredential, _ error) {
	for page := (LivePage{Limit: endPage, Before: e.before}); ; {
		held, err := b.cfg.Live.Live(ctx, sel, reach, page)
		if err != nil {
			return nil, nil, fmt.Errorf("listing live credentials: %w", err)
		}
		over, left, err := b.stop(ctx, held, e)
		if err != nil {
			return nil, nil, err
		}
		done, open = append(done, over...), append(open, left...)
		if len(held) < endPage {
			return done, open, nil
		}
		page.After = held[len(held)-1].ID
	}
}

// end ends records that are already known, like endAll. It reports whether all of them are recorded as ended; the sweeper finishes what
// Vault has not revoked yet.
func (b *Broker) end(ctx context.Context, held []LiveCredential, e ending) bool {
	ctx = context.WithoutCancel(ctx)
	_, open, err := b.stop(ctx, held, e)
	if err != nil {
		b.cfg.Log.WarnContext(ctx, "revocation of credentials left to the sweeper", "cause", e.cause, "error", err)
		return false
	}
	b.revokeAll(ctx, open, e.term)
	return true
}

// stop makes records inactive. It returns those that are finished, and those that Vault must still revoke. After an error, some
// records may still be active.
func (b *Broker) stop(ctx context.Context, held []LiveCredential, e ending) (done []Ended, open []LiveCredential, _ error) {
	var mu sync.Mutex
	writers, ctx := errgroup.WithContext(ctx)
	writers.SetLimit(endWriters)
	for _, h := range held {
		writers.Go(func() error {
			h, err := b.stopOne(ctx, h, e)
			if err != nil {
				return fmt.Errorf("recording the end of %s: %w", h.ID, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if h.Status == StatusRevoking {
				open = append(open, h)
			} else {
				done = append(done, endedOf(h))
			}
			return nil
		})
	}
	err := writers.Wait()
	return done, open, err
}

// stopOne makes one record inactive and returns its current state, whoever changed it. If somebody else moves the record at the
// same time, stopOne reads it again: a mint that was just recorded ends in a different way than a mint in progress.
func (b *Broker) stopOne(ctx context.Context, h LiveCredential, e ending) (LiveCredential, error) {
	for {
		out, move := b.stopOf(h, e)
		if !move {
			return h, nil
		}
		err := b.recordOutcome(ctx, out)
		if err == nil {
			h.Status, h.Detail, h.Actor, h.StatusTime = out.Status, out.Detail, out.Actor, out.Time
			return h, nil
		}
		if !errors.Is(err, ErrNotForward) {
			return h, err
		}
		before := h.Status
		if h, err = b.reread(ctx, h); err != nil || h.Status == before {
			return h, err
		}
	}
}

// reread reads a record again that somebody else has moved.
func (b *Broker) reread(ctx context.Context, h LiveCredential) (LiveCredential, error) {
	held, err := b.cfg.Live.Live(ctx, Selector{ID: h.ID}, Reach{All: true}, LivePage{Limit: 1})
	if err != nil || len(held) == 1 {
		return append(held, h)[0], err
	}
	view, err := b.cfg.Ledger.Get(ctx, h.ID, Reach{All: true})
	if err != nil {
		return h, err
	}
	h.Status, h.Detail, h.Actor, h.StatusTime = view.Status, view.StatusDetail, view.Actor, view.StatusTime
	return h, nil
}

// stopOf returns the first outcome to record when a credential is ended, and whether there is one. Nobody can take back a
// credential that others accept offline, so its record gets its last status at once.
func (b *Broker) stopOf(h LiveCredential, e ending) (Outcome, bool) {
	out := Outcome{ID: h.ID, Time: b.cfg.Now(), Status: StatusRevoking, Detail: e.cause, Actor: e.actor, Term: e.term}
	switch {
	case h.Status == StatusIntent, h.Status == StatusIssued && h.VaultLease.Accessor != "":
		return out, true
	case h.Status == StatusIssued && offline(h.Kind):
		out.Status = final(e.cause)
		return out, true
	default: // already revoking or lost, or a static secret
		return Outcome{}, false
	}
}

// offline reports whether others accept this kind of credential without asking Brevet or Vault.
func offline(kind string) bool { return kind == scopes.KindJWT || kind == scopes.KindSSH }

// endedOf describes a record for a receipt, using only the record.
func endedOf(h LiveCredential) Ended {
	e := Ended{
		ID: h.ID, Subject: h.Subject, Task: h.Task, Scope: h.Scope, Kind: h.Kind,
		Status: h.Status, Cause: h.Detail, Time: h.StatusTime,
	}
	switch {
	case h.Status == StatusIssued && !offline(h.Kind):
		e.Why, e.UsableUntil = "static", h.Expires
	case h.Status == StatusUnknown, h.Status == StatusRevoking:
		e.Why = "unfinished"
	case offline(h.Kind) && h.Expires.After(h.StatusTime):
		e.UsableUntil = h.Expires
	}
	return e
}

// revokeAll revokes inactive credentials in Vault, and records what Vault confirms.
func (b *Broker) revokeAll(ctx context.Context, held []LiveCredential, term int64) []Ended {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeTimeout)
	defer cancel()
	ended := make([]Ended, len(held))
	var revokers errgroup.Group
	revokers.SetLimit(endRevokers)
	for i, h := range held {
		revokers.Go(func() error {
			ended[i] = b.revoke(ctx, h, term)
			return nil
		})
	}
	_ = revokers.Wait()
	return ended
}

// revoke ends one credential in Vault. A credential whose mint was never recorded has no lease to revoke: revoke treats it as
// dead once it is too old to live without renewal.
func (b *Broker) revoke(ctx context.Context, h LiveCredential, term int64) Ended {
	if h.VaultLease.Accessor == "" && b.cfg.Now().Before(begun(h.ID).Add(abandoned)) {
		return endedOf(h)
	}
	var err error
	if h.VaultLease.Accessor != "" {
		err = b.cfg.Minter.Revoke(ctx, h.VaultLease)
	}
	var out Outcome
	if err == nil {
		out = finally(h, b.cfg.Now(), term)
		err = b.recordOutcome(ctx, out)
	}
	e := endedOf(h)
	if errors.Is(err, ErrNotForward) { // another replica was faster
		if h, err = b.reread(ctx, h); err == nil {
			return endedOf(h)
		}
	}
	if err != nil {
		e.Why = failureCode(err)
		b.cfg.Log.WarnContext(ctx, "credential not revoked yet", "issuance", h.ID, "cause", h.Detail, "error", err)
		return e
	}
	e.Status, e.Time, e.Why = out.Status, out.Time, ""
	return e
}
