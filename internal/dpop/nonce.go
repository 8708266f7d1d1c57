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

// turn is how long one nonce is given out. It is accepted until the end of the next turn.
const turn = 2 * time.Minute

// Nonces are what servers ask to be in proofs, so that none can be made long before it is used (RFC 9449, section 8). They
// keep no state: all replicas that have one key give, and accept, the same. They are safe for concurrent use.
type Nonces struct{ key []byte }

// NewNonces derives the key from one that all replicas of a deployment share. ErrConfig when that is shorter than 32
// bytes.
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

// At returns the nonce to give out at a time.
func (n *Nonces) At(now time.Time) string {
	mac := hmac.New(sha256.New, n.key)
	_, _ = mac.Write(binary.BigEndian.AppendUint64(nil, uint64(now.Unix()/int64(turn/time.Second))))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:16])
}

// gave tells whether a replica may have given the nonce out lately. The clock of another one may be ahead.
func (n *Nonces) gave(nonce string, now time.Time) bool {
	for _, at := range []time.Time{now, now.Add(-turn), now.Add(early)} {
		if hmac.Equal([]byte(nonce), []byte(n.At(at))) {
			return true
		}
	}
	return false
}
