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
	_, err := b.standing(ctx, t)
	return err
}

// standing is InForce, with what else the store says in the same breath.
func (b *Broker) standing(ctx context.Context, t Shown) (TokenStanding, error) {
	if b.cfg.Tokens == nil {
		return TokenStanding{}, ErrInactive
	}
	standing, err := b.cfg.Tokens.TokenStanding(ctx, t.Token.ID, t.Digest)
	switch {
	case err != nil:
		return TokenStanding{}, fmt.Errorf("reading where a token stands: %w", err)
	case !standing.Active:
		return TokenStanding{}, ErrInactive
	}
	return standing, nil
}
