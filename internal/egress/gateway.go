package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/internal/safehttp"
)

// Limits of one connection, or of one sandbox.
const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = time.Minute
	maxHeaderBytes    = 64 << 10
	// maxBody is the largest body of a call, in bytes, and bodyPause the longest pause in it.
	maxBody   = 1 << 30
	bodyPause = 30 * time.Second
	// mostTunnels is how many tunnels a sandbox may have open at once, and mostCalls how many calls it may have in progress.
	mostTunnels = 500
	mostCalls   = 1000
	// mostConns is how many connections a listener may have open before it knows whose they are.
	mostConns = 4096
	// handshakeWithin bounds the TLS handshake with a host.
	handshakeWithin = 10 * time.Second
	// lastWords is how long the rest of a call may take once its credential has ended.
	lastWords = time.Second
)

// Config configures a Gateway.
type Config struct {
	// Roots verify the certificates of hosts. Nil means the system's roots.
	Roots *x509.CertPool
	// AllowPrivate are the networks that may be called although they are not public.
	AllowPrivate []netip.Prefix
	// Resolver looks up hosts. Nil means the system's resolver.
	Resolver *net.Resolver
	// CallsPerSecond is how many calls a sandbox may make to one host. Bursts may have twice as many.
	CallsPerSecond int
	Log            *slog.Logger
	Now            func() time.Time
}

// Gateway forwards the calls of one or more sandboxes to hosts.
type Gateway struct {
	cfg       Config
	authority *authority
	inner     *http.Server // serves the calls that come through tunnels
	tunnels   *handoff
	below     *log.Logger // connection errors below a call; at debug level, because any client can cause them

	mu        sync.Mutex
	sandboxes []*Sandbox
	endpoints []*http.Server
	listeners []net.Listener
}

// New returns a gateway with a certificate authority that it makes itself. Its sandboxes trust that authority, and nothing else
// should.
func New(cfg Config) (*Gateway, error) {
	if cfg.CallsPerSecond < 1 {
		return nil, errors.New("egress: CallsPerSecond must be at least 1")
	}
	a, err := newAuthority(cfg.Now)
	if err != nil {
		return nil, err
	}
	g := &Gateway{cfg: cfg, authority: a, tunnels: newHandoff(), below: slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug)}
	g.inner = g.server(http.HandlerFunc(g.fromTunnel))
	g.inner.ConnContext = tunnelContext
	go func() { _ = g.inner.Serve(g.tunnels) }() // until Close
	return g, nil
}

// CA returns the certificate of the gateway's authority, as PEM.
func (g *Gateway) CA() []byte { return g.authority.pem }

func (g *Gateway) server(handler http.Handler) *http.Server {
	return &http.Server{
		Handler: handler, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		DisableGeneralOptionsHandler: true, ErrorLog: g.below,
	}
}

// Serve accepts calls from a listener until ctx ends. who says which sandbox a call belongs to.
func (g *Gateway) Serve(ctx context.Context, listener net.Listener, who Caller) error {
	server := g.server(&entrance{g, who})
	// HTTP/1 is enough: through a proxy, each call has a connection, or a tunnel in one, so HTTP/2 would gain nothing.
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	server.Protocols = &protocols
	server.ConnState = crowded()
	g.mu.Lock()
	g.endpoints = append(g.endpoints, server)
	g.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// crowded closes connections beyond mostConns. It is a ConnState hook and not a listener, because http.Server looks for TLS in
// the type of the connections that a listener accepts.
func crowded() func(net.Conn, http.ConnState) {
	var open atomic.Int64
	return func(conn net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			if open.Add(1) > mostConns {
				_ = conn.Close()
			}
		case http.StateHijacked, http.StateClosed: // tunnels and WebSockets count against a sandbox's own limits
			open.Add(-1)
		case http.StateActive, http.StateIdle:
		}
	}
}

// Close aborts all calls, and releases every credential.
func (g *Gateway) Close(ctx context.Context) {
	g.mu.Lock()
	servers, listeners, sandboxes := g.endpoints, g.listeners, g.sandboxes
	g.mu.Unlock()
	for _, listener := range listeners {
		_ = listener.Close()
	}
	for _, server := range servers {
		_ = server.Close()
	}
	for _, s := range sandboxes {
		s.close(ctx)
	}
	_ = g.inner.Close()
	_ = g.tunnels.Close()
}

// lines are the two transports to hosts. Calls over one have a connection to themselves (HTTP/1), and calls over many may share
// one (HTTP/2).
type lines struct{ one, many *http.Transport }

func (g *Gateway) lines() lines {
	var one, many http.Protocols
	one.SetHTTP1(true)
	many.SetHTTP1(true)
	many.SetHTTP2(true)
	return lines{g.transport(&one), g.transport(&many)}
}

// by returns the transport for a call that arrived over the given major version of HTTP. The call leaves over the same version
// if the host supports it: an HTTP/1 call is faster on its own connection.
func (l lines) by(major int) *http.Transport {
	if major >= 2 {
		return l.many
	}
	return l.one
}

// transport returns a transport that connects only to allowed addresses, over TLS, and through no other proxy. It requests no
// compression, so that responses can be searched for secrets.
func (g *Gateway) transport(protocols *http.Protocols) *http.Transport {
	return &http.Transport{
		Protocols:              protocols,
		DialContext:            safehttp.NewDialer(g.cfg.AllowPrivate, g.cfg.Resolver).DialContext,
		TLSClientConfig:        &tls.Config{RootCAs: g.cfg.Roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    handshakeWithin,
		DisableCompression:     true,
		MaxIdleConns:           256,
		MaxIdleConnsPerHost:    64,
		IdleConnTimeout:        time.Minute,
		MaxResponseHeaderBytes: maxHeaderBytes,
		WriteBufferSize:        32 << 10,
		ReadBufferSize:         32 << 10,
	}
}
