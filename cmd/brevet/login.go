package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/refusal"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

const (
	// renewBefore is how long before its expiry an ID token is renewed, so that none expires in transit.
	renewBefore = time.Minute

	providerTimeout = 10 * time.Second

	// defaultDeviceLife is the time for a login with providers that do not state one, although they must.
	defaultDeviceLife = 10 * time.Minute
)

// errLoginEnded means that the user has to log in again.
var errLoginEnded = errors.New("you are not logged in, or your login has expired: run brevet login")

// LoginCmd is `brevet login`.
type LoginCmd struct {
	Issuer   string   `help:"Issuer of your OpenID Connect provider." required:"" env:"BREVET_OIDC_ISSUER"`
	ClientID string   `help:"OAuth client whose ID tokens the broker accepts." name:"client-id" required:"" env:"BREVET_OIDC_CLIENT_ID"`
	Scopes   []string `help:"Scopes to request from the provider. Default: openid, and those of profile, groups and offline_access that it supports." name:"oidc-scopes"`
}

// Run runs the device flow: the browser may be on another machine.
func (c *LoginCmd) Run(ctx context.Context, con *console) error {
	return c.logIn(ctx, con, nil)
}

// logIn runs the device flow. If agree is set, it approves the login on the provider's page, and logIn does not ask the
// user to.
func (c *LoginCmd) logIn(ctx context.Context, con *console, agree func(context.Context, *oauth2.DeviceAuthResponse) error) error {
	p, err := findProvider(ctx, c.Issuer, c.ClientID)
	if err != nil {
		return err
	}
	defer p.http.CloseIdleConnections()
	if len(c.Scopes) > 0 {
		p.flows.Scopes = c.Scopes
	}
	ctx = context.WithValue(ctx, oauth2.HTTPClient, p.http)
	device, err := p.flows.DeviceAuth(ctx)
	if err != nil {
		return loginFailed(err)
	}
	if device.Expiry.IsZero() {
		device.Expiry = time.Now().Add(defaultDeviceLife)
	}
	stop := func() {}
	if agree != nil {
		err = agree(ctx, device)
	} else if err = printDevice(con, device); err == nil {
		stop = showWaiting(con, "waiting for you", device.Expiry)
	}
	if err != nil {
		return err
	}
	tokens, err := p.flows.DeviceAccessToken(ctx, device)
	stop()
	if err != nil {
		return loginFailed(err)
	}
	l, err := p.login(ctx, tokens)
	if err != nil {
		return err
	}
	if err := l.write(); err != nil {
		return fmt.Errorf("storing the login: %w", err)
	}
	return l.print(con)
}

func printDevice(con *console, device *oauth2.DeviceAuthResponse) error {
	if con.json {
		return con.encode(map[string]any{
			"verification_uri": device.VerificationURI, "verification_uri_complete": device.VerificationURIComplete,
			"user_code": device.UserCode, "expires_at": device.Expiry,
		})
	}
	address := device.VerificationURIComplete
	if address == "" {
		address = device.VerificationURI
	}
	code := bold(con.err, safetext.Text(device.UserCode))
	_, err := fmt.Fprintf(con.err, "Open this page in a browser and continue if it shows the code %s:\n\n  %s\n\n", code, safetext.Text(address))
	return err
}

// showWaiting updates one line until stop is called, which removes the line. If err cannot show that, it prints one fixed
// line. With JSON output it prints nothing.
func showWaiting(con *console, doing string, until time.Time) (stop func()) {
	if con.json {
		return func() {}
	}
	if !colourful(con.err) {
		fmt.Fprintf(con.err, "%s until %s\n", doing, until.Local().Format(time.TimeOnly))
		return func() {}
	}
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			fmt.Fprintf(con.err, "\r\x1b[K%s, expires in %s", doing, timeLeft(until))
			select {
			case <-tick.C:
			case <-stopped:
				fmt.Fprint(con.err, "\r\x1b[K")
				return
			}
		}
	}()
	return func() { close(stopped); <-done }
}

// loginFailed describes a failed login. It quotes the provider's text, which is untrusted.
func loginFailed(err error) error {
	var refused *oauth2.RetrieveError
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return errors.New("the login timed out: run brevet login again")
	case !errors.As(err, &refused):
		return fmt.Errorf("logging in: %s", quoteProvider(err.Error()))
	}
	switch refused.ErrorCode {
	case "access_denied":
		return errors.New("the login was declined")
	case "expired_token":
		return errors.New("the login timed out: run brevet login again")
	default:
		return fmt.Errorf("logging in: the provider refused: %s", quoteProvider(refused.ErrorCode+" "+refused.ErrorDescription))
	}
}

// quoteProvider returns a provider's text as one line, because it may be a whole page.
func quoteProvider(text string) string { return shorten(safetext.Text(text), 300) }

// login is the logged-in person and their tokens.
type login struct {
	Issuer   string    `json:"issuer"`
	ClientID string    `json:"client_id"`
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Groups   []string  `json:"groups"`
	Expires  time.Time `json:"expires_at"`

	idToken, refreshToken secret.Text
}

// storedLogin is the login file. It is the only place where the tokens are written.
type storedLogin struct {
	login

	IDToken      string `json:"id_token"`
	RefreshToken string `json:"refresh_token,omitempty"`
}

func (l login) renewable() bool { return l.refreshToken.Reveal() != "" }

func (l login) print(con *console) error {
	if con.json {
		return con.encode(l.facts())
	}
	until := l.Expires.Local().Format(time.DateTime)
	if l.renewable() {
		until += ", renewed automatically"
	}
	_, err := fmt.Fprintf(con.out, "%-8s %s\n%-8s %s\n%-8s %s\n%-8s %s\n",
		"name", safetext.Text(l.Name), "id", safetext.Text(l.ID), "groups", orDash(strings.Join(l.Groups, ", ")), "until", until)
	return err
}

func (l login) facts() map[string]any {
	return map[string]any{
		"id": l.ID, "name": l.Name, "groups": append([]string{}, l.Groups...), "expires_at": l.Expires, "renewable": l.renewable(),
	}
}

func loginFile() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("finding the folder for the login: %w", err)
	}
	return filepath.Join(dir, "brevet", "login.json"), nil
}

func readLogin() (login, error) {
	path, err := loginFile()
	if err != nil {
		return login{}, err
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return login{}, errLoginEnded
	case err != nil:
		return login{}, fmt.Errorf("reading the login: %w", err)
	case info.Mode().Perm()&0o077 != 0:
		return login{}, fmt.Errorf("other users can read %s: run brevet login again", path)
	}
	text, err := readSecretFile(path)
	if err != nil {
		return login{}, err
	}
	var stored storedLogin
	if json.Unmarshal([]byte(text), &stored) != nil || stored.IDToken == "" {
		return login{}, fmt.Errorf("%s has the format of another version: run brevet login again", path)
	}
	stored.idToken, stored.refreshToken = secret.New(stored.IDToken), secret.New(stored.RefreshToken)
	return stored.login, nil
}

func (l login) write() error {
	path, err := loginFile()
	if err != nil {
		return err
	}
	text, err := json.Marshal(storedLogin{login: l, IDToken: l.idToken.Reveal(), RefreshToken: l.refreshToken.Reveal()})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return replaceFile(path, string(text)+"\n")
}

// provider is an OpenID Connect provider, found by its issuer.
type provider struct {
	issuer, revocation string
	http               *http.Client
	flows              oauth2.Config
	verifier           *people.Verifier
}

func findProvider(ctx context.Context, issuer, clientID string) (*provider, error) {
	p := &provider{issuer: issuer, http: &http.Client{
		Timeout:       providerTimeout,
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: providerTimeout},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	var err error
	p.verifier, err = people.New(people.Config{Issuer: issuer, ClientID: clientID, HTTPClient: p.http, Now: time.Now})
	if err != nil {
		return nil, err
	}
	found, err := oidc.NewProvider(oidc.ClientContext(ctx, p.http), issuer)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, fmt.Errorf("reading the configuration of the provider %s: %s", safetext.Text(issuer), quoteProvider(err.Error()))
	}
	var document struct {
		Scopes     []string `json:"scopes_supported"`
		Revocation string   `json:"revocation_endpoint"`
	}
	if err := found.Claims(&document); err != nil {
		return nil, fmt.Errorf("reading the configuration of the provider %s: %s", safetext.Text(issuer), quoteProvider(err.Error()))
	}
	p.flows = oauth2.Config{ClientID: clientID, Endpoint: found.Endpoint(), Scopes: []string{oidc.ScopeOpenID}}
	p.flows.Endpoint.AuthStyle = oauth2.AuthStyleInParams // the client has no secret
	p.revocation = document.Revocation
	for _, scope := range []string{"profile", "groups", oidc.ScopeOfflineAccess} {
		if slices.Contains(document.Scopes, scope) {
			p.flows.Scopes = append(p.flows.Scopes, scope)
		}
	}
	return p, p.checkEndpoints()
}

// checkEndpoints returns an error if tokens would be sent in the clear to another machine, or if there is no device flow.
func (p *provider) checkEndpoints() error {
	if p.flows.Endpoint.DeviceAuthURL == "" {
		return errors.New("the provider does not support the device flow: enable it for this client")
	}
	issuer, err := url.Parse(p.issuer)
	if err != nil {
		return err
	}
	for _, endpoint := range []string{p.flows.Endpoint.DeviceAuthURL, p.flows.Endpoint.TokenURL, p.revocation} {
		if endpoint == "" || strings.HasPrefix(endpoint, "https://") {
			continue
		}
		// people.New accepts an http issuer on this machine only.
		if issuer.Scheme != "http" || !strings.HasPrefix(endpoint, "http://"+issuer.Host+"/") {
			return fmt.Errorf("the provider's endpoint %s is not https", quoteProvider(endpoint))
		}
	}
	return nil
}

// login returns the login that the provider's tokens stand for. It refuses what the broker would refuse, while the user can
// see it.
func (p *provider) login(ctx context.Context, tokens *oauth2.Token) (login, error) {
	raw, _ := tokens.Extra("id_token").(string)
	if raw == "" {
		return login{}, errors.New("the provider returned no ID token: add openid to --oidc-scopes")
	}
	person, err := p.verifier.Identify(ctx, raw)
	if err != nil {
		return login{}, fmt.Errorf("verifying the provider's ID token: %w (%s)", err, refusal.Reason(err))
	}
	return login{
		Issuer: p.issuer, ClientID: p.flows.ClientID, ID: person.ID(), Name: person.Name(), Groups: person.Groups(),
		Expires: person.Expires(), idToken: secret.New(raw), refreshToken: secret.New(tokens.RefreshToken),
	}, nil
}

// renew gets a new ID token for the same person (OpenID Connect Core, section 12).
func (l login) renew(ctx context.Context) (login, error) {
	p, err := findProvider(ctx, l.Issuer, l.ClientID)
	if err != nil {
		return login{}, err
	}
	defer p.http.CloseIdleConnections()
	ctx = context.WithValue(ctx, oauth2.HTTPClient, p.http)
	tokens, err := p.flows.TokenSource(ctx, &oauth2.Token{RefreshToken: l.refreshToken.Reveal()}).Token()
	var refused *oauth2.RetrieveError
	if errors.As(err, &refused) && refused.ErrorCode == "invalid_grant" {
		return login{}, errLoginEnded
	}
	if err != nil {
		return login{}, fmt.Errorf("renewing the login: %w", loginFailed(err))
	}
	renewed, err := p.login(ctx, tokens)
	if err == nil && renewed.ID != l.ID {
		return login{}, errLoginEnded
	}
	return renewed, err
}

// revoke revokes the refresh token (RFC 7009).
func (l login) revoke(ctx context.Context) error {
	if !l.renewable() {
		return nil
	}
	p, err := findProvider(ctx, l.Issuer, l.ClientID)
	if err != nil || p.revocation == "" {
		return err
	}
	defer p.http.CloseIdleConnections()
	form := url.Values{"client_id": {l.ClientID}, "token": {l.refreshToken.Reveal()}, "token_type_hint": {"refresh_token"}}
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
