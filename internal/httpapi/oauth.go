package httpapi

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/internal/refusal"
	. "github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

// form is a body as OAuth has it (RFC 6749, 3.2): parameters by name. One without a value counts as left out.
type form map[string]string

// repeatable are the parameters that other servers take more than once (RFC 8707, RFC 8693).
var repeatable = []string{"resource", "audience"}

func badForm(detail string) error { return &requestError{kind: errForm, detail: detail} }

// readForm reads a form as strictly as its specification allows: what is unknown in it is ignored.
func readForm(w http.ResponseWriter, r *http.Request) (form, error) {
	if r.URL.RawQuery != "" { // where it would be logged
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
			return nil, &requestError{kind: errInvalid, field: name, detail: name, oauth: OAuthInvalidTarget, why: "A token has exactly one audience."}
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

func badClient(detail string) error {
	return &requestError{kind: errUnauthenticated, detail: detail}
}

// client proves which workload calls, by exactly one proof: the certificate of the connection, or a JWT-SVID in the form
// (draft-ietf-oauth-spiffe-client-auth).
func (s *Server) client(r *http.Request, f form) (attest.Identity, error) {
	svid := r.TLS != nil && len(r.TLS.PeerCertificates) > 0
	assertion, typed := f["client_assertion"], f["client_assertion_type"]
	_, shared := f["client_secret"]
	shared = shared || len(r.Header.Values("Authorization")) > 0
	switch {
	case svid && assertion+typed != "", shared && (svid || assertion+typed != ""):
		return nobody, &requestError{kind: errInvalid, field: "client_assertion", detail: "client_twice", why: "Use exactly one client authentication method."}
	case shared:
		return nobody, badClient("client_method")
	case !svid && assertion != "" && typed != string(AssertionJWTSPIFFE) && typed != string(AssertionJWTBearer):
		return nobody, badClient("client_assertion_type")
	}
	state := r.TLS
	if assertion != "" {
		state = nil
	}
	// Its one audience is the issuer, by whatever type: the URL of an endpoint, which RFC 7523 allows, is what another server's metadata
	// can have a client name (RFC 7523bis).
	who, err := s.cfg.Attestor.Identify(state, assertion)
	return clientOf(who, err, f)
}

// asker is client where a bearer token will do too (RFC 7662, 2.1), which is a JWT-SVID here as in the rest of the API.
func (s *Server) asker(r *http.Request, f form) (attest.Identity, error) {
	bearer, err := bearerOf(r)
	if err != nil || bearer == "" || r.TLS != nil && len(r.TLS.PeerCertificates) > 0 ||
		f["client_assertion"]+f["client_assertion_type"]+f["client_secret"] != "" {
		return s.client(r, f)
	}
	who, err := s.cfg.Attestor.Identify(nil, bearer)
	return clientOf(who, err, f)
}

// clientOf holds a proof to the client that the form names.
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

// oauthNames are what OAuth calls problems that it has a word for. For the rest that is invalid_request.
var oauthNames = map[ProblemCode]OAuthErrorCode{
	CodeUnauthenticated: OAuthInvalidClient, CodeNotAllowed: OAuthUnauthorizedClient, CodeDenied: OAuthAccessDenied,
	CodeInvalidDPoPProof: OAuthInvalidDPoPProof, CodeUseDPoPNonce: OAuthUseDPoPNonce,
	CodeNotFound: OAuthInvalidGrant, CodeStale: OAuthInvalidGrant, CodeNotApproved: OAuthInvalidGrant, CodeRevoked: OAuthInvalidGrant,
}

func oauthName(err error, p Problem) OAuthErrorCode {
	f := requestErrorOf(err)
	var ask *scopes.InvalidAsk
	switch {
	case f.oauth != "":
		return f.oauth
	case errors.As(err, &ask) && ask.Field == "scope", p.Reason == scopes.ReasonUnknownScope:
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

// clientChallenge names the scheme that the client tried, as RFC 6749, section 5.2, asks. A client that did not use the Authorization header gets
// no challenge: libraries take one for the whole answer, and do not show its user what is wrong.
func clientChallenge(h http.Header, r *http.Request) {
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
}

// asClient authenticates the OAuth client that sends a form, runs handle, and answers with the OAuth error of its error.
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
	var waits *awaited
	if errors.As(err, &waits) {
		s.writeAwaited(w, waits)
		return
	}
	h := w.Header()
	p := s.refused(h, r, who, err)
	out := OAuthError{Error: oauthName(err, p), ErrorDescription: p.Detail}
	if p.Explanation != "" {
		out.ErrorDescription = describable(strings.TrimSpace(p.Field + " " + p.Explanation))
	}
	if errors.Is(err, errProof) || errors.Is(err, errNonce) { // of which RFC 9449, section 5, makes no question of who calls
		h.Del("WWW-Authenticate")
		p.Status = http.StatusBadRequest
	}
	switch p.Status {
	case http.StatusUnauthorized:
		clientChallenge(h, r)
	case http.StatusRequestEntityTooLarge, http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusInternalServerError:
	default:
		p.Status = http.StatusBadRequest
	}
	out.Problem = p
	s.writeOAuth(w, p.Status, out)
}

func (s *Server) writeOAuth(w http.ResponseWriter, status int, e OAuthError) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	setProblemHeaders(h, status)
	writeBody(w, status, e)
}

// describable is a text with only what an error_description may have.
func describable(text string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case c == '"':
			return '\''
		case c < ' ' || c > '~' || c == '\\':
			return '?'
		}
		return c
	}, text)
}
