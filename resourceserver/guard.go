package resourceserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/jws"
	"github.com/brevet-dev/brevet/internal/token"
)

// mostProofs bounds the DPoP proofs that a Guard remembers. It keeps each for a minute, in about 200 bytes.
const mostProofs = 100_000

// ErrUnavailable means that the server can't check tokens right now.
var ErrUnavailable = errors.New("tokens cannot be checked right now")

// ErrInactive is the error that Config.Confirm returns for a token that is no longer in force.
var ErrInactive = errors.New("token is not active")

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
	// HTTPClient fetches the keys. Nil means a client with http.DefaultTransport and a timeout. Its redirect policy is not used.
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
	verifier *token.Verifier
	keys     *kept[token.KeySet]
	lists    *lists
	used     *dpop.ReplayCache
}

// New returns a Guard, or an error for an unsafe configuration. It makes no network calls: the keys are fetched for the first
// token.
func New(cfg Config) (*Guard, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now //nolint:forbidigo // this is where programs of others come in
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
	g := &Guard{cfg: cfg, keys: newKeys(cfg), used: dpop.NewReplayCache(mostProofs)}
	g.lists = &lists{g: g, host: issuer.Host, client: clientOf(cfg), of: map[string]*kept[token.StatusList]{}}
	g.verifier, err = token.NewVerifier(token.Config{
		Issuer: cfg.Issuer, Audiences: []string{cfg.Audience}, Keys: g.known, Now: cfg.Now,
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
	// A client can send any key ID. The minimum interval between two fetches keeps it from causing many.
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
		if err := g.lists.check(r.Context(), claims.Status); err != nil {
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

func (g *Guard) known() token.KeySet {
	last, _ := g.keys.state()
	return last.value
}

// bound checks that the caller proved the key that the token is bound to.
func (g *Guard) bound(r *http.Request, p presented, claims token.Claims) error {
	shown := token.Presented{X5T: thumbprint(r)}
	if !p.proves {
		return claims.Bound(shown)
	}
	if g.cfg.Origin == "" || claims.Confirm == nil || claims.Confirm.JKT == "" {
		return token.ErrBinding
	}
	now := g.cfg.Now()
	proof, err := dpop.Check(r.Header.Values(dpop.Header), dpop.Expected{
		Method: r.Method, URLs: []string{g.cfg.Origin + path(r)}, Now: now, Token: p.raw, Thumbprint: claims.Confirm.JKT,
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

// thumbprint returns the thumbprint of the certificate that the caller proved on this connection (RFC 8705, section 3.1).
func thumbprint(r *http.Request) string {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return ""
	}
	return jws.CertificateThumbprint(r.TLS.PeerCertificates[0].Raw)
}

// path returns the path of the request as it arrived, since a router may have removed part of it.
func path(r *http.Request) string {
	if u, err := url.ParseRequestURI(r.RequestURI); err == nil {
		return u.EscapedPath()
	}
	return r.URL.EscapedPath()
}
