// Package leader elects one replica for each duty that one replica at a time may have. A leadership is a lock of a database
// session, so it ends with the connection.
//
// The package must never give the sweeper a term that another replica has had, and never let a replica whose session has ended
// believe for long that it leads.
package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/brevet-dev/brevet/migrations"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// probeEvery is how often a leader checks that it still leads, and how often a candidate tries to lead. probeTimeout
	// bounds the leader's check.
	probeEvery   = time.Second
	probeTimeout = 2 * time.Second
	// silence is how long the server hears nothing from a leader before it ends that leader's session, and with it the
	// leadership. A broken network must not keep the other replicas waiting.
	silence = 10 * time.Second
)

// The leaderships. Each belongs to at most one replica.
const (
	sweeperLeadership = "sweeper"
	witnessLeadership = "witnesses"
)

// leaderLock is the key of the advisory lock of the leadership @office.
const leaderLock = `hashtextextended('brevet/' || @office || '/' || current_schema(), 0)`

// holderSQL finds the session that holds the lock of the leadership @office, and says whether its login is a stranger's: neither
// a broker's nor the owner's. Any login of the database can take an advisory lock.
const holderSQL = `
	SELECT a.usename, NOT pg_has_role(a.usesysid, '` + migrations.BrokerRole + `', 'MEMBER') AND NOT pg_has_role(
		a.usesysid, (SELECT relowner FROM pg_class WHERE oid = 'ledger_head'::regclass), 'MEMBER') AS stranger
	FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
	WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
		AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND l.classid::bigint << 32 | l.objid::bigint = ` + leaderLock

// Election acquires leaderships for one replica, and knows which it has. It is safe for concurrent use.
type Election struct {
	pool    *pgxpool.Pool
	timeout time.Duration
	log     *slog.Logger
	// held holds the names of the leaderships that this replica has.
	held sync.Map
}

// New returns the election among the replicas on a schema. Each leadership has a separate connection with the configuration of
// the pool, which connects to the primary. The timeout bounds one attempt to lead.
func New(pool *pgxpool.Pool, timeout time.Duration, log *slog.Logger) *Election {
	return &Election{pool: pool, timeout: timeout, log: log}
}

// AcquireLeadership is that of [broker.Election]. The leadership is a lock of a database session, so it ends with the connection
// and not later.
func (e *Election) AcquireLeadership(ctx context.Context, do func(ctx context.Context, term int64) error) error {
	return (&candidate{election: e, leadership: sweeperLeadership, assume: newTerm}).run(ctx, do)
}

// AcquireWitnessLeadership runs do while this replica leads, like AcquireLeadership. Only one replica leads, but work that
// do has started may still be under way when another replica leads.
func (e *Election) AcquireWitnessLeadership(ctx context.Context, do func(ctx context.Context) error) error {
	c := &candidate{election: e, leadership: witnessLeadership, assume: func(context.Context, *pgx.Conn) (int64, error) { return 1, nil }}
	return c.run(ctx, func(ctx context.Context, _ int64) error { return do(ctx) })
}

// ReadLeaderships reads whether any replica, and whether this one, holds the locks of leaders.
func (e *Election) ReadLeaderships(ctx context.Context, conn *pgxpool.Conn, s *broker.LedgerStatus) error {
	for _, o := range []struct {
		name   string
		office *broker.Leadership
	}{{sweeperLeadership, &s.Sweeper}, {witnessLeadership, &s.Witnesses}} {
		err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM (`+holderSQL+`) AS h WHERE NOT h.stranger)`,
			pgx.NamedArgs{"office": o.name}).Scan(&o.office.Held)
		if err != nil {
			return err
		}
		_, o.office.Here = e.held.Load(o.name)
	}
	return conn.QueryRow(ctx, `SELECT term FROM sweeper_term`).Scan(&s.Sweeper.Term)
}

// candidate is a replica with a separate database session. It is not safe for concurrent use.
type candidate struct {
	election *Election
	// leadership is the name of the leadership to acquire. assume begins a term, with the lock held.
	leadership string
	assume     func(ctx context.Context, conn *pgx.Conn) (term int64, err error)
	conn       *pgx.Conn // nil if not connected
	stranger   string    // the login that was last found to hold the lock without being a broker's
}

// run waits for the leadership and then calls do.
func (c *candidate) run(ctx context.Context, do func(ctx context.Context, term int64) error) error {
	defer c.close(ctx)
	for waited := false; ; waited = true {
		if err := ctx.Err(); err != nil {
			return err
		}
		term, err := c.win(ctx)
		if err == nil && term > 0 {
			return c.lead(ctx, term, do)
		}
		if err != nil {
			c.close(ctx)
		}
		if err != nil && !waited && ctx.Err() == nil {
			c.election.log.WarnContext(ctx, "no leader can be elected", "leadership", c.leadership, "error", postgres.Unavailable("electing", err))
		}
		wait.For(ctx, probeEvery)
	}
}

// win returns a new term, or zero if another replica leads.
func (c *candidate) win(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, c.election.timeout)
	defer cancel()
	if c.conn == nil {
		if err := c.connect(ctx); err != nil {
			return 0, err
		}
	}
	var won bool
	err := c.conn.QueryRow(ctx, `
		SELECT pg_try_advisory_lock(`+leaderLock+`)`,
		pgx.NamedArgs{"office": c.leadership}).Scan(&won)
	if err == nil && !won {
		err = c.accuse(ctx)
	}
	if err != nil || !won {
		return 0, err
	}
	term, err := c.assume(ctx, c.conn)
	if err == nil {
		err = postgres.Warned(c.conn)
	}
	return term, err
}

// accuse logs that a login that is not a broker's holds the lock: then no replica can lead.
func (c *candidate) accuse(ctx context.Context) error {
	var login string
	err := c.conn.QueryRow(ctx, `SELECT h.usename FROM (`+holderSQL+`) AS h WHERE h.stranger`, pgx.NamedArgs{"office": c.leadership}).Scan(&login)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	if login != "" && login != c.stranger {
		c.election.log.ErrorContext(ctx, "no replica can lead, because another login holds the lock: end its session", "leadership", c.leadership, "login", login)
	}
	c.stranger = login
	return nil
}

// newTerm increments the sweeper's term while it holds the lock on the head. All outcomes of an earlier term are committed
// by then, and none can be committed later.
func newTerm(ctx context.Context, conn *pgx.Conn) (term int64, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT FROM ledger_head FOR UPDATE`); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `UPDATE sweeper_term SET term = term + 1 RETURNING term`).Scan(&term)
	})
	return term, err
}

func (c *candidate) connect(ctx context.Context) error {
	cfg := c.election.pool.Config().ConnConfig
	cfg.RuntimeParams["idle_session_timeout"] = fmt.Sprint(silence.Milliseconds())
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	if err := postgres.CheckDurable(ctx, conn); err != nil {
		return errors.Join(err, conn.Close(ctx))
	}
	c.conn = conn
	return nil
}

// lead runs do, and ends its context when the session no longer answers.
func (c *candidate) lead(ctx context.Context, term int64, do func(context.Context, int64) error) error {
	leading, resign := context.WithCancelCause(ctx)
	c.election.held.Store(c.leadership, true)
	defer c.election.held.Delete(c.leadership)
	probing := make(chan struct{})
	go func() {
		defer close(probing)
		for c.answers(leading) {
			wait.For(leading, probeEvery)
		}
		resign(fmt.Errorf("the lead is lost: %w", broker.ErrLedgerUnavailable))
	}()
	err := do(leading, term)
	resign(nil)
	<-probing
	if err == nil {
		return ctx.Err()
	}
	return err
}

// answers reports whether the session still answers. If ctx has ended, it returns false without asking.
func (c *candidate) answers(ctx context.Context) bool {
	if ctx.Err() != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTimeout)
	defer cancel()
	return c.conn.Ping(ctx) == nil
}

// close ends the session, and so gives up the leadership. It works after ctx has ended too.
func (c *candidate) close(ctx context.Context) {
	if c.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTimeout)
	defer cancel()
	if _, err := c.conn.Exec(ctx, `SELECT pg_advisory_unlock_all()`); err != nil {
		c.election.log.DebugContext(ctx, "lead not given back", "error", postgres.Unavailable("unlocking", err))
	}
	_ = c.conn.Close(ctx) // the session ends in any case
	c.conn = nil
}
