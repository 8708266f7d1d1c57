// Package httpapi is the HTTP interface of Brevet. It decodes each call into a broker.Request, authenticates the caller, and
// encodes what the broker returns.
//
// The package must never take the caller's identity from anything but the SVID or the ID token. It must never tell a caller more
// than the fixed text of a problem, never let a cache store a response under /v1 other than a status list, and never answer a
// refusal without recording it.
package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/clientip"
	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/ratelimit"
	. "github.com/brevet-dev/brevet/openapi"
	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// MinCursorKey is the shortest CursorKey, in bytes.
const MinCursorKey = 32

const (
	// issuedAtOnce is how many credentials a replica issues at once for each processor while one trust domain makes requests, and
	// at most for one sandbox. Twice as many is the limit for all trust domains. With more, each would wait longer and none would
	// be ready sooner (about 32 keep a processor busy), so a request beyond the limit is refused before any decision. Orders of
	// admins, votes, introspection and checks do not count, so that no number of requests can keep a credential alive.
	issuedAtOnce = 64
	// endedAtOnce is the same for calls of workloads that release a credential, end a task or withdraw a request.
	endedAtOnce = 32
	// orderedAtOnce is the same for revocations and quarantines that workloads with the role admin order. They come before the entries
	// of sandboxes, and after earlier ones of admins in other trust domains. People have their pace.
	orderedAtOnce = 8
	// introspectedAtOnce is the same for introspection. Most of it needs no connection to the database.
	introspectedAtOnce = 256
	// confirmedAtOnce and confirmedByOne are how many calls of sandboxes may ask at once which credentials are in force, in total and of
	// one sandbox. Each can name a thousand, and shares a few connections with introspection.
	confirmedAtOnce, confirmedByOne = 64, 4
	// Reads of records and of the log wait for one of the connections that are for them. Callers and trust domains take turns. maxReading
	// bounds how many wait, maxReadingEach how many of one caller do, and readPatience for how long.
	maxReading, maxReadingEach, readPatience = 1024, 64, 10 * time.Second
	// A person makes a few calls for each page, and more at once to decide on many requests. A caller beyond these limits is a
	// program (H95).
	callsPerSecond, callsAtOnce = 20, 200
	// pollsPerSecond is one poll every pollAfter seconds, with a second of tolerance for the network.
	pollsPerSecond = 1.0 / (pollAfter - 1)
	// A sandbox lists its scopes once, and again after a change. Each call evaluates all policies for all scopes.
	offersPerSecond, offersAtOnce = 1, 10
	// A gateway reports the uses of each credential once, and of all its credentials when it stops.
	reportsPerSecond, reportsAtOnce = 20, 1000
)

// Config configures a Server. People, TrustedProxies, Auditors, Admins, Orchestrators, ResourceServers, Ready and JWKSMaxAge are
// optional.
type Config struct {
	Broker   *broker.Broker
	Attestor *attest.Attestor
	// People authenticates people. If it is nil, nobody can call as a person.
	People *people.Verifier
	// Keys returns the public keys that verify issued tokens, as a JWK set.
	Keys interface{ JWKS() ([]byte, error) }
	// InclusionProofs gives access to the log. LogKeys returns the public keys that verify its checkpoints.
	InclusionProofs InclusionProofs
	LogKeys         interface {
		Keys(ctx context.Context) ([]string, error)
	}
	// Hosts are the accepted values of the Host header, compared without regard to case. A value without a port matches any port.
	Hosts []string
	// TrustedProxies are the proxies that name the address of their client in a header.
	TrustedProxies clientip.Proxies
	// Auditors may read the records of whole trust domains, or of paths. Admins may revoke and quarantine there, and
	// orchestrators may end tasks. One SPIFFE ID can have several roles; no role includes another. The rules of the broker assign
	// roles to people.
	Auditors, Admins, Orchestrators []Role
	// ConsoleURL is the URL of the console, for links to its pages. It is empty if there is no console.
	ConsoleURL string
	// ResourceServers may introspect tokens for their audiences.
	ResourceServers []ResourceServer
	// BootstrapAdmin is the id of a person who is an admin everywhere while Bootstrap is on. Without a BootstrapAdmin, Bootstrap
	// is optional.
	BootstrapAdmin string
	Bootstrap      Bootstrap
	// JWKSMaxAge is how long clients may cache the key set, by default one minute. It must be shorter than the overlap of a key
	// rotation.
	JWKSMaxAge time.Duration
	// ReadConns and AuditConns are how many connections to the database there are for reads and for auditors' searches. The calls of
	// the API that only read use half of them, so that votes and the console need not wait for them.
	ReadConns, AuditConns int
	// CursorKey seals cursors, and DPoP nonces are derived from it. It is secret, has at least 32 bytes, and is the same on every
	// replica.
	CursorKey []byte
	// Ready are the checks behind /readyz.
	Ready []Check
	Log   *slog.Logger
	// Registry collects the metrics and serves them through Metrics.
	Registry *prometheus.Registry
	Now      func() time.Time
}

// Check is one readiness check. Probe must respect its context. Its error is logged but never sent to a caller.
type Check struct {
	Name  string
	Probe func(context.Context) error
}

// Server implements the operations of openapi.yaml. It is safe for concurrent use.
type Server struct {
	cfg   Config
	hosts map[string]bool
	roles roles
	// audiences are the audiences of each resource server: it may introspect tokens for these.
	audiences map[spiffeid.ID][]string
	cursors   *cursors
	nonces    *dpop.Nonces
	rules     rules
	health    *health
	metrics   *metrics
	router    *chi.Mux
	handler   http.Handler
	// pace limits the calls of people, polls the polling for approvals, offers the listing of scopes, reports the reporting of uses,
	// callReports the reporting of calls by a sandbox, and domainCallReports that by a trust domain.
	pace, polls, offers, reports, callReports, domainCallReports *ratelimit.Limiter
	// issuing bounds how many credentials are issued at once, ending how many calls of workloads end something at once, ordering how
	// many orders of workloads are carried out at once, introspecting how many tokens are introspected at once, and confirming how many
	// callers ask at once which credentials are in force: by trust domain and caller.
	issuing, ending, ordering, introspecting, confirming *ratelimit.FairSemaphore
	// reading are the reads of single records and of a sandbox's own records, auditing those of auditors, and counting the counts of
	// uses, of which the ledger makes one at a time.
	reading, auditing, counting *ratelimit.FairQueue
	ownKeys                     atomic.Pointer[ownKeys]
	// bootstrapOver is set once the bootstrap has ended, so that this replica does not ask the store again.
	bootstrapOver atomic.Bool
	// leaving is set when this replica is about to shut down. It still takes calls.
	leaving atomic.Bool
	// closed is closed when this replica shuts down, which ends event streams and waiting calls.
	closing sync.Once
	conns   connections
	closed  chan struct{}
}

// New validates cfg and returns a Server.
func New(cfg Config) (*Server, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if cfg.JWKSMaxAge == 0 {
		cfg.JWKSMaxAge = time.Minute
	}
	s := &Server{
		cfg: cfg, hosts: map[string]bool{}, roles: newRoles(cfg), audiences: map[spiffeid.ID][]string{}, closed: make(chan struct{}),
		conns:      connections{open: map[net.Conn]*openConnection{}},
		health:     &health{checks: cfg.Ready, log: cfg.Log, now: cfg.Now},
		pace:       ratelimit.New(callsPerSecond, callsAtOnce),
		polls:      ratelimit.New(pollsPerSecond, 1),
		offers:     ratelimit.New(offersPerSecond, offersAtOnce),
		reports:    ratelimit.New(reportsPerSecond, reportsAtOnce),
		issuing:    ratelimit.NewFairSemaphore(2*issuedAtOnce*max(2, runtime.GOMAXPROCS(0)), issuedAtOnce),
		ending:     ratelimit.NewFairSemaphore(2*endedAtOnce*max(2, runtime.GOMAXPROCS(0)), endedAtOnce),
		ordering:   ratelimit.NewFairSemaphore(2*orderedAtOnce*max(2, runtime.GOMAXPROCS(0)), orderedAtOnce),
		confirming: ratelimit.NewFairSemaphore(confirmedAtOnce, confirmedByOne),

		callReports:       ratelimit.New(1.0/callReportsEvery, callReportsAtOnce),
		domainCallReports: ratelimit.New(domainCallReportsPerSecond, domainCallReportsAtOnce),
		introspecting:     ratelimit.NewFairSemaphore(2*introspectedAtOnce*max(2, runtime.GOMAXPROCS(0)), introspectedAtOnce),
		reading:           ratelimit.NewFairQueue((cfg.ReadConns+1)/2, maxReading, maxReadingEach),
		auditing:          ratelimit.NewFairQueue((cfg.AuditConns+1)/2, maxReading, maxReadingEach),
		counting:          ratelimit.NewFairQueue(1, maxReading, maxReadingEach),
	}
	for _, rs := range cfg.ResourceServers {
		s.audiences[rs.ID] = append(s.audiences[rs.ID], rs.Audiences...)
	}
	for _, host := range cfg.Hosts {
		s.hosts[strings.ToLower(host)] = true
	}
	var err error
	if s.cursors, err = newCursors(cfg.CursorKey); err != nil {
		return nil, err
	}
	if s.nonces, err = dpop.NewNonces(cfg.CursorKey); err != nil {
		return nil, err
	}
	if s.rules, err = sharedRules(); err != nil {
		return nil, err
	}
	if s.metrics, err = newMetrics(cfg.Registry); err != nil {
		return nil, err
	}
	s.router = s.routes()
	s.handler = s.observed(s.router)
	return s, nil
}

func (cfg Config) check() error {
	switch {
	case cfg.Broker == nil, cfg.Attestor == nil, cfg.Keys == nil, cfg.InclusionProofs == nil, cfg.LogKeys == nil:
		return errors.New("server: broker, attestor, proofs and both kinds of keys are all required")
	case cfg.Log == nil, cfg.Registry == nil, cfg.Now == nil:
		return errors.New("server: log, registry and clock are all required")
	case len(cfg.Hosts) == 0:
		return errors.New("server: no hosts: name the host that clients connect to")
	case cfg.BootstrapAdmin != "" && cfg.Bootstrap == nil:
		return errors.New("server: a bootstrap admin requires Bootstrap")
	case len(cfg.CursorKey) < MinCursorKey:
		return fmt.Errorf("server: the cursor key must have at least %d bytes", MinCursorKey)
	}
	for _, rs := range cfg.ResourceServers {
		if rs.ID.IsZero() || len(rs.Audiences) == 0 || slices.Contains(rs.Audiences, "") {
			return errors.New("server: a resource server needs a SPIFFE ID and at least one audience")
		}
	}
	for _, role := range slices.Concat(cfg.Auditors, cfg.Admins, cfg.Orchestrators) {
		if role.ID.IsZero() || len(role.TrustDomains)+len(role.Within) == 0 {
			return errors.New("server: a role needs a SPIFFE ID and at least one trust domain or path")
		}
	}
	return nil
}

// routes returns the generated router. An unknown path or method is answered with a problem, like any other failure.
func (s *Server) routes() *chi.Mux {
	mux := chi.NewRouter()
	mux.NotFound(func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, nobody, unknown("path"))
	})
	mux.MethodNotAllowed(s.methodNotAllowed)
	if issuer, _ := s.issuerURL(); strings.Trim(issuer.Path, "/") != "" {
		mux.Get(serverMetadata+issuer.Path, s.GetServerMetadata) // RFC 8414, 3.1
		// OpenID Connect Discovery 1.0, section 4.1, puts the two the other way round.
		mux.Get(strings.TrimSuffix(issuer.Path, "/")+openIDConfiguration, s.GetOpenIDConfiguration)
	}
	HandlerWithOptions(s, ChiServerOptions{BaseRouter: mux, ErrorHandlerFunc: s.parameterError})
	return mux
}

// Handler returns the handler of the API. It must run behind TLS that requests a client certificate; HTTP returns a server that
// does.
func (s *Server) Handler() http.Handler { return s.handler }

// Metrics serves the registry in the Prometheus format. Serve it on a separate address.
func (s *Server) Metrics() http.Handler {
	return promhttp.HandlerFor(s.cfg.Registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})
}

// GetKeys serves the public keys.
func (s *Server) GetKeys(w http.ResponseWriter, r *http.Request) {
	s.begin(r, "getKeys")
	keys, err := s.cfg.Keys.JWKS()
	if err != nil {
		s.fail(w, r, nobody, fmt.Errorf("%w: %w", errKeys, err))
		return
	}
	writeBytes(w, "application/jwk-set+json", cached(s.cfg.JWKSMaxAge), keys)
}

// GetSpec serves openapi.yaml.
func (s *Server) GetSpec(w http.ResponseWriter, r *http.Request) {
	s.begin(r, "getSpec")
	writeBytes(w, "application/yaml", cached(5*time.Minute), Spec)
}

const (
	probeTimeout = 2 * time.Second
	// healthLife is how long a result is reused, so that unauthenticated clients cannot overload the stores.
	healthLife = time.Second
)

// health runs the readiness checks, at most once per healthLife.
type health struct {
	checks []Check
	log    *slog.Logger
	now    func() time.Time

	mu   sync.Mutex
	last Health
	at   time.Time
}

func (h *health) state(ctx context.Context) Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	if !h.at.IsZero() && now.Sub(h.at) < healthLife {
		return h.last
	}
	// Other callers share the result, so the first caller must not be able to cancel it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTimeout)
	defer cancel()
	failures := make([]error, len(h.checks))
	var wg sync.WaitGroup
	for i, check := range h.checks {
		wg.Go(func() { failures[i] = check.Probe(ctx) })
	}
	wg.Wait()
	h.last, h.at = Health{Status: HealthOK, Checks: map[string]HealthStatus{}}, now
	for i, check := range h.checks {
		h.last.Checks[check.Name] = HealthOK
		if failures[i] != nil {
			h.last.Status, h.last.Checks[check.Name] = HealthFailing, HealthFailing
			if missing, ok := errors.AsType[*broker.MissingRightsError](failures[i]); ok {
				for _, right := range missing.Rights {
					h.last.Checks[check.Name+": "+right] = HealthFailing
				}
			}
			h.log.WarnContext(ctx, "readiness check failing", "check", check.Name, "error", failures[i])
		}
	}
	return h.last
}

// Live reports that the process answers.
func (s *Server) Live(w http.ResponseWriter, r *http.Request) {
	s.begin(r, "live")
	writeJSON(w, http.StatusOK, Health{Status: HealthOK})
}

// Ready reports for each check whether it passes, but not why. It names the rights that are missing in Vault.
func (s *Server) Ready(w http.ResponseWriter, r *http.Request) {
	s.begin(r, "ready")
	// A replica that is about to stop is not ready, regardless of its checks.
	state, status := Health{Status: HealthFailing, Checks: map[string]HealthStatus{"running": HealthFailing}}, http.StatusOK
	if !s.leaving.Load() {
		state = s.health.state(r.Context())
	}
	if state.Status != HealthOK {
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
	}
	writeJSON(w, status, state)
}
