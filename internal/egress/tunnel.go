package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

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

type tunnelKey struct{}

// tunnelContext stores the tunnel in the context of its calls.
func tunnelContext(ctx context.Context, conn net.Conn) context.Context {
	if secured, ok := conn.(*tls.Conn); ok {
		return context.WithValue(ctx, tunnelKey{}, secured.NetConn())
	}
	return ctx
}

// open takes over the connection of a CONNECT request.
func (g *Gateway) open(w http.ResponseWriter, t *tunnel) error {
	conn, early, err := http.NewResponseController(w).Hijack()
	if err != nil {
		t.closed()
		return err
	}
	t.Conn, t.early = conn, early.Reader
	_ = t.SetDeadline(time.Time{})
	if _, err := t.Write([]byte("HTTP/1.1 200 Connection established\r\n\r\n")); err != nil {
		return errors.Join(err, t.Close())
	}
	if !g.tunnels.give(tls.Server(t, &tls.Config{GetConfigForClient: g.certify, MinVersion: tls.VersionTLS12})) {
		return t.Close()
	}
	return nil
}

var errServerName = errors.New("the TLS server name differs from the host that the tunnel was opened for")

// certify returns the certificate for the host of the tunnel. It fails if the client asks for another host.
func (g *Gateway) certify(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	t, ok := hello.Conn.(*tunnel)
	if !ok {
		return nil, errServerName
	}
	host, _, err := net.SplitHostPort(t.target)
	if err != nil || !strings.EqualFold(hello.ServerName, host) {
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

func newHandoff() *handoff { return &handoff{conns: make(chan net.Conn), done: make(chan struct{})} }

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
