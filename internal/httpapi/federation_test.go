package httpapi_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/resourceserver"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/google/go-cmp/cmp"
)

// withClouds is a stack with scopes for two clouds, and one scope for access tokens that have the audience of a cloud.
var withClouds = testkit.Options{
	Catalogue: []scopes.File{{Name: "scopes.yaml", Data: []byte(`scopes:
  - name: aws.deploy
    title: Deploy
    authority: write
    params: {repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+'}}
    resource: aws:repo/{repo}
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: sts.amazonaws.com, federation: {subject: 'repo:{repo}:task', algorithm: RS256}}
  - name: gcp.deploy
    title: Deploy
    authority: write
    params: {repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+'}}
    resource: gcp:repo/{repo}
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://cloud.test, federation: {subject: 'repo:{repo}:task', algorithm: ES256}}
  - name: anthropic.call
    title: Call a model
    authority: write
    params: {repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+'}, team: {type: enum, values: [web, ops]}}
    resource: anthropic:repo/{repo}
    ttl: {default: 5m, max: 15m}
    credential:
      kind: jwt
      audience: https://api.anthropic.com
      federation:
        subject: 'repo:{repo}:task'
        exchange: {as: anthropic, organization: org-1, rule: fdrl_1, service_account: 'svac_{team}', workspace: default}
  - name: cloud.api.read
    title: Read
    authority: read
    resource: cloud:api
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://cloud.test}
`)}, {Name: "policies.cedar", Data: []byte(`@id("agents")
permit (principal in Path::"spiffe://acme.test/agents/a", action, resource);
`)}},
	Admins:          []string{admin},
	ResourceServers: map[string][]string{gitServer: {"https://cloud.test", "sts.amazonaws.com"}},
}

func deploy(scope string) client.Ask {
	return client.Ask{Scope: scope, Params: map[string]any{"repo": "acme/api"}, Task: "t-1"}
}

// trust is the trust configuration of a farSide: what it requires of a token.
type trust struct {
	audience, subject string
	algorithms        []string
	now               func() time.Time
}

// farSide is the token exchange of another system (RFC 8693), over TLS. It knows the issuer's URL, and reads everything else from
// the issuer's discovery document, with a library that the broker has no part in. It accepts a token once.
type farSide struct {
	*httptest.Server
	verifier *oidc.IDTokenVerifier
	trust    trust

	mu   sync.Mutex
	seen map[string]bool // by jti
}

// reaches returns a client whose calls to the issuer's host go to the stack.
func reaches(t *testing.T, s *testkit.Stack) *http.Client {
	t.Helper()
	return &http.Client{Transport: toStack{s.HTTP(t, nil).Transport, s.Addr}, Timeout: 30 * time.Second}
}

func newFarSide(t *testing.T, s *testkit.Stack, requires trust) *farSide {
	t.Helper()
	provider, err := oidc.NewProvider(oidc.ClientContext(t.Context(), reaches(t, s)), testkit.Audience)
	if err != nil {
		t.Fatalf("discovering the issuer: %v", err)
	}
	f := &farSide{trust: requires, seen: map[string]bool{}, verifier: provider.VerifierContext(
		oidc.ClientContext(t.Context(), reaches(t, s)),
		&oidc.Config{ClientID: requires.audience, SupportedSigningAlgs: requires.algorithms, Now: requires.now},
	)}
	f.Server = httptest.NewTLSServer(f)
	t.Cleanup(f.Close)
	return f
}

func (f *farSide) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if why := f.refuses(r.Context(), r.PostFormValue("subject_token")); why != nil {
		http.Error(w, why.Error(), http.StatusBadRequest)
		return
	}
	_, _ = io.WriteString(w, "a session of the cloud")
}

// refuses returns why the far side accepts no token, or nil.
func (f *farSide) refuses(ctx context.Context, raw string) error {
	verified, err := f.verifier.Verify(ctx, raw)
	if err != nil {
		return err
	}
	var head map[string]any
	text, err := base64.RawURLEncoding.DecodeString(strings.Split(raw, ".")[0])
	if err != nil || json.Unmarshal(text, &head) != nil || head["typ"] != "JWT" || len(head) != 3 {
		return fmt.Errorf("the header is %s", text)
	}
	var claims map[string]any
	if err := verified.Claims(&claims); err != nil {
		return err
	}
	id, _ := claims["jti"].(string)
	nbf, _ := claims["nbf"].(float64)
	age := f.trust.now().Sub(verified.IssuedAt)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case claims["aud"] != f.trust.audience: // a string, not a list
		return fmt.Errorf("aud is %v", claims["aud"])
	case verified.Subject != f.trust.subject:
		return fmt.Errorf("sub is %s", verified.Subject)
	case age < -5*time.Second || age > 24*time.Hour || int64(nbf) != verified.IssuedAt.Unix():
		return fmt.Errorf("it was issued %s ago, and nbf is %v", age, nbf)
	case verified.Expiry.Sub(verified.IssuedAt) > 24*time.Hour:
		return errors.New("it lives too long")
	case id == "" || f.seen[id]:
		return fmt.Errorf("the jti %q was used before", id)
	}
	f.seen[id] = true
	return nil
}

// exchange presents a token, and returns the status and the answer.
func (f *farSide) exchange(t *testing.T, raw string) (int, string) {
	t.Helper()
	form := url.Values{
		"grant_type": {"urn:ietf:params:oauth:grant-type:token-exchange"}, "subject_token": {raw}, "subject_token_type": {"urn:ietf:params:oauth:token-type:jwt"},
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.URL, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := f.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

var clouds = map[string]trust{
	"aws.deploy": {audience: "sts.amazonaws.com", subject: "repo:acme/api:task", algorithms: []string{"RS256"}, now: time.Now},
	"gcp.deploy": {audience: "https://cloud.test", subject: "repo:acme/api:task", algorithms: []string{"RS256", "ES256"}, now: time.Now},
}

// Another system exchanges a token after it has read discovery and keys over TLS. Each token has a fresh jti, also for a repeated
// request. The record describes the token, and ends like any other.
func TestOtherSystemExchangesFederatedTokens(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withClouds)
	c := s.Client(t, agent)
	for _, scope := range slices.Sorted(maps.Keys(clouds)) {
		far := newFarSide(t, s, clouds[scope])
		ask := deploy(scope)
		ask.IdempotencyKey = "once-" + scope
		first := token(t, c, ask)
		raw := first.Secret.Reveal()
		if first.Kind != "jwt" || first.Type != "Bearer" {
			t.Errorf("%s: got kind %s and type %s", scope, first.Kind, first.Type)
		}
		if status, text := far.exchange(t, raw); status != 200 || text != "a session of the cloud" {
			t.Errorf("%s: got %d %s", scope, status, text)
		}
		if status, text := far.exchange(t, raw); status != 400 || !strings.Contains(text, "was used before") {
			t.Errorf("%s, a second time: got %d %s", scope, status, text)
		}
		// A repeat of the request gets no token, and in particular not one whose jti is used up.
		if got, err := c.Request(t.Context(), ask); !errors.Is(err, client.ErrConflict) || got.Token != nil {
			t.Errorf("%s, the same idempotency key: got %+v, %v", scope, got, err)
		}
		if status, text := far.exchange(t, token(t, c, deploy(scope)).Secret.Reveal()); status != 200 {
			t.Errorf("%s, another token: got %d %s", scope, status, text)
		}
		payload, err := base64.RawURLEncoding.DecodeString(strings.Split(raw, ".")[1])
		if err != nil {
			t.Fatal(err)
		}
		digest := sha256.Sum256(payload)
		record, err := c.Issuance(t.Context(), first.ID)
		if err != nil || record.Status != "issued" || record.Credential.Audience != clouds[scope].audience || record.Credential.ClaimsSha256 != hex.EncodeToString(digest[:]) {
			t.Errorf("%s: got the record %+v, %v", scope, record, err)
		}
		if _, err := s.Client(t, admin).Revoke(t.Context(), client.Selection{ID: first.ID}, "test"); err != nil {
			t.Fatal(err)
		}
		if record, err = c.Issuance(t.Context(), first.ID); err != nil || record.Status != "revoked" {
			t.Errorf("%s: got the record %+v, %v after a revocation", scope, record, err)
		}
	}
	if strings.Contains(s.Log.String(), "eyJ") {
		t.Error("a token is in the log")
	}
	var algorithms []any
	for _, e := range s.DB.Entries(t) {
		if intent, ok := e.Body["intent"].(map[string]any); ok {
			if algorithms = append(algorithms, intent["algorithm"]); intent["typ"] != "JWT" {
				t.Errorf("the ledger has the intent %v, want the typ JWT", intent)
			}
		}
	}
	if !slices.Equal(algorithms, []any{"RS256", "RS256", "ES256", "ES256"}) {
		t.Errorf("the ledger has intents of the algorithms %v", algorithms)
	}
	s.DB.Check(t)
}

// The other system accepts only what its trust configuration says. An access token has another typ, and a SPIFFE ID as its
// subject.
func TestOtherSystemRefusesOtherTokens(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withClouds)
	c := s.Client(t, agent)
	later := func() time.Time { return time.Now().Add(20 * time.Minute) }
	change := func(scope string, change func(*trust)) trust {
		requires := clouds[scope]
		change(&requires)
		return requires
	}
	own := func(scope string) trust { return clouds[scope] }
	for name, tc := range map[string]struct {
		requires trust
		scope    string
		damage   func(raw string) string
		want     string
	}{
		"for another system":    {change("gcp.deploy", func(r *trust) { r.audience = "sts.example" }), "gcp.deploy", nil, "expected audience"},
		"for another cloud":     {own("aws.deploy"), "gcp.deploy", nil, "unexpected signature algorithm"},
		"of another repository": {change("aws.deploy", func(r *trust) { r.subject = "repo:acme/web:task" }), "aws.deploy", nil, "sub is repo:acme/api:task"},
		"expired":               {change("aws.deploy", func(r *trust) { r.now = later }), "aws.deploy", nil, "token is expired"},
		"ES256 for RS256 only":  {change("gcp.deploy", func(r *trust) { r.algorithms = []string{"RS256"} }), "gcp.deploy", nil, "unexpected signature algorithm"},
		"an access token":       {own("gcp.deploy"), "cloud.api.read", nil, "at+jwt"},
		"with another subject": {own("aws.deploy"), "aws.deploy", func(raw string) string {
			parts := strings.Split(raw, ".")
			payload, _ := base64.RawURLEncoding.DecodeString(parts[1])
			parts[1] = base64.RawURLEncoding.EncodeToString([]byte(strings.Replace(string(payload), "acme/api", "acme/web", 1)))
			return strings.Join(parts, ".")
		}, "failed to verify signature"},
		"without a signature": {own("aws.deploy"), "aws.deploy", func(raw string) string {
			return base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","typ":"JWT"}`)) + "." + strings.Split(raw, ".")[1] + "."
		}, "unexpected signature algorithm"},
	} {
		t.Run(name, func(t *testing.T) {
			far := newFarSide(t, s, tc.requires)
			ask := deploy(tc.scope)
			if tc.scope == "cloud.api.read" {
				ask.Params = nil
			}
			raw := token(t, c, ask).Secret.Reveal()
			if tc.damage != nil {
				raw = tc.damage(raw)
			}
			if status, text := far.exchange(t, raw); status != 400 || !strings.Contains(text, tc.want) {
				t.Errorf("got %d %s, want %q", status, text, tc.want)
			}
		})
	}
}

// Nothing of ours accepts a token for another system: no resource server, no introspection, no exchange, and no call of the API.
// Nor does anything of ours accept an access token that the RS256 key signed.
func TestFederatedTokensAreNoAccessTokens(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withClouds)
	c := s.Client(t, agent)
	access := token(t, c, client.Ask{Scope: "cloud.api.read", Task: "t-1"}).Secret.Reveal()
	tokens := map[string]string{"an access token that RS256 signed": resigned(t, s, access)}
	for scope := range clouds {
		tokens[scope] = token(t, c, deploy(scope)).Secret.Reveal()
	}
	cloud := resourceserver.Config{Audience: "https://cloud.test"}
	if got := atServer(t, s, cloud, access); got != 200 {
		t.Fatalf("the resource server answers an access token with %d", got)
	}
	for name, raw := range tokens {
		if got := atServer(t, s, cloud, raw); got != 401 {
			t.Errorf("%s: the resource server answers %d, want 401", name, got)
		}
		for _, who := range []string{gitServer, agent} {
			if got := introspected(t, s, who, raw); !strings.Contains(got, `"active":false`) {
				t.Errorf("%s: introspection by %s says %s", name, who, got)
			}
		}
		if got := exchangeToken(t, s, agent, raw, twin); got.status != 400 || got.token.AccessToken != "" {
			t.Errorf("%s: the exchange answers %d %s", name, got.status, got.text)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/v1/issuances", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+raw)
		resp, err := s.HTTP(t, nil).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: the API answers %d, want 401", name, resp.StatusCode)
		}
	}
}

// resigned signs the claims of an access token with the RS256 key.
func resigned(t *testing.T, s *testkit.Stack, access string) string {
	t.Helper()
	key, err := s.Minter.Key("RS256")
	if err != nil {
		t.Fatal(err)
	}
	head := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"RS256","kid":"` + key.ID + `","typ":"at+jwt"}`))
	input := head + "." + strings.Split(access, ".")[1]
	signature, err := s.Minter.Sign(t.Context(), key, input)
	if err != nil {
		t.Fatal(err)
	}
	return input + "." + signature
}

// The OAuth endpoints issue access tokens only. A proof of a DPoP key binds no token for another system, which would not check it.
// What the other system gives for a token is in the scope's description and, with the parameters filled in, in the answer.
func TestExchangeIsInScopesAndAnswers(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withClouds)
	c := s.Client(t, agent)
	list, err := c.Scopes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := openapi.Exchange{
		As: openapi.ExchangeAnthropic, URL: "https://api.anthropic.com", Audience: "https://api.anthropic.com", Organization: "org-1", Rule: "fdrl_1",
		ServiceAccount: "svac_{team}", Workspace: "default",
	}
	for _, scope := range list.Scopes {
		described := openapi.Exchange{}
		if scope.Name == "anthropic.call" {
			described = want
		}
		if diff := cmp.Diff(described, scope.Exchange); diff != "" {
			t.Errorf("%s (-want +got):\n%s", scope.Name, diff)
		}
	}
	ask := deploy("anthropic.call")
	ask.Params["team"] = "ops"
	answer, err := c.Request(t.Context(), ask)
	if err != nil {
		t.Fatal(err)
	}
	want.ServiceAccount = "svac_ops"
	if diff := cmp.Diff(want, answer.Token.Exchange); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
	answer, err = c.Request(t.Context(), deploy("aws.deploy"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(openapi.Exchange{}, answer.Token.Exchange); diff != "" {
		t.Errorf("a scope without exchange (-want +got):\n%s", diff)
	}
}

// After an approval, the answer has the exchange that the approvers saw.
func TestApprovedTokenHasItsExchange(t *testing.T) {
	t.Parallel()
	options := withPeople
	options.Catalogue = slices.Clone(withPeople.Catalogue)
	options.Catalogue[0].Data = append(slices.Clone(options.Catalogue[0].Data), `  - name: aws.site.deploy
    title: Deploy
    authority: write
    params: {repo: {type: enum, values: [site, shop]}}
    resource: aws:{repo}
    ttl: {default: 5m, max: 15m}
    approval: {group: oncall}
    credential:
      kind: jwt
      audience: sts.amazonaws.com
      federation: {subject: 'site:{repo}', exchange: {as: aws, role: 'arn:aws:iam::123456789012:role/{repo}', region: eu-central-1}}
`...)
	s := testkit.NewStack(t, options)
	sandbox, carol := s.Client(t, agent), s.Person(t, "carol")
	ask := client.Ask{Scope: "aws.site.deploy", Task: "task-1", Params: map[string]any{"repo": "shop"}}
	id := waiting(t, sandbox, ask)
	shown, err := carol.Approval(t.Context(), id)
	if err != nil || !strings.Contains(shown.Canonical, `"exchange":"aws arn:aws:iam::123456789012:role/shop"`) {
		t.Fatalf("the approver sees %s, %v", shown.Canonical, err)
	}
	if _, err := vote(t, carol, id, openapi.VerdictApprove); err != nil {
		t.Fatal(err)
	}
	got, err := sandbox.Redeem(t.Context(), id, ask)
	if err != nil || got.Token == nil {
		t.Fatalf("got %+v, %v", got, err)
	}
	want := openapi.Exchange{
		As: openapi.ExchangeAWS, URL: "https://sts.eu-central-1.amazonaws.com", Audience: "sts.amazonaws.com", Role: "arn:aws:iam::123456789012:role/shop", Region: "eu-central-1",
	}
	if diff := cmp.Diff(want, got.Token.Exchange); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestFederatedTokensComeFromTheTokensAPIOnly(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withClouds)
	m := metadata[openapi.ServerMetadata](t, s, "/.well-known/oauth-authorization-server")
	if !slices.Equal(m.ScopesSupported, []string{"cloud.api.read"}) {
		t.Errorf("got the scopes %q", m.ScopesSupported)
	}
	got := post{svid: s.X509(t, agent), form: formOf(
		scoped("aws.deploy"), "authorization_details", `[{"type":"aws.deploy","params":{"repo":"acme/api"}}]`,
	)}.send(t, s)
	if got.status != 400 || got.failed.Error != "invalid_scope" || !strings.Contains(got.text, "POST /v1/tokens") {
		t.Errorf("got %d %s", got.status, got.text)
	}
	signer, err := dpop.NewSigner(ecKey(t), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	ask := deploy("aws.deploy")
	ask.Signer = signer
	raw := token(t, s.Client(t, agent), ask).Secret.Reveal()
	if payload, err := base64.RawURLEncoding.DecodeString(strings.Split(raw, ".")[1]); err != nil || strings.Contains(string(payload), "cnf") {
		t.Errorf("got %s, %v", payload, err)
	}
}

// What a sandbox sends cannot change the subject beyond the value's own place.
func TestHostileValuesMakeNoSubject(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withClouds)
	before := s.Signings(t)
	for _, repo := range []any{
		"acme/api:task", "acme/api:task:x", "acme/*", "acme/a?i", "../api", "acme//api", "acme/api\n", "ACME/API", "acme/аpi", "${repo}/x", "{repo}/x",
		"spiffe://acme.test/agents/ab", "acme/" + strings.Repeat("a", 300), "", 7,
		[]string{"acme/api", "acme/web"},
	} {
		ask := deploy("aws.deploy")
		ask.Params["repo"] = repo
		var p *client.Problem
		if got, err := s.Client(t, agent).Request(t.Context(), ask); !errors.As(err, &p) || p.Status != http.StatusUnprocessableEntity && p.Status != http.StatusBadRequest {
			t.Errorf("%v: got %+v, %v, want an invalid request", repo, got, err)
		}
	}
	if got := s.Signings(t); got != before {
		t.Errorf("Vault signed %d times", got-before)
	}
}

// The discovery document agrees with the metadata for OAuth clients and with the published keys.
func TestOpenIDConfigurationNamesThePublishedKeys(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withClouds)
	m := metadata[openapi.ServerMetadata](t, s, "/.well-known/oauth-authorization-server")
	got := metadata[openapi.OpenIDConfiguration](t, s, "/.well-known/openid-configuration")
	if got.Issuer != m.Issuer || got.JwksURI != m.JwksURI || !slices.Equal(got.ResponseTypesSupported, []string{"id_token"}) ||
		!slices.Equal(got.SubjectTypesSupported, []string{"public"}) || !slices.Equal(got.IDTokenSigningAlgValuesSupported, []string{"ES256", "RS256"}) {
		t.Errorf("got %+v for %+v", got, m)
	}
	raw := token(t, s.Client(t, agent), deploy("aws.deploy")).Secret.Reveal()
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(raw, ".")[1])
	if err != nil {
		t.Fatal(err)
	}
	var claims map[string]any
	if err := json.Unmarshal(payload, &claims); err != nil {
		t.Fatal(err)
	}
	if names := slices.Sorted(maps.Keys(claims)); !slices.Equal(names, slices.Sorted(slices.Values(got.ClaimsSupported))) {
		t.Errorf("a token has the claims %q, and the document names %q", names, got.ClaimsSupported)
	}
}

// After a rotation of the RS256 key, a replica publishes both versions. So another system that fetches the keys there verifies the
// tokens of the other replicas.
func TestRotatedRS256KeyIsPublishedBeforeItSigns(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withClouds)
	raw := token(t, s.Client(t, agent), deploy("aws.deploy")).Secret.Reveal()
	if _, err := s.Vault(t).Logical().WriteWithContext(t.Context(), "transit/keys/"+s.VaultAccess().SigningKey+"-rs256/rotate", nil); err != nil {
		t.Fatal(err)
	}
	other := s.FreshReplica(t) // reads the key now
	_, _, text := get(t, other, "/.well-known/jwks.json")
	if got := strings.Count(text, `"RS256"`); got != 2 {
		t.Fatalf("got %d RS256 keys in %s, want 2", got, text)
	}
	far := newFarSide(t, other, clouds["aws.deploy"])
	for _, raw := range []string{raw, token(t, s.Client(t, agent), deploy("aws.deploy")).Secret.Reveal(), token(t, other.Client(t, agent), deploy("aws.deploy")).Secret.Reveal()} {
		if status, text := far.exchange(t, raw); status != 200 {
			t.Errorf("got %d %s", status, text)
		}
	}
	far = newFarSide(t, s, clouds["aws.deploy"]) // that replica has not read the new version: nobody signs with it yet
	if status, text := far.exchange(t, token(t, other.Client(t, agent), deploy("aws.deploy")).Secret.Reveal()); status != 200 {
		t.Errorf("keys of before: got %d %s", status, text)
	}
}
