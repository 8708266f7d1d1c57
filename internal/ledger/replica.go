package ledger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/tokencache"
	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	// outlived is the time after which other replicas take a lease to have ended. It is longer than a lease, because clocks do
	// not run alike.
	outlived = tokencache.LeaseTime + 100*time.Millisecond
	// beatEvery is the time between two readings of the entries if no replica waits for one. idleBeats is how many beats
	// without a token lookup it takes until the replica stops reading.
	beatEvery, idleBeats = 100 * time.Millisecond, 100
	// maxUnread is how many entries one reading covers. A replica with more to read drops its whole cache instead.
	maxUnread = 50_000
)

// Cached implements [broker.Tokens].
func (l *Ledger) Cached(id string, claims [32]byte) (broker.TokenState, bool) {
	cache := l.cache.Load()
	if cache == nil || l.CheckRollback() != nil {
		return broker.TokenState{}, false
	}
	return cache.State(id, claims)
}

// remember returns the cache for what is about to be read, and the time at which that begins. If there is no cache, remember
// requests one.
func (l *Ledger) remember() (*tokencache.Cache, time.Time) {
	if l.now == nil {
		return nil, time.Time{}
	}
	cache := l.cache.Load()
	if cache == nil {
		select {
		case l.asked <- struct{}{}:
		default:
		}
	}
	return cache, l.now()
}

// keepCache reads the entries while callers look up tokens, until ctx ends.
func (l *Ledger) keepCache(ctx context.Context) {
	defer close(l.forgotten)
	r := &replica{ledger: l, id: uuid.New()}
	for failing := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-l.asked:
		}
		err := r.run(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			l.log.WarnContext(ctx, "tokens are not remembered: each question about one is asked of postgres", "error", postgres.Unavailable("reading on", err))
		}
		if failing = err != nil; failing {
			wait.For(ctx, time.Second)
		}
	}
}

// replica is this replica among those that answer from a cache. It is not safe for concurrent use.
//
// A token that ends early must not be called active by any replica once its end is acknowledged. The order of two steps makes that
// safe. First a replica writes into its row of the table replicas how many entries it has read: its lease starts here. Then it reads the
// entries that are new, and only after that may it use the lease. An end that commits before this reading is among the entries. For an
// end that commits later, the replica that ends the token finds the row, and waits until the entry is read or the lease has run out.
//
//   - The lease is measured by the monotonic and the wall clock, and the longer time counts, so a process that was suspended for longer
//     than a lease has none when it resumes. If both clocks stop with the process, it can still use the rest of its lease.
//   - The cache is dropped with the connection, because the row may be missing on the server that takes over.
//   - What has ended is marked in a table of fixed size, so two tokens can share a mark. If one of them ends, the other one costs a query.
//   - One-shot tokens, DPoP proofs, exchanges and inactive tokens are never answered from the cache.
type replica struct {
	ledger *Ledger
	id     uuid.UUID
	conn   *pgx.Conn
	seen   int64     // it has read all entries before this index
	beats  int64     // how often it has written to replicas
	taken  time.Time // before it did that for the last time
}

// run reads the entries for as long as callers look up tokens. The cache is dropped with the connection, because the next
// one may be to a server that took over.
func (r *replica) run(ctx context.Context) error {
	cache := tokencache.New(r.ledger.now)
	if err := r.begin(ctx); err != nil {
		return err
	}
	defer r.end(ctx)
	cache.Clear(r.seen) // an answer from a server with fewer entries is not used: what came after it was not read
	for idle := 0; idle < idleBeats; {
		if err := r.heartbeat(ctx, cache); err != nil {
			return err
		}
		r.ledger.cache.Store(cache)
		if err := r.await(ctx); err != nil {
			return err
		}
		idle++
		if cache.Used() {
			idle = 0
		}
	}
	return nil
}

// begin connects and registers the replica, with an empty cache.
func (r *replica) begin(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, r.ledger.flushTimeout)
	defer cancel()
	if r.conn, err = pgx.ConnectConfig(ctx, r.ledger.write.Config().ConnConfig); err != nil {
		return err
	}
	var channel string
	if err = r.ledger.checkPrimary(ctx, r.conn); err == nil {
		err = r.conn.QueryRow(ctx, `SELECT size, `+channelSQL+` FROM ledger_head`).Scan(&r.seen, &channel)
	}
	if err == nil {
		_, err = r.conn.Exec(ctx, `LISTEN `+pgx.Identifier{channel}.Sanitize())
	}
	if err == nil {
		err = r.tell(ctx)
	}
	if err != nil {
		return errors.Join(err, r.conn.Close(ctx))
	}
	return nil
}

// channelSQL is the name of the channel that replicas listen to.
const channelSQL = `'brevet_' || current_schema()`

// end drops the cache, and then removes this replica from the others' list.
func (r *replica) end(ctx context.Context) {
	r.ledger.cache.Store(nil)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), outlived)
	defer cancel()
	// If this fails, a replica that waits for this one in vain removes it.
	_, _ = r.conn.Exec(ctx, `DELETE FROM replicas WHERE id = $1`, r.id)
	_ = r.conn.Close(ctx) // it ends in any case
}

// heartbeat reads the new entries. Then the lease of the previous beat may be used: a replica that has ended something after
// this reading sees that lease, and waits. After that heartbeat takes the next lease.
func (r *replica) heartbeat(ctx context.Context, cache *tokencache.Cache) error {
	ctx, cancel := context.WithTimeout(ctx, r.ledger.flushTimeout)
	defer cancel()
	before, err := r.read(ctx, cache)
	if err != nil {
		return err
	}
	cache.SetLease(before)
	return r.tell(ctx)
}

// ending is a row about an entry that ends something. If Index is nil, there is no entry.
type ending struct {
	Size      int64
	Catalogue string
	Index     *int64
	ID        uuid.UUID
	Kind      string
	SPIFFEID  *string `db:"spiffe_id"`
	Task      *string
}

// read marks what has ended since the previous reading. A credentials.revoke entry is only the order: the issuance entries that
// follow it end the tokens.
func (r *replica) read(ctx context.Context, cache *tokencache.Cache) (tokencache.Lease, error) {
	rows, err := r.conn.Query(ctx, `
		SELECT h.size, coalesce(c.digest, '') AS catalogue, e.index, coalesce(e.id, @id) AS id, coalesce(e.kind, '') AS kind,
			CASE WHEN e.kind IN ('task.end', 'quarantine.add') THEN convert_from(e.body, 'UTF8')::jsonb #>> '{target,spiffe_id}' END AS spiffe_id,
			CASE WHEN e.kind = 'task.end' THEN convert_from(e.body, 'UTF8')::jsonb #>> '{target,task}' END AS task
		FROM ledger_head AS h LEFT JOIN catalogue_head AS c ON true LEFT JOIN LATERAL (
			SELECT index, id, kind, body FROM entries
			WHERE index >= greatest(@seen, h.size - @most) AND index < h.size AND kind NOT IN (
				'request.denied', 'request.pending', 'issuance.intent', 'issuance.issued', 'issuance.reported', 'call.refused', 'calls.recorded', 'quarantine.remove',
				'credentials.revoke', 'approval.vote', 'approval.remembered', 'approval.withdrawn', 'person.seen', 'passkey.registered', 'passkey.removed',
				'catalogue.proposed', 'catalogue.applied', 'catalogue.rejected')
			ORDER BY index
		) AS e ON true`, pgx.NamedArgs{"seen": r.seen, "most": int64(maxUnread), "id": r.id})
	found, err := postgres.Collect(rows, err, pgx.RowToStructByName[ending])
	switch {
	case err != nil:
		return tokencache.Lease{}, err
	case len(found) == 0 || found[0].Size < r.seen:
		return tokencache.Lease{}, fmt.Errorf("%w: it does not have %d entries", postgres.ErrWentBack, r.seen)
	}
	size := found[0].Size
	if size-r.seen > maxUnread {
		cache.Clear(size)
	}
	for _, e := range found {
		if e.Index != nil {
			cache.Invalidate(tokencache.Ending{Index: *e.Index, ID: e.ID, Kind: e.Kind, SPIFFEID: e.SPIFFEID, Task: e.Task})
		}
	}
	r.seen = size
	return tokencache.Lease{Taken: r.taken, Catalogue: found[0].Catalogue}, nil
}

// tell shows waiting replicas how far this one has read, and that it continues from there.
func (r *replica) tell(ctx context.Context) error {
	r.taken = r.ledger.now()
	r.beats++
	_, err := r.conn.Exec(ctx, `
		INSERT INTO replicas (id, seen, beat) VALUES (@id, @seen, @beat)
		ON CONFLICT (id) DO UPDATE SET seen = excluded.seen, beat = excluded.beat`,
		pgx.NamedArgs{"id": r.id, "seen": r.seen, "beat": r.beats})
	if err == nil {
		err = postgres.Warned(r.conn)
	}
	return err
}

// await returns when another replica waits for this one, or when the next beat is due.
func (r *replica) await(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, beatEvery)
	defer cancel()
	_, err := r.conn.WaitForNotification(waiting)
	if err != nil && waiting.Err() == nil {
		return err
	}
	return ctx.Err()
}

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
	ids := make([]uuid.UUID, len(behind))
	for i, p := range behind {
		ids[i] = p.ID
	}
	for left := behind; len(left) > 0; {
		wait.For(rest, askEvery)
		if rest.Err() != nil {
			return behind
		}
		rows, err := l.live.Query(rest, `SELECT id, beat FROM replicas WHERE seen < @size AND id = ANY (@ids::uuid[])`,
			pgx.NamedArgs{"size": size, "ids": ids})
		if now, err := postgres.Collect(rows, err, pgx.RowToStructByName[pulse]); err == nil {
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
