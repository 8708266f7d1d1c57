package mint

import (
	"cmp"
	"context"
	"crypto"
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
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/jws"
	"github.com/brevet-dev/brevet/scopes"
	"golang.org/x/mod/sumdb/note"
)

const (
	es256 = scopes.AlgorithmES256
	edDSA = scopes.AlgorithmEdDSA
	rs256 = scopes.AlgorithmRS256
)

// tokenKeys are the keys in Transit that sign tokens. Each signs with one JWS algorithm alone (RFC 8725, section 3.1). A broker needs
// the first one. brevet bootstrap creates each with the first of its types.
var tokenKeys = []struct {
	algorithm string
	suffix    string // follows the configured name of the signing key
	types     []string
}{
	{es256, "", []string{"ecdsa-p256"}},
	{edDSA, "-eddsa", []string{"ed25519"}},
	{rs256, "-rs256", []string{"rsa-2048", "rsa-3072", "rsa-4096"}},
}

// keyring is the result of reading a signing key once.
type keyring struct {
	versions []version // ascending
	floor    int       // versions below it may not sign
	read     time.Time
	fault    error // why no version may sign; nil if one may
}

// transitKey is a key in Transit that signs tokens with one algorithm.
type transitKey struct {
	algorithm string
	types     []string // of the key in Transit; one of them
	ring      atomic.Pointer[keyring]
	signings  signings
}

// refreshOptional reads a key again that a broker may lack: its catalogue may not need it, or an older brevet bootstrap prepared its
// Vault. So no error of this read shows in Ready, and a 403 causes no new login. What was published stays published.
func (m *Minter) refreshOptional(ctx context.Context, k *transitKey) {
	const doing = "reading a signing key"
	at := m.cfg.Now()
	bounded, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	var data map[string]any
	err := m.patiently(bounded, m.own().since, func() (err error) {
		data, err = dataOf(m.client.Logical().ReadWithContext(bounded, m.cfg.Mount+"/keys/"+k.signings.key))
		return err
	})
	var ring *keyring
	if err == nil {
		ring, err = keyringOf(data, at, doing, k.algorithm, k.types)
	} else {
		err = unavailable(doing, err)
	}
	last := k.ring.Load()
	status := statusOf(err)
	missing := status == http.StatusNotFound || status == http.StatusForbidden
	switch {
	case err == nil:
		if last != nil && last.fault != nil {
			m.cfg.Log.InfoContext(ctx, "signing key is usable", "key", k.signings.key, "algorithm", k.algorithm)
		}
		k.ring.Store(ring)
		return
	case missing:
		err = fmt.Errorf("%w: Vault has no key %q at %q that this broker may use: run brevet bootstrap", broker.ErrVaultRefused, k.signings.key, m.cfg.Mount)
	case errors.Is(err, ErrKeyUnfit):
		err = fmt.Errorf("%w: the key %q: %w", broker.ErrVaultRefused, k.signings.key, err)
	case last != nil:
		return // it may sign for as long as Key accepts an old reading
	}
	faulty := &keyring{floor: math.MaxInt, read: at, fault: err}
	if last != nil {
		faulty.versions = last.versions
	}
	if last == nil && !missing || last != nil && last.fault == nil {
		m.cfg.Log.WarnContext(ctx, "signing key is not usable", "key", k.signings.key, "algorithm", k.algorithm, "error", err)
	}
	k.ring.Store(faulty)
}

// keyAnswer is Vault's answer about a Transit key, with only the members that Brevet uses.
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

// readKeys asks Vault for the versions of a signing key, whose type must be one of types.
func (m *Minter) readKeys(ctx context.Context, name, algorithm string, types []string) (*keyring, error) {
	const doing = "reading the signing key"
	at := m.cfg.Now()
	var data map[string]any
	err := m.call(ctx, doing, func(ctx context.Context) (err error) {
		data, err = dataOf(m.client.Logical().ReadWithContext(ctx, m.cfg.Mount+"/keys/"+name))
		return err
	})
	if err != nil {
		return nil, err
	}
	return keyringOf(data, at, doing, algorithm, types)
}

// keyringOf reads Vault's answer about a key that signs with an algorithm, and whose type must be one of types.
func keyringOf(data map[string]any, at time.Time, doing, algorithm string, types []string) (*keyring, error) {
	a, err := read[keyAnswer](data)
	if err != nil {
		return nil, unavailable(doing, errNotUnderstood)
	}
	switch {
	case !slices.Contains(types, a.Type):
		return nil, fmt.Errorf("%w: its type is %s, need %s", ErrKeyUnfit, strconv.Quote(clip(a.Type)), strings.Join(types, " or "))
	case a.Derived:
		return nil, fmt.Errorf("%w: it is derived", ErrKeyUnfit)
	case a.Exportable || a.AllowPlaintextBackup:
		return nil, fmt.Errorf("%w: it can leave Vault (exportable or allow_plaintext_backup is set)", ErrKeyUnfit)
	case len(a.Keys) == 0:
		return nil, fmt.Errorf("%w: it has no version", ErrKeyUnfit)
	}
	ring := &keyring{read: at, floor: max(a.MinAvailable, a.MinDecryption, a.MinEncryption)}
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
		return version{}, errors.New("its name is not a version number")
	}
	var answer struct {
		Created time.Time `json:"creation_time"`
		Public  string    `json:"public_key"`
	}
	if json.Unmarshal(raw, &answer) != nil || answer.Created.IsZero() {
		return version{}, errors.New("its creation time or public key is missing")
	}
	// Transit writes ed25519 keys as raw base64, others as PEM.
	var public crypto.PublicKey
	if algorithm == edDSA {
		raw, err := base64.StdEncoding.Strict().DecodeString(answer.Public)
		if err != nil || len(raw) != ed25519.PublicKeySize {
			return version{}, errors.New("its public key is no ed25519 key")
		}
		public = ed25519.PublicKey(raw)
	} else {
		block, _ := pem.Decode([]byte(answer.Public))
		if block == nil {
			return version{}, errors.New("its public key is no PEM")
		}
		if public, err = x509.ParsePKIXPublicKey(block.Bytes); err != nil {
			return version{}, errors.New("its public key is not understood")
		}
		switch {
		case algorithm == rs256 && !jws.IsRSA(public):
			return version{}, errors.New("its public key is no RSA key")
		case algorithm != rs256 && !jws.OnCurve(elliptic.P256())(public):
			return version{}, errors.New("its public key is not on P-256")
		}
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

// find returns the version that key names, and the key in Transit that it belongs to: the one for its algorithm. It returns
// ErrVaultUnavailable if there is no such version any more, or if that version may not sign.
func (m *Minter) find(key broker.Key) (*transitKey, version, error) {
	if of := m.keyFor(key.Algorithm); of != nil {
		ring := of.ring.Load()
		for _, v := range ring.versions {
			if v.key == key && v.key.Version >= ring.floor {
				return of, v, nil
			}
		}
	}
	return nil, version{}, fmt.Errorf("%w: version %d of the signing key is no longer there", broker.ErrVaultUnavailable, key.Version)
}

// version is one version of the signing key.
type version struct {
	key     broker.Key
	public  crypto.PublicKey
	created time.Time
}

// slack covers clock differences between Vault and the replicas, and signatures in progress.
const slack = 15 * time.Second

// overlap holds the two waiting times of a rotation. They depend on configuration alone, so replicas that see the same versions
// agree without talking to each other.
type overlap struct {
	// settle is the time from a version's creation until every verifier must have seen it: each replica reads the versions within
	// Refresh, and each verifier caches the JWKS for JWKSMaxAge.
	settle time.Duration
	// keep is how long a replaced version stays published: the longest life of a token that it signed.
	keep time.Duration
}

func overlapOf(cfg Config) overlap {
	return overlap{settle: cfg.Refresh + cfg.JWKSMaxAge + slack, keep: cfg.MaxTTL + slack}
}

// signing picks the version to sign with: the newest one that every verifier must have seen or, if there is none, the oldest.
// Versions are in ascending order. Versions below floor may not sign.
func signing(versions []version, floor int, now time.Time, wait overlap) (version, bool) {
	var chosen version
	var found bool
	for _, v := range versions {
		if v.key.Version < floor {
			continue
		}
		if !found || !now.Before(v.created.Add(wait.settle)) {
			chosen, found = v, true
		}
	}
	return chosen, found
}

// published picks the versions that verifiers need: the signing version, newer ones, and each replaced version for as long as a
// token that it signed may live. A version is replaced when the first newer one has settled.
func published(versions []version, now time.Time, wait overlap) []version {
	var out []version
	for i, v := range versions {
		needed := true
		for _, newer := range versions[i+1:] {
			if replaced := newer.created.Add(wait.settle); !now.Before(replaced.Add(wait.keep)) {
				needed = false
			}
		}
		if needed {
			out = append(out, v)
		}
	}
	return out
}

// logKeyName returns the name of the Transit key that signs the ledger's checkpoints. It differs from the key that signs
// credentials: a caller who may request a credential must not be able to get a checkpoint signed.
func logKeyName(signingKey string) string { return signingKey + "-log" }

// LogKey signs the checkpoints of a ledger as notes (c2sp.org/signed-note), with an ed25519 key in Transit that is used for
// nothing else. It is safe for concurrent use.
type LogKey struct {
	minter *Minter
	origin string

	mu   sync.Mutex
	ring *keyring

	// signings is a separate queue: a checkpoint never waits for credentials.
	signings signings
}

// LogKey reads the log's key and returns a signer for it. origin is the name of the log in its checkpoints. Errors are as for
// Open.
func (m *Minter) LogKey(ctx context.Context, origin string) (*LogKey, error) {
	k := &LogKey{minter: m, origin: origin, signings: signings{key: logKeyName(m.cfg.SigningKey)}}
	_, err := k.Keys(ctx)
	return k, err
}

// read returns the keyring. It reads the key again if the last reading is older than Refresh. While Vault is unavailable it
// returns the old keyring: the public keys do not change.
func (k *LogKey) read(ctx context.Context) (*keyring, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ring != nil && k.minter.cfg.Now().Sub(k.ring.read) < k.minter.cfg.Refresh {
		return k.ring, nil
	}
	ring, err := k.minter.readKeys(ctx, k.signings.key, edDSA, []string{"ed25519"})
	if k.ring != nil && errors.Is(err, broker.ErrVaultUnavailable) {
		return k.ring, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the log's key: %w", err)
	}
	k.ring = ring
	return ring, nil
}

// Origin returns the name of the log.
func (k *LogKey) Origin() string { return k.origin }

// Keys returns the public keys that checkpoints may be signed with, oldest first, in the form of c2sp.org/signed-note.
func (k *LogKey) Keys(ctx context.Context) ([]string, error) {
	ring, err := k.read(ctx)
	if err != nil {
		return nil, err
	}
	var keys []string
	for _, v := range ring.versions {
		key, _, err := k.public(v)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// Sign asks Vault to sign a text with the newest version of the key. Errors are as for Mint.
func (k *LogKey) Sign(ctx context.Context, text string) ([]byte, error) {
	ring, err := k.read(ctx)
	if err != nil {
		return nil, err
	}
	newest := ring.versions[len(ring.versions)-1]
	_, verifier, err := k.public(newest)
	if err != nil {
		return nil, err
	}
	return note.Sign(&note.Note{Text: text}, noteSigner{verifier, func(msg []byte) ([]byte, error) {
		return k.minter.sign(ctx, &k.signings, newest, string(msg))
	}})
}

// public returns the public key of a version, as text and as a verifier.
func (k *LogKey) public(v version) (string, note.Verifier, error) {
	text, err := note.NewEd25519VerifierKey(k.origin, v.public.(ed25519.PublicKey))
	if err != nil {
		return "", nil, fmt.Errorf("%w: the log's name: %w", ErrConfig, err)
	}
	verifier, err := note.NewVerifier(text)
	if err != nil {
		return "", nil, fmt.Errorf("%w: the log's name: %w", ErrConfig, err)
	}
	return text, verifier, nil
}

// noteSigner is a [note.Signer] whose key is in Vault.
type noteSigner struct {
	note.Verifier
	sign func(msg []byte) ([]byte, error)
}

func (s noteSigner) Sign(msg []byte) ([]byte, error) { return s.sign(msg) }
