package attest_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/internal/refusal"
	"github.com/spiffe/go-spiffe/v2/bundle/jwtbundle"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

func TestNewRefuses(t *testing.T) {
	for name, spoil := range map[string]func(*attest.Config){
		"no bundles":           func(c *attest.Config) { c.Bundles = nil },
		"no clock":             func(c *attest.Config) { c.Now = nil },
		"H12 no audience":      func(c *attest.Config) { c.Audience = "" },
		"no trust domains":     func(c *attest.Config) { c.TrustDomains = nil },
		"an empty domain":      func(c *attest.Config) { c.TrustDomains = append(c.TrustDomains, spiffeid.TrustDomain{}) },
		"negative life":        func(c *attest.Config) { c.MaxJWTLife = -1 },
		"life above an hour":   func(c *attest.Config) { c.MaxJWTLife = time.Hour + 1 },
		"negative leeway":      func(c *attest.Config) { c.Leeway = -1 },
		"leeway over a minute": func(c *attest.Config) { c.Leeway = time.Minute + 1 },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := newWorld(t).config()
			spoil(&cfg)
			if a, err := attest.New(cfg); err == nil || a != nil {
				t.Errorf("got %v, %v, want an error", a, err)
			}
		})
	}
}

func TestIdentify(t *testing.T) {
	w := newWorld(t)
	a := stateOf(t, w.acme.svid(t, w.acme.leaf("/agents/a")))
	tokenA := with(nil)(t, w)
	tokenB := with(map[string]any{"sub": "spiffe://acme.test/agents/b"})(t, w)
	twin := w.other.token(t, w.other.claims("/agents/a", w.clock.Now()))
	expired := w.acme.leaf("/agents/a")
	expired.NotAfter = w.clock.Now().Add(-time.Second)
	plain := &tls.ConnectionState{HandshakeComplete: true}
	for name, tc := range map[string]struct {
		state  *tls.ConnectionState
		bearer string
		kind   attest.Kind
		reason string
	}{
		"nothing":                         {nil, "", "", "no_identity"},
		"TLS without a certificate":       {plain, "", "", "no_identity"},
		"certificate":                     {a, "", attest.KindX509, ""},
		"token":                           {nil, tokenA, attest.KindJWT, ""},
		"token over TLS":                  {plain, tokenA, attest.KindJWT, ""},
		"both":                            {a, tokenA, attest.KindX509, ""},
		"H30 certificate A, token B":      {a, tokenB, "", "identity_mismatch"},
		"H30 same path, another domain":   {a, twin, "", "identity_mismatch"},
		"good certificate, bad token":     {a, "junk", "", "svid_malformed"},
		"expired certificate, good token": {stateOf(t, w.acme.svid(t, expired)), tokenA, "", "svid_expired"},
	} {
		t.Run(name, func(t *testing.T) {
			id, err := w.Identify(tc.state, tc.bearer)
			if tc.reason != "" || err != nil {
				wantReason(t, id, err, tc.reason)
				return
			}
			if got := id.ID().String(); got != "spiffe://acme.test/agents/a" || id.Kind() != tc.kind {
				t.Errorf("got %s by %s, want agent a by %s", got, id.Kind(), tc.kind)
			}
			if withCert := tc.kind == attest.KindX509; withCert != (id.Thumbprint() != "") {
				t.Errorf("got thumbprint %q, want one: %v", id.Thumbprint(), withCert)
			}
		})
	}
}

// An identity with two documents ends with the document that ends first.
func TestIdentifyBothExpires(t *testing.T) {
	w := newWorld(t)
	for name, left := range map[string]time.Duration{"token first": time.Hour, "certificate first": time.Minute} {
		t.Run(name, func(t *testing.T) {
			leaf := w.acme.leaf("/agents/a")
			leaf.NotAfter = w.clock.Now().Add(left)
			id, err := w.Identify(stateOf(t, w.acme.svid(t, leaf)), with(nil)(t, w))
			if err != nil {
				t.Fatal(err)
			}
			if want := w.clock.Now().Add(min(left, 4*time.Minute)); !id.Expires().Equal(want) {
				t.Errorf("got expiry %s, want %s", id.Expires(), want)
			}
		})
	}
}

// wrongBundles returns the bundle of another trust domain, or no bundle and no error.
type wrongBundles struct{ with *domain }

func (b wrongBundles) GetX509BundleForTrustDomain(spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	if b.with == nil {
		return nil, nil //nolint:nilnil // a source that breaks its contract
	}
	return b.with.bundle().X509Bundle(), nil
}

func (b wrongBundles) GetJWTBundleForTrustDomain(spiffeid.TrustDomain) (*jwtbundle.Bundle, error) {
	if b.with == nil {
		return nil, nil //nolint:nilnil // a source that breaks its contract
	}
	return b.with.bundle().JWTBundle(), nil
}

// A trust domain is verified by its own bundle, whatever a source returns.
func TestBundleOfAnotherDomain(t *testing.T) {
	w := newWorld(t)
	forged := stateOf(t, w.evil.svid(t, w.acme.leaf("/agents/a")))
	token := jws(t, w.evil.jwtKey, marshal(t, w.evil.header()), marshal(t, w.acme.claims("/agents/a", w.clock.Now())))
	for name, with := range map[string]*domain{"of another domain": w.evil, "nil": nil} {
		t.Run(name, func(t *testing.T) {
			cfg := w.config()
			cfg.Bundles = wrongBundles{with}
			a, err := attest.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			id, err := a.X509(forged)
			wantReason(t, id, err, "bundle_unavailable")
			id, err = a.JWT(token)
			wantReason(t, id, err, "bundle_unavailable")
		})
	}
}

func TestReasons(t *testing.T) {
	seen := map[string]error{}
	for _, err := range []error{
		attest.ErrNoIdentity, attest.ErrMalformed, attest.ErrTooLarge, attest.ErrProfile, attest.ErrID,
		attest.ErrTrustDomain, attest.ErrAlgorithm, attest.ErrWeakKey, attest.ErrAuthority, attest.ErrSignature,
		attest.ErrExpired, attest.ErrNotYetValid, attest.ErrLifetime, attest.ErrAudience, attest.ErrResumed,
		attest.ErrMismatch, attest.ErrBundleUnavailable,
	} {
		reason := refusal.Reason(fmt.Errorf("wrapped: %w", err))
		if seen[reason] != nil || reason == "" || reason == "internal" {
			t.Errorf("got reason %q for %v and %v, want one of its own", reason, err, seen[reason])
		}
		seen[reason] = err
	}
	if got := refusal.Reason(nil); got != "" {
		t.Errorf("got %q for nil, want nothing", got)
	}
	if got := refusal.Reason(errors.New("else")); got != "internal" {
		t.Errorf("got %q for a foreign error, want internal", got)
	}
}
