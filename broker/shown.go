package broker

import (
	"context"
	"fmt"

	"github.com/brevet-dev/brevet/token"
)

// Shown is a token that was verified, as it was shown to somebody.
type Shown struct {
	Token token.Claims
	// Digest is the SHA-256 of the token's payload.
	Digest [32]byte
}

// InForce returns nil when a token is what was issued and nobody has ended it, else ErrInactive; ErrLedgerUnavailable
// when that cannot be told.
func (b *Broker) InForce(ctx context.Context, t Shown) error {
	if b.cfg.Tokens == nil {
		return ErrInactive
	}
	standing, err := b.cfg.Tokens.TokenStanding(ctx, t.Token.ID, t.Digest)
	switch {
	case err != nil:
		return fmt.Errorf("reading where a token stands: %w", err)
	case !standing.Active:
		return ErrInactive
	}
	return nil
}
