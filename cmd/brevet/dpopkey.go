package main

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/brevet-dev/brevet/internal/dpop"
)

// KeyFlags name the key to which tokens are bound.
type KeyFlags struct {
	DPoPKey string `help:"File with a private key (PEM, P-256) to bind the token to (DPoP, RFC 9449). The token works only with proofs by this key." name:"dpop-key" type:"path"`
}

// signer returns a DPoP signer for the key, or nil if no key is named.
func (f KeyFlags) signer() (*dpop.Signer, error) {
	if f.DPoPKey == "" {
		return nil, nil
	}
	text, err := readSecretFile(f.DPoPKey)
	if err != nil {
		return nil, fmt.Errorf("--dpop-key: %w", err)
	}
	key, err := parsePrivateKey([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("--dpop-key: %s %w", f.DPoPKey, err)
	}
	signer, err := dpop.NewSigner(key, time.Now)
	if err != nil {
		return nil, fmt.Errorf("--dpop-key: %s holds an unsupported key type: use P-256", f.DPoPKey)
	}
	return signer, nil
}

// parsePrivateKey reads the first private key of a PEM file. It skips other blocks, because OpenSSL writes the name of the
// curve before the key.
func parsePrivateKey(rest []byte) (crypto.Signer, error) {
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return nil, errors.New("holds no private key in PEM; create one with: openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256")
		}
		var key any
		var err error
		switch block.Type {
		case "PRIVATE KEY":
			key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		case "EC PRIVATE KEY":
			key, err = x509.ParseECPrivateKey(block.Bytes)
		default:
			continue
		}
		signer, ok := key.(crypto.Signer)
		if err != nil || !ok {
			return nil, errors.New("holds a private key that cannot be read") // the cause may quote the key
		}
		return signer, nil
	}
}
