package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/refusal"
	. "github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

// caller is an attest.Identity or a people.Person. No other type represents an authenticated caller.
type caller interface {
	IsZero() bool
	Expires() time.Time
}

// authenticate returns the caller: a workload with an SVID, or a person with an ID token and nothing else. Every operation under
// /v1 begins with it. The attest and people packages verify their kind of proof in full. A token that both would accept
// authenticates the workload, which can never vote.
func (s *Server) authenticate(r *http.Request, operation string) (caller, error) {
	s.begin(r, operation)
	bearer, err := bearerOf(r)
	if err != nil {
		return nobody, err
	}
	workload, noSVID := s.cfg.Attestor.Identify(r.TLS, bearer)
	switch {
	case noSVID == nil:
		return workload, nil
	case errors.Is(noSVID, attest.ErrBundleUnavailable):
		return nobody, &requestError{kind: errBundle, detail: refusal.Reason(noSVID)}
	case bearer == "" || r.TLS != nil && len(r.TLS.PeerCertificates) > 0 || s.cfg.People == nil:
		return nobody, &requestError{kind: errUnauthenticated, detail: refusal.Reason(noSVID)}
	}
	person, noToken := s.cfg.People.Identify(r.Context(), bearer)
	switch {
	case noToken == nil && !s.pace.Allow(person.ID(), s.cfg.Now()):
		return nobody, &requestError{kind: errPace, detail: "pace"}
	case noToken == nil:
		return person, nil
	case errors.Is(noToken, people.ErrProviderUnavailable):
		return nobody, &requestError{kind: errProvider, detail: refusal.Reason(noToken)}
	case errors.Is(noSVID, attest.ErrID): // the subject of an ID token is not a SPIFFE ID
		return nobody, &requestError{kind: errUnauthenticated, detail: refusal.Reason(noToken)}
	}
	// Only the record says why it failed.
	return nobody, &requestError{kind: errUnauthenticated, detail: refusal.Reason(noSVID)}
}

// serve authenticates the caller, runs handle, and answers an error with its problem. The parameter type of handle determines who
// may call: attest.Identity for operations of sandboxes only (H101), people.Person for people only (H94), caller for both.
func serve[T caller](s *Server, w http.ResponseWriter, r *http.Request, operation string, handle func(T) error) {
	who, err := s.authenticate(r, operation)
	if err == nil {
		if allowed, ok := who.(T); ok {
			err = handle(allowed)
		} else if _, ok := who.(people.Person); ok {
			err = &requestError{kind: errNotAllowed, detail: "person"}
		} else {
			err = &requestError{kind: errNotAllowed, detail: "workload"}
		}
	}
	if err != nil {
		s.fail(w, r, who, err)
	}
}

// delegator returns the person whose ID token a sandbox presents in member, to request on their behalf. It returns nil if idToken
// is empty. The token does not authenticate the caller.
func (s *Server) delegator(ctx context.Context, member, idToken string) (*scopes.User, error) {
	if idToken == "" {
		return nil, nil //nolint:nilnil // on nobody's behalf
	}
	var person people.Person
	err := people.ErrNoDelegation
	if s.cfg.People != nil {
		person, err = s.cfg.People.Delegator(ctx, idToken)
	}
	bad := &requestError{kind: errInvalid, field: member, detail: refusal.Reason(err)}
	switch {
	case err == nil:
		return &scopes.User{ID: person.ID(), Groups: person.Groups(), Until: person.Expires()}, nil
	case errors.Is(err, people.ErrProviderUnavailable):
		return nil, &requestError{kind: errProvider, detail: bad.detail}
	case errors.Is(err, people.ErrNoDelegation):
		bad.why = "is not supported: the operator has configured no delegation audience"
	default: // only the record says why
		bad.why = "is not a valid ID token of a person for delegation"
	}
	return nil, bad
}

// nameOf returns the SPIFFE ID of a workload, or the id of a person.
func nameOf(who caller) string { return actorOf(who).ID() }

// bearerOf returns the bearer token of a call, or "" if there is no Authorization header. Any other use of the header is an
// error, even if the client also presents a certificate: a call with contradictory proofs is not authenticated.
func bearerOf(r *http.Request) (string, error) {
	values := r.Header.Values("Authorization")
	if len(values) == 0 {
		return "", nil
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	if len(values) > 1 || !ok || !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", &requestError{kind: errUnauthenticated, detail: "authorization_malformed"}
	}
	return token, nil
}

// requireDPoP returns the thumbprint of the key that the call proves by DPoP (RFC 9449), or "" if the call has no proof. The
// proof is used up, so callers check everything else about the call first.
func (s *Server) requireDPoP(w http.ResponseWriter, r *http.Request, who attest.Identity) (string, error) {
	values := r.Header.Values(dpop.Header)
	if len(values) == 0 {
		return "", nil
	}
	s.giveNonce(w.Header())
	// The Host header does not count: with another port in it, the server would accept proofs made for the service at that port.
	path := r.URL.EscapedPath()
	_, root := s.issuerURL()
	urls := []string{root + path}
	for _, host := range s.cfg.Hosts {
		urls = append(urls, "https://"+host+path)
	}
	p, err := dpop.Check(values, dpop.Expected{Method: r.Method, URLs: urls, Now: s.cfg.Now(), Nonces: s.nonces})
	if err == nil {
		err = s.cfg.Broker.UseProof(r.Context(), who.ID().String(), p)
	}
	name := CodeInvalidDPoPProof
	switch {
	case err == nil:
		return p.Thumbprint, nil
	case errors.Is(err, dpop.ErrNonce):
		name, err = CodeUseDPoPNonce, &requestError{kind: errNonce, detail: refusal.Reason(err)}
	case errors.Is(err, dpop.ErrCrowded), errors.Is(err, broker.ErrLedgerUnavailable):
		return "", err
	default:
		err = &requestError{kind: errProof, detail: refusal.Reason(err), why: strings.TrimPrefix(err.Error(), "dpop: ")}
	}
	w.Header().Set("WWW-Authenticate", `DPoP error="`+string(name)+`", algs="`+dpop.Algorithms+`"`) // RFC 9449, section 7.1
	return "", err
}

// giveNonce sets the nonce for the caller's next proof.
func (s *Server) giveNonce(h http.Header) { h.Set(dpop.NonceHeader, s.nonces.At(s.cfg.Now())) }
