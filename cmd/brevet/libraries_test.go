package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/brevet-dev/brevet/internal/app"
)

var listening = regexp.MustCompile(`"msg":"serving","address":"([^"]+)"`)

// leftOut is in what the program prints instead of what a library reports.
const leftOut = "Brevet leaves out the text"

// noisy makes net/http print everything that it can print.
const noisy = "GODEBUG=http2debug=2"

// overflowing is a server that sends more than its responses: the call with its headers, and the response again.
type overflowing struct {
	mu      sync.Mutex
	silent  bool
	secrets []string // what it got in the headers that carry credentials
}

// echo returns what the server sends after a response.
func (o *overflowing) echo(r *http.Request, answer []byte) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.silent {
		return nil
	}
	for _, name := range []string{"Authorization", "X-Vault-Token"} {
		if value := strings.TrimPrefix(r.Header.Get(name), "Bearer "); value != "" && !slices.Contains(o.secrets, value) {
			o.secrets = append(o.secrets, value)
		}
	}
	var text bytes.Buffer
	_ = r.Header.Write(&text) // a buffer takes all
	return append(text.Bytes(), answer...)
}

func (o *overflowing) hush(silent bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.silent = silent
}

// serve answers the calls of each connection over HTTP/1.1 until the listener closes.
func (o *overflowing) serve(t *testing.T, listener net.Listener, handler http.Handler) {
	t.Helper()
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				for in := bufio.NewReader(conn); ; {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					recorded := httptest.NewRecorder()
					handler.ServeHTTP(recorded, r)
					_, _ = io.Copy(io.Discard, r.Body)
					body := recorded.Body.Bytes()
					resp := recorded.Result()
					resp.ContentLength, resp.TransferEncoding = int64(len(body)), nil
					head, err := httputil.DumpResponse(resp, false)
					if err == nil {
						_, err = conn.Write(slices.Concat(head, body, o.echo(r, body)))
					}
					_ = resp.Body.Close()
					if err != nil {
						return
					}
				}
			}()
		}
	}()
}

// shownBy fails if a program has printed what a server got, and returns how many secrets there are.
func (o *overflowing) shownBy(t *testing.T, printed string) int {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, secret := range o.secrets {
		if strings.Contains(printed, secret) {
			t.Errorf("a secret is in %s", printed)
		}
	}
	return len(o.secrets)
}

// I9 and T10: a broker prints nothing of what Vault sends, also if Vault sends more than its answer, or if net/http prints all
// headers.
func TestBrokerPrintsNothingThatVaultSends(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	vault, err := url.Parse(d.Vault.Addr())
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	liar := &overflowing{silent: true}
	liar.serve(t, listener, &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(vault) }})
	config := d.configure(t, func(cfg *app.Config) {
		cfg.Listen, cfg.Console, cfg.Vault.Address = "127.0.0.1:0", nil, "http://"+listener.Addr().String()
		cfg.Hosts = append(cfg.Hosts, "localhost")
	})
	broker := launch(t, []string{noisy}, "serve", "--config", config)
	broker.waitFor(t, broker.err, `"msg":"serving"`)
	_, port, _ := strings.Cut(listening.FindStringSubmatch(broker.err.String())[1], ":")
	liar.hush(false)
	var tokens []string
	for n := range 5 {
		liar.hush(n%2 == 1) // a call can get what was sent after the last answer
		got := brevet(t, append(d.env("research"), noisy), "request", "github.issues.read", "repo=acme/api", "--task", fmt.Sprint("t-noise-", n), "--server", "https://localhost:"+port)
		if token := strings.TrimSpace(got.out); got.code == 0 {
			tokens = append(tokens, token)
			if strings.Contains(got.err, token) {
				t.Errorf("the token is in %s", got.err)
			}
		}
		if strings.Contains(got.err, "http2:") {
			t.Errorf("got %s", got.err)
		}
	}
	within(t, patience, "something was left out", func() bool { return strings.Contains(broker.err.String(), leftOut) })
	broker.signal(t, syscall.SIGTERM)
	printed := broker.finish(t).err
	if n := liar.shownBy(t, printed); n == 0 || len(tokens) == 0 {
		t.Fatalf("the server got %d secrets, and there are %d tokens: nothing is shown", n, len(tokens))
	}
	for _, token := range tokens {
		if strings.Contains(printed, token) {
			t.Errorf("a token is in %s", printed)
		}
	}
	if strings.Contains(printed, "X-Vault-Token") || strings.Contains(printed, "Unsolicited") || strings.Contains(printed, "http2:") {
		t.Errorf("got %s", printed)
	}
}

// I9 and T10: a program that shares its standard error with the gateway reads there nothing of what a host sends after a response.
func TestGatewayPrintsNothingThatHostsSend(t *testing.T) {
	t.Parallel()
	host, listener := newSecuredHost(t)
	liar := &overflowing{}
	liar.serve(t, listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	s := startBriefWith(t, host.brief(freePort(t)))
	env := append(slices.Clone(s.env), noisy)
	call := curl + "https://" + host.name + "/repos/acme/api; "
	got := brevet(t, env, "exec", "--egress", "--host-ca", host.ca, "--allow-private", "127.0.0.1/32", "--task", "t-noise", "--", "sh", "-c", strings.Repeat(call, 3))
	got.want(t, 0, "204")
	if n := liar.shownBy(t, got.out+got.err); n == 0 {
		t.Fatal("the host got no secret: nothing is shown")
	}
	if !strings.Contains(got.err, leftOut) || strings.Contains(got.err, "Authorization") || strings.Contains(got.err, "http2:") {
		t.Errorf("got %s", got.err)
	}
	s.stop(t, syscall.SIGTERM)
}
