package httpapi

import (
	"context"
	"errors"
	"reflect"
	"slices"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/refusal"
	"github.com/brevet-dev/brevet/internal/token"
	. "github.com/brevet-dev/brevet/openapi"
)

// exchange handles token exchange (RFC 8693). The subject token is either a token of the caller, which it delegates to an actor,
// or the ID token of a person, on whose behalf the caller requests a token. In the second case the caller itself is the actor.
func (s *Server) exchange(ctx context.Context, who attest.Identity, f form, jkt string, deliver broker.Deliver) error {
	switch {
	case !slices.Contains([]TokenType{"", TokenTypeAccessToken, TokenTypeJWT}, TokenType(f["requested_token_type"])):
		return badMember("requested_token_type", OAuthInvalidRequest, "is not a supported token type")
	case TokenType(f["subject_token_type"]) != TokenTypeIDToken && jkt != "":
		return badMember("DPoP", OAuthInvalidRequest, "must be omitted: the new token belongs to the actor, not to the holder of the subject token")
	case TokenType(f["subject_token_type"]) != TokenTypeIDToken:
		return s.exchangeToken(ctx, who, f, deliver)
	case f["actor_token"]+f["actor_token_type"] != "":
		return badMember("actor_token", OAuthInvalidRequest, "must be omitted on behalf of a person: the client itself is the actor")
	case f["subject_token"] == "":
		return badMember("subject_token", OAuthInvalidRequest, "is required")
	}
	user, err := s.delegator(ctx, "subject_token", f["subject_token"])
	if err != nil {
		return err
	}
	return s.ask(ctx, who, f, broker.Request{JKT: jkt, User: user}, deliver)
}

// exchangeToken issues a token for a sub-agent in exchange for the caller's own token. Only the holder of that token can exchange
// it.
func (s *Server) exchangeToken(ctx context.Context, who attest.Identity, f form, deliver broker.Deliver) error {
	h, err := s.readTokenExchange(f)
	if err != nil {
		return err
	}
	err = s.cfg.Broker.Delegate(ctx, who, h, deliver)
	var unfit *broker.Unfit
	if errors.As(err, &unfit) {
		return badMember("subject_token", OAuthInvalidRequest, unfit.Why)
	}
	return err
}

func (s *Server) readTokenExchange(f form) (broker.TokenExchange, error) {
	for member, accepted := range map[string][]TokenType{
		"subject_token_type": {TokenTypeAccessToken}, "actor_token_type": {TokenTypeJWT},
	} {
		if !slices.Contains(accepted, TokenType(f[member])) {
			return broker.TokenExchange{}, badMember(member, OAuthInvalidRequest, "is missing, or is not a supported token type")
		}
	}
	t, err := s.presented(f["subject_token"])
	if errors.Is(err, errKeys) {
		return broker.TokenExchange{}, err
	}
	if err != nil {
		return broker.TokenExchange{}, badMember("subject_token", OAuthInvalidRequest, "is not a valid access token")
	}
	if err := agrees(f, t.Token); err != nil {
		return broker.TokenExchange{}, err
	}
	to, err := s.cfg.Attestor.Actor(f["actor_token"])
	switch {
	case errors.Is(err, attest.ErrBundleUnavailable):
		return broker.TokenExchange{}, &requestError{kind: errBundle, detail: refusal.Reason(err)}
	case err != nil:
		return broker.TokenExchange{}, badMember("actor_token", OAuthInvalidRequest, "is not a valid JWT-SVID for "+attest.ActorAudience(s.cfg.Broker.Issuer()))
	case to.ID().String() == t.Token.Holder():
		return broker.TokenExchange{}, badMember("actor_token", OAuthInvalidRequest, "is the SVID of the sandbox that already holds the token")
	}
	h := broker.TokenExchange{PresentedToken: t, To: to, Reason: f["reason"]}
	if h.TTL, err = readTTL(f["ttl"]); err != nil {
		return broker.TokenExchange{}, err
	}
	return h, checkReason(h.Reason)
}

// agrees checks that the form repeats the subject token: the new token has the same action, audience and task.
func agrees(f form, t token.Claims) error {
	if f["scope"] != "" && f["scope"] != t.Scope {
		return badMember("scope", OAuthInvalidScope, "differs from the subject token")
	}
	if f["task"] != "" && f["task"] != t.Task {
		return badMember("task", OAuthInvalidRequest, "differs from the subject token")
	}
	for _, name := range repeatable {
		if f[name] != "" && f[name] != t.Audience {
			return badMember(name, OAuthInvalidTarget, "differs from the subject token")
		}
	}
	if f["authorization_details"] == "" {
		return nil
	}
	d, err := readDetails(f)
	if err != nil {
		return err
	}
	params, err := d.params()
	if err != nil {
		return err
	}
	if len(t.Details) != 1 {
		return badDetails("differs from the grant of the subject token")
	}
	granted := t.Details[0]
	if d.Type != granted.Type || d.Actions != nil && !slices.Equal(d.Actions, granted.Actions) ||
		d.Locations != nil && !slices.Equal(d.Locations, granted.Locations) ||
		d.Identifier != "" && d.Identifier != granted.Identifier || !sameParams(params, granted.Params) {
		return badDetails("differs from the grant of the subject token")
	}
	return nil
}

// sameParams compares parameters as they are written. A different spelling of the same value is not equal.
func sameParams(a, b map[string]any) bool {
	return len(a) == 0 && len(b) == 0 || reflect.DeepEqual(a, b)
}
