package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/scopes"
	"golang.org/x/sync/errgroup"
)

const (
	// endPage is how many records are ended per batch. maxReceipts is how many credentials a receipt lists at most.
	endPage     = 500
	maxReceipts = 1000
	// endWriters is high, because concurrent writers share commits. endRevokers is low, because calls to Vault share nothing.
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

// endAll ends all matching credentials. It first makes all of them inactive on every replica, and then revokes them in Vault.
// The receipt lists at most maxReceipts. The others are inactive too, and the sweeper revokes them in Vault.
func (b *Broker) endAll(ctx context.Context, sel Selector, reach Reach, e ending) (Receipt, error) {
	receipt := Receipt{Time: b.cfg.Now()}
	done, open, err := b.stopAll(ctx, sel, reach, e)
	if err != nil {
		return Receipt{}, err
	}
	b.cfg.Tokens.WaitForReplicas(ctx)
	listed := open[:min(len(open), max(0, maxReceipts-len(done)))]
	receipt.More = len(listed) < len(open) || len(done) > maxReceipts
	receipt.Ended = append(done[:min(len(done), maxReceipts)], b.revokeAll(ctx, listed, e.term)...)
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

// end ends records that are already known, like endAll, but without waiting for the other replicas. It reports whether all of
// them are recorded as ended; the sweeper finishes what Vault has not revoked yet.
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
		if !errors.Is(err, ErrInvalidTransition) {
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
// credential that others accept offline, and a permit needs nobody's confirmation, so their records get their last status at once.
func (b *Broker) stopOf(h LiveCredential, e ending) (Outcome, bool) {
	out := Outcome{ID: h.ID, Time: b.cfg.Now(), Status: StatusRevoking, Detail: e.cause, Actor: e.actor, Term: e.term}
	switch {
	case h.Status == StatusIntent, h.Status == StatusIssued && !h.VaultLease.Empty():
		return out, true
	case h.Status == StatusIssued && (h.offline() || h.Kind == scopes.KindNone):
		out.Status = final(e.cause)
		return out, true
	default: // already revoking or lost, or a static secret
		return Outcome{}, false
	}
}

// offline reports whether others accept the credential until it expires, without asking Brevet or Vault. So nobody can revoke it.
func (h LiveCredential) offline() bool {
	return h.Kind == scopes.KindJWT || h.Kind == scopes.KindSSH || h.irrevocable()
}

// irrevocable reports whether another system made the credential, and nobody can revoke it: see scopes.Credential.Irrevocable.
func (h LiveCredential) irrevocable() bool {
	return h.Kind == scopes.KindVault && !h.Leased && !h.Static
}

// unfinished is the detail of a record whose replica died.
const unfinished = "unfinished"

// mayBeElsewhere reports whether another system may have made an irrevocable credential that was lost. It has not if Vault's answer
// with the wrapper token was lost, because the call that makes the credential needs that token.
func (h LiveCredential) mayBeElsewhere() bool {
	called := h.VaultLease.Accessor != "" || h.Detail == unfinished
	return h.irrevocable() && (h.Status == StatusUnknown && called || h.Status == StatusRevoking)
}

// usableUntil returns until when others may accept a credential that Brevet calls inactive; zero if nobody does.
func (h LiveCredential) usableUntil() time.Time {
	if h.Kind == scopes.KindGitHub && (h.Status == StatusUnknown || h.Status == StatusRevoking) {
		return begun(h.ID).Add(scopes.GitHubTokenLife + time.Minute).UTC() // what GitHub does in any case
	}
	ended := h.Status == StatusRevoked || h.Status == StatusReleased
	if (h.mayBeElsewhere() || ended && h.offline()) && h.Expires.After(h.StatusTime) {
		return h.Expires
	}
	return time.Time{}
}

// UsableUntil returns until when others may accept the credential although Brevet calls it inactive; zero if nobody does.
func (v *View) UsableUntil() time.Time { return liveOfView(v, v.Subject.ID.String()).usableUntil() }

func liveOfView(v *View, subject string) LiveCredential {
	return LiveCredential{
		ID: v.ID, Subject: subject, Task: v.Task, Scope: v.Scope, Kind: v.CredentialKind, Leased: v.Leased, Static: v.Static,
		Status: v.Status, Detail: v.StatusDetail, StatusTime: v.StatusTime, Expires: v.Expires, VaultLease: v.Minted.VaultLease,
	}
}

// endedOf describes a record for a receipt, using only the record.
func endedOf(h LiveCredential) Ended {
	e := Ended{
		ID: h.ID, Subject: h.Subject, Task: h.Task, Scope: h.Scope, Kind: h.Kind,
		Status: h.Status, Cause: h.Detail, Time: h.StatusTime,
	}
	switch {
	case h.Status == StatusIssued && !h.offline() && h.Kind != scopes.KindNone:
		e.Why, e.UsableUntil = "static", h.Expires
	case h.Status == StatusUnknown, h.Status == StatusRevoking:
		e.Why, e.UsableUntil = "unfinished", h.usableUntil()
	default:
		e.UsableUntil = h.usableUntil()
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
	if h.VaultLease.Empty() && b.cfg.Now().Before(begun(h.ID).Add(abandoned)) {
		return endedOf(h)
	}
	var err error
	if lease := h.lease(); !lease.Empty() {
		err = b.cfg.Minter.Revoke(ctx, lease)
	}
	var out Outcome
	if err == nil {
		out = finally(h, b.cfg.Now(), term)
		err = b.recordOutcome(ctx, out)
	}
	e := endedOf(h)
	if errors.Is(err, ErrInvalidTransition) { // another replica was faster
		if h, err = b.reread(ctx, h); err == nil {
			return endedOf(h)
		}
	}
	if mayLive, lost := errors.AsType[*MayLiveError](err); lost {
		e.UsableUntil = mayLive.Until
		return e
	}
	if err != nil {
		e.Why = failureCode(err)
		b.cfg.Log.WarnContext(ctx, "credential not revoked yet", "issuance", h.ID, "cause", h.Detail, "error", err)
		return e
	}
	h.Status, h.StatusTime = out.Status, out.Time
	return endedOf(h)
}

// Release ends a credential for its holder. It may be called again. It returns ErrNotFound if the credential is not the caller's.
func (b *Broker) Release(ctx context.Context, who attest.Identity, id string) (Receipt, error) {
	reach := Reach{Subject: who.ID().String()}
	view, err := b.cfg.Ledger.Get(ctx, id, reach)
	if err != nil {
		return Receipt{}, err
	}
	receipt, err := b.endAll(ctx, Selector{ID: id}, reach, ending{cause: CauseReleased, actor: reach.Subject})
	if err == nil && len(receipt.Ended) == 0 { // it had already ended
		receipt.Ended = []Ended{endedOf(liveOfView(view, reach.Subject))}
	}
	return receipt, err
}

// EndTask ends a task, now or later. Then no credential is issued for the task any more, and its credentials are ended. EndTask
// may be called again: the record keeps only a command that ends the task sooner. Equal calls of one actor at the same time share
// one result, so that a sandbox that repeats them takes no more than one call does.
func (b *Broker) EndTask(ctx context.Context, end TaskEnd) (Receipt, error) {
	key := fmt.Sprintf("%q %q %q %s", end.Actor.ID(), end.SPIFFEID, end.Task, end.At.Format(time.RFC3339Nano))
	receipt, err, _ := b.taskEnds.Do(key, func() (any, error) { return b.endTask(ctx, end) })
	return receipt.(Receipt), err //nolint:forcetypeassert // endTask returns one
}

func (b *Broker) endTask(ctx context.Context, end TaskEnd) (Receipt, error) {
	cmd := b.command(CommandTaskEnd, &end.Actor, Selector{SPIFFEID: end.SPIFFEID, Task: end.Task}, end.Reason)
	by := end.At
	if cmd.At = end.At; !cmd.At.After(cmd.Time) {
		cmd.At, by = cmd.Time, time.Time{}
	}
	task := Task{SPIFFEID: end.SPIFFEID, Task: end.Task}
	for {
		earlier, err := b.cfg.Live.TaskEnded(ctx, task, by)
		if err == nil {
			cmd.ID = earlier
			break
		}
		if !errors.Is(err, ErrNotFound) {
			return Receipt{}, err
		}
		if err = b.cfg.Live.Announce(ctx, cmd); err == nil {
			break
		}
		if !errors.Is(err, ErrNotFound) || ctx.Err() != nil { // else another replica has just ended the task
			return Receipt{}, fmt.Errorf("recording the end of a task: %w", err)
		}
	}
	if cmd.At.After(cmd.Time) {
		b.cfg.Tokens.WaitForReplicas(ctx)
		return Receipt{Command: cmd.ID, Time: cmd.At}, nil
	}
	receipt, err := b.carryOut(ctx, cmd, Reach{Subject: end.SPIFFEID}, CauseTaskEnded)
	if err != nil {
		return receipt, err
	}
	if err := b.withdrawOfEndedTasks(ctx, task); err != nil {
		b.cfg.Log.WarnContext(ctx, "requests of an ended task left to the sweeper", "error", err)
	}
	return receipt, nil
}

// withdrawOfEndedTasks withdraws requests that wait although their task has ended, so that nobody decides on them. It handles the
// requests of one task, or of all tasks if task is the zero value. It leaves requests that change at the same time to the
// sweeper.
func (b *Broker) withdrawOfEndedTasks(ctx context.Context, task Task) error {
	requests, err := b.cfg.Live.RequestsOfEndedTasks(ctx, task, endPage)
	if err != nil {
		return fmt.Errorf("finding requests of ended tasks: %w", err)
	}
	var writers errgroup.Group
	writers.SetLimit(endWriters)
	for _, r := range requests {
		writers.Go(func() error {
			err := b.cfg.Approvals.Apply(ctx, Transition{
				Request: r.ID, Was: r.Status, Votes: r.Votes, Becomes: StatusWithdrawn, Time: b.cfg.Now().UTC(), Actor: r.Actor,
			})
			if err != nil && !errors.Is(err, ErrConcurrentChange) {
				return fmt.Errorf("withdrawing request %s: %w", r.ID, err)
			}
			return nil
		})
	}
	return writers.Wait()
}

// Revoke ends the matching credentials within reach. It returns ErrNotFound if no live credential matches.
func (b *Broker) Revoke(ctx context.Context, r Revocation) (Receipt, error) {
	held, err := b.cfg.Live.Live(ctx, r.Target, r.Reach, LivePage{Limit: 1})
	if err != nil {
		return Receipt{}, fmt.Errorf("listing live credentials: %w", err)
	}
	if len(held) == 0 {
		b.cfg.Tokens.WaitForReplicas(ctx) // another replica may have ended it and died before every replica knew
		return Receipt{}, ErrNotFound
	}
	cmd := b.command(CommandRevoke, &r.Actor, r.Target, r.Reason)
	if err := b.cfg.Live.Announce(ctx, cmd); err != nil {
		return Receipt{}, fmt.Errorf("recording a revocation: %w", err)
	}
	return b.carryOut(ctx, cmd, r.Reach, CauseRevoked)
}

// Quarantine stops issuing to the named sandboxes on every replica, and ends their credentials. It returns ErrNotFound if the
// name is not within reach. Quarantine may be called again: the record keeps no second equal order of one actor while the first
// is in force, so a caller that repeats it does not fill the record.
func (b *Broker) Quarantine(ctx context.Context, c QuarantineOrder) (Receipt, error) {
	if !c.Reach.Covers(c.SPIFFEID) {
		return Receipt{}, ErrNotFound
	}
	cmd := b.command(CommandQuarantineAdd, &c.Actor, Selector{SPIFFEID: c.SPIFFEID}, c.Reason)
	for {
		err := b.cfg.Live.Announce(ctx, cmd)
		if err == nil {
			break
		}
		if !errors.Is(err, ErrNotFound) || ctx.Err() != nil {
			return Receipt{}, fmt.Errorf("recording a quarantine: %w", err)
		}
		standing, err := b.cfg.Live.Quarantines(ctx, Reach{Subject: c.SPIFFEID})
		if err != nil {
			return Receipt{}, fmt.Errorf("listing quarantines: %w", err)
		}
		for _, q := range standing {
			if q.SPIFFEID == c.SPIFFEID && q.Actor == c.Actor.ID() && q.Reason == c.Reason {
				// The replica that carried it out may have died. Spare what begins after somebody lifts it now.
				e := ending{cause: CauseQuarantined, actor: q.Actor, before: q.Index}
				receipt, err := b.endAll(ctx, Confined(q.SPIFFEID), c.Reach, e)
				receipt.Command = q.Command
				return receipt, err
			}
		}
		// Somebody has just lifted the equal quarantine.
	}
	cmd.Target = Confined(c.SPIFFEID)
	return b.carryOut(ctx, cmd, c.Reach, CauseQuarantined)
}

// Unquarantine lifts the quarantine of exactly that name. It returns ErrNotFound if there is none within reach, or if the caller
// is a workload in quarantine.
func (b *Broker) Unquarantine(ctx context.Context, c QuarantineOrder) error {
	if !c.Reach.Covers(c.SPIFFEID) {
		return ErrNotFound
	}
	for {
		cmd := b.command(CommandQuarantineRemove, &c.Actor, Selector{SPIFFEID: c.SPIFFEID}, c.Reason)
		standing, err := b.cfg.Live.Quarantines(ctx, Reach{All: true})
		if err != nil {
			return fmt.Errorf("listing quarantines: %w", err)
		}
		i := slices.IndexFunc(standing, func(q Quarantine) bool { return q.SPIFFEID == c.SPIFFEID })
		if i < 0 || confined(standing, c.Actor) {
			return ErrNotFound
		}
		q := standing[i]
		// End what the quarantine should have ended. Usually this was done long ago, but the replica that does it may still be at
		// work, or may have died. Lifting the quarantine would make the remaining credentials active again, and nobody would end
		// them.
		e := ending{cause: CauseQuarantined, actor: q.Actor, before: q.Index}
		if _, err := b.endAll(ctx, Confined(q.SPIFFEID), c.Reach, e); err != nil {
			return fmt.Errorf("completing a quarantine before lifting it: %w", err)
		}
		cmd.Lifts = q.Command
		if err := b.cfg.Live.Announce(ctx, cmd); err == nil {
			return nil
		} else if !errors.Is(err, ErrNotFound) || ctx.Err() != nil {
			return fmt.Errorf("recording the end of a quarantine: %w", err)
		}
		// Somebody else has lifted this quarantine. Try again: there may be a new one, which is not carried out yet.
	}
}

// confined reports whether a quarantine applies to the caller, whoever ordered it. A quarantine names only the first who ordered it, so
// a stolen admin could otherwise quarantine itself before others do, and lift what they ordered. Quarantines never apply to people.
func confined(standing []Quarantine, actor Actor) bool {
	return actor.Person == "" && slices.ContainsFunc(standing, func(q Quarantine) bool { return below(actor.ID(), q.SPIFFEID) })
}

// Quarantines lists the quarantines in force within reach.
func (b *Broker) Quarantines(ctx context.Context, reach Reach) ([]Quarantine, error) {
	return b.cfg.Live.Quarantines(ctx, reach)
}

// Confined returns a selector for the sandboxes in a quarantine: those with that ID or below it.
func Confined(id string) Selector {
	if domain, isDomain := strings.CutPrefix(id, "spiffe://"); isDomain && !strings.Contains(domain, "/") {
		return Selector{TrustDomain: domain}
	}
	return Selector{SPIFFEIDPrefix: id}
}

func (b *Broker) command(kind string, actor *Actor, target Selector, reason string) Command {
	return Command{ID: newID(), Time: b.cfg.Now().UTC(), Kind: kind, Actor: actor, Target: target, Reason: reason}
}

// carryOut ends what a recorded command affects. If this replica dies, the sweeper completes a quarantine or the end of a task,
// because these stay in force. Nobody completes a revocation: its caller gets no response, and has to repeat it.
func (b *Broker) carryOut(ctx context.Context, cmd Command, reach Reach, cause string) (Receipt, error) {
	e := ending{cause: cause}
	if cmd.Actor != nil {
		e.actor = cmd.Actor.ID()
	}
	receipt, err := b.endAll(ctx, cmd.Target, reach, e)
	receipt.Command = cmd.ID
	return receipt, err
}

// Receipt lists the effects of an early end, credential by credential.
type Receipt struct {
	Command string // the ID of the ledger entry with the order; empty for a release
	Time    time.Time
	Ended   []Ended
	// More means that some credentials are not listed. They are inactive too, and the sweeper continues to revoke them.
	More bool
}

// Ended is one credential of a Receipt.
type Ended struct {
	ID                string
	Subject           string // SPIFFE ID
	Task, Scope, Kind string
	// Status is revoked or released once the credential has ended, and revoking until Vault confirms it. It is issued for a
	// static secret, which only its owner can end.
	Status Status
	// Cause is one of the Cause constants.
	Cause string
	Time  time.Time
	// UsableUntil is how long parties that do not ask Brevet may still accept the credential: a JWT, an SSH certificate or an
	// irrevocable credential of another system until it expires. It is zero if nobody accepts it any more.
	UsableUntil time.Time
	// Why is a fixed code for why the credential has not ended: "vault_unavailable", "vault_refused", "ledger_unavailable",
	// "unfinished" or "static". It is "unfinished" if the mint is in progress or its result was lost: such a credential is not
	// renewed. Why is empty if the credential has ended.
	Why string
}

// TaskEnd orders the end of a task.
type TaskEnd struct {
	Actor    Actor
	SPIFFEID string // of the sandbox that the task belongs to
	Task     string
	At       time.Time // a time that is not in the future means now
	Reason   string
}

// Revocation orders the early end of all matching credentials.
type Revocation struct {
	Actor  Actor
	Target Selector
	Reach  Reach // of the actor
	Reason string
}

// QuarantineOrder orders a quarantine of a sandbox, or of all sandboxes below a path or in a trust domain, or lifts it.
type QuarantineOrder struct {
	Actor Actor
	// SPIFFEID is a SPIFFE ID, a path prefix, or "spiffe://" and a trust domain.
	SPIFFEID string
	Reach    Reach // of the actor
	Reason   string
}
