package httpapi

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/brevet-dev/brevet/internal/dpop"
	. "github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

// Paths of the metadata, which the specifications fix.
const (
	serverMetadata   = "/.well-known/oauth-authorization-server"
	resourceMetadata = "/.well-known/oauth-protected-resource"
)

// clientMethods are the client authentication methods (draft-ietf-oauth-spiffe-client-auth).
var clientMethods = []string{"spiffe_x509", "spiffe_jwt"}

// issuerURL returns the issuer, which the configuration has checked to be a URL, and the root of its server. The paths of the API
// begin at the root, whatever the path of the issuer is.
func (s *Server) issuerURL() (issuer *url.URL, root string) {
	issuer, err := url.Parse(s.cfg.Broker.Issuer())
	if err != nil {
		return &url.URL{}, ""
	}
	return issuer, (&url.URL{Scheme: issuer.Scheme, Host: issuer.Host}).String()
}

// GetServerMetadata serves the metadata of the authorization server (RFC 8414).
func (s *Server) GetServerMetadata(w http.ResponseWriter, r *http.Request) {
	s.begin(r, "getServerMetadata")
	_, root := s.issuerURL()
	names := s.tokenScopes()
	s.writeMetadata(w, ServerMetadata{
		ScopesSupported: names, AuthorizationDetailsTypesSupported: names,
		Issuer: s.cfg.Broker.Issuer(), JwksURI: root + "/.well-known/jwks.json", ServiceDocumentation: root + "/openapi.yaml",
		TokenEndpoint: root + "/oauth2/token", TokenEndpointAuthMethodsSupported: clientMethods,
		GrantTypesSupported:    []string{string(GrantClientCredentials), string(GrantApproval), string(GrantTokenExchange)},
		ResponseTypesSupported: []string{},
		IntrospectionEndpoint:  root + "/oauth2/introspect", RevocationEndpoint: root + "/oauth2/revoke",
		IntrospectionEndpointAuthMethodsSupported: append(slices.Clone(clientMethods), "Bearer"),
		RevocationEndpointAuthMethodsSupported:    clientMethods,
		TLSClientCertificateBoundAccessTokens:     true, DpopSigningAlgValuesSupported: strings.Fields(dpop.Algorithms),
	})
}

// tokenScopes returns the names of the scopes in force for which the token endpoint issues tokens.
func (s *Server) tokenScopes() []string {
	var names []string
	for _, scope := range s.cfg.Broker.Scopes() {
		if scope.Credential.Kind == scopes.KindJWT {
			names = append(names, scope.Name)
		}
	}
	slices.Sort(names)
	return names
}

// GetResourceMetadata serves the metadata of the protected resource: how callers of this API authenticate (RFC 9728).
func (s *Server) GetResourceMetadata(w http.ResponseWriter, r *http.Request) {
	s.begin(r, "getResourceMetadata")
	_, root := s.issuerURL()
	out := ResourceMetadata{
		Resource: root, BearerMethodsSupported: []string{"header"}, ResourceDocumentation: root + "/openapi.yaml",
	}
	if s.cfg.People != nil {
		out.AuthorizationServers = []string{s.cfg.People.Issuer()}
	}
	s.writeMetadata(w, out)
}

func (s *Server) writeMetadata(w http.ResponseWriter, metadata any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "public, max-age="+strconv.FormatInt(seconds(s.cfg.JWKSMaxAge), 10))
	writeBody(w, http.StatusOK, metadata)
}
