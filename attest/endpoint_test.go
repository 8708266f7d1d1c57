package attest_test

import (
	"crypto/tls"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// publisher is a federation endpoint whose answer a test sets.
type publisher struct {
	*httptest.Server
	mu     sync.Mutex
	answer http.HandlerFunc
	asked  int
}

func (p *publisher) set(answer http.HandlerFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = answer
}

func (p *publisher) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	p.answer(w, r)
}

// requests returns how many requests it has received.
func (p *publisher) requests() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked
}

func publish(t *testing.T, cert *tls.Certificate, answer http.HandlerFunc) *publisher {
	t.Helper()
	p := &publisher{answer: answer}
	p.Server = httptest.NewUnstartedServer(p)
	p.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	if cert != nil {
		p.TLS = &tls.Config{Certificates: []tls.Certificate{*cert}, MinVersion: tls.VersionTLS12}
	}
	p.StartTLS()
	t.Cleanup(p.Close)
	return p
}

// document answers with a bundle.
func document(doc []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(doc) }
}

// webSpec trusts the endpoint through the endpoint's own certificate, which httptest made.
func webSpec(t *testing.T, p *publisher, td spiffeid.TrustDomain) attest.BundleSpec {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.pem")
	write(t, path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Certificate().Raw}))
	return attest.BundleSpec{TrustDomain: td, Endpoint: &attest.EndpointSpec{
		URL: p.URL, Profile: attest.ProfileHTTPSWeb, CAFile: path,
	}}
}

// hinted returns the domain's bundle with a refresh hint of an hour, so that only the test fetches again.
func hinted(t *testing.T, d *domain, sequence uint64) []byte {
	t.Helper()
	b := d.bundle()
	b.SetSequenceNumber(sequence)
	b.SetRefreshHint(time.Hour)
	doc, err := b.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestEndpointWeb(t *testing.T) {
	clock := newClock()
	old, fresh := newDomain(t, "acme.test", clock.Now()), newDomain(t, "acme.test", clock.Now())
	evil := publish(t, nil, document(hinted(t, fresh, 99)))
	p := publish(t, nil, document(hinted(t, old, 5)))
	s := open(t, clock.Now, webSpec(t, p, old.td))
	wantHeld(t, s, "as opened", old, old, fresh)

	huge := strings.Repeat(" ", 4<<20) + string(hinted(t, fresh, 99))
	noSequence := fresh.bundle()
	noSequence.SetRefreshHint(time.Hour)
	unnumbered, err := noSequence.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name    string
		answer  http.HandlerFunc
		held    *domain // nil: no keys
		wantErr string
	}{
		{"same again", document(hinted(t, old, 5)), old, ""},
		{"older", document(hinted(t, fresh, 4)), old, "older"},
		{"no sequence after one", document(unnumbered), old, "older"},
		{"status 500", answering(http.StatusInternalServerError, hinted(t, fresh, 99)), old, "500"},
		{"status 404", answering(http.StatusNotFound, hinted(t, fresh, 99)), old, "404"},
		{"status 206", answering(http.StatusPartialContent, hinted(t, fresh, 99)), old, "206"},
		{"redirect", http.RedirectHandler(evil.URL, http.StatusFound).ServeHTTP, old, "302"},
		{"permanent redirect", http.RedirectHandler(evil.URL, http.StatusPermanentRedirect).ServeHTTP, old, "308"},
		{"too large", document([]byte(huge)), old, "larger"},
		{"HTML", document([]byte("<html>")), old, "parsing"},
		{"nothing", document(nil), old, "parsing"},
		{"no keys member", document([]byte(`{"spiffe_sequence":99}`)), old, "parsing"},
		{"keys of another kind", document([]byte(`{"keys":[{"kty":"oct","k":"AA","use":"sig"}],"spiffe_sequence":99}`)), old, "none of its keys"},
		{"duplicate sequence", document([]byte(`{"keys":[],"spiffe_sequence":1,"spiffe_sequence":99}`)), old, "parsing"},
		{"cut off", cutOff, old, "EOF"},
		{"compressed", gzipped(t, hinted(t, fresh, 99)), old, "parsing"},
		{"newer", document(hinted(t, fresh, 6)), fresh, ""},
		{"older than that", document(hinted(t, old, 5)), fresh, "older"},
		{"all keys revoked", document([]byte(`{"keys":[],"spiffe_sequence":7,"spiffe_refresh_hint":3600}`)), nil, ""},
		{"newer again", document(hinted(t, old, 8)), old, ""},
	} {
		p.set(step.answer)
		s.Refresh(t.Context(), old.td)
		wantHeld(t, s, step.name, step.held, old, fresh)
		if got := s.Status()[0].Err; !strings.Contains(got, step.wantErr) || (got == "") != (step.wantErr == "") {
			t.Errorf("%s: got error %q, want %q", step.name, got, step.wantErr)
		}
	}
	if n := evil.requests(); n > 0 {
		t.Errorf("got %d requests to where a redirect led, want none", n)
	}
}

func answering(code int, doc []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_, _ = w.Write(doc)
	}
}

func cutOff(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "1000")
	_, _ = w.Write([]byte(`{"keys":[`))
}

// gzipped claims a content coding that the request did not accept. The client must not decompress it: a small answer could fill
// the memory.
func gzipped(t *testing.T, doc []byte) http.HandlerFunc {
	t.Helper()
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "" {
			t.Errorf("got Accept-Encoding %q, want none", r.Header.Get("Accept-Encoding"))
		}
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(append([]byte{0x1f, 0x8b}, doc...))
	}
}

// An endpoint that is down stops neither the start nor the other domains, and its last bundle stays in use for a while.
func TestEndpointDown(t *testing.T) {
	clock := newClock()
	up, down := newDomain(t, "up.test", clock.Now()), newDomain(t, "down.test", clock.Now())
	p, q := publish(t, nil, document(hinted(t, up, 1))), publish(t, nil, document(hinted(t, down, 1)))
	upSpec, downSpec := webSpec(t, p, up.td), webSpec(t, q, down.td)
	s := open(t, clock.Now, upSpec, downSpec)
	q.Close()
	s.Refresh(t.Context(), down.td)
	wantHeld(t, s, "just down", down, down)
	clock.advance(attest.MaxStale + time.Second)
	wantHeld(t, s, "down for long", nil, down)
	wantHeld(t, s, "the other", up, up)
	if st := s.Status(); !st[0].Available || st[1].Available || st[1].Err == "" {
		t.Errorf("got status %+v, want the first available and the second not", st)
	}

	again := open(t, clock.Now, upSpec, downSpec)
	wantHeld(t, again, "down from the start", nil, down)
	wantHeld(t, again, "the other, from the start", up, up)
}

func TestEndpointUntrusted(t *testing.T) {
	clock := newClock()
	d := newDomain(t, "acme.test", clock.Now())
	p := publish(t, nil, document(hinted(t, d, 1)))
	for name, change := range map[string]func(*attest.EndpointSpec){
		"system roots only": func(e *attest.EndpointSpec) { e.CAFile = "" },
		"wrong name":        func(e *attest.EndpointSpec) { e.URL = strings.Replace(p.URL, "127.0.0.1", "localhost", 1) },
	} {
		t.Run(name, func(t *testing.T) {
			spec := webSpec(t, p, d.td)
			change(spec.Endpoint)
			s := open(t, clock.Now, spec)
			wantHeld(t, s, name, nil, d)
			if got := s.Status()[0].Err; !strings.Contains(got, "x509") {
				t.Errorf("got error %q, want one of the certificate", got)
			}
		})
	}
}

func TestEndpointRefreshIsBounded(t *testing.T) {
	clock := newClock()
	d := newDomain(t, "acme.test", clock.Now())
	p := publish(t, nil, document(hinted(t, d, 1)))
	s := open(t, clock.Now, webSpec(t, p, d.td))
	for name, tc := range map[string]struct {
		hint string
		want time.Duration
	}{
		"none":     {``, 5 * time.Minute},
		"zero":     {`,"spiffe_refresh_hint":0`, time.Second},
		"negative": {`,"spiffe_refresh_hint":-5`, time.Second},
		"given":    {`,"spiffe_refresh_hint":90`, 90 * time.Second},
		"a day":    {`,"spiffe_refresh_hint":86400`, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			p.set(document([]byte(`{"keys":[],"spiffe_sequence":2` + tc.hint + `}`)))
			if got := s.Refresh(t.Context(), d.td); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
	p.set(answering(http.StatusServiceUnavailable, nil))
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		if got := s.Refresh(t.Context(), d.td); got != want*time.Second {
			t.Errorf("got retry %d after %s, want after %s", i, got, want*time.Second)
		}
	}
}

// The loop fetches again by itself, after the second that the hint asks for.
func TestEndpointLoop(t *testing.T) {
	clock := newClock()
	d := newDomain(t, "acme.test", clock.Now())
	asked := make(chan struct{}, 16)
	p := publish(t, nil, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"keys":[],"spiffe_refresh_hint":1}`))
		asked <- struct{}{}
	})
	open(t, clock.Now, webSpec(t, p, d.td))
	for i := range 2 {
		select {
		case <-asked:
		case <-time.After(patience):
			t.Fatalf("got %d fetches, want two", i)
		}
	}
}

func spiffeSpec(t *testing.T, p *publisher, d *domain, initial []byte) attest.BundleSpec {
	t.Helper()
	path := filepath.Join(t.TempDir(), "initial.json")
	write(t, path, initial)
	return attest.BundleSpec{TrustDomain: d.td, Endpoint: &attest.EndpointSpec{
		URL: p.URL, Profile: attest.ProfileHTTPSSPIFFE, BundleFile: path,
		SPIFFEID: spiffeid.RequireFromPath(d.td, "/spire/server"),
	}}
}

func TestEndpointSPIFFE(t *testing.T) {
	clock := newClock()
	d := newDomain(t, "acme.test", clock.Now())
	foreign := newDomain(t, "other.test", clock.Now())
	expired := d.leaf("/spire/server")
	expired.NotAfter = clock.Now().Add(-time.Second)
	for name, tc := range map[string]struct {
		cert tls.Certificate
		want bool
	}{
		"the server":               {d.svid(t, d.leaf("/spire/server")), true},
		"another workload":         {d.svid(t, d.leaf("/agents/a")), false},
		"expired":                  {d.svid(t, expired), false},
		"signed by another domain": {foreign.svid(t, d.leaf("/spire/server")), false},
		"of another domain":        {foreign.svid(t, foreign.leaf("/spire/server")), false},
	} {
		t.Run(name, func(t *testing.T) {
			p := publish(t, &tc.cert, document(hinted(t, d, 3)))
			s := open(t, clock.Now, spiffeSpec(t, p, d, hinted(t, d, 2)))
			if got := holds(t, s, d); got != tc.want {
				t.Errorf("got the bundle: %v (%s), want %v", got, s.Status()[0].Err, tc.want)
			}
			if n := p.requests(); !tc.want && n > 0 {
				t.Errorf("got %d requests to a server that was not authenticated, want none", n)
			}
		})
	}
}

// The initial bundle authenticates the first fetch only. After that the fetched bundle does, and older bundles are rejected.
func TestEndpointSPIFFEFollowsTheBundle(t *testing.T) {
	clock := newClock()
	d := newDomain(t, "acme.test", clock.Now())
	initial := hinted(t, d, 5)
	cert := d.svid(t, d.leaf("/spire/server"))
	p := publish(t, &cert, document(hinted(t, d, 4)))
	s := open(t, clock.Now, spiffeSpec(t, p, d, initial))
	wantHeld(t, s, "older than the initial one", nil, d)

	d.rotate(t)
	p.set(document(hinted(t, d, 6)))
	s.Refresh(t.Context(), d.td)
	wantHeld(t, s, "newer", d, d)
	s.Refresh(t.Context(), d.td)
	if got := s.Status()[0].Err; !strings.Contains(got, "verifying bundle endpoint") {
		t.Errorf("got error %q, want the server with the old authority refused", got)
	}
	wantHeld(t, s, "kept", d, d)
}
