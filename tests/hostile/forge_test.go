package hostile_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	_ "crypto/sha512" // for ES384 and similar
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

	"github.com/brevet-dev/brevet/internal/testkit"
)

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

func marshal(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// jws signs any header and payload.
func jws(t *testing.T, key crypto.Signer, header, payload string) string {
	t.Helper()
	input := b64([]byte(header)) + "." + b64([]byte(payload))
	return input + "." + b64(signature(t, key, crypto.SHA256, input))
}

func signature(t *testing.T, key crypto.Signer, hash crypto.Hash, input string) []byte {
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
		out, err := rsa.SignPKCS1v15(rand.Reader, key, hash, digest)
		if err != nil {
			t.Fatal(err)
		}
		return out
	case ed25519.PrivateKey:
		return ed25519.Sign(key, []byte(input))
	}
	t.Fatalf("no signature for a %T", key)
	return nil
}

func ecKey(t *testing.T) *ecdsa.PrivateKey { return keyOn(t, elliptic.P256()) }

func keyOn(t *testing.T, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// rsaKeys holds one key of each size: generating one takes longer than all tests with it.
var rsaKeys sync.Map

func rsaKey(t *testing.T, bits int) *rsa.PrivateKey {
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

// forgery is an authority of acme.test that the replicas trust and that signs any certificate.
type forgery struct {
	root *x509.Certificate
	key  crypto.Signer
}

// forge adds an authority to the bundle of a replica's trust domain acme.test.
func forge(t *testing.T, s *testkit.Stack, key crypto.Signer) forgery {
	t.Helper()
	f := forgery{key: key}
	f.root = certify(t, authority("acme.test"), nil, key.Public(), key)
	bundle := s.Acme.Bundle()
	bundle.AddX509Authority(f.root)
	s.Trust(bundle)
	return f
}

func authority(domain string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: domain + " forgery"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		URIs: []*url.URL{{Scheme: "spiffe", Host: domain}},
	}
}

// leaf is the template of a valid X.509-SVID of agent, for tests to spoil.
func leaf() *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		URIs:        []*url.URL{{Scheme: "spiffe", Host: "acme.test", Path: "/agents/a"}},
	}
}

// certify issues a certificate, self-signed if parent is nil.
func certify(t *testing.T, template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) *x509.Certificate {
	t.Helper()
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		t.Fatalf("signing a certificate: %v", err)
	}
	// A certificate that crypto/x509 cannot parse is presented all the same.
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return &x509.Certificate{Raw: der}
	}
	return cert
}

func keyPair(key crypto.Signer, chain ...*x509.Certificate) tls.Certificate {
	pair := tls.Certificate{PrivateKey: key}
	for _, cert := range chain {
		pair.Certificate = append(pair.Certificate, cert.Raw)
	}
	return pair
}

// svid signs a template for a new key.
func (f forgery) svid(t *testing.T, template *x509.Certificate) tls.Certificate {
	t.Helper()
	key := ecKey(t)
	return keyPair(key, certify(t, template, f.root, key.Public(), f.key))
}

// uriSAN returns a subject alternative name extension with exactly these texts, which url.URL cannot express.
func uriSAN(t *testing.T, uris ...string) pkix.Extension {
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

// showing returns the TLS configuration of a client that presents a certificate even if the server would not accept it.
func showing(s *testkit.Stack, pair tls.Certificate) *tls.Config {
	cfg := s.ClientTLS(nil)
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	return cfg
}
