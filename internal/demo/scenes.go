package demo

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/devstack/local"
	"github.com/brevet-dev/brevet/internal/quiet"
	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/resourceserver"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
	"golang.org/x/mod/sumdb/note"
)

const (
	task       = "demo-1"
	reportTask = "demo-2"
	// proceedsWithin bounds how long a sandbox may wait for its credential after the vote.
	proceedsWithin = 5 * time.Second
	// deadWithin bounds how long a login may keep working after its task has ended.
	deadWithin = 5 * time.Second
)

func askFor(scope string, ttl time.Duration) client.Ask {
	params := map[string]any{"repo": "acme/api"}
	return client.Ask{Scope: scope, Params: params, TTL: ttl, Task: task, Reason: "summarise open issues"}
}

func (s *story) ask(ctx context.Context, ask client.Ask) (client.Answer, error) {
	line := fmt.Sprintf("%s repo=%s", ask.Scope, ask.Params["repo"])
	if ask.TTL > 0 {
		line += " for " + s.Spell(ask.TTL)
	}
	s.fact("requests", "%s", line)
	return s.research.Request(ctx, ask)
}

// read requests a token that the policy permits.
func (s *story) read(ctx context.Context, ttl time.Duration) (*client.Token, error) {
	answer, err := s.ask(ctx, askFor("github.issues.read", ttl))
	if err == nil && answer.Token == nil {
		err = fmt.Errorf("got %+v, want a token", answer)
	}
	return answer.Token, err
}

// allowed shows that the record names exactly the issued token, and was written before the token existed.
func (s *story) allowed(ctx context.Context) error {
	s.fact("who", "%s, by X.509-SVID over mutual TLS", local.ID("research"))
	token, err := s.read(ctx, 0)
	if err != nil {
		return err
	}
	s.fact("gets", "a JWT for %s on %s that expires in %s", token.Scope, token.Resource, s.Spell(token.TTL))
	s.fact("because", "policy %s permits the request", strings.Join(token.Policies, ", "))
	record, err := s.auditor.Issuance(ctx, token.ID)
	if err != nil {
		return err
	}
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(token.Secret.Reveal(), ".")[1])
	if err != nil {
		return fmt.Errorf("decoding the token's payload: %w", err)
	}
	digest := sha256.Sum256(payload)
	claims := record.Credential.ClaimsSha256
	if claims != hex.EncodeToString(digest[:]) {
		return fmt.Errorf("the record has claims %s, the token %x", claims, digest)
	}
	if record.Index == nil {
		return errors.New("the record has no index in the ledger")
	}
	s.fact("recorded", "as entry %d, before Vault signed; claims SHA-256 %.16s… matches the token", *record.Index, claims)
	return nil
}

func (s *story) clamped(ctx context.Context) error {
	token, err := s.read(ctx, 2*time.Hour)
	if err != nil {
		return err
	}
	if len(token.Clamped) != 1 || token.TTL >= 2*time.Hour {
		return fmt.Errorf("got TTL %s and clamps %v, want one clamp", token.TTL, token.Clamped)
	}
	clamp := token.Clamped[0]
	s.fact("gets", "%s instead of %s, limited by %s", s.Spell(seconds(clamp.To)), s.Spell(seconds(clamp.From)), clamp.Bound)
	return nil
}

func (s *story) denied(ctx context.Context) error {
	_, err := s.ask(ctx, askFor("github.repo.delete", 0))
	problem, ok := errors.AsType[*client.Problem](err)
	if !ok || !errors.Is(err, client.ErrDenied) {
		return fmt.Errorf("got %w, want a denial", err)
	}
	s.fact("gets", "%d %s (%s)", problem.Status, problem.Title, problem.Reason)
	s.fact("because", "%s", problem.Explanation)
	near := problem.Narrowest
	if near.Scope == "" {
		return errors.New("the denial names no request that would pass")
	}
	s.fact("would pass", "%s", s.CommandLine(near))
	answer, err := s.research.Request(ctx, client.Ask{
		Scope: near.Scope, Params: near.Params, TTL: seconds(near.TTL), Task: task,
	})
	if err != nil {
		return fmt.Errorf("the suggested request failed: %w", err)
	}
	if p := answer.Pending; p != nil {
		s.fact("tried", "that request is pending approval by %s", p.Group)
	} else {
		s.fact("tried", "that request gets a token")
	}
	return nil
}

// approved shows a write that needs approval, and continues after Alice has approved it.
func (s *story) approved(ctx context.Context) error {
	ask := askFor("github.issues.write", 0)
	answer, err := s.ask(ctx, ask)
	if err != nil {
		return err
	}
	p := answer.Pending
	if p == nil {
		return errors.New("got a token, want a pending approval")
	}
	left := max(0, p.Expires.Sub(s.Now())).Round(time.Second)
	s.fact("pending", "%d of %s must approve within %s; no token exists yet", p.Quorum, p.Group, s.Spell(left))
	_, err = s.research.Vote(ctx, openapi.ApprovalCase{ID: p.ID, Hash: fmt.Sprintf("%064d", 0)}, openapi.VerdictApprove, "")
	if !errors.Is(err, client.ErrNotAllowed) {
		return fmt.Errorf("voting as the sandbox: got %w, want a refusal", err)
	}
	s.fact("sandbox", "cannot approve its own request: only people vote")

	// The sandbox does what `brevet request --wait` does.
	var token *client.Token
	redeemed := make(chan error, 1)
	go func() {
		state, err := s.research.Wait(ctx, p.ID)
		if err != nil {
			redeemed <- fmt.Errorf("waiting for the vote: %w", err)
			return
		}
		answer, err := s.research.Redeem(ctx, p.ID, ask)
		if err == nil && answer.Token == nil {
			err = errors.New("got no credential")
		}
		if err != nil {
			err = fmt.Errorf("redeeming the %s request: %w", state.Status, err)
		}
		token = answer.Token
		redeemed <- err
	}()
	shown, err := s.alice.Approval(ctx, p.ID)
	if err != nil {
		return err
	}
	s.fact("Alice", "sees %s, requested by %s; the sandbox's reason %q is shown apart from it",
		shown.Resource, shown.SpiffeID, shown.Reason)
	after, err := s.alice.Vote(ctx, shown, openapi.VerdictApprove, "go ahead")
	if err != nil {
		return err
	}
	voted := s.Now()
	if after.Status != openapi.StatusApproved {
		return fmt.Errorf("the request is %s after her vote", after.Status)
	}
	s.fact("Alice", "approves exactly this request, identified by its SHA-256 %.16s…", shown.Hash)
	if err := <-redeemed; err != nil {
		return err
	}
	took := s.Now().Sub(voted)
	if took > proceedsWithin {
		return fmt.Errorf("the sandbox got its token %s after the vote, want at most %s", took, proceedsWithin)
	}
	s.fact("gets", "a JWT for %s on %s, %s after the vote", token.Scope, token.Resource, took.Round(time.Millisecond))
	if _, err := s.research.Redeem(ctx, p.ID, ask); !errors.Is(err, client.ErrDecided) {
		return fmt.Errorf("redeeming again: got %w, want a refusal", err)
	}
	s.fact("again", "refused: one approval gives one credential")
	return nil
}

// verified shows a token to two resource servers, which fetch the public keys without any client identity.
func (s *story) verified(ctx context.Context) error {
	token, err := s.read(ctx, 0)
	if err != nil {
		return err
	}
	anyone := &http.Client{Timeout: 5 * time.Second, Transport: quiet.New(&http.Transport{
		TLSClientConfig: tlsconfig.TLSClientConfig(s.stack.Issuer.Bundle(), tlsconfig.AuthorizeID(local.ID("brevet"))),
	})}
	defer anyone.CloseIdleConnections()
	call, err := http.NewRequestWithContext(ctx, http.MethodGet, local.Audience, nil)
	if err != nil {
		return err
	}
	call.Header.Set("Authorization", "Bearer "+token.Secret.Reveal())
	config := resourceserver.Config{Issuer: s.stack.URL, Audience: local.Audience, HTTPClient: anyone, Now: s.Now}
	gateway, err := resourceserver.New(config)
	if err != nil {
		return err
	}
	claims, err := gateway.Check(call)
	if err != nil {
		return fmt.Errorf("verifying the token: %w", err)
	}
	s.fact("accepts", "sub %s, scope %s, task %s", claims.Subject, claims.Scope, claims.Task)
	config.Audience = "https://payroll.acme.example"
	payroll, err := resourceserver.New(config)
	if err != nil {
		return err
	}
	if _, err := payroll.Check(call); err == nil {
		return errors.New("another resource server accepted the token")
	}
	s.fact("refuses", "the same token at a resource server with another audience")
	return nil
}

// login shows a database login that works while its task runs, and no longer.
func (s *story) login(ctx context.Context) error {
	ask := client.Ask{Scope: "reports.orders.read", Task: reportTask, Reason: "weekly report"}
	s.fact("requests", "%s for the task %s", ask.Scope, reportTask)
	answer, err := s.research.Request(ctx, ask)
	if err != nil {
		return err
	}
	token := answer.Token
	if token == nil {
		return errors.New("got no credential")
	}
	s.fact("gets", "the database user %s and its password, for %s", token.Name, s.Spell(token.TTL))
	orders, err := s.orders(ctx, token)
	if err != nil {
		return fmt.Errorf("logging in: %w", err)
	}
	s.fact("logs in", "to the database, and reads %s", count(orders, "order"))
	record, err := s.auditor.Issuance(ctx, token.ID)
	if err != nil {
		return err
	}
	if record.Credential.Name != token.Name {
		return fmt.Errorf("the record names the user %q, the database %q", record.Credential.Name, token.Name)
	}
	s.fact("recorded", "the user's name, which connects the database's log to the sandbox")

	began := s.Now()
	receipt, err := s.research.EndTask(ctx, reportTask, client.TaskEnd{})
	if err != nil {
		return fmt.Errorf("ending the task: %w", err)
	}
	for _, e := range receipt.Ended {
		s.fact("task ends", "the receipt shows: %s %s", e.Kind, e.Status)
	}
	if len(receipt.Ended) != 1 || receipt.Ended[0].Status != openapi.StatusRevoked {
		return fmt.Errorf("got the receipt %+v, want one credential revoked", receipt)
	}
	_, err = s.orders(ctx, token)
	took := s.Now().Sub(began)
	if err == nil {
		return errors.New("the login works after its task has ended")
	}
	if _, refused := errors.AsType[*pgconn.PgError](err); !refused {
		return fmt.Errorf("logging in again: %w", err)
	}
	if took > deadWithin {
		return fmt.Errorf("the login was refused %s after the end of its task, want at most %s", took, deadWithin)
	}
	s.fact("logs in", "refused by the database, %s after the request to end the task", took.Round(time.Millisecond))
	if _, err = s.research.Request(ctx, client.Ask{Scope: ask.Scope, Task: reportTask}); !errors.Is(err, client.ErrTaskEnded) {
		return fmt.Errorf("got %w for a task that has ended, want a denial", err)
	}
	s.fact("repeats", "denied: nothing is issued for a task that has ended")
	return nil
}

// orders logs in to the target database with a credential, and counts the orders.
func (s *story) orders(ctx context.Context, token *client.Token) (n int, err error) {
	target, err := url.Parse(s.stack.Postgres.TargetURL())
	if err != nil {
		return 0, err
	}
	target.User = url.UserPassword(token.Field("username").Reveal(), token.Field("password").Reveal())
	conn, err := pgx.Connect(ctx, target.String()) //nolint:forbidigo // the demo's own database, on this machine
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return n, conn.QueryRow(ctx, `SELECT count(*) FROM orders`).Scan(&n)
}

func seconds(n int64) time.Duration { return time.Duration(n) * time.Second }

func count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// quarantined shows how an admin stops a sandbox.
func (s *story) quarantined(ctx context.Context) error {
	agent := local.ID("research").String()
	receipt, err := s.admin.Quarantine(ctx, agent, "unusual requests")
	if err != nil {
		return err
	}
	s.fact("admin", "quarantines %s, which ends %s", agent, count(len(receipt.Ended), "credential"))
	if _, err := s.read(ctx, 0); !errors.Is(err, client.ErrQuarantined) {
		return fmt.Errorf("got %w in quarantine, want a denial", err)
	}
	s.fact("gets", "nothing, from any replica")
	if err := s.admin.Unquarantine(ctx, agent, "false alarm"); err != nil {
		return err
	}
	if _, err := s.read(ctx, 0); err != nil {
		return fmt.Errorf("after the quarantine: %w", err)
	}
	s.fact("gets", "a token again after the admin has lifted the quarantine")
	return nil
}

// forged shows that SVIDs of the research agent are refused if an authority signed them that the broker does not know.
func (s *story) forged(ctx context.Context) error {
	forge, err := devstack.NewIssuer(devstack.IssuerConfig{TrustDomain: local.ID("brevet").TrustDomain(), Now: s.Now})
	if err != nil {
		return err
	}
	svid, err := forge.X509SVID(local.ID("research"))
	if err != nil {
		return err
	}
	bundle, server := s.stack.Issuer.Bundle(), tlsconfig.AuthorizeID(local.ID("brevet"))
	certificate, err := client.New(client.Config{BaseURL: s.stack.URL}, client.WithX509(svid, bundle, server))
	if err != nil {
		return err
	}
	defer certificate.Close()
	// The server closes the connection without a response. The caller sees an alert, EOF or a reset, whichever comes first.
	_, err = certificate.Request(ctx, askFor("github.issues.read", 0))
	if _, answered := errors.AsType[*client.Problem](err); err == nil || answered || errors.Is(err, client.ErrAnswer) {
		return fmt.Errorf("forged X.509-SVID: got %w, want the handshake refused", err)
	}
	s.fact("X.509-SVID", "refused in the TLS handshake")
	bearer, err := client.New(client.Config{BaseURL: s.stack.URL},
		client.WithJWT(forgedTokens{forge, local.ID("research")}, s.stack.URL), client.WithServer(bundle, server))
	if err != nil {
		return err
	}
	defer bearer.Close()
	if _, err := bearer.Request(ctx, askFor("github.issues.read", 0)); !errors.Is(err, client.ErrUnauthenticated) {
		return fmt.Errorf("forged JWT-SVID: got %w, want it refused", err)
	}
	s.fact("JWT-SVID", "401: no authority of %s signed it", local.Domain)
	return nil
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

// faults removes what a token needs, one after the other, and shows that no token is released.
func (s *story) faults(ctx context.Context) error {
	unavailable := func(state string) error {
		_, err := s.research.Request(ctx, askFor("github.issues.read", 0))
		problem, ok := errors.AsType[*client.Problem](err)
		if !ok || problem.Status != 503 || problem.RetryAfter == 0 {
			return fmt.Errorf("%s: got %w, want 503 with Retry-After", state, err)
		}
		s.fact(state, "503 %s; retry in %s; no token released", problem.Title, s.Spell(problem.RetryAfter))
		return nil
	}
	if err := s.stack.Vault.Seal(ctx); err != nil {
		return fmt.Errorf("sealing Vault: %w", err)
	}
	if err := unavailable("sealed"); err != nil {
		return err
	}
	if err := s.stack.Vault.Unseal(ctx); err != nil {
		return fmt.Errorf("unsealing Vault: %w", err)
	}
	if err := s.stack.Postgres.Stop(); err != nil {
		return fmt.Errorf("stopping PostgreSQL: %w", err)
	}
	if err := unavailable("stopped"); err != nil {
		return err
	}
	if err := s.stack.Postgres.Start(ctx); err != nil {
		return fmt.Errorf("starting PostgreSQL: %w", err)
	}
	began := s.Now()
	if err := s.available(ctx, func() error {
		_, err := s.research.Request(ctx, askFor("github.issues.read", 0))
		return err
	}); err != nil {
		return fmt.Errorf("after both recovered: %w", err)
	}
	s.fact("back", "token issued %s after both recovered", s.Now().Sub(began).Round(10*time.Millisecond))
	return nil
}

// available repeats a call until it finds no server unavailable, for at most 10 seconds.
func (s *story) available(ctx context.Context, call func() error) error {
	for began := s.Now(); ; {
		err := call()
		if !errors.Is(err, client.ErrUnavailable) || s.Now().Sub(began) > 10*time.Second {
			return err
		}
		if !wait.For(ctx, 100*time.Millisecond) {
			return ctx.Err()
		}
	}
}

func (s *story) history(ctx context.Context) error {
	n := 0
	for r, err := range s.auditor.Issuances(ctx, client.Filter{Task: task}) {
		if err != nil {
			return err
		}
		s.fact(string(r.Status), "%s  %-20s %-24s %s", r.Time.Local().Format(time.TimeOnly), r.Scope, r.Resource, r.DecisionCode)
		n++
	}
	if n < 6 {
		return fmt.Errorf("the task has %d records, want at least 6", n)
	}
	return nil
}

// proven verifies the receipt of an issuance as anybody could years later, with only a public key.
func (s *story) proven(ctx context.Context) error {
	texts, err := s.auditor.LogKeys(ctx)
	if err != nil {
		return err
	}
	var known []note.Verifier
	for _, text := range texts {
		key, err := note.NewVerifier(strings.TrimSpace(text))
		if err != nil {
			return fmt.Errorf("reading the log's keys: %w", err)
		}
		known = append(known, key)
	}
	keys := note.VerifierList(known...)
	page, err := s.auditor.Page(ctx, client.Filter{Task: task, Limit: 1})
	if err != nil {
		return err
	}
	var got openapi.LogReceipt
	if err := s.available(ctx, func() (err error) { // once a checkpoint covers it, which happens soon
		got, err = s.auditor.LogReceipt(ctx, page.Issuances[0].ID)
		return err
	}); err != nil {
		return err
	}
	text, err := json.Marshal(got)
	if err != nil {
		return err
	}
	var receipt audit.Receipt
	if err := json.Unmarshal(text, &receipt); err != nil {
		return err
	}
	checkpoint, err := receipt.Verify(keys)
	if err != nil {
		return fmt.Errorf("verifying the receipt: %w", err)
	}
	entry := &receipt.Entries[0]
	s.fact("proof", "%d hashes connect entry %d to the root of all %d entries, which the log's key in Vault signed",
		len(entry.Proof), entry.Index, checkpoint.N)
	entry.Body = strings.Replace(entry.Body, task, strings.ToUpper(task), 1)
	if _, err := receipt.Verify(keys); !errors.Is(err, audit.ErrReceipt) {
		return fmt.Errorf("changed receipt: got %w, want %w", err, audit.ErrReceipt)
	}
	s.fact("changed", "one word of the entry; verification fails: %s", audit.ErrReceipt)
	return nil
}
