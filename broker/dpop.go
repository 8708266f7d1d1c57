package broker

import (
	"context"

	"github.com/brevet-dev/brevet/internal/dpop"
)

// dpopProofsPerSecond is how many DPoP proofs one replica accepts each second, since it remembers each for some minutes. One sandbox can use at
// most dpopProofsOfOne of them, so that a sandbox that loops leaves the others theirs.
const dpopProofsPerSecond, dpopProofsOfOne = 2000, 200

// UseProof marks a checked DPoP proof as used. It returns nil for the first use on any replica, dpop.ErrReplayed for any other, dpop.ErrCrowded when
// too many proofs arrive at once in total or from that SPIFFE ID, and else ErrLedgerUnavailable. A proof that was refused proves nothing.
func (b *Broker) UseProof(ctx context.Context, by string, p dpop.Proof) error {
	if b.cfg.DPoPReplayCache == nil {
		return ErrLedgerUnavailable
	}
	if now := b.cfg.Now(); !b.dpopProofsPerSandbox.Allow(by, now) || !b.dpopProofs.AllowN(now, 1) {
		return dpop.ErrCrowded
	}
	return b.cfg.DPoPReplayCache.UseProof(ctx, p)
}
