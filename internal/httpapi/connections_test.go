package httpapi_test

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/internal/httpapi"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
)

// idleConnection opens a connection as a workload and completes one call over it.
func idleConnection(t *testing.T, s *testkit.Stack, protocol string) net.Conn {
	t.Helper()
	config := s.ClientTLS(s.X509(t, "spiffe://acme.test/agents/a"))
	config.NextProtos = []string{protocol}
	conn, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if protocol == "http/1.1" {
		if _, err := io.WriteString(conn, "GET /v1/whoami HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	} else if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	if n, err := conn.Read(make([]byte, 1<<16)); err != nil || n == 0 {
		t.Fatalf("reading the answer: %d bytes, %v", n, err)
	}
	return conn
}

// endsConnection fails the test unless the server ends the connection.
func endsConnection(t *testing.T, conn net.Conn, why string) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	_, err := io.Copy(io.Discard, conn)
	var late net.Error
	if errors.As(err, &late) && late.Timeout() {
		t.Errorf("the connection is open 30 seconds after %s", why)
	}
}

func TestIdleConnectionIsClosedWhenItsCertificateExpires(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue, Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
	for _, protocol := range []string{"http/1.1", "h2"} {
		ahead.Store(0)
		conn := idleConnection(t, s, protocol)
		ahead.Store(int64(61 * time.Minute))
		endsConnection(t, conn, "its certificate expired, over "+protocol)
	}
}

func TestIdleConnectionIsClosedWhenItsAuthorityIsRemoved(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	conn := idleConnection(t, s, "http/1.1")
	if err := s.Acme.Rotate(); err != nil {
		t.Fatal(err)
	}
	bundle := s.Acme.Bundle()
	for _, authority := range bundle.X509Authorities()[:len(bundle.X509Authorities())-1] {
		bundle.RemoveX509Authority(authority)
	}
	s.Trust(bundle)
	endsConnection(t, conn, "its authority was removed")
}

// The response tells the caller what to do: it names the expired certificate, and the connection ends.
func TestExpiredCertificateOnALiveConnectionIsNamed(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue, Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
	svid, err := s.Acme.X509SVID(spiffeid.RequireFromString("spiffe://acme.test/agents/a"))
	if err != nil {
		t.Fatal(err)
	}
	c := s.HTTP(t, svid)
	if status, _, _ := whoAmI(t, c, s.URL); status != http.StatusOK {
		t.Fatalf("got %d", status)
	}
	ahead.Store(int64(61 * time.Minute))
	status, header, p := whoAmI(t, c, s.URL)
	if status != http.StatusUnauthorized || p.Reason != "svid_expired" || p.Explanation != "The SVID has expired." {
		t.Errorf("got %d %+v, want a 401 that names the cause", status, p)
	}
	if id := "urn:uuid:" + header.Get("Request-Id"); p.Instance != id {
		t.Errorf("got the instance %q, want %q", p.Instance, id)
	}
	if entries := s.DB.Entries(t); len(entries) != 1 || entries[0].Kind != "call.refused" || entries[0].ID != header.Get("Request-Id") {
		t.Errorf("got %+v, want one record with the id of the call, %s", entries, header.Get("Request-Id"))
	}
}

func whoAmI(t *testing.T, c *http.Client, server string) (status int, header http.Header, p openapi.Problem) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server+"/v1/whoami", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, p
}

// stuckBundles blocks every bundle lookup while stuck is set.
type stuckBundles struct {
	attest.Bundles
	stuck  atomic.Bool
	asked  chan struct{}
	resume chan struct{}
}

func (b *stuckBundles) GetX509BundleForTrustDomain(td spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	if b.stuck.Load() {
		select {
		case b.asked <- struct{}{}:
		default:
		}
		<-b.resume
	}
	return b.Bundles.GetX509BundleForTrustDomain(td)
}

// Verifying the certificates of thousands of open connections takes seconds. No call waits for that.
func TestCallsDoNotWaitForTheCertificatesOfOthers(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	bundles := &stuckBundles{Bundles: spiffebundle.NewSet(s.Acme.Bundle()), asked: make(chan struct{}, 1), resume: make(chan struct{})}
	attestor, err := attest.New(attest.Config{
		Bundles: bundles, TrustDomains: []spiffeid.TrustDomain{s.Acme.TrustDomain()}, Audience: testkit.Audience, Now: time.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	cfg := s.Config
	cfg.Attestor, cfg.Registry, cfg.Now = attestor, prometheus.NewRegistry(), time.Now
	server, err := httpapi.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := server.HTTP(attestor.TLSConfig(tlsconfig.GetCertificate(s.SVID)))
	go func() { _ = srv.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = srv.Close() })
	t.Cleanup(func() { close(bundles.resume) })
	there := *s
	there.Addr, there.URL = listener.Addr().String(), "https://"+listener.Addr().String()
	idleConnection(t, &there, "h2")
	stranger := there.HTTP(t, nil)
	stranger.Timeout = time.Minute
	go func() { _ = server.CloseUntrusted(t.Context()) }()
	bundles.stuck.Store(true)
	select {
	case <-bundles.asked:
	case <-time.After(time.Minute):
		t.Fatal("no certificate was looked at within a minute")
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, there.URL+"/livez", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := stranger.Do(req)
	if err != nil {
		t.Fatalf("a call waits for the certificate of another connection: %v", err)
	}
	_ = resp.Body.Close()
}
