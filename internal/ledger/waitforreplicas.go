package ledger

import (
	"context"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// askEvery is how often a waiting replica checks how far the others have read.
const askEvery = 2 * time.Millisecond

// rounds lets all callers that wait for other replicas at one time share one wait. A caller that arrives during a round waits for
// the next one: the current round may predate its commit.
type rounds struct {
	mu      sync.Mutex
	next    chan struct{} // closed at the end of the next round; nil if no caller waits for one
	running bool
	ended   sync.WaitGroup
}

// WaitForReplicas implements [broker.Tokens]. The first caller runs the round for all callers that wait for it.
func (l *Ledger) WaitForReplicas(ctx context.Context) {
	r := &l.rounds
	r.mu.Lock()
	if r.next == nil {
		r.next = make(chan struct{})
	}
	done, first := r.next, !r.running
	r.running = true
	r.mu.Unlock()
	if first {
		r.ended.Add(1)
		l.round(context.WithoutCancel(ctx))
	}
	<-done
}

// round runs one round, and then the next one if a caller waits for it.
func (l *Ledger) round(ctx context.Context) {
	r := &l.rounds
	r.mu.Lock()
	done := r.next
	r.next, r.running = nil, done != nil
	r.mu.Unlock()
	if done == nil {
		r.ended.Done()
		return
	}
	silent := l.waitForReplicas(ctx)
	close(done)
	go func() {
		l.remove(ctx, silent)
		l.round(ctx)
	}()
}

// waitForReplicas waits until each replica has read everything that is committed, or its lease from before that has ended.
// It returns the replicas whose lease ended.
func (l *Ledger) waitForReplicas(ctx context.Context) (silent []pulse) {
	blind, cancel := context.WithTimeout(ctx, outlived)
	defer cancel()
	size, behind, err := l.behind(blind)
	if err != nil {
		<-blind.Done() // by then every lease has ended
		return nil
	}
	rest, cancel := context.WithTimeout(ctx, outlived)
	defer cancel()
	for left := behind; len(left) > 0; {
		wait.For(rest, askEvery)
		if rest.Err() != nil {
			return behind
		}
		if now, err := l.stillBehind(rest, size, behind); err == nil {
			left = now
		}
	}
	return nil
}

// pulse is a replica at one of its beats.
type pulse struct {
	ID        uuid.UUID
	Heartbeat int64 `db:"beat"`
}

// behind returns the size of the ledger and the replicas that have not read all of it, and notifies those replicas. A server
// that does not hold what was committed here, because another has taken over, cannot answer this.
func (l *Ledger) behind(ctx context.Context) (size int64, behind []pulse, err error) {
	tip := l.tip.Load() // before the query: others append during it
	rows, err := l.live.Query(ctx, `
		SELECT h.size, r.id, coalesce(r.beat, 0), CASE WHEN r.id IS NOT NULL THEN pg_notify(`+channelSQL+`, '')::text END
		FROM ledger_head AS h LEFT JOIN replicas AS r ON r.seen < h.size`)
	if err != nil {
		return 0, nil, err
	}
	var id *uuid.UUID
	var beat int64
	_, err = pgx.ForEachRow(rows, []any{&size, &id, &beat, nil}, func() error {
		if id != nil {
			behind = append(behind, pulse{*id, beat})
		}
		return nil
	})
	if err == nil {
		err = tip.within(size)
	}
	return size, behind, err
}

func (l *Ledger) stillBehind(ctx context.Context, size int64, behind []pulse) ([]pulse, error) {
	ids := make([]uuid.UUID, len(behind))
	for i, p := range behind {
		ids[i] = p.ID
	}
	rows, err := l.live.Query(ctx, `SELECT id, beat FROM replicas WHERE seen < @size AND id = ANY (@ids::uuid[])`,
		pgx.NamedArgs{"size": size, "ids": ids})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByName[pulse])
}

// remove deletes replicas that have been silent since, so that no caller waits for them. A replica that still runs comes
// back with its next beat.
func (l *Ledger) remove(ctx context.Context, silent []pulse) {
	ctx, cancel := context.WithTimeout(ctx, outlived)
	defer cancel()
	for _, p := range silent {
		_, err := l.write.Exec(ctx, `DELETE FROM replicas WHERE id = @id AND beat = @beat`, pgx.NamedArgs{"id": p.ID, "beat": p.Heartbeat})
		if err != nil {
			l.log.DebugContext(ctx, "silent replica not removed", "error", postgres.Unavailable("removing a replica", err))
			return
		}
	}
}
