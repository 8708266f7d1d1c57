package attest_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	_ "crypto/sha512" // for ES384, RS512 and similar
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

const audience = "https://brevet.test"

// domain is a trust domain with a CA that signs any certificate.
type domain struct {
	td      spiffeid.TrustDomain
	caKey   crypto.Signer
	ca      *x509.Certificate
	jwtKey  crypto.Signer
	kid     string
	started time.Time
}

func newDomain(t testing.TB, name string, now time.Time) *domain {
	t.Helper()
	d := &domain{td: spiffeid.RequireTrustDomainFromString(name), kid: name + "-key", started: now}
	d.jwtKey = ecKey(t)
	d.rotate(t)
	return d
}

// rotate gives the domain a new X.509 authority.
func (d *domain) rotate(t testing.TB) {
	t.Helper()
	d.caKey = ecKey(t)
	d.ca = sign(t, d.caTemplate(), nil, d.caKey.Public(), d.caKey)
}

func (d *domain) caTemplate() *x509.Certificate {
	return &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: d.td.Name()},
		NotBefore:             d.started.Add(-time.Hour),
		NotAfter:              d.started.Add(48 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
		URIs:                  []*url.URL{d.td.ID().URL()},
	}
}

// bundle returns the bundle that the domain publishes.
func (d *domain) bundle() *spiffebundle.Bundle {
	b := spiffebundle.New(d.td)
	b.AddX509Authority(d.ca)
	_ = b.AddJWTAuthority(d.kid, d.jwtKey.Public())
	return b
}

// bundleDoc returns the domain's bundle in the SPIFFE bundle format, with spiffe_sequence set.
func (d *domain) bundleDoc(t testing.TB, sequence uint64) []byte {
	t.Helper()
	b := d.bundle()
	b.SetSequenceNumber(sequence)
	doc, err := b.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// leaf returns the template of a valid X.509-SVID, for a test to spoil.
func (d *domain) leaf(path string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber:          big.NewInt(2),
		NotBefore:             d.started.Add(-time.Minute),
		NotAfter:              d.started.Add(time.Hour),
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		URIs:                  []*url.URL{{Scheme: "spiffe", Host: d.td.Name(), Path: path}},
	}
}

// svid signs a template with the domain's own authority.
func (d *domain) svid(t testing.TB, template *x509.Certificate) tls.Certificate {
	t.Helper()
	key := ecKey(t)
	return keyPair(key, sign(t, template, d.ca, key.Public(), d.caKey))
}

func keyPair(key crypto.Signer, chain ...*x509.Certificate) tls.Certificate {
	pair := tls.Certificate{PrivateKey: key, Leaf: chain[0]}
	for _, cert := range chain {
		pair.Certificate = append(pair.Certificate, cert.Raw)
	}
	return pair
}

// sign issues a certificate, self-signed if parent is nil.
func sign(t testing.TB, template, parent *x509.Certificate, pub crypto.PublicKey, key crypto.Signer) *x509.Certificate {
	t.Helper()
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, pub, key)
	if err != nil {
		t.Fatalf("signing certificate: %v", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatalf("parsing own certificate: %v", err)
	}
	return cert
}

// uriSAN returns a subject alternative name extension with exactly these texts, which url.URL cannot express.
func uriSAN(t testing.TB, uris ...string) pkix.Extension {
	t.Helper()
	var names []asn1.RawValue
	for _, uri := range uris {
		names = append(names, asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: 6, Bytes: []byte(uri)})
	}
	value, err := asn1.Marshal(names)
	if err != nil {
		t.Fatal(err)
	}
	return pkix.Extension{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Value: value}
}

// claims returns the claims of a valid JWT-SVID, for a test to spoil.
func (d *domain) claims(path string, now time.Time) map[string]any {
	return map[string]any{
		"sub": d.td.IDString() + path,
		"aud": audience,
		"iat": now.Unix(),
		"exp": now.Add(4 * time.Minute).Unix(),
	}
}

func (d *domain) header() map[string]any {
	return map[string]any{"alg": "ES256", "kid": d.kid, "typ": "JWT"}
}

func (d *domain) token(t testing.TB, claims map[string]any) string {
	t.Helper()
	return jws(t, d.jwtKey, marshal(t, d.header()), marshal(t, claims))
}

// jws signs any header and payload with the algorithm that fits the key.
func jws(t testing.TB, key crypto.Signer, header, payload []byte) string {
	t.Helper()
	input := b64(header) + "." + b64(payload)
	return input + "." + b64(signature(t, key, crypto.SHA256, input))
}

func signature(t testing.TB, key crypto.Signer, hash crypto.Hash, input string) []byte {
	t.Helper()
	h := hash.New()
	h.Write([]byte(input))
	digest := h.Sum(nil)
	switch key := key.(type) {
	case *ecdsa.PrivateKey:
		r, s, err := ecdsa.Sign(rand.Reader, key, digest)
		if err != nil {
			t.Fatal(err)
		}
		size := (key.Curve.Params().BitSize + 7) / 8
		out := make([]byte, 2*size)
		r.FillBytes(out[:size])
		s.FillBytes(out[size:])
		return out
	case *rsa.PrivateKey:
		sig, err := rsa.SignPKCS1v15(rand.Reader, key, hash, digest)
		if err != nil {
			t.Fatal(err)
		}
		return sig
	}
	t.Fatalf("no signature for a %T", key)
	return nil
}

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func thumbprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return b64(sum[:])
}

func ecKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// rsaKeys holds one key of each size: generating one takes longer than all tests with it.
var rsaKeys sync.Map

func rsaKey(t testing.TB, bits int) *rsa.PrivateKey {
	t.Helper()
	made, _ := rsaKeys.LoadOrStore(bits, sync.OnceValues(func() (*rsa.PrivateKey, error) {
		return rsa.GenerateKey(rand.Reader, bits)
	}))
	key, err := made.(func() (*rsa.PrivateKey, error))()
	if err != nil {
		t.Fatal(err)
	}
	return key
}
