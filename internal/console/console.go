// Package console serves the web pages for approvers, admins and auditors: a dashboard, pending approvals, live
// credentials, the audit log, and the proofs of the record. The server renders the pages. They work without scripts, except
// for features that need one: a passkey, a proof that the browser checks, a chart.
//
// People log in at their OpenID Connect provider. A session keeps the ID token, sealed, and outlives it: every request verifies
// the token as of the login, and a change requires a recent login. A page shows nothing that the API would not show to the same
// person.
//
// The console must never change anything on a GET, never show outside text in a way that a reader could take for a fact,
// never run or load a script that is not in this binary, and never send a secret.
package console

import (
	"cmp"
	"context"
	"crypto/cipher"
	"crypto/tls"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/alexedwards/scs/v2"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/clientip"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/quiet"
	"github.com/brevet-dev/brevet/internal/ratelimit"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/go-chi/chi/v5"
	"golang.org/x/time/rate"
)

// Config configures a Console. ClientSecret and HTTPClient are optional.
type Config struct {
	Broker *broker.Broker
	// People verifies ID tokens that the provider issued for ClientID, the client through which people log in here.
	People       *people.Verifier
	ClientID     string
	ClientSecret secret.Text
	// HTTPClient supplies the transport for calls to the provider. nil means one like http.DefaultTransport.
	HTTPClient *http.Client
	// InclusionProofs returns the proofs of records. LogKeys returns the public keys that verify the checkpoints of the log.
	InclusionProofs InclusionProofs
	LogKeys         LogKeys
	// Sessions stores login sessions.
	Sessions Sessions
	// SessionIdle and SessionLength are how long a session lasts without activity, and in any case. LoginMaxAge is how long after
	// a login its person can change something. Zero means the default.
	SessionIdle, SessionLength, LoginMaxAge time.Duration
	// URL is the public address of the console: an origin without a path, with https or http://localhost.
	URL string
	// TrustedProxies are the proxies that name the address of their client in a header.
	TrustedProxies clientip.Proxies
	// TrustDomains are the names of the trust domains that Brevet serves.
	TrustDomains []string
	// Key seals the data that the console stores in browsers. It has at least 32 secret bytes and is the same on every
	// replica.
	Key []byte
	// Ledger is the log. Vault signs and mints. Bundles returns the state of the keys that verify SVIDs; it may be nil.
	Ledger  Log
	Vault   Vault
	Bundles func() []Bundle
	// Past reads recorded decisions for replays. If it is nil, replays are not available.
	Past Past
	// Problems are the errors that the API returns.
	Problems []Problem
	// Voted counts a recorded vote. It may be nil.
	Voted func(c *broker.ApprovalRequest, verdict approval.Verdict)
	Log   *slog.Logger
	Now   func() time.Time
}

// Sessions stores sealed sessions for all replicas. Its errors are broker.ErrNotFound and broker.ErrLedgerUnavailable.
type Sessions interface {
	// Session returns the data of a session, or ErrNotFound if the session has ended.
	Session(ctx context.Context, id [32]byte) ([]byte, error)
	KeepSession(ctx context.Context, id [32]byte, data []byte, ends time.Time) error
	DropSession(ctx context.Context, id [32]byte) error
}

// InclusionProofs returns proofs from the log. Its errors are audit.ErrNotYet if no checkpoint covers the record yet,
// broker.ErrNotFound and broker.ErrLedgerUnavailable.
type InclusionProofs interface {
	// Receipt proves everything in the log about one record. It does not check who may read the record.
	Receipt(ctx context.Context, id string) (audit.Receipt, error)
}

// LogKeys returns public keys in the format of c2sp.org/signed-note.
type LogKeys interface {
	Keys(ctx context.Context) ([]string, error)
}

// Console serves browsers. It is safe for concurrent use.
type Console struct {
	cfg      Config
	origin   *url.URL
	sessions *scs.SessionManager
	login    *login
	pages    map[string]*template.Template
	static   *static
	signing  []byte      // the key that signs session cookies
	naming   []byte      // the key of nameless
	keeping  cipher.AEAD // seals kept forms
	// pace limits each logged-in person, presented each session cookie before its session is looked up, and strangers the
	// requests without a session of each address.
	pace, presented, strangers *ratelimit.Limiter
	complaints                 rate.Sometimes // for logging an unavailable provider: anybody can trigger that
	handler                    http.Handler
	closing                    sync.Once
	closed                     chan struct{} // closed when this replica stops

	reference    *reference
	catalogues   shelf
	replaying    sync.Mutex // limits the replica to one replay at a time, to spare the database
	ledgerStatus lately[broker.LedgerStatus]
	liveTotals   liveTotals
	exports      *ratelimit.FairSemaphore
}

// New checks cfg and returns a Console. It does not contact the provider, which may be down.
func New(cfg Config) (*Console, error) {
	switch {
	case cfg.Ledger == nil, cfg.Vault == nil:
		return nil, errors.New("console: ledger and vault are both required")
	case cfg.Broker == nil, cfg.People == nil, cfg.Sessions == nil, cfg.InclusionProofs == nil, cfg.LogKeys == nil, cfg.ClientID == "":
		return nil, errors.New("console: broker, people with the id of their client, proofs, keys of the log and sessions are all required")
	case cfg.Log == nil, cfg.Now == nil:
		return nil, errors.New("console: log and clock are both required")
	case len(cfg.Key) < minKey:
		return nil, fmt.Errorf("console: the key must have at least %d bytes", minKey)
	}
	origin, err := ParseURL(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	cfg.SessionIdle, cfg.SessionLength = cmp.Or(cfg.SessionIdle, DefaultSessionIdle), cmp.Or(cfg.SessionLength, DefaultSessionLength)
	cfg.LoginMaxAge = cmp.Or(cfg.LoginMaxAge, DefaultLoginMaxAge)
	if cfg.SessionIdle < 0 || cfg.LoginMaxAge < 0 || cfg.SessionLength < cfg.SessionIdle || cfg.SessionLength > LongestSession {
		return nil, errors.New("console: a session must last at least as long as it may be idle, and a day at most")
	}
	c := &Console{cfg: cfg, origin: origin, closed: make(chan struct{})}
	// Nobody exceeds the limits for one person by hand, and a longer burst of pages would delay others. The limits for an address are
	// higher, because many people can share one, and those for a session because scripts and styles count too.
	c.pace = ratelimit.New(10, 50)
	c.presented, c.strangers = ratelimit.New(100, 500), ratelimit.New(200, 1000)
	c.exports = ratelimit.NewFairSemaphore(maxExports, exportsAtOnce)
	c.complaints.Interval = 5 * time.Second
	if c.static, err = newStatic(); err != nil {
		return nil, err
	}
	if c.pages, err = c.parsePages(); err != nil {
		return nil, err
	}
	if c.reference, err = newReference(); err != nil {
		return nil, err
	}
	if c.login, err = newLogin(cfg, origin); err != nil {
		return nil, err
	}
	if c.signing, err = deriveKey(cfg.Key, "session signature"); err != nil {
		return nil, err
	}
	if c.naming, err = deriveKey(cfg.Key, "person"); err != nil {
		return nil, err
	}
	if c.keeping, err = sealer(cfg.Key, "kept form"); err != nil {
		return nil, err
	}
	c.sessions = scs.New()
	c.sessions.Store = store{cfg.Sessions}
	c.sessions.Lifetime = cfg.SessionLength
	c.sessions.Cookie = scs.SessionCookie{
		Name: c.cookieName(sessionCookie), Path: "/", HttpOnly: true, Secure: true, SameSite: http.SameSiteLaxMode,
	}
	c.sessions.ErrorFunc = func(w http.ResponseWriter, r *http.Request, err error) { c.fail(w, r, nil, err) }
	c.handler = c.guarded(c.routes())
	return c, nil
}

// ParseURL parses the URL of a console. It accepts only https and http://localhost, because browsers restrict passkeys and
// secure cookies to these.
func ParseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, errors.New("the URL cannot be parsed")
	case u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Path != "" && u.Path != "/":
		return nil, errors.New("the URL is not a scheme and a host alone, such as https://brevet.acme.example")
	case u.Scheme != "https" && (u.Scheme != "http" || u.Hostname() != "localhost"):
		return nil, errors.New("the URL is neither https nor http://localhost")
	}
	if _, err := netip.ParseAddr(u.Hostname()); err == nil {
		return nil, errors.New("the URL must contain a host name, not an IP address: passkeys require a name")
	}
	u.Path = ""
	if port := u.Port(); u.Scheme == "https" && port == "443" || u.Scheme == "http" && port == "80" {
		u.Host = u.Hostname() // browsers omit the default port
	}
	return u, nil
}

// Handler returns the handler of the pages. Serve it behind TLS, or on loopback.
func (c *Console) Handler() http.Handler { return c.handler }

// HTTP returns a server for the pages with every limit set. tlsConfig is nil on loopback, and where the operator's proxy
// terminates TLS.
func (c *Console) HTTP(tlsConfig *tls.Config) *http.Server {
	srv := &http.Server{
		Handler:           c.handler,
		TLSConfig:         tlsConfig,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    32 << 10,
		// Anybody can cause connection errors at will, so they must not fill the log.
		ErrorLog: quiet.ServerLog(c.cfg.Log),
	}
	srv.RegisterOnShutdown(func() { c.closing.Do(func() { close(c.closed) }) })
	return srv
}

// routes returns the pages. opens says who may open them.
func (c *Console) routes() http.Handler {
	mux := chi.NewRouter()
	mux.NotFound(c.authenticated(toLogin, func(http.ResponseWriter, *http.Request, *visitor) error { return broker.ErrNotFound }))
	mux.MethodNotAllowed(func(w http.ResponseWriter, r *http.Request) { c.fail(w, r, nil, errMethod) })
	mux.Get("/login", c.beginLogin)
	mux.Get("/callback", c.endLogin)
	mux.Get("/signed-out", func(w http.ResponseWriter, r *http.Request) {
		c.show(w, r, nil, pageSignedOut.view("Logged out", struct{}{}))
	})
	mux.Post("/logout", c.logout)
	mux.Get("/", c.visit(c.home))

	mux.Post(stayPath, c.serve(c.refuseNobody, c.stay))
	mux.Post("/session/keep", c.keepTyped)
	mux.Post("/session/kept", c.serve(c.refuseNobody, c.openTyped))

	mux.Get("/you", c.visit(c.you))
	mux.Get("/you/passkeys", c.visit(c.passkeys))
	mux.Post("/you/passkeys", c.act(c.addPasskey))
	mux.Post("/you/passkeys/challenge", c.serve(c.refuseNobody, c.challengePasskey))
	mux.Post("/you/passkeys/{id}/remove", c.act(c.removePasskey))

	mux.Get("/approvals", c.visit(c.inbox))
	mux.Get("/approvals/events", c.serve(toLogin, c.tellApprovals))
	mux.Get("/approvals/{id}", c.visit(c.approval))
	mux.Post("/approvals/{id}/vote", c.act(c.vote))

	mux.Get("/live", c.visit(c.live))
	mux.Get("/live/rates.json", c.serve(toLogin, c.rates))
	mux.Get("/history", c.visit(c.history))
	mux.Get("/history/export", c.serve(toLogin, c.export))
	mux.Get("/issuances/{id}", c.visit(c.issuance))
	mux.Get("/tasks", c.visit(c.task))
	mux.Get("/whose", c.visit(c.whose))
	mux.Get("/ledger", c.visit(c.ledger))
	mux.Get("/ledger/growth", c.serve(c.refuseNobody, c.growth))
	mux.Get("/system", c.visit(c.system))

	mux.Get("/endings/receipt", c.visit(c.receipt))
	mux.Get("/endings/{order}", c.visit(c.beforeOrder))
	mux.Post("/endings/{order}", c.act(c.order))

	mux.Get("/catalogue", c.visit(c.catalogue))
	mux.Get("/catalogue/scopes/{name}", c.visit(c.scope))
	mux.Get("/catalogue/versions", c.visit(c.versions))
	mux.Get("/catalogue/diff", c.visit(c.diff))
	mux.Get("/catalogue/explain", c.visit(c.explain))
	mux.Get("/catalogue/draft", c.visit(c.draft))
	mux.Post("/catalogue/draft", c.look(c.checkDraft))
	mux.Post("/catalogue/apply", c.act(c.apply))
	mux.Get("/catalogue/proposals/{digest}", c.visit(c.proposal))
	mux.Post("/catalogue/proposals/{digest}", c.act(c.decideProposal))
	mux.Post("/catalogue/replay", c.look(c.replayDraft))
	mux.Post("/catalogue/proposals/{digest}/replay", c.look(c.replayProposal))

	mux.Get("/reference", c.visit(func(*http.Request, *visitor) (view, error) {
		return pageReference.view("API", c.reference), nil
	}))
	mux.Get("/reference/openapi.yaml", c.serve(toLogin, openAPI))
	mux.Get("/reference/types", c.visit(func(*http.Request, *visitor) (view, error) {
		return pageReferenceTypes.view("API types", c.reference.Types), nil
	}))
	mux.Get("/reference/problems", c.visit(func(*http.Request, *visitor) (view, error) {
		return pageReferenceProblems.view("API problems", byStatus(c.cfg.Problems)), nil
	}))
	mux.Get("/reference/{tag}", c.visit(c.referenceTag))

	all := chi.NewRouter()
	all.Get(staticPath+"*", c.static.serve)
	all.Mount("/", c.sessions.LoadAndSave(mux))
	return all
}

// policy is the Content-Security-Policy of every page. The browser runs and loads only files in this binary, and no
// site may frame a page.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// maxBody is the largest size of a request body, in bytes.
const maxBody = 2 << 20

// foreign reports whether the browser sent the request on behalf of another site. Links that a person follows are allowed.
// Other sites must not load anything from the console or act in it.
func foreign(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	follows := r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
	return (site == "cross-site" || site == "same-site") && !follows
}

// admit applies the limits that come before everything else, and returns the request with its session. A request with a session
// counts for the session, and any other for the address of its client. So strangers lock nobody out, even if all requests come
// from one address, such as that of a proxy. If admit refuses the request, it has answered it.
//
// Only a cookie that this console has signed leads to the database, so that strangers cause no load there. Scripts and styles are
// the same for everybody, so their session is not looked up.
func (c *Console) admit(w http.ResponseWriter, r *http.Request) (*http.Request, bool) {
	token, now := c.sessionToken(r), c.cfg.Now()
	if token != "" && !c.presented.Allow(token, now) {
		tooMany(w, "session")
		return nil, false
	}
	known, lookup := token != "", token
	if strings.HasPrefix(r.URL.Path, staticPath) {
		lookup = ""
	}
	ctx, err := c.sessions.Load(r.Context(), lookup)
	if err != nil {
		c.fail(w, r, nil, err)
		return nil, false
	}
	if lookup != "" {
		known = c.sessions.Exists(ctx, keyIDToken)
	}
	if !known && !c.strangers.Allow(clientip.Network(clientip.RemoteIP(r)), now) {
		tooMany(w, "address")
		return nil, false
	}
	return r.WithContext(ctx), true
}

func tooMany(w http.ResponseWriter, key string) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, "Rate limit exceeded for your "+key+". Wait a second and retry.", http.StatusTooManyRequests)
}

// guarded sets the security headers and checks what every request needs: the host, the rate, the origin and the size.
func (c *Console) guarded(next http.Handler) http.Handler {
	crossing := http.NewCrossOriginProtection()
	crossing.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { c.fail(w, r, nil, errForeignPage) }))
	checked := crossing.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=(), publickey-credentials-create=(self), publickey-credentials-get=(self)")
		h.Set("Cache-Control", "no-store")
		if c.origin.Scheme == "https" {
			h.Set("Strict-Transport-Security", "max-age=31536000")
		}
		if !strings.EqualFold(r.Host, c.origin.Host) {
			http.Error(w, "Unknown host. Open the console at "+c.origin.String(), http.StatusMisdirectedRequest)
			return
		}
		r, admitted := c.admit(w, c.cfg.TrustedProxies.Resolve(r))
		if !admitted {
			return
		}
		if foreign(r) {
			c.fail(w, r, nil, errForeignPage)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		checked.ServeHTTP(w, r)
	})
}
