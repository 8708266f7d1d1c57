package federation

import (
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// Google is the Security Token Service, the IAM Service Account Credentials API and the JSON API of Cloud Storage.
type Google struct {
	*double
	providers map[string]Trust          // by full name, such as //iam.googleapis.com/projects/1/...
	accounts  map[string]ServiceAccount // by email
	objects   map[string]string         // by bucket/object
}

// ServiceAccount is an account that subjects of a provider may impersonate.
type ServiceAccount struct {
	// Users are the subjects that may impersonate the account.
	Users []string
	// Bucket is what the account may read.
	Bucket string
}

// Provider is the full name of the provider that the suites use.
const Provider = "//iam.googleapis.com/projects/123456789012/locations/global/workloadIdentityPools/acme/providers/brevet"

// The scopes that the double knows.
const (
	scopeCloud   = "https://www.googleapis.com/auth/cloud-platform"
	scopeRead    = "https://www.googleapis.com/auth/devstorage.read_only"
	scopeControl = "https://www.googleapis.com/auth/devstorage.full_control"
)

// NewGoogle starts a double. Providers are by full name, accounts by email, objects by bucket/object.
func NewGoogle(t testing.TB, c Config, providers map[string]Trust, accounts map[string]ServiceAccount, objects map[string]string) *Google {
	t.Helper()
	g := &Google{double: newDouble(c), providers: providers, accounts: accounts, objects: objects}
	g.listening = c.Authority.serve(t, g, "sts.googleapis.com", "iamcredentials.googleapis.com", "storage.googleapis.com")
	return g
}

// ServeHTTP implements http.Handler.
func (g *Google) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.serve(w, r, func(r *http.Request) *answer {
		account, generate := strings.CutPrefix(r.URL.Path, "/v1/projects/-/serviceAccounts/")
		object, storage := strings.CutPrefix(r.URL.EscapedPath(), "/storage/v1/b/")
		switch {
		case r.Method == http.MethodPost && r.URL.Path == "/v1/token":
			return g.exchange(r)
		case r.Method == http.MethodPost && generate && strings.HasSuffix(account, ":generateAccessToken"):
			return g.impersonate(r, strings.TrimSuffix(account, ":generateAccessToken"))
		case r.Method == http.MethodGet && storage:
			return g.object(r, object)
		}
		return googleError(404, "NOT_FOUND", "Requested entity was not found.")
	})
}

func googleError(status int, code, message string) *answer {
	a := jsonAnswer(status, map[string]any{"error": map[string]any{"code": status, "status": code, "message": message}})
	if status == http.StatusUnauthorized {
		a.header.Set("Www-Authenticate", `Bearer realm="https://accounts.google.com/", error="invalid_token"`)
	}
	return a
}

func oauthError(status int, code, description string) *answer {
	return jsonAnswer(status, map[string]string{"error": code, "error_description": description})
}

// exchange is the method token of the Security Token Service.
func (g *Google) exchange(r *http.Request) *answer {
	text, ok := body(r, "application/x-www-form-urlencoded")
	form, err := url.ParseQuery(string(text))
	if !ok || err != nil {
		return oauthError(400, "invalid_request", "the body is not a form")
	}
	provider, known := g.providers[form.Get("audience")]
	scope := form.Get("scope")
	switch {
	case form.Get("grant_type") != "urn:ietf:params:oauth:grant-type:token-exchange":
		return oauthError(400, "unsupported_grant_type", "Unsupported grant_type")
	case form.Get("requested_token_type") != "urn:ietf:params:oauth:token-type:access_token":
		return oauthError(400, "invalid_request", "Invalid requested_token_type")
	case form.Get("subject_token_type") != "urn:ietf:params:oauth:token-type:jwt":
		return oauthError(400, "invalid_request", "Invalid subject_token_type")
	case !known:
		return oauthError(400, "invalid_target", `The target service indicated by the "audience" parameters is invalid.`)
	case scope != scopeCloud && scope != scopeRead:
		return oauthError(400, "invalid_scope", "Invalid scope")
	}
	c, err := g.verify(r.Context(), form.Get("subject_token"), provider, "RS256", "ES256")
	switch {
	case err == nil:
	case errors.Is(err, errSubject):
		return oauthError(401, "unauthorized_client", "The given credential is rejected by the attribute condition.")
	case errors.Is(err, errAudience):
		return oauthError(400, "invalid_grant", "The audience in ID Token ["+c.Audience+"] does not match the expected audience.")
	case errors.Is(err, errExpired):
		return oauthError(400, "invalid_grant", "ID Token is stale to sign-in.")
	default:
		return oauthError(400, "invalid_grant", err.Error())
	}
	more := map[string]any{}
	if g.wider() {
		scope = scopeCloud + " " + scopeControl
		more["scope"] = scope // RFC 8693 requires it if the scope is not what was asked for
	}
	now := g.now()
	seconds := min(3600, int(time.Unix(c.Expires, 0).Sub(now).Seconds()))
	token := "ya29.d." + random()
	maps.Copy(more, map[string]any{
		"access_token": token, "issued_token_type": "urn:ietf:params:oauth:token-type:access_token", "token_type": "Bearer", "expires_in": seconds,
	})
	return g.give(r.Context(), token, Credential{
		Of: "principal:" + form.Get("audience") + "/subject/" + c.Subject, Scope: scope, Subject: c.Subject, ID: c.ID, Secrets: []string{token},
		Expires: now.Add(time.Duration(seconds) * time.Second),
	}, jsonAnswer(200, more))
}

// impersonate is the method generateAccessToken.
func (g *Google) impersonate(r *http.Request, email string) *answer {
	caller := g.bearer(r)
	if caller == nil || !strings.HasPrefix(caller.Of, "principal:") {
		return googleError(401, "UNAUTHENTICATED", "Request had invalid authentication credentials.")
	}
	account, known := g.accounts[email]
	if !known || !slices.Contains(account.Users, caller.Subject) || !strings.Contains(caller.Scope, scopeCloud) {
		return googleError(403, "PERMISSION_DENIED", "Permission 'iam.serviceAccounts.getAccessToken' denied on resource (or it may not exist).")
	}
	var ask struct {
		Scope    []string `json:"scope"`
		Lifetime string   `json:"lifetime"`
	}
	text, ok := body(r, "application/json")
	if !ok || strict(text, &ask) != nil || len(ask.Scope) == 0 {
		return googleError(400, "INVALID_ARGUMENT", "Request contains an invalid argument.")
	}
	lifetime := time.Hour
	if ask.Lifetime != "" {
		var err error
		if lifetime, err = time.ParseDuration(ask.Lifetime); err != nil || !strings.HasSuffix(ask.Lifetime, "s") || lifetime <= 0 || lifetime > time.Hour {
			return googleError(400, "INVALID_ARGUMENT", "The requested lifetime is too long or malformed.")
		}
	}
	expires := g.now().Add(lifetime).Truncate(time.Second)
	token := "ya29.c." + random()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.made[token] = &Credential{Of: email, Scope: strings.Join(ask.Scope, " "), Subject: caller.Subject, ID: caller.ID, Secrets: []string{token}, Answered: true, Expires: expires}
	return jsonAnswer(200, map[string]string{"accessToken": token, "expireTime": expires.UTC().Format(time.RFC3339)})
}

// object reads an object of Cloud Storage, or its metadata.
func (g *Google) object(r *http.Request, path string) *answer {
	caller := g.bearer(r)
	if caller == nil {
		return googleError(401, "UNAUTHENTICATED", "Invalid Credentials")
	}
	bucket, name, ok := strings.Cut(path, "/o/")
	name, err := url.PathUnescape(name)
	if !ok || err != nil {
		return googleError(404, "NOT_FOUND", "Not Found")
	}
	if !strings.Contains(caller.Scope, scopeCloud) && !strings.Contains(caller.Scope, "devstorage.") {
		return googleError(403, "PERMISSION_DENIED", "Request had insufficient authentication scopes.")
	}
	if allowed := g.accounts[caller.Of].Bucket; allowed != bucket {
		return googleError(403, "PERMISSION_DENIED", caller.Of+" does not have storage.objects.get access to the Google Cloud Storage object.")
	}
	text, ok := g.objects[bucket+"/"+name]
	if !ok {
		return googleError(404, "NOT_FOUND", "No such object: "+bucket+"/"+name)
	}
	if r.URL.Query().Get("alt") == "media" {
		return &answer{status: 200, header: http.Header{"Content-Type": {"application/octet-stream"}}, body: []byte(text)}
	}
	return jsonAnswer(200, map[string]string{"kind": "storage#object", "bucket": bucket, "name": name})
}
