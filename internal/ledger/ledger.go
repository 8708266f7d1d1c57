// Package ledger keeps Brevet's record in Postgres. The record is an append-only table of entries, each with a gapless index
// and a leaf hash. The statement that appends entries also updates the current state of every request that they concern.
// Commands are entries too. An append checks what commands forbid under the lock that orders all appends, so a command holds
// on every replica once it is committed. The package also says whether a token is in force, makes every replica forget a token
// that has ended, and finds live credentials.
//
// The package must never report a record as durable before Postgres has confirmed it or a read-back has proven it. It must
// never send a record a second time when the answer to the first attempt was lost. One bad record must never make other
// records fail. An error must never contain a connection's URL or a record's contents.
package ledger

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/leader"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/ledger/search"
	"github.com/brevet-dev/brevet/internal/ledger/tlog"
	"github.com/brevet-dev/brevet/internal/tokencache"
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
	// writeConns is more than the one connection that a flush needs, because a broken connection stays counted until its
	// socket is closed.
	writeConns = 3
	// sealConns are for signing a checkpoint, for storing witnesses' cosignatures of earlier ones, and for creating the next
	// partition.
	sealConns = 3
	// liveConns are for finding credentials that have to end. That must not wait for readers either.
	liveConns  = 4
	tokenConns = 4
	// proofConns are for storing used DPoP proofs. Each proof is a separate commit.
	proofConns = 3
	// sessionConns are for the console alone. Anyone can make it look up a session, and no other work may wait for that.
	sessionConns = 3
)

// Config configures the connections of a Ledger to Postgres.
type Config struct {
	// URL is the broker's own login, a member of brevet_broker. Without a search_path it uses the schema brevet.
	URL string
	// MaxConns bounds the connections for reads; zero means 8. Writes have 3 separate connections, token lookups 4, and
	// revocations 4, so readers can delay neither the issue of a credential nor its end.
	MaxConns int32
	// AuditURL is the database for auditors' searches. Its login is a member of brevet_auditor or brevet_broker, and it may
	// be a standby. Empty means URL. AuditConns bounds the connections for searches; zero means 4. A search may take 2 s.
	AuditURL   string
	AuditConns int32
	// URLOptions apply to both URLs.
	URLOptions []migrations.URLOption
	Log        *slog.Logger
	// Tracer traces every statement; nil traces nothing.
	Tracer pgx.QueryTracer
	// FlushTimeout bounds one commit, including the read-back after a lost answer; zero means 5 s. Before that, a record
	// waits at most as long again for earlier commits.
	FlushTimeout time.Duration
	// OnSealed is called with the size of the last checkpoint when that checkpoint follows from the one before, and covers
	// either all entries or more than before. It may be nil.
	OnSealed func(size int64)
	// OnRoom is called regularly with the number of entries that still fit into the existing partitions. It may be nil.
	OnRoom func(entries int64)
	// OnFull is called with true when Postgres answers that its disk is full, and with false when the disk has room again. It may
	// be nil.
	OnFull func(full bool)
	// Now is a clock with a monotonic reading. It decides how long cached token state is valid. If it is nil, nothing is
	// cached and every token lookup goes to Postgres.
	Now func() time.Time
}

// Ledger is the record in Postgres. It is safe for concurrent use, and other replicas may write to the same schema. It embeds
// the parts that share its connections, so callers use one value.
type Ledger struct {
	*tlog.Log
	*leader.Election
	*search.Searcher

	log          *slog.Logger
	flushTimeout time.Duration
	urlOptions   []migrations.URLOption
	cursorKey    []byte
	// The pools write, seals, live, tokens, dpopProofs and sessions always connect to the primary. Checkpoints use
	// seals, so no writer ever waits for a connection because of them.
	write, seals, read, live, tokens, dpopProofs, sessions, audit *pgxpool.Pool

	// tip is the last entry that this replica has appended.
	tip atomic.Pointer[tip]

	// last is the index at which the last partition begins. crowded signals that the last partition is in use.
	last      atomic.Int64
	crowded   chan struct{}
	onRoom    func(entries int64)
	leaveRoom context.CancelFunc
	roomEnded chan struct{} // closed when keepRoom has ended

	// disk is what this replica knows of the disk of Postgres.
	disk disk

	// cache is this replica's cache of token state. It is nil while there is none; asked then requests one from keepCache.
	cache      atomic.Pointer[tokencache.Cache]
	now        func() time.Time
	asked      chan struct{}
	leaveCache context.CancelFunc
	forgotten  chan struct{} // closed when keepCache has ended
	rounds     rounds

	// urgent has the entries of people and admins: votes, quarantines, revocations, catalogues. They come before those in queue,
	// however many entries sandboxes cause.
	urgent, queue chan *job
	arrived       chan struct{} // has an item when an entry was queued; closed with the queues
	stopped       chan struct{} // closed when the flusher is done
	flushing      sync.Mutex    // held while a commit is in flight, and by the flusher until its queues are empty

	mu     sync.RWMutex // held for reading while a job is queued, so Close never sees a job half queued
	closed bool
}

// Open connects to Postgres. It returns ErrUnsafe if the database could lose what it has confirmed, and
// migrations.ErrOutdated if its schema is too old.
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
	if cfg.OnFull == nil {
		cfg.OnFull = func(bool) {}
	}
	l := &Ledger{
		disk: disk{noticed: make(chan struct{}, 1), ended: make(chan struct{}), onFull: cfg.OnFull},
		log:  cfg.Log, flushTimeout: cfg.FlushTimeout, urlOptions: cfg.URLOptions, onRoom: cfg.OnRoom,
		now: cfg.Now, asked: make(chan struct{}, 1), forgotten: make(chan struct{}),
		urgent: make(chan *job, maxQueue), queue: make(chan *job, maxQueue), arrived: make(chan struct{}, 1), stopped: make(chan struct{}), crowded: make(chan struct{}, 1), roomEnded: make(chan struct{}),
	}
	err := l.connect(ctx, cfg)
	if err == nil {
		err = l.inspect(ctx)
	}
	if err != nil {
		l.disconnect()
		return nil, err
	}
	l.Log = tlog.New(tlog.Config{Audit: l.audit, Live: l.live, Seals: l.seals, Log: cfg.Log, OnSealed: cfg.OnSealed})
	l.Election = leader.New(l.write, cfg.FlushTimeout, cfg.Log)
	l.Searcher = search.New(ctx, l.read, l.audit)
	lasting := context.WithoutCancel(ctx)
	go l.run(lasting)
	room, leaveRoom := context.WithCancel(lasting)
	l.leaveRoom = leaveRoom
	go l.keepRoom(room)
	watching, leaveDisk := context.WithCancel(lasting)
	l.disk.leave = leaveDisk
	go l.watchDisk(watching)
	caching, leaveCache := context.WithCancel(lasting)
	l.leaveCache = leaveCache
	go l.keepCache(caching)
	return l, nil
}

func (l *Ledger) connect(ctx context.Context, cfg Config) error {
	for _, p := range []struct {
		pool    **pgxpool.Pool
		conns   int32
		purpose func(*pgxpool.Config)
	}{
		{&l.write, writeConns, l.forWriting},
		{&l.read, cfg.MaxConns, forReading},
		{&l.live, liveConns, forLive},
		{&l.tokens, tokenConns, l.forTokens},
		{&l.dpopProofs, proofConns, l.forWriting},
		{&l.sessions, sessionConns, l.forWriting},
		{&l.audit, cfg.AuditConns, forAuditing},
		{&l.seals, sealConns, l.forWriting},
	} {
		at := cfg
		if p.pool == &l.audit && cfg.AuditURL != "" {
			at.URL = cfg.AuditURL
		}
		var err error
		if *p.pool, err = openPool(ctx, at, p.conns, p.purpose); err != nil {
			return err
		}
	}
	return nil
}

func (l *Ledger) disconnect() {
	for _, pool := range []*pgxpool.Pool{l.write, l.seals, l.read, l.live, l.tokens, l.dpopProofs, l.sessions, l.audit} {
		if pool != nil {
			pool.Close()
		}
	}
}

// Close flushes the queued records, refuses later ones, and disconnects.
func (l *Ledger) Close() {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.urgent)
		close(l.queue)
		close(l.arrived)
	}
	l.mu.Unlock()
	<-l.stopped
	l.leaveRoom()
	<-l.roomEnded
	l.disk.leave()
	<-l.disk.ended
	l.leaveCache()
	<-l.forgotten
	l.StopCounting()
	l.rounds.ended.Wait()
	l.disconnect()
}

// Ready returns nil if a record could be written now.
func (l *Ledger) Ready(ctx context.Context) error {
	if err := l.CheckRollback(); err != nil {
		return err
	}
	if err := l.HasRoom(ctx); err != nil {
		return err
	}
	return postgres.Unavailable("pinging postgres", l.write.Ping(ctx))
}

// CursorKey returns the key that seals list cursors: 32 secret bytes, the same for all replicas on this schema.
func (l *Ledger) CursorKey() []byte { return bytes.Clone(l.cursorKey) }

func openPool(ctx context.Context, cfg Config, conns int32, purpose func(*pgxpool.Config)) (*pgxpool.Pool, error) {
	pc, err := migrations.ParseURL(cfg.URL, cfg.URLOptions...)
	if err != nil {
		return nil, err
	}
	pc.MaxConns, pc.ConnConfig.Tracer = conns, cfg.Tracer
	purpose(pc)
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	return pool, postgres.Unavailable("opening a pool", err)
}

// forWriting sets no statement_timeout: a cancelled wait for a standby reports success (see postgres.NoteWarning).
func (l *Ledger) forWriting(pc *pgxpool.Config) {
	pc.ConnConfig.OnNotice = postgres.NoteWarning
	pc.ConnConfig.OnPgError = func(_ *pgconn.PgConn, refused *pgconn.PgError) bool {
		if postgres.Full(refused) {
			l.disk.notice()
		}
		return refused.SeverityUnlocalized != "FATAL" // as pgconn does: a fatal error closes the connection
	}
	pc.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		useRoomyArrays(conn.TypeMap())
		return l.checkPrimary(ctx, conn)
	}
	params := pc.ConnConfig.RuntimeParams
	// Planning the append takes longer than running it for one record, so the plan is kept. A kept plan must not suit small
	// tables only.
	params["plan_cache_mode"] = "force_generic_plan"
	for _, setting := range []string{"enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit"} {
		params[setting] = "off"
	}
}

func forReading(pc *pgxpool.Config) {
	// A pooled connection may have died with its server. A ping detects that before a query fails.
	pc.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return true }
	params := pc.ConnConfig.RuntimeParams
	params["statement_timeout"] = "5s"
	// A list query leaves most filters empty. One plan for all combinations would use no index.
	params["plan_cache_mode"] = "force_custom_plan"
	params["jit"] = "off" // it takes longer than it saves
	// Every query has an index. Almost no record is issued, leased and past its time at once, while each of the three
	// conditions alone holds for half of all records. Postgres cannot know that and would rather read the whole table.
	params["enable_seqscan"] = "off"
	pc.AfterConnect = readOnly
}

// readOnly makes a session read only. It is not a parameter of the connection: with target_session_attrs=read-write, the driver would
// then take every server for one that does not take writes.
func readOnly(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, `SET default_transaction_read_only = on`)
	return err
}

// forLive configures reads that never go to a standby, which may not know yet what has just been issued.
func forLive(pc *pgxpool.Config) {
	forReading(pc)
	pc.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if err := postgres.CheckDurable(ctx, conn); err != nil {
			return err
		}
		return readOnly(ctx, conn)
	}
}

// forTokens is like forLive, with separate connections: token lookups are frequent and must not delay the end of a token. A
// primary that does not hold the last end of a token may not answer lookups.
func (l *Ledger) forTokens(pc *pgxpool.Config) {
	forReading(pc)
	pc.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if err := l.checkPrimary(ctx, conn); err != nil {
			return err
		}
		return readOnly(ctx, conn)
	}
	pc.ConnConfig.RuntimeParams["plan_cache_mode"] = "force_generic_plan" // there is only one query for a token
}

// forAuditing is like forReading, with separate connections and a short timeout, because an auditor can search for anything.
func forAuditing(pc *pgxpool.Config) {
	forReading(pc)
	pc.ConnConfig.RuntimeParams["statement_timeout"] = "2s"
}

// checkPrimary runs on each new connection that writes or looks up tokens.
func (l *Ledger) checkPrimary(ctx context.Context, conn *pgx.Conn) error {
	if err := postgres.CheckDurable(ctx, conn); err != nil {
		return err
	}
	return l.checkTip(ctx, conn)
}

// inspect checks the schema, and warns if this login could rewrite the ledger.
func (l *Ledger) inspect(ctx context.Context) error {
	if err := l.write.Ping(ctx); err != nil {
		return postgres.Unavailable("connecting", err)
	}
	if err := migrations.Check(ctx, l.write); err != nil {
		return postgres.Unavailable("checking the schema", err)
	}
	if err := l.write.QueryRow(ctx, `SELECT cursor_key FROM deployment`).Scan(&l.cursorKey); err != nil {
		return postgres.Unavailable("reading the cursor key", err)
	}
	var superuser, owner bool
	err := l.write.QueryRow(ctx, `
		SELECT r.rolsuper, pg_has_role(r.oid, c.relowner, 'MEMBER')
		FROM pg_roles AS r, pg_class AS c
		WHERE r.rolname = current_user AND c.oid = 'entries'::regclass`).Scan(&superuser, &owner)
	if err != nil {
		return postgres.Unavailable("reading the login's rights", err)
	}
	if superuser || owner {
		l.log.WarnContext(ctx, "the ledger's login could rewrite the ledger: use a member of brevet_broker",
			"superuser", superuser, "owner", owner)
	}
	return nil
}
