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

// mostProofs bounds the DPoP proofs that a Guard remembers: each for a minute, in some 200 bytes.
const mostProofs = 100_000

// ErrUnavailable means that nobody can tell right now whether a token is good.
var ErrUnavailable = errors.New("tokens cannot be checked right now")

// ErrInactive is what Config.Confirm returns of a token that is not in force any more.
var ErrInactive = errors.New("token is not in force")

// ErrOneShot means that a token is for one call, and nobody was asked whether this is it.
var ErrOneShot = errors.New("token is for one call, and nobody keeps count")

// Config says which tokens a server takes.
type Config struct {
	// Issuer is Brevet's issuer, exactly as it is in tokens.
	Issuer string
	// Audience is this server, as the scopes name it.
	Audience string
	// Origin is where this server is called, over TLS, such as https://git.example: DPoP proofs are for addresses there. Without it no
	// token that is bound to a DPoP key is taken.
	Origin string
	// JWKS is the https URL of the issuer's keys; /.well-known/jwks.json at the issuer's host when empty.
	JWKS string
	// HTTPClient fetches the keys; http.DefaultTransport with a timeout when nil. Its redirect policy is not used.
	HTTPClient *http.Client
	// Confirm, unless nil, is asked about each token that is good in itself, such as whether it was revoked. ErrInactive
	// refuses it; any other error means that nobody can tell, and refuses the call too. Without it no token that is for one
	// call is taken.
	Confirm func(ctx context.Context, raw string, claims token.Claims) error
	// StatusLists looks up in the issuer's status lists whether a token was ended. They are kept as long as they say, so that an
	// end takes some seconds to be seen here. A token that names no list is refused, and so is every one whose list cannot be
	// had.
	StatusLists bool
	// Now is the clock; time.Now when nil.
	Now func() time.Time
}

// Guard checks calls. It is safe for concurrent use; one process needs one for each audience.
type Guard struct {
	cfg      Config
	verifier *token.Verifier
	keys     *kept[token.KeySet]
	lists    *lists
	used     *dpop.ReplayCache
}

// New returns a Guard, or an error for a configuration that could let too much pass. It calls nobody: the keys are fetched
// for the first token.
func New(cfg Config) (*Guard, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now //nolint:forbidigo // this is where programs of others come in
	}
	issuer, err := url.Parse(cfg.Issuer)
	if err != nil || issuer.Host == "" {
		return nil, errors.New("resource: the issuer must be a URL")
	}
	if cfg.JWKS == "" {
		cfg.JWKS = "https://" + issuer.Host + "/.well-known/jwks.json"
	}
	if u, err := url.Parse(cfg.JWKS); err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("resource: keys are fetched over https only")
	}
	if u, err := url.Parse(cfg.Origin); err != nil || cfg.Origin != "" && (u.Scheme != "https" || u.Host == "" || u.Path != "" || u.RawQuery != "") {
		return nil, errors.New("resource: the origin must be https://host[:port]")
	}
	g := &Guard{cfg: cfg, keys: newKeys(cfg), used: dpop.NewReplayCache(mostProofs)}
	g.lists = &lists{g: g, host: issuer.Host, client: clientOf(cfg), of: map[string]*kept[token.StatusList]{}}
	g.verifier, err = token.NewVerifier(token.Config{
		Issuer: cfg.Issuer, Audiences: []string{cfg.Audience}, Keys: g.known, Now: cfg.Now,
	})
	if err != nil {
		return nil, fmt.Errorf("resource: %w", err)
	}
	return g, nil
}

type contextKey struct{}

// FromContext returns the claims of the token that a Guard has let a call pass with.
func FromContext(ctx context.Context) (token.Claims, bool) {
	claims, ok := ctx.Value(contextKey{}).(token.Claims)
	return claims, ok
}

// Handler passes calls on to next that have a good token, which FromContext returns, and answers all others.
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

// Check returns the claims of the token of a call. The error wraps a sentinel of package token or dpop, ErrInactive,
// ErrOneShot, ErrNoList, ErrUnavailable, or is for a call whose Authorization header is not one token. A DPoP proof is used up.
func (g *Guard) Check(r *http.Request) (token.Claims, error) {
	p, err := presentedBy(r)
	if err != nil {
		return token.Claims{}, err
	}
	if _, err := g.keys.get(r.Context()); err != nil {
		return token.Claims{}, err
	}
	claims, err := g.verifier.Verify(p.raw)
	// Whoever sends kids at will must not have us fetch keys at will: between sees to that.
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

// bound holds the presenter of a token to what it is bound to.
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

// presented is a token and how it came: with a proof, or without one.
type presented struct {
	raw    string
	proves bool
}

var (
	errNone   = errors.New("no token")
	errHeader = errors.New("not one token")
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
		return presented{}, errNone // of a kind that is not for us
	}
	return presented{raw, proves}, nil
}

// thumbprint is that of the certificate that the caller has proved on this connection (RFC 8705, section 3.1).
func thumbprint(r *http.Request) string {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return ""
	}
	return jws.CertificateThumbprint(r.TLS.PeerCertificates[0].Raw)
}

// path is that of the call as it came in: a router may have cut off some of it.
func path(r *http.Request) string {
	if u, err := url.ParseRequestURI(r.RequestURI); err == nil {
		return u.EscapedPath()
	}
	return r.URL.EscapedPath()
}
