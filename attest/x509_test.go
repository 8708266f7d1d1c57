package attest_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"math/big"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/attest"
)

// badCert is a certificate that must be rejected, with the reason.
type badCert struct {
	make   func(t *testing.T, w *world) tls.Certificate
	reason string
}

// spoiled signs a leaf of acme.test with one change.
func spoiled(change func(*x509.Certificate)) func(*testing.T, *world) tls.Certificate {
	return func(t *testing.T, w *world) tls.Certificate {
		t.Helper()
		leaf := w.acme.leaf("/agents/a")
		change(leaf)
		return w.acme.svid(t, leaf)
	}
}

// named signs a leaf whose URI names are exactly these texts.
func named(uris ...string) func(*testing.T, *world) tls.Certificate {
	return func(t *testing.T, w *world) tls.Certificate {
		t.Helper()
		return spoiled(func(c *x509.Certificate) {
			c.URIs, c.ExtraExtensions = nil, []pkix.Extension{uriSAN(t, uris...)}
		})(t, w)
	}
}

// keyUsage returns the extension with any criticality and the value digitalSignature.
func keyUsage(critical bool) pkix.Extension {
	return pkix.Extension{
		Id:       asn1.ObjectIdentifier{2, 5, 29, 15},
		Critical: critical,
		Value:    []byte{asn1.TagBitString, 2, 7, 0x80}, // digitalSignature
	}
}

// intermediate signs a leaf of acme.test through an intermediate with one change.
func intermediate(change func(*x509.Certificate)) func(*testing.T, *world) tls.Certificate {
	return func(t *testing.T, w *world) tls.Certificate {
		t.Helper()
		template := w.acme.caTemplate()
		template.SerialNumber = big.NewInt(3)
		template.Subject.CommonName = "intermediate"
		change(template)
		interKey, key := ecKey(t), ecKey(t)
		inter := sign(t, template, w.acme.ca, interKey.Public(), w.acme.caKey)
		return keyPair(key, sign(t, w.acme.leaf("/agents/a"), inter, key.Public(), interKey), inter)
	}
}

var badCerts = map[string]badCert{
	"H19 two URI names":         {named("spiffe://acme.test/a", "spiffe://acme.test/b"), "svid_profile"},
	"H19 a second URI of https": {named("spiffe://acme.test/a", "https://acme.test/"), "svid_profile"},
	"no URI name":               {spoiled(func(c *x509.Certificate) { c.URIs, c.DNSNames = nil, []string{"acme.test"} }), "svid_profile"},
	"no name at all":            {spoiled(func(c *x509.Certificate) { c.URIs = nil }), "svid_profile"},
	"H20 CA":                    {spoiled(func(c *x509.Certificate) { c.IsCA = true }), "svid_profile"},
	"H20 keyCertSign":           {spoiled(func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCertSign }), "svid_profile"},
	"H20 cRLSign":               {spoiled(func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCRLSign }), "svid_profile"},
	"H20 no digitalSignature":   {spoiled(func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageKeyAgreement }), "svid_profile"},
	"H20 no key usage":          {spoiled(func(c *x509.Certificate) { c.KeyUsage = 0 }), "svid_profile"},
	"H20 key usage not critical": {spoiled(func(c *x509.Certificate) {
		c.ExtraExtensions = []pkix.Extension{keyUsage(false)}
	}), "svid_profile"},
	"H20 no clientAuth": {spoiled(func(c *x509.Certificate) {
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}), "svid_profile"},
	"H20 any usage is not clientAuth": {spoiled(func(c *x509.Certificate) {
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny}
	}), "svid_profile"},
	"H20 unknown usage only": {spoiled(func(c *x509.Certificate) {
		c.ExtKeyUsage, c.UnknownExtKeyUsage = nil, []asn1.ObjectIdentifier{{1, 2, 3, 4}}
	}), "svid_profile"},
	"H21 root path":              {spoiled(func(c *x509.Certificate) { c.URIs[0].Path = "" }), "spiffe_id_invalid"},
	"H22 federated CA, our ID":   {signedByOther, "svid_signature"},
	"H22 self-signed":            {selfSigned, "svid_signature"},
	"H23 URI constraint":         {intermediate(func(c *x509.Certificate) { c.PermittedURIDomains = []string{"else.test"} }), "svid_signature"},
	"H23 excluded URI":           {intermediate(func(c *x509.Certificate) { c.ExcludedURIDomains = []string{"acme.test"} }), "svid_signature"},
	"intermediate is not a CA":   {intermediate(func(c *x509.Certificate) { c.IsCA, c.KeyUsage = false, x509.KeyUsageDigitalSignature }), "svid_signature"},
	"intermediate has expired":   {intermediate(func(c *x509.Certificate) { c.NotAfter = c.NotBefore.Add(time.Minute) }), "svid_expired"},
	"H24 expired":                {spoiled(func(c *x509.Certificate) { c.NotAfter = c.NotBefore.Add(59 * time.Second) }), "svid_expired"},
	"H24 future":                 {spoiled(func(c *x509.Certificate) { c.NotBefore = c.NotBefore.Add(2 * time.Minute) }), "svid_not_yet_valid"},
	"H27 RSA 1024":               {weakLeaf, "svid_weak_key"},
	"H27 curve P-224":            {oldCurve, "svid_weak_key"},
	"H27 SHA-1":                  {sha1Signed, "svid_signature"},
	"H27 authority of RSA 1024":  {weakAuthority, "svid_signature"},
	"H31 chain of 100":           {longChain, "svid_too_large"},
	"H31 10k names":              {spoiled(func(c *x509.Certificate) { c.DNSNames = manyNames(10_000) }), "svid_too_large"},
	"H31 65 names":               {spoiled(func(c *x509.Certificate) { c.DNSNames = manyNames(64) }), "svid_too_large"},
	"H31 10k names up the chain": {intermediate(func(c *x509.Certificate) { c.DNSNames = manyNames(10_000) }), "svid_too_large"},
	"H34 domain with a suffix":   {named("spiffe://acme.test.evil/a"), "unknown_trust_domain"},
	"domain with a bundle only":  {func(t *testing.T, w *world) tls.Certificate { return w.evil.svid(t, w.evil.leaf("/a")) }, "unknown_trust_domain"},
}

func signedByOther(t *testing.T, w *world) tls.Certificate {
	t.Helper()
	return w.other.svid(t, w.acme.leaf("/agents/a"))
}

func selfSigned(t *testing.T, w *world) tls.Certificate {
	t.Helper()
	key := ecKey(t)
	return keyPair(key, sign(t, w.acme.leaf("/agents/a"), nil, key.Public(), key))
}

func weakLeaf(t *testing.T, w *world) tls.Certificate {
	t.Helper()
	key := rsaKey(t, 1024)
	return keyPair(key, sign(t, w.acme.leaf("/agents/a"), w.acme.ca, key.Public(), w.acme.caKey))
}

func oldCurve(t *testing.T, w *world) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return keyPair(key, sign(t, w.acme.leaf("/agents/a"), w.acme.ca, key.Public(), w.acme.caKey))
}

// underAuthority adds an authority with this key to the bundle of acme.test and signs a leaf with it.
func underAuthority(t *testing.T, w *world, key crypto.Signer, algorithm x509.SignatureAlgorithm) tls.Certificate {
	t.Helper()
	root := sign(t, w.acme.caTemplate(), nil, key.Public(), key)
	bundle := w.acme.bundle()
	bundle.AddX509Authority(root)
	w.bundles.Add(bundle)
	template := w.acme.leaf("/agents/a")
	template.SignatureAlgorithm = algorithm
	leafKey := ecKey(t)
	return keyPair(leafKey, sign(t, template, root, leafKey.Public(), key))
}

func sha1Signed(t *testing.T, w *world) tls.Certificate {
	t.Helper()
	return underAuthority(t, w, rsaKey(t, 2048), x509.SHA1WithRSA)
}

func weakAuthority(t *testing.T, w *world) tls.Certificate {
	t.Helper()
	return underAuthority(t, w, rsaKey(t, 1024), x509.SHA256WithRSA)
}

func longChain(t *testing.T, w *world) tls.Certificate {
	t.Helper()
	pair := w.acme.svid(t, w.acme.leaf("/agents/a"))
	for len(pair.Certificate) < 100 {
		pair.Certificate = append(pair.Certificate, w.acme.ca.Raw)
	}
	return pair
}

func manyNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("n%d.test", i)
	}
	return names
}

// T6 and the hostile inputs: an authority of one trust domain proves no ID of another.
func TestX509Refuses(t *testing.T) {
	for name, bad := range badCerts {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			id, err := w.X509(stateOf(t, bad.make(t, w)))
			wantReason(t, id, err, bad.reason)
		})
	}
	for name, text := range badIDs {
		t.Run("named "+name, func(t *testing.T) {
			w := newWorld(t)
			pair := badlyNamed(t, w, text)
			if _, err := x509.ParseCertificate(pair.Certificate[0]); unparsable[name] {
				if err == nil {
					t.Error("got a certificate that parses, want it to fail in the handshake already")
				}
				return
			}
			id, err := w.X509(stateOf(t, pair))
			wantReason(t, id, err, "spiffe_id_invalid")
		})
	}
}

// unparsable are the bad IDs that make crypto/x509 reject the whole certificate.
var unparsable = map[string]bool{
	"newline": true, "path letter not ASCII": true, "leading space": true, "H34 IDN twin": true,
	"backslash": true, "NUL": true,
}

// badlyNamed is valid but for the text of its URI name.
func badlyNamed(t *testing.T, w *world, text string) tls.Certificate {
	t.Helper()
	template := w.acme.leaf("/agents/a")
	template.URIs, template.ExtraExtensions = nil, []pkix.Extension{uriSAN(t, text)}
	key := ecKey(t)
	der, err := x509.CreateCertificate(rand.Reader, template, w.acme.ca, key.Public(), w.acme.caKey)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func TestX509Accepts(t *testing.T) {
	w := newWorld(t)
	rsaLeaf := func(t *testing.T, w *world) tls.Certificate {
		t.Helper()
		key := rsaKey(t, 2048)
		return keyPair(key, sign(t, w.acme.leaf("/agents/a"), w.acme.ca, key.Public(), w.acme.caKey))
	}
	for name, make := range map[string]func(*testing.T, *world) tls.Certificate{
		"plain":                spoiled(func(*x509.Certificate) {}),
		"no extended usage":    spoiled(func(c *x509.Certificate) { c.ExtKeyUsage = nil }),
		"key encipherment":     spoiled(func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageKeyEncipherment }),
		"critical by hand":     spoiled(func(c *x509.Certificate) { c.ExtraExtensions = []pkix.Extension{keyUsage(true)} }),
		"DNS names too":        spoiled(func(c *x509.Certificate) { c.DNSNames = manyNames(63) }),
		"intermediate":         intermediate(func(*x509.Certificate) {}),
		"constraint that fits": intermediate(func(c *x509.Certificate) { c.PermittedURIDomains = []string{"acme.test"} }),
		"RSA 2048":             rsaLeaf,
	} {
		t.Run(name, func(t *testing.T) {
			state := stateOf(t, make(t, w))
			id, err := w.X509(state)
			if err != nil {
				t.Fatalf("got %v, want an identity", err)
			}
			leaf := state.PeerCertificates[0]
			wantIdentity(t, id, "spiffe://acme.test/agents/a", attest.KindX509, leaf.NotAfter)
			if got, want := id.Thumbprint(), thumbprint(leaf); got != want {
				t.Errorf("got thumbprint %s, want %s", got, want)
			}
		})
	}
}

func wantIdentity(t *testing.T, id attest.Identity, want string, kind attest.Kind, expires time.Time) {
	t.Helper()
	if got := id.ID().String(); got != want {
		t.Errorf("got ID %s, want %s", got, want)
	}
	if got := id.TrustDomain(); got != id.ID().TrustDomain() || id.IsZero() {
		t.Errorf("got trust domain %s of %s", got, id.ID())
	}
	if id.Kind() != kind {
		t.Errorf("got kind %s, want %s", id.Kind(), kind)
	}
	if !id.Expires().Equal(expires) {
		t.Errorf("got expiry %s, want %s", id.Expires(), expires)
	}
}

// Time and bundle are checked again on each request.
func TestX509IsVerifiedAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(t *testing.T, w *world)
		reason string
	}{
		"nothing changed":        {func(*testing.T, *world) {}, ""},
		"H26 last second":        {func(_ *testing.T, w *world) { w.clock.advance(time.Hour) }, ""},
		"H26 expired":            {func(_ *testing.T, w *world) { w.clock.advance(time.Hour + time.Second) }, "svid_expired"},
		"H25 authority replaced": {func(t *testing.T, w *world) { t.Helper(); w.acme.rotate(t); w.bundles.Add(w.acme.bundle()) }, "svid_signature"},
		"H25 bundle withdrawn":   {func(_ *testing.T, w *world) { w.bundles.Remove(w.acme.td) }, "bundle_unavailable"},
		"other domain withdrawn": {func(_ *testing.T, w *world) { w.bundles.Remove(w.other.td) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			state := stateOf(t, w.acme.svid(t, w.acme.leaf("/agents/a")))
			if _, err := w.X509(state); err != nil {
				t.Fatal(err)
			}
			tc.change(t, w)
			id, err := w.X509(state)
			if tc.reason == "" && err == nil {
				return
			}
			wantReason(t, id, err, tc.reason)
		})
	}
}

func TestX509States(t *testing.T) {
	w := newWorld(t)
	unfinished := stateOf(t, w.acme.svid(t, w.acme.leaf("/agents/a")))
	unfinished.HandshakeComplete = false
	resumed := stateOf(t, w.acme.svid(t, w.acme.leaf("/agents/a")))
	resumed.DidResume = true
	for name, tc := range map[string]struct {
		state  *tls.ConnectionState
		reason string
	}{
		"no TLS":          {nil, "no_identity"},
		"no certificate":  {&tls.ConnectionState{HandshakeComplete: true}, "no_identity"},
		"unfinished":      {unfinished, "svid_profile"},
		"H25 was resumed": {resumed, "tls_resumed"},
	} {
		t.Run(name, func(t *testing.T) {
			id, err := w.X509(tc.state)
			wantReason(t, id, err, tc.reason)
		})
	}
}

func BenchmarkX509(b *testing.B) {
	w := newWorld(b)
	state := stateOf(b, w.acme.svid(b, w.acme.leaf("/agents/a")))
	for b.Loop() {
		if _, err := w.X509(state); err != nil {
			b.Fatal(err)
		}
	}
}
