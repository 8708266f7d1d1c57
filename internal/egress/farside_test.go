package egress_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/coreos/go-oidc/v3/oidc"
)

// farSide is the token exchange of the five systems that a catalogue can name, over TLS: AWS STS (API version 2011-06-15), Google's
// Security Token Service and IAM Credentials API v1, Microsoft's identity platform v2.0, and the token endpoints of Anthropic and
// OpenAI as their SDKs call them. It learns the keys from the issuer's discovery document, with a library that the broker has no part
// in. It accepts a token once, and refuses a request with a parameter that is missing, unknown or not what the trust names.
type farSide struct {
	*httptest.Server
	now func() time.Time

	mu      sync.Mutex
	issuer  *oidc.Provider
	calls   http.Client
	seen    map[string]bool // tokens, by jti
	tokens  []string        // every token and assertion that it got
	results []string        // every secret that it gave
	asked   int             // requests of tokens
	life    time.Duration   // of results
	instead http.HandlerFunc
}

const (
	farRole    = "arn:aws:iam::123456789012:role/agents/site"
	farPool    = "//iam.googleapis.com/projects/123456789012/locations/global/workloadIdentityPools/agents/providers/brevet"
	farAccount = "site@acme.iam.gserviceaccount.com"
	farTenant  = "11111111-2222-3333-4444-555555555555"
	farScope   = "https://storage.azure.com/.default"
	platform   = "https://www.googleapis.com/auth/cloud-platform"
	betaOfAPI  = "oauth-2025-04-20"
)

// farSystems are the systems, with the audience and the exchange of a scope. URL is the origin of the far side.
var farSystems = []struct{ as, audience, exchange, send string }{
	{"aws", "sts.amazonaws.com", "as: aws, role: '" + farRole + "', region: eu-central-1, url: 'URL'", ", send: {as: aws, service: s3, region: eu-central-1}"},
	{"google", farPool, "as: google, url: 'URL', iam_url: 'URL'", ""},
	{"impersonated", farPool, "as: google, service_account: '" + farAccount + "', scopes: [" + platform + ".read-only], url: 'URL', iam_url: 'URL'", ", send: {as: bearer}"},
	{"azure", "api://AzureADTokenExchange", "as: azure, tenant: " + farTenant + ", client: client-1, scope: '" + farScope + "', url: 'URL'", ""},
	{"anthropic", "https://api.anthropic.com", "as: anthropic, organization: org-1, rule: fdrl_1, service_account: svac_1, url: 'URL'", ""},
	{"openai", "https://api.openai.com/v1", "as: openai, identity_provider: idp_1, service_account: sa-1, url: 'URL'", ", send: {as: header, name: x-key}"},
}

// credential returns the credential of a scope for a system.
func (f *farSide) credential(as string) string {
	for _, system := range farSystems {
		if system.as == as {
			return fmt.Sprintf("{kind: jwt, audience: '%s', federation: {subject: 'site:deploy', exchange: {%s}}}", system.audience, strings.ReplaceAll(system.exchange, "URL", f.URL))
		}
	}
	panic("no system " + as)
}

func newFarSide(t testing.TB) *farSide {
	t.Helper()
	f := &farSide{now: time.Now, seen: map[string]bool{}, life: time.Hour}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{$}", f.aws)
	mux.HandleFunc("POST /v1/token", f.google)
	mux.HandleFunc("POST /v1/projects/-/serviceAccounts/{call}", f.impersonate)
	mux.HandleFunc("POST /"+farTenant+"/oauth2/v2.0/token", f.azure)
	mux.HandleFunc("POST /v1/oauth/token", f.anthropic)
	mux.HandleFunc("POST /oauth/token", f.openai)
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.asked++
		instead := f.instead
		f.mu.Unlock()
		if instead != nil {
			instead(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	f.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	f.StartTLS()
	t.Cleanup(f.Close)
	return f
}

// trust makes the far side trust the stack as an issuer.
func (f *farSide) trust(t testing.TB, s *testkit.Stack) {
	t.Helper()
	f.calls = http.Client{Transport: toStack{s.HTTP(t, nil).Transport, s.Addr}, Timeout: 30 * time.Second}
	var err error
	if f.issuer, err = oidc.NewProvider(oidc.ClientContext(t.Context(), &f.calls), testkit.Audience); err != nil {
		t.Fatalf("discovering the issuer: %v", err)
	}
}

// toStack sends calls to the issuer's host to a stack.
type toStack struct {
	http.RoundTripper
	addr string
}

func (to toStack) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL.Host, r.Host = to.addr, to.addr
	return to.RoundTripper.RoundTrip(r)
}

// answers makes the far side answer in another way; nil makes it work again.
func (f *farSide) answers(instead http.HandlerFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.instead = instead
}

// lives sets the life of results.
func (f *farSide) lives(life time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.life = life
}

// times returns how often the far side was asked since it last ran.
func (f *farSide) times() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.asked
	f.asked = 0
	return asked
}

// secrets returns every token that the far side got, and every secret that it gave.
func (f *farSide) secrets() (tokens, results []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.tokens), slices.Clone(f.results)
}

// gave returns whether the far side gave this secret.
func (f *farSide) gave(secret string) bool {
	_, results := f.secrets()
	return secret != "" && slices.Contains(results, secret)
}

// accept verifies a token, and accepts it once.
func (f *farSide) accept(ctx context.Context, raw, audience string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tokens = append(f.tokens, raw)
	verifier := f.issuer.VerifierContext(oidc.ClientContext(ctx, &f.calls), &oidc.Config{ClientID: audience, SupportedSigningAlgs: []string{"RS256"}})
	verified, err := verifier.Verify(ctx, raw)
	if err != nil {
		return err
	}
	var claims struct {
		ID string `json:"jti"`
	}
	if err := verified.Claims(&claims); err != nil || claims.ID == "" || verified.Subject != "site:deploy" {
		return errors.New("the subject is not trusted")
	}
	if f.seen[claims.ID] {
		return errors.New("the token was used before")
	}
	f.seen[claims.ID] = true
	return nil
}

// give makes a secret, and returns it with its life.
func (f *farSide) give(prefix string) (string, time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	secret := prefix + rand.Text()
	f.results = append(f.results, secret)
	return secret, f.life
}

// form reads a form with exactly these parameters. A value of "" stands for any.
func form(r *http.Request, want map[string]string) error {
	if err := r.ParseForm(); err != nil || r.Header.Get("Content-Type") != "application/x-www-form-urlencoded" || r.URL.RawQuery != "" {
		return errors.New("it is no form")
	}
	for name, values := range r.PostForm {
		if value, known := want[name]; !known || len(values) != 1 || value != "" && values[0] != value || values[0] == "" {
			return fmt.Errorf("the parameter %s is %q", name, values)
		}
	}
	if len(r.PostForm) != len(want) {
		return errors.New("a parameter is missing")
	}
	return nil
}

// document reads a JSON object with exactly these members. A value of "" stands for any.
func document(r *http.Request, want map[string]string) (map[string]string, error) {
	var got map[string]string
	decoder := json.NewDecoder(r.Body)
	if err := decoder.Decode(&got); err != nil || r.Header.Get("Content-Type") != "application/json" {
		return nil, errors.New("it is no JSON object of strings")
	}
	values := url.Values{}
	for name, value := range got {
		values.Set(name, value)
	}
	return got, form(&http.Request{PostForm: values, Form: values, URL: r.URL, Header: http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}}, want)
}

func refuseOAuth(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusBadRequest)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": "invalid_grant", "error_description": err.Error()})
}

var sessionName = regexp.MustCompile(`^[\w+=,.@-]{2,64}$`)

// aws is AssumeRoleWithWebIdentity.
func (f *farSide) aws(w http.ResponseWriter, r *http.Request) {
	err := form(r, map[string]string{
		"Action": "AssumeRoleWithWebIdentity", "Version": "2011-06-15", "RoleArn": farRole, "RoleSessionName": "", "WebIdentityToken": "", "DurationSeconds": "900",
	})
	if err == nil && !sessionName.MatchString(r.PostFormValue("RoleSessionName")) {
		err = errors.New("RoleSessionName is not valid")
	}
	if err == nil {
		err = f.accept(r.Context(), r.PostFormValue("WebIdentityToken"), "sts.amazonaws.com")
	}
	w.Header().Set("Content-Type", "text/xml")
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, `<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type><Code>InvalidIdentityToken</Code><Message>%s</Message></Error></ErrorResponse>`, err)
		return
	}
	id, _ := f.give("ASIA")
	key, _ := f.give("secret/key+")
	session, life := f.give("session/token+")
	_, _ = io.WriteString(w, assumed("assumed-role/site/"+r.PostFormValue("RoleSessionName"), id, key, session, f.now().Add(life)))
}

// assumed is the answer of AssumeRoleWithWebIdentity.
func assumed(who, id, key, session string, ends time.Time) string {
	return fmt.Sprintf(`<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
  <AssumeRoleWithWebIdentityResult>
    <SubjectFromWebIdentityToken>site:deploy</SubjectFromWebIdentityToken>
    <Audience>sts.amazonaws.com</Audience>
    <AssumedRoleUser><Arn>arn:aws:sts::123456789012:%s</Arn><AssumedRoleId>AROACLKWSDQRAOEXAMPLE:s</AssumedRoleId></AssumedRoleUser>
    <Credentials>
      <SessionToken>%s</SessionToken><SecretAccessKey>%s</SecretAccessKey><Expiration>%s</Expiration><AccessKeyId>%s</AccessKeyId>
    </Credentials>
    <Provider>arn:aws:iam::123456789012:oidc-provider/brevet</Provider>
  </AssumeRoleWithWebIdentityResult>
  <ResponseMetadata><RequestId>ad4156e9-bce1-11e2-82e6-6b6efEXAMPLE</RequestId></ResponseMetadata>
</AssumeRoleWithWebIdentityResponse>`, who, session, key, ends.UTC().Format(time.RFC3339), id)
}

func (f *farSide) google(w http.ResponseWriter, r *http.Request) {
	err := form(r, map[string]string{
		"grant_type": "urn:ietf:params:oauth:grant-type:token-exchange", "audience": farPool, "scope": platform,
		"requested_token_type": "urn:ietf:params:oauth:token-type:access_token", "subject_token": "", "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
	})
	if err == nil {
		err = f.accept(r.Context(), r.PostFormValue("subject_token"), farPool)
	}
	f.accessToken(w, err, "ya29.d.", "urn:ietf:params:oauth:token-type:access_token")
}

func (f *farSide) impersonate(w http.ResponseWriter, r *http.Request) {
	var ask struct {
		Scope    []string `json:"scope"`
		Lifetime string   `json:"lifetime"`
	}
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&ask)
	life, wrong := time.ParseDuration(ask.Lifetime)
	bearer, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if err != nil || wrong != nil || life <= 0 || life > time.Hour || !slices.Equal(ask.Scope, []string{platform + ".read-only"}) ||
		r.PathValue("call") != farAccount+":generateAccessToken" || !f.gave(bearer) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"error": {"code": 403, "message": "Permission 'iam.serviceAccounts.getAccessToken' denied", "status": "PERMISSION_DENIED"}}`)
		return
	}
	token, most := f.give("ya29.c.")
	_ = json.NewEncoder(w).Encode(map[string]any{"accessToken": token, "expireTime": f.now().Add(min(life, most)).UTC().Format(time.RFC3339Nano)})
}

func (f *farSide) azure(w http.ResponseWriter, r *http.Request) {
	err := form(r, map[string]string{
		"grant_type": "client_credentials", "client_id": "client-1", "scope": farScope, "client_assertion": "",
		"client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
	})
	if err == nil {
		err = f.accept(r.Context(), r.PostFormValue("client_assertion"), "api://AzureADTokenExchange")
	}
	f.accessToken(w, err, "eyJ0.", "")
}

func (f *farSide) anthropic(w http.ResponseWriter, r *http.Request) {
	ask, err := document(r, map[string]string{
		"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": "", "federation_rule_id": "fdrl_1", "organization_id": "org-1", "service_account_id": "svac_1",
	})
	if err == nil && r.Header.Get("Anthropic-Beta") != betaOfAPI+",oidc-federation-2026-04-01" {
		err = errors.New("anthropic-beta is missing")
	}
	if err == nil {
		err = f.accept(r.Context(), ask["assertion"], "https://api.anthropic.com")
	}
	f.accessToken(w, err, "sk-ant-oat01-", "")
}

func (f *farSide) openai(w http.ResponseWriter, r *http.Request) {
	ask, err := document(r, map[string]string{
		"grant_type": "urn:ietf:params:oauth:grant-type:token-exchange", "subject_token": "", "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
		"identity_provider_id": "idp_1", "service_account_id": "sa-1",
	})
	if err == nil {
		err = f.accept(r.Context(), ask["subject_token"], "https://api.openai.com/v1")
	}
	f.accessToken(w, err, "oai-", "urn:ietf:params:oauth:token-type:access_token")
}

// accessToken answers as a token endpoint (RFC 6749).
func (f *farSide) accessToken(w http.ResponseWriter, err error, prefix, issued string) {
	if err != nil {
		refuseOAuth(w, err)
		return
	}
	token, life := f.give(prefix)
	answer := map[string]any{"access_token": token, "token_type": "Bearer", "expires_in": int(life / time.Second)}
	if issued != "" {
		answer["issued_token_type"] = issued
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}
