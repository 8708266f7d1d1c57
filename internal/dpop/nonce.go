package dpop

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"time"
)

// turn is how long one nonce is issued. It is accepted until the end of the next turn.
const turn = 2 * time.Minute

// Nonces issues and checks the nonces that a server requires in proofs, so that no proof can be made long before its use
// (RFC 9449, section 8). It keeps no state: all replicas with the same key issue and accept the same nonces. It is safe
// for concurrent use.
type Nonces struct{ key []byte }

// NewNonces derives the key from a key that all replicas of a deployment share. It returns ErrConfig if the shared key is
// shorter than 32 bytes.
func NewNonces(shared []byte) (*Nonces, error) {
	if len(shared) < 32 {
		return nil, ErrConfig
	}
	key, err := hkdf.Key(sha256.New, shared, nil, "brevet dpop nonce", sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return &Nonces{key: key}, nil
}

// At returns the nonce to issue at the given time.
func (n *Nonces) At(now time.Time) string {
	mac := hmac.New(sha256.New, n.key)
	_, _ = mac.Write(binary.BigEndian.AppendUint64(nil, uint64(now.Unix()/int64(turn/time.Second))))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:16])
}

// gave reports whether some replica may have issued the nonce recently. The clock of another replica may be ahead.
func (n *Nonces) gave(nonce string, now time.Time) bool {
	for _, at := range []time.Time{now, now.Add(-turn), now.Add(early)} {
		if hmac.Equal([]byte(nonce), []byte(n.At(at))) {
			return true
		}
	}
	return false
}
