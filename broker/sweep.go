package broker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
)

const (
	sweepEvery = time.Second
	sweepBatch = 200
	maxRounds  = 10
	// abandoned is the age after which an unfinished record has nothing alive in Vault any more. The request gives up within
	// mintWithin, and a credential that Vault minted just then lives for at most UnrenewedLife without renewal. The rest is for a Vault
	// that notices late that nobody waits for its answer.
	abandoned = mintWithin + UnrenewedLife + 5*time.Second
	// renewedBy is the age at which a delivered credential has been renewed or has expired. For checkSpan after that, the sweeper
	// checks which of the two happened.
	renewedBy, checkSpan, checkEvery = UnrenewedLife + 3*time.Second, time.Minute, 5 * time.Second
	// reconcileEvery is the interval at which the sweeper looks in Vault for everything that should be alive.
	reconcileEvery = 10 * time.Minute
	// longestBackoff is the longest pause between two attempts at one record. The attempts never end.
	longestBackoff = 15 * time.Second
	// overdueAfter is how late Vault may be in ending a credential by itself. alarmAfter is how long a revocation may take before
	// it raises an alarm.
	overdueAfter, alarmAfter = 5 * time.Second, 10 * time.Second
)

// Sweep finishes what was left unfinished, while this replica leads: mints with an unknown outcome, revocations that Vault has
// not confirmed, tasks whose deadline has passed, and expired credentials. It returns when ctx ends.
func (b *Broker) Sweep(ctx context.Context, election Election) error {
	for ctx.Err() == nil {
		err := election.AcquireLeadership(ctx, func(ctx context.Context, term int64) error {
			b.cfg.Log.InfoContext(ctx, "sweep leadership acquired", "term", term)
			s := &sweeper{Broker: b, election: election, term: term, seen: map[string]time.Time{}}
			defer s.alarm(ctx, 0) // the next leader counts again
			return s.run(ctx)
		})
		if ctx.Err() == nil {
			b.cfg.Log.WarnContext(ctx, "sweep interrupted", "error", err)
			wait.For(ctx, sweepEvery)
		}
	}
	return ctx.Err()
}

// sweeper is one term of the leader. It holds no state that the next leader needs.
type sweeper struct {
	*Broker
	election Election
	term     int64
	attempts map[string]attempt
	seen     map[string]time.Time // when a record was found alive after its delivery
	orders   time.Time            // all orders given before this time are carried out
	gitHub   gitHubSweep
}

// gitHubSweep advances the tokens of GitHub beside all other records, so that a GitHub that does not answer delays nothing else.
type gitHubSweep struct {
	sync.WaitGroup

	busy     atomic.Bool
	attempts map[string]attempt // of the goroutine that runs while busy is set
}

// attempt is the retry state of one record.
type attempt struct {
	next    time.Time
	backoff time.Duration
}

// run runs each duty at its own interval, so that a duty that hangs does not hold up the others.
func (s *sweeper) run(ctx context.Context) error {
	var duties sync.WaitGroup
	for _, duty := range []struct {
		every time.Duration
		do    func(context.Context) error
	}{
		{sweepEvery, s.closeTasks},
		{sweepEvery, s.finish},
		{sweepEvery, s.election.Tidy},
		{checkEvery, s.checkDelivered},
		{reconcileEvery, s.reconcile},
	} {
		duties.Go(func() {
			for ctx.Err() == nil {
				if err := duty.do(ctx); err != nil && ctx.Err() == nil {
					s.cfg.Log.WarnContext(ctx, "sweep incomplete", "error", err)
				}
				wait.For(ctx, duty.every)
			}
		})
	}
	duties.Wait()
	s.gitHub.Wait()
	return ctx.Err()
}

// closeTasks makes credentials inactive if the deadline of their task has passed, and withdraws the requests of ended tasks.
// The method finish revokes the credentials in Vault.
func (s *sweeper) closeTasks(ctx context.Context) error {
	tasks, err := s.cfg.Live.Deadlines(ctx, sweepBatch)
	if err != nil {
		return err
	}
	for _, t := range tasks {
		cmd := s.command(CommandTaskEnd, nil, Selector{SPIFFEID: t.SPIFFEID, Task: t.Task}, "")
		cmd.At = cmd.Time
		if err := s.cfg.Live.Announce(ctx, cmd); err != nil && !errors.Is(err, ErrNotFound) { // ErrNotFound: somebody has just ended it
			return err
		}
		e := ending{cause: CauseTaskEnded, term: s.term}
		if _, _, err := s.stopAll(ctx, cmd.Target, Reach{Subject: t.SPIFFEID}, e); err != nil {
			return err
		}
	}
	return s.withdrawOfEndedTasks(ctx, Task{})
}

// finish advances all overdue records.
func (s *sweeper) finish(ctx context.Context) error {
	for range maxRounds {
		now := s.cfg.Now()
		held, err := s.cfg.Live.Overdue(ctx, Overdue{
			Unfinished: now.Add(-abandoned), Overdue: now.Add(-overdueAfter), Expired: now, Orders: s.orders, Limit: sweepBatch,
		})
		if err != nil {
			return err
		}
		s.alarm(ctx, unrevoked(held, now))
		others := slices.DeleteFunc(slices.Clone(held), func(h LiveCredential) bool { return h.Kind == scopes.KindGitHub })
		s.advanceGitHub(ctx, held)
		var done int
		if done, s.attempts = s.advanceAll(ctx, others, s.attempts); len(held) < sweepBatch {
			// Older orders need not be read again, unless one of them could not be carried out.
			if !slices.ContainsFunc(held, func(h LiveCredential) bool {
				_, open := s.attempts[h.ID]
				return (open || h.Kind == scopes.KindGitHub) && ordered(h)
			}) {
				s.orders = now.Add(-time.Minute)
			}
			return nil
		} else if done == 0 {
			return nil
		}
	}
	return nil
}

// ordered reports whether a record should have ended, but nobody has ended it yet: because its task or its parent has ended, or
// because of a quarantine or a denial.
func ordered(h LiveCredential) bool { return h.Status == StatusIssued && h.Detail != "" }

func unrevoked(held []LiveCredential, now time.Time) int {
	n := 0
	for _, h := range held {
		switch {
		case h.Status == StatusUnknown && h.mayBeElsewhere() && now.Before(h.Expires): // nobody can do anything about it
		case h.Status == StatusRevoking && now.Sub(h.StatusTime) > alarmAfter,
			h.Status == StatusUnknown && now.Sub(begun(h.ID)) > abandoned+alarmAfter:
			n++
		}
	}
	return n
}

// advanceGitHub advances the tokens of GitHub among the records, unless earlier ones still are in progress.
func (s *sweeper) advanceGitHub(ctx context.Context, held []LiveCredential) {
	held = slices.DeleteFunc(slices.Clone(held), func(h LiveCredential) bool { return h.Kind != scopes.KindGitHub })
	if len(held) == 0 || s.gitHub.busy.Swap(true) {
		return
	}
	s.gitHub.Go(func() {
		defer s.gitHub.busy.Store(false)
		_, s.gitHub.attempts = s.advanceAll(ctx, held, s.gitHub.attempts)
	})
}

// advanceAll tries each record that is due for another attempt. It returns how many are finished, and the state of the others.
func (s *sweeper) advanceAll(ctx context.Context, held []LiveCredential, attempts map[string]attempt) (done int, open map[string]attempt) {
	var mu sync.Mutex
	var workers errgroup.Group
	workers.SetLimit(endRevokers)
	now := s.cfg.Now()
	open = map[string]attempt{}
	for _, h := range held {
		a := attempts[h.ID]
		workers.Go(func() error {
			over := !now.Before(a.next) && s.advance(ctx, h)
			if !over && !now.Before(a.next) {
				a.backoff = min(max(2*a.backoff, sweepEvery), longestBackoff)
				a.next = now.Add(a.backoff)
				// What nobody can revoke is over at a known time. An attempt right then keeps the record from waiting longer than it must.
				if dead := begun(h.ID).Add(abandoned); now.Before(dead) && dead.Before(a.next) {
					a.next = dead
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if over {
				done++
			} else {
				open[h.ID] = a
			}
			return nil
		})
	}
	_ = workers.Wait()
	return done, open
}

func (s *sweeper) alarm(ctx context.Context, unrevoked int) {
	if s.cfg.OnUnrevoked != nil {
		s.cfg.OnUnrevoked(unrevoked)
	}
	if unrevoked > 0 {
		s.cfg.Log.ErrorContext(ctx, "overdue credentials are not confirmed revoked: see brevet audit unrevoked", "count", unrevoked)
	}
}

// advance takes one record as far as possible now, and reports whether the record is finished. It leaves a recent revocation to
// the replica that began it.
func (s *sweeper) advance(ctx context.Context, h LiveCredential) bool {
	switch {
	case h.Status == StatusRevoking && s.cfg.Now().Sub(h.StatusTime) < revokeTimeout:
		return false
	case h.Status == StatusIntent && h.Kind == scopes.KindGitHub:
		return s.settle(ctx, h)
	case h.Status == StatusIntent && h.irrevocable() && s.cfg.Now().Before(h.Expires):
		return s.move(ctx, h, StatusUnknown, unfinished)
	case h.Status == StatusIntent:
		return s.move(ctx, h, StatusCompensated, unfinished)
	case h.Status == StatusUnknown:
		return s.compensate(ctx, h)
	case h.Status == StatusRevoking:
		return s.revoke(ctx, h, s.term).Why == ""
	case ordered(h):
		return s.end(ctx, []LiveCredential{h}, ending{cause: h.Detail, term: s.term})
	default:
		return s.expire(ctx, h)
	}
}

// settle ends what an unfinished mint has left at GitHub, where nothing ends by itself within UnrenewedLife. If a token may be alive
// that nobody has, the record becomes unknown until the token is dead.
func (s *sweeper) settle(ctx context.Context, h LiveCredential) bool {
	err := s.revokeLease(ctx, h)
	if mayLive, lost := errors.AsType[*MayLiveError](err); lost {
		err := s.recordOutcome(ctx, Outcome{
			ID: h.ID, Time: s.cfg.Now(), Status: StatusUnknown, Detail: failureCode(mayLive), Term: s.term,
			Minted: &Minted{VaultLease: h.lease()}, MayLiveUntil: mayLive.Until,
		})
		return err == nil || errors.Is(err, ErrInvalidTransition)
	}
	return err == nil && s.move(ctx, h, StatusCompensated, unfinished)
}

// revokeLease revokes what a record leads to.
func (s *sweeper) revokeLease(ctx context.Context, h LiveCredential) error {
	ctx, cancel := context.WithTimeout(ctx, revokeTimeout)
	defer cancel()
	err := s.cfg.Minter.Revoke(ctx, h.lease())
	if _, lost := errors.AsType[*MayLiveError](err); err != nil && !lost {
		s.cfg.Log.WarnContext(ctx, "credential not revoked yet", "issuance", h.ID, "status", string(h.Status), "error", err)
	}
	return err
}

// compensate ends whatever a lost mint made. If Vault may have made a lease whose ID is unknown, revoking the token is not
// enough: Vault ends that lease later, in its own time.
func (s *sweeper) compensate(ctx context.Context, h LiveCredential) bool {
	// Another system may accept what was lost until it expires, and the record must not say that it is over.
	if h.mayBeElsewhere() && s.cfg.Now().Before(h.Expires) {
		return false
	}
	if !h.lease().Empty() && s.revokeLease(ctx, h) != nil {
		return false
	}
	confirmed := h.VaultLease.Accessor != "" && h.Kind == scopes.KindVaultToken
	if !confirmed && s.cfg.Now().Before(begun(h.ID).Add(abandoned)) {
		return false
	}
	return s.move(ctx, h, StatusCompensated, "lost")
}

// expire records an expired credential once Vault no longer holds it. If Vault still does, expire revokes it. GitHub knows nothing
// of the time that was granted, so expire ends its tokens.
func (s *sweeper) expire(ctx context.Context, h LiveCredential) bool {
	if h.Kind == scopes.KindGitHub {
		if s.revokeLease(ctx, h) == nil {
			return s.move(ctx, h, StatusExpired, "")
		}
		if s.cfg.Now().Sub(h.Expires) > overdueAfter { // the record must say that the token may be alive, and raise the alarm
			s.end(ctx, []LiveCredential{h}, ending{cause: CauseOverdue, term: s.term})
			return true
		}
		return false
	}
	alive, err := s.alive(ctx, h)
	if err != nil {
		return false
	}
	if !alive {
		return s.move(ctx, h, StatusExpired, "")
	}
	s.end(ctx, []LiveCredential{h}, ending{cause: CauseOverdue, term: s.term})
	return true
}

func (s *sweeper) alive(ctx context.Context, h LiveCredential) (bool, error) {
	asking, cancel := context.WithTimeout(ctx, revokeTimeout)
	defer cancel()
	alive, err := s.cfg.Minter.Alive(asking, h.VaultLease)
	if err != nil && ctx.Err() == nil { // after a shutdown, the error says nothing about the credential
		s.cfg.Log.WarnContext(ctx, "state of a credential unknown", "issuance", h.ID, "error", err)
	}
	return alive, err
}

func (s *sweeper) move(ctx context.Context, h LiveCredential, to Status, detail string) bool {
	err := s.recordOutcome(ctx, Outcome{ID: h.ID, Time: s.cfg.Now(), Status: to, Detail: detail, Term: s.term})
	if err != nil && !errors.Is(err, ErrInvalidTransition) {
		s.cfg.Log.WarnContext(ctx, "outcome not recorded", "issuance", h.ID, "status", string(to), "error", err)
		return false
	}
	return true
}

// checkDelivered finds credentials that were recorded but never renewed, because their replica died. They have expired in Vault,
// and the record must say so.
func (s *sweeper) checkDelivered(ctx context.Context) error {
	now := s.cfg.Now()
	for id, at := range s.seen {
		if now.Sub(at) > 2*(renewedBy+checkSpan) {
			delete(s.seen, id)
		}
	}
	return s.inspect(ctx, firstID(now.Add(-renewedBy-checkSpan)), func(h LiveCredential) {
		if _, known := s.seen[h.ID]; !known && s.found(ctx, h) {
			s.seen[h.ID] = now
		}
	})
}

// reconcile looks in Vault for everything that should be alive.
func (s *sweeper) reconcile(ctx context.Context) error {
	if err := s.inspect(ctx, "", func(h LiveCredential) { s.found(ctx, h) }); err != nil {
		return err
	}
	return s.election.Prune(ctx)
}

// inspect passes each record that should be alive in Vault to the function look, in order of ID. It starts after the given ID.
func (s *sweeper) inspect(ctx context.Context, after string, look func(LiveCredential)) error {
	for page := (LivePage{After: after, Limit: endPage, Leased: true}); ; {
		held, err := s.cfg.Live.Live(ctx, Selector{}, Reach{All: true}, page)
		if err != nil {
			return err
		}
		for _, h := range held {
			look(h)
		}
		if len(held) < endPage || ctx.Err() != nil {
			return ctx.Err()
		}
		page.After = held[len(held)-1].ID
	}
}

// found reports whether Vault still holds a credential that should be alive. If Vault does not, found records it as gone.
func (s *sweeper) found(ctx context.Context, h LiveCredential) bool {
	now := s.cfg.Now()
	if h.Status != StatusIssued || h.VaultLease.Empty() || now.Sub(begun(h.ID)) < renewedBy || !now.Before(h.Expires) {
		return false
	}
	alive, err := s.alive(ctx, h)
	if err == nil && !alive {
		s.end(ctx, []LiveCredential{h}, ending{cause: CauseGone, term: s.term})
	}
	return alive
}

// begun returns when a record was made, to the millisecond. The ID holds this time.
func begun(id string) time.Time {
	parsed, err := uuid.Parse(id)
	if err != nil {
		return time.Time{}
	}
	return time.Unix(parsed.Time().UnixTime())
}

// firstID returns an ID that is less than every ID made at or after a time, and greater than every ID made before.
func firstID(at time.Time) string {
	var id uuid.UUID
	ms := at.UnixMilli()
	for i := range 6 {
		id[i] = byte(ms >> (40 - 8*i))
	}
	id[6], id[8] = 0x70, 0x80
	return id.String()
}
