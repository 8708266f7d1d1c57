package dpop

import (
	"crypto/sha256"
	"sync"
	"time"
)

// Memory remembers which proofs were used, for one process. It is safe for concurrent use.
type Memory struct {
	most  int
	mu    sync.Mutex
	seen  map[[sha256.Size]byte]time.Time // until when
	swept time.Time
}

// NewMemory remembers up to so many proofs at once. A proof is forgotten after about a minute.
func NewMemory(most int) *Memory {
	return &Memory{most: most, seen: map[[sha256.Size]byte]time.Time{}}
}

// Use is nil for the first use of a proof that was checked, and ErrReplayed for any other. When the memory is full it is
// ErrCrowded: what cannot be remembered must not be accepted.
func (m *Memory) Use(p Proof, now time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.Sub(m.swept) > late || len(m.seen) >= m.most && now.Sub(m.swept) > time.Second {
		for digest, until := range m.seen {
			if until.Before(now) {
				delete(m.seen, digest)
			}
		}
		m.swept = now
	}
	if _, used := m.seen[p.Digest]; used {
		return ErrReplayed
	}
	if len(m.seen) >= m.most {
		return ErrCrowded
	}
	m.seen[p.Digest] = p.Until
	return nil
}
