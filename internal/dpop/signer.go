package dpop

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	"github.com/brevet-dev/brevet/internal/jws"
	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"
)

// Signer makes proofs with one key. It is safe for concurrent use.
type Signer struct {
	key        crypto.Signer
	method     jwt.SigningMethod
	header     string // encoded; the same in each proof
	thumbprint string
	now        func() time.Time
}

// NewSigner accepts an *ecdsa.PrivateKey on P-256 or P-384, or an ed25519.PrivateKey. It returns ErrConfig for any other
// key. A thief of the key can use every token that is bound to it, so preferably use a key that the process generates and
// never stores.
func NewSigner(key crypto.Signer, now func() time.Time) (*Signer, error) {
	s := &Signer{key: key, now: now}
	switch k := key.(type) {
	case *ecdsa.PrivateKey:
		switch k.Curve {
		case elliptic.P256():
			s.method = jwt.SigningMethodES256
		case elliptic.P384():
			s.method = jwt.SigningMethodES384
		}
	case ed25519.PrivateKey:
		s.method = jwt.SigningMethodEdDSA
	}
	if s.method == nil || now == nil {
		return nil, ErrConfig
	}
	public := jose.JSONWebKey{Key: key.Public()}
	text, err := json.Marshal(struct {
		Type      string          `json:"typ"`
		Algorithm string          `json:"alg"`
		Key       jose.JSONWebKey `json:"jwk"`
	}{Type, s.method.Alg(), public})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	s.header = base64.RawURLEncoding.EncodeToString(text)
	if s.thumbprint, err = jws.Thumbprint(public.Key); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return s, nil
}

// Thumbprint returns the RFC 7638 thumbprint of the key.
func (s *Signer) Thumbprint() string { return s.thumbprint }

// Request is the request that a proof is made for.
type Request struct {
	Method string
	URL    string // as sent; query and fragment are ignored
	Token  string // the access token that the request presents, if any
	Nonce  string // the server's latest nonce, if any
}

// Proof makes the proof for one request. Every request needs a new proof, and so does every retry.
func (s *Signer) Proof(r Request) (string, error) {
	address, ok := normal(r.URL)
	if !ok {
		return "", ErrURL
	}
	text, err := json.Marshal(struct {
		ID       string `json:"jti"`
		Method   string `json:"htm"`
		URL      string `json:"htu"`
		IssuedAt int64  `json:"iat"`
		Token    string `json:"ath,omitempty"`
		Nonce    string `json:"nonce,omitempty"`
	}{rand.Text(), r.Method, address, s.now().Unix(), hashOf(r.Token), r.Nonce})
	if err != nil {
		return "", fmt.Errorf("encoding a proof: %w", err)
	}
	input := s.header + "." + base64.RawURLEncoding.EncodeToString(text)
	signature, err := s.method.Sign(input, s.key)
	if err != nil {
		return "", fmt.Errorf("signing a proof: %w", err)
	}
	return input + "." + base64.RawURLEncoding.EncodeToString(signature), nil
}
