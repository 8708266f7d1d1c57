package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/internal/token"
)

// PresentedToken is a token that was verified, as it was shown to somebody.
type PresentedToken struct {
	Token token.Claims
	// Digest is the SHA-256 of the token's payload.
	Digest [32]byte
}

// Use is InForce for the workload that the token is shown to. A one-shot token is spent by it: of all who ask, on
// whichever replica, one is told nil.
func (b *Broker) Use(ctx context.Context, t PresentedToken, by attest.Identity) error {
	if err := b.InForce(ctx, t); err != nil {
		return err
	}
	return b.spend(ctx, t.Token, by)
}

// spend uses up a token that is in force and good for one use.
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

// InForce returns nil when a token is what was issued and nobody has ended it, else ErrInactive; ErrLedgerUnavailable
// when that cannot be told.
func (b *Broker) InForce(ctx context.Context, t PresentedToken) error {
	_, err := b.standing(ctx, t)
	return err
}

// standing is InForce, with what else the store says in the same breath. What is good for one use is asked of the store.
func (b *Broker) standing(ctx context.Context, t PresentedToken) (TokenStanding, error) {
	if b.cfg.Tokens != nil && !t.Token.OneShot {
		if standing, ok := b.cfg.Tokens.Cached(t.Token.ID, t.Digest); ok {
			return standing, nil
		}
	}
	return b.stored(ctx, t)
}

// stored is standing by the store alone, for what a token's end must not be overtaken by.
func (b *Broker) stored(ctx context.Context, t PresentedToken) (TokenStanding, error) {
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

// Alive tells whether a credential of whatever kind is in force, for its holder: a static one is not once its task has ended,
// although nobody can take it back. ErrLedgerUnavailable when that cannot be told.
func (b *Broker) Alive(ctx context.Context, v *View) (bool, error) {
	if b.cfg.Tokens == nil || v.Status != StatusIssued {
		return false, nil
	}
	alive, err := b.cfg.Tokens.Alive(ctx, v.ID)
	if err != nil {
		return false, fmt.Errorf("reading whether a credential is alive: %w", err)
	}
	return alive, nil
}

// waitForReplicas returns once every replica knows of what was just recorded, as far as it tells anybody of tokens: only then may
// it be confirmed.
func (b *Broker) waitForReplicas(ctx context.Context) {
	if b.cfg.Tokens != nil {
		b.cfg.Tokens.WaitForReplicas(ctx)
	}
}
