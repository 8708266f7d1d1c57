package attest_test

import (
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// agent is a SPIFFE Workload API on a Unix socket. It serves the bundles of its own domain and of federated ones.
type agent struct {
	workload.UnimplementedSpiffeWorkloadAPIServer
	addr string

	mu      sync.Mutex
	x509    *workload.X509SVIDResponse
	jwt     *workload.JWTBundlesResponse
	changed chan struct{}
}

func startAgent(t *testing.T, own *domain, federated ...*domain) *agent {
	t.Helper()
	dir, err := os.MkdirTemp("", "agent") //nolint:usetesting // t.TempDir can be longer than a socket's path may be
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{addr: "unix://" + path, changed: make(chan struct{})}
	a.serve(t, own, federated...)
	srv := grpc.NewServer()
	workload.RegisterSpiffeWorkloadAPIServer(srv, a)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(ln)
	}()
	t.Cleanup(func() {
		srv.Stop()
		<-done
	})
	return a
}

// serve changes what is served, and notifies all streams.
func (a *agent) serve(t *testing.T, own *domain, federated ...*domain) {
	t.Helper()
	pair := own.svid(t, own.leaf("/brevet"))
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	x := &workload.X509SVIDResponse{
		Svids: []*workload.X509SVID{{
			SpiffeId: own.td.IDString() + "/brevet", X509Svid: pair.Certificate[0], X509SvidKey: key, Bundle: own.ca.Raw,
		}},
		FederatedBundles: map[string][]byte{},
	}
	j := &workload.JWTBundlesResponse{Bundles: map[string][]byte{own.td.IDString(): jwks(t, own)}}
	for _, d := range federated {
		x.FederatedBundles[d.td.IDString()] = d.ca.Raw
		j.Bundles[d.td.IDString()] = jwks(t, d)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.x509, a.jwt = x, j
	close(a.changed)
	a.changed = make(chan struct{})
}

func jwks(t *testing.T, d *domain) []byte {
	t.Helper()
	doc, err := d.bundle().JWTBundle().Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func (a *agent) current() (*workload.X509SVIDResponse, *workload.JWTBundlesResponse, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.x509, a.jwt, a.changed
}

func (a *agent) FetchX509SVID(
	_ *workload.X509SVIDRequest, stream grpc.ServerStreamingServer[workload.X509SVIDResponse],
) error {
	for {
		x, _, changed := a.current()
		if x == nil {
			return status.Error(codes.PermissionDenied, "no identity issued")
		}
		if err := stream.Send(x); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (a *agent) FetchJWTBundles(
	_ *workload.JWTBundlesRequest, stream grpc.ServerStreamingServer[workload.JWTBundlesResponse],
) error {
	for {
		_, j, changed := a.current()
		if j == nil {
			return status.Error(codes.PermissionDenied, "no identity issued")
		}
		if err := stream.Send(j); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// eventually polls for a change that a stream brings: the sources offer no event to wait for.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	end := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("got no sign that %s", what)
		}
	}
}

// has reports whether both kinds of keys of d are present. They arrive in two streams.
func has(s *attest.Sources, d *domain) bool {
	x, err := s.GetX509BundleForTrustDomain(d.td)
	if err != nil || !x.HasX509Authority(d.ca) {
		return false
	}
	j, err := s.GetJWTBundleForTrustDomain(d.td)
	return err == nil && j.HasJWTAuthority(d.kid)
}

func TestWorkloadAPI(t *testing.T) {
	clock := newClock()
	own, federated := newDomain(t, "acme.test", clock.Now()), newDomain(t, "other.test", clock.Now())
	a := startAgent(t, own, federated)
	s := open(t, clock.Now,
		attest.BundleSpec{TrustDomain: own.td, WorkloadAPI: a.addr},
		attest.BundleSpec{TrustDomain: federated.td, WorkloadAPI: a.addr})
	if !has(s, own) || !has(s, federated) {
		t.Fatalf("got status %+v, want both bundles", s.Status())
	}

	own.rotate(t)
	a.serve(t, own, federated)
	eventually(t, "the new authority arrived", func() bool { return has(s, own) })

	a.serve(t, own)
	eventually(t, "the bundle was withdrawn", func() bool { return !s.Status()[1].Available })
	if !has(s, own) || has(s, federated) {
		t.Errorf("got status %+v, want only the own bundle", s.Status())
	}

	a.serve(t, own, federated)
	eventually(t, "the bundle came back", func() bool { return has(s, federated) })
}

// A Workload API that serves a federated bundle does not speak for a domain that is configured to come from a file.
func TestWorkloadAPISpeaksForItsOwnDomainOnly(t *testing.T) {
	clock := newClock()
	own, real := newDomain(t, "acme.test", clock.Now()), newDomain(t, "other.test", clock.Now())
	forged := newDomain(t, "other.test", clock.Now())
	a := startAgent(t, own, forged)
	path := filepath.Join(t.TempDir(), "other.json")
	write(t, path, real.bundleDoc(t, 1))
	s := open(t, clock.Now,
		attest.BundleSpec{TrustDomain: own.td, WorkloadAPI: a.addr},
		attest.BundleSpec{TrustDomain: real.td, File: path})
	wantHeld(t, s, "as opened", real, real, forged)

	w := newWorld(t)
	cfg := w.config()
	cfg.Bundles = s
	attestor, err := attest.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	id, err := attestor.X509(stateOf(t, forged.svid(t, forged.leaf("/agents/a"))))
	wantReason(t, id, err, "svid_signature")
	if _, err := attestor.X509(stateOf(t, real.svid(t, real.leaf("/agents/a")))); err != nil {
		t.Errorf("got %v for the real one, want an identity", err)
	}
}

// A Workload API that is down, or that has nothing for us, leaves only its own domain without a bundle.
func TestWorkloadAPIUnavailable(t *testing.T) {
	clock := newClock()
	own, filed := newDomain(t, "acme.test", clock.Now()), newDomain(t, "other.test", clock.Now())
	path := filepath.Join(t.TempDir(), "other.json")
	write(t, path, filed.bundleDoc(t, 1))
	denying := startAgent(t, own)
	denying.mu.Lock()
	denying.x509, denying.jwt = nil, nil
	denying.mu.Unlock()
	for name, addr := range map[string]string{
		"no socket":     "unix://" + filepath.Join(t.TempDir(), "none"),
		"not entitled":  denying.addr,
		"another place": "tcp://127.0.0.1:1",
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, clock.Now,
				attest.BundleSpec{TrustDomain: own.td, WorkloadAPI: addr},
				attest.BundleSpec{TrustDomain: filed.td, File: path})
			st := s.Status()
			if st[0].Available || st[0].Err == "" || !st[1].Available {
				t.Errorf("got status %+v, want the first unavailable with an error, the second available", st)
			}
			cfg := newWorld(t).config()
			cfg.Bundles = s
			a, err := attest.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			id, err := a.X509(stateOf(t, own.svid(t, own.leaf("/agents/a"))))
			wantReason(t, id, err, "bundle_unavailable")
		})
	}
}

// After the agent dies, its last bundles stay in use until they are stale.
func TestWorkloadAPIDies(t *testing.T) {
	clock := newClock()
	own := newDomain(t, "acme.test", clock.Now())
	a := startAgent(t, own)
	s := open(t, clock.Now, attest.BundleSpec{TrustDomain: own.td, WorkloadAPI: a.addr})
	a.mu.Lock()
	a.x509, a.jwt = nil, nil
	close(a.changed)
	a.changed = make(chan struct{})
	a.mu.Unlock()
	eventually(t, "the stream broke", func() bool { return s.Status()[0].Err != "" })
	if !has(s, own) {
		t.Error("got no bundle right after the agent died, want the last one")
	}
	clock.advance(attest.MaxStale + time.Second)
	if has(s, own) {
		t.Error("got a stale bundle, want none")
	}
}
