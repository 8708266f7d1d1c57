package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/refusal"
	. "github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

// form is the body of an OAuth request (RFC 6749, section 3.2): parameters by name. A parameter without a value counts as
// omitted.
type form map[string]string

// repeatable are the parameters that other servers accept more than once (RFC 8707, RFC 8693).
var repeatable = []string{"resource", "audience"}

func badForm(detail string) error { return &requestError{kind: errForm, detail: detail} }

// readForm reads a form strictly. It ignores unknown parameters, because the specification requires that.
func readForm(w http.ResponseWriter, r *http.Request) (form, error) {
	if r.URL.RawQuery != "" { // the query may be logged
		return nil, badForm("query_unexpected")
	}
	if err := checkBodyHeaders(r, "application/x-www-form-urlencoded", maxBody); err != nil {
		if errors.Is(err, errTooLarge) {
			return nil, err
		}
		return nil, badForm(requestErrorOf(err).detail)
	}
	body, err := readAll(w, r, maxBody)
	if err != nil {
		return nil, err
	}
	values, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, badForm("form_encoding")
	}
	f := form{}
	for name, given := range values {
		switch {
		case len(given) > 1 && slices.Contains(repeatable, name):
			return nil, &requestError{kind: errInvalid, field: name, detail: name, oauth: OAuthInvalidTarget, why: "must be sent only once: a token has exactly one audience"}
		case len(given) > 1:
			return nil, badForm("form_repeated")
		case !utf8.ValidString(name+given[0]) || strings.ContainsRune(given[0], 0):
			return nil, badForm("form_encoding")
		case given[0] != "":
			f[name] = given[0]
		}
	}
	return f, nil
}

func badClient(detail string) error { return &requestError{kind: errUnauthenticated, detail: detail} }

// client authenticates a workload by exactly one proof: the certificate of the connection, or a JWT-SVID in the form
// (draft-ietf-oauth-spiffe-client-auth).
func (s *Server) client(r *http.Request, f form) (attest.Identity, error) {
	svid := r.TLS != nil && len(r.TLS.PeerCertificates) > 0
	assertion, typed := f["client_assertion"], f["client_assertion_type"]
	_, shared := f["client_secret"]
	shared = shared || len(r.Header.Values("Authorization")) > 0
	switch {
	case svid && assertion+typed != "", shared && (svid || assertion+typed != ""):
		return nobody, &requestError{kind: errInvalid, field: "client_assertion", detail: "client_twice", why: "excludes every other client authentication method: use exactly one method"}
	case shared:
		return nobody, badClient("client_method")
	case !svid && assertion != "" && typed != string(AssertionJWTSPIFFE) && typed != string(AssertionJWTBearer):
		return nobody, badClient("client_assertion_type")
	}
	state := r.TLS
	if assertion != "" {
		state = nil
	}
	// The only audience must be the issuer, whatever the assertion type. RFC 7523 also allows the URL of an endpoint, but the
	// metadata of another server can make a client put that URL into an assertion (RFC 7523bis).
	who, err := s.cfg.Attestor.Identify(state, assertion)
	return clientOf(who, err, f)
}

// asker is like client, but also accepts a JWT-SVID as a bearer token (RFC 7662, section 2.1), as the rest of the API does.
func (s *Server) asker(r *http.Request, f form) (attest.Identity, error) {
	bearer, err := bearerOf(r)
	if err != nil || bearer == "" || r.TLS != nil && len(r.TLS.PeerCertificates) > 0 ||
		f["client_assertion"]+f["client_assertion_type"]+f["client_secret"] != "" {
		return s.client(r, f)
	}
	who, err := s.cfg.Attestor.Identify(nil, bearer)
	return clientOf(who, err, f)
}

// clientOf checks the outcome of authentication, and that the form names the same client.
func clientOf(who attest.Identity, err error, f form) (attest.Identity, error) {
	switch {
	case errors.Is(err, attest.ErrBundleUnavailable):
		return nobody, &requestError{kind: errBundle, detail: refusal.Reason(err)}
	case err != nil:
		return nobody, badClient(refusal.Reason(err))
	case f["client_id"] != "" && f["client_id"] != who.ID().String():
		return nobody, badClient("client_id")
	}
	return who, nil
}

// oauthNames maps problem codes to OAuth's error codes. A code without an entry becomes invalid_request.
var oauthNames = map[ProblemCode]OAuthErrorCode{
	CodeUnauthenticated: OAuthInvalidClient, CodeNotAllowed: OAuthUnauthorizedClient, CodeDenied: OAuthAccessDenied,
	CodeInvalidDPoPProof: OAuthInvalidDPoPProof, CodeUseDPoPNonce: OAuthUseDPoPNonce,
	CodeNotFound: OAuthInvalidGrant, CodeStale: OAuthInvalidGrant, CodeNotApproved: OAuthInvalidGrant, CodeRevoked: OAuthInvalidGrant,
}

func oauthName(err error, p Problem) OAuthErrorCode {
	f := requestErrorOf(err)
	ask, _ := errors.AsType[*scopes.InvalidAsk](err)
	switch {
	case f.oauth != "":
		return f.oauth
	case ask != nil && ask.Field == "scope", p.Reason == scopes.ReasonUnknownScope:
		return OAuthInvalidScope
	case strings.HasPrefix(f.field, "params"):
		return OAuthInvalidDetails
	case p.Status == http.StatusTooManyRequests, p.Status == http.StatusServiceUnavailable:
		return OAuthTemporarilyUnavailable
	case p.Status >= http.StatusInternalServerError:
		return OAuthServerError
	case oauthNames[p.Code] != "":
		return oauthNames[p.Code]
	}
	return OAuthInvalidRequest
}

// asClient reads a form, authenticates the OAuth client that sent it, and calls handle. It answers an error as an OAuth error.
func (s *Server) asClient(
	w http.ResponseWriter, r *http.Request, operation string, authenticate func(*http.Request, form) (attest.Identity, error),
	handle func(attest.Identity, form) error,
) {
	s.begin(r, operation)
	who := nobody
	f, err := readForm(w, r)
	if err == nil {
		who, err = authenticate(r, f)
	}
	if err == nil {
		err = handle(who, f)
	}
	if err != nil {
		s.failOAuth(w, r, who, err)
	}
}

// failOAuth answers an error as an OAuth error (RFC 6749, section 5.2).
func (s *Server) failOAuth(w http.ResponseWriter, r *http.Request, who caller, err error) {
	if errors.Is(err, errCutOff) {
		return
	}
	h := w.Header()
	if a, ok := errors.AsType[*awaited](err); ok {
		out := OAuthError{
			Error: a.name, AuthReqID: a.id, Interval: pollAfter,
			ErrorDescription: "Approval is pending. Poll with the grant type " + string(GrantApproval) + " and this auth_req_id, at most once per interval.",
		}
		if !a.expires.IsZero() {
			out.ExpiresIn = seconds(max(0, a.expires.Sub(s.cfg.Now())))
		}
		writeOAuth(w, http.StatusBadRequest, out)
		return
	}
	p := s.refused(h, r, who, err)
	out := OAuthError{Error: oauthName(err, p), ErrorDescription: p.Detail}
	if p.Explanation != "" {
		out.ErrorDescription = strings.Map(func(c rune) rune { // to the characters that are allowed there
			switch {
			case c == '"':
				return '\''
			case c < ' ' || c > '~' || c == '\\':
				return '?'
			}
			return c
		}, strings.TrimSpace(p.Field+" "+p.Explanation))
	}
	if errors.Is(err, errProof) || errors.Is(err, errNonce) { // by RFC 9449, section 5, this is not an authentication failure
		h.Del("WWW-Authenticate")
		p.Status = http.StatusBadRequest
	}
	switch p.Status {
	case http.StatusUnauthorized:
		// The challenge is for the scheme that the client tried, as RFC 6749, section 5.2, requires. A client that sent no
		// Authorization header gets no challenge: some libraries show the user only the challenge, and not the error in the body.
		switch scheme, _, _ := strings.Cut(r.Header.Get("Authorization"), " "); {
		case strings.EqualFold(scheme, "Basic"):
			h.Set("WWW-Authenticate", `Basic realm="SVIDs only"`)
		case strings.EqualFold(scheme, "DPoP"):
			h.Set("WWW-Authenticate", "DPoP")
		case scheme != "":
			h.Set("WWW-Authenticate", "Bearer")
		default:
			h.Del("WWW-Authenticate")
		}
	case http.StatusRequestEntityTooLarge, http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusInternalServerError:
	default:
		p.Status = http.StatusBadRequest
	}
	out.Problem = p
	writeOAuth(w, p.Status, out)
}

func writeOAuth(w http.ResponseWriter, status int, e OAuthError) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	setProblemHeaders(h, status)
	writeBody(w, status, e)
}

// Paths of the metadata, which the specifications fix.
const (
	serverMetadata      = "/.well-known/oauth-authorization-server"
	resourceMetadata    = "/.well-known/oauth-protected-resource"
	openIDConfiguration = "/.well-known/openid-configuration"
	keySet              = "/.well-known/jwks.json"
)

// clientMethods are the client authentication methods (draft-ietf-oauth-spiffe-client-auth).
var clientMethods = []string{"spiffe_x509", "spiffe_jwt"}

// issuerURL returns the URL of the issuer, and the root URL of its server. The check of the configuration has already parsed the
// issuer, so parsing it again does not fail. The paths of the API begin at the root, whatever the path of the issuer is.
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
	var names []string // of the scopes in force for which the token endpoint issues tokens
	for _, scope := range s.cfg.Broker.Scopes() {
		if scope.Credential.AccessToken() {
			names = append(names, scope.Name)
		}
	}
	slices.Sort(names)
	s.writeMetadata(w, ServerMetadata{
		ScopesSupported: names, AuthorizationDetailsTypesSupported: names,
		Issuer: s.cfg.Broker.Issuer(), JwksURI: root + keySet, ServiceDocumentation: root + "/openapi.yaml",
		TokenEndpoint: root + "/oauth2/token", TokenEndpointAuthMethodsSupported: clientMethods,
		GrantTypesSupported:    []string{string(GrantClientCredentials), string(GrantApproval), string(GrantTokenExchange)},
		ResponseTypesSupported: []string{},
		IntrospectionEndpoint:  root + "/oauth2/introspect", RevocationEndpoint: root + "/oauth2/revoke",
		IntrospectionEndpointAuthMethodsSupported: append(slices.Clone(clientMethods), "Bearer"),
		RevocationEndpointAuthMethodsSupported:    clientMethods,
		TLSClientCertificateBoundAccessTokens:     true, DpopSigningAlgValuesSupported: strings.Fields(dpop.Algorithms),
	})
}

// GetOpenIDConfiguration serves the metadata that other systems read before they accept a token of a scope with federation (OpenID
// Connect Discovery 1.0, section 3).
func (s *Server) GetOpenIDConfiguration(w http.ResponseWriter, r *http.Request) {
	s.begin(r, "getOpenIDConfiguration")
	keys, err := s.cfg.Keys.JWKS()
	var set struct {
		Keys []struct {
			Algorithm string `json:"alg"`
		} `json:"keys"`
	}
	if err == nil {
		err = json.Unmarshal(keys, &set)
	}
	if err != nil {
		s.fail(w, r, nobody, fmt.Errorf("%w: %w", errKeys, err))
		return
	}
	var algorithms []string
	for _, key := range set.Keys {
		if key.Algorithm != scopes.AlgorithmEdDSA { // which only access tokens may have
			algorithms = append(algorithms, key.Algorithm)
		}
	}
	slices.Sort(algorithms)
	_, root := s.issuerURL()
	s.writeMetadata(w, OpenIDConfiguration{
		Issuer: s.cfg.Broker.Issuer(), JwksURI: root + keySet,
		ResponseTypesSupported: []string{"id_token"}, SubjectTypesSupported: []string{"public"},
		IDTokenSigningAlgValuesSupported: slices.Compact(algorithms),
		ClaimsSupported:                  []string{"iss", "sub", "aud", "iat", "nbf", "exp", "jti", "client_id", "scope", "task"},
	})
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
	w.Header().Set("Cache-Control", cached(s.cfg.JWKSMaxAge))
	writeBody(w, http.StatusOK, metadata)
}
