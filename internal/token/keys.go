package token

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"encoding/json"
	"fmt"

	"github.com/brevet-dev/brevet/internal/jws"
	"github.com/go-jose/go-jose/v4"
)

// maxJWKS bounds a JWKS in bytes, and maxKeys its number of keys.
const maxJWKS, maxKeys = 64 << 10, 64

// fits reports, for each signature algorithm of our tokens, whether a key suits it.
var fits = map[string]func(crypto.PublicKey) bool{
	"ES256": func(key crypto.PublicKey) bool {
		k, ok := key.(*ecdsa.PublicKey)
		return ok && k.Curve == elliptic.P256()
	},
	"EdDSA": func(key crypto.PublicKey) bool {
		_, ok := key.(ed25519.PublicKey)
		return ok
	},
}

// KeySet is the issuer's public keys, each for one algorithm. The zero value holds none.
type KeySet struct{ keys map[string]jose.JSONWebKey }

// Parse reads a JWKS (RFC 7517). It ignores keys of unknown types and uses, as the RFC requires. It returns ErrKeySet if
// the document is not a JWKS, if no usable key is left, or if it contains what no issuer publishes: a private key, or two
// keys with the same kid.
func Parse(jwks []byte) (KeySet, error) {
	var document struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if len(jwks) > maxJWKS || json.Unmarshal(jwks, &document) != nil || len(document.Keys) > maxKeys {
		return KeySet{}, ErrKeySet
	}
	set := KeySet{keys: make(map[string]jose.JSONWebKey, len(document.Keys))}
	for _, raw := range document.Keys {
		var key jose.JSONWebKey
		if json.Unmarshal(raw, &key) != nil {
			continue
		}
		if !key.IsPublic() {
			return KeySet{}, fmt.Errorf("%w: it contains a private key", ErrKeySet)
		}
		fit, known := fits[key.Algorithm]
		if !known || !fit(key.Key) || key.KeyID == "" || !jws.MayVerify(raw) {
			continue
		}
		if _, twice := set.keys[key.KeyID]; twice {
			return KeySet{}, fmt.Errorf("%w: two keys have the same kid", ErrKeySet)
		}
		set.keys[key.KeyID] = key
	}
	if len(set.keys) == 0 {
		return KeySet{}, fmt.Errorf("%w: no key signs access tokens", ErrKeySet)
	}
	return set, nil
}
