// Package resourceserver is for servers that accept Brevet's access tokens. It lets a request pass if its token is for this
// server, valid now, and presented by the client that it is bound to (RFC 9068, RFC 8705, RFC 9449).
//
//	guard, err := resourceserver.New(resourceserver.Config{Issuer: issuer, Audience: audience, Origin: origin})
//	...
//	http.Handle("/", guard.Handler(mux))
//
// It sees revocations only if Config.StatusLists or Config.Confirm is set. The server itself decides what a token's details
// allow. The package must never pass on a request that it can't check, and never reveal the contents of a token in a response.
package resourceserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/jws"
	"github.com/brevet-dev/brevet/internal/quiet"
	"github.com/brevet-dev/brevet/internal/refusal"
	"github.com/brevet-dev/brevet/internal/token"
)

// maxProofs bounds the DPoP proofs that a Guard remembers. It keeps each for a minute, in about 200 bytes.
const maxProofs = 100_000

// ErrUnavailable means that the server can't check tokens right now.
var ErrUnavailable = errors.New("tokens cannot be checked right now")

// ErrInactive is the error that Config.Confirm returns for a token that is no longer in force.
var ErrInactive = errors.New("token is not active")

// ErrNoList means that a token names no status list that could show whether it was ended.
var ErrNoList = errors.New("token names no status list of its issuer")

// ErrOneShot means that a token is valid for one call only, and that Config.Confirm is not set to count its uses.
var ErrOneShot = errors.New("single-use token, but nothing counts its uses")

// Config says which tokens a server accepts.
type Config struct {
	// Issuer is Brevet's issuer, exactly as it appears in tokens.
	Issuer string
	// Audience is the name of this server in the scopes.
	Audience string
	// Origin is the https origin at which clients call this server, such as https://git.example. DPoP proofs must be for URLs
	// there. Without it, the server accepts no token that is bound to a DPoP key.
	Origin string
	// JWKS is the https URL of the issuer's keys. If it is empty, it is /.well-known/jwks.json at the issuer's host.
	JWKS string
	// HTTPClient fetches the keys. Nil means a client with the settings of http.DefaultTransport and a timeout. Its redirect policy is not used.
	HTTPClient *http.Client
	// Confirm, if not nil, is called for each token that passed all other checks, for example to find out whether it was
	// revoked. ErrInactive refuses the token. Any other error means that the check failed, and refuses the call too. Without
	// Confirm, the server accepts no one-shot tokens.
	Confirm func(ctx context.Context, raw string, claims token.Claims) error
	// StatusLists makes the Guard check the issuer's status lists for whether a token was ended. Each list is cached for as long
	// as it says, so an end takes some seconds to be seen here. A token that names no list is refused, and so is a token whose
	// list can't be fetched.
	StatusLists bool
	// Now is the clock. Nil means time.Now.
	Now func() time.Time
}

// Guard checks requests. It is safe for concurrent use. A process needs one Guard for each audience.
type Guard struct {
	cfg      Config
	host     string       // the issuer's
	client   *http.Client // fetches from the issuer
	verifier *token.Verifier
	keys     *kept[token.KeySet]
	used     *dpop.ReplayCache

	mu    sync.Mutex
	lists map[string]*kept[token.StatusList] // by URI
}

// New returns a Guard, or an error for an unsafe configuration. It makes no network calls: the keys are fetched for the first
// token.
func New(cfg Config) (*Guard, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now //nolint:forbidigo // the programs that use this package may pass no clock
	}
	issuer, err := url.Parse(cfg.Issuer)
	if err != nil || issuer.Host == "" {
		return nil, errors.New("resourceserver: the issuer must be a URL")
	}
	if cfg.JWKS == "" {
		cfg.JWKS = "https://" + issuer.Host + "/.well-known/jwks.json"
	}
	if u, err := url.Parse(cfg.JWKS); err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("resourceserver: keys must be fetched over https")
	}
	if u, err := url.Parse(cfg.Origin); err != nil || cfg.Origin != "" && (u.Scheme != "https" || u.Host == "" || u.Path != "" || u.RawQuery != "") {
		return nil, errors.New("resourceserver: the origin must be https://host[:port]")
	}
	usual := quiet.NewUsual()
	usual.MaxIdleConnsPerHost = -1 // net/http prints to the default logger what a server sends on an idle connection of HTTP/1.1
	client := http.Client{Transport: usual}
	if cfg.HTTPClient != nil {
		client = *cfg.HTTPClient
	}
	// A redirect leads to a server that is not the issuer.
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	g := &Guard{
		cfg: cfg, host: issuer.Host, client: &client,
		used: dpop.NewReplayCache(maxProofs), lists: map[string]*kept[token.StatusList]{},
	}
	g.keys = &kept[token.KeySet]{now: cfg.Now, ask: g.askKeys}
	known := func() token.KeySet {
		last, _ := g.keys.state()
		return last.value
	}
	g.verifier, err = token.NewVerifier(token.Config{
		Issuer: cfg.Issuer, Audiences: []string{cfg.Audience}, Keys: known, Now: cfg.Now,
	})
	if err != nil {
		return nil, fmt.Errorf("resourceserver: %w", err)
	}
	return g, nil
}

type contextKey struct{}

// FromContext returns the claims of the token that a Guard accepted for this request.
func FromContext(ctx context.Context) (token.Claims, bool) {
	claims, ok := ctx.Value(contextKey{}).(token.Claims)
	return claims, ok
}

// Handler passes requests with a valid token on to next, which gets the claims from FromContext. It answers all other requests
// itself.
func (g *Guard) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		claims, err := g.Check(r)
		if err != nil {
			refuse(w, r, err)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), contextKey{}, claims)))
	})
}

// Check returns the claims of a request's token. The error wraps a sentinel of package token or dpop, ErrInactive, ErrOneShot,
// ErrNoList or ErrUnavailable, or says that the Authorization header does not hold exactly one token. Check uses up the DPoP
// proof.
func (g *Guard) Check(r *http.Request) (token.Claims, error) {
	p, err := presentedBy(r)
	if err != nil {
		return token.Claims{}, err
	}
	if _, err := g.keys.get(r.Context()); err != nil {
		return token.Claims{}, err
	}
	claims, err := g.verifier.Verify(p.raw)
	// A client can send any key ID. The minimum interval between two fetches keeps the client from causing many fetches.
	if errors.Is(err, token.ErrKey) && g.keys.fetch(r.Context()) {
		claims, err = g.verifier.Verify(p.raw)
	}
	if err != nil {
		return token.Claims{}, err
	}
	if claims.OneShot && g.cfg.Confirm == nil {
		return token.Claims{}, ErrOneShot
	}
	if err := g.bound(r, p, claims); err != nil {
		return token.Claims{}, err
	}
	if g.cfg.StatusLists {
		if err := g.checkStatus(r.Context(), claims.Status); err != nil {
			return token.Claims{}, err
		}
	}
	if g.cfg.Confirm != nil {
		if err := g.cfg.Confirm(r.Context(), p.raw, claims); errors.Is(err, ErrInactive) {
			return token.Claims{}, ErrInactive
		} else if err != nil {
			return token.Claims{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
	}
	return claims, nil
}

// bound checks that the caller proved the key that the token is bound to.
func (g *Guard) bound(r *http.Request, p presented, claims token.Claims) error {
	var shown token.Presented
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		// The TLS handshake has proved that the caller holds the key of this certificate (RFC 8705, section 3.1).
		shown.X5T = jws.CertificateThumbprint(r.TLS.PeerCertificates[0].Raw)
	}
	if !p.proves {
		return claims.Bound(shown)
	}
	if g.cfg.Origin == "" || claims.Confirm == nil || claims.Confirm.JKT == "" {
		return token.ErrBinding
	}
	now, path := g.cfg.Now(), r.URL.EscapedPath()
	if u, err := url.ParseRequestURI(r.RequestURI); err == nil {
		path = u.EscapedPath() // the path as it arrived: a router may have removed part of it
	}
	proof, err := dpop.Check(r.Header.Values(dpop.Header), dpop.Expected{
		Method: r.Method, URLs: []string{g.cfg.Origin + path}, Now: now, Token: p.raw, Thumbprint: claims.Confirm.JKT,
	})
	if err != nil {
		return err
	}
	shown.JKT = proof.Thumbprint
	if err := claims.Bound(shown); err != nil {
		return err
	}
	return g.used.Use(proof, now)
}

// presented is a token, and whether it came with a DPoP proof.
type presented struct {
	raw    string
	proves bool
}

var (
	errNone   = errors.New("no token")
	errHeader = errors.New("not exactly one token")
)

func presentedBy(r *http.Request) (presented, error) {
	values := r.Header.Values("Authorization")
	if len(values) == 0 {
		return presented{}, errNone
	}
	scheme, raw, ok := strings.Cut(values[0], " ")
	proves := strings.EqualFold(scheme, "DPoP")
	switch {
	case len(values) > 1, !ok, raw == "":
		return presented{}, errHeader
	case !proves && !strings.EqualFold(scheme, "Bearer"):
		return presented{}, errNone // another scheme, which this server does not use
	}
	return presented{raw, proves}, nil
}

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
