package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/brevet-dev/brevet/attest"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
)

// Release ends a credential for its holder. It may be called again. It returns ErrNotFound if the credential is not the caller's.
func (b *Broker) Release(ctx context.Context, who attest.Identity, id string) (Receipt, error) {
	reach := Reach{Subject: who.ID().String()}
	view, err := b.cfg.Ledger.Get(ctx, id, reach)
	if err != nil {
		return Receipt{}, err
	}
	receipt, err := b.endAll(ctx, Selector{ID: id}, reach, ending{cause: CauseReleased, actor: reach.Subject})
	if err == nil && len(receipt.Ended) == 0 { // it had already ended
		receipt.Ended = []Ended{endedOf(LiveCredential{
			ID: view.ID, Subject: reach.Subject, Task: view.Task, Scope: view.Scope, Kind: view.CredentialKind,
			Status: view.Status, Detail: view.StatusDetail, StatusTime: view.StatusTime, Expires: view.Expires,
		})}
	}
	return receipt, err
}

// EndTask ends a task, now or later. Then no credential is issued for the task any more, and its credentials are ended. EndTask
// may be called again.
func (b *Broker) EndTask(ctx context.Context, end TaskEnd) (Receipt, error) {
	cmd, err := b.command(CommandTaskEnd, &end.Actor, Selector{SPIFFEID: end.SPIFFEID, Task: end.Task}, end.Reason)
	if err != nil {
		return Receipt{}, err
	}
	if cmd.At = end.At; !cmd.At.After(cmd.Time) {
		cmd.At = cmd.Time
	}
	if err := b.cfg.Live.Announce(ctx, cmd); err != nil {
		return Receipt{}, fmt.Errorf("recording the end of a task: %w", err)
	}
	if cmd.At.After(cmd.Time) {
		b.cfg.Tokens.WaitForReplicas(ctx)
		return Receipt{Command: cmd.ID, Time: cmd.At}, nil
	}
	receipt, err := b.carryOut(ctx, cmd, Reach{Subject: end.SPIFFEID}, CauseTaskEnded)
	if err != nil {
		return receipt, err
	}
	if err := b.withdrawOfEndedTasks(ctx, Task{SPIFFEID: end.SPIFFEID, Task: end.Task}); err != nil {
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
			if err != nil && !errors.Is(err, ErrOvertaken) {
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
	cmd, err := b.command(CommandRevoke, &r.Actor, r.Target, r.Reason)
	if err != nil {
		return Receipt{}, err
	}
	if err := b.cfg.Live.Announce(ctx, cmd); err != nil {
		return Receipt{}, fmt.Errorf("recording a revocation: %w", err)
	}
	return b.carryOut(ctx, cmd, r.Reach, CauseRevoked)
}

// Quarantine stops issuing to the named sandboxes on every replica, and ends their credentials. It returns ErrNotFound if the
// name is not within reach.
func (b *Broker) Quarantine(ctx context.Context, c Confinement) (Receipt, error) {
	cmd, err := b.confine(CommandQuarantineAdd, c)
	if err != nil {
		return Receipt{}, err
	}
	if err := b.cfg.Live.Announce(ctx, cmd); err != nil {
		return Receipt{}, fmt.Errorf("recording a quarantine: %w", err)
	}
	cmd.Target = Confined(c.SPIFFEID)
	return b.carryOut(ctx, cmd, c.Reach, CauseQuarantined)
}

// Unquarantine lifts the quarantine of exactly that name. It returns ErrNotFound if there is none within reach, or if the caller
// is a workload that somebody else has quarantined.
func (b *Broker) Unquarantine(ctx context.Context, c Confinement) error {
	for {
		cmd, err := b.confine(CommandQuarantineRemove, c)
		if err != nil {
			return err
		}
		standing, err := b.liftable(ctx, c)
		if err != nil {
			return err
		}
		if err := b.fulfil(ctx, standing, c.Reach); err != nil {
			return err
		}
		cmd.Lifts = standing.Command
		if err := b.cfg.Live.Announce(ctx, cmd); err == nil {
			return nil
		} else if !errors.Is(err, ErrNotFound) || ctx.Err() != nil {
			return fmt.Errorf("recording the end of a quarantine: %w", err)
		}
		// Somebody else has lifted this quarantine. Try again: there may be a new one, which fulfil has not carried out yet.
	}
}

// liftable returns the quarantine that the caller wants to lift, if it may.
func (b *Broker) liftable(ctx context.Context, c Confinement) (Quarantine, error) {
	standing, err := b.cfg.Live.Quarantines(ctx, Reach{All: true})
	if err != nil {
		return Quarantine{}, fmt.Errorf("listing quarantines: %w", err)
	}
	i := slices.IndexFunc(standing, func(q Quarantine) bool { return q.SPIFFEID == c.SPIFFEID })
	if i < 0 || confinedByOthers(standing, c.Actor) {
		return Quarantine{}, ErrNotFound
	}
	return standing[i], nil
}

// confinedByOthers reports whether a quarantine that somebody else ordered applies to the caller. The caller's own do not count:
// an admin may have to quarantine a whole trust domain that includes the admin. Quarantines never apply to people.
func confinedByOthers(standing []Quarantine, actor Actor) bool {
	return actor.Person == "" && slices.ContainsFunc(standing, func(q Quarantine) bool {
		return q.Actor != actor.ID() && below(actor.ID(), q.SPIFFEID)
	})
}

// fulfil ends everything that a quarantine should have ended, before the quarantine is lifted. Usually this was done long ago,
// but the replica that does it may still be at work or may have died. While the quarantine is in force, its credentials count as
// inactive. Without fulfil, lifting it would make the remaining ones active again, and nobody would end them.
func (b *Broker) fulfil(ctx context.Context, q Quarantine, reach Reach) error {
	_, err := b.endAll(ctx, Confined(q.SPIFFEID), reach, ending{cause: CauseQuarantined, actor: q.Actor, before: q.Index})
	if err != nil {
		return fmt.Errorf("completing a quarantine before lifting it: %w", err)
	}
	return nil
}

// Quarantines lists the quarantines in force within reach.
func (b *Broker) Quarantines(ctx context.Context, reach Reach) ([]Quarantine, error) {
	return b.cfg.Live.Quarantines(ctx, reach)
}

func (b *Broker) confine(kind string, c Confinement) (Command, error) {
	if !c.Reach.Covers(c.SPIFFEID) {
		return Command{}, ErrNotFound
	}
	return b.command(kind, &c.Actor, Selector{SPIFFEID: c.SPIFFEID}, c.Reason)
}

// Confined returns a selector for the sandboxes in a quarantine: those with that ID or below it.
func Confined(id string) Selector {
	if domain, isDomain := strings.CutPrefix(id, "spiffe://"); isDomain && !strings.Contains(domain, "/") {
		return Selector{TrustDomain: domain}
	}
	return Selector{SPIFFEIDPrefix: id}
}

func (b *Broker) command(kind string, actor *Actor, target Selector, reason string) (Command, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return Command{}, fmt.Errorf("making an id: %w", err)
	}
	return Command{ID: id.String(), Time: b.cfg.Now().UTC(), Kind: kind, Actor: actor, Target: target, Reason: reason}, nil
}

// carryOut ends what a recorded command affects. If this replica dies, the sweeper finishes ends of tasks and quarantines,
// because these stay in force. Nobody finishes a revocation: its caller gets no response, and has to repeat it.
func (b *Broker) carryOut(ctx context.Context, cmd Command, reach Reach, cause string) (Receipt, error) {
	e := ending{cause: cause}
	if cmd.Actor != nil {
		e.actor = cmd.Actor.ID()
	}
	receipt, err := b.endAll(ctx, cmd.Target, reach, e)
	receipt.Command = cmd.ID
	return receipt, err
}
