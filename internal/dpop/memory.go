package dpop

import (
	"crypto/sha256"
	"sync"
	"time"
)

// ReplayCache remembers which proofs were used, for one process. It is safe for concurrent use.
type ReplayCache struct {
	most  int
	mu    sync.Mutex
	seen  map[[sha256.Size]byte]Proof
	of    map[string]int // how many are of each key
	swept time.Time
}

// NewReplayCache remembers up to so many proofs at once, and a tenth of that of one key, so that nobody who floods keeps the
// others out. A proof is forgotten after about a minute.
func NewReplayCache(most int) *ReplayCache {
	return &ReplayCache{most: most, seen: map[[sha256.Size]byte]Proof{}, of: map[string]int{}}
}

// Use is nil for the first use of a proof that was checked, and ErrReplayed for any other. When the memory is full, or that
// key's part of it, it is ErrCrowded: what cannot be remembered must not be accepted.
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

// sweep forgets what would not be accepted any more.
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
