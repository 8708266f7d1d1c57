package attest_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// open opens sources and closes them with the test.
func open(t *testing.T, now func() time.Time, specs ...attest.BundleSpec) *attest.Sources {
	t.Helper()
	s, err := attest.Open(t.Context(), specs, slog.New(slog.DiscardHandler), now)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// holds reports whether a source has the X.509 authority and the JWT key of a domain: it must have both or neither.
func holds(t *testing.T, s *attest.Sources, d *domain) bool {
	t.Helper()
	x509, err := s.GetX509BundleForTrustDomain(d.td)
	hasX509 := err == nil && x509.HasX509Authority(d.ca)
	jwt, err := s.GetJWTBundleForTrustDomain(d.td)
	hasJWT := false
	if err == nil {
		key, ok := jwt.FindJWTAuthority(d.kid)
		hasJWT = ok && d.jwtKey.(*ecdsa.PrivateKey).PublicKey.Equal(key)
	}
	if hasX509 != hasJWT {
		t.Errorf("got X.509 %v and JWT %v, want both or neither", hasX509, hasJWT)
	}
	return hasX509
}

func write(t *testing.T, path string, doc []byte) {
	t.Helper()
	// Rename the file into place, as a careful operator does.
	if err := os.WriteFile(path+".new", doc, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	clock := newClock()
	d := newDomain(t, "acme.test", clock.Now())
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good.json"), filepath.Join(dir, "bad.json")
	write(t, good, d.bundleDoc(t, 1))
	write(t, bad, []byte(`{"keys":[{"use":"sig"}]}`))
	web := func(change func(*attest.EndpointSpec)) attest.BundleSpec {
		e := attest.EndpointSpec{URL: "https://acme.test/bundle", Profile: attest.ProfileHTTPSWeb}
		change(&e)
		return attest.BundleSpec{TrustDomain: d.td, Endpoint: &e}
	}
	server := spiffeid.RequireFromString("spiffe://acme.test/spire/server")
	spiffe := func(change func(*attest.EndpointSpec)) attest.BundleSpec {
		return web(func(e *attest.EndpointSpec) {
			e.Profile, e.SPIFFEID, e.BundleFile = attest.ProfileHTTPSSPIFFE, server, good
			change(e)
		})
	}
	for name, specs := range map[string][]attest.BundleSpec{
		"nothing":                {},
		"no source":              {{TrustDomain: d.td}},
		"two sources":            {{TrustDomain: d.td, File: good, WorkloadAPI: "unix:///nowhere"}},
		"no trust domain":        {{File: good}},
		"a domain twice":         {{TrustDomain: d.td, File: good}, {TrustDomain: d.td, File: good}},
		"no such file":           {{TrustDomain: d.td, File: filepath.Join(dir, "none")}},
		"a folder":               {{TrustDomain: d.td, File: dir}},
		"not a bundle":           {{TrustDomain: d.td, File: bad}},
		"bad address":            {{TrustDomain: d.td, WorkloadAPI: "http://localhost"}},
		"http":                   {web(func(e *attest.EndpointSpec) { e.URL = "http://acme.test/bundle" })},
		"no host":                {web(func(e *attest.EndpointSpec) { e.URL = "https:///bundle" })},
		"userinfo":               {web(func(e *attest.EndpointSpec) { e.URL = "https://a:b@acme.test/bundle" })},
		"no URL":                 {web(func(e *attest.EndpointSpec) { e.URL = "" })},
		"not a URL":              {web(func(e *attest.EndpointSpec) { e.URL = "https://[" })},
		"no profile":             {web(func(e *attest.EndpointSpec) { e.Profile = "" })},
		"other profile":          {web(func(e *attest.EndpointSpec) { e.Profile = "http" })},
		"web with a SPIFFE ID":   {web(func(e *attest.EndpointSpec) { e.SPIFFEID = server })},
		"web with a bundle":      {web(func(e *attest.EndpointSpec) { e.BundleFile = good })},
		"no such CA file":        {web(func(e *attest.EndpointSpec) { e.CAFile = filepath.Join(dir, "none") })},
		"CA file without a CA":   {web(func(e *attest.EndpointSpec) { e.CAFile = good })},
		"spiffe without an ID":   {spiffe(func(e *attest.EndpointSpec) { e.SPIFFEID = spiffeid.ID{} })},
		"spiffe with a root ID":  {spiffe(func(e *attest.EndpointSpec) { e.SPIFFEID = d.td.ID() })},
		"spiffe without bundle":  {spiffe(func(e *attest.EndpointSpec) { e.BundleFile = "" })},
		"spiffe, no such bundle": {spiffe(func(e *attest.EndpointSpec) { e.BundleFile = filepath.Join(dir, "none") })},
		"spiffe with a CA file":  {spiffe(func(e *attest.EndpointSpec) { e.CAFile = good })},
		"spiffe, foreign server": {spiffe(func(e *attest.EndpointSpec) {
			e.SPIFFEID = spiffeid.RequireFromString("spiffe://other.test/spire/server")
		})},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := attest.Open(t.Context(), specs, slog.New(slog.DiscardHandler), clock.Now)
			if err == nil || s != nil {
				t.Fatalf("got %v, %v, want an error", s, err)
			}
			if strings.Contains(err.Error(), "a:b") {
				t.Errorf("got the URL's password in %q", err)
			}
		})
	}
}

func TestOpenCancelled(t *testing.T) {
	clock := newClock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d := newDomain(t, "acme.test", clock.Now())
	specs := []attest.BundleSpec{{TrustDomain: d.td, WorkloadAPI: "unix://" + filepath.Join(t.TempDir(), "none.sock")}}
	// A canceled start may still see that the first attempt ended, but must not hang.
	s, err := attest.Open(ctx, specs, slog.New(slog.DiscardHandler), clock.Now)
	switch {
	case err == nil:
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	case !errors.Is(err, context.Canceled):
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

func TestSourcesUnknownDomain(t *testing.T) {
	clock := newClock()
	d, other := newDomain(t, "acme.test", clock.Now()), newDomain(t, "other.test", clock.Now())
	path := filepath.Join(t.TempDir(), "acme.json")
	write(t, path, d.bundleDoc(t, 1))
	s := open(t, clock.Now, attest.BundleSpec{TrustDomain: d.td, File: path})
	if b, err := s.GetX509BundleForTrustDomain(other.td); err == nil || b != nil {
		t.Errorf("got %v for a domain without a source, want an error", b)
	}
	if b, err := s.GetJWTBundleForTrustDomain(other.td); err == nil || b != nil {
		t.Errorf("got %v for a domain without a source, want an error", b)
	}
}

// Each step changes the file and says what must hold a second later.
func TestFile(t *testing.T) {
	clock := newClock()
	old := newDomain(t, "acme.test", clock.Now())
	fresh := newDomain(t, "acme.test", clock.Now())
	path := filepath.Join(t.TempDir(), "acme.json")
	write(t, path, old.bundleDoc(t, 7))
	s := open(t, clock.Now, attest.BundleSpec{TrustDomain: old.td, File: path})
	for _, step := range []struct {
		name    string
		change  func()
		held    *domain // nil: no bundle
		wantErr bool
	}{
		{"as opened", func() {}, old, false},
		{"replaced", func() { write(t, path, fresh.bundleDoc(t, 8)) }, fresh, false},
		{"broken", func() { write(t, path, []byte("{")) }, fresh, true},
		{"still broken", func() {}, fresh, true},
		{"repaired", func() { write(t, path, old.bundleDoc(t, 9)) }, old, false},
		{"another kind of JWKS", func() { write(t, path, []byte(`{"keys":[{"kty":"oct","k":"AA","use":"sig"}]}`)) }, old, true},
		{"no keys member", func() { write(t, path, []byte(`{}`)) }, old, true},
		{"duplicate member", func() { write(t, path, []byte(`{"keys":[],"keys":[]}`)) }, old, true},
		{"too large", func() { write(t, path, bytes.Repeat([]byte(" "), 4<<20+1)) }, old, true},
		{"removed", func() { _ = os.Remove(path) }, nil, true},
		{"back", func() { write(t, path, fresh.bundleDoc(t, 10)) }, fresh, false},
		{"all keys revoked", func() { write(t, path, []byte(`{"keys":[],"spiffe_sequence":11}`)) }, nil, false},
	} {
		step.change()
		clock.advance(time.Second)
		wantHeld(t, s, step.name, step.held, old, fresh)
		if st := s.Status()[0]; (st.Err != "") != step.wantErr {
			t.Errorf("%s: got error %q, want one: %v", step.name, st.Err, step.wantErr)
		}
	}
}

func wantHeld(t *testing.T, s *attest.Sources, step string, want *domain, all ...*domain) {
	t.Helper()
	for _, d := range all {
		if got := holds(t, s, d); got != (d == want) {
			t.Errorf("%s: got the keys of %v held: %v, want %v", step, d.td, got, d == want)
		}
	}
}

func TestFileIsPolledEachSecond(t *testing.T) {
	clock := newClock()
	old, fresh := newDomain(t, "acme.test", clock.Now()), newDomain(t, "acme.test", clock.Now())
	path := filepath.Join(t.TempDir(), "acme.json")
	write(t, path, old.bundleDoc(t, 1))
	s := open(t, clock.Now, attest.BundleSpec{TrustDomain: old.td, File: path})
	write(t, path, fresh.bundleDoc(t, 2))
	clock.advance(999 * time.Millisecond)
	wantHeld(t, s, "within the second", old, old, fresh)
	clock.advance(time.Millisecond)
	wantHeld(t, s, "after it", fresh, old, fresh)
}

func TestStaleBundleIsDropped(t *testing.T) {
	clock := newClock()
	d := newDomain(t, "acme.test", clock.Now())
	path := filepath.Join(t.TempDir(), "acme.json")
	write(t, path, d.bundleDoc(t, 1))
	var log bytes.Buffer
	spec := attest.BundleSpec{TrustDomain: d.td, File: path}
	s, err := attest.Open(t.Context(), []attest.BundleSpec{spec}, slog.New(slog.NewTextHandler(&log, nil)), clock.Now)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, []byte("{"))
	clock.advance(time.Hour)
	wantHeld(t, s, "begins to fail", d, d)
	began := clock.Now()
	if st, want := s.Status()[0], began.Add(attest.MaxStale); !st.Until.Equal(want) || !st.Available {
		t.Errorf("got status %+v, want it available until %s", st, want)
	}
	clock.advance(attest.MaxStale)
	wantHeld(t, s, "at the limit", d, d)
	clock.advance(time.Second)
	wantHeld(t, s, "past the limit", nil, d)
	if st := s.Status()[0]; st.Available || st.Err == "" || st.Sequence != 1 || !st.Since.Equal(began) {
		t.Errorf("got status %+v, want it unavailable, with an error since %s, at sequence 1", st, began)
	}
	write(t, path, d.bundleDoc(t, 2))
	clock.advance(time.Second)
	wantHeld(t, s, "repaired", d, d)
	if st := s.Status()[0]; !st.Until.IsZero() || !st.Since.IsZero() {
		t.Errorf("got status %+v of a source that works, want no end and no failure", st)
	}
	if got := strings.Count(log.String(), "bundle source fails"); got != 1 {
		t.Errorf("got %d warnings, want one for one failure:\n%s", got, log.String())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestStatus(t *testing.T) {
	clock := newClock()
	a, b := newDomain(t, "acme.test", clock.Now()), newDomain(t, "other.test", clock.Now())
	dir := t.TempDir()
	pathA, pathB := filepath.Join(dir, "a.json"), filepath.Join(dir, "b.json")
	write(t, pathA, a.bundleDoc(t, 41))
	write(t, pathB, b.bundleDoc(t, 42))
	s := open(t, clock.Now,
		attest.BundleSpec{TrustDomain: b.td, File: pathB}, attest.BundleSpec{TrustDomain: a.td, File: pathA})
	for i, want := range []attest.BundleStatus{
		{TrustDomain: b.td, Source: "file " + pathB, Available: true, Sequence: 42, Fetched: clock.Now(), X509Authorities: 1, JWTAuthorities: 1, Expires: b.ca.NotAfter},
		{TrustDomain: a.td, Source: "file " + pathA, Available: true, Sequence: 41, Fetched: clock.Now(), X509Authorities: 1, JWTAuthorities: 1, Expires: a.ca.NotAfter},
	} {
		if got := s.Status()[i]; got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}
