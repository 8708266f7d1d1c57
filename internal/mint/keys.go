package mint

import (
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/jws"
)

// algorithms maps the types of Transit keys that sign to their JWS algorithms.
var algorithms = map[string]string{"ecdsa-p256": "ES256", "ed25519": "EdDSA"}

// keyring is the result of reading a signing key once.
type keyring struct {
	versions []version // ascending
	floor    int       // versions below it may not sign
	read     time.Time
}

// keyAnswer holds the members of Vault's answer for a Transit key that matter here.
type keyAnswer struct {
	Type                 string                     `json:"type"`
	Derived              bool                       `json:"derived"`
	Exportable           bool                       `json:"exportable"`
	AllowPlaintextBackup bool                       `json:"allow_plaintext_backup"`
	MinAvailable         int                        `json:"min_available_version"`
	MinDecryption        int                        `json:"min_decryption_version"`
	MinEncryption        int                        `json:"min_encryption_version"`
	Keys                 map[string]json.RawMessage `json:"keys"`
}

type versionAnswer struct {
	Created time.Time `json:"creation_time"`
	Public  string    `json:"public_key"`
}

// readKeys asks Vault for the versions of a signing key.
func (m *Minter) readKeys(ctx context.Context, name string) (*keyring, error) {
	const doing = "reading the signing key"
	at := m.cfg.Now()
	data, err := m.call(ctx, doing, func(ctx context.Context) (map[string]any, error) {
		return dataOf(m.client.Logical().ReadWithContext(ctx, m.cfg.Mount+"/keys/"+name))
	})
	if err != nil {
		return nil, err
	}
	// The client returns a map. A round trip through JSON turns it into a checked struct.
	raw, err := json.Marshal(data)
	if err != nil {
		return nil, unavailable(doing, err)
	}
	var answer keyAnswer
	if err := json.Unmarshal(raw, &answer); err != nil {
		return nil, unavailable(doing, err)
	}
	ring, err := answer.keyring()
	if err != nil {
		return nil, err
	}
	ring.read = at
	return ring, nil
}

func (a keyAnswer) keyring() (*keyring, error) {
	algorithm, ok := algorithms[a.Type]
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: its type is %s, need ecdsa-p256 or ed25519", ErrKeyUnfit, strconv.Quote(clip(a.Type)))
	case a.Derived:
		return nil, fmt.Errorf("%w: it is derived", ErrKeyUnfit)
	case a.Exportable || a.AllowPlaintextBackup:
		return nil, fmt.Errorf("%w: it can leave Vault (exportable or allow_plaintext_backup is set)", ErrKeyUnfit)
	case len(a.Keys) == 0:
		return nil, fmt.Errorf("%w: it has no version", ErrKeyUnfit)
	}
	ring := &keyring{floor: max(a.MinAvailable, a.MinDecryption, a.MinEncryption)}
	for _, name := range slices.Sorted(maps.Keys(a.Keys)) {
		v, err := parseVersion(name, algorithm, a.Keys[name])
		if err != nil {
			return nil, fmt.Errorf("%w: version %s: %w", ErrKeyUnfit, strconv.Quote(clip(name)), err)
		}
		if v.key.Version >= a.MinDecryption {
			ring.versions = append(ring.versions, v)
		}
	}
	slices.SortFunc(ring.versions, func(a, b version) int { return cmp.Compare(a.key.Version, b.key.Version) })
	return ring, nil
}

func parseVersion(name, algorithm string, raw json.RawMessage) (version, error) {
	number, err := strconv.Atoi(name)
	if err != nil || number < 1 || strconv.Itoa(number) != name {
		return version{}, errors.New("its number is not one")
	}
	var answer versionAnswer
	if json.Unmarshal(raw, &answer) != nil || answer.Created.IsZero() {
		return version{}, errors.New("its creation time or public key is missing")
	}
	public, err := parsePublic(algorithm, answer.Public)
	if err != nil {
		return version{}, err
	}
	id, err := jws.Thumbprint(public)
	if err != nil {
		return version{}, errors.New("its public key has no thumbprint")
	}
	return version{
		key:     broker.Key{ID: id, Algorithm: algorithm, Version: number},
		public:  public,
		created: answer.Created,
	}, nil
}

// parsePublic parses a public key as Transit writes it: ed25519 as raw base64, others as PEM.
func parsePublic(algorithm, text string) (crypto.PublicKey, error) {
	if algorithm == "EdDSA" {
		raw, err := base64.StdEncoding.Strict().DecodeString(text)
		if err != nil || len(raw) != ed25519.PublicKeySize {
			return nil, errors.New("its public key is no ed25519 key")
		}
		return ed25519.PublicKey(raw), nil
	}
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil, errors.New("its public key is no PEM")
	}
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, errors.New("its public key is not understood")
	}
	public, ok := parsed.(*ecdsa.PublicKey)
	if !ok || public.Curve != elliptic.P256() {
		return nil, errors.New("its public key is not on P-256")
	}
	return public, nil
}

// find returns the version that key names. It returns ErrVaultUnavailable if that is another key by now, or may not sign.
func (r *keyring) find(key broker.Key) (version, error) {
	for _, v := range r.versions {
		if v.key == key && v.key.Version >= r.floor {
			return v, nil
		}
	}
	return version{}, fmt.Errorf("%w: version %d of the signing key is no longer there", broker.ErrVaultUnavailable, key.Version)
}

// silenced returns a copy of the keyring in which no version may sign.
func (r *keyring) silenced() *keyring {
	return &keyring{versions: r.versions, floor: math.MaxInt, read: r.read}
}
