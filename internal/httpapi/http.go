package httpapi

import (
	"context"
	"crypto/tls"
	"errors"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/quiet"
	"github.com/brevet-dev/brevet/internal/refusal"
	. "github.com/brevet-dev/brevet/openapi"
)

// Limits of one client. Calls are small and answered fast, so all limits are tight.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = 30 * time.Second
	idleTimeout       = time.Minute
	maxHeaderBytes    = 16 << 10
	// maxConnectionAge is the age at which a connection is asked to close, so that clients spread over replicas and handshakes
	// use current bundles. The identity is verified on every call regardless.
	maxConnectionAge = 15 * time.Minute
	// checkConnectionsEvery is the interval at which connections are closed whose certificate has expired, or whose authority was
	// removed.
	checkConnectionsEvery = 2 * time.Second
	// finishWithin is how long the calls in progress on such a connection may take to finish.
	finishWithin = 30 * time.Second
	// recordTimeout bounds the recording of a handshake, because its connection has no deadline by then.
	recordTimeout = 5 * time.Second
)

// connectionStart is the key of the time at which a connection began, in the context of its calls.
type connectionStart struct{}

// connections are the open connections. Those whose client certificate no longer verifies are closed.
type connections struct {
	mu   sync.Mutex
	open map[net.Conn]*openConnection
}

type openConnection struct {
	state     http.ConnState
	untrusted time.Time // since when the certificate does not verify; zero while it does
}

// note implements http.Server.ConnState.
func (c *connections) note(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateClosed, http.StateHijacked:
		delete(c.open, conn)
	case http.StateActive, http.StateIdle:
		if c.open[conn] == nil {
			c.open[conn] = &openConnection{}
		}
		c.open[conn].state = state
	case http.StateNew: // the handshake is not over, and reading the certificates would wait for it
	}
}

// CloseUntrusted closes connections whose client certificate expired, or whose authority left its bundle, until ctx ends. It
// closes idle connections at once, and others when their calls have ended. A client that opens a new connection presents its
// current SVID.
func (s *Server) CloseUntrusted(ctx context.Context) error {
	tick := time.NewTicker(checkConnectionsEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			for _, conn := range s.untrusted(s.cfg.Now()) {
				go func() { _ = conn.Close() }() // Close waits for a client that reads nothing
			}
		}
	}
}

// untrusted returns the connections to close. It verifies certificates without the lock: every call records the state of its
// connection, and would otherwise wait until thousands of certificates are verified.
func (s *Server) untrusted(now time.Time) (closing []net.Conn) {
	s.conns.mu.Lock()
	open := slices.Collect(maps.Keys(s.conns.open))
	s.conns.mu.Unlock()
	for _, conn := range open {
		secured, ok := conn.(*tls.Conn)
		if !ok {
			continue
		}
		state := secured.ConnectionState()
		if len(state.PeerCertificates) == 0 {
			continue
		}
		_, err := s.cfg.Attestor.X509(&state)
		// Without a bundle, the certificate cannot be verified. Calls get 503, and continue on this connection once the bundle is
		// available again.
		if s.conns.judge(conn, err == nil || errors.Is(err, attest.ErrBundleUnavailable), now) {
			closing = append(closing, conn)
		}
	}
	return closing
}

// judge records whether a connection's certificate verifies, and reports whether to close the connection.
func (c *connections) judge(conn net.Conn, verifies bool, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	open := c.open[conn]
	switch {
	case open == nil: // closed in the meantime
		return false
	case verifies:
		open.untrusted = time.Time{}
		return false
	case open.untrusted.IsZero():
		open.untrusted = now
	}
	return open.state == http.StateIdle || now.Sub(open.untrusted) > finishWithin
}

// HTTP returns a server for the API with every limit set. Start it with ServeTLS(listener, "", ""). tlsConfig must request client
// certificates as attest.Attestor.TLSConfig does.
func (s *Server) HTTP(tlsConfig *tls.Config) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	api := &http.Server{
		Handler:                      s.handler,
		TLSConfig:                    tlsConfig,
		Protocols:                    &protocols,
		ReadHeaderTimeout:            readHeaderTimeout,
		ReadTimeout:                  readTimeout,
		WriteTimeout:                 writeTimeout,
		IdleTimeout:                  idleTimeout,
		MaxHeaderBytes:               maxHeaderBytes,
		DisableGeneralOptionsHandler: true,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 100,
			SendPingTimeout:      20 * time.Second,
			PingTimeout:          10 * time.Second,
			WriteByteTimeout:     10 * time.Second,
		},
		// Anybody can cause errors before there is a call, so they must not fill the log.
		ErrorLog:  log.New(lowLog{s, quiet.ServerLog(s.cfg.Log)}, "", 0),
		ConnState: s.conns.note,
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
			return context.WithValue(ctx, connectionStart{}, s.cfg.Now())
		},
	}
	api.RegisterOnShutdown(func() { s.closing.Do(func() { close(s.closed) }) })
	return api
}

// Leave makes /readyz report that this replica is about to stop, and makes each response close its connection, so that callers
// reconnect through a balancer that has read /readyz. Calls are still answered. The server must be shut down later.
func (s *Server) Leave() { s.leaving.Store(true) }

// aged reports whether to close the call's connection after the response.
func (s *Server) aged(r *http.Request) bool {
	start, ok := r.Context().Value(connectionStart{}).(time.Time)
	return s.leaving.Load() || ok && s.cfg.Now().Sub(start) >= maxConnectionAge
}

// lowLog logs the errors of net/http that occur before there is a call.
type lowLog struct {
	s  *Server
	to *log.Logger
}

// Write logs a line. If the client does not have the key of its certificate, the handshake fails after the certificate was
// accepted and before there is a call. Only this line reports it.
func (l lowLog) Write(line []byte) (int, error) {
	l.to.Print(string(line))
	text, ok := strings.CutPrefix(string(line), "http: TLS handshake error from ")
	if ok && strings.Contains(text, "invalid signature by the client certificate") {
		remote, _, _ := strings.Cut(text, ": ")
		recordHandshake(l.s.cfg.Broker, l.s.cfg.Log, remote, "svid_key_missing")
	}
	return len(line), nil
}

// RecordHandshakes returns a function for attest.Config.OnRefusal. It records what never becomes a call: a client certificate
// that is not an acceptable SVID.
func RecordHandshakes(core *broker.Broker, log *slog.Logger) func(remote net.Addr, refused error) {
	return func(remote net.Addr, refused error) {
		recordHandshake(core, log, remote.String(), refusal.Reason(refused))
	}
}

func recordHandshake(core *broker.Broker, log *slog.Logger, remote, detail string) {
	ctx, cancel := context.WithTimeout(context.Background(), recordTimeout)
	defer cancel()
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		host = ""
	}
	if err := core.Refuse(ctx, broker.Refusal{
		Code: string(CodeUnauthenticated), Detail: detail, Remote: host, Operation: "tlsHandshake",
	}); err != nil {
		log.ErrorContext(ctx, "refused handshake not recorded", "error", err)
	}
}
