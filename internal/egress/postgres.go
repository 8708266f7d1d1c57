package egress

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/internal/safehttp"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

const (
	// startWithin bounds what comes before a session: the client's startup message and the login.
	startWithin = 30 * time.Second
	// maxSessions is how many sessions a sandbox may have open at once.
	maxSessions = 100
	// acceptPause is how long the listener accepts nothing when the system has no room for another connection.
	acceptPause = 50 * time.Millisecond
	// maxRequests is how many startup messages a client may send. It may ask for encryption first, which its own socket does
	// not need.
	maxRequests = 3
)

// session is a client's connection to a database. The gateway logs in to the database for it.
type session struct {
	gateway  *Gateway
	sandbox  *Sandbox
	client   net.Conn
	back     *pgproto3.Backend
	began    time.Time
	host     string
	database string
	match    match
	held     *held
	received int64 // bytes from the client
	sent     int64 // bytes to it
}

// ServePostgres accepts connections of the PostgreSQL protocol until ctx ends. It asks for no password, so only the one sandbox
// must be able to reach the listener.
func (g *Gateway) ServePostgres(ctx context.Context, listener net.Listener, sandbox *Sandbox) error {
	g.mu.Lock()
	g.entrances = append(g.entrances, listener)
	g.mu.Unlock()
	var open places
	return acceptAll(ctx, listener, func(conn net.Conn) {
		leave, ok := open.take(maxConns)
		if !ok {
			sandbox.recorder.refused("", methodPostgres, &refusal{code: codeTooMany})
			return
		}
		defer leave()
		s := &session{gateway: g, sandbox: sandbox, client: conn, began: g.cfg.Now()}
		s.serve(ctx)
	})
}

// acceptAll serves each connection in a goroutine, and closes it afterwards, until ctx ends.
func acceptAll(ctx context.Context, listener net.Listener, serve func(net.Conn)) error {
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	for {
		conn, err := listener.Accept()
		var busy interface{ Temporary() bool }
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case errors.As(err, &busy) && busy.Temporary(): // such as too many open files: some connections may end
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
			continue
		case err != nil:
			return fmt.Errorf("accepting a connection: %w", err)
		}
		go func() {
			defer func() { _ = conn.Close() }()
			serve(conn)
		}()
	}
}

func (s *session) serve(ctx context.Context) {
	_ = s.client.SetDeadline(time.Now().Add(startWithin)) //nolint:forbidigo // for a connection, not for a decision
	s.back = pgproto3.NewBackend(exactly{s.client}, s.client)
	start, err := s.start(ctx)
	if start == nil {
		return // not a session: the client left, or sent a cancel request
	}
	s.sandbox.recorder.begin()
	if err == nil {
		err = s.open(ctx, start)
	}
	if err != nil {
		s.refuse(err)
	}
	s.log(ctx, err)
}

// exactly reads one byte at a time, so that the Backend buffers nothing that follows the startup message.
type exactly struct{ io.Reader }

func (e exactly) Read(p []byte) (int, error) { return e.Reader.Read(p[:min(1, len(p))]) }

// start returns the client's startup message. It returns nil if the client cancels another session instead, leaves, or asks for
// encryption too often.
func (s *session) start(ctx context.Context) (*pgproto3.StartupMessage, error) {
	for range maxRequests {
		message, err := s.back.ReceiveStartupMessage()
		if err != nil {
			return nil, err
		}
		switch m := message.(type) {
		case *pgproto3.StartupMessage:
			return m, nil
		case *pgproto3.CancelRequest:
			s.cancel(ctx, cancelKey{m.ProcessID, string(m.SecretKey)})
			return nil, nil //nolint:nilnil // there is no answer to it
		default:
			if _, err := s.client.Write([]byte{'N'}); err != nil {
				return nil, err
			}
		}
	}
	return nil, errors.New("the client requested encryption too often")
}

// open logs in to the database, and relays between client and database until one of them closes or the credential ends.
func (s *session) open(ctx context.Context, start *pgproto3.StartupMessage) error {
	leave, ok := s.sandbox.sessions.take(maxSessions)
	if !ok {
		return &refusal{code: codeTooMany, after: time.Minute}
	}
	defer leave()
	user := start.Parameters["user"]
	if s.database = start.Parameters["database"]; s.database == "" {
		s.database = user
	}
	var err error
	if s.match, s.host, err = s.sandbox.rules.login(ctx, user, s.database); err != nil {
		return err
	}
	if !s.sandbox.pace.allows(s.host, s.began) {
		return &refusal{code: codeTooMany, after: time.Second}
	}
	upstream, using, done, err := s.enter(ctx, start.Parameters)
	if err != nil && s.held != nil && !s.held.alive(s.sandbox.credentials.now()) {
		// The credential has just ended, and the database may know first. Try again: Brevet says why, or issues another one.
		upstream, using, done, err = s.enter(ctx, start.Parameters)
	}
	if err != nil {
		return err
	}
	s.held.count(s.began) // one use, however many tries it took
	defer done()
	defer func() { _ = upstream.Conn.Close() }()
	key, forget := s.sandbox.cancels.add(upstream, s.host)
	defer forget()
	if err := s.welcome(start, upstream, key); err != nil {
		return nil // the client has left
	}

	// Copy bytes in both directions unchanged.
	closeBoth := func() { _, _ = s.client.Close(), upstream.Conn.Close() }
	stop := context.AfterFunc(using, closeBoth)
	defer stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n, _ := io.Copy(s.client, upstream.Conn)
		s.sent = n
		closeBoth()
	}()
	s.received, _ = io.Copy(upstream.Conn, s.client)
	closeBoth()
	<-ended
	return nil
}

// enter logs in with a credential that is alive. The returned context ends with the credential.
func (s *session) enter(ctx context.Context, params map[string]string) (*pgconn.HijackedConn, context.Context, func(), error) {
	var err error
	if s.held, err = s.sandbox.credentials.credential(ctx, s.match); err != nil {
		return nil, nil, nil, err
	}
	using, done := s.held.use(ctx)
	upstream, err := s.login(using, params)
	if err != nil {
		done()
		// The database refused the login (class 28), or ended the session at once (57P01).
		theirs, ok := errors.AsType[*pgconn.PgError](err)
		if ok && (strings.HasPrefix(theirs.Code, "28") || theirs.Code == "57P01") {
			s.held.end(errEnded)
		}
		return nil, nil, nil, err
	}
	return upstream, using, done, nil
}

// localhost is the only host that is called without TLS. It must resolve to a loopback address.
const localhost = "localhost"

// login connects to the database and logs in with the credential.
func (s *session) login(ctx context.Context, params map[string]string) (*pgconn.HijackedConn, error) {
	if _, streams := params["replication"]; streams {
		return nil, &refusal{code: codeNoRule, explanation: "egress rules do not cover replication sessions"}
	}
	cfg, err := pgconn.ParseConfig("sslmode=disable") //nolint:forbidigo // the host, TLS and SCRAM follow
	if err != nil {
		return nil, fmt.Errorf("preparing a login: %w", err)
	}
	host, port, err := net.SplitHostPort(s.host)
	if err != nil {
		return nil, fmt.Errorf("preparing a login: %w", err)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("preparing a login: %w", err)
	}
	cfg.Host, cfg.Port, cfg.Database, cfg.User, cfg.Password = host, uint16(number), s.database, s.held.user, s.held.value.Reveal()
	cfg.Fallbacks, cfg.ConnectTimeout, cfg.ValidateConnect, cfg.AfterConnect = nil, startWithin, nil, nil
	cfg.LookupFunc = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil } // the dialer resolves the name, and checks the address
	cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := safehttp.NewDialer(s.gateway.cfg.AllowPrivate, s.gateway.cfg.Resolver).DialContext(ctx, network, address)
		if err != nil || host != localhost {
			return conn, err
		}
		if at, ok := conn.RemoteAddr().(*net.TCPAddr); !ok || !at.IP.IsLoopback() {
			return nil, errors.Join(safehttp.ErrAddress, conn.Close())
		}
		return conn, nil
	}
	cfg.TLSConfig, cfg.RequireAuth = nil, "scram-sha-256" // with SCRAM, another program at that port learns no password
	if host != localhost {
		cfg.RequireAuth = ""
		cfg.TLSConfig = &tls.Config{RootCAs: s.gateway.cfg.Roots, ServerName: host, MinVersion: tls.VersionTLS12}
	}
	cfg.RuntimeParams = map[string]string{}
	for name, value := range params {
		if name != "user" && name != "database" && !strings.HasPrefix(name, "_pq_.") {
			cfg.RuntimeParams[name] = value
		}
	}
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("logging in: %w", err)
	}
	if err := conn.SyncConn(ctx); err != nil {
		return nil, errors.Join(err, conn.Close(ctx))
	}
	return conn.Hijack()
}

// welcome sends the client what the database sends after a login.
func (s *session) welcome(start *pgproto3.StartupMessage, upstream *pgconn.HijackedConn, key cancelKey) error {
	if start.ProtocolVersion > pgproto3.ProtocolVersion30 {
		s.back.Send(&pgproto3.NegotiateProtocolVersion{NewestMinorProtocol: pgproto3.ProtocolVersion30})
	}
	s.back.Send(&pgproto3.AuthenticationOk{})
	for _, name := range slices.Sorted(maps.Keys(upstream.ParameterStatuses)) {
		s.back.Send(&pgproto3.ParameterStatus{Name: name, Value: upstream.ParameterStatuses[name]})
	}
	s.back.Send(&pgproto3.BackendKeyData{ProcessID: key.pid, SecretKey: []byte(key.secret)})
	s.back.Send(&pgproto3.ReadyForQuery{TxStatus: upstream.TxStatus})
	if err := s.back.Flush(); err != nil {
		return err
	}
	return s.client.SetDeadline(time.Time{})
}

// refuse sends the error to the client as the database would.
func (s *session) refuse(err error) {
	if theirs, ok := errors.AsType[*pgconn.PgError](err); ok {
		s.back.Send(&pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: theirs.Code, Message: theirs.Message, Detail: theirs.Detail, Hint: theirs.Hint})
		_ = s.back.Flush()
		return
	}
	p, _ := problemOf(err)
	answer := &pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "28000", Message: p.Title, Detail: p.Explanation, Hint: p.Detail}
	if p.Waiting != nil {
		answer.Detail = fmt.Sprintf("The request %s waits for approval by %d of the group %s.", p.Waiting.ID, p.Waiting.Quorum, p.Waiting.Group)
	}
	if p.Status >= 500 {
		answer.Code = "57P03"
	}
	s.back.Send(answer)
	_ = s.back.Flush() // the client may have left
}

// log logs a session that is over, and counts it.
func (s *session) log(ctx context.Context, err error) {
	attrs := []slog.Attr{
		slog.String("sandbox", s.sandbox.cfg.ID), slog.String("task", s.sandbox.cfg.Task), slog.String("scope", s.match.scope.Name),
		slog.String("host", s.host), slog.String("database", s.database), slog.Int64("bytes", s.sent),
		slog.Duration("took", s.gateway.cfg.Now().Sub(s.began)),
	}
	if s.held != nil {
		attrs = append(attrs, slog.String("issuance", s.held.id))
	}
	if err != nil {
		attrs = append(attrs, slog.String("refused", err.Error()))
	}
	s.gateway.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "egress session", attrs...)
	key := callKey{host: s.host, method: methodPostgres, scope: s.match.scope.Name, refused: codeOf(err)}
	if key.scope != "" {
		key.path = s.database // a rule names it
	}
	s.sandbox.recorder.ended(endedCall{callKey: key, in: s.received, out: s.sent})
}

// cancelKey is how a client names a session in which it cancels a query. The gateway makes it, and not the database.
type cancelKey struct {
	pid    uint32
	secret string
}

// cancels are the sessions of one sandbox in which a client can cancel a query.
type cancels struct {
	mu  sync.Mutex
	all map[cancelKey]canceller
}

// canceller cancels the query of one session, over a new connection to the host.
type canceller struct {
	*pgconn.PgConn
	host string
}

// add registers a session and returns its cancel key. The key is valid until the caller calls forget.
func (c *cancels) add(upstream *pgconn.HijackedConn, host string) (key cancelKey, forget func()) {
	random := make([]byte, 8)
	_, _ = rand.Read(random) // crypto/rand never fails
	key = cancelKey{binary.BigEndian.Uint32(random), string(random[4:])}
	conn, err := pgconn.Construct(upstream)
	if err != nil {
		return key, func() {}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all[key] = canceller{conn, host}
	return key, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.all, key)
	}
}

// cancel cancels the query that runs in a session. It returns nothing, so the client can't learn whether the session exists. Each one
// connects to the host, so the limit of connections to the host holds for both.
func (s *session) cancel(ctx context.Context, key cancelKey) {
	c := &s.sandbox.cancels
	c.mu.Lock()
	to, known := c.all[key]
	c.mu.Unlock()
	if !known {
		return
	}
	if !s.sandbox.pace.allows(to.host, s.began) {
		s.sandbox.recorder.refused(to.host, methodPostgres, &refusal{code: codeTooMany})
		return
	}
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	_ = to.CancelRequest(ctx)
}
