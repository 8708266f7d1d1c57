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

// What one connection may take of the gateway.
const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = time.Minute
	maxHeaderBytes    = 64 << 10
	// maxBody is the largest body of a call, in bytes, and bodyPause the longest pause in it.
	maxBody   = 1 << 30
	bodyPause = 30 * time.Second
	// mostTunnels is how many a sandbox may have open at a time, and mostCalls how many calls it may have under way.
	mostTunnels = 500
	mostCalls   = 1000
	// mostConns is how many connections a listener may have open, before anything is known of them.
	mostConns = 4096
	// handshakeWithin is how long a host may take to prove who it is.
	handshakeWithin = 10 * time.Second
	// lastWords is how long an answer may take that is broken off.
	lastWords = time.Second
)

// Config is what a Gateway works with.
type Config struct {
	// Roots vouch for the hosts that are called; nil is the system's.
	Roots *x509.CertPool
	// AllowPrivate are networks that may be called though they are not public.
	AllowPrivate []netip.Prefix
	// Resolver looks up hosts; nil is the system's.
	Resolver *net.Resolver
	// CallsPerSecond is how many calls a sandbox may make to one host, and twice as many in one go.
	CallsPerSecond int
	Log            *slog.Logger
	Now            func() time.Time
}

// Gateway is the way out for one or more sandboxes.
type Gateway struct {
	cfg       Config
	authority *authority
	inner     *http.Server // what comes through tunnels
	tunnels   *handoff
	below     *log.Logger // what goes wrong below a call, which is for anyone to cause at will

	mu        sync.Mutex
	sandboxes []*Sandbox
	endpoints []*http.Server
	listeners []net.Listener
}

// New returns a gateway with an authority of its own, for certificates that its sandboxes trust and nobody else should.
func New(cfg Config) (*Gateway, error) {
	if cfg.CallsPerSecond < 1 {
		return nil, errors.New("egress: a sandbox has to be able to make a call")
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

// CA is the certificate of the gateway's authority, as PEM.
func (g *Gateway) CA() []byte { return g.authority.pem }

func (g *Gateway) server(handler http.Handler) *http.Server {
	return &http.Server{
		Handler: handler, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		DisableGeneralOptionsHandler: true, ErrorLog: g.below,
	}
}

// Serve takes calls from a listener until ctx ends. who tells whose they are.
func (g *Gateway) Serve(ctx context.Context, listener net.Listener, who Caller) error {
	server := g.server(&entrance{g, who})
	// Each call through a proxy takes a connection, or a tunnel in one: there is nothing to gain by HTTP/2.
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

// crowded closes connections beyond mostConns. It is no listener, since servers look for TLS in what those accept.
func crowded() func(net.Conn, http.ConnState) {
	var open atomic.Int64
	return func(conn net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			if open.Add(1) > mostConns {
				_ = conn.Close()
			}
		case http.StateHijacked, http.StateClosed: // tunnels and WebSockets are a sandbox's, which has its own bounds
			open.Add(-1)
		case http.StateActive, http.StateIdle:
		}
	}
}

// Close ends all calls, and releases every credential.
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

// lines are ways to call hosts: for calls that have a connection to themselves, and for those that share one.
type lines struct{ one, many *http.Transport }

func (g *Gateway) lines() lines {
	var one, many http.Protocols
	one.SetHTTP1(true)
	many.SetHTTP1(true)
	many.SetHTTP2(true)
	return lines{g.transport(&one), g.transport(&many)}
}

// by is for calls that came by a version of HTTP, and go on by it where the host can: what came by itself goes faster so.
func (l lines) by(major int) *http.Transport {
	if major >= 2 {
		return l.many
	}
	return l.one
}

// transport calls hosts: at addresses that are open, over TLS, by no other proxy. It asks for no compression, so that what
// comes back can be searched for secrets.
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
