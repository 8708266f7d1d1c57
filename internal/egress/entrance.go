package egress

import (
	"bufio"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/internal/ratelimit"
)

// maxTarget is the greatest length of a host name with a port.
const maxTarget = 253 + len(":65535")

// enter handles incoming calls, which arrive as to a proxy or by a base URL.
func (g *Gateway) enter(who Caller) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		sandbox, err := who(r)
		switch {
		case errors.Is(err, errCaller): // ask for the password
			status, field := http.StatusProxyAuthRequired, "Proxy-Authenticate"
			if r.Method != http.MethodConnect && !r.URL.IsAbs() {
				status, field = http.StatusUnauthorized, "WWW-Authenticate"
			}
			w.Header().Set(field, `Basic realm="brevet egress"`)
			w.WriteHeader(status)
		case err != nil:
			g.cfg.Log.WarnContext(r.Context(), "egress caller not identified", "error", err)
			refuse(w, &refusal{code: codeCaller})
		case !belongs(r, sandbox):
			w.Header().Set("Connection", "close")
			sandbox.refuse(w, r, r.Host, &refusal{code: codeTooMany, after: time.Second})
		case r.Method == http.MethodConnect:
			g.connect(w, r, sandbox, func() (*Sandbox, error) { return who(r) })

		// Clients name the host in the request line of a call to a proxy if the URL is not https.
		case r.URL.IsAbs() && r.URL.Scheme != "https":
			sandbox.refuse(w, r, r.URL.Host, &refusal{code: codePlaintext})
		case r.URL.IsAbs() && r.URL.User != nil:
			sandbox.refuse(w, r, r.URL.Host, &refusal{code: codeMisdirected})
		case r.URL.IsAbs():
			g.pass(w, r, sandbox, r.URL)

		// The path begins with the host, for programs that accept a base URL but no proxy.
		default:
			host, path, found := strings.Cut(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
			target, err := url.Parse("https://" + host + "/" + path)
			if !found || err != nil || target.User != nil || target.Host != host {
				unclear := &refusal{code: codeNoRule, explanation: "the path does not begin with a host: a base URL is the gateway's URL, a slash and the host"}
				if r.RequestURI == "/" { // Endpoint.Check, which calls no host
					refuse(w, unclear)
				} else {
					sandbox.refuse(w, r, host, unclear)
				}
				return
			}
			target.RawQuery = r.URL.RawQuery
			g.pass(w, r, sandbox, target)
		}
	}
}

// shares are the connections of a listener. Each sandbox may have a fair share of them, and so may each address of the connections that
// have not made a call yet. So no sandbox and no stranger keeps the others out.
type shares struct {
	sandboxes, strangers *ratelimit.FairSemaphore
	visits               sync.Map // from net.Conn to *visit
}

func newShares() *shares {
	return &shares{sandboxes: ratelimit.NewFairSemaphore(maxConns, maxConns), strangers: ratelimit.NewFairSemaphore(maxConns, maxConns)}
}

// visit is one connection. http.Server passes it to no two calls at once, but may close it at any time.
type visit struct {
	of      *shares
	mu      sync.Mutex
	sandbox *Sandbox // whose the connection is, after its first call
	leave   func()   // nil if it is closed
}

type visitKey struct{}

// accept takes a place for a new connection, or closes it.
func (s *shares) accept(ctx context.Context, conn net.Conn) context.Context {
	address, _, _ := net.SplitHostPort(conn.RemoteAddr().String()) // of a Unix socket: empty
	leave, err := s.strangers.Enter(address, "")
	if err != nil {
		_ = conn.Close()
	}
	v := &visit{of: s, leave: leave}
	s.visits.Store(conn, v)
	return context.WithValue(ctx, visitKey{}, v)
}

// changed leaves the place of a connection that has ended. Tunnels and WebSockets count against a sandbox's own limits.
func (s *shares) changed(conn net.Conn, state http.ConnState) {
	if state != http.StateHijacked && state != http.StateClosed {
		return
	}
	if v, ok := s.visits.LoadAndDelete(conn); ok {
		v.(*visit).end() //nolint:forcetypeassert // it holds nothing else
	}
}

func (v *visit) end() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.leave != nil {
		v.leave()
		v.leave = nil
	}
}

// belongs counts the connection of a call as one of the sandbox. It returns false if the sandbox has too many.
func belongs(r *http.Request, sandbox *Sandbox) bool {
	v, ok := r.Context().Value(visitKey{}).(*visit)
	if !ok {
		return false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.leave == nil || v.sandbox == sandbox {
		return v.leave != nil
	}
	leave, err := v.of.sandboxes.Enter(sandbox.cfg.ID, "")
	if err != nil {
		return false
	}
	v.leave()
	v.sandbox, v.leave = sandbox, leave
	return true
}

// connect opens a tunnel that ends at the gateway itself. The gateway connects to no host until a call comes through the
// tunnel.
func (g *Gateway) connect(w http.ResponseWriter, r *http.Request, sandbox *Sandbox, whose func() (*Sandbox, error)) {
	target := strings.ToLower(r.Host)
	host, port, err := net.SplitHostPort(target)
	if err != nil || host == "" || port == "" || len(target) > maxTarget {
		sandbox.refuse(w, r, target, &refusal{code: codeMisdirected})
		return
	}
	if _, err := netip.ParseAddr(host); err == nil {
		sandbox.refuse(w, r, target, &refusal{code: codeNoRule, explanation: "egress rules match host names, not IP addresses"})
		return
	}
	leave, ok := sandbox.tunnels.take(maxTunnels)
	if !ok {
		sandbox.refuse(w, r, target, &refusal{code: codeTooMany, after: time.Minute})
		return
	}
	conn, early, err := http.NewResponseController(w).Hijack()
	if err != nil {
		leave()
		g.cfg.Log.DebugContext(r.Context(), "opening a tunnel", "error", err)
		return
	}
	t := &tunnel{Conn: conn, early: early.Reader, whose: whose, target: target, closed: leave}
	_ = t.SetDeadline(time.Time{})
	_, err = t.Write([]byte("HTTP/1.1 200 Connection established\r\n\r\n"))
	if err == nil && g.tunnels.give(tls.Server(t, &tls.Config{GetConfigForClient: g.certify, MinVersion: tls.VersionTLS12})) {
		return
	}
	if err = errors.Join(err, t.Close()); err != nil {
		g.cfg.Log.DebugContext(r.Context(), "opening a tunnel", "error", err)
	}
}

// fromTunnel handles a call from a tunnel. It refuses a call for another host than the one that the tunnel was opened for.
func (g *Gateway) fromTunnel(w http.ResponseWriter, r *http.Request) {
	t, ok := r.Context().Value(tunnelKey{}).(*tunnel)
	if !ok {
		refuse(w, &refusal{code: codeMisdirected})
		return
	}
	sandbox, err := t.whose()
	if err != nil {
		refuse(w, &refusal{code: codeCaller, cause: err})
		return
	}
	if r.Method == http.MethodConnect || r.URL.IsAbs() || origin(r.Host) != origin(t.target) {
		sandbox.refuse(w, r, r.Host, &refusal{code: codeMisdirected})
		return
	}
	target := *r.URL
	target.Scheme, target.Host = "https", origin(t.target)
	g.pass(w, r, sandbox, &target)
}

// origin returns a host and port in canonical form: lower case, without ":443".
func origin(host string) string { return strings.TrimSuffix(strings.ToLower(host), ":443") }

// tunnel is a connection that a sandbox opened with CONNECT. TLS ends at the gateway, and not at the host.
type tunnel struct {
	net.Conn
	early  *bufio.Reader            // bytes that arrived with the CONNECT request
	whose  func() (*Sandbox, error) // checked again for each call
	target string                   // host:port, in lower case
	closed func()                   // called when the tunnel closes
}

// Close implements [net.Conn].
func (t *tunnel) Close() error {
	t.closed()
	return t.Conn.Close()
}

func (t *tunnel) Read(p []byte) (int, error) {
	if t.early.Buffered() > 0 {
		return t.early.Read(p)
	}
	return t.Conn.Read(p)
}

// tunnelKey is the key of the tunnel in the context of its calls.
type tunnelKey struct{}

var errServerName = errors.New("the TLS server name differs from the host that the tunnel was opened for")

// certify returns the certificate for the host of the tunnel. It fails if the client asks for another host.
func (g *Gateway) certify(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	t, ok := hello.Conn.(*tunnel)
	if !ok {
		return nil, errServerName
	}
	host, _, err := net.SplitHostPort(t.target)
	if err != nil || !strings.EqualFold(hello.ServerName, host) {
		if sandbox, err := t.whose(); err == nil {
			sandbox.recorder.refused(cmp.Or(hello.ServerName, t.target), http.MethodConnect, &refusal{code: codeMisdirected})
		}
		return nil, errServerName
	}
	leaf, err := g.authority.leaf(host)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		Certificates: []tls.Certificate{*leaf}, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12,
		SessionTicketsDisabled: true, // each connection must name its host
	}, nil
}

// handoff is a listener that accepts the connections that give passes to it.
type handoff struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (h *handoff) give(conn net.Conn) bool {
	select {
	case h.conns <- conn:
		return true
	case <-h.done:
		return false
	}
}

// Accept implements [net.Listener].
func (h *handoff) Accept() (net.Conn, error) {
	select {
	case conn := <-h.conns:
		return conn, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (h *handoff) Close() error {
	h.once.Do(func() { close(h.done) })
	return nil
}

// Addr implements [net.Listener].
func (h *handoff) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

const (
	authorityLife = 90 * 24 * time.Hour
	leafLife      = 24 * time.Hour
	// early backdates certificates, for sandboxes whose clocks are behind.
	early = 5 * time.Minute
	// maxLeaves bounds memory: the catalogue and its wildcards decide which names exist.
	maxLeaves = 1000
)

// authority signs the certificates that sandboxes see. Its key exists only in memory, for as long as the gateway runs.
type authority struct {
	self *tls.Certificate
	now  func() time.Time

	mu     sync.Mutex
	leaves map[string]*tls.Certificate
}

// leaf returns the certificate for a host. It caches each certificate for half of its life.
func (a *authority) leaf(host string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	if kept := a.leaves[host]; kept != nil && now.Before(kept.Leaf.NotAfter.Add(-leafLife/2)) {
		return kept, nil
	}
	made, err := newCertificate(&x509.Certificate{
		DNSNames: []string{host}, NotBefore: now.Add(-early), NotAfter: now.Add(leafLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, a.self)
	if err != nil {
		return nil, err
	}
	if len(a.leaves) >= maxLeaves {
		clear(a.leaves)
	}
	a.leaves[host] = made
	return made, nil
}

// newCertificate returns a certificate with a new key and a random serial number. It signs itself if signer is nil.
func newCertificate(template *x509.Certificate, signer *tls.Certificate) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	if signer == nil {
		signer = &tls.Certificate{PrivateKey: key, Leaf: template}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, signer.Leaf, key.Public(), signer.PrivateKey)
	if err != nil {
		return nil, fmt.Errorf("making a certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("making a certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}
