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
	// endPage is how many records are ended at a time, mostReceipts how many a receipt lists.
	endPage      = 500
	mostReceipts = 1000
	// Records are moved many at a time, since they share commits; Vault is asked few at a time, since it does not.
	endWriters, endRevokers = 64, 8
	// revokeTimeout is how long somebody who orders an end waits for Vault. The sweeper goes on after that.
	revokeTimeout = 5 * time.Second
)

// ending says why something ends and who wanted it. With before it ends nothing that began there in the ledger, or later.
type ending struct {
	cause, actor string
	term         int64
	before       int64
}

// final is what a record becomes when all is done.
func final(cause string) Status {
	if cause == CauseReleased {
		return StatusReleased
	}
	return StatusRevoked
}

// finally is the last move of a record that is being revoked.
func finally(h LiveCredential, now time.Time, term int64) Outcome {
	return Outcome{ID: h.ID, Time: now, Status: final(h.Detail), Detail: h.Detail, Actor: h.Actor, Term: term}
}

// endAll ends everything that matches: first all of it here, so that nobody who asks takes any of it for active on any
// replica, then in Vault. The receipt's list is cut, what is done is not.
func (b *Broker) endAll(ctx context.Context, sel Selector, reach Reach, e ending) (Receipt, error) {
	receipt := Receipt{Time: b.cfg.Now()}
	done, open, err := b.stopAll(ctx, sel, reach, e)
	if err != nil {
		return Receipt{}, err
	}
	b.waitForReplicas(ctx)
	listed := open[:min(len(open), max(0, mostReceipts-len(done)))]
	receipt.More = len(listed) < len(open) || len(done) > mostReceipts
	receipt.Ended = append(done[:min(len(done), mostReceipts)], b.revokeAll(ctx, listed, e.term)...)
	return receipt, nil
}

// stopAll is stop for everything that matches.
func (b *Broker) stopAll(ctx context.Context, sel Selector, reach Reach, e ending) (done []Ended, open []LiveCredential, _ error) {
	for page := (LivePage{Limit: endPage, Before: e.before}); ; {
		held, err := b.cfg.Live.Live(ctx, sel, reach, page)
		if err != nil {
			return nil, nil, fmt.Errorf("finding what is alive: %w", err)
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

// end is endAll for records that are known already.
func (b *Broker) end(ctx context.Context, held []LiveCredential, e ending) {
	ctx = context.WithoutCancel(ctx)
	_, open, err := b.stop(ctx, held, e)
	if err != nil {
		b.cfg.Log.WarnContext(ctx, "end of credentials left to the sweeper", "cause", e.cause, "error", err)
		return
	}
	b.revokeAll(ctx, open, e.term)
}

// stop makes the records inactive. It returns those that are over with that, and those that Vault has to be asked
// about. An error means that some may still be active.
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

// stopOne makes one record inactive and returns it as it is then, by whoever's doing. A record that somebody else
// moves meanwhile is looked at again: a mint that has just been recorded ends in another way than one under way.
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

// reread looks at a record that somebody else has moved meanwhile.
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

// stopOf is the first move towards the end of a record, if it has one to make. What opens nothing without its
// holder's own key, and is in nobody's reach once it is out, is over for good as far as Brevet is concerned.
func (b *Broker) stopOf(h LiveCredential, e ending) (Outcome, bool) {
	out := Outcome{ID: h.ID, Time: b.cfg.Now(), Status: StatusRevoking, Detail: e.cause, Actor: e.actor, Term: e.term}
	switch {
	case h.Status == StatusIntent, h.Status == StatusIssued && h.VaultLease.Accessor != "":
		return out, true
	case h.Status == StatusIssued && offline(h.Kind):
		out.Status = final(e.cause)
		return out, true
	default: // being revoked or lost already, or a static secret
		return Outcome{}, false
	}
}

// offline tells whether others accept such a credential without asking anybody.
func offline(kind string) bool { return kind == scopes.KindJWT || kind == scopes.KindSSH }

// endedOf describes a record for a receipt, as far as the record alone tells.
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

// revokeAll has Vault end what is inactive already, and records what it confirms.
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

// revoke ends one credential in Vault. One whose mint was never recorded has no handle: it is over when it cannot
// have been renewed.
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
	if errors.Is(err, ErrNotForward) { // another replica was as quick
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
