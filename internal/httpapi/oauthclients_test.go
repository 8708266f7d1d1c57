package httpapi_test

import (
	"context"
	"encoding/pem"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

// OAuth clients of other projects request, exchange, introspect and revoke tokens with each kind of proof and each DPoP
// algorithm. They show their users why a call was refused.
func TestTokensForOtherClients(t *testing.T) {
	t.Parallel()
	o := withServers
	s := testkit.NewStack(t, o)
	var ca strings.Builder
	for _, authority := range s.Acme.Bundle().X509Authorities() {
		_ = pem.Encode(&ca, &pem.Block{Type: "CERTIFICATE", Bytes: authority.Raw})
	}
	certFile, keyFile := pemFiles(t, s, agent)
	for _, library := range []string{"oauth4webapi", "openid-client"} {
		for name, change := range map[string]func(*testkit.OAuthClientTask){
			"mutual TLS":       func(c *testkit.OAuthClientTask) { c.Cert, c.Key = fileText(t, certFile), fileText(t, keyFile) },
			"SPIFFE assertion": func(c *testkit.OAuthClientTask) { c.Assertion, c.AssertionType = s.JWT(t, agent), jwtSPIFFE },
			"JWT bearer":       func(c *testkit.OAuthClientTask) { c.Assertion, c.AssertionType = s.JWT(t, agent), jwtBearer },
			"DPoP ES256":       dpopBy(t, s, "ES256"),
			"DPoP EdDSA":       dpopBy(t, s, "EdDSA"),
			"DPoP Ed25519":     dpopBy(t, s, "Ed25519"),
		} {
			if library == "openid-client" && strings.HasSuffix(name, "EdDSA") {
				continue // it knows the algorithm only by its newer name
			}
			t.Run(library+" "+name, func(t *testing.T) {
				t.Parallel()
				task := testkit.OAuthClientTask{
					Library: library, Issuer: testkit.Audience, Server: s.URL, CA: ca.String(), ClientID: agent, Scope: "git.issues.list",
					ActorToken: actorToken(t, s, helper),
				}
				change(&task)
				checkClient(t, task, testkit.OAuthClient(t, task))
			})
		}
	}
}

func dpopBy(t *testing.T, s *testkit.Stack, alg string) func(*testkit.OAuthClientTask) {
	return func(c *testkit.OAuthClientTask) {
		c.Assertion, c.AssertionType, c.Alg = s.JWT(t, agent), jwtSPIFFE, alg
	}
}

func checkClient(t *testing.T, task testkit.OAuthClientTask, got testkit.OAuthClientAnswer) {
	t.Helper()
	kind, bound := "bearer", got.Introspected["cnf"] != nil
	if task.Alg != "" {
		kind = "dpop"
	}
	if tokenType, _ := got.Token["token_type"].(string); !strings.EqualFold(tokenType, kind) || bound != (kind == "dpop") {
		t.Errorf("got a token %v and its introspection %v, want %s", got.Token, got.Introspected, kind)
	}
	if task.Alg == "" && (got.Exchanged["issued_token_type"] != accessTokenURN || got.Exchanged["access_token"] == got.Token["access_token"]) {
		t.Errorf("got %v handed down", got.Exchanged)
	}
	if got.Introspected["active"] != true || got.Introspected["client_id"] != agent || got.After["active"] != false {
		t.Errorf("got %v, and %v after the revocation", got.Introspected, got.After)
	}
	if e := got.UnknownScope; e.Error != "invalid_scope" || e.Description == "" {
		t.Errorf("an unknown scope: got %+v", e)
	}
	if e := got.NoClient; task.Cert == "" && (e.Error != "invalid_client" || e.Status != 401 || !strings.HasPrefix(e.Description, "client_assertion_type is not supported")) {
		t.Errorf("an unknown assertion type: got %+v, want the reason", e)
	}
}

// Go's OAuth client gets a token with each kind of proof.
func TestTokensForGoClients(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withServers)
	for name, tc := range map[string]struct {
		carrier *http.Client
		config  clientcredentials.Config
	}{
		"mutual TLS": {s.HTTP(t, s.X509(t, agent)), clientcredentials.Config{}},
		"assertion": {s.HTTP(t, nil), clientcredentials.Config{
			EndpointParams: map[string][]string{"client_assertion_type": {jwtBearer}, "client_assertion": {s.JWT(t, agent)}},
		}},
	} {
		tc.config.ClientID, tc.config.TokenURL, tc.config.Scopes, tc.config.AuthStyle = agent, s.URL+"/oauth2/token", []string{"git.issues.list"}, oauth2.AuthStyleInParams
		got, err := tc.config.Token(context.WithValue(t.Context(), oauth2.HTTPClient, tc.carrier))
		if err != nil || got.TokenType != "Bearer" || !got.Valid() {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
		tc.config.Scopes = []string{"git.issues.list", "git.issues.read"}
		_, err = tc.config.Token(context.WithValue(t.Context(), oauth2.HTTPClient, tc.carrier))
		if err == nil || !strings.Contains(err.Error(), "invalid_scope") || !strings.Contains(err.Error(), "exactly one scope") {
			t.Errorf("%s: two scopes: got %v, want the reason", name, err)
		}
	}
}

func fileText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
