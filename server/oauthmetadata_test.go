package server_test

import (
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/brevettest"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/server"
)

// metadata reads a document that anybody may keep.
func metadata[T any](t *testing.T, s *brevettest.Stack, path string) T {
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

// What the metadata names is there, and what is there is named.
func TestMetadataIsWhatThereIs(t *testing.T) {
	s := brevettest.NewStack(t, brevettest.Options{Catalogue: catalogue})
	m := metadata[openapi.ServerMetadata](t, s, "/.well-known/oauth-authorization-server")
	if m.Issuer != brevettest.Audience || !m.TLSClientCertificateBoundAccessTokens {
		t.Errorf("got %+v", m)
	}
	operations, err := server.Operations()
	if err != nil {
		t.Fatal(err)
	}
	var named []string
	for field, value := range reflect.ValueOf(m).Fields() {
		path, ours := strings.CutPrefix(value.String(), brevettest.Audience+"/")
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

// People's provider is named where there are people.
func TestResourceMetadata(t *testing.T) {
	s := brevettest.NewStack(t, withPeople)
	m := metadata[openapi.ResourceMetadata](t, s, "/.well-known/oauth-protected-resource")
	if m.Resource != brevettest.Audience || !slices.Equal(m.BearerMethodsSupported, []string{"header"}) ||
		!slices.Equal(m.AuthorizationServers, []string{s.Issuer()}) {
		t.Errorf("got %+v", m)
	}
	s = brevettest.NewStack(t, brevettest.Options{Catalogue: catalogue})
	m = metadata[openapi.ResourceMetadata](t, s, "/.well-known/oauth-protected-resource")
	if m.AuthorizationServers != nil {
		t.Errorf("got %v where nobody is known", m.AuthorizationServers)
	}
}
