package httpapi

import (
	"errors"
	"net/http"
	"strings"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/refusal"
	. "github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

// requireDPoP returns the thumbprint of the key that a call has proved by DPoP (RFC 9449); empty when it has no proof. The proof
// is used up, so the call has to be acceptable but for it.
func (s *Server) requireDPoP(w http.ResponseWriter, r *http.Request, who attest.Identity) (string, error) {
	values := r.Header.Values(dpop.Header)
	if len(values) == 0 {
		return "", nil
	}
	s.giveNonce(w.Header())
	p, err := dpop.Check(values, dpop.Expected{
		Method: r.Method, URLs: s.addresses(r.URL.EscapedPath()), Now: s.cfg.Now(), Nonces: s.nonces,
	})
	if err == nil {
		err = s.cfg.Broker.UseProof(r.Context(), who.ID().String(), p)
	}
	switch {
	case err == nil:
		return p.Thumbprint, nil
	case errors.Is(err, dpop.ErrNonce):
		err = &requestError{kind: errNonce, detail: refusal.Reason(err)}
	case errors.Is(err, dpop.ErrCrowded), errors.Is(err, broker.ErrLedgerUnavailable):
		return "", err
	default:
		err = &requestError{kind: errProof, detail: refusal.Reason(err), why: strings.TrimPrefix(err.Error(), "dpop: ")}
	}
	w.Header().Set("WWW-Authenticate", proofChallenge(err))
	return "", err
}

// proofChallenge is how the want of a proof is told (RFC 9449, section 7.1).
func proofChallenge(err error) string {
	name := CodeInvalidDPoPProof
	if errors.Is(err, errNonce) {
		name = CodeUseDPoPNonce
	}
	return `DPoP error="` + string(name) + `", algs="` + dpop.Algorithms + `"`
}

// giveNonce tells the nonce for the caller's next proof.
func (s *Server) giveNonce(h http.Header) { h.Set(dpop.NonceHeader, s.nonces.At(s.cfg.Now())) }

// addresses are those of a path by what the operator has configured. The Host header has no say in it: one that names a
// port of its own would have us take the proofs that were made for what listens there.
func (s *Server) addresses(path string) []string {
	_, root := s.issuerURL()
	all := []string{root + path}
	for _, host := range s.cfg.Hosts {
		all = append(all, "https://"+host+path)
	}
	return all
}

// wantsProof tells a caller whose ask was denied for the want of a proof what to put into one.
func (s *Server) wantsProof(h http.Header, d scopes.Decision) {
	if d.Reason == scopes.ReasonProofRequired {
		s.giveNonce(h)
	}
}
