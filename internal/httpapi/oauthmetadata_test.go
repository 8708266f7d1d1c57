package httpapi_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/httpapi"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/prometheus/client_golang/prometheus"
)

// metadata reads a document that caches may store.
func metadata[T any](t *testing.T, s *testkit.Stack, path string) T {
	t.Helper()
	status, header, text := get(t, s, path)
	if status != 200 || header.Get("Content-Type") != "application/json" || header.Get("Cache-Control") != "public, max-age=60" {
		t.Fatalf("got %d %v", status, header)
	}
	var out T
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// scoped returns a form that requests a scope by its name only.
func scoped(scope string) url.Values {
	return url.Values{"grant_type": {"client_credentials"}, "scope": {scope}, "task": {"t-1"}}
}

// Every endpoint in the metadata exists, and every endpoint is in the metadata.
func TestMetadataListsEveryEndpoint(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	m := metadata[openapi.ServerMetadata](t, s, "/.well-known/oauth-authorization-server")
	if m.Issuer != testkit.Audience || !m.TLSClientCertificateBoundAccessTokens {
		t.Errorf("got %+v", m)
	}
	operations, err := httpapi.Operations()
	if err != nil {
		t.Fatal(err)
	}
	var named []string
	for field, value := range reflect.ValueOf(m).Fields() {
		path, ours := strings.CutPrefix(value.String(), testkit.Audience+"/")
		if !ours || field.Name == "Issuer" {
			continue
		}
		named = append(named, "/"+path)
		i := slices.IndexFunc(operations, func(o string) bool { return strings.HasSuffix(o, " /"+path) })
		if i < 0 {
			t.Errorf("%s is %s, which is no operation", field.Name, value)
		}
	}
	for _, operation := range operations {
		method, path, _ := strings.Cut(operation, " ")
		if strings.HasPrefix(path, "/oauth2/") && (method != http.MethodPost || !slices.Contains(named, path)) {
			t.Errorf("%s is not in the metadata", operation)
		}
	}
	for _, scope := range m.ScopesSupported {
		got := post{svid: s.X509(t, agent), form: scoped(scope)}.send(t, s)
		if got.failed.Error == "invalid_scope" {
			t.Errorf("got %s for the scope %s", got.text, scope)
		}
	}
	if !slices.Contains(m.ScopesSupported, "git.issues.read") || slices.Contains(m.ScopesSupported, "vault.notes.read") ||
		!slices.Equal(m.ScopesSupported, m.AuthorizationDetailsTypesSupported) {
		t.Errorf("got the scopes %q and the types %q, want those of access tokens", m.ScopesSupported, m.AuthorizationDetailsTypesSupported)
	}
	for _, grant := range m.GrantTypesSupported {
		got := post{svid: s.X509(t, agent), form: reading("grant_type", grant)}.send(t, s)
		if got.failed.Error == "unsupported_grant_type" {
			t.Errorf("got %s for %s", got.text, grant)
		}
	}
	for method, call := range map[string]post{
		"spiffe_x509": {svid: s.X509(t, agent), form: reading()}, "spiffe_jwt": {form: asserted(t, s, agent)},
	} {
		if got := call.send(t, s); got.status != 200 || !slices.Contains(m.TokenEndpointAuthMethodsSupported, method) {
			t.Errorf("%s: got %d %s, and %v in the metadata", method, got.status, got.text, m.TokenEndpointAuthMethodsSupported)
		}
	}
}

// The metadata names the OpenID provider if people can call.
func TestResourceMetadata(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	m := metadata[openapi.ResourceMetadata](t, s, "/.well-known/oauth-protected-resource")
	if m.Resource != testkit.Audience || !slices.Equal(m.BearerMethodsSupported, []string{"header"}) ||
		!slices.Equal(m.AuthorizationServers, []string{s.Issuer()}) {
		t.Errorf("got %+v", m)
	}
	s = testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	m = metadata[openapi.ResourceMetadata](t, s, "/.well-known/oauth-protected-resource")
	if m.AuthorizationServers != nil {
		t.Errorf("got %v where nobody is known", m.AuthorizationServers)
	}
}

// RFC 8414, section 3.1: if the issuer has a path, the metadata is also served at the well-known path followed by that path.
func TestMetadataOfAnIssuerWithAPath(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	cfg := s.Config
	cfg.Registry = prometheus.NewRegistry()
	loaded, err := scopes.Load(catalogue)
	if err != nil {
		t.Fatal(err)
	}
	book := s.DB.Ledger(t)
	if cfg.Broker, err = broker.New(broker.Config{
		Ledger: book, Live: book, Feed: book, Usage: book, Stats: book, Tokens: book, Approvals: book, Passkeys: book, DPoPReplayCache: book,
		Catalogues: book, Minter: s.Minter, Signer: s.Minter, Catalogue: func() *scopes.Catalogue { return loaded },
		Issuer: testkit.Audience + "/tenant", Now: cfg.Now, Log: cfg.Log,
	}); err != nil {
		t.Fatal(err)
	}
	srv, err := httpapi.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w := of(t, srv, "/.well-known/oauth-authorization-server/tenant")
	var m openapi.ServerMetadata
	if err := json.Unmarshal(w.Body.Bytes(), &m); err != nil || m.Issuer != testkit.Audience+"/tenant" || m.TokenEndpoint != testkit.Audience+"/oauth2/token" {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	// OpenID Connect Discovery 1.0, section 4.1: the well-known path follows that of the issuer.
	w = of(t, srv, "/tenant/.well-known/openid-configuration")
	var c openapi.OpenIDConfiguration
	if err := json.Unmarshal(w.Body.Bytes(), &c); err != nil || c.Issuer != m.Issuer || c.JwksURI != m.JwksURI || c.JwksURI != testkit.Audience+"/.well-known/jwks.json" {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}

// of answers an unauthenticated GET.
func of(t *testing.T, srv *httpapi.Server, path string) *httptest.ResponseRecorder {
	t.Helper()
	w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	r.Host = "127.0.0.1"
	srv.Handler().ServeHTTP(w, r)
	return w
}
