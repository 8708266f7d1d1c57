package federation

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Anthropic is the token endpoint and two operations of the Claude API, for one organization.
type Anthropic struct {
	*double
	rules map[string]Rule // by id
}

// Rule is a federation rule of Anthropic, or the mapping of a service account at OpenAI.
type Rule struct {
	Trust
	// ServiceAccount is what tokens act as. At Anthropic a client may omit it.
	ServiceAccount string
	// Lifetime bounds the tokens; 0 is an hour.
	Lifetime time.Duration
}

// Organization is the organization of the doubles, and IdentityProvider the id of the issuer at OpenAI.
const (
	Organization     = "0b7e6a52-2f0c-4d7e-8d0a-6a1f5f2b9c31"
	IdentityProvider = "idp_1"
	Model            = "claude-site"
	// Said is what the models answer.
	Said = "content of a.txt"
)

// NewAnthropic starts a double.
func NewAnthropic(t testing.TB, c Config, rules map[string]Rule) *Anthropic {
	t.Helper()
	a := &Anthropic{double: newDouble(c), rules: rules}
	a.listening = c.Authority.serve(t, a, "api.anthropic.com")
	return a
}

// ServeHTTP implements http.Handler.
func (a *Anthropic) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.serve(w, r, func(r *http.Request) *answer {
		if r.Method == http.MethodPost && r.URL.Path == "/v1/oauth/token" {
			return a.token(r)
		}
		if a.bearer(r) == nil {
			return anthropicError(401, "authentication_error", "Invalid bearer token")
		}
		betas := strings.Join(r.Header.Values("Anthropic-Beta"), ",")
		if version := r.Header.Get("Anthropic-Version"); version != "2023-06-01" && version != "2026-10-21" {
			return anthropicError(400, "invalid_request_error", "anthropic-version: is not a version of the API")
		}
		if !strings.Contains(betas, "oauth-2025-04-20") || r.Header.Get("X-Api-Key") != "" {
			return anthropicError(401, "authentication_error", "OAuth authentication is currently not supported.")
		}
		switch {
		case r.Method == http.MethodGet && r.URL.Path == "/v1/models":
			return jsonAnswer(200, map[string]any{
				"data": []map[string]any{{"type": "model", "id": Model, "display_name": "Claude", "created_at": "2025-09-29T00:00:00Z"}}, "has_more": false, "first_id": Model, "last_id": Model,
			})
		case r.Method == http.MethodPost && (r.URL.Path == "/v1/messages" || r.URL.Path == "/v1/messages/count_tokens"):
			return message(r)
		}
		return anthropicError(404, "not_found_error", "Not found")
	})
}

func anthropicError(status int, kind, message string) *answer {
	a := jsonAnswer(status, map[string]any{"type": "error", "error": map[string]string{"type": kind, "message": message}, "request_id": "req_1"})
	a.header.Set("Request-Id", "req_1")
	return a
}

func (a *Anthropic) token(r *http.Request) *answer {
	var ask struct {
		GrantType      string `json:"grant_type"`
		Assertion      string `json:"assertion"`
		Rule           string `json:"federation_rule_id"`
		Organization   string `json:"organization_id"`
		ServiceAccount string `json:"service_account_id"`
		Workspace      string `json:"workspace_id"`
	}
	text, ok := body(r, "application/json")
	betas := strings.Join(r.Header.Values("Anthropic-Beta"), ",")
	switch {
	case !ok || strict(text, &ask) != nil || ask.Assertion == "" || len(ask.Assertion) > 16<<10:
		return oauthError(400, "invalid_request", "the request is malformed")
	case !strings.Contains(betas, "oauth-2025-04-20") || !strings.Contains(betas, "oidc-federation-2026-04-01"):
		return oauthError(400, "invalid_request", "the beta headers are missing")
	case ask.GrantType != "urn:ietf:params:oauth:grant-type:jwt-bearer":
		return oauthError(400, "unsupported_grant_type", "the grant type is not supported")
	}
	refused := oauthError(401, "invalid_grant", "the assertion does not match the federation rule")
	rule, known := a.rules[ask.Rule]
	if !known || ask.Organization != Organization || ask.ServiceAccount != "" && ask.ServiceAccount != rule.ServiceAccount {
		return refused
	}
	c, err := a.verify(r.Context(), ask.Assertion, rule.Trust, "RS256", "ES256")
	if err != nil {
		return refused
	}
	lifetime := rule.Lifetime
	if lifetime == 0 {
		lifetime = time.Hour
	}
	now := a.now()
	lifetime = max(time.Minute, min(lifetime, 2*time.Unix(c.Expires, 0).Sub(now))).Truncate(time.Second)
	scope, token := "workspace:developer", "sk-ant-oat01-"+random()
	if a.wider() {
		scope = "workspace:developer org:admin"
	}
	return a.give(r.Context(), token, Credential{
		Of: rule.ServiceAccount, Scope: scope, Subject: c.Subject, ID: c.ID, Secrets: []string{token}, Expires: now.Add(lifetime),
	}, jsonAnswer(200, map[string]any{"access_token": token, "token_type": "Bearer", "expires_in": int(lifetime.Seconds()), "scope": scope}))
}

// OpenAI is the token endpoint and two operations of the OpenAI API.
type OpenAI struct {
	*double
	accounts map[string]Rule // by service account
}

// NewOpenAI starts a double. Accounts are by the id of the service account.
func NewOpenAI(t testing.TB, c Config, accounts map[string]Rule) *OpenAI {
	t.Helper()
	o := &OpenAI{double: newDouble(c), accounts: accounts}
	o.listening = c.Authority.serve(t, o, "api.openai.com", "auth.openai.com")
	return o
}

// ServeHTTP implements http.Handler.
func (o *OpenAI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.serve(w, r, func(r *http.Request) *answer {
		if r.Method == http.MethodPost && r.URL.Path == "/oauth/token" {
			return o.token(r)
		}
		if o.bearer(r) == nil {
			return jsonAnswer(401, map[string]any{"error": map[string]any{"message": "Incorrect API key provided.", "type": "invalid_request_error", "code": "invalid_api_key"}})
		}
		switch {
		case r.Method == http.MethodGet && r.URL.Path == "/v1/models":
			return jsonAnswer(200, map[string]any{"object": "list", "data": []map[string]any{{"id": "gpt-5", "object": "model", "created": 1, "owned_by": "openai"}}})
		case r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, "/v1/models/"):
			model := strings.TrimPrefix(r.URL.Path, "/v1/models/")
			if model != "site" {
				return jsonAnswer(404, map[string]any{"error": map[string]any{"message": "The model does not exist", "type": "invalid_request_error", "code": "model_not_found"}})
			}
			return jsonAnswer(200, map[string]any{"id": model, "object": "model", "created": 1, "owned_by": Said})
		case r.Method == http.MethodPost && r.URL.Path == "/v1/responses":
			return response(r)
		}
		return jsonAnswer(404, map[string]any{"error": map[string]any{"message": "Not found", "type": "invalid_request_error"}})
	})
}

func (o *OpenAI) token(r *http.Request) *answer {
	var ask struct {
		GrantType string `json:"grant_type"`
		Token     string `json:"subject_token"`
		Type      string `json:"subject_token_type"`
		Provider  string `json:"identity_provider_id"`
		Account   string `json:"service_account_id"`
		Client    string `json:"client_id"`
	}
	text, ok := body(r, "application/json")
	switch {
	case !ok || strict(text, &ask) != nil:
		return oauthError(400, "invalid_request", "the request is malformed")
	case ask.GrantType != "urn:ietf:params:oauth:grant-type:token-exchange":
		return oauthError(400, "unsupported_grant_type", "the grant type is not supported")
	case ask.Type != "urn:ietf:params:oauth:token-type:jwt" && ask.Type != "urn:ietf:params:oauth:token-type:id_token":
		return oauthError(400, "invalid_request", "the subject_token_type is not supported")
	}
	account, known := o.accounts[ask.Account]
	if !known || ask.Provider != IdentityProvider {
		return oauthError(403, "access_denied", "the subject token does not map to the service account")
	}
	c, err := o.verify(r.Context(), ask.Token, account.Trust, "RS256", "ES256")
	if errors.Is(err, errSubject) {
		return oauthError(403, "access_denied", "the subject token does not map to the service account")
	}
	if err != nil {
		return oauthError(401, "invalid_grant", "the subject token is invalid: "+err.Error())
	}
	token := "oat_" + random()
	return o.give(r.Context(), token, Credential{
		Of: ask.Account, Subject: c.Subject, ID: c.ID, Secrets: []string{token}, Expires: o.now().Add(time.Hour),
	}, jsonAnswer(200, map[string]any{
		"access_token": token, "issued_token_type": "urn:ietf:params:oauth:token-type:access_token", "token_type": "Bearer", "expires_in": 3600,
	}))
}
