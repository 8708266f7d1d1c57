package ledger

import (
	"context"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
)

var _ broker.DPoPReplayCache = (*Ledger)(nil)

// UseProof implements [broker.DPoPReplayCache].
func (l *Ledger) UseProof(ctx context.Context, p dpop.Proof) error {
	ctx, cancel := context.WithTimeout(ctx, l.flushTimeout)
	defer cancel()
	tag, err := l.dpopProofs.Exec(ctx, `
		INSERT INTO dpop_seen (digest, until) VALUES ($1, $2) ON CONFLICT DO NOTHING`, p.Digest[:], p.Until)
	switch {
	case err != nil:
		return postgres.Unavailable("remembering a proof", err)
	case tag.RowsAffected() == 0:
		return dpop.ErrReplayed
	}
	return nil
}
