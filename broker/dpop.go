package broker

import (
	"context"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/internal/dpop"
)

// dpopProofsPerSecond is how many DPoP proofs one replica takes each second: each is remembered for some minutes. No sandbox has
// more than proofsOfOne of them, so that one that loops, or means harm, leaves the others theirs.
const dpopProofsPerSecond, dpopProofsOfOne = 2000, 200

// shares is what is left of a second's proofs.
type shares struct {
	mu     sync.Mutex
	second time.Time
	used   int
	of     map[string]int // by SPIFFE ID
}

func (s *shares) take(by string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.second) >= time.Second {
		s.second, s.used, s.of = now, 0, map[string]int{}
	}
	if s.used >= dpopProofsPerSecond || s.of[by] >= dpopProofsOfOne {
		return false
	}
	s.used++
	s.of[by]++
	return true
}

// UseProof is nil for the first use of a DPoP proof that was checked, on any replica. The error is dpop.ErrReplayed for
// any other, dpop.ErrCrowded when too many come at once, altogether or by that SPIFFE ID, and else ErrLedgerUnavailable;
// after any of them the proof proves nothing.
func (b *Broker) UseProof(ctx context.Context, by string, p dpop.Proof) error {
	if b.cfg.DPoPReplayCache == nil {
		return ErrLedgerUnavailable
	}
	if !b.dpopShares.take(by, b.cfg.Now()) {
		return dpop.ErrCrowded
	}
	return b.cfg.DPoPReplayCache.UseProof(ctx, p)
}
