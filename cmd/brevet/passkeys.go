package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"

	pages "github.com/brevet-dev/brevet/internal/console"
	"github.com/brevet-dev/brevet/internal/passkey"
	"github.com/brevet-dev/brevet/scopes"
)

// relyingParty returns the site that passkeys are for: the console's host and its only origin. Without a console it returns
// the zero value.
func relyingParty(c *ConsoleConfig) (passkey.RelyingParty, error) {
	if c == nil {
		return passkey.RelyingParty{}, nil
	}
	u, err := pages.ParseURL(c.URL)
	if err != nil {
		return passkey.RelyingParty{}, fmt.Errorf("console: %w", err)
	}
	origin := url.URL{Scheme: u.Scheme, Host: u.Host}
	return passkey.RelyingParty{ID: u.Hostname(), Origins: []string{origin.String()}}, nil
}

// warnUnsignable logs the scopes that nobody can approve, because they need a passkey and there is no console to sign in.
func warnUnsignable(ctx context.Context, log *slog.Logger, site passkey.RelyingParty, catalogue *scopes.Catalogue) {
	if site.Configured() {
		return
	}
	for _, s := range catalogue.Scopes() {
		if s.Approval != nil && s.Approval.Passkey == scopes.PasskeyRequired {
			log.WarnContext(ctx, "scope requires passkeys, but no console is configured", "scope", s.Name)
		}
	}
}
