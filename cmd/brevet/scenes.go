package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
)

const (
	demoTask     = "demo-1"
	demoAudience = "https://github-gateway.acme.example"
)

func demoAsk(scope string, ttl time.Duration) client.Ask {
	return client.Ask{
		Scope: scope, Params: map[string]any{"repo": "acme/api"}, TTL: ttl, Task: demoTask, Reason: "summarise open issues",
	}
}

func (s *story) ask(ctx context.Context, c *chapter, ask client.Ask) (client.Answer, error) {
	line := fmt.Sprintf("%s repo=%s", ask.Scope, ask.Params["repo"])
	if ask.TTL > 0 {
		line += " for " + spell(ask.TTL)
	}
	c.fact("requests", "%s", line)
	return s.cast.research.Request(ctx, ask)
}

func (s *story) token(ctx context.Context, c *chapter, ask client.Ask) (*client.Token, error) {
	answer, err := s.ask(ctx, c, ask)
	if err != nil {
		return nil, err
	}
	if answer.Token == nil {
		return nil, fmt.Errorf("got %+v, want a token", answer)
	}
	return answer.Token, nil
}

func (s *story) allowed(ctx context.Context, c *chapter) error {
	c.fact("who", "spiffe://%s%s, by X.509-SVID over mutual TLS", localDomain, localWorkloads["research"])
	token, err := s.token(ctx, c, demoAsk("github.issues.read", 0))
	if err != nil {
		return err
	}
	c.fact("gets", "a JWT for %s on %s that expires in %s", token.Scope, token.Resource, spell(token.TTL))
	c.fact("because", "policy %s permits the request", strings.Join(token.Policies, ", "))
	return s.recorded(ctx, c, token)
}

// recorded shows that the record names exactly this token, and was written before the token existed.
func (s *story) recorded(ctx context.Context, c *chapter, token *client.Token) error {
	record, err := s.cast.auditor.Issuance(ctx, token.ID)
	if err != nil {
		return err
	}
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(token.Secret.Reveal(), ".")[1])
	if err != nil {
		return fmt.Errorf("decoding the token's payload: %w", err)
	}
	digest := sha256.Sum256(payload)
	if got := record.Credential.ClaimsSha256; got != hex.EncodeToString(digest[:]) {
		return fmt.Errorf("the record has claims %s, the token %x", got, digest)
	}
	if record.Index == nil {
		return errors.New("the record has no index in the ledger")
	}
	c.fact("recorded", "as entry %d, before Vault signed; claims SHA-256 %.16s… matches the token", *record.Index,
		record.Credential.ClaimsSha256)
	return nil
}

func (s *story) clamped(ctx context.Context, c *chapter) error {
	token, err := s.token(ctx, c, demoAsk("github.issues.read", 2*time.Hour))
	if err != nil {
		return err
	}
	if len(token.Clamped) != 1 || token.TTL >= 2*time.Hour {
		return fmt.Errorf("got TTL %s and clamps %v, want one clamp", token.TTL, token.Clamped)
	}
	clamp := token.Clamped[0]
	c.fact("gets", "%s instead of %s, limited by %s", spell(seconds(clamp.To)), spell(seconds(clamp.From)), clamp.Bound)
	return nil
}

func (s *story) denied(ctx context.Context, c *chapter) error {
	_, err := s.ask(ctx, c, demoAsk("github.repo.delete", 0))
	var problem *client.Problem
	if !errors.Is(err, client.ErrDenied) || !errors.As(err, &problem) {
		return fmt.Errorf("got %w, want a denial", err)
	}
	c.fact("gets", "%d %s (%s)", problem.Status, problem.Title, problem.Reason)
	c.fact("because", "%s", problem.Explanation)
	if problem.Narrowest.Scope == "" {
		return errors.New("the denial names no request that would pass")
	}
	c.fact("would pass", "%s", commandLine(problem.Narrowest, demoTask))
	hint := client.Ask{
		Scope: problem.Narrowest.Scope, Params: problem.Narrowest.Params, TTL: seconds(problem.Narrowest.TTL), Task: demoTask,
	}
	answer, err := s.cast.research.Request(ctx, hint)
	if err != nil {
		return fmt.Errorf("the suggested request failed: %w", err)
	}
	if p := answer.Pending; p != nil {
		c.fact("tried", "that request is pending approval by %s", p.Group)
		return nil
	}
	c.fact("tried", "that request gets a token")
	return nil
}

func (s *story) verified(ctx context.Context, c *chapter) error {
	token, err := s.token(ctx, c, demoAsk("github.issues.read", 0))
	if err != nil {
		return err
	}
	keys, err := s.cast.jwks(ctx)
	if err != nil {
		return fmt.Errorf("fetching the public keys: %w", err)
	}
	claims, err := checkToken(keys, token.Secret.Reveal(), s.cast.cfg.Issuer, demoAudience)
	if err != nil {
		return fmt.Errorf("verifying the token: %w", err)
	}
	c.fact("accepts", "sub %v, scope %v, task %v", claims["sub"], claims["scope"], claims["task"])
	if _, err := checkToken(keys, token.Secret.Reveal(), s.cast.cfg.Issuer, "https://payroll.acme.example"); err == nil {
		return errors.New("another resource server accepted the token")
	}
	c.fact("refuses", "the same token at a resource server with another audience")
	return nil
}

func (s *story) forged(ctx context.Context, c *chapter) error {
	agent := spiffeid.RequireFromString("spiffe://" + localDomain + localWorkloads["research"])
	bundle := s.cast.local.issuer.Bundle()
	certificate, err := s.cast.forger(func(forge *devstack.Issuer, server tlsconfig.Authorizer) ([]client.Option, error) {
		svid, err := forge.X509SVID(agent)
		return []client.Option{client.WithX509(svid, bundle, server)}, err
	})
	if err != nil {
		return err
	}
	defer certificate.Close()
	if _, err := certificate.Request(ctx, demoAsk("github.issues.read", 0)); !refusedHandshake(err) {
		return fmt.Errorf("forged X.509-SVID: got %w, want the handshake refused", err)
	}
	c.fact("X.509-SVID", "refused in the TLS handshake")
	bearer, err := s.cast.forger(func(forge *devstack.Issuer, server tlsconfig.Authorizer) ([]client.Option, error) {
		token := client.WithJWT(forgedTokens{forge, agent}, s.cast.cfg.Issuer)
		return []client.Option{token, client.WithServer(bundle, server)}, nil
	})
	if err != nil {
		return err
	}
	defer bearer.Close()
	if _, err := bearer.Request(ctx, demoAsk("github.issues.read", 0)); !errors.Is(err, client.ErrUnauthenticated) {
		return fmt.Errorf("forged JWT-SVID: got %w, want it refused", err)
	}
	c.fact("JWT-SVID", "401: no authority of %s signed it", localDomain)
	return nil
}

// faults removes what a token needs, one after the other, and shows that no token is released.
func (s *story) faults(ctx context.Context, c *chapter) error {
	local := s.cast.local
	if err := local.Vault.Seal(ctx); err != nil {
		return fmt.Errorf("sealing Vault: %w", err)
	}
	if err := s.unavailable(ctx, c, "sealed"); err != nil {
		return err
	}
	if err := local.Vault.Unseal(ctx); err != nil {
		return fmt.Errorf("unsealing Vault: %w", err)
	}
	if err := local.Postgres.Stop(); err != nil {
		return fmt.Errorf("stopping PostgreSQL: %w", err)
	}
	if err := s.unavailable(ctx, c, "stopped"); err != nil {
		return err
	}
	if err := local.Postgres.Start(ctx); err != nil {
		return fmt.Errorf("starting PostgreSQL: %w", err)
	}
	began := time.Now()
	for {
		_, err := s.cast.research.Request(ctx, demoAsk("github.issues.read", 0))
		if err == nil {
			c.fact("back", "token issued %s after both recovered", time.Since(began).Round(10*time.Millisecond))
			return nil
		}
		if !errors.Is(err, client.ErrUnavailable) || time.Since(began) > 10*time.Second {
			return fmt.Errorf("after both recovered: %w", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (s *story) unavailable(ctx context.Context, c *chapter, state string) error {
	_, err := s.cast.research.Request(ctx, demoAsk("github.issues.read", 0))
	var problem *client.Problem
	if !errors.As(err, &problem) || problem.Status != 503 || problem.RetryAfter == 0 {
		return fmt.Errorf("%s: got %w, want 503 with Retry-After", state, err)
	}
	c.fact(state, "503 %s; retry in %s; no token released", problem.Title, spell(problem.RetryAfter))
	return nil
}

func (s *story) history(ctx context.Context, c *chapter) error {
	records, err := collect(ctx, s.cast.auditor, client.Filter{Task: demoTask}, 100)
	if err != nil {
		return err
	}
	if len(records) < 6 {
		return fmt.Errorf("the task has %d records, want at least 6", len(records))
	}
	for _, r := range records {
		c.fact(string(r.Status), "%s  %-20s %-24s %s", r.Time.Local().Format(time.TimeOnly), r.Scope, r.Resource, r.DecisionCode)
	}
	return nil
}

// proven verifies the receipt of an issuance as anybody could years later, with only a public key.
func (s *story) proven(ctx context.Context, c *chapter) error {
	records, err := collect(ctx, s.cast.auditor, client.Filter{Task: demoTask}, 1)
	if err != nil {
		return err
	}
	texts, err := s.cast.auditor.LogKeys(ctx)
	if err != nil {
		return err
	}
	_, keys, err := audit.ParseKeys(texts)
	if err != nil {
		return err
	}
	receipt, err := s.receipt(ctx, records[0].ID)
	if err != nil {
		return err
	}
	checkpoint, err := receipt.Verify(keys)
	if err != nil {
		return fmt.Errorf("verifying the receipt: %w", err)
	}
	entry := &receipt.Entries[0]
	c.fact("proof", "%d hashes connect entry %d to the root of all %d entries, which the log's key in Vault signed", len(entry.Proof),
		entry.Index, checkpoint.N)
	entry.Body = strings.Replace(entry.Body, demoTask, strings.ToUpper(demoTask), 1)
	if _, err := receipt.Verify(keys); !errors.Is(err, audit.ErrReceipt) {
		return fmt.Errorf("changed receipt: got %w, want %w", err, audit.ErrReceipt)
	}
	c.fact("changed", "one word of the entry; verification fails: %s", audit.ErrReceipt)
	return nil
}

// receipt requests the proof of an issuance until a checkpoint covers it, which happens soon.
func (s *story) receipt(ctx context.Context, id string) (audit.Receipt, error) {
	for began := time.Now(); ; {
		got, err := s.cast.auditor.LogReceipt(ctx, id)
		if err == nil {
			return receiptOf(got)
		}
		if !errors.Is(err, client.ErrUnavailable) || time.Since(began) > 10*time.Second {
			return audit.Receipt{}, err
		}
		select {
		case <-ctx.Done():
			return audit.Receipt{}, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// receiptOf converts a receipt to the type that package audit verifies.
func receiptOf(got openapi.LogReceipt) (receipt audit.Receipt, err error) {
	text, err := json.Marshal(got)
	if err == nil {
		err = json.Unmarshal(text, &receipt)
	}
	return receipt, err
}
