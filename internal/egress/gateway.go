// Package egress is the gateway for the outgoing calls of a sandbox. For each call, it requests the credential that the call
// needs from Brevet with the sandbox's identity, adds the credential, and forwards the call.
//
// It must never forward a call that matches no egress rule of the catalogue. It must never give a credential to the sandbox, to
// a host that its rule does not name, to an address that is not allowed, or to a connection without TLS. It must never follow a
// redirect, and never store a credential outside memory. It must never start a call with a credential that Brevet has not
// confirmed as alive within the last second.
package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/internal/quiet"
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
	// maxTunnels is how many tunnels a sandbox may have open at once, and maxCalls how many calls it may have in progress.
	maxTunnels = 500
	maxCalls   = 1000
	// maxConns is how many connections a listener may have open of those that have made a call, and of the others.
	maxConns = 4096
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
	entrances []io.Closer // servers and listeners
}

// New returns a gateway with a certificate authority that it makes itself. Its sandboxes trust that authority, and nothing else
// should.
func New(cfg Config) (*Gateway, error) {
	if cfg.CallsPerSecond < 1 {
		return nil, errors.New("egress: CallsPerSecond must be at least 1")
	}
	now := cfg.Now()
	self, err := newCertificate(&x509.Certificate{
		Subject: pkix.Name{CommonName: "brevet egress"}, NotBefore: now.Add(-early), NotAfter: now.Add(authorityLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil)
	if err != nil {
		return nil, fmt.Errorf("making the authority: %w", err)
	}
	g := &Gateway{
		cfg: cfg, below: quiet.ServerLog(cfg.Log),
		authority: &authority{self: self, now: cfg.Now, leaves: map[string]*tls.Certificate{}},
		tunnels:   &handoff{conns: make(chan net.Conn), done: make(chan struct{})},
	}
	g.inner = g.server(http.HandlerFunc(g.fromTunnel))
	g.inner.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		if secured, ok := conn.(*tls.Conn); ok {
			return context.WithValue(ctx, tunnelKey{}, secured.NetConn())
		}
		return ctx
	}
	go func() { _ = g.inner.Serve(g.tunnels) }() // until Close
	return g, nil
}

// CA returns the certificate of the gateway's authority, as PEM.
func (g *Gateway) CA() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: g.authority.self.Certificate[0]})
}

func (g *Gateway) server(handler http.Handler) *http.Server {
	return &http.Server{
		Handler: handler, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		DisableGeneralOptionsHandler: true, ErrorLog: g.below,
	}
}

// Serve accepts calls from a listener until ctx ends. who says which sandbox a call belongs to.
func (g *Gateway) Serve(ctx context.Context, listener net.Listener, who Caller) error {
	server := g.server(g.enter(who))
	// HTTP/1 is enough: through a proxy, each call has a connection, or a tunnel in one, so HTTP/2 would gain nothing.
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	server.Protocols = &protocols
	shares := newShares()
	server.ConnContext, server.ConnState = shares.accept, shares.changed
	g.mu.Lock()
	g.entrances = append(g.entrances, server)
	g.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Close aborts all calls, releases every credential, and sends the last reports of the calls.
func (g *Gateway) Close(ctx context.Context) {
	g.mu.Lock()
	entrances, sandboxes := g.entrances, g.sandboxes
	g.mu.Unlock()
	for _, entrance := range entrances {
		_ = entrance.Close()
	}
	_ = g.inner.Close()
	_ = g.tunnels.Close()
	for _, s := range sandboxes {
		s.close(ctx)
	}
}

// lines are the two transports to hosts. Calls over one have a connection to themselves (HTTP/1), and calls over many may share
// one (HTTP/2).
type lines struct{ one, many *quiet.Transport }

// lines returns transports that connect only to allowed addresses, over TLS, and through no other proxy. They request no
// compression, so that responses can be searched for secrets.
func (g *Gateway) lines() lines {
	transport := func(http2 bool) *quiet.Transport {
		var protocols http.Protocols
		protocols.SetHTTP1(true)
		protocols.SetHTTP2(http2)
		return quiet.New(&http.Transport{
			Protocols:              &protocols,
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
		})
	}
	return lines{one: transport(false), many: transport(true)}
}

// by returns the transport for a call that arrived over the given major version of HTTP. The call leaves over the same version
// if the host supports it: an HTTP/1 call is faster on its own connection.
func (l lines) by(major int) *quiet.Transport {
	if major >= 2 {
		return l.many
	}
	return l.one
}
