package devstack

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/internal/quiet"
)

// vaultRun calls the API of one run of Vault. Another user's program may listen on the port before Vault starts or after
// it has ended. Such a program gets no request, and so no key.
type vaultRun struct {
	proc *process
	port int
	// token is sent with each call unless it is empty. The calls that start Vault need no token.
	token string
}

// client uses no proxy and follows no redirect. Vault's own client would read VAULT_ADDR, VAULT_TOKEN and a dozen more
// variables from the environment, but these calls must reach this Vault and no other.
func (r vaultRun) client() *http.Client {
	return &http.Client{
		Transport:     quiet.New(&http.Transport{DisableKeepAlives: true, DialContext: r.dial}),
		Timeout:       20 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// dial checks the owner of the port after it has connected. A process binds its port once and keeps it. If this process
// owns the port now, and an earlier check found that it did, it owned the port when the connection was made.
func (r vaultRun) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	if err := r.proc.listensOn(r.port); err != nil {
		_ = conn.Close()
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	return conn, nil
}

func (r vaultRun) answers(ctx context.Context) error {
	return r.call(ctx, "GET", "sys/seal-status", nil, nil)
}

// awaitActive waits until Vault serves requests. A node with raft storage is unsealed before it is elected.
func (r vaultRun) awaitActive(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var last error
	err := poll(ctx, func() bool {
		last = r.call(ctx, "GET", "sys/health", nil, nil)
		return last == nil
	})
	if err != nil {
		return fmt.Errorf("waiting until Vault is active: %w (%w)", err, last)
	}
	return nil
}

// call sends one request to Vault's API under /v1/; in and out may be nil.
func (r vaultRun) call(ctx context.Context, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+loopback(r.port)+"/v1/"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if r.token != "" {
		req.Header.Set("X-Vault-Token", r.token)
	}
	resp, err := r.client().Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("reading Vault's answer: %w", err)
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, strings.TrimSpace(string(text)))
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(text, out)
}
