package scopes_test

import (
	"crypto"
	"crypto/dsa" //nolint:staticcheck // a key that has to be refused
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/scopes"
	"golang.org/x/crypto/ssh"
)

func newKey(tb testing.TB) crypto.Signer {
	tb.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

func ecKey(tb testing.TB, curve elliptic.Curve) crypto.Signer {
	tb.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

// csrDER makes a request by a key. It is empty except for what change adds.
func csrDER(tb testing.TB, key crypto.Signer, change func(*x509.CertificateRequest)) []byte {
	tb.Helper()
	template := &x509.CertificateRequest{}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		tb.Fatal(err)
	}
	return der
}

func csrPEM(der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

func newCSR(tb testing.TB, change func(*x509.CertificateRequest)) string {
	tb.Helper()
	return csrPEM(csrDER(tb, newKey(tb), change))
}

func extension(tb testing.TB, id asn1.ObjectIdentifier, value any) pkix.Extension {
	tb.Helper()
	der, err := asn1.Marshal(value)
	if err != nil {
		tb.Fatal(err)
	}
	return pkix.Extension{Id: id, Value: der}
}

// askCert requests the certificate of service a.
func askCert(tb testing.TB, c *scopes.Catalogue, csr string) (scopes.Decision, error) {
	tb.Helper()
	return c.Decide(subject(agent), scopes.Ask{Scope: "web.cert", Params: map[string]any{"service": "a"}, CSR: csr, RequestContext: scopes.RequestContext{Task: "t"}}, noon)
}

func TestValidCSRsAreAccepted(t *testing.T) {
	c := vaultWorld(t)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]crypto.Signer{
		"Ed25519": newKey(t), "P-256": ecKey(t, elliptic.P256()), "P-384": ecKey(t, elliptic.P384()), "P-521": ecKey(t, elliptic.P521()), "RSA": rsaKey,
	} {
		t.Run(name, func(t *testing.T) {
			csr := csrPEM(csrDER(t, key, nil))
			if d, err := askCert(t, c, csr); err != nil || d.Grant.Data["csr"] != csr {
				t.Errorf("got %v", err)
			}
		})
	}
	for name, change := range map[string]func(*x509.CertificateRequest){
		"the scope's common name": func(r *x509.CertificateRequest) { r.Subject.CommonName = "a.svc.acme.example" },
		"some of the scope's names": func(r *x509.CertificateRequest) {
			r.DNSNames = []string{"a.acme.example", "a.svc.acme.example"}
		},
		"all of the scope's names": func(r *x509.CertificateRequest) {
			r.Subject.CommonName = "a.svc.acme.example"
			r.DNSNames = []string{"www.acme.example", "a.acme.example", "a.svc.acme.example"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := askCert(t, c, newCSR(t, change)); err != nil {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("the other label, and blank lines around", func(t *testing.T) {
		plain := newCSR(t, nil)
		d, err := askCert(t, c, "\r\n"+strings.ReplaceAll(plain, "CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST")+"\n\n")
		if err != nil || d.Grant.Data["csr"] != plain {
			t.Errorf("got %v and %v", d.Grant, err)
		}
	})
}

// H56: a CSR that tries to certify more than a key.
func TestCSRsWithExtraRequestsAreRefused(t *testing.T) {
	c := vaultWorld(t)
	basicConstraints, keyUsage := asn1.ObjectIdentifier{2, 5, 29, 19}, asn1.ObjectIdentifier{2, 5, 29, 15}
	subjectAltName := asn1.ObjectIdentifier{2, 5, 29, 17}
	spiffe, _ := url.Parse("spiffe://td.example/admin")
	name := func(tag int, value string) asn1.RawValue {
		return asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: tag, Bytes: []byte(value)}
	}
	for title, change := range map[string]func(*x509.CertificateRequest){
		"another common name":                 func(r *x509.CertificateRequest) { r.Subject.CommonName = "admin.acme.example" },
		"common name in capitals":             func(r *x509.CertificateRequest) { r.Subject.CommonName = "A.svc.acme.example" },
		"an alternative as common":            func(r *x509.CertificateRequest) { r.Subject.CommonName = "www.acme.example" },
		"an organisation":                     func(r *x509.CertificateRequest) { r.Subject.Organization = []string{"system:masters"} },
		"an organisation of the scope's name": func(r *x509.CertificateRequest) { r.Subject.Organization = []string{"a.svc.acme.example"} },
		"two common names": func(r *x509.CertificateRequest) {
			cn := asn1.ObjectIdentifier{2, 5, 4, 3}
			r.Subject.ExtraNames = []pkix.AttributeTypeAndValue{{Type: cn, Value: "a.svc.acme.example"}, {Type: cn, Value: "admin.acme.example"}}
		},
		"another SAN": func(r *x509.CertificateRequest) { r.DNSNames = []string{"a.svc.acme.example", "admin.acme.example"} },
		"a wildcard":  func(r *x509.CertificateRequest) { r.DNSNames = []string{"*.acme.example"} },
		"an IP":       func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)} },
		"an e-mail":   func(r *x509.CertificateRequest) { r.EmailAddresses = []string{"root@acme.example"} },
		"a URI":       func(r *x509.CertificateRequest) { r.URIs = []*url.URL{spiffe} },
		"another kind of name": func(r *x509.CertificateRequest) { // a registered id, which x509 ignores
			r.ExtraExtensions = []pkix.Extension{extension(t, subjectAltName, []asn1.RawValue{name(2, "a.svc.acme.example"), name(8, "\x2a\x03")})}
		},
		"the scope's name as an e-mail": func(r *x509.CertificateRequest) {
			r.ExtraExtensions = []pkix.Extension{extension(t, subjectAltName, []asn1.RawValue{name(1, "a.svc.acme.example")})}
		},
		"the scope's name of no kind that is known": func(r *x509.CertificateRequest) {
			r.ExtraExtensions = []pkix.Extension{extension(t, subjectAltName, []asn1.RawValue{name(5, "a.svc.acme.example")})}
		},
		"a CA bit": func(r *x509.CertificateRequest) {
			r.ExtraExtensions = []pkix.Extension{extension(t, basicConstraints, struct{ CA bool }{true})}
		},
		"no CA bit, said so": func(r *x509.CertificateRequest) {
			r.ExtraExtensions = []pkix.Extension{extension(t, basicConstraints, struct{}{})}
		},
		"a key usage": func(r *x509.CertificateRequest) {
			r.ExtraExtensions = []pkix.Extension{extension(t, keyUsage, asn1.BitString{Bytes: []byte{4}, BitLength: 6})}
		},
	} {
		t.Run(title, func(t *testing.T) {
			refusedCSR(t, c, newCSR(t, change), "csr must contain only the common name and the DNS names of this scope, and no other name, extension or attribute")
		})
	}
	t.Run("a challenge password", func(t *testing.T) {
		refusedCSR(t, c, csrPEM(withChallenge(t)), "csr must contain only the common name and the DNS names of this scope, and no other name, extension or attribute")
	})
}

func refusedCSR(t *testing.T, c *scopes.Catalogue, csr, want string) {
	t.Helper()
	_, err := askCert(t, c, csr)
	var bad *scopes.InvalidAsk
	if !errors.As(err, &bad) || bad.Field != "csr" || bad.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// withChallenge signs a request with an attribute that x509 can neither write nor read.
func withChallenge(t *testing.T) []byte {
	t.Helper()
	key := newKey(t)
	type attribute struct {
		ID     asn1.ObjectIdentifier
		Values []any `asn1:"set"`
	}
	var plain struct {
		TBS struct {
			Version    int
			Subject    asn1.RawValue
			PublicKey  asn1.RawValue
			Attributes []asn1.RawValue `asn1:"tag:0"`
		}
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}
	if _, err := asn1.Unmarshal(csrDER(t, key, nil), &plain); err != nil {
		t.Fatal(err)
	}
	challenge, err := asn1.Marshal(attribute{ID: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 7}, Values: []any{"secret"}})
	if err != nil {
		t.Fatal(err)
	}
	plain.TBS.Attributes = []asn1.RawValue{{FullBytes: challenge}}
	tbs, err := asn1.Marshal(plain.TBS)
	if err != nil {
		t.Fatal(err)
	}
	signature, err := key.Sign(rand.Reader, tbs, crypto.Hash(0))
	if err != nil {
		t.Fatal(err)
	}
	plain.Signature = asn1.BitString{Bytes: signature, BitLength: len(signature) * 8}
	der, err := asn1.Marshal(plain)
	if err != nil {
		t.Fatal(err)
	}
	if parsed, err := x509.ParseCertificateRequest(der); err != nil || parsed.CheckSignature() != nil {
		t.Fatalf("the request is not one: %v", err)
	}
	return der
}

func TestMalformedCSRsAreRefused(t *testing.T) {
	const form = "csr must be one PEM block with a certificate signing request whose signature is valid"
	c := vaultWorld(t)
	der := csrDER(t, newKey(t), nil)
	good := csrPEM(der)
	forged := slices.Clone(der)
	forged[len(forged)-1] ^= 1
	for name, csr := range map[string]string{
		"text":           "hello",
		"only a header":  "-----BEGIN CERTIFICATE REQUEST-----\n",
		"two":            good + good,
		"text before":    "hello\n" + good,
		"text after":     good + "hello",
		"a header":       strings.Replace(good, "-----\n", "-----\nProc-Type: 4,ENCRYPTED\n\n", 1),
		"another label":  strings.ReplaceAll(good, "CERTIFICATE REQUEST", "CERTIFICATE"),
		"a private key":  strings.ReplaceAll(good, "CERTIFICATE REQUEST", "PRIVATE KEY"),
		"bytes after":    csrPEM(append(slices.Clone(der), 0)),
		"cut":            csrPEM(der[:len(der)-1]),
		"another signed": csrPEM(forged),
		"nothing in it":  csrPEM(nil),
	} {
		t.Run(name, func(t *testing.T) { refusedCSR(t, c, csr, form) })
	}
	t.Run("too long", func(t *testing.T) {
		refusedCSR(t, c, good+strings.Repeat("\n", 8<<10), "csr must be at most 8192 bytes long")
	})
	t.Run("SHA-1", func(t *testing.T) { refusedCSR(t, c, csrPEM(withSHA1(t)), form) })
}

// withSHA1 signs a request with SHA-1, which Go no longer does but still verifies.
func withSHA1(t *testing.T) []byte {
	t.Helper()
	key := ecKey(t, elliptic.P256())
	var r struct {
		TBS       asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}
	if _, err := asn1.Unmarshal(csrDER(t, key, nil), &r); err != nil {
		t.Fatal(err)
	}
	digest := sha1.Sum(r.TBS.FullBytes)
	signature, err := key.Sign(rand.Reader, digest[:], crypto.SHA1)
	if err != nil {
		t.Fatal(err)
	}
	r.Algorithm = pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 1}}
	r.Signature = asn1.BitString{Bytes: signature, BitLength: len(signature) * 8}
	der, err := asn1.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if parsed, err := x509.ParseCertificateRequest(der); err != nil || parsed.CheckSignature() != nil {
		t.Fatalf("the request is not one: %v", err)
	}
	return der
}

// Keys that are too weak, or of an obsolete type.
func TestWeakKeys(t *testing.T) {
	const keys = "an RSA key of 2048 to 8192 bits, an ECDSA key on P-256, P-384 or P-521, or an Ed25519 key"
	c := vaultWorld(t)
	t.Setenv("GODEBUG", "rsa1024min=0") // Go no longer generates such keys by default
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]crypto.Signer{"RSA-1024": weak, "P-224": ecKey(t, elliptic.P224())} {
		t.Run("csr "+name, func(t *testing.T) { refusedCSR(t, c, csrPEM(csrDER(t, key, nil)), "csr must be for "+keys) })
	}
	long := &rsa.PublicKey{N: new(big.Int).SetBit(big.NewInt(1), 8192, 1), E: 65537}
	long.N.SetBit(long.N, 0, 1)
	var discrete dsa.PrivateKey
	if err := dsa.GenerateParameters(&discrete.Parameters, rand.Reader, dsa.L1024N160); err != nil {
		t.Fatal(err)
	}
	if err := dsa.GenerateKey(&discrete, rand.Reader); err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]crypto.PublicKey{"RSA-1024": weak.Public(), "RSA-8193": long, "DSA": &discrete.PublicKey} {
		t.Run("ssh "+name, func(t *testing.T) {
			public, err := ssh.NewPublicKey(key)
			if err != nil {
				t.Fatal(err)
			}
			refusedKey(t, c, string(ssh.MarshalAuthorizedKey(public)))
		})
	}
}

func newSSHKey(tb testing.TB) string {
	tb.Helper()
	return sshLine(tb, newKey(tb).Public())
}

func sshLine(tb testing.TB, key crypto.PublicKey) string {
	tb.Helper()
	public, err := ssh.NewPublicKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(public)))
}

func askLogin(tb testing.TB, c *scopes.Catalogue, key string) (scopes.Decision, error) {
	tb.Helper()
	return c.Decide(subject(agent), scopes.Ask{Scope: "ssh.login", Params: map[string]any{"user": "alice"}, PublicKey: key, RequestContext: scopes.RequestContext{Task: "t"}}, noon)
}

func refusedKey(t *testing.T, c *scopes.Catalogue, key string) {
	t.Helper()
	_, err := askLogin(t, c, key)
	var bad *scopes.InvalidAsk
	if !errors.As(err, &bad) || bad.Field != "public_key" || !strings.HasPrefix(bad.Why, "must be one line in the format of an OpenSSH .pub file") {
		t.Errorf("got %v, want public_key refused", err)
	}
}

func TestPublicKeys(t *testing.T) {
	c := vaultWorld(t)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]crypto.Signer{
		"Ed25519": newKey(t), "P-256": ecKey(t, elliptic.P256()), "P-384": ecKey(t, elliptic.P384()), "P-521": ecKey(t, elliptic.P521()), "RSA": rsaKey,
	} {
		t.Run(name, func(t *testing.T) {
			line := sshLine(t, key.Public())
			for _, sent := range []string{line, line + "\n", line + " somebody@somewhere, $(id)"} {
				if d, err := askLogin(t, c, sent); err != nil || d.Grant.Data["public_key"] != line {
					t.Errorf("%q: got %v and %v, want %q", sent, d.Grant, err, line)
				}
			}
		})
	}
	line := newSSHKey(t)
	for name, key := range map[string]string{
		"blank": "  ", "text": "hello", "two keys": line + "\n" + line, "a key after a comment": "# hello\n" + line,
		"carriage return": line + "\r" + line, "an option": `command="id" ` + line, "options": "cert-authority,no-pty " + line,
		"cut": line[:len(line)-8], "private key": "-----BEGIN OPENSSH PRIVATE KEY-----", "a certificate": sshCertificate(t),
		"a security key": securityKey(t), "another name": strings.Replace(line, "ssh-ed25519", "ssh-dss", 1),
	} {
		t.Run(name, func(t *testing.T) { refusedKey(t, c, key) })
	}
}

func sshCertificate(t *testing.T) string {
	t.Helper()
	signer, err := ssh.NewSignerFromSigner(newKey(t))
	if err != nil {
		t.Fatal(err)
	}
	certificate := &ssh.Certificate{Key: signer.PublicKey(), CertType: ssh.UserCert, ValidPrincipals: []string{"root"}, ValidBefore: ssh.CertTimeInfinity}
	if err := certificate.SignCert(rand.Reader, signer); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(certificate)))
}

func securityKey(t *testing.T) string {
	t.Helper()
	blob := ssh.Marshal(struct {
		Name        string
		Key         []byte
		Application string
	}{ssh.KeyAlgoSKED25519, newKey(t).Public().(ed25519.PublicKey), "ssh:"})
	key, err := ssh.ParsePublicKey(blob)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
}
