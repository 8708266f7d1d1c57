package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/mod/sumdb/tlog"
)

// job is an entry that is waiting to be appended.
type job struct {
	entry entry
	// taken is set by the flusher that sends it or by the caller that gives up, whichever comes first.
	taken atomic.Bool
	done  chan answer // has room for its one answer
}

type answer struct {
	earlier *broker.View
	err     error
}

// append commits an entry, or queues it while another commit is in flight, and waits. If the caller gives up before the flusher takes a
// queued entry, nothing is recorded. After that, the commit goes on without the caller.
func (l *Ledger) append(ctx context.Context, e entry) (*broker.View, error) {
	if err := ctx.Err(); err != nil {
		return nil, postgres.Unavailable("queueing a record", err)
	}
	if err := l.CheckRollback(); err != nil {
		return nil, err
	}
	if l.disk.full.Load() && e.begins() {
		return nil, errShed
	}
	j := &job{entry: e, done: make(chan answer, 1)}
	if l.flushOwn(ctx, j) {
		a := <-j.done
		return a.earlier, l.disk.explain(a.err)
	}
	if err := l.enqueue(j); err != nil {
		return nil, err
	}
	timeout := time.NewTimer(l.flushTimeout)
	defer timeout.Stop()
	for {
		select {
		case a := <-j.done:
			return a.earlier, l.disk.explain(a.err)
		case <-ctx.Done():
			j.taken.Swap(true)
			return nil, postgres.Unavailable("waiting for a commit", ctx.Err())
		case <-timeout.C:
			if !j.taken.Swap(true) {
				return nil, fmt.Errorf("waiting for earlier commits: %w", broker.ErrLedgerUnavailable)
			}
		}
	}
}

// flushOwn commits the caller's entry if nothing is queued or in flight: waking the flusher, and then the caller again, would take
// longer. It returns only after the commit, within the flush timeout, even if the caller leaves meanwhile.
func (l *Ledger) flushOwn(ctx context.Context, j *job) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed || len(l.urgent)+len(l.queue) > 0 || !l.flushing.TryLock() {
		return false
	}
	defer l.flushing.Unlock()
	l.flush(context.WithoutCancel(ctx), []*job{j})
	return true
}

func (l *Ledger) enqueue(j *job) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return fmt.Errorf("ledger is closed: %w", broker.ErrLedgerUnavailable)
	}
	queue := l.queue
	if j.entry.urgent {
		queue = l.urgent
	}
	select {
	case queue <- j:
		select {
		case l.arrived <- struct{}{}:
		default: // run has not seen the last one yet
		}
		return nil
	default:
		return fmt.Errorf("%d records are waiting: %w", maxQueue, broker.ErrLedgerUnavailable)
	}
}

// The queues of a ledger, as indexes.
const urgently, normally = 0, 1

// run commits what is queued until both queues are closed and empty. Entries that are queued while a commit is in flight go into the next
// one. So a busy ledger shares commits, and an idle one waits for nothing. Urgent entries have batches of their own, which come first.
// After each of these, a batch of the others has its turn, so that no number of urgent entries can stop the others.
func (l *Ledger) run(ctx context.Context) {
	defer close(l.stopped)
	queues := [2]chan *job{urgently: l.urgent, normally: l.queue} // each nil once it is closed and empty
	var first [2]*job                                             // of each queue: what comes next, because it was taken already
	// ready reports whether a queue has a job, and takes it.
	ready := func(which int) bool {
		if first[which] == nil {
			select {
			case j, ok := <-queues[which]:
				if first[which] = j; !ok {
					queues[which] = nil
				}
			default:
			}
		}
		return first[which] != nil
	}
	l.flushing.Lock()
	defer l.flushing.Unlock()
	for turn := urgently; ; {
		switch {
		case ready(turn):
		case ready(1 - turn):
			turn = 1 - turn
		case queues[urgently] == nil && queues[normally] == nil:
			return
		default:
			l.flushing.Unlock() // while the ledger is idle, callers commit their own entries
			<-l.arrived
			l.flushing.Lock()
			turn = urgently
			continue
		}
		if turn == normally {
			// The callers of the last commit are just waking up. Let them queue their next entries first.
			runtime.Gosched()
		}
		first[turn] = l.flushSome(ctx, first[turn], queues[turn])
		turn = 1 - turn
	}
}

// flushSome commits a job and others of its queue. It returns the job that has to come next, if any.
func (l *Ledger) flushSome(ctx context.Context, first *job, from <-chan *job) *job {
	records, commands, next := take(first, from)
	for _, batch := range [][]*job{records, commands} {
		if len(batch) > 0 {
			l.flush(ctx, batch)
		}
	}
	return next
}

// take claims the queued jobs without waiting for more. It stops before a job that must see the effect of a job it has
// taken, and returns that job as next. Commands come after the records: no caller has an answer yet, so any order is
// correct.
func take(first *job, from <-chan *job) (records, commands []*job, next *job) {
	alone := map[string]bool{}
	for j, ok := first, true; ok; {
		e := &j.entry
		switch {
		case e.alone != "" && alone[e.alone]:
			return records, commands, j
		case j.taken.Swap(true): // its caller has given up
		case e.command:
			commands = append(commands, j)
		default:
			records = append(records, j)
		}
		if e.alone != "" {
			alone[e.alone] = true
		}
		if len(records) == maxBatch || len(commands) == maxBatch {
			break
		}
		select {
		case j, ok = <-from:
		default:
			ok = false
		}
	}
	return records, commands, nil
}

// flush commits a batch and answers each of its jobs once.
func (l *Ledger) flush(ctx context.Context, batch []*job) {
	if l.disk.full.Load() {
		batch = shed(batch, errShed)
	}
	if len(batch) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, l.flushTimeout)
	defer cancel()
	answers, err := l.commit(ctx, batch)
	if noRoom(err) { // a burst came before the next partition was created
		if _, failed := l.makeRoom(ctx); failed == nil {
			answers, err = l.commit(ctx, batch)
		}
	}
	switch {
	case err == nil:
	case noRoom(err):
		l.reached(math.MaxInt64)
		answers = same(batch, postgres.Unavailable("finding room", err))
	case aboutData(err) && len(batch) > 1:
		// Nothing was committed, because of one bad record. Split the batch, so that the other records do not fail with it.
		half := len(batch) / 2
		l.flush(context.WithoutCancel(ctx), batch[:half])
		l.flush(context.WithoutCancel(ctx), batch[half:])
		return
	case aboutData(err):
		answers = same(batch, fmt.Errorf("%w: %s", record.ErrUnrecordable, postgres.Reason(err)))
	case rolledBack(err) && postgres.Full(err) && begun(batch):
		l.flush(context.WithoutCancel(ctx), shed(batch, postgres.Unavailable("committing", err))) // what ends something may still find room
		return
	case rolledBack(err):
		answers = same(batch, postgres.Unavailable("committing", err))
	default:
		answers = l.readBack(ctx, batch, err)
	}
	for i, j := range batch {
		j.done <- answers[i]
	}
}

func same(batch []*job, err error) []answer {
	answers := make([]answer, len(batch))
	for i := range answers {
		answers[i].err = err
	}
	return answers
}

// commit sends the batch as one statement. That is one round trip, so the lock on the head never waits for the network. Rows
// come back in the order of the batch. commit uses three fifths of the flush timeout and leaves the rest for reading back.
func (l *Ledger) commit(ctx context.Context, batch []*job) ([]answer, error) {
	ctx, cancel := context.WithTimeout(ctx, l.flushTimeout*3/5)
	defer cancel()
	conn, err := l.write.Acquire(ctx)
	if err != nil {
		return same(batch, postgres.Unavailable("connecting", err)), nil // nothing was sent
	}
	defer conn.Release()
	var got []appended
	switch {
	case batch[0].entry.command:
		got, err = announcing.run(ctx, conn, contents(batch))
	case plain(batch):
		got, err = admitting.runPlain(ctx, conn, arguments(batch))
	default:
		got, err = appending.run(ctx, conn, arguments(batch))
	}
	if warned := postgres.Warned(conn.Conn()); err == nil && warned != nil {
		err = errors.Join(warned, conn.Conn().Close(ctx))
	}
	switch {
	case err != nil:
		return nil, err
	case len(got) != len(batch):
		return nil, fmt.Errorf("postgres answered %d of %d records", len(got), len(batch))
	}
	answers := make([]answer, len(batch))
	var repeats []int
	for i, row := range got {
		if row.repeated() {
			repeats = append(repeats, i)
			continue
		}
		answers[i].err = row.refusal(&batch[i].entry)
		if row.Index != nil {
			l.tip.Store(&tip{*row.Index, batch[i].entry.leaf})
			l.reached(*row.Index)
		}
	}
	if len(repeats) > 0 {
		answerRepeats(ctx, conn, batch, repeats, answers)
	}
	return answers, nil
}

// admitted is what admitSQL answers: the index of the first entry, and what admit said about each item.
type admitted struct {
	Base     int64
	Verdicts []*string
	Reached  []*int64
	Waits    []*int64
}

type appended struct {
	Index   *int64  // of the entry; nil if none was appended
	Status  *string // for an outcome: the record's status before it
	Verdict *string // why the item is not admitted; nil if it is
	Reached *int64  // the place of the limit that the item exceeds, counted from 1
	Wait    *int64  // microseconds until the item would pass
}

func (a appended) repeated() bool { return a.Verdict != nil && *a.Verdict == "repeated" }

// refusal returns why the entry was not appended, or nil if it was.
func (a appended) refusal(e *entry) error {
	switch {
	case a.Index != nil:
		return nil
	case a.Verdict != nil && *a.Verdict == "quarantined":
		return broker.ErrQuarantined
	case a.Verdict != nil && *a.Verdict == "task_ended":
		return broker.ErrTaskEnded
	case a.Verdict != nil && *a.Verdict == "parent_ended":
		return broker.ErrInactive
	case a.Verdict != nil && *a.Verdict == "superseded":
		return broker.ErrSuperseded
	case a.Verdict != nil && *a.Verdict == "asked":
		return broker.ErrAlreadyAsked
	case a.Verdict != nil && *a.Verdict == "unapproved":
		return broker.ErrNotApproved
	case a.Verdict != nil && *a.Verdict == "crowded":
		return &broker.Limited{Limit: broker.WaitingLimit, RetryAfter: broker.WaitingRetry}
	case a.Verdict != nil && (a.Reached == nil || a.Wait == nil || *a.Reached < 1 || *a.Reached > int64(len(e.limits))):
		return fmt.Errorf("postgres answered with a limit that was not asked for: %w", broker.ErrLedgerUnavailable)
	case a.Verdict != nil:
		return &broker.Limited{Limit: e.limits[*a.Reached-1].Limit, RetryAfter: time.Duration(*a.Wait) * time.Microsecond}
	case e.overtakes:
		return broker.ErrConcurrentChange
	case a.Status == nil: // there is no such record, or no such quarantine to lift
		return broker.ErrNotFound
	case e.term != 0:
		return fmt.Errorf("%w from %s by the sweeper of term %d", broker.ErrInvalidTransition, *a.Status, e.term)
	}
	return fmt.Errorf("%w from %s", broker.ErrInvalidTransition, *a.Status)
}

// answerRepeats answers the jobs whose idempotency key was used before with the earlier record. repeats holds their places
// in the batch. A failure affects only these jobs, because the rest of the batch is committed.
func answerRepeats(ctx context.Context, conn *pgxpool.Conn, batch []*job, repeats []int, answers []answer) {
	var subjects, keys []string
	for _, i := range repeats {
		subjects, keys = append(subjects, *batch[i].entry.subject), append(keys, *batch[i].entry.key)
	}
	// Read on the writer's connection, because readers may have all of theirs in use.
	rows, err := conn.Query(ctx, `
		SELECT `+record.Columns+` FROM issuances
		WHERE (spiffe_id, idempotency_key) IN (SELECT * FROM unnest(@subjects::text[], @keys::text[]))`,
		pgx.NamedArgs{"subjects": subjects, "keys": keys})
	found, err := postgres.Collect(rows, err, pgx.RowToStructByName[record.Row])
	for n, i := range repeats {
		at := slices.IndexFunc(found, func(r record.Row) bool { return r.SPIFFEID == subjects[n] && r.IdempotencyKey == keys[n] })
		switch {
		case err != nil:
			answers[i].err = postgres.Unavailable("reading an earlier record", err)
		case at < 0:
			answers[i].err = fmt.Errorf("reading an earlier record that has just failed: %w", broker.ErrLedgerUnavailable)
		default:
			view, err := found[at].View()
			answers[i] = answer{view, postgres.Unavailable("reading an earlier record", err)}
		}
	}
}

// readBack finds out on a separate connection what became of a batch whose answer was lost.
func (l *Ledger) readBack(ctx context.Context, batch []*job, lost error) []answer {
	leaves, err := l.prove(ctx, batch)
	if err != nil {
		return same(batch, postgres.Unavailable("reading back", err))
	}
	answers := make([]answer, len(batch))
	for i, j := range batch {
		if !slices.Contains(leaves, j.entry.leaf) {
			answers[i].err = postgres.Unavailable("committing", lost)
		}
	}
	return answers
}

// prove returns the leaves of the batch that are durably committed. Taking the head's lock waits for a statement that may
// still be running, and keeps other writers out. The commit of this transaction is durable only when all commits before it
// are.
func (l *Ledger) prove(ctx context.Context, batch []*job) (leaves []tlog.Hash, err error) {
	conn, err := pgx.ConnectConfig(ctx, l.write.Config().ConnConfig)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(ctx) }()
	if err := l.checkPrimary(ctx, conn); err != nil {
		return nil, err
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `UPDATE ledger_head SET size = size`); err != nil {
			return err
		}
		args := contents(batch)
		rows, err := tx.Query(ctx,
			`SELECT leaf_hash FROM entries WHERE id = ANY (@ids::uuid[]) AND leaf_hash = ANY (@leaves::bytea[])`,
			pgx.NamedArgs{"ids": args["ids"], "leaves": args["leaves"]})
		leaves, err = postgres.Collect(rows, err, record.ScanHash)
		return err
	})
	if err == nil {
		err = postgres.Warned(conn)
	}
	return leaves, err
}

// plain reports whether admit alone decides about a batch: each entry begins what neither waits for people nor uses an approval.
func plain(batch []*job) bool {
	return !slices.ContainsFunc(batch, func(j *job) bool {
		return j.entry.approves.Valid || !slices.Contains([]string{kindIntent, kindDenied, kindRefused}, j.entry.kind)
	})
}

// admitSQL appends a plain batch, as appendSQL would. PostgreSQL executes half a million instructions less for each, and answers in one row.
const admitSQL = `
WITH locked AS MATERIALIZED (
	SELECT *, array_positions(verdicts, NULL) AS admitted
	FROM admit(@subjects::text[], @keys::text[], @tasks::text[], @scopes::text[], @ends::timestamptz[],
		@catalogues::text[], @limit_items::bigint[], @limit_keys::text[], @emissions::bigint[], @bursts::bigint[], @alive_per::text[],
		@parents::uuid[], @ended::uuid[])
), head AS (
	UPDATE ledger_head SET size = size + (SELECT cardinality(admitted) FROM locked)
	RETURNING size - (SELECT cardinality(admitted) FROM locked) AS base
), entry AS (
	INSERT INTO entries (index, id, time, kind, body, leaf_hash)
	SELECT head.base + place - 1, (@ids::uuid[])[n], (@times::timestamptz[])[n], (@kinds::text[])[n], (@bodies::bytea[])[n],
		(@leaves::bytea[])[n]
	FROM head, locked, unnest(locked.admitted) WITH ORDINALITY AS a (n, place)
)
SELECT head.base, locked.verdicts, locked.reached, locked.waits FROM head, locked`

// appendSQL appends a batch of records. It derives what an outcome changes from the entry's body. A trigger of the database does the
// same for what begins, and other triggers check the rest. Bodies are read from their argument only where they are used: each step would
// copy them otherwise.
const appendSQL = `
WITH locked AS MATERIALIZED (
	SELECT * FROM admit(@subjects::text[], @keys::text[], @tasks::text[], @scopes::text[], @ends::timestamptz[],
		@catalogues::text[], @limit_items::bigint[], @limit_keys::text[], @emissions::bigint[], @bursts::bigint[], @alive_per::text[],
		@parents::uuid[], @ended::uuid[], @shown::text[], @ttls::bigint[])
), item AS MATERIALIZED (
	SELECT t.n, t.kind, t.id, t.time,
		t.kind NOT IN ('request.denied', 'request.pending', 'issuance.intent', 'call.refused') AS outcome,
		CASE WHEN locked.verdicts[t.n] IS NOT NULL THEN locked.verdicts[t.n]
			WHEN t.approves IS NOT NULL AND NOT redeemable(t.approves, t.subject,
				convert_from((@bodies::bytea[])[t.n], 'UTF8')::jsonb #>> '{decision,code}') THEN 'unapproved'
			WHEN t.kind = 'request.pending' AND crowded(t.subject,
				count(*) FILTER (WHERE t.kind = 'request.pending') OVER (PARTITION BY t.subject ORDER BY t.n) - 1)
				THEN 'crowded' END AS verdict,
		locked.reached[t.n] AS reached, locked.waits[t.n] AS wait, locked.current_term, t.approves
	FROM locked, unnest(@kinds::text[], @ids::uuid[], @times::timestamptz[], @approves::uuid[], @judged::text[])
		WITH ORDINALITY AS t (kind, id, time, approves, subject, n)
), redeemed AS (
	UPDATE issuances AS i
	SET status = 'redeemed', status_time = item.time, redeemed_by = item.id, redemptions = i.redemptions + 1
	FROM item WHERE i.id = item.approves AND item.verdict IS NULL
), moved AS (
	UPDATE issuances AS i
	SET status = m.status, status_detail = m.detail, status_time = m.time, actor = coalesce(m.actor, i.actor),
		idempotency_key = CASE WHEN m.status NOT IN ('failed', 'unknown', 'compensated') THEN i.idempotency_key END,
		vault_accessor = coalesce(i.vault_accessor, m.accessor), vault_lease = coalesce(i.vault_lease, m.lease),
		credential_name = coalesce(i.credential_name, m.name), secret_digest = coalesce(i.secret_digest, m.digest)
	FROM (
		SELECT DISTINCT ON (id) n, id, time, current_term, doc ->> 'status' AS status, doc ->> 'detail' AS detail,
			doc ->> 'actor' AS actor, (doc ->> 'term')::bigint AS term, doc #>> '{minted,accessor}' AS accessor,
			doc #>> '{minted,lease}' AS lease, doc #>> '{minted,name}' AS name,
			decode(doc #>> '{minted,digest}', 'hex') AS digest
		FROM (SELECT *, convert_from((@bodies::bytea[])[n], 'UTF8')::jsonb AS doc FROM item WHERE outcome OFFSET 0) AS o
		ORDER BY id, n
	) AS m
	WHERE i.id = m.id AND may_move(i.status, m.status, i.credential_kind, i.leased, i.static)
		AND (m.status <> 'used' OR i.one_shot) AND (m.term IS NULL OR m.term = m.current_term)
	RETURNING m.n
), judged AS MATERIALIZED (
	SELECT *, count(*) FILTER (WHERE accepted) OVER (ORDER BY n) - 1 AS place
	FROM (
		SELECT item.*, CASE WHEN outcome THEN n IN (SELECT n FROM moved) ELSE verdict IS NULL END AS accepted
		FROM item
	) AS each
), head AS (
	UPDATE ledger_head SET size = size + (SELECT count(*) FROM judged WHERE accepted)
	RETURNING size - (SELECT count(*) FROM judged WHERE accepted) AS base
), entry AS (
	INSERT INTO entries (index, id, time, kind, body, leaf_hash)
	SELECT head.base + place, id, time, kind, (@bodies::bytea[])[n], (@leaves::bytea[])[n] FROM judged, head WHERE accepted
)
SELECT CASE WHEN accepted THEN head.base + place END AS index,
	CASE WHEN outcome THEN (SELECT i.status FROM issuances AS i WHERE i.id = judged.id) END AS status,
	verdict, reached, wait
FROM judged, head
ORDER BY n`

// numbered is a statement with $1 in place of its first argument, and so on. Each batch sends one of three statements. pgx would
// replace the names in them each time, which takes longer than to encode the arguments.
type numbered struct {
	sql   string
	names []string // of the arguments, in their order
}

var (
	admitting  = number(admitSQL, arguments(nil))
	appending  = number(appendSQL, arguments(nil))
	announcing = number(announceSQL, contents(nil))
)

func number(sql string, args pgx.NamedArgs) numbered {
	for name := range args {
		args[name] = name
	}
	sql, ordered, err := args.RewriteQuery(context.Background(), nil, sql, nil)
	if err != nil {
		panic(err) // cannot happen: pgx only fails for strict arguments
	}
	s := numbered{sql: sql}
	for _, name := range ordered {
		s.names = append(s.names, name.(string))
	}
	return s
}

func (s numbered) run(ctx context.Context, conn *pgxpool.Conn, args pgx.NamedArgs) ([]appended, error) {
	rows, err := conn.Query(ctx, s.sql, s.arguments(args)...)
	return postgres.Collect(rows, err, pgx.RowToStructByNameLax[appended])
}

// runPlain runs a statement that answers for the whole batch in one row.
func (s numbered) runPlain(ctx context.Context, conn *pgxpool.Conn, args pgx.NamedArgs) ([]appended, error) {
	rows, err := conn.Query(ctx, s.sql, s.arguments(args)...)
	all, err := postgres.CollectOne(rows, err, pgx.RowToStructByName[admitted])
	if err != nil {
		return nil, err
	}
	each := make([]appended, len(all.Verdicts))
	if len(all.Reached) != len(each) || len(all.Waits) != len(each) {
		return nil, fmt.Errorf("postgres answered %d verdicts, %d limits and %d times", len(each), len(all.Reached), len(all.Waits))
	}
	next := all.Base
	for i, verdict := range all.Verdicts {
		each[i] = appended{Verdict: verdict, Reached: all.Reached[i], Wait: all.Waits[i]}
		if verdict == nil {
			index := next
			each[i].Index = &index
			next++
		}
	}
	return each, nil
}

func (s numbered) arguments(named pgx.NamedArgs) []any {
	ordered := make([]any, len(s.names))
	for i, name := range s.names {
		ordered[i] = named[name]
	}
	return ordered
}

// contents returns the arguments that hold the entries themselves.
func contents(batch []*job) pgx.NamedArgs {
	var (
		kinds          []string
		ids            []pgtype.UUID
		times          []time.Time
		bodies, leaves pgtype.FlatArray[[]byte]
	)
	for _, j := range batch {
		e := &j.entry
		kinds, ids, times = append(kinds, e.kind), append(ids, e.id), append(times, e.time)
		bodies, leaves = append(bodies, e.body), append(leaves, e.leaf[:])
	}
	return pgx.NamedArgs{"kinds": kinds, "ids": ids, "times": times, "bodies": bodies, "leaves": leaves}
}

// arguments returns the contents of the entries, and the values that decide whether they are admitted.
func arguments(batch []*job) pgx.NamedArgs {
	var (
		subjects, keys, tasks, scopes, per, catalogues []*string
		ends                                           []*time.Time
		items, emissions, bursts                       []int64
		limits                                         []string
		approves                                       []pgtype.UUID
		judged                                         []*string
	)
	for i, j := range batch {
		e := &j.entry
		subjects, keys, ends = append(subjects, e.subject), append(keys, e.key), append(ends, e.ends)
		tasks, scopes, catalogues = append(tasks, e.task), append(scopes, e.scope), append(catalogues, e.catalogue)
		approves, judged = append(approves, e.approves), append(judged, e.subject)
		for _, l := range e.limits {
			items, limits = append(items, int64(i+1)), append(limits, l.Key)
			if l.Live > 0 {
				per, emissions, bursts = append(per, &l.Per), append(emissions, 0), append(bursts, int64(l.Live))
				continue
			}
			per = append(per, nil)
			emissions, bursts = append(emissions, l.Emission().Microseconds()), append(bursts, int64(l.Count))
		}
	}
	args := contents(batch)
	maps.Copy(args, pgx.NamedArgs{
		"subjects": subjects, "keys": keys, "tasks": tasks, "scopes": scopes, "ends": ends, "catalogues": catalogues,
		"limit_items": items, "limit_keys": limits, "emissions": emissions, "bursts": bursts, "alive_per": per,
		"approves": approves, "judged": judged,
	})
	args["parents"], args["ended"] = ancestry(batch)
	args["shown"], args["ttls"] = shown(batch)
	return args
}

// shown returns what people would be shown of each entry, and the TTL that it asks for. An entry that does not wait for people, or that
// has an idempotency key, has none. Both are nil if no entry has one: then admit has nothing to look up.
func shown(batch []*job) (texts []*string, ttls []int64) {
	if !slices.ContainsFunc(batch, func(j *job) bool { return j.entry.shown != nil }) {
		return nil, nil
	}
	for _, j := range batch {
		texts, ttls = append(texts, j.entry.shown), append(ttls, j.entry.ttl)
	}
	return texts, ttls
}

// ancestry returns the parent of each entry that derives a token, and the issuance that each other entry ends. Both are nil if no
// entry derives a token: then admit has nothing to look up.
func ancestry(batch []*job) (parents, ended []pgtype.UUID) {
	if !slices.ContainsFunc(batch, func(j *job) bool { return j.entry.parent.Valid }) {
		return nil, nil
	}
	for _, j := range batch {
		var ends pgtype.UUID
		if j.entry.ended {
			ends = j.entry.id
		}
		parents, ended = append(parents, j.entry.parent), append(ended, ends)
	}
	return parents, ended
}

// rolledBack reports whether nothing of the statement can have been committed: it was not sent, or the server answered it
// with an error. A server that ends the session may have committed before.
func rolledBack(err error) bool {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return refused.SeverityUnlocalized == "ERROR"
	}
	return pgconn.SafeToRetry(err)
}

// aboutData reports whether the server refused the contents of a record. Class 22 is data exception, class 23 integrity
// constraint violation.
func aboutData(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && (strings.HasPrefix(refused.Code, "22") || strings.HasPrefix(refused.Code, "23"))
}

// tip is an entry that this replica knows the ledger to hold.
type tip struct {
	index int64
	leaf  tlog.Hash
}

// within returns ErrWentBack if a ledger of this size does not hold the tip.
func (t *tip) within(size int64) error {
	if t != nil && size <= t.index {
		return fmt.Errorf("%w: it does not have entry %d", postgres.ErrWentBack, t.index)
	}
	return nil
}

// checkTip refuses a connection to a database that does not hold the last entry that this replica has appended. So after a
// failover or a restore, nothing is appended to a database that has gone back.
func (l *Ledger) checkTip(ctx context.Context, conn *pgx.Conn) error {
	known := l.tip.Load()
	if known == nil {
		return nil
	}
	var there bool
	err := conn.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM entries WHERE index = $1 AND leaf_hash = $2)
			OR EXISTS (SELECT FROM tree_tiles WHERE level = 0 AND number = $1 / 256 AND substr(hashes, ($1 % 256)::integer * 32 + 1, 32) = $2)`,
		pgx.QueryExecModeExec, known.index, known.leaf[:]).Scan(&there)
	if err == nil && !there {
		err = fmt.Errorf("%w: entry %d is not as this replica has appended it", postgres.ErrWentBack, known.index)
	}
	return err
}
