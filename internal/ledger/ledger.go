package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/migrations"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

var (
	_ broker.Ledger          = (*Ledger)(nil)
	_ broker.LiveCredentials = (*Ledger)(nil)
	_ broker.Election        = (*Ledger)(nil)
	_ broker.Catalogues      = (*Ledger)(nil)
	_ broker.EventFeed       = (*Ledger)(nil)
	_ broker.Usage           = (*Ledger)(nil)
	_ broker.Stats           = (*Ledger)(nil)
)

const (
	defaultFlushTimeout = 5 * time.Second
	defaultMaxConns     = 8
	defaultAuditConns   = 4
	maxQueue            = 4096
	maxBatch            = 256
	// writeConns is more than the one connection that a flush needs, because one that broke stays counted until its
	// socket is closed.
	writeConns = 3
	// sealConns are for a checkpoint, for what witnesses say of those before, and for the next partition.
	sealConns = 3
	// liveConns are for finding what has to end: that must not wait for readers either.
	liveConns  = 4
	tokenConns = 4
	// proofConns are for remembering proofs, each of which is a commit of its own.
	proofConns = 3
	// sessionConns are for the sessions of the console.
	sessionConns = 3
)

// Config says which Postgres to use, and how.
type Config struct {
	// URL is the broker's own login, a member of brevet_broker. Without a search_path it means the schema brevet.
	URL string
	// MaxConns bounds the connections for reads; zero means 8. Writes have 3 of their own, those who look at tokens 4, and
	// revocations 4, so that no reader ever keeps a credential waiting, or alive.
	MaxConns int32
	// AuditURL is where auditors' searches run, as a member of brevet_auditor or brevet_broker, on a standby if wanted;
	// empty means URL. AuditConns bounds their connections; zero means 4. A search may take 2 s.
	AuditURL   string
	AuditConns int32
	Log        *slog.Logger
	// Tracer sees every statement; nil traces nothing.
	Tracer pgx.QueryTracer
	// FlushTimeout bounds one commit, including the read-back after a lost answer; zero means 5 s. A record waits as
	// long again, at most, for the commits before it.
	FlushTimeout time.Duration
	// OnSealed is called with the size of the last checkpoint whenever that was seen to follow from the one before and to
	// cover all entries, or to cover more than before. Nil is nobody.
	OnSealed func(size int64)
	// OnRoom is told now and then how many entries still fit into the partitions that there are. Nil is nobody.
	OnRoom func(entries int64)
	// Now is a clock with a monotonic reading, by which what is remembered of tokens is good. Nil remembers nothing: each
	// question about a token is asked of Postgres.
	Now func() time.Time
}

// Ledger is the record in Postgres. It is safe for concurrent use, and other replicas may write to the same schema.
type Ledger struct {
	log          *slog.Logger
	flushTimeout time.Duration
	cursorKey    []byte
	// Only write, seals, live, tokens, inclusionProofs and sessions are sure to be on the primary. Seals are for checkpoints: nobody who
	// writes may have to wait for a connection because of them.
	write, seals, read, live, tokens, inclusionProofs, sessions, audit *pgxpool.Pool

	// sealed is the last checkpoint that this replica has seen, tip the last entry that it has appended, and rollbackDetected
	// the error since the database was found to be behind them.
	sealed           atomic.Pointer[audit.Checkpoint]
	tip              atomic.Pointer[tip]
	rollbackDetected atomic.Pointer[error]
	onSealed         func(size int64)

	// last is where the last partition begins, and crowded is told when it is in use.
	last      atomic.Int64
	crowded   chan struct{}
	onRoom    func(entries int64)
	leaveRoom context.CancelFunc
	roomEnded chan struct{} // closed when nobody makes room any more

	// counting is taken by who counts uses.
	counting chan struct{}

	// memory is what this replica knows of tokens; nil when it has none, and then asked is told that it should.
	memory      atomic.Pointer[memory]
	now         func() time.Time
	asked       chan struct{}
	leaveMemory context.CancelFunc
	forgotten   chan struct{} // closed when nothing is remembered any more
	rounds      rounds

	// tallies are what was counted for those who ask for rates, and tallying is told which of them to count on.
	tallies      tallies
	tallying     chan *tally
	leaveTallies context.CancelFunc
	tallied      chan struct{} // closed when nobody counts any more

	// leaderships are the names of those that this replica holds.
	leaderships sync.Map

	queue   chan *job
	stopped chan struct{} // closed when the flusher is done

	mu     sync.RWMutex // held for reading while a job is queued, so that Close sees either none or all of it
	closed bool
}

// Open connects, and refuses a database that could lose what it has confirmed (ErrUnsafe) or whose schema is too
// old (migrations.ErrOutdated).
func Open(ctx context.Context, cfg Config) (*Ledger, error) {
	if cfg.FlushTimeout == 0 {
		cfg.FlushTimeout = defaultFlushTimeout
	}
	if cfg.MaxConns == 0 {
		cfg.MaxConns = defaultMaxConns
	}
	if cfg.AuditConns == 0 {
		cfg.AuditConns = defaultAuditConns
	}
	if cfg.OnSealed == nil {
		cfg.OnSealed = func(int64) {}
	}
	if cfg.OnRoom == nil {
		cfg.OnRoom = func(int64) {}
	}
	l := &Ledger{
		log: cfg.Log, flushTimeout: cfg.FlushTimeout, onSealed: cfg.OnSealed, onRoom: cfg.OnRoom,
		now: cfg.Now, asked: make(chan struct{}, 1), forgotten: make(chan struct{}),
		queue: make(chan *job, maxQueue), stopped: make(chan struct{}), crowded: make(chan struct{}, 1), counting: make(chan struct{}, 1), roomEnded: make(chan struct{}),
		tallying: make(chan *tally, mostTallies), tallied: make(chan struct{}),
	}
	err := l.connect(ctx, cfg)
	if err == nil {
		err = l.inspect(ctx)
	}
	if err != nil {
		l.disconnect()
		return nil, err
	}
	lasting := context.WithoutCancel(ctx)
	go l.run(lasting)
	room, leaveRoom := context.WithCancel(lasting)
	l.leaveRoom = leaveRoom
	go l.keepRoom(room)
	memory, leaveMemory := context.WithCancel(lasting)
	l.leaveMemory = leaveMemory
	go l.keepMemory(memory)
	tallying, leaveTallies := context.WithCancel(lasting)
	l.leaveTallies = leaveTallies
	go l.keepTallies(tallying)
	return l, nil
}

func (l *Ledger) connect(ctx context.Context, cfg Config) error {
	for _, p := range []struct {
		pool    **pgxpool.Pool
		purpose func(*pgxpool.Config, Config)
	}{
		{&l.write, l.forWriting},
		{&l.read, forReading},
		{&l.live, forLive},
		{&l.tokens, l.forTokens},
		{&l.inclusionProofs, l.forProofs},
		{&l.sessions, l.forSessions},
		{&l.audit, forAuditing},
		{&l.seals, l.forSealing},
	} {
		at := cfg
		if p.pool == &l.audit && cfg.AuditURL != "" {
			at.URL = cfg.AuditURL
		}
		var err error
		if *p.pool, err = openPool(ctx, at, p.purpose); err != nil {
			return err
		}
	}
	return nil
}

func (l *Ledger) disconnect() {
	for _, pool := range []*pgxpool.Pool{l.write, l.seals, l.read, l.live, l.tokens, l.inclusionProofs, l.sessions, l.audit} {
		if pool != nil {
			pool.Close()
		}
	}
}

// Close flushes what is queued, refuses what comes later, and disconnects.
func (l *Ledger) Close() {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.queue)
	}
	l.mu.Unlock()
	<-l.stopped
	l.leaveRoom()
	<-l.roomEnded
	l.leaveMemory()
	<-l.forgotten
	l.leaveTallies()
	<-l.tallied
	l.rounds.ended.Wait()
	l.disconnect()
}

// Ready tells whether a record could be written now.
func (l *Ledger) Ready(ctx context.Context) error {
	if err := l.checkRollback(); err != nil {
		return err
	}
	return unavailable("pinging postgres", l.write.Ping(ctx))
}

// CursorKey seals list cursors: 32 secret bytes, the same for all replicas on this schema.
func (l *Ledger) CursorKey() []byte { return bytes.Clone(l.cursorKey) }

func openPool(ctx context.Context, cfg Config, purpose func(*pgxpool.Config, Config)) (*pgxpool.Pool, error) {
	pc, err := migrations.ParseURL(cfg.URL)
	if err != nil {
		return nil, err
	}
	pc.ConnConfig.Tracer = cfg.Tracer
	purpose(pc, cfg)
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	return pool, unavailable("opening a pool", err)
}

// forWriting sets no statement_timeout: a cancelled wait for a standby reports success (see warned).
func (l *Ledger) forWriting(pc *pgxpool.Config, _ Config) {
	pc.MaxConns = writeConns
	pc.ConnConfig.OnNotice = warned
	pc.AfterConnect = l.checkPrimary
	params := pc.ConnConfig.RuntimeParams
	// Planning the append anew takes longer than running it for one record. A plan that is kept must not be one that
	// was good for small tables only.
	params["plan_cache_mode"] = "force_generic_plan"
	for _, setting := range []string{"enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit"} {
		params[setting] = "off"
	}
}

func (l *Ledger) forSealing(pc *pgxpool.Config, cfg Config) {
	l.forWriting(pc, cfg)
	pc.MaxConns = sealConns
}

func (l *Ledger) forProofs(pc *pgxpool.Config, cfg Config) {
	l.forWriting(pc, cfg)
	pc.MaxConns = proofConns
}

// forSessions is for the console alone: anybody can have it look for a session, and nobody else may wait for that.
func (l *Ledger) forSessions(pc *pgxpool.Config, cfg Config) {
	l.forWriting(pc, cfg)
	pc.MaxConns = sessionConns
}

func forReading(pc *pgxpool.Config, cfg Config) {
	pc.MaxConns = cfg.MaxConns
	// A reader asks on a connection that may have died with the server since; a ping finds that out before it does.
	pc.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return true }
	params := pc.ConnConfig.RuntimeParams
	params["statement_timeout"] = "5s"
	params["default_transaction_read_only"] = "on"
	// A list leaves most filters out: one plan for all of them would use no index.
	params["plan_cache_mode"] = "force_custom_plan"
	params["jit"] = "off" // it takes longer than what it would speed up
	// Each question has an index. That what is issued, in Vault and over is next to nothing, while each of the three alone is
	// half of all, is more than Postgres can know: it would rather read everything.
	params["enable_seqscan"] = "off"
}

// forLive reads like a reader, but never from a standby, which may not know yet what has just been issued.
func forLive(pc *pgxpool.Config, cfg Config) {
	forReading(pc, cfg)
	pc.MaxConns = liveConns
	pc.AfterConnect = checkDurable
}

// forTokens reads like forLive, with connections of its own: those who look at tokens are many, and must keep nobody
// from ending them. A primary that does not know of the last end of a token may not speak for it.
func (l *Ledger) forTokens(pc *pgxpool.Config, cfg Config) {
	forLive(pc, cfg)
	pc.MaxConns = tokenConns
	pc.AfterConnect = l.checkPrimary
	pc.ConnConfig.RuntimeParams["plan_cache_mode"] = "force_generic_plan" // there is one way to find a token
}

// forAuditing reads like a reader, apart from the others and for a short time, because a search can be made for anything.
func forAuditing(pc *pgxpool.Config, cfg Config) {
	forReading(pc, cfg)
	pc.MaxConns = cfg.AuditConns
	pc.ConnConfig.RuntimeParams["statement_timeout"] = "2s"
}

// warning marks a connection on which the server warned. When somebody cancels a commit's wait for its standby,
// Postgres answers success and a warning that the commit may be lost.
const warning = "brevet.warning"

func warned(conn *pgconn.PgConn, notice *pgconn.Notice) {
	if notice.SeverityUnlocalized == "WARNING" {
		conn.CustomData()[warning] = true
	}
}

var errWarned = errors.New("postgres warned about the commit")

// checkPrimary runs on each new connection for writing.
func (l *Ledger) checkPrimary(ctx context.Context, conn *pgx.Conn) error {
	if err := checkDurable(ctx, conn); err != nil {
		return err
	}
	return l.checkTip(ctx, conn)
}

// checkDurable runs on each new connection that has to be to the primary: after a failover the next server may be set differently.
func checkDurable(ctx context.Context, conn *pgx.Conn) error {
	if err := migrations.CheckServer(ctx, conn); errors.Is(err, migrations.ErrServer) {
		return fmt.Errorf("%w: %w", ErrUnsafe, err)
	} else if err != nil {
		return err
	}
	var fsync, pages, commit, standby bool
	err := conn.QueryRow(ctx, `
		SELECT current_setting('fsync') = 'on',
			current_setting('full_page_writes') = 'on', current_setting('synchronous_commit') <> 'off', pg_is_in_recovery()`,
		pgx.QueryExecModeExec).Scan(&fsync, &pages, &commit, &standby)
	switch {
	case err != nil:
		return err
	case !fsync:
		return fmt.Errorf("%w: fsync is off", ErrUnsafe)
	case !pages:
		return fmt.Errorf("%w: full_page_writes is off", ErrUnsafe)
	case !commit:
		return fmt.Errorf("%w: synchronous_commit is off", ErrUnsafe)
	case standby:
		return fmt.Errorf("%w: it is a standby", ErrUnsafe)
	}
	return nil
}

// inspect looks at the schema, and at what this login could do to it.
func (l *Ledger) inspect(ctx context.Context) error {
	if err := l.write.Ping(ctx); err != nil {
		return unavailable("connecting", err)
	}
	if err := migrations.Check(ctx, l.write); err != nil {
		return unavailable("checking the schema", err)
	}
	if err := l.write.QueryRow(ctx, `SELECT cursor_key FROM deployment`).Scan(&l.cursorKey); err != nil {
		return unavailable("reading the cursor key", err)
	}
	var superuser, owner bool
	err := l.write.QueryRow(ctx, `
		SELECT r.rolsuper, pg_has_role(r.oid, c.relowner, 'MEMBER')
		FROM pg_roles AS r, pg_class AS c
		WHERE r.rolname = current_user AND c.oid = 'entries'::regclass`).Scan(&superuser, &owner)
	if err != nil {
		return unavailable("reading the login's rights", err)
	}
	if superuser || owner {
		l.log.WarnContext(ctx, "the ledger's login could rewrite the ledger: use a member of brevet_broker",
			"superuser", superuser, "owner", owner)
	}
	return nil
}
