package egress_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/egress"
)

// T12: neither a sandbox nor a stranger that opens connections keeps another sandbox of the same listener out.
func TestConnectionsAreSharedFairly(t *testing.T) {
	w := newWorld(t)
	const other = "spiffe://acme.test/agents/b"
	second, err := w.gateway.Sandbox(egress.SandboxConfig{ID: other, Task: "other-1", Broker: w.stack.Client(t, other)})
	if err != nil {
		t.Fatal(err)
	}
	l := listen(t, "tcp", "127.0.0.1:0")
	serve(t, w.gateway, l, func(r *http.Request) (*egress.Sandbox, error) {
		if r.Host == "second" {
			return second, nil
		}
		return w.sandbox, nil
	})
	open := func(from string) net.Conn {
		conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(patience))
		return conn
	}
	call := func(from, host string) int { // it stays open
		conn := open(from)
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", host)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	n, status := 0, 403 // the call names no host, so no rule allows it
	for ; status == 403 && n < egress.MaxConns; n++ {
		status = call("127.0.0.1", "first")
	}
	if status != 429 || n < 1000 {
		t.Errorf("got %d for connection %d of a sandbox, want it refused at a share of the listener", status, n)
	}
	if status := call("127.0.0.1", "second"); status != 403 {
		t.Errorf("got %d for another sandbox, want an answer about its call", status)
	}
	for range n + 100 { // they make no call
		open("127.0.0.1")
	}
	if status := call("127.0.0.2", "second"); status != 403 {
		t.Errorf("got %d from another address than the strangers', want an answer about its call", status)
	}
}
