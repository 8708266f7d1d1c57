package ledger

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/brevet-dev/brevet/migrations"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/brevet-dev/brevet/scopes/replay"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// chunkIndexes is how many entry indexes one statement covers.
	chunkIndexes = 8192
	// historyTimeout bounds a statement. A chunk takes far less, but OpenHistory checks the time of every decision.
	historyTimeout = "10min"
)

// History holds the decisions since some time. They can be read once, by several goroutines.
//
// It reads in chunks, so that no long transaction holds back the vacuum of a busy database. The result is that of one
// snapshot: what it reads of a decision never changes, and a record is visible only after those before it, so all records up
// to the last one that OpenHistory saw are there.
//
// It leaves out exchanged tokens, because nobody requested them. It leaves out what was issued for an approved request, and
// includes the request. The sandbox asked once, and waited: with both, its request would count twice. A request that waits
// shows everything that a draft can change: that nobody would have to approve it, or that no approval would be enough. It
// counts at the time of the request.
type History struct {
	pool        *pgxpool.Pool
	since       time.Time
	total       int64
	first, last int64 // entry indexes
	size        int64 // of a chunk
	chunks      atomic.Int64
}

// OpenHistory connects as an auditor, or as any login that may read the record, and counts the decisions since then. It
// writes nothing, so a standby will do. The error wraps broker.ErrLedgerUnavailable, or is one of migrations.ParseURL.
func OpenHistory(ctx context.Context, databaseURL string, since time.Time, readers int, options ...migrations.URLOption) (*History, error) {
	pc, err := migrations.ParseURL(databaseURL, options...)
	if err != nil {
		return nil, err
	}
	pc.MaxConns = int32(readers)
	params := pc.ConnConfig.RuntimeParams
	params["statement_timeout"] = historyTimeout
	params["plan_cache_mode"] = "force_custom_plan"
	params["jit"] = "off" // it takes longer than reading a chunk
	pc.AfterConnect = readOnly
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, postgres.Unavailable("opening a pool", err)
	}
	h := &History{pool: pool, since: since, size: chunkIndexes}
	err = postgres.Unavailable("connecting", pool.Ping(ctx))
	if err == nil {
		err = postgres.Unavailable("checking the schema", migrations.Check(ctx, pool))
	}
	if err == nil {
		err = postgres.Unavailable("counting decisions", pool.QueryRow(ctx, `
			SELECT count(*), coalesce(min(entry_index), 0), coalesce(max(entry_index), -1)
			FROM issuances WHERE time >= @since AND approves IS NULL AND parent IS NULL`,
			pgx.NamedArgs{"since": since}).Scan(&h.total, &h.first, &h.last))
	}
	if err != nil {
		pool.Close()
		return nil, err
	}
	return h, nil
}

// Decisions passes the decisions since some time to visit, in the order of the record, until all have been passed or visit
// returns false. It returns how many there are. It reads on a separate connection, as an auditor.
func (l *Ledger) Decisions(ctx context.Context, since time.Time, visit func(replay.Recorded) bool) (int64, error) {
	h, err := OpenHistory(ctx, l.audit.Config().ConnString(), since, 1, l.urlOptions...)
	if err != nil {
		return 0, err
	}
	defer h.Close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	enough := false
	err = h.Read(ctx, func(rec replay.Recorded) {
		if enough = enough || !visit(rec); enough {
			stop()
		}
	})
	if enough {
		err = nil
	}
	return h.Total(), err
}

// Total returns how many decisions there are.
func (h *History) Total() int64 { return h.total }

// Close disconnects.
func (h *History) Close() { h.pool.Close() }

// Read passes decisions to visit until all have been passed to some caller. It is safe for concurrent use. Each decision
// goes to one caller, and the decisions of a chunk come in the order of the record. After an error, which wraps
// broker.ErrLedgerUnavailable or names a record that cannot be read, some are missing.
func (h *History) Read(ctx context.Context, visit func(replay.Recorded)) error {
	for {
		first := h.first + (h.chunks.Add(1)-1)*h.size
		if first > h.last {
			return nil
		}
		if err := h.readChunk(ctx, first, visit); err != nil {
			return err
		}
	}
}

func (h *History) readChunk(ctx context.Context, first int64, visit func(replay.Recorded)) error {
	rows, err := h.pool.Query(ctx, `
		SELECT id::text, time, spiffe_id, svid_kind = 'x509-svid', jkt IS NOT NULL, scope, params, ttl_asked, ttl, task, context, decision,
			decision_code, @svid::text = ANY (clamps), on_behalf_of, on_behalf_groups, @user::text = ANY (clamps)
		FROM issuances
		WHERE entry_index BETWEEN @first AND @last AND time >= @since AND approves IS NULL AND parent IS NULL
		ORDER BY entry_index`, pgx.NamedArgs{
		"svid": scopes.BoundSVID, "user": scopes.BoundUser, "first": first, "last": min(first+h.size-1, h.last), "since": h.since,
	})
	if err != nil {
		return postgres.Unavailable("reading decisions", err)
	}
	defer rows.Close()
	for rows.Next() {
		var params, said []byte
		rec, err := recordedOf(rows, &params, &said)
		if err != nil {
			return postgres.Unavailable("reading decisions", err)
		}
		if rec.Params, err = record.DecodeParams(params); err != nil {
			return fmt.Errorf("reading the parameters of %s: %w", rec.ID, err)
		}
		if rec.RequestContext, err = record.DecodeContext(said, rec.Task); err != nil {
			return fmt.Errorf("reading the request context of %s: %w", rec.ID, err)
		}
		visit(rec)
	}
	return postgres.Unavailable("reading decisions", rows.Err())
}

// recordedOf reads a row except for its parameters and its request context, which it leaves encoded.
func recordedOf(row pgx.Row, params, said *[]byte) (replay.Recorded, error) {
	var rec replay.Recorded
	var asked, given int64
	var cut, cutAgain bool // by the end of the SVID, and then by the end of the person's ID token
	var user *string
	var groups []string
	err := row.Scan(&rec.ID, &rec.Time, &rec.SPIFFEID, &rec.Bound, &rec.Proved, &rec.Scope, params, &asked, &given, &rec.Task, said, &rec.Outcome,
		&rec.Reason, &cut, &user, &groups, &cutAgain)
	rec.TTL, rec.Given = time.Duration(asked)*time.Second, time.Duration(given)*time.Second
	if user != nil {
		rec.User = &scopes.User{ID: *user, Groups: groups}
	}
	// The record has only the names of the bounds. But the TTL that was given ends when the last bound that cut it does.
	switch {
	case cutAgain && rec.User != nil:
		rec.User.Until = rec.Time.Add(rec.Given)
	case cut:
		rec.Expires = rec.Time.Add(rec.Given)
	}
	return rec, err
}
