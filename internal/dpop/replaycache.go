package dpop

import (
	"crypto/sha256"
	"sync"
	"time"
)

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
		m.sweep(now)
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

// sweep forgets proofs that are no longer valid.
func (m *ReplayCache) sweep(now time.Time) {
	for digest, p := range m.seen {
		if !p.Until.Before(now) {
			continue
		}
		delete(m.seen, digest)
		if m.of[p.Thumbprint]--; m.of[p.Thumbprint] == 0 {
			delete(m.of, p.Thumbprint)
		}
	}
	m.swept = now
}
