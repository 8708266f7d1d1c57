package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/internal/token"
)

// PresentedToken is a verified token that a caller has presented.
type PresentedToken struct {
	Token token.Claims
	// Digest is the SHA-256 of the token's payload.
	Digest [32]byte
}

// Use checks a token like InForce. by is the workload that received the token. Use also spends a one-shot token: across all
// replicas, only one call returns nil.
func (b *Broker) Use(ctx context.Context, t PresentedToken, by attest.Identity) error {
	if err := b.InForce(ctx, t); err != nil {
		return err
	}
	return b.spend(ctx, t.Token, by)
}

// spend marks a one-shot token as used.
func (b *Broker) spend(ctx context.Context, t token.Claims, by attest.Identity) error {
	if !t.OneShot {
		return nil
	}
	err := b.recordOutcome(ctx, Outcome{ID: t.ID, Time: b.cfg.Now(), Status: StatusUsed, Actor: by.ID().String()})
	switch {
	case errors.Is(err, ErrNotForward), errors.Is(err, ErrNotFound):
		return ErrInactive
	case err != nil:
		return fmt.Errorf("recording the use of a token: %w", err)
	}
	return nil
}

// InForce returns nil if a token was issued and nobody has ended it. It returns ErrInactive if not, and ErrLedgerUnavailable if
// it cannot tell.
func (b *Broker) InForce(ctx context.Context, t PresentedToken) error {
	_, err := b.standing(ctx, t)
	return err
}

// standing returns the state of an active token, from the cache if possible. It always asks the store about a one-shot token.
func (b *Broker) standing(ctx context.Context, t PresentedToken) (TokenStanding, error) {
	if !t.Token.OneShot {
		if standing, ok := b.cfg.Tokens.Cached(t.Token.ID, t.Digest); ok {
			return standing, nil
		}
	}
	return b.stored(ctx, t)
}

// stored returns the state of an active token from the store, for decisions that must not miss a recent end.
func (b *Broker) stored(ctx context.Context, t PresentedToken) (TokenStanding, error) {
	standing, err := b.cfg.Tokens.TokenStanding(ctx, t.Token.ID, t.Digest)
	switch {
	case err != nil:
		return TokenStanding{}, fmt.Errorf("reading the state of a token: %w", err)
	case !standing.Active:
		return TokenStanding{}, ErrInactive
	}
	return standing, nil
}

// Alive reports whether a credential of any kind is in force for its holder. A static credential is not in force after its task
// has ended, although nobody can take it back. Alive returns ErrLedgerUnavailable if it cannot tell.
func (b *Broker) Alive(ctx context.Context, v *View) (bool, error) {
	if v.Status != StatusIssued {
		return false, nil
	}
	alive, err := b.cfg.Tokens.Alive(ctx, v.ID)
	if err != nil {
		return false, fmt.Errorf("reading whether a credential is live: %w", err)
	}
	return alive, nil
}
