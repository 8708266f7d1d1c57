package httpapi_test

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/httpapi"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
)

// While the source of a bundle fails, the last bundle is used for a day and no longer. After that, nobody is authenticated
// without current keys, not even on connections that were open all the time (I10).
func TestStaleBundleIsUsedForADay(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue, Now: now})
	issuer, err := devstack.NewIssuer(devstack.IssuerConfig{
		TrustDomain: s.Other.TrustDomain(), X509TTL: 4 * attest.MaxStale, RefreshHint: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	down, bundles := federated(t, issuer, now)
	cfg := s.Config
	cfg.Registry = prometheus.NewRegistry()
	if err := httpapi.MeterBundles(cfg.Registry, bundles.Status, now); err != nil {
		t.Fatal(err)
	}
	s = serveBundles(t, s, cfg, bundles)
	svid, err := issuer.X509SVID(spiffeid.RequireFromString(foreign))
	if err != nil {
		t.Fatal(err)
	}
	var open [3]*tls.Conn
	for i := range open {
		open[i] = dial(t, s, svid)
		wantWho(t, open[i], whoami{http.StatusOK, ""})
	}
	down.Store(true)
	sourceIs(t, bundles, func(b attest.BundleStatus) bool { return b.Err != "" })
	ahead.Store(int64(attest.MaxStale - time.Minute))
	wantWho(t, open[0], whoami{http.StatusOK, ""})
	ahead.Store(int64(attest.MaxStale + time.Minute))
	wantWho(t, open[1], whoami{http.StatusServiceUnavailable, "bundle_unavailable"})
	if got, err := askWho(dial(t, s, svid)); err == nil {
		t.Errorf("who connects with a stale bundle: got %d, want the handshake to fail", got.status)
	}
	if text := exposed(t, cfg.Registry); !strings.Contains(text, `brevet_bundle_failing_seconds{trust_domain="other.test"} 8646`) {
		t.Errorf("got %s, want a day and a minute", text)
	}
	down.Store(false)
	sourceIs(t, bundles, func(b attest.BundleStatus) bool { return b.Err == "" })
	wantWho(t, open[2], whoami{http.StatusOK, ""})
	if text := exposed(t, cfg.Registry); !strings.Contains(text, `brevet_bundle_failing_seconds{trust_domain="other.test"} 0`) {
		t.Errorf("got %s, want 0 when it works", text)
	}
}

// federated returns sources with the bundle of an issuer, from an endpoint that can be taken down.
func federated(t *testing.T, issuer *devstack.Issuer, now func() time.Time) (*atomic.Bool, *attest.Sources) {
	t.Helper()
	down := new(atomic.Bool)
	endpoint := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if down.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		issuer.BundleHandler().ServeHTTP(w, r)
	}))
	t.Cleanup(endpoint.Close)
	authority := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: endpoint.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	bundles, err := attest.Open(t.Context(), []attest.BundleSpec{{TrustDomain: issuer.TrustDomain(), Endpoint: &attest.EndpointSpec{
		URL: endpoint.URL, Profile: attest.ProfileHTTPSWeb, CAFile: authority,
	}}}, slog.New(slog.DiscardHandler), now)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bundles.Close() })
	return down, bundles
}

// serveBundles serves like the stack, but with bundles from other sources.
func serveBundles(t *testing.T, s *testkit.Stack, cfg httpapi.Config, bundles *attest.Sources) *testkit.Stack {
	t.Helper()
	var err error
	cfg.Attestor, err = attest.New(attest.Config{
		Bundles: bundles, TrustDomains: []spiffeid.TrustDomain{s.Other.TrustDomain()}, Audience: testkit.Audience, Now: cfg.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	other, err := httpapi.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	api := other.HTTP(cfg.Attestor.TLSConfig(tlsconfig.GetCertificate(s.X509(t, "spiffe://acme.test/brevet"))))
	ended := make(chan error, 1)
	go func() { ended <- api.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = api.Close(); <-ended })
	there := *s
	there.Addr = listener.Addr().String()
	return &there
}

// whoami is the response to a call of /v1/whoami.
type whoami struct {
	status int
	code   string // of a problem
}

// askWho calls /v1/whoami over this connection. In TLS 1.3 the handshake succeeds on the client side even if the server refuses the
// certificate: the client sees that only at its first read.
func askWho(conn *tls.Conn) (got whoami, err error) {
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return got, err
	}
	if _, err := io.WriteString(conn, "GET /v1/whoami HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"); err != nil {
		return got, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return got, err
	}
	var problem struct{ Code string }
	err = json.NewDecoder(resp.Body).Decode(&problem)
	return whoami{resp.StatusCode, problem.Code}, errors.Join(err, resp.Body.Close())
}

func wantWho(t *testing.T, conn *tls.Conn, want whoami) {
	t.Helper()
	if got, err := askWho(conn); err != nil || got != want {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

// sourceIs waits until like accepts the status of the only source.
func sourceIs(t *testing.T, bundles *attest.Sources, like func(attest.BundleStatus) bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	end := time.After(patience)
	for !like(bundles.Status()[0]) {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("waited %s for the bundle source, which is %+v", patience, bundles.Status()[0])
		}
	}
}
