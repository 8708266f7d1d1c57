package dpop

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"maps"
	"sync"
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

// ReplayCache remembers used proofs in one process. It is safe for concurrent use.
type ReplayCache struct {
	most  int
	mu    sync.Mutex
	seen  map[[sha256.Size]byte]Proof
	of    map[string]int // proofs per key
	swept time.Time
}

// NewReplayCache returns a ReplayCache for at most most proofs, and a tenth of that per key, so a caller that floods it
// does not block the others. It forgets a proof after about a minute.
func NewReplayCache(most int) *ReplayCache {
	return &ReplayCache{most: most, seen: map[[sha256.Size]byte]Proof{}, of: map[string]int{}}
}

// Use returns nil for the first use of a checked proof, and ErrReplayed for any later one. If the cache, or the key's
// share of it, is full, it returns ErrCrowded: a proof that cannot be remembered must not be accepted.
func (m *ReplayCache) Use(p Proof, now time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.Sub(m.swept) > late || m.crowded(p) && now.Sub(m.swept) > time.Second {
		maps.DeleteFunc(m.seen, func(_ [sha256.Size]byte, p Proof) bool {
			ended := p.Until.Before(now)
			if ended {
				m.of[p.Thumbprint]--
			}
			return ended
		})
		maps.DeleteFunc(m.of, func(_ string, proofs int) bool { return proofs == 0 })
		m.swept = now
	}
	if _, used := m.seen[p.Digest]; used {
		return ErrReplayed
	}
	if m.crowded(p) {
		return ErrCrowded
	}
	m.seen[p.Digest] = p
	m.of[p.Thumbprint]++
	return nil
}

func (m *ReplayCache) crowded(p Proof) bool {
	return len(m.seen) >= m.most || m.of[p.Thumbprint] >= max(1, m.most/10)
}
