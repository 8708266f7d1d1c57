package httpapi

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/clientip"
	"github.com/brevet-dev/brevet/internal/token"
	. "github.com/brevet-dev/brevet/openapi"
)

// presented verifies a token of this issuer, for any audience. An error other than errKeys means that the token is invalid or has
// expired.
func (s *Server) presented(raw string) (broker.PresentedToken, error) {
	verifier, err := s.verifier()
	if err != nil {
		return broker.PresentedToken{}, fmt.Errorf("%w: %w", errKeys, err)
	}
	claims, err := verifier.Verify(raw)
	if err != nil {
		return broker.PresentedToken{}, err
	}
	return broker.PresentedToken{Token: claims, Digest: token.Digest(raw)}, nil
}

// ownKeys caches the verifier for the last published keys.
type ownKeys struct {
	jwks     []byte
	verifier *token.Verifier
}

// verifier returns a verifier for the keys that are published now. It creates a new one when the keys have changed.
func (s *Server) verifier() (*token.Verifier, error) {
	jwks, err := s.cfg.Keys.JWKS()
	if err != nil {
		return nil, err
	}
	if last := s.ownKeys.Load(); last != nil && bytes.Equal(last.jwks, jwks) {
		return last.verifier, nil
	}
	keys, err := token.Parse(jwks)
	if err != nil {
		return nil, err
	}
	verifier, err := token.NewIssuerVerifier(token.Config{
		Issuer: s.cfg.Broker.Issuer(), Keys: func() token.KeySet { return keys }, Now: s.cfg.Now,
	})
	if err != nil {
		return nil, err
	}
	s.ownKeys.Store(&ownKeys{jwks, verifier})
	return verifier, nil
}

// aboutToken is asClient for forms that contain a token.
func (s *Server) aboutToken(
	w http.ResponseWriter, r *http.Request, operation string, authenticate func(*http.Request, form) (attest.Identity, error),
	handle func(who attest.Identity, token string) error,
) {
	s.asClient(w, r, operation, authenticate, func(who attest.Identity, f form) error {
		if f["token"] == "" {
			return badMember("token", OAuthInvalidRequest, "is required")
		}
		return handle(who, f["token"])
	})
}

// IntrospectToken tells a resource server, or the token's own sandbox, whether a token is active (RFC 7662). If the caller may not
// introspect a token, the answer is the same as for an invalid one, and the handler does not look the token up. For a resource
// server of the token's audience, introspection counts as a use. For the token's own sandbox it does not.
func (s *Server) IntrospectToken(w http.ResponseWriter, r *http.Request) {
	s.aboutToken(w, r, "introspectToken", s.asker, func(who attest.Identity, raw string) error {
		leave, err := enter(s.introspecting, who)
		if err != nil {
			return err
		}
		defer leave()
		t, err := s.presented(raw)
		id := who.ID().String()
		switch {
		case errors.Is(err, errKeys):
			return err
		case err != nil:
			err = broker.ErrInactive
		case slices.Contains(s.audiences[who.ID()], t.Token.Audience):
			err = s.cfg.Broker.Use(r.Context(), t, who)
		case id == t.Token.Holder(), id == t.Token.Subject:
			err = s.cfg.Broker.InForce(r.Context(), t)
		default:
			err = broker.ErrInactive
		}
		switch {
		case errors.Is(err, broker.ErrInactive):
			writeJSON(w, http.StatusOK, Introspection{})
		case err != nil:
			return err
		default:
			writeJSON(w, http.StatusOK, introspection(t.Token))
		}
		return nil
	})
}

func introspection(t token.Claims) Introspection {
	out := Introspection{
		Active: true, Scope: t.Scope, ClientID: t.ClientID, TokenType: bearerScheme, Exp: t.Expires, Iat: t.IssuedAt,
		Sub: t.Subject, Aud: t.Audience, Iss: t.Issuer, Jti: t.ID, Task: t.Task, OneShot: t.OneShot,
	}
	for _, d := range t.Details {
		out.AuthorizationDetails = append(out.AuthorizationDetails, AuthorizationDetail{
			Type: d.Type, Actions: d.Actions, Locations: d.Locations, Identifier: d.Identifier, Params: d.Params,
		})
	}
	if t.Actor != nil {
		out.Act = *actorOfToken(t.Actor)
	}
	if t.OnBehalfOf != nil {
		out.OnBehalfOf = TokenPerson{Iss: t.OnBehalfOf.Issuer, Sub: t.OnBehalfOf.Subject}
	}
	if t.Confirm != nil {
		out.Cnf = Confirmation{X5T: t.Confirm.X5T, Jkt: t.Confirm.JKT}
		if t.Confirm.JKT != "" {
			out.TokenType = dpopScheme
		}
	}
	return out
}

func actorOfToken(a *token.Actor) *TokenActor {
	if a == nil {
		return nil
	}
	return &TokenActor{Sub: a.Subject, Act: actorOfToken(a.Actor)}
}

// RevokeToken revokes one of the caller's own tokens (RFC 7009). For any other token it does nothing, and answers the same.
func (s *Server) RevokeToken(w http.ResponseWriter, r *http.Request) {
	s.aboutToken(w, r, "revokeToken", s.client, func(who attest.Identity, raw string) error {
		t, err := s.presented(raw)
		if errors.Is(err, errKeys) {
			return err
		}
		if err == nil && t.Token.Holder() == who.ID().String() {
			leave, err := enter(s.ending, who)
			if err != nil {
				return err
			}
			defer leave()
			ctx, cancel := uncancelled(r.Context())
			defer cancel()
			if _, err := s.cfg.Broker.Release(ctx, who, t.Token.ID); err != nil && !errors.Is(err, broker.ErrNotFound) {
				return err
			}
		}
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(http.StatusOK)
		return nil
	})
}

// GetStatusList serves a list of revoked tokens to any caller (draft-ietf-oauth-status-list-20, section 8). It answers 304 if the
// caller already has the current list. A caller with a client certificate has the share of its trust domain in the lookups of lists,
// and any other caller that of strangers.
func (s *Server) GetStatusList(w http.ResponseWriter, r *http.Request, id string) {
	s.begin(r, "getStatusList")
	var list broker.StatusList
	err := s.rules.checkID(r, nobody, id)
	if err == nil {
		by := clientip.Network(clientip.RemoteIP(r))
		if who, none := s.cfg.Attestor.Identify(r.TLS, ""); none == nil {
			by = who.ID().String()
		}
		list, err = s.cfg.Broker.StatusList(r.Context(), id, by)
		err = notFound(err, "id")
	}
	if errors.Is(err, broker.ErrListsCrowded) {
		err = &requestError{kind: errTooMany, detail: "lane"}
	}
	if err != nil {
		s.fail(w, r, nobody, err)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/statuslist+jwt")
	h.Set("Cache-Control", cached(broker.StatusListTTL))
	h.Set("ETag", `"`+list.Tag+`"`)
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(list.Token))
}
