package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
)

// cast holds the actors of the demo, each with a separate identity.
type cast struct {
	local    *localStack
	cfg      Config
	research *client.Client
	auditor  *client.Client
	admin    *client.Client
	alice    *client.Client // a person
	leave    func()
}

func assemble(ctx context.Context, local *localStack, cfg Config) (*cast, error) {
	c := &cast{local: local, cfg: cfg}
	var closers []func()
	c.leave = func() {
		for _, f := range closers {
			f()
		}
		closers = nil
	}
	for name, role := range map[string]**client.Client{"research": &c.research, "auditor": &c.auditor, "admin": &c.admin} {
		caller, done, err := c.flags(name).open(ctx)
		if err != nil {
			c.leave()
			return nil, fmt.Errorf("connecting as %s: %w", name, err)
		}
		*role = caller
		closers = append(closers, done)
	}
	var err error
	if c.alice, err = c.person("alice"); err != nil {
		c.leave()
		return nil, fmt.Errorf("connecting as alice: %w", err)
	}
	closers = append(closers, c.alice.Close)
	return c, nil
}

// person returns a client for a person whom the stack's OpenID provider knows.
func (c *cast) person(username string) (*client.Client, error) {
	anyone, err := client.New(client.Config{BaseURL: c.cfg.Issuer},
		client.WithServer(c.local.issuer.Bundle(), tlsconfig.AuthorizeID(c.brokerID())))
	if err != nil {
		return nil, err
	}
	return anyone.AsPerson(c.local.people.Person(username))
}

func (c *cast) flags(workload string) CallerFlags {
	return CallerFlags{Server: c.cfg.Issuer, ServerID: c.brokerID().String(), WorkloadAPI: c.local.socket(workload)}
}

func (c *cast) brokerID() spiffeid.ID {
	return spiffeid.RequireFromString("spiffe://" + localDomain + localWorkloads["brevet"])
}

// forger returns a client whose SVID names the research agent, but is signed by an authority that the broker does not know.
func (c *cast) forger(proof func(forge *devstack.Issuer, server tlsconfig.Authorizer) ([]client.Option, error)) (*client.Client, error) {
	forge, err := devstack.NewIssuer(devstack.IssuerConfig{
		TrustDomain: spiffeid.RequireTrustDomainFromString(localDomain), Now: time.Now,
	})
	if err != nil {
		return nil, err
	}
	options, err := proof(forge, tlsconfig.AuthorizeID(c.brokerID()))
	if err != nil {
		return nil, err
	}
	return client.New(client.Config{BaseURL: c.cfg.Issuer}, options...)
}

// forgedTokens issues JWT-SVIDs for one subject, signed by any issuer.
type forgedTokens struct {
	issuer  *devstack.Issuer
	subject spiffeid.ID
}

// FetchJWTSVID signs a token for the audience that the caller names.
func (f forgedTokens) FetchJWTSVID(_ context.Context, params jwtsvid.Params) (*jwtsvid.SVID, error) {
	token, err := f.issuer.JWTSVID(f.subject, params.Audience)
	if err != nil {
		return nil, err
	}
	return jwtsvid.ParseInsecure(token, []string{params.Audience})
}

// jwks fetches the public keys as a resource server does, without any client identity.
func (c *cast) jwks(ctx context.Context) (*jose.JSONWebKeySet, error) {
	anyone := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		TLSClientConfig: tlsconfig.TLSClientConfig(c.local.issuer.Bundle(), tlsconfig.AuthorizeID(c.brokerID())),
	}}
	defer anyone.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.cfg.Issuer+"/.well-known/jwks.json", nil)
	if err != nil {
		return nil, err
	}
	resp, err := anyone.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	var keys jose.JSONWebKeySet
	return &keys, json.Unmarshal(body, &keys)
}

// checkToken does everything that a resource server must do to verify a token.
func checkToken(keys *jose.JSONWebKeySet, token, issuer, audience string) (jwt.MapClaims, error) {
	claims := jwt.MapClaims{}
	_, err := jwt.ParseWithClaims(token, claims, func(t *jwt.Token) (any, error) {
		kid, _ := t.Header["kid"].(string)
		for _, key := range keys.Key(kid) {
			if t.Header["typ"] == "at+jwt" && key.Algorithm == t.Method.Alg() {
				return key.Key, nil
			}
		}
		return nil, errors.New("no JWKS key has this kid and algorithm")
	}, jwt.WithValidMethods([]string{"ES256", "EdDSA"}), jwt.WithIssuer(issuer), jwt.WithAudience(audience),
		jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithStrictDecoding())
	return claims, err
}

func reachable(ctx context.Context, address string) bool {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// refusedHandshake reports whether the server closed the connection without a response, as it does if it refuses a
// certificate. The caller sees an alert, EOF or a reset, depending on which arrives first.
func refusedHandshake(err error) bool {
	var answered *client.Problem
	return err != nil && !errors.As(err, &answered) && !errors.Is(err, client.ErrAnswer)
}
