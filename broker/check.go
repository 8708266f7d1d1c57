package broker

import (
	"context"
	"fmt"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/scopes"
)

// Passage is a call that a gateway holds until it is told whether to let it pass. Its token is for an audience of the
// gateway's, and its caller has proved the key that it is bound to.
type Passage struct {
	PresentedToken
	Call scopes.Call
	// Proof is the DPoP proof of the call, checked; zero when its token was shown without one. It is used by letting the call
	// pass.
	Proof dpop.Proof
	// By is the gateway. A one-shot token is spent by letting a call of its pass.
	By attest.Identity
}

// NotOpened says why a token does not open what it was shown for, in words for whoever made the call.
type NotOpened struct{ Why string } //nolint:errname // named for what the token did not

func (e *NotOpened) Error() string { return ErrNotOpened.Error() + ": " + e.Why }

func (e *NotOpened) Unwrap() error { return ErrNotOpened }

// Check returns nil when a call may pass: by the catalogue in force, its token's scope has a rule for it, and the token
// is what was issued and nobody has ended. Else the error is a *NotOpened, ErrInactive or one of UseProof's;
// ErrLedgerUnavailable when that cannot be told.
func (b *Broker) Check(ctx context.Context, p Passage) error {
	by := b.catalogue()
	if err := opens(by, p); err != nil {
		return err
	}
	standing, err := b.standing(ctx, p.PresentedToken)
	if err != nil {
		return err
	}
	if b.cfg.Catalogues != nil && standing.Catalogue != "" && standing.Catalogue != by.Digest() {
		// Another replica has applied a catalogue, which this one has not seen yet.
		if err := b.reload(ctx, by.Digest()); err != nil {
			return fmt.Errorf("loading the catalogue in force: %w", err)
		}
		if err := opens(b.catalogue(), p); err != nil {
			return err
		}
	}
	// A proof that was used before must not spend the token of whoever made it.
	if p.Proof.Thumbprint != "" {
		if err := b.UseProof(ctx, p.Token.Holder(), p.Proof); err != nil {
			return err
		}
	}
	return b.spend(ctx, p.Token, p.By)
}

// opens holds a call to the rules that a catalogue has for the token's scope.
func opens(by *scopes.Catalogue, p Passage) error {
	if len(p.Token.Details) != 1 || p.Token.Details[0].Type != p.Token.Scope {
		return ErrInactive
	}
	scope, ok := by.Scope(p.Token.Scope)
	if !ok || scope.Credential.Kind != scopes.KindJWT || scope.Credential.Audience != p.Token.Audience {
		return &NotOpened{Why: "the scope of the token is not in the catalogue any more, or is for another audience"}
	}
	if ok, why := scopes.Allowed(scope.Egress, p.Token.Details[0].Params, p.Call); !ok {
		return &NotOpened{Why: why}
	}
	return nil
}
