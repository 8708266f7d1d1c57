package broker

import (
	"context"

	"github.com/brevet-dev/brevet/dpop"
)

// proofsPerSecond is how many DPoP proofs one replica takes each second: each is remembered for some minutes.
const proofsPerSecond = 2000

// UseProof is nil for the first use of a DPoP proof that was checked, on any replica. The error is dpop.ErrReplayed for
// any other, dpop.ErrCrowded when too many come at once, and else ErrLedgerUnavailable; after any of them the proof proves
// nothing.
func (b *Broker) UseProof(ctx context.Context, p dpop.Proof) error {
	if b.cfg.Proofs == nil {
		return ErrLedgerUnavailable
	}
	if _, ok := b.used.take(b.cfg.Now()); !ok {
		return dpop.ErrCrowded
	}
	return b.cfg.Proofs.UseProof(ctx, p)
}
