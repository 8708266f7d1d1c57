package console

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"github.com/alexedwards/scs/v2"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/ratelimit"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/go-chi/chi/v5"
	"golang.org/x/time/rate"
)

// Config is what a Console needs. ClientSecret and HTTPClient may be left out.
type Config struct {
	Broker *broker.Broker
	// People recognises people, by ID tokens of the client that they log in through here: ClientID.
	People       *people.Verifier
	ClientID     string
	ClientSecret secret.Text
	// HTTPClient carries the calls to the provider; nil is one of our own.
	HTTPClient *http.Client
	// InclusionProofs proves what is on record, and LogKeys gives the public keys that its checkpoints are signed with.
	InclusionProofs InclusionProofs
	LogKeys         LogKeys
	// Sessions keeps who is logged in.
	Sessions Sessions
	// URL is where people find the console: https, or http of localhost; an origin without a path.
	URL string
	// TrustDomains are the names of those that are served.
	TrustDomains []string
	// Key seals what the console gives browsers to keep: at least 32 secret bytes, the same on every replica.
	Key []byte
	// Ledger is the log, Vault what signs and mints, and Bundles, unless nil, the keys by which SVIDs are verified.
	Ledger  Log
	Vault   Vault
	Bundles func() []Bundle
	// Past reads again what was decided, for replays; nil has none.
	Past Past
	// Problems are what the API says when something goes wrong.
	Problems []Problem
	// Voted counts a vote that was recorded; nil does not.
	Voted func(c *broker.ApprovalRequest, verdict broker.Verdict, who people.Person)
	Log   *slog.Logger
	Now   func() time.Time
}

// Sessions keeps sealed sessions for all replicas. Errors are broker.ErrNotFound and broker.ErrLedgerUnavailable.
type Sessions interface {
	// Session returns what a session holds, and ErrNotFound once it has ended.
	Session(ctx context.Context, id [32]byte) ([]byte, error)
	KeepSession(ctx context.Context, id [32]byte, data []byte, ends time.Time) error
	DropSession(ctx context.Context, id [32]byte) error
}

// InclusionProofs is the log, which proves itself. Errors are audit.ErrNotYet for what no checkpoint covers yet, broker.ErrNotFound and
// broker.ErrLedgerUnavailable.
type InclusionProofs interface {
	// Receipt proves all that there is of one record, whosever it is.
	Receipt(ctx context.Context, id string) (audit.Receipt, error)
}

// LogKeys gives public keys in the form of c2sp.org/signed-note.
type LogKeys interface {
	Keys(ctx context.Context) ([]string, error)
}

// Console answers browsers. It is safe for concurrent use.
type Console struct {
	cfg      Config
	origin   *url.URL
	sessions *scs.SessionManager
	login    *login
	pages    map[string]*page
	static   *static
	// pace is for people who are logged in, strangers for addresses before anybody is known.
	pace, strangers *ratelimit.Pace
	complaints      rate.Sometimes // of a provider that does not answer, which anybody can have asked
	handler         http.Handler
	closing         sync.Once
	closed          chan struct{} // when this replica stops

	reference    *reference
	catalogues   shelf
	replayer     replaying
	lately       lately
	exporters    exporters
	mostExported int // records in one file
}

// New checks cfg and returns a Console. It asks the provider nothing, which may be down.
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
	c := &Console{cfg: cfg, origin: origin, closed: make(chan struct{}), mostExported: mostExported}
	c.pace = ratelimit.New(callsPerSecond, callsAtOnce)
	c.strangers = ratelimit.New(addressCallsPerSecond, addressCallsAtOnce)
	c.complaints.Interval = complaintsEvery
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
	c.sessions = c.openSessions()
	c.handler = c.guarded(c.routes())
	return c, nil
}

// ParseURL reads the URL of a console. Browsers keep passkeys and secure cookies to https, and to http of localhost.
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
		u.Host = u.Hostname() // as browsers name it
	}
	return u, nil
}

// Handler answers browsers. It belongs behind TLS, or on loopback.
func (c *Console) Handler() http.Handler { return c.handler }

// HTTP returns a server for the pages with every limit set. tlsConfig is nil on loopback, and where a proxy of the operator's
// ends TLS.
func (c *Console) HTTP(tlsConfig *tls.Config) *http.Server {
	srv := &http.Server{
		Handler:           c.handler,
		TLSConfig:         tlsConfig,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    32 << 10,
		// What goes wrong below a call is for anyone to cause at will, so it must not fill the log.
		ErrorLog: slog.NewLogLogger(c.cfg.Log.Handler(), slog.LevelDebug),
	}
	srv.RegisterOnShutdown(func() { c.closing.Do(func() { close(c.closed) }) })
	return srv
}

func (c *Console) routes() http.Handler {
	mux := chi.NewRouter()
	mux.NotFound(c.visit(func(*http.Request, *visitor) (view, error) { return view{}, broker.ErrNotFound }))
	mux.MethodNotAllowed(func(w http.ResponseWriter, r *http.Request) { c.fail(w, r, nil, errMethod) })
	mux.Get("/login", c.beginLogin)
	mux.Get("/callback", c.endLogin)
	mux.Get("/signed-out", c.signedOut)
	mux.Post("/logout", c.logout)
	mux.Get("/", c.visit(c.home))
	mux.Get("/you", c.visit(c.you))
	c.approvalsRoutes(mux)
	c.passkeysRoutes(mux)
	c.catalogueRoutes(mux)
	c.draftRoutes(mux)
	c.explainRoutes(mux)
	c.replayRoutes(mux)
	c.ledgerRoutes(mux)
	c.systemRoutes(mux)
	c.referenceRoutes(mux)
	c.recordRoutes(mux)
	c.endingRoutes(mux)
	all := chi.NewRouter()
	all.Get("/static/{hash}/{name}", c.static.serve) // the same for everybody
	all.Mount("/", c.sessions.LoadAndSave(mux))
	return all
}
