package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/token"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/brevet-dev/brevet/scopes/egressrule"
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
	case errors.Is(err, ErrInvalidTransition), errors.Is(err, ErrNotFound):
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
func (b *Broker) standing(ctx context.Context, t PresentedToken) (TokenState, error) {
	if !t.Token.OneShot {
		if standing, ok := b.cfg.Tokens.Cached(t.Token.ID, t.Digest); ok {
			return standing, nil
		}
	}
	return b.stored(ctx, t)
}

// stored returns the state of an active token from the store, for decisions that must not miss a recent end.
func (b *Broker) stored(ctx context.Context, t PresentedToken) (TokenState, error) {
	standing, err := b.cfg.Tokens.TokenState(ctx, t.Token.ID, t.Digest)
	switch {
	case err != nil:
		return TokenState{}, fmt.Errorf("reading the state of a token: %w", err)
	case !standing.Active:
		return TokenState{}, ErrInactive
	}
	return standing, nil
}

// Alive reports whether a credential of any kind is in force for its holder. A static credential is not in force after its task
// has ended, although nobody can take it back. Alive returns ErrLedgerUnavailable if it cannot tell.
func (b *Broker) Alive(ctx context.Context, v *View) (bool, error) {
	if v.Status != StatusIssued {
		return false, nil
	}
	alive, err := b.AliveAmong(ctx, v.Subject.ID.String(), []string{v.ID})
	return len(alive) > 0, err
}

// AliveAmong returns those of the ids whose credentials are in force and were issued to the holder. Errors are those of Alive.
func (b *Broker) AliveAmong(ctx context.Context, holder string, ids []string) ([]string, error) {
	alive, err := b.cfg.Tokens.AliveAmong(ctx, holder, ids)
	if err != nil {
		return nil, fmt.Errorf("reading whether credentials are live: %w", err)
	}
	return alive, nil
}

// ForwardedCall is a call that a gateway holds until Brevet decides whether it may pass. The token is for an audience of the gateway.
// If the token is bound to a key, the caller has proved that it holds this key.
type ForwardedCall struct {
	PresentedToken
	Call egressrule.Call
	// Proof is the verified DPoP proof of the call. It is zero if the caller sent none. Allowing the call uses it up.
	Proof dpop.Proof
	// By is the gateway. If Brevet allows the call and the token is one-shot, it records that the gateway has used the token.
	By attest.Identity
}

// CallNotAllowedError says why a token does not allow a call, in words for the caller.
type CallNotAllowedError struct{ Why string }

func (e *CallNotAllowedError) Error() string { return ErrCallNotAllowed.Error() + ": " + e.Why }

func (e *CallNotAllowedError) Unwrap() error { return ErrCallNotAllowed }

// Check returns nil if a call may pass: the catalogue in force has a rule for it in the token's scope, and the token was issued
// and nobody has ended it. Otherwise it returns a *CallNotAllowedError, ErrInactive, an error of UseProof, or ErrLedgerUnavailable if it
// cannot tell.
func (b *Broker) Check(ctx context.Context, p ForwardedCall) error {
	by := b.catalogue()
	if err := opens(by, p); err != nil {
		return err
	}
	standing, err := b.standing(ctx, p.PresentedToken)
	if err != nil {
		return err
	}
	if standing.Catalogue != "" && standing.Catalogue != by.Digest() {
		// Another replica has applied a catalogue that this one has not loaded yet.
		if err := b.reload(ctx, by.Digest()); err != nil {
			return fmt.Errorf("loading the catalogue in force: %w", err)
		}
		if err := opens(b.catalogue(), p); err != nil {
			return err
		}
	}
	// A replayed proof must not spend the holder's token.
	if p.Proof.Thumbprint != "" {
		if err := b.UseProof(ctx, p.Token.Holder(), p.Proof); err != nil {
			return err
		}
	}
	return b.spend(ctx, p.Token, p.By)
}

// opens checks a call against the rules of the token's scope in a catalogue.
func opens(by *scopes.Catalogue, p ForwardedCall) error {
	if len(p.Token.Details) != 1 || p.Token.Details[0].Type != p.Token.Scope {
		return ErrInactive
	}
	scope, ok := by.Scope(p.Token.Scope)
	if !ok || !scope.Credential.AccessToken() || scope.Credential.Audience != p.Token.Audience {
		return &CallNotAllowedError{Why: "the scope of the token is no longer in the catalogue, or has another audience"}
	}
	if ok, why := egressrule.Allowed(scope.Egress, p.Token.Details[0].Params, p.Call); !ok {
		return &CallNotAllowedError{Why: why}
	}
	return nil
}

// dpopProofsPerSecond is how many DPoP proofs one replica accepts per second, since it remembers each for some minutes. Trust domains
// and their sandboxes have equal shares, and dpopProofsOfOne is the most that one sandbox can use.
const dpopProofsPerSecond, dpopProofsOfOne = 2000, 200

// UseProof marks a verified DPoP proof as used. It returns nil for the first use on any replica, and dpop.ErrReplayed for any
// later use. It returns dpop.ErrCrowded if too many proofs arrive at once, in total or beyond the share of that SPIFFE ID. Any other
// error is ErrLedgerUnavailable. A rejected proof proves nothing.
func (b *Broker) UseProof(ctx context.Context, by string, p dpop.Proof) error {
	if !b.dpopProofs.Allow(tenantOf(by), by, b.cfg.Now()) {
		return dpop.ErrCrowded
	}
	return b.cfg.DPoPReplayCache.UseProof(ctx, p)
}
