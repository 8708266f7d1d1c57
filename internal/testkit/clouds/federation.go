package clouds

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/coreos/go-oidc/v3/oidc"
)

// What the Federation trusts, and what a subject gets there.
const (
	FederatedRole    = "arn:aws:iam::123456789012:role/agents/site"
	FederatedPool    = "//iam.googleapis.com/projects/123456789012/locations/global/workloadIdentityPools/agents/providers/brevet"
	FederatedAccount = "site@acme.iam.gserviceaccount.com"
	FederatedTenant  = "11111111-2222-3333-4444-555555555555"
	FederatedClient  = "99999999-8888-7777-6666-555555555555"
	FederatedSubject = "site:deploy"

	azureAudience  = "api://AzureADTokenExchange"
	azureScope     = "https://storage.azure.com/.default"
	cloudPlatform  = "https://www.googleapis.com/auth/cloud-platform"
	anthropicBeta  = "oauth-2025-04-20"
	federationBeta = "oidc-federation-2026-04-01"
	resultLife     = time.Hour
)

// Failure says how a Federation fails.
type Failure struct {
	Down  bool          // it cuts every connection
	Delay time.Duration // before it does anything
	Lose  int           // so many answers to exchanges are lost: the result is made, and the connection is cut
	Other bool          // it gives keys of another role
}

// Federation is the part of AWS, Google Cloud, Microsoft Entra, Anthropic and OpenAI that exchanges a JWT of another issuer for a
// credential, and one resource of each that accepts the credential. It follows the API reference of AWS STS (2011-06-15) and of S3, the
// references of Google's Security Token Service, IAM Credentials and Cloud Storage JSON APIs, of Microsoft's identity platform v2.0,
// and what the SDKs of Anthropic and OpenAI send. It verifies the JWT through the issuer's discovery document, by a library that Brevet
// has no part in, and signatures of AWS for real. The bucket site holds the object a.txt; the bucket other exists and is for nobody.
type Federation struct {
	// URL is the origin of the exchanges, and Resources that of what they open.
	URL, Resources string
	// CAFile is the PEM file of the authority that vouches for both.
	CAFile string

	mu       sync.Mutex
	client   *http.Client
	provider *oidc.Provider
	failure  Failure
	results  map[string]result // by bearer token, or by access key id
	gave     []string          // every secret that it gave
	tokens   []string          // every JWT that it got
	calls    int               // of exchanges
}

type result struct {
	as, secret, session string
	expires             time.Time
}

// NewFederation starts a Federation. It trusts nobody until Trust is called.
func NewFederation(t testing.TB) *Federation {
	t.Helper()
	f := &Federation{results: map[string]result{}}
	exchanges := http.NewServeMux()
	exchanges.HandleFunc("POST /{$}", f.aws)
	exchanges.HandleFunc("POST /v1/token", f.google)
	exchanges.HandleFunc("POST /v1/projects/-/serviceAccounts/{call}", f.impersonate)
	exchanges.HandleFunc("GET /common/discovery/instance", f.instances)
	exchanges.HandleFunc("GET /"+FederatedTenant+"/v2.0/.well-known/openid-configuration", f.discovery)
	exchanges.HandleFunc("POST /"+FederatedTenant+"/oauth2/v2.0/token", f.azure)
	exchanges.HandleFunc("POST /v1/oauth/token", f.anthropic)
	exchanges.HandleFunc("POST /oauth/token", f.openai)
	resources := http.NewServeMux()
	resources.HandleFunc("GET /{bucket}/{object}", f.object)
	resources.HandleFunc("GET /storage/v1/b/{bucket}/o/{object}", f.bearer("google", "site"))
	resources.HandleFunc("GET /blobs/{bucket}/{object}", f.bearer("azure", "site"))
	resources.HandleFunc("POST /v1/messages", f.messages)
	resources.HandleFunc("GET /openai/v1/models/{model}", f.models)
	exchanges.Handle("POST /v1/messages", resources)
	authority, authorityKey := testkit.SelfSigned(t)
	certificate, key := testkit.Signed(t, authority, authorityKey)
	serve := func(next http.Handler) string {
		server := httptest.NewUnstartedServer(f.failing(next))
		server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
		server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{certificate.Raw}, PrivateKey: key}}, MinVersion: tls.VersionTLS12}
		server.StartTLS()
		t.Cleanup(server.Close)
		return "https://localhost:" + strings.TrimPrefix(server.URL, "https://127.0.0.1:")
	}
	f.URL, f.Resources = serve(exchanges), serve(resources)
	f.CAFile = filepath.Join(t.TempDir(), "clouds.pem")
	if err := os.WriteFile(f.CAFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return f
}

// Trust makes the Federation trust an issuer, which client reaches.
func (f *Federation) Trust(t testing.TB, issuer string, client *http.Client) {
	t.Helper()
	provider, err := oidc.NewProvider(oidc.ClientContext(t.Context(), client), issuer)
	if err != nil {
		t.Fatalf("discovering the issuer: %v", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.client, f.provider = client, provider
}

// Fail sets how the Federation fails from now on.
func (f *Federation) Fail(how Failure) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failure = how
}

// Exchanges returns how many exchanges were asked for so far.
func (f *Federation) Exchanges() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// Secrets returns every JWT that the Federation got, and every secret that it gave.
func (f *Federation) Secrets() (tokens, gave []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.tokens), slices.Clone(f.gave)
}

func (f *Federation) failing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		how := f.failure
		f.mu.Unlock()
		time.Sleep(how.Delay)
		if how.Down {
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, r)
	})
}

// lost reports whether the answer to this exchange is lost.
func (f *Federation) lost() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failure.Lose == 0 {
		return false
	}
	f.failure.Lose--
	return true
}

// accept verifies a JWT.
func (f *Federation) accept(ctx context.Context, raw, audience string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	f.tokens = append(f.tokens, raw)
	verifier := f.provider.VerifierContext(oidc.ClientContext(ctx, f.client), &oidc.Config{ClientID: audience, SupportedSigningAlgs: []string{oidc.RS256}})
	verified, err := verifier.Verify(ctx, raw)
	switch {
	case err != nil:
		return err
	case verified.Subject != FederatedSubject:
		return errors.New("the subject is not trusted")
	}
	return nil
}

// give makes a secret.
func (f *Federation) give(as, prefix string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	secret := prefix + rand.Text()
	f.results[secret] = result{as: as, expires: time.Now().Add(resultLife)}
	f.gave = append(f.gave, secret)
	return secret
}

// form reads parameters that have to be there. A value of "" stands for any. A SDK may send others.
func formOf(r *http.Request, want map[string]string) error {
	if err := r.ParseForm(); err != nil {
		return err
	}
	for name, value := range want {
		if got := r.PostForm[name]; len(got) != 1 || got[0] == "" || value != "" && got[0] != value {
			return fmt.Errorf("the parameter %s is %q", name, got)
		}
	}
	return nil
}

func documentOf(r *http.Request, want map[string]string) (map[string]any, error) {
	var got map[string]any
	if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
		return nil, err
	}
	for name, value := range want {
		if text, _ := got[name].(string); text == "" || value != "" && text != value {
			return nil, fmt.Errorf("the member %s is %q", name, text)
		}
	}
	return got, nil
}

var durationSeconds = regexp.MustCompile(`^[0-9]+$`)

// aws is AssumeRoleWithWebIdentity.
func (f *Federation) aws(w http.ResponseWriter, r *http.Request) {
	err := formOf(r, map[string]string{"Action": "AssumeRoleWithWebIdentity", "Version": STSVersion, "RoleArn": "", "RoleSessionName": "", "WebIdentityToken": ""})
	code := "ValidationError"
	seconds := r.PostFormValue("DurationSeconds")
	if err == nil && (!sessionName.MatchString(r.PostFormValue("RoleSessionName")) || seconds != "" && !durationSeconds.MatchString(seconds)) {
		err = errors.New("RoleSessionName or DurationSeconds is not valid")
	}
	if err == nil {
		err, code = f.accept(r.Context(), r.PostFormValue("WebIdentityToken"), "sts.amazonaws.com"), "InvalidIdentityToken"
		if late := (*oidc.TokenExpiredError)(nil); errors.As(err, &late) {
			code = "ExpiredTokenException"
		}
	}
	status := http.StatusBadRequest
	if err == nil && r.PostFormValue("RoleArn") != FederatedRole {
		err, code, status = errors.New("Not authorized to perform sts:AssumeRoleWithWebIdentity"), "AccessDenied", http.StatusForbidden //nolint:revive,staticcheck // the text of AWS
	}
	w.Header().Set("Content-Type", "text/xml")
	if err != nil {
		w.WriteHeader(status)
		fmt.Fprintf(w, `<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type><Code>%s</Code><Message>%s</Message></Error></ErrorResponse>`, code, err)
		return
	}
	id, secret, session := f.give("aws", "ASIA"), f.give("", "secret/key+"), f.give("", "session/token+")
	f.mu.Lock()
	ends := time.Now().Add(resultLife)
	f.results[id] = result{"aws", secret, session, ends}
	name := "site"
	if f.failure.Other {
		name = "admin"
	}
	f.mu.Unlock()
	if f.lost() {
		panic(http.ErrAbortHandler)
	}
	fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult>
<SubjectFromWebIdentityToken>%s</SubjectFromWebIdentityToken><Audience>sts.amazonaws.com</Audience>
<AssumedRoleUser><Arn>arn:aws:sts::123456789012:assumed-role/%s/%s</Arn><AssumedRoleId>AROACLKWSDQRAOEXAMPLE:s</AssumedRoleId></AssumedRoleUser>
<Credentials><SessionToken>%s</SessionToken><SecretAccessKey>%s</SecretAccessKey><Expiration>%s</Expiration><AccessKeyId>%s</AccessKeyId></Credentials>
<Provider>arn:aws:iam::123456789012:oidc-provider/brevet</Provider></AssumeRoleWithWebIdentityResult>
<ResponseMetadata><RequestId>ad4156e9-bce1-11e2-82e6-6b6efEXAMPLE</RequestId></ResponseMetadata></AssumeRoleWithWebIdentityResponse>`,
		FederatedSubject, name, r.PostFormValue("RoleSessionName"), session, secret, ends.UTC().Format(time.RFC3339), id)
}

func (f *Federation) google(w http.ResponseWriter, r *http.Request) {
	err := formOf(r, map[string]string{
		"grant_type": "urn:ietf:params:oauth:grant-type:token-exchange", "audience": FederatedPool, "scope": "", "subject_token": "",
		"requested_token_type": "urn:ietf:params:oauth:token-type:access_token", "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
	})
	if err == nil {
		err = f.accept(r.Context(), r.PostFormValue("subject_token"), FederatedPool)
	}
	f.accessToken(w, err, "", "ya29.d.", "urn:ietf:params:oauth:token-type:access_token") // opens only the impersonation
}

func (f *Federation) impersonate(w http.ResponseWriter, r *http.Request) {
	var ask struct {
		Scope    []string `json:"scope"`
		Lifetime string   `json:"lifetime"`
	}
	err := json.NewDecoder(r.Body).Decode(&ask)
	bearer, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	f.mu.Lock()
	_, known := f.results[bearer]
	f.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if err != nil || !known || len(ask.Scope) == 0 || r.PathValue("call") != FederatedAccount+":generateAccessToken" {
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"error": {"code": 403, "message": "Permission 'iam.serviceAccounts.getAccessToken' denied", "status": "PERMISSION_DENIED"}}`)
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"accessToken": f.give("google", "ya29.c."), "expireTime": time.Now().Add(resultLife).UTC().Format(time.RFC3339)})
}

func (f *Federation) instances(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	host := strings.TrimPrefix(f.URL, "https://")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"tenant_discovery_endpoint": f.URL + "/" + FederatedTenant + "/v2.0/.well-known/openid-configuration", "api-version": "1.1",
		"metadata": []any{map[string]any{"preferred_network": host, "preferred_cache": host, "aliases": []string{host}}},
	})
}

func (f *Federation) discovery(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	at := f.URL + "/" + FederatedTenant
	_ = json.NewEncoder(w).Encode(map[string]any{
		"issuer": at + "/v2.0", "token_endpoint": at + "/oauth2/v2.0/token", "authorization_endpoint": at + "/oauth2/v2.0/authorize",
		"end_session_endpoint": at + "/oauth2/v2.0/logout", "jwks_uri": at + "/discovery/v2.0/keys",
	})
}

func (f *Federation) azure(w http.ResponseWriter, r *http.Request) {
	err := formOf(r, map[string]string{
		"grant_type": "client_credentials", "client_id": FederatedClient, "scope": "", "client_assertion": "",
		"client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
	})
	if err == nil && !slices.Contains(strings.Fields(r.PostFormValue("scope")), azureScope) {
		err = errors.New("AADSTS70011: the scope is not valid")
	}
	if err == nil {
		err = f.accept(r.Context(), r.PostFormValue("client_assertion"), azureAudience)
	}
	f.accessToken(w, err, "azure", "eyJ0.", "")
}

func (f *Federation) anthropic(w http.ResponseWriter, r *http.Request) {
	ask, err := documentOf(r, map[string]string{
		"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": "", "federation_rule_id": "fdrl_1", "organization_id": "org-1", "service_account_id": "svac_1",
	})
	if beta := strings.Join(r.Header.Values("Anthropic-Beta"), ","); err == nil && (!strings.Contains(beta, anthropicBeta) || !strings.Contains(beta, federationBeta)) {
		err = errors.New("anthropic-beta is missing")
	}
	if err == nil {
		err = f.accept(r.Context(), ask["assertion"].(string), "https://api.anthropic.com") //nolint:forcetypeassert // documentOf checked it
	}
	f.accessToken(w, err, "anthropic", "sk-ant-oat01-", "")
}

func (f *Federation) openai(w http.ResponseWriter, r *http.Request) {
	ask, err := documentOf(r, map[string]string{
		"grant_type": "urn:ietf:params:oauth:grant-type:token-exchange", "subject_token": "", "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
		"identity_provider_id": "idp_1", "service_account_id": "sa-1",
	})
	if err == nil {
		err = f.accept(r.Context(), ask["subject_token"].(string), "https://api.openai.com/v1") //nolint:forcetypeassert // documentOf checked it
	}
	f.accessToken(w, err, "openai", "oai-", "urn:ietf:params:oauth:token-type:access_token")
}

// accessToken answers as a token endpoint (RFC 6749).
func (f *Federation) accessToken(w http.ResponseWriter, err error, as, prefix, issued string) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": "invalid_grant", "error_description": err.Error()})
		return
	}
	answer := map[string]any{"access_token": f.give(as, prefix), "token_type": "Bearer", "expires_in": int(resultLife / time.Second)}
	if f.lost() {
		panic(http.ErrAbortHandler)
	}
	if issued != "" {
		answer["issued_token_type"] = issued
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// object is GetObject of S3.
func (f *Federation) object(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err == nil {
		r.Body = io.NopCloser(bytes.NewReader(body))
		_, err = SigV4{Region: "eu-central-1", Service: "s3", Now: time.Now, Keys: func(id string) (SigV4Key, bool) {
			f.mu.Lock()
			defer f.mu.Unlock()
			one, ok := f.results[id]
			return SigV4Key{one.secret, one.session, one.expires}, ok && one.as == "aws"
		}}.Verify(r, body)
	}
	code, status := "", http.StatusForbidden
	refused := (*SigV4Error)(nil)
	switch {
	case errors.As(err, &refused):
		code = refused.Code
	case err != nil:
		code, status = "InternalError", http.StatusInternalServerError
	case r.PathValue("bucket") != "site":
		code = "AccessDenied"
	}
	if code != "" {
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>no</Message></Error>`, code)
		return
	}
	_, _ = io.WriteString(w, "content of "+r.PathValue("object"))
}

// opens reports whether a request has a bearer token of a system.
func (f *Federation) opens(r *http.Request, as string) bool {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	f.mu.Lock()
	defer f.mu.Unlock()
	one, known := f.results[token]
	return ok && known && one.as == as && time.Now().Before(one.expires)
}

// bearer serves one bucket to the holder of a system's token.
func (f *Federation) bearer(as, bucket string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !f.opens(r, as):
			http.Error(w, `{"error": {"code": 401, "message": "Invalid Credentials"}}`, http.StatusUnauthorized)
		case r.PathValue("bucket") != bucket:
			http.Error(w, `{"error": {"code": 403, "message": "The caller does not have access"}}`, http.StatusForbidden)
		default:
			_, _ = io.WriteString(w, "content of "+r.PathValue("object"))
		}
	}
}

// messages is the Messages API of Anthropic.
func (f *Federation) messages(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if !f.opens(r, "anthropic") || !strings.Contains(strings.Join(r.Header.Values("Anthropic-Beta"), ","), anthropicBeta) || r.Header.Get("X-Api-Key") != "" {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"type": "error", "error": {"type": "authentication_error", "message": "invalid bearer token"}}`)
		return
	}
	ask, err := documentOf(r, map[string]string{"model": ""})
	if model, _ := ask["model"].(string); err != nil || model != "claude-site" {
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"type": "error", "error": {"type": "not_found_error", "message": "model"}}`)
		return
	}
	_, _ = io.WriteString(w, `{"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-site", "content": [{"type": "text", "text": "content of a.txt"}], "stop_reason": "end_turn", "stop_sequence": null, "usage": {"input_tokens": 1, "output_tokens": 1}}`)
}

// models describes a model of OpenAI.
func (f *Federation) models(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if !f.opens(r, "openai") {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"error": {"message": "invalid token", "type": "invalid_request_error", "code": "invalid_api_key"}}`)
		return
	}
	if r.PathValue("model") != "site" {
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"error": {"message": "no such model", "type": "invalid_request_error", "code": "model_not_found"}}`)
		return
	}
	_, _ = io.WriteString(w, `{"id": "site", "object": "model", "created": 1, "owned_by": "content of a.txt"}`)
}
