package broker

import (
	"context"

	"github.com/brevet-dev/brevet/internal/dpop"
)

// dpopProofsPerSecond is how many DPoP proofs one replica accepts per second, since it remembers each for some minutes.
// dpopProofsOfOne is the part of them that one sandbox can use, so that a looping sandbox does not starve the others.
const dpopProofsPerSecond, dpopProofsOfOne = 2000, 200

// UseProof marks a verified DPoP proof as used. It returns nil for the first use on any replica, and dpop.ErrReplayed for any
// later use. It returns dpop.ErrCrowded if too many proofs arrive at once, in total or from that SPIFFE ID, and otherwise
// ErrLedgerUnavailable. A rejected proof proves nothing.
func (b *Broker) UseProof(ctx context.Context, by string, p dpop.Proof) error {
	if now := b.cfg.Now(); !b.dpopProofsPerSandbox.Allow(by, now) || !b.dpopProofs.AllowN(now, 1) {
		return dpop.ErrCrowded
	}
	return b.cfg.DPoPReplayCache.UseProof(ctx, p)
}
