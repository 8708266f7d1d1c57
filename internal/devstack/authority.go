package devstack

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// caLifetime is long, because a development issuer rotates only on request.
const caLifetime = 10 * 365 * 24 * time.Hour

// backdate tolerates small clock differences.
const backdate = 10 * time.Second

// authority is one generation of keys: a CA for X.509-SVIDs and a key for JWT-SVIDs.
type authority struct {
	cert *x509.Certificate
	ca   *ecdsa.PrivateKey
	kid  string
	jwt  *ecdsa.PrivateKey
}

// issuerState is the persistent state. The bundle holds all authorities; the active one signs.
type issuerState struct {
	sequence    uint64
	authorities []authority
	active      int
}

func (s *issuerState) activateLast() { s.active = len(s.authorities) - 1 }

func newAuthority(td spiffeid.TrustDomain, now time.Time) (authority, error) {
	ca, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return authority{}, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{Organization: []string{"Brevet development stack"}, CommonName: td.Name()},
		URIs:                  []*url.URL{td.ID().URL()},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(caLifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
	}
	cert, err := sign(template, template, ca.Public(), ca)
	if err != nil {
		return authority{}, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return authority{}, err
	}
	kid, err := keyID(key)
	return authority{cert: cert, ca: ca, kid: kid, jwt: key}, err
}

// keyID returns the key's thumbprint (RFC 7638).
func keyID(key *ecdsa.PrivateKey) (string, error) {
	sum, err := (&jose.JSONWebKey{Key: key.Public()}).Thumbprint(crypto.SHA256)
	if err != nil {
		return "", fmt.Errorf("naming the key: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(sum), nil
}

// svidTemplate returns a leaf as the X.509-SVID standard requires: one URI, no CA, digitalSignature. Go marks the key
// usage as critical.
func svidTemplate(id spiffeid.ID, now time.Time, ttl time.Duration) *x509.Certificate {
	return &x509.Certificate{
		Subject:               pkix.Name{Organization: []string{"Brevet development stack"}},
		URIs:                  []*url.URL{id.URL()},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(ttl),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
}

func sign(template, parent *x509.Certificate, key crypto.PublicKey, signer crypto.Signer) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial.Add(serial, big.NewInt(1))
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key, signer)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// storedAuthority is an authority as it is stored on disk, each part in DER.
type storedAuthority struct {
	Cert []byte `json:"ca_certificate"`
	CA   []byte `json:"ca_key"`
	JWT  []byte `json:"jwt_key"`
}

type storedState struct {
	TrustDomain string            `json:"trust_domain"`
	Sequence    uint64            `json:"sequence"`
	Authorities []storedAuthority `json:"authorities"`
	Active      int               `json:"active"`
}

func (i *Issuer) file() string { return filepath.Join(i.cfg.Dir, "issuer.json") }

func (i *Issuer) save(state issuerState) error {
	if i.cfg.Dir == "" {
		return nil
	}
	stored := storedState{TrustDomain: i.cfg.TrustDomain.Name(), Sequence: state.sequence, Active: state.active}
	for _, each := range state.authorities {
		ca, err := x509.MarshalPKCS8PrivateKey(each.ca)
		if err != nil {
			return err
		}
		key, err := x509.MarshalPKCS8PrivateKey(each.jwt)
		if err != nil {
			return err
		}
		stored.Authorities = append(stored.Authorities, storedAuthority{Cert: each.cert.Raw, CA: ca, JWT: key})
	}
	text, err := json.Marshal(stored)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(i.cfg.Dir, 0o700); err != nil {
		return err
	}
	return writePrivate(i.file(), text)
}

func (i *Issuer) load() (found bool, err error) {
	if i.cfg.Dir == "" {
		return false, nil
	}
	text, err := os.ReadFile(i.file())
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var stored storedState
	if err := json.Unmarshal(text, &stored); err != nil {
		return false, fmt.Errorf("%s: %w", i.file(), err)
	}
	if stored.TrustDomain != i.cfg.TrustDomain.Name() {
		return false, fmt.Errorf("%s belongs to trust domain %s", i.file(), stored.TrustDomain)
	}
	if stored.Active < 0 || stored.Active >= len(stored.Authorities) {
		return false, fmt.Errorf("%s holds no active authority", i.file())
	}
	i.state.sequence, i.state.active = stored.Sequence, stored.Active
	for _, each := range stored.Authorities {
		parsed, err := each.parse()
		if err != nil {
			return false, fmt.Errorf("%s: %w", i.file(), err)
		}
		i.state.authorities = append(i.state.authorities, parsed)
	}
	return true, nil
}

func (s storedAuthority) parse() (authority, error) {
	cert, err := x509.ParseCertificate(s.Cert)
	if err != nil {
		return authority{}, err
	}
	ca, err := parseKey(s.CA)
	if err != nil {
		return authority{}, err
	}
	key, err := parseKey(s.JWT)
	if err != nil {
		return authority{}, err
	}
	kid, err := keyID(key)
	return authority{cert: cert, ca: ca, kid: kid, jwt: key}, err
}

func parseKey(der []byte) (*ecdsa.PrivateKey, error) {
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, err
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("a key is %T, want ECDSA", key)
	}
	return ec, nil
}
