package resourceserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/refusal"
	"github.com/brevet-dev/brevet/internal/token"
)

// refuse writes an error response as RFC 6750, section 3, and RFC 9449, section 7.1, define it. The texts are fixed.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	status, name, text := reasonOf(err)
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Type", "application/json")
	detail := ""
	if name != "" {
		detail = fmt.Sprintf(` error="%s", error_description="%s"`, name, text)
	}
	switch p, _ := presentedBy(r); {
	case status == http.StatusServiceUnavailable:
		h.Set("Retry-After", "5")
	case p.proves:
		h.Add("WWW-Authenticate", `DPoP algs="`+dpop.Algorithms+`",`+detail)
	default:
		h.Add("WWW-Authenticate", "Bearer"+detail)
		h.Add("WWW-Authenticate", `DPoP algs="`+dpop.Algorithms+`"`)
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(struct {
		Error       string `json:"error,omitempty"`
		Description string `json:"error_description,omitempty"`
	}{name, text})
}

// reasonOf returns the status, the error code and the text for an error of Check.
func reasonOf(err error) (status int, name, text string) {
	switch {
	case errors.Is(err, errNone):
		return http.StatusUnauthorized, "", "" // RFC 6750, section 3.1: the client may not know that it needs a token
	case errors.Is(err, errHeader):
		return http.StatusBadRequest, "invalid_request", "The Authorization header must hold exactly one token."
	case errors.Is(err, ErrUnavailable), errors.Is(err, dpop.ErrCrowded):
		return http.StatusServiceUnavailable, "temporarily_unavailable", "Tokens cannot be verified at the moment. Retry later."
	case refusal.By("dpop", err):
		return http.StatusUnauthorized, "invalid_dpop_proof", "The DPoP proof must be new, for this call, and signed by the key that the token is bound to."
	case errors.Is(err, token.ErrExpired):
		return http.StatusUnauthorized, "invalid_token", "The token has expired."
	case errors.Is(err, token.ErrAudience):
		return http.StatusUnauthorized, "invalid_token", "The token is for another audience."
	case errors.Is(err, token.ErrBinding):
		return http.StatusUnauthorized, "invalid_token", "The token is bound to a key that the caller did not prove."
	case errors.Is(err, ErrInactive):
		return http.StatusUnauthorized, "invalid_token", "The token is no longer valid."
	case errors.Is(err, ErrOneShot):
		return http.StatusUnauthorized, "invalid_token", "This server does not accept single-use tokens."
	case errors.Is(err, ErrNoList):
		return http.StatusUnauthorized, "invalid_token", "The token names no status list, which this server requires."
	default:
		return http.StatusUnauthorized, "invalid_token", "The token is not a valid access token of the issuer."
	}
}
