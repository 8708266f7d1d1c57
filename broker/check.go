package broker

import (
	"context"
	"fmt"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/brevet-dev/brevet/scopes/egressrule"
)

// Passage is a call that a gateway holds until Brevet decides whether it may pass. The token is for an audience of the gateway.
// If the token is bound to a key, the caller has proved that it holds this key.
type Passage struct {
	PresentedToken
	Call egressrule.Call
	// Proof is the verified DPoP proof of the call. It is zero if the caller sent none. Allowing the call uses it up.
	Proof dpop.Proof
	// By is the gateway. If Brevet allows the call and the token is one-shot, it records that the gateway has used the token.
	By attest.Identity
}

// NotOpened says why a token does not allow a call, in words for the caller.
type NotOpened struct{ Why string } //nolint:errname // named for what the token did not

func (e *NotOpened) Error() string { return ErrNotOpened.Error() + ": " + e.Why }

func (e *NotOpened) Unwrap() error { return ErrNotOpened }

// Check returns nil if a call may pass: the catalogue in force has a rule for it in the token's scope, and the token was issued
// and nobody has ended it. Otherwise it returns a *NotOpened, ErrInactive, an error of UseProof, or ErrLedgerUnavailable if it
// cannot tell.
func (b *Broker) Check(ctx context.Context, p Passage) error {
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
func opens(by *scopes.Catalogue, p Passage) error {
	if len(p.Token.Details) != 1 || p.Token.Details[0].Type != p.Token.Scope {
		return ErrInactive
	}
	scope, ok := by.Scope(p.Token.Scope)
	if !ok || scope.Credential.Kind != scopes.KindJWT || scope.Credential.Audience != p.Token.Audience {
		return &NotOpened{Why: "the scope of the token is no longer in the catalogue, or has another audience"}
	}
	if ok, why := egressrule.Allowed(scope.Egress, p.Token.Details[0].Params, p.Call); !ok {
		return &NotOpened{Why: why}
	}
	return nil
}
