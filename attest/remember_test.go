package attest_test

import (
	"math/big"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/internal/refusal"
	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
)

// TestCacheNeverChangesTheVerdict: after SVIDs were verified, something changes. An attestor that has cached them gives the
// same answer as one that has not.
func TestCacheNeverChangesTheVerdict(t *testing.T) {
	for name, tc := range map[string]struct {
		change     func(t *testing.T, w *world)
		x509, jwts string // why each is refused; empty when it is good still
	}{
		"nothing":                        {func(*testing.T, *world) {}, "", ""},
		"the token's time is over":       {func(_ *testing.T, w *world) { w.clock.advance(10 * time.Minute) }, "", "svid_expired"},
		"the leaf's time is over":        {func(_ *testing.T, w *world) { w.clock.advance(61 * time.Minute) }, "svid_expired", "svid_expired"},
		"the clock goes back":            {func(_ *testing.T, w *world) { w.clock.advance(-10 * time.Minute) }, "svid_not_yet_valid", "svid_not_yet_valid"},
		"the same authorities, as new":   {func(_ *testing.T, w *world) { w.bundles.Add(w.acme.bundle()) }, "", ""},
		"another authority besides":      {besides, "", ""},
		"another authority in its place": {func(t *testing.T, w *world) { w.acme.rotate(t); w.bundles.Add(w.acme.bundle()) }, "svid_signature", ""},
		"another key under the same kid": {func(t *testing.T, w *world) { w.acme.jwtKey = ecKey(t); w.bundles.Add(w.acme.bundle()) }, "", "svid_signature"},
		"no authority left":              {func(_ *testing.T, w *world) { w.bundles.Add(spiffebundle.New(w.acme.td)) }, "svid_signature", "svid_authority"},
		"no bundle left":                 {func(_ *testing.T, w *world) { w.bundles.Remove(w.acme.td) }, "bundle_unavailable", "bundle_unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			state := stateOf(t, w.acme.svid(t, w.acme.leaf("/agents/a")))
			token := with(nil)(t, w)
			for range 2 {
				if _, err := w.X509(state); err != nil {
					t.Fatal(err)
				}
				if _, err := w.JWT(token); err != nil {
					t.Fatal(err)
				}
			}
			tc.change(t, w)
			fresh, err := attest.New(w.config())
			if err != nil {
				t.Fatal(err)
			}
			for who, a := range map[string]*attest.Attestor{"who remembers": w.Attestor, "who does not": fresh} {
				if _, err := a.X509(state); why(err) != tc.x509 {
					t.Errorf("%s: the certificate: got %q (%v), want %q", who, why(err), err, tc.x509)
				}
				if _, err := a.JWT(token); why(err) != tc.jwts {
					t.Errorf("%s: the token: got %q (%v), want %q", who, why(err), err, tc.jwts)
				}
			}
		})
	}
}

func why(err error) string {
	if err == nil {
		return ""
	}
	return refusal.Reason(err)
}

func besides(t *testing.T, w *world) {
	t.Helper()
	bundle := w.acme.bundle()
	key := ecKey(t)
	bundle.AddX509Authority(sign(t, w.acme.caTemplate(), nil, key.Public(), key))
	w.bundles.Add(bundle)
}

// TestCachedChainExpiresWithItsIntermediate: the chain is valid only while all its certificates are, not for as long as its leaf.
func TestCachedChainExpiresWithItsIntermediate(t *testing.T) {
	w := newWorld(t)
	key, leafKey := ecKey(t), ecKey(t)
	template := w.acme.caTemplate()
	template.SerialNumber, template.NotAfter = big.NewInt(7), w.clock.Now().Add(10*time.Minute)
	between := sign(t, template, w.acme.ca, key.Public(), w.acme.caKey)
	leaf := sign(t, w.acme.leaf("/agents/a"), between, leafKey.Public(), key)
	state := stateOf(t, keyPair(leafKey, leaf, between))
	if _, err := w.X509(state); err != nil {
		t.Fatal(err)
	}
	w.clock.advance(11 * time.Minute)
	id, err := w.X509(state)
	wantReason(t, id, err, "svid_expired")
}

// TestCacheKeyIsTheWholeChain: another leaf with the same name, and the same leaf behind another chain, are verified again.
func TestCacheKeyIsTheWholeChain(t *testing.T) {
	w := newWorld(t)
	good := w.acme.svid(t, w.acme.leaf("/agents/a"))
	if _, err := w.X509(stateOf(t, good)); err != nil {
		t.Fatal(err)
	}
	forged := *w.acme
	forged.rotate(t) // an authority that is not in the bundle
	id, err := w.X509(stateOf(t, forged.svid(t, w.acme.leaf("/agents/a"))))
	wantReason(t, id, err, "svid_signature")
	token := with(nil)(t, w)
	if _, err := w.JWT(token); err != nil {
		t.Fatal(err)
	}
	id, err = w.JWT(token[:len(token)-2] + flipped(token[len(token)-2:]))
	wantReason(t, id, err, "svid_signature")
}

// flipped changes the first of two base64url digits, all of whose bits count.
func flipped(digits string) string {
	if digits[0] == 'A' {
		return "B" + digits[1:]
	}
	return "A" + digits[1:]
}
