package httpapi_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/testkit"
	access "github.com/brevet-dev/brevet/internal/token"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

// bindsKeys has a scope that binds to a key, one that binds to a key and needs approval, and one that binds to nothing.
var bindsKeys = testkit.Options{
	Catalogue: []scopes.File{
		{Name: "scopes.yaml", Data: []byte(`scopes:
  - name: mail.read
    title: Read mail
    authority: read
    resource: mail:all
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://mail.test, bind: dpop}
  - name: mail.send
    title: Send mail
    authority: write
    resource: mail:all
    ttl: {default: 5m, max: 15m}
    approval: {group: oncall, quorum: 1, remember: task}
    credential: {kind: jwt, audience: https://mail.test, bind: dpop}
  - name: news.read
    title: Read news
    authority: read
    resource: news:all
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://news.test}
`)},
		{Name: "policy.cedar", Data: []byte(`@id("agents") permit (principal in TrustDomain::"acme.test", action, resource);
@id("people") forbid (principal, action in Action::"authority:write", resource) unless { context.approved };`)},
	},
	People: withPeople.People, Rules: withPeople.Rules, Auditors: []string{auditor},
}

func signer(t *testing.T) *dpop.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s, err := dpop.NewSigner(key, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// tokenOf verifies a token as a resource server would, with nothing but the key set.
func tokenOf(t *testing.T, s *testkit.Stack, raw, audience string) access.Claims {
	t.Helper()
	jwks, err := s.Minter.JWKS()
	if err != nil {
		t.Fatal(err)
	}
	keys, err := access.Parse(jwks)
	if err != nil {
		t.Fatal(err)
	}
	v, err := access.NewVerifier(access.Config{
		Issuer: testkit.Audience, Audiences: []string{audience}, Keys: func() access.KeySet { return keys }, Now: time.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	claims, err := v.Verify(raw)
	if err != nil {
		t.Fatalf("verifying a token of ours: %v", err)
	}
	return claims
}

func TestTokenIsBoundToTheRequestingKey(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, bindsKeys)
	key := signer(t)
	for name, c := range map[string]*client.Client{"X.509": s.Client(t, agent), "JWT": s.JWTClient(t, agent)} {
		for scope, audience := range map[string]string{"mail.read": "https://mail.test", "news.read": "https://news.test"} {
			got, err := c.Request(t.Context(), client.Ask{Scope: scope, Task: "t-1", Signer: key})
			if err != nil || got.Token == nil || got.Token.Type != "DPoP" {
				t.Fatalf("%s, %s: got %+v, %v; want a token of type DPoP", name, scope, got, err)
			}
			claims := tokenOf(t, s, got.Token.Secret.Reveal(), audience)
			if claims.Confirm == nil || *claims.Confirm != (access.Confirm{JKT: key.Thumbprint()}) {
				t.Errorf("%s, %s: got cnf %+v, want the thumbprint of the key", name, scope, claims.Confirm)
			}
		}
	}
	got, err := s.Client(t, agent).Request(t.Context(), client.Ask{Scope: "news.read", Task: "t-1"})
	if err != nil || got.Token == nil || got.Token.Type != "Bearer" ||
		tokenOf(t, s, got.Token.Secret.Reveal(), "https://news.test").Confirm != nil {
		t.Errorf("without a proof: got %+v, %v; want a bearer token", got, err)
	}
	s.DB.Check(t)
}

// A caller without the proof that a scope requires is told so, and gets a nonce for the next call.
func TestScopeCanRequireADPoPProof(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, bindsKeys)
	_, err := s.Client(t, agent).Request(t.Context(), client.Ask{Scope: "mail.read", Task: "t-1"})
	var p *client.Problem
	if !errors.As(err, &p) || p.Code != openapi.CodeDenied || p.Reason != scopes.ReasonProofRequired ||
		!strings.Contains(p.Explanation, "send a DPoP proof") {
		t.Errorf("got %v, want a denial that says what to do", err)
	}
	if got := s.Signings(t); got != 0 {
		t.Errorf("Vault signed %d times, want 0", got)
	}
	call := proved{svid: agent, body: `{"scope":"mail.read","task":"t-1"}`}
	if got := call.send(t, s); got.status != 403 || got.nonce == "" {
		t.Errorf("got %d with the nonce %q, want the nonce for the proof", got.status, got.nonce)
	}
}

// proved is one call with the given proofs.
type proved struct {
	svid, body, path string
	proofs           []string
	form             url.Values
}

type provedAnswer struct {
	status                 int
	nonce, challenge, text string
	problem                openapi.Problem
	oauth                  openapi.OAuthError
	token                  openapi.Token
}

func (p proved) send(t *testing.T, s *testkit.Stack) provedAnswer {
	t.Helper()
	path, kind, body := "/v1/tokens", "application/json", p.body
	if p.path != "" {
		path = p.path
	}
	if p.form != nil {
		kind, body = "application/x-www-form-urlencoded", p.form.Encode()
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", kind)
	req.Header["Dpop"] = p.proofs
	resp, err := s.HTTP(t, s.X509(t, p.svid)).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	got := provedAnswer{
		status: resp.StatusCode, nonce: resp.Header.Get("DPoP-Nonce"), challenge: resp.Header.Get("WWW-Authenticate"), text: string(text),
	}
	if p.form != nil {
		_ = json.Unmarshal(text, &got.oauth)
	} else if _ = json.Unmarshal(text, &got.token); got.status >= 400 {
		_ = json.Unmarshal(text, &got.problem)
	}
	return got
}

func proofFor(t *testing.T, key *dpop.Signer, r dpop.Request) string {
	t.Helper()
	proof, err := key.Proof(r)
	if err != nil {
		t.Fatal(err)
	}
	return proof
}

func TestProofNeedsTheServersNonce(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, bindsKeys)
	key, body := signer(t), `{"scope":"mail.read","task":"t-1"}`
	ask := dpop.Request{Method: "POST", URL: s.URL + "/v1/tokens"}
	first := proved{svid: agent, body: body, proofs: []string{proofFor(t, key, ask)}}.send(t, s)
	if first.status != 401 || first.problem.Code != openapi.CodeUseDPoPNonce || first.nonce == "" ||
		first.challenge != `DPoP error="use_dpop_nonce", algs="ES256 ES384 EdDSA Ed25519"` {
		t.Fatalf("got %d %s, %q, %q; want the nonce", first.status, first.text, first.nonce, first.challenge)
	}
	if n := len(s.DB.Entries(t)); n != 0 {
		t.Errorf("got %d entries for a step of the protocol, want none", n)
	}
	ask.Nonce = first.nonce
	second := proved{svid: agent, body: body, proofs: []string{proofFor(t, key, ask)}}.send(t, s)
	if second.status != 201 || second.token.TokenType != "DPoP" || second.nonce == "" {
		t.Errorf("got %d %s, want a token and the nonce for the next", second.status, second.text)
	}
	ask.Nonce = "AAAAAAAAAAAAAAAAAAAAAA"
	if got := (proved{svid: agent, body: body, proofs: []string{proofFor(t, key, ask)}}).send(t, s); got.problem.Code != openapi.CodeUseDPoPNonce {
		t.Errorf("another nonce: got %d %s", got.status, got.text)
	}
}

// H17 and T8: a proof of another call, or a used one, leaves an entry, causes no signature, and the response says why.
func TestInvalidProofsAreRefused(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, bindsKeys)
	key, body := signer(t), `{"scope":"news.read","task":"t-1"}`
	ask := dpop.Request{Method: "POST", URL: s.URL + "/v1/tokens", Nonce: nonceOf(t, s)}
	used := proofFor(t, key, ask)
	if got := (proved{svid: agent, body: body, proofs: []string{used}}).send(t, s); got.status != 201 {
		t.Fatalf("got %d %s, want a token", got.status, got.text)
	}
	with := func(change func(*dpop.Request)) []string {
		r := ask
		change(&r)
		return []string{proofFor(t, key, r)}
	}
	past, err := dpop.NewSigner(ecKey(t), func() time.Time { return time.Now().Add(-2 * time.Minute) })
	if err != nil {
		t.Fatal(err)
	}
	signings := s.Signings(t)
	for name, tc := range map[string]struct {
		proofs []string
		code   openapi.ProblemCode
		why    string
	}{
		"replayed":            {[]string{used}, openapi.CodeInvalidDPoPProof, "the proof was used before"},
		"no proof":            {[]string{"x"}, openapi.CodeInvalidDPoPProof, "the header does not hold exactly one DPoP proof"},
		"two":                 {[]string{proofFor(t, key, ask), proofFor(t, key, ask)}, openapi.CodeInvalidParameter, ""},
		"another method":      {with(func(r *dpop.Request) { r.Method = "GET" }), openapi.CodeInvalidDPoPProof, "the proof is for another method"},
		"another path":        {with(func(r *dpop.Request) { r.URL = s.URL + "/oauth2/token" }), openapi.CodeInvalidDPoPProof, "the proof is for another URL"},
		"another host":        {with(func(r *dpop.Request) { r.URL = "https://evil.test/v1/tokens" }), openapi.CodeInvalidDPoPProof, "the proof is for another URL"},
		"another port":        {with(func(r *dpop.Request) { r.URL = "https://127.0.0.1:1/v1/tokens" }), openapi.CodeInvalidDPoPProof, "the proof is for another URL"},
		"for an access token": {with(func(r *dpop.Request) { r.Token = "x" }), openapi.CodeInvalidDPoPProof, "the proof is not for this access token"},
		"two minutes old":     {[]string{proofFor(t, past, ask)}, openapi.CodeInvalidDPoPProof, "the proof is too old or from the future"},
	} {
		t.Run(name, func(t *testing.T) {
			before := len(s.DB.Entries(t))
			got := proved{svid: agent, body: body, proofs: tc.proofs}.send(t, s)
			if got.status < 400 || got.problem.Code != tc.code || got.problem.Explanation != tc.why {
				t.Errorf("got %d %s, want %s", got.status, got.text, tc.code)
			}
			if n := len(s.DB.Entries(t)) - before; n != 1 {
				t.Errorf("got %d entries, want 1", n)
			}
		})
	}
	if n := s.Signings(t) - signings; n != 0 {
		t.Errorf("Vault signed %d times, want 0", n)
	}
	ask.URL = testkit.Audience + "/v1/tokens"
	if got := (proved{svid: agent, body: body, proofs: []string{proofFor(t, key, ask)}}).send(t, s); got.status != 201 {
		t.Errorf("the issuer's address: got %d %s, want a token", got.status, got.text)
	}
	s.DB.Check(t)
}

func ecKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// nonceOf returns a nonce from the server.
func nonceOf(t *testing.T, s *testkit.Stack) string {
	t.Helper()
	return proved{
		svid: agent, body: `{"scope":"news.read","task":"t-1"}`,
		proofs: []string{proofFor(t, signer(t), dpop.Request{Method: "POST", URL: s.URL + "/v1/tokens"})},
	}.send(t, s).nonce
}

// T8: one proof, sent many times at once and to two replicas, gets one token. A nonce of one replica is valid on the other.
func TestProofGetsOneToken(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, bindsKeys)
	replica := s.Replica(t)
	call := proved{svid: agent, body: `{"scope":"news.read","task":"t-1"}`}
	ask := dpop.Request{Method: "POST", URL: testkit.Audience + "/v1/tokens", Nonce: nonceOf(t, replica)}
	call.proofs = []string{proofFor(t, signer(t), ask)}
	var given atomic.Int64
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() {
			at := s
			if i%2 == 1 {
				at = replica
			}
			if got := call.send(t, at); got.status == 201 {
				given.Add(1)
			} else if got.problem.Code != openapi.CodeInvalidDPoPProof {
				t.Errorf("got %d %s", got.status, got.text)
			}
		})
	}
	wg.Wait()
	if given.Load() != 1 {
		t.Errorf("got %d tokens for one proof, want 1", given.Load())
	}
}

func TestProofIsRefusedWithoutTheReplayStore(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, bindsKeys)
	key, nonce := signer(t), nonceOf(t, s)
	exec(t, s, `REVOKE INSERT ON dpop_seen FROM brevet_broker`)
	got := proved{
		svid: agent, body: `{"scope":"news.read","task":"t-1"}`,
		proofs: []string{proofFor(t, key, dpop.Request{Method: "POST", URL: s.URL + "/v1/tokens", Nonce: nonce})},
	}.send(t, s)
	if got.status != 503 || got.problem.Code != openapi.CodeLedgerUnavailable {
		t.Errorf("got %d %s, want ledger_unavailable", got.status, got.text)
	}
	if n := s.Signings(t); n != 0 {
		t.Errorf("Vault signed %d times, want 0", n)
	}
}

// I4: an approval is for one key, and only a caller that proves this key gets the credential.
func TestApprovalIsForOneKey(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, bindsKeys)
	sandbox, carol, key := s.Client(t, agent), s.Person(t, "carol"), signer(t)
	ask := client.Ask{Scope: "mail.send", Task: "t-1", Signer: key}
	id := waiting(t, sandbox, ask)
	shown, err := carol.Approval(t.Context(), id)
	if err != nil || !strings.Contains(shown.Canonical, `"jkt":"`+key.Thumbprint()+`"`) {
		t.Fatalf("got %s, %v; want the thumbprint among what is voted on", shown.Canonical, err)
	}
	if _, err := carol.VoteForTask(t.Context(), shown, ""); err != nil {
		t.Fatal(err)
	}
	other := ask
	other.Signer = signer(t)
	if _, err := sandbox.Redeem(t.Context(), id, other); code(err) != openapi.CodeStale {
		t.Errorf("with another key: got %v, want stale", err)
	}
	other.Signer = nil
	var p *client.Problem
	if _, err := sandbox.Redeem(t.Context(), id, other); !errors.As(err, &p) || p.Reason != scopes.ReasonProofRequired {
		t.Errorf("without one: got %v, want proof_required", err)
	}
	got, err := sandbox.Redeem(t.Context(), id, ask)
	if err != nil || got.Token == nil || got.Token.Type != "DPoP" {
		t.Fatalf("with the key: got %+v, %v; want a token", got, err)
	}
	if c := tokenOf(t, s, got.Token.Secret.Reveal(), "https://mail.test").Confirm; c == nil || c.JKT != key.Thumbprint() {
		t.Errorf("got cnf %+v, want %s", c, key.Thumbprint())
	}
	// An approval for the task is for that key too.
	if again, err := sandbox.Request(t.Context(), ask); err != nil || again.Token == nil {
		t.Errorf("the same key again: got %+v, %v; want a token", again, err)
	}
	other.Signer = signer(t)
	if again, err := sandbox.Request(t.Context(), other); err != nil || again.Pending == nil {
		t.Errorf("another key: got %+v, %v; want it pending", again, err)
	}
	s.DB.Check(t)
}

// The key that a caller proves is part of the request for which an idempotency key is used.
func TestIdempotencyKeyIsForOneKey(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, bindsKeys)
	c := s.Client(t, agent)
	ask := client.Ask{Scope: "news.read", Task: "t-1", IdempotencyKey: "k", Signer: signer(t)}
	if got, err := c.Request(t.Context(), ask); err != nil || got.Token == nil {
		t.Fatalf("got %+v, %v", got, err)
	}
	ask.Signer = signer(t)
	if _, err := c.Request(t.Context(), ask); code(err) != openapi.CodeIdempotencyMismatch {
		t.Errorf("got %v, want idempotency_mismatch", err)
	}
}

// The token endpoint checks proofs in the same way, and answers with OAuth errors.
func TestProofsAtTheTokenEndpoint(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, bindsKeys)
	key, form := signer(t), url.Values{"grant_type": {"client_credentials"}, "scope": {"mail.read"}}
	ask := dpop.Request{Method: "POST", URL: s.URL + "/oauth2/token"}
	call := proved{svid: agent, path: "/oauth2/token", form: form, proofs: []string{proofFor(t, key, ask)}}
	first := call.send(t, s)
	if first.status != 400 || first.oauth.Error != openapi.OAuthUseDPoPNonce || first.nonce == "" || first.challenge != "" {
		t.Fatalf("got %d %s, want the nonce", first.status, first.text)
	}
	ask.Nonce = first.nonce
	call.proofs = []string{proofFor(t, key, ask)}
	second := call.send(t, s)
	if second.status != 200 || !strings.Contains(second.text, `"token_type":"DPoP"`) || second.nonce == "" {
		t.Errorf("got %d %s, want a token", second.status, second.text)
	}
	if got := call.send(t, s); got.status != 400 || got.oauth.Error != openapi.OAuthInvalidDPoPProof {
		t.Errorf("replayed: got %d %s, want invalid_dpop_proof", got.status, got.text)
	}
	call.proofs = []string{proofFor(t, key, ask), proofFor(t, key, ask)}
	if got := call.send(t, s); got.status != 400 || got.oauth.Error != openapi.OAuthInvalidDPoPProof {
		t.Errorf("two: got %d %s, want invalid_dpop_proof", got.status, got.text)
	}
	call.proofs = nil
	if got := call.send(t, s); got.status != 400 || got.oauth.Error != "access_denied" || got.nonce == "" {
		t.Errorf("none: got %d %s, want it denied, with the nonce for a proof", got.status, got.text)
	}
}
