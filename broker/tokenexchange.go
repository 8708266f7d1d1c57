package broker

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/internal/token"
	"github.com/brevet-dev/brevet/scopes"
)

// MaxActors is how many times a token can be delegated.
const MaxActors = 3

// TokenExchange is a token that its holder delegates to a sub-agent.
type TokenExchange struct {
	PresentedToken
	To attest.Identity
	// TTL is the requested lifetime of the new token. Zero asks for the scope's default.
	TTL time.Duration
	// Reason is free text of the holder.
	Reason string
}

// NotExchangeableError means that the holder cannot delegate the token.
type NotExchangeableError struct{ Why string }

func (u *NotExchangeableError) Error() string { return "token cannot be exchanged: it " + u.Why }

// Delegate issues a token for the same action to a sub-agent, and delivers it. The new token never exceeds the holder's: it
// allows nothing more, expires no later, and ends when the holder's token ends. Policy must allow the action to the sub-agent.
// Errors are as for Issue, and *NotExchangeableError.
func (b *Broker) Delegate(ctx context.Context, who attest.Identity, h TokenExchange, deliver Deliver) error {
	if err := h.check(who); err != nil {
		return err
	}
	switch _, err := b.stored(ctx, h.PresentedToken); {
	case errors.Is(err, ErrInactive):
		return &NotExchangeableError{"is not active"}
	case err != nil:
		return err
	}
	parent := h.Token
	recorded, err := b.parentRecord(ctx, parent)
	if err != nil {
		return err
	}
	req := Request{
		Scope: parent.Scope, Params: parent.Details[0].Params, TTL: h.TTL, RequestContext: recorded.RequestContext, Reason: h.Reason,
		Parent: &parent, User: recorded.User,
	}
	granted := Expectation{Kind: scopes.KindJWT, AccessToken: true, Audience: parent.Audience, Resource: parent.Details[0].Identifier}
	if len(parent.Details[0].Actions) == 1 {
		granted.Authority = parent.Details[0].Actions[0]
	}
	rec, key, _, err := b.begin(ctx, h.To, func(catalogue *scopes.Catalogue, now time.Time) (Record, Key, error) {
		d, err := catalogue.Decide(asking(h.To, req), askOf(req), now)
		if err == nil {
			err = granted.check(d)
		}
		var ask *scopes.InvalidAsk
		var unexpected *UnexpectedGrantError
		switch {
		case errors.As(err, &ask) && ask.Field != "ttl", errors.As(err, &unexpected):
			return Record{}, Key{}, &NotExchangeableError{"has a scope that has changed since it was issued"}
		case err != nil:
			return Record{}, Key{}, err
		}
		if d, err = narrowed(d, parent, now); err != nil {
			return Record{}, Key{}, err
		}
		return b.prepare(h.To, req, d, now)
	})
	switch {
	case errors.Is(err, ErrInactive): // it ended after the check above
		return &NotExchangeableError{"is not active"}
	case err != nil:
		return err
	}
	return b.mint(ctx, rec, key, deliver)
}

// parentRecord returns the record of a token. A token lacks what the record has: the whole request context, and the groups of the
// person.
func (b *Broker) parentRecord(ctx context.Context, t token.Claims) (*View, error) {
	parent, err := b.cfg.Ledger.Get(ctx, t.ID, Reach{Subject: t.Holder()})
	if err != nil {
		return nil, fmt.Errorf("reading the record of a token: %w", err)
	}
	if parent.Task != t.Task || !reflect.DeepEqual(PersonOf(parent.User), t.OnBehalfOf) {
		return nil, &NotExchangeableError{"names a different task or person than its record"}
	}
	return parent, nil
}

// check returns *NotExchangeableError if the caller may not delegate the token. A token that is bound to a key cannot be delegated, because the
// new token would not be bound to it. A one-shot token cannot either, because its single call cannot be shared.
func (h TokenExchange) check(who attest.Identity) error {
	t := h.Token
	switch {
	case t.Holder() != who.ID().String():
		return &NotExchangeableError{"belongs to another sandbox"}
	case t.Confirm != nil:
		return &NotExchangeableError{"is bound to a key: the sub-agent must request its own token"}
	case t.OneShot:
		return &NotExchangeableError{"is a single-use token"}
	case t.Actors() >= MaxActors:
		return &NotExchangeableError{fmt.Sprintf("has already been exchanged %d times", MaxActors)}
	case len(t.Details) != 1:
		return &NotExchangeableError{"does not grant exactly one action"}
	}
	return nil
}

// narrowed limits a decision to the lifetime of the parent token. It denies a request that needs approval: the sub-agent must ask
// for that itself.
func narrowed(d scopes.Decision, parent token.Claims, now time.Time) (scopes.Decision, error) {
	if d.Outcome == scopes.Pending {
		d.Outcome, d.Reason, d.Approval = scopes.Deny, scopes.ReasonApprovalRequired, nil
		d.Explanation = "This request needs approval, which a token exchange cannot get. The sub-agent must request its own token."
	}
	left := parent.ExpiresAt().Sub(now).Truncate(time.Second)
	if left < time.Second {
		return d, &NotExchangeableError{"is about to expire"}
	}
	if d.Outcome == scopes.Allow && d.TTL > left {
		d.Clamps = append(d.Clamps, scopes.Clamp{Bound: scopes.BoundParent, From: d.TTL, To: left})
		d.TTL = left
	}
	return d, nil
}
