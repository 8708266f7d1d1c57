package login

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/quiet"
	"github.com/brevet-dev/brevet/internal/refusal"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

const (
	providerTimeout = 10 * time.Second

	// defaultDeviceLife is the time for a login with providers that do not state one, although they must.
	defaultDeviceLife = 10 * time.Minute
)

// Provider is an OpenID Connect provider, found by its issuer.
type Provider struct {
	issuer, revocation string
	http               *http.Client
	flows              oauth2.Config
	verifier           *people.Verifier
	now                func() time.Time
}

// Provider reads the configuration of a provider. It refuses one that would get tokens in the clear on another machine, or
// that has no device flow.
func (s *Store) Provider(ctx context.Context, issuer, clientID string) (*Provider, error) {
	p := &Provider{issuer: issuer, now: s.Now, http: &http.Client{
		Timeout:       providerTimeout,
		Transport:     quiet.New(&http.Transport{Proxy: s.Proxy, TLSHandshakeTimeout: providerTimeout}),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	var err error
	p.verifier, err = people.New(people.Config{Issuer: issuer, ClientID: clientID, HTTPClient: p.http, Now: s.Now})
	if err != nil {
		return nil, err
	}
	var document struct {
		Scopes     []string `json:"scopes_supported"`
		Revocation string   `json:"revocation_endpoint"`
	}
	found, err := oidc.NewProvider(oidc.ClientContext(ctx, p.http), issuer)
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err == nil {
		err = found.Claims(&document)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the configuration of the provider %s: %s", safetext.Text(issuer), Quote(err.Error()))
	}
	p.flows = oauth2.Config{ClientID: clientID, Endpoint: found.Endpoint(), Scopes: []string{oidc.ScopeOpenID}}
	p.flows.Endpoint.AuthStyle = oauth2.AuthStyleInParams // the client has no secret
	p.revocation = document.Revocation
	for _, scope := range []string{"profile", "groups", oidc.ScopeOfflineAccess} {
		if slices.Contains(document.Scopes, scope) {
			p.flows.Scopes = append(p.flows.Scopes, scope)
		}
	}

	if p.flows.Endpoint.DeviceAuthURL == "" {
		return nil, errors.New("the provider does not support the device flow: enable it for this client")
	}
	at, err := url.Parse(issuer)
	if err != nil {
		return nil, err
	}
	for _, endpoint := range []string{p.flows.Endpoint.DeviceAuthURL, p.flows.Endpoint.TokenURL, p.revocation} {
		if endpoint == "" || strings.HasPrefix(endpoint, "https://") {
			continue
		}
		// people.New accepts an http issuer on this machine only.
		if at.Scheme != "http" || !strings.HasPrefix(endpoint, "http://"+at.Host+"/") {
			return nil, fmt.Errorf("the provider's endpoint %s is not https", Quote(endpoint))
		}
	}
	return p, nil
}

// Close closes the connections to the provider.
func (p *Provider) Close() { p.http.CloseIdleConnections() }

// Begin starts the device flow. The person may use a browser on another machine. Without scopes, it requests openid, and those
// of profile, groups and offline_access that the provider supports.
func (p *Provider) Begin(ctx context.Context, scopes []string) (*oauth2.DeviceAuthResponse, error) {
	if len(scopes) > 0 {
		p.flows.Scopes = scopes
	}
	device, err := p.flows.DeviceAuth(context.WithValue(ctx, oauth2.HTTPClient, p.http))
	if err != nil {
		return nil, failed(err)
	}
	if device.Expiry.IsZero() {
		device.Expiry = p.now().Add(defaultDeviceLife)
	}
	return device, nil
}

// Finish waits until the person has agreed on the provider's page.
func (p *Provider) Finish(ctx context.Context, device *oauth2.DeviceAuthResponse) (Login, error) {
	tokens, err := p.flows.DeviceAccessToken(context.WithValue(ctx, oauth2.HTTPClient, p.http), device)
	if err != nil {
		return Login{}, failed(err)
	}
	return p.login(ctx, tokens)
}

// login returns the login that the provider's tokens stand for. It refuses what the broker would refuse, while the person can
// see it.
func (p *Provider) login(ctx context.Context, tokens *oauth2.Token) (Login, error) {
	raw, _ := tokens.Extra("id_token").(string)
	if raw == "" {
		return Login{}, errors.New("the provider returned no ID token: add openid to --oidc-scopes")
	}
	person, err := p.verifier.Identify(ctx, raw)
	if err != nil {
		return Login{}, fmt.Errorf("verifying the provider's ID token: %w (%s)", err, refusal.Reason(err))
	}
	return Login{
		Issuer: p.issuer, ClientID: p.flows.ClientID, ID: person.ID(), Name: person.Name(), Groups: person.Groups(),
		Expires: person.Expires(), IDToken: secret.New(raw), RefreshToken: secret.New(tokens.RefreshToken),
	}, nil
}

// providerOf returns the provider of a login, for its refresh token. It returns [ErrOtherNetwork] before it calls anybody if
// the token would not go there as at the login: two variables are enough to read it otherwise.
func (s *Store) providerOf(ctx context.Context, l Login) (*Provider, error) {
	if l.Network != s.Network {
		return nil, fmt.Errorf("%w: you logged in with %s, and this command has %s. Nothing was sent. To use these, run brevet login again; otherwise restore HTTPS_PROXY, SSL_CERT_FILE and SSL_CERT_DIR",
			ErrOtherNetwork, l.Network, s.Network)
	}
	return s.Provider(ctx, l.Issuer, l.ClientID)
}

// Renew gets a new ID token for the same person (OpenID Connect Core, section 12). It does not store the login.
func (s *Store) Renew(ctx context.Context, l Login) (Login, error) {
	p, err := s.providerOf(ctx, l)
	if err != nil {
		return Login{}, err
	}
	defer p.Close()
	ctx = context.WithValue(ctx, oauth2.HTTPClient, p.http)
	tokens, err := p.flows.TokenSource(ctx, &oauth2.Token{RefreshToken: l.RefreshToken.Reveal()}).Token()
	if refused, ok := errors.AsType[*oauth2.RetrieveError](err); ok && refused.ErrorCode == "invalid_grant" {
		return Login{}, ErrEnded
	}
	if err != nil {
		return Login{}, fmt.Errorf("renewing the login: %w", failed(err))
	}
	renewed, err := p.login(ctx, tokens)
	if err == nil && renewed.ID != l.ID {
		return Login{}, ErrEnded
	}
	return renewed, err
}

// Revoke revokes the refresh token at the provider (RFC 7009), if there is one and the provider can.
func (s *Store) Revoke(ctx context.Context, l Login) error {
	if !l.Renewable() {
		return nil
	}
	p, err := s.providerOf(ctx, l)
	if err != nil || p.revocation == "" {
		return err
	}
	defer p.Close()
	form := url.Values{"client_id": {l.ClientID}, "token": {l.RefreshToken.Reveal()}, "token_type_hint": {"refresh_token"}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.revocation, strings.NewReader(form.Encode()))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := p.http.Do(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the provider returned status %d", resp.StatusCode)
	}
	return nil
}

// failed describes a failed login. It quotes the provider's text, which is untrusted.
func failed(err error) error {
	refused, ok := errors.AsType[*oauth2.RetrieveError](err)
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, context.DeadlineExceeded), ok && refused.ErrorCode == "expired_token":
		return errors.New("the login timed out: run brevet login again")
	case !ok:
		return fmt.Errorf("logging in: %s", Quote(err.Error()))
	case refused.ErrorCode == "access_denied":
		return errors.New("the login was declined")
	default:
		return fmt.Errorf("logging in: the provider refused: %s", Quote(refused.ErrorCode+" "+refused.ErrorDescription))
	}
}

// Quote returns a provider's text as one short line that is safe to print, because it may be a whole page.
func Quote(text string) string { return safetext.Shorten(safetext.Text(text), 300) }
