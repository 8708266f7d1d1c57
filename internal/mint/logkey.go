package mint

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"sync"

	"github.com/brevet-dev/brevet/broker"
	"golang.org/x/mod/sumdb/note"
)

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
	ring, err := k.minter.readKeys(ctx, logKeyName(k.minter.cfg.SigningKey))
	if k.ring != nil && errors.Is(err, broker.ErrVaultUnavailable) {
		return k.ring, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the log's key: %w", err)
	}
	if newest := ring.versions[len(ring.versions)-1]; newest.key.Algorithm != "EdDSA" {
		return nil, fmt.Errorf("%w: the log's key is not of type ed25519", ErrKeyUnfit)
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
