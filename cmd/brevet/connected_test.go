package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// latest verifies with the bundle that a trust domain publishes now.
type latest struct{ *devstack.Issuer }

func (l latest) GetX509BundleForTrustDomain(td spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	return l.Bundle().GetX509BundleForTrustDomain(td)
}

// caller is a workload that keeps one connection open.
type caller struct {
	name   string
	url    string
	http   *http.Client
	bearer string // a JWT-SVID; empty over mutual TLS
	conn   net.Conn
	shown  *x509.Certificate // certificate of the broker
}

// reply is the response to a caller.
type reply struct {
	status     int
	retryAfter string
	server     string // the serial number of the server's certificate
	text       string
	code       string // of a problem document
	ID, Token  string // of a credential
}

// soon is how long a change of trust may take to have effect. It takes a second or two on an otherwise idle machine.
const soon = patience

const connectedAsk = `{"scope":"probe.read","task":"t-connected"}`

// call sends one call. It fails if the call does not use the connection of the call before.
func (c *caller) call(ctx context.Context, method, path, kind, body string) (reply, error) {
	var got httptrace.GotConnInfo
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { got = info }})
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	req.Header.Set("Content-Type", kind)
	if c.bearer != "" {
		req.Header.Set("Authorization", "Bearer "+c.bearer)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return reply{}, err
	}
	text, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return reply{}, err
	}
	if c.conn != nil && (got.Conn != c.conn || !got.Reused) {
		return reply{}, fmt.Errorf("%s: answered %d on another connection, want the one that was open", c.name, resp.StatusCode)
	}
	c.conn, c.shown = got.Conn, resp.TLS.PeerCertificates[0]
	r := reply{
		status: resp.StatusCode, retryAfter: resp.Header.Get("Retry-After"), text: string(text), server: c.shown.SerialNumber.String(),
	}
	var read struct{ Code, ID, Token string }
	if len(text) > 0 {
		err = json.Unmarshal(text, &read)
	}
	r.code, r.ID, r.Token = read.Code, read.ID, read.Token
	return r, err
}

// ask requests a credential.
func (c *caller) ask(ctx context.Context) (reply, error) {
	return c.call(ctx, http.MethodPost, "/v1/tokens", "application/json", connectedAsk)
}

// served requires one credential over the open connection.
func (c *caller) served(t *testing.T) reply {
	t.Helper()
	got, err := c.ask(t.Context())
	if err != nil || got.status != http.StatusCreated {
		t.Errorf("%s: got %d %s, %v, want a credential", c.name, got.status, got.text, err)
	}
	return got
}

// servedSoon requires a credential within the limit, over the open connection if there is one.
func (c *caller) servedSoon(t *testing.T, limit time.Duration) {
	t.Helper()
	within(t, limit, c.name+" is served", func() bool {
		got, err := c.ask(t.Context())
		return err == nil && got.status == http.StatusCreated
	})
}

// refusedSoon requires calls over the open connection to be refused with this status soon, and from then on. The server
// closes the connection after a 401, so a caller whose certificate is refused cannot connect again.
func (c *caller) refusedSoon(t *testing.T, status int, code string) {
	t.Helper()
	closed := func(err error) bool {
		return status == http.StatusUnauthorized && slices.ContainsFunc([]string{
			"tls: bad certificate", "connection reset by peer", "broken pipe", "EOF", "client conn could not be established",
		}, func(text string) bool { return strings.Contains(err.Error(), text) })
	}
	var got reply
	var shutOut bool
	within(t, soon, fmt.Sprintf("%s gets %d", c.name, status), func() (done bool) {
		var err error
		if got, err = c.ask(t.Context()); err != nil && !closed(err) {
			t.Fatalf("%s: %v", c.name, err)
		}
		shutOut = err != nil
		return shutOut || got.status == status
	})
	if shutOut { // the server closed the connection before the call arrived
		return
	}
	again, err := c.ask(t.Context())
	if err != nil && closed(err) {
		again, err = got, nil
	}
	if err != nil || got.code != code || again.status != status || again.code != code || again.Token != "" {
		t.Errorf("%s: got %s, then %s, %v, want %d %s both times", c.name, got.text, again.text, err, status, code)
	}
	if (status == http.StatusServiceUnavailable) != (got.retryAfter != "") {
		t.Errorf("%s: got Retry-After %q with %d", c.name, got.retryAfter, status)
	}
}

// connect returns a caller whose connection opens with its first call, and stays open for longer than a part of a test.
func (f *federation) connect(h2 bool, config *tls.Config) *caller {
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: h2, MaxConnsPerHost: 1}
	f.t.Cleanup(transport.CloseIdleConnections)
	return &caller{url: f.cfg.Issuer, http: &http.Client{Transport: transport, Timeout: patience}}
}

// proof holds the credentials with which one workload can authenticate.
type proof struct {
	x509 *x509svid.SVID
	jwt  string
}

// prove issues a proof with the current authorities of the trust domain.
func (f *federation) prove(t *testing.T, issuer *devstack.Issuer) proof {
	t.Helper()
	id := spiffeid.RequireFromPath(issuer.TrustDomain(), "/agents/one")
	svid, err := issuer.X509SVID(id)
	if err != nil {
		t.Fatal(err)
	}
	token, err := issuer.JWTSVID(id, f.cfg.Issuer)
	if err != nil {
		t.Fatal(err)
	}
	return proof{svid, token}
}

// callers returns all kinds of callers with a proof: over mutual TLS in both versions of HTTP, and with a JWT-SVID. None
// has called yet.
func (f *federation) callers(p proof) []*caller {
	brevet := tlsconfig.AuthorizeID(spiffeid.RequireFromPath(f.issuer.TrustDomain(), "/brevet"))
	mutual := tlsconfig.MTLSClientConfig(p.x509, latest{f.issuer}, brevet)
	h2, h1 := f.connect(true, mutual), f.connect(false, mutual.Clone())
	bearer := f.connect(true, tlsconfig.TLSClientConfig(latest{f.issuer}, brevet))
	bearer.bearer = p.jwt
	domain := p.x509.ID.TrustDomain().Name()
	h2.name, h1.name, bearer.name = domain+" over mutual TLS", domain+" over mutual TLS in HTTP/1.1", domain+" with a JWT-SVID"
	return []*caller{h2, h1, bearer}
}

// open returns callers whose connections are open.
func (f *federation) open(t *testing.T, p proof) []*caller {
	t.Helper()
	all := f.callers(p)
	allServed(t, all)
	return all
}

func allServed(t *testing.T, all []*caller) {
	t.Helper()
	for _, c := range all {
		c.served(t)
	}
}

// locked requires handshakes to fail.
func (f *federation) locked(t *testing.T, p proof) {
	t.Helper()
	for _, c := range f.callers(p)[:2] {
		if got, err := c.ask(t.Context()); err == nil {
			t.Errorf("%s: got %d %s, want the handshake to fail", c.name, got.status, got.text)
		}
	}
}

// shutOut requires new connections to be refused for a proof whose authority is unknown.
func (f *federation) shutOut(t *testing.T, p proof) {
	t.Helper()
	f.locked(t, p)
	bearer := f.callers(p)[2]
	if got, err := bearer.ask(t.Context()); err != nil || got.status != http.StatusUnauthorized {
		t.Errorf("%s: got %d %s, %v, want 401", bearer.name, got.status, got.text, err)
	}
}

// letIn requires all kinds of callers with a proof to be served within the limit.
func (f *federation) letIn(t *testing.T, limit time.Duration, p proof) {
	t.Helper()
	for _, c := range f.callers(p) {
		c.servedSoon(t, limit)
	}
}

// steady is the agents of one trust domain that call all the time, over connections that stay open and over new ones.
type steady struct {
	f      *federation
	domain string

	mu       sync.Mutex
	proof    proof
	open     []*caller
	calls    int // since the last renew, forgive or unbroken
	failures []string
}

// keepCalling starts the agents. They stop with the test.
func (f *federation) keepCalling(t *testing.T, p proof) *steady {
	t.Helper()
	s := &steady{f: f, domain: p.x509.ID.TrustDomain().Name()}
	s.renew(p)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		pace := time.NewTicker(100 * time.Millisecond)
		defer pace.Stop()
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-pace.C:
				s.round(ctx, n)
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return s
}

// renew makes the agents call with another proof from now on, as workloads do when their SVIDs rotate.
func (s *steady) renew(p proof) {
	open := s.f.callers(p)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proof, s.open, s.calls = p, open, 0
}

// round makes one call over the next of the connections. From time to time new connections replace the open ones.
func (s *steady) round(ctx context.Context, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n%8 == 7 {
		for _, c := range s.open {
			c.http.CloseIdleConnections()
			c.conn = nil
		}
	}
	c := s.open[n%len(s.open)]
	got, err := c.ask(ctx)
	if ctx.Err() != nil {
		return
	}
	s.calls++
	if err != nil || got.status != http.StatusCreated {
		s.failures = append(s.failures, fmt.Sprintf("%s %s: got %d %s, %v", time.Now().Format("05.000"), c.name, got.status, got.text, err))
	}
}

// forgive discards failures that the test expects.
func (s *steady) forgive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls, s.failures = 0, nil
}

// unbroken requires that the agents have called several times, and that no call has failed.
func (s *steady) unbroken(t *testing.T) {
	t.Helper()
	const some = 6 // each way of calling twice
	within(t, patience, s.domain+" calls", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.calls >= some
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, failure := range s.failures {
		t.Errorf("one who is not concerned: %s", failure)
	}
	s.calls, s.failures = 0, nil
}
