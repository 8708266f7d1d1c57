package client_test

import (
	"crypto/tls"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// rotating is the X.509 source of a workload whose SVIDs rotate.
type rotating struct {
	issuer *devstack.Issuer
	id     spiffeid.ID
	now    atomic.Pointer[x509svid.SVID]
}

func (r *rotating) GetX509SVID() (*x509svid.SVID, error) { return r.now.Load(), nil }

// rotate issues the next SVID, and returns its serial number.
func (r *rotating) rotate(t *testing.T) string {
	t.Helper()
	svid, err := r.issuer.X509SVID(r.id)
	if err != nil {
		t.Fatal(err)
	}
	r.now.Store(svid)
	return svid.Certificates[0].SerialNumber.String()
}

// serveMTLS starts a server that requires X.509-SVIDs of the source's trust domain. It returns a client that authenticates with
// the source.
func serveMTLS(t *testing.T, source *rotating, answer http.HandlerFunc) *client.Client {
	t.Helper()
	id := spiffeid.RequireFromString("spiffe://acme.test/brevet")
	own, err := source.issuer.X509SVID(id)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config := tlsconfig.MTLSServerConfig(own, source.issuer.Bundle(), tlsconfig.AuthorizeAny())
	config.MinVersion = tls.VersionTLS13
	srv := &http.Server{Handler: answer, TLSConfig: config, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = srv.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = srv.Close() })
	c, err := client.New(client.Config{BaseURL: "https://" + listener.Addr().String()},
		client.WithX509(source, source.issuer.Bundle(), tlsconfig.AuthorizeID(id)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func newRotating(t *testing.T) *rotating {
	t.Helper()
	issuer, err := devstack.NewIssuer(devstack.IssuerConfig{TrustDomain: spiffeid.RequireTrustDomainFromString("acme.test")})
	if err != nil {
		t.Fatal(err)
	}
	return &rotating{issuer: issuer, id: spiffeid.RequireFromString("spiffe://acme.test/agents/a")}
}

func writeWhoAmI(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(openapi.Caller{ID: "spiffe://acme.test/agents/a"})
}

// A pooled connection keeps presenting its first certificate, so calls after a rotation must use a new connection.
func TestCallsAfterARotationPresentTheNewSVID(t *testing.T) {
	t.Parallel()
	source := newRotating(t)
	var presented atomic.Value
	c := serveMTLS(t, source, func(w http.ResponseWriter, r *http.Request) {
		presented.Store(r.TLS.PeerCertificates[0].SerialNumber.String())
		writeWhoAmI(w)
	})
	for range 3 {
		want := source.rotate(t)
		for range 2 {
			if _, err := c.WhoAmI(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := presented.Load(); got != want {
				t.Errorf("the call presented the certificate %v, want the current one, %s", got, want)
			}
		}
	}
}

// A call that the server refuses because of a rotated certificate is sent once more with the newer one.
func TestCallIsRetriedOnceWhenItsCertificateIsRefused(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]int{"svid_expired": 2, "svid_authority": 2, "svid_signature": 2, "svid_profile": 1, "": 1} {
		source := newRotating(t)
		source.rotate(t)
		var mu sync.Mutex
		var serials []string
		var bodies []string
		c := serveMTLS(t, source, func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			body, _ := io.ReadAll(r.Body)
			serials, bodies = append(serials, r.TLS.PeerCertificates[0].SerialNumber.String()), append(bodies, string(body))
			if len(serials) == 1 {
				source.rotate(t)
			}
			writeProblem(w, openapi.Problem{
				Type: openapi.CodeUnauthenticated.Type(), Title: "Authentication required", Status: 401, Code: openapi.CodeUnauthenticated, Reason: reason,
			})
		})
		_, err := c.Request(t.Context(), client.Ask{Scope: "git.read", Task: "t"})
		if err == nil {
			t.Fatalf("%q: got no error", reason)
		}
		if len(serials) != want {
			t.Errorf("%q: the call was sent %d times, want %d", reason, len(serials), want)
		}
		if len(serials) == 2 && (serials[0] == serials[1] || bodies[0] != bodies[1] || bodies[0] == "") {
			t.Errorf("%q: got the certificates %v and the bodies %q, want another certificate and the same body", reason, serials, bodies)
		}
	}
}

// Without a newer SVID a retry can't succeed.
func TestCallIsNotRetriedWithTheSameCertificate(t *testing.T) {
	t.Parallel()
	source := newRotating(t)
	source.rotate(t)
	var calls atomic.Int32
	c := serveMTLS(t, source, func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		writeProblem(w, openapi.Problem{
			Type: openapi.CodeUnauthenticated.Type(), Title: "Authentication required", Status: 401, Code: openapi.CodeUnauthenticated, Reason: "svid_expired",
		})
	})
	if _, err := c.WhoAmI(t.Context()); err == nil || calls.Load() != 1 {
		t.Errorf("got %v after %d calls, want one refused call", err, calls.Load())
	}
}

// If the source switches to another identity, the client does not repeat a request of the first as the second.
func TestCallIsNotRetriedAsAnotherIdentity(t *testing.T) {
	t.Parallel()
	source := newRotating(t)
	source.rotate(t)
	var calls atomic.Int32
	c := serveMTLS(t, source, func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) == 1 {
			source.id = spiffeid.RequireFromString("spiffe://acme.test/agents/b")
			source.rotate(t)
		}
		writeProblem(w, openapi.Problem{
			Type: openapi.CodeUnauthenticated.Type(), Title: "Authentication required", Status: 401, Code: openapi.CodeUnauthenticated, Reason: "svid_expired",
		})
	})
	if _, err := c.Request(t.Context(), client.Ask{Scope: "git.read", Task: "t"}); err == nil || calls.Load() != 1 {
		t.Errorf("got %v after %d calls, want one refused call", err, calls.Load())
	}
}
