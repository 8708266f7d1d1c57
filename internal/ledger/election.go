package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/jackc/pgx/v5"
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

// AcquireLeadership implements [broker.Election]. The leadership is a lock of a database session, so it ends with the
// connection and not later.
func (l *Ledger) AcquireLeadership(ctx context.Context, do func(ctx context.Context, term int64) error) error {
	return (&candidate{ledger: l, leadership: sweeperLeadership, assume: newTerm}).run(ctx, do)
}

// AcquireWitnessLeadership runs do while this replica leads, like AcquireLeadership. Only one replica leads, but work that
// do has started may still be under way when another replica leads.
func (l *Ledger) AcquireWitnessLeadership(ctx context.Context, do func(ctx context.Context) error) error {
	c := &candidate{ledger: l, leadership: witnessLeadership, assume: func(context.Context, *pgx.Conn) (int64, error) { return 1, nil }}
	return c.run(ctx, func(ctx context.Context, _ int64) error { return do(ctx) })
}

// Prune implements [broker.Election].
func (l *Ledger) Prune(ctx context.Context) error {
	return errors.Join(
		l.prune(ctx, "pruning the limits", `
			DELETE FROM rate_limits WHERE key = ANY (ARRAY(
				SELECT key FROM rate_limits WHERE tat < now() - interval '1 hour' LIMIT $1 FOR UPDATE SKIP LOCKED))`),
		l.prune(ctx, "pruning the proofs", `
			DELETE FROM dpop_seen WHERE digest = ANY (ARRAY(
				SELECT digest FROM dpop_seen WHERE until < now() - interval '1 minute' ORDER BY until LIMIT $1))`),
		l.prune(ctx, "pruning the sessions", `
			DELETE FROM sessions WHERE id = ANY (ARRAY(SELECT id FROM sessions WHERE ends < now() ORDER BY ends LIMIT $1))`),
	)
}

// prune deletes few rows with each statement, because a caller that counts against one of them waits.
func (l *Ledger) prune(ctx context.Context, doing, statement string) error {
	const few = 1000
	for {
		tag, err := l.write.Exec(ctx, statement, few)
		if err != nil || tag.RowsAffected() < few {
			return postgres.Unavailable(doing, err)
		}
	}
}

// Tidy implements [broker.Election].
func (l *Ledger) Tidy(ctx context.Context) error {
	_, err := l.write.Exec(ctx, `SELECT tidy_terms()`)
	return postgres.Unavailable("tidying the terms", err)
}

// candidate is a replica with a separate database session. It is not safe for concurrent use.
type candidate struct {
	ledger *Ledger
	// leadership is the name of the leadership to acquire. assume begins a term, with the lock held.
	leadership string
	assume     func(ctx context.Context, conn *pgx.Conn) (term int64, err error)
	conn       *pgx.Conn // nil if not connected
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
			c.ledger.log.WarnContext(ctx, "no leader can be elected", "leadership", c.leadership, "error", postgres.Unavailable("electing", err))
		}
		wait.For(ctx, probeEvery)
	}
}

// win returns a new term, or zero if another replica leads.
func (c *candidate) win(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, c.ledger.flushTimeout)
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
	if err != nil || !won {
		return 0, err
	}
	term, err := c.assume(ctx, c.conn)
	if err == nil {
		err = postgres.Warned(c.conn)
	}
	return term, err
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
	cfg := c.ledger.write.Config().ConnConfig
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
	c.ledger.leaderships.Store(c.leadership, true)
	defer c.ledger.leaderships.Delete(c.leadership)
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
		c.ledger.log.DebugContext(ctx, "lead not given back", "error", postgres.Unavailable("unlocking", err))
	}
	_ = c.conn.Close(ctx) // the session ends in any case
	c.conn = nil
}
