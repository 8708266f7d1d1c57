package testkit

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/clientip"
	"github.com/brevet-dev/brevet/internal/console"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/httpapi"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/mint"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// Audience is the issuer of a Stack's tokens, and the only audience that its JWT-SVIDs may have.
const Audience = "https://brevet.test"

// LogName is the name of a Stack's log in its checkpoints.
const LogName = "brevet.test/ledger"

// Stack is a complete Brevet on real parts: a server behind real TLS, a ledger in its own schema, a Vault with a separate
// signing key, and two trust domains.
type Stack struct {
	// Acme and Other are the trust domains acme.test and other.test; both are accepted.
	Acme, Other *devstack.Issuer
	// Addr is the host:port of the API, URL its base URL.
	Addr, URL string
	Server    *httpapi.Server
	// SVID is the server's own X.509-SVID.
	SVID *x509svid.SVID
	// CloseServer stops the server before the test ends.
	CloseServer func()
	// Config is the configuration of Server.
	Config  httpapi.Config
	Broker  *broker.Broker
	Minter  *mint.Minter
	vouches map[string]*Authenticator // the last passkey of each person, which authorizes the next
	// LogKey signs the checkpoints of the ledger, as LogName.
	LogKey *mint.LogKey
	// DB is the schema that the ledger writes to.
	DB *DB
	// Log holds what the server has logged.
	Log *Buffer

	bundles  *spiffebundle.Set
	registry *prometheus.Registry
	ledger   *ledger.Ledger
	vault    *devstack.Vault
	access   VaultAccess
	provider *devstack.Provider
	options  Options
	log      *slog.Logger
	gitHub   map[string]mint.GitHubApp
	// catalogue is the initial catalogue.
	catalogue *scopes.Catalogue
}

// Options change the defaults of a Stack.
type Options struct {
	// DB, if set, is the schema to use, which may already hold data; nil creates a new one.
	DB        *DB
	Catalogue []scopes.File
	// Applied applies Catalogue through the ledger, as `brevet serve` does, and makes replicas follow the applied catalogue.
	// SecondAdmin is as in broker.Config.
	Applied, SecondAdmin bool
	// Auditors are workloads that may read all of acme.test. Admins may revoke and quarantine there. Orchestrators may end
	// its tasks.
	Auditors, Admins, Orchestrators []string
	// ResourceServers may introspect tokens: SPIFFE IDs, each with its audiences.
	ResourceServers map[string][]string
	// CatalogueAdmins are admins of both trust domains, and CatalogueAuditors auditors of both.
	CatalogueAdmins, CatalogueAuditors []string
	// Within limits a workload's roles of the above kinds to SPIFFE IDs and the IDs below them, in place of all of acme.test.
	Within map[string][]string
	// People are the people whom the stack's provider knows. Rules give them roles. Owners are the templates that map sandboxes
	// to their owners.
	People []devstack.DevPerson
	Rules  []people.Rule
	Owners []string
	// OIDC, unless nil, replaces the stack's own provider of people.
	OIDC *OIDC
	// Delegations are the audiences of ID tokens that let a sandbox make requests on behalf of a person.
	Delegations []string
	// BootstrapAdmin is the username of the one of People who is the bootstrap admin; "" is none.
	BootstrapAdmin string
	// Ledger and Minter, if set, wrap the real ones, to inject faults.
	Ledger func(broker.Ledger) broker.Ledger
	Minter func(broker.Minter) broker.Minter
	// VaultVia, if set, maps Vault's address to the address that the broker uses for it.
	VaultVia func(addr string) string
	// Attempts is as in broker.Config, but zero lets everything be recorded.
	Attempts broker.AttemptBudget
	// OnUnrevoked is as in broker.Config.
	OnUnrevoked func(n int)
	// Pages is the listener that Console serves on, if a test has to know its address earlier. Passkeys then belong to that
	// origin, and otherwise to Site.
	Pages net.Listener
	// Sessions changes how long sessions of the console last. It may be nil.
	Sessions func(*console.Config)
	// TrustedProxies are the trusted proxies of the server and of the console.
	TrustedProxies clientip.Proxies
	// GitHub is the GitHub whose App the server knows as GitHubApp; nil means none.
	GitHub *GitHub
	// Now is the server's clock; nil is the system's clock.
	Now func() time.Time
}

// NewStack starts a Stack that ends with the test.
func NewStack(t testing.TB, o Options) *Stack {
	t.Helper()
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Stack{Log: &Buffer{}, bundles: spiffebundle.NewSet(), DB: o.DB, options: o}
	if s.DB == nil {
		s.DB = NewDB(t)
	}
	s.Acme, s.Other = s.issuer(t, "acme.test"), s.issuer(t, "other.test")
	s.log = slog.New(slog.NewTextHandler(s.Log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var err error
	if s.catalogue, err = scopes.Load(o.Catalogue); err != nil {
		t.Fatalf("loading the catalogue: %v", err)
	}
	s.openVault(t, s.catalogue, s.log)
	s.openProvider(t)
	s.openBroker(t, o, s.catalogue, s.log)
	s.serve(t, o, s.log)
	return s
}

// Replica starts a second broker and server on the same Postgres and Vault, with a separate metrics registry.
func (s *Stack) Replica(t testing.TB) *Stack {
	t.Helper()
	return s.ReplicaWith(t, s.options)
}

// FreshReplica is like Replica, with a login at Vault of its own: it reads the signing keys now.
func (s *Stack) FreshReplica(t testing.TB) *Stack {
	t.Helper()
	r := *s
	r.Minter = s.openMinter(t, s.log)
	return r.ReplicaWith(t, s.options)
}

// ReplicaWith is like Replica, with other rules and roles. The people and the catalogue are the same.
func (s *Stack) ReplicaWith(t testing.TB, o Options) *Stack {
	t.Helper()
	r := *s
	if o.Now == nil {
		o.Now = s.options.Now
	}
	r.options = o
	r.openBroker(t, r.options, r.catalogue, r.log)
	r.serve(t, r.options, r.log)
	return &r
}

func (s *Stack) issuer(t testing.TB, name string) *devstack.Issuer {
	t.Helper()
	issuer, err := devstack.NewIssuer(devstack.IssuerConfig{TrustDomain: spiffeid.RequireTrustDomainFromString(name)})
	if err != nil {
		t.Fatalf("making the trust domain %s: %v", name, err)
	}
	s.bundles.Add(issuer.Bundle())
	return issuer
}

// runInBackground runs until the test ends, and waits until run returns.
func runInBackground(t testing.TB, run func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
}

func (s *Stack) openBroker(t testing.TB, o Options, catalogue *scopes.Catalogue, log *slog.Logger) {
	t.Helper()
	s.registry = prometheus.NewRegistry()
	watch, err := httpapi.NewStopwatch(s.registry, o.Now)
	if err != nil {
		t.Fatalf("making a stopwatch: %v", err)
	}
	s.ledger = s.DB.Ledger(t)
	book := watch.Ledger(s.ledger)
	if o.Ledger != nil {
		book = o.Ledger(book)
	}
	minter := watch.Minter(s.Minter)
	if o.Minter != nil {
		minter = o.Minter(minter)
	}
	catalogue = s.openCatalogue(t, o, catalogue)
	s.Broker, err = broker.New(broker.Config{
		Ledger: book, Live: watch.LiveCredentials(s.ledger), Feed: s.ledger, Usage: s.ledger, Stats: s.ledger, Tokens: s.ledger, Signer: s.Minter, Approvals: s.ledger, Passkeys: s.ledger, RelyingParty: s.site(t), DPoPReplayCache: s.ledger, ApprovalPolicy: s.approvalPolicy(t), Minter: minter, Catalogue: func() *scopes.Catalogue { return catalogue },
		Catalogues: s.ledger, SecondAdmin: o.SecondAdmin,
		Issuer: Audience, Now: o.Now, Log: log, OnUnrevoked: o.OnUnrevoked, Attempts: attempts(o),
	})
	if err != nil {
		t.Fatalf("making the broker: %v", err)
	}
	runInBackground(t, func(ctx context.Context) error { return s.ledger.Seal(ctx, s.LogKey) })
	runInBackground(t, s.Broker.RecordCounts)
	if o.Applied {
		runInBackground(t, s.Broker.FollowCatalogue)
	}
}

// attempts returns the budget of attempts, which is unbounded unless a test sets it.
func attempts(o Options) broker.AttemptBudget {
	const all = 1 << 30
	if o.Attempts == (broker.AttemptBudget{}) {
		return broker.AttemptBudget{SandboxBurst: all, SandboxPerMinute: all, DomainBurst: all, DomainPerMinute: all}
	}
	return o.Attempts
}

// openCatalogue returns the initial catalogue.
func (s *Stack) openCatalogue(t testing.TB, o Options, catalogue *scopes.Catalogue) *scopes.Catalogue {
	t.Helper()
	if !o.Applied {
		return catalogue
	}
	opened, err := broker.OpenCatalogue(t.Context(), s.ledger, o.Catalogue, o.Now(), s.log)
	if err != nil {
		t.Fatalf("opening the catalogue: %v", err)
	}
	return opened
}

func (s *Stack) serve(t testing.TB, o Options, log *slog.Logger) {
	t.Helper()
	attestor, err := attest.New(attest.Config{
		Bundles: s.bundles, TrustDomains: []spiffeid.TrustDomain{s.Acme.TrustDomain(), s.Other.TrustDomain()},
		Audience: Audience, Now: o.Now, OnRefusal: httpapi.RecordHandshakes(s.Broker, log),
	})
	if err != nil {
		t.Fatalf("making the attestor: %v", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.Addr, s.URL = listener.Addr().String(), "https://"+listener.Addr().String()
	cfg := httpapi.Config{
		Broker: s.Broker, Attestor: attestor, People: s.verifier(t), Keys: s.Minter, InclusionProofs: s.ledger, LogKeys: s.LogKey,
		Hosts: []string{"127.0.0.1", s.Addr}, CursorKey: s.ledger.CursorKey(), TrustedProxies: o.TrustedProxies, Bootstrap: s.ledger, Log: log, Registry: s.registry, Now: o.Now,
		ReadConns: 8, AuditConns: 4, ConsoleURL: s.site(t).Origins[0],
		Ready: []httpapi.Check{
			{Name: "ledger", Probe: s.ledger.Ready}, {Name: "ledger_disk", Probe: s.ledger.HasRoom}, {Name: "vault", Probe: s.Minter.Ready}, {Name: "bundles", Probe: s.bundlesReady},
		},
	}
	cfg.Auditors, cfg.Admins, cfg.Orchestrators = s.roles(o.Auditors), s.roles(o.Admins), s.roles(o.Orchestrators)
	cfg.Auditors = append(cfg.Auditors, s.rolesOverAll(o.CatalogueAuditors)...)
	cfg.Admins = append(cfg.Admins, s.rolesOverAll(o.CatalogueAdmins)...)
	for id, audiences := range o.ResourceServers {
		cfg.ResourceServers = append(cfg.ResourceServers, httpapi.ResourceServer{ID: spiffeid.RequireFromString(id), Audiences: audiences})
	}
	if o.BootstrapAdmin != "" {
		cfg.BootstrapAdmin = s.Issuer() + "#" + o.BootstrapAdmin
	}
	s.Config = cfg
	if s.Server, err = httpapi.New(cfg); err != nil {
		t.Fatalf("making the server: %v", err)
	}
	s.SVID = s.X509(t, "spiffe://acme.test/brevet")
	tlsConfig := attestor.TLSConfig(tlsconfig.GetCertificate(s.SVID))
	srv := s.Server.HTTP(tlsConfig)
	runInBackground(t, s.Server.CloseUntrusted)
	ended := make(chan error, 1)
	go func() { ended <- srv.ServeTLS(listener, "", "") }()
	s.CloseServer = func() { _ = srv.Close() }
	t.Cleanup(func() {
		s.CloseServer()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serving: %v", err)
		}
	})
}

// roles gives a role to each id: in acme.test, or within the limits that Options.Within sets for the id.
func (s *Stack) roles(ids []string) []httpapi.Role {
	var all []httpapi.Role
	for _, id := range ids {
		role := httpapi.Role{ID: spiffeid.RequireFromString(id)}
		for _, prefix := range s.options.Within[id] {
			role.Within = append(role.Within, spiffeid.RequireFromString(prefix))
		}
		if role.Within == nil {
			role.TrustDomains = []spiffeid.TrustDomain{s.Acme.TrustDomain()}
		}
		all = append(all, role)
	}
	return all
}

// rolesOverAll gives each id a role in both trust domains.
func (s *Stack) rolesOverAll(ids []string) []httpapi.Role {
	var all []httpapi.Role
	for _, role := range s.roles(ids) {
		role.TrustDomains = append(role.TrustDomains, s.Other.TrustDomain())
		all = append(all, role)
	}
	return all
}

func (s *Stack) bundlesReady(context.Context) error {
	if !s.bundles.Has(s.Acme.TrustDomain()) {
		return errors.New("no bundle of acme.test")
	}
	return nil
}

// Remembers reports whether this replica has the status of a token in its cache, and so answers without a query to the
// ledger. The token is known by its id and the SHA-256 of its claims.
func (s *Stack) Remembers(id string, claims [32]byte) bool {
	_, ok := s.ledger.Cached(id, claims)
	return ok
}

// Trust replaces the server's keys of the bundle's trust domain.
func (s *Stack) Trust(bundle *spiffebundle.Bundle) { s.bundles.Add(bundle) }

// DropBundle removes a trust domain's keys from the server.
func (s *Stack) DropBundle(td spiffeid.TrustDomain) { s.bundles.Remove(td) }

// X509 issues an X.509-SVID.
func (s *Stack) X509(t testing.TB, id string) *x509svid.SVID {
	t.Helper()
	parsed := spiffeid.RequireFromString(id)
	svid, err := s.issuerOf(parsed).X509SVID(parsed)
	if err != nil {
		t.Fatalf("issuing to %s: %v", id, err)
	}
	return svid
}

// JWT issues a JWT-SVID for this stack.
func (s *Stack) JWT(t testing.TB, id string) string {
	t.Helper()
	parsed := spiffeid.RequireFromString(id)
	token, err := s.issuerOf(parsed).JWTSVID(parsed, Audience)
	if err != nil {
		t.Fatalf("issuing to %s: %v", id, err)
	}
	return token
}

func (s *Stack) issuerOf(id spiffeid.ID) *devstack.Issuer {
	if id.TrustDomain() == s.Other.TrustDomain() {
		return s.Other
	}
	return s.Acme
}

// ClientTLS returns the TLS configuration of a caller with svid, or without a certificate if svid is nil.
func (s *Stack) ClientTLS(svid x509svid.Source) *tls.Config {
	if svid == nil {
		return tlsconfig.TLSClientConfig(s.bundles, s.IsBrevet())
	}
	return tlsconfig.MTLSClientConfig(svid, s.bundles, s.IsBrevet())
}

// IsBrevet returns an authorizer that accepts the server's own SVID.
func (s *Stack) IsBrevet() tlsconfig.Authorizer {
	return tlsconfig.AuthorizeID(spiffeid.RequireFromString("spiffe://acme.test/brevet"))
}

// Client returns a client that calls as id, over mutual TLS.
func (s *Stack) Client(t testing.TB, id string) *client.Client {
	t.Helper()
	return s.ClientWith(t, s.X509(t, id))
}

// ClientWith returns a client that calls over mutual TLS with the given SVID.
func (s *Stack) ClientWith(t testing.TB, svid *x509svid.SVID) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{BaseURL: s.URL}, client.WithX509(svid, s.bundles, s.IsBrevet()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// JWTClient returns a client that calls as id, with a new JWT-SVID for each call.
func (s *Stack) JWTClient(t testing.TB, id string) *client.Client {
	t.Helper()
	source := jwtSource{issuer: s.issuerOf(spiffeid.RequireFromString(id)), id: spiffeid.RequireFromString(id)}
	c, err := client.New(client.Config{BaseURL: s.URL}, client.WithServer(s.bundles, s.IsBrevet()), client.WithJWT(source, Audience))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

type jwtSource struct {
	issuer *devstack.Issuer
	id     spiffeid.ID
}

func (s jwtSource) FetchJWTSVID(_ context.Context, params jwtsvid.Params) (*jwtsvid.SVID, error) {
	token, err := s.issuer.JWTSVID(s.id, params.Audience)
	if err != nil {
		return nil, err
	}
	return jwtsvid.ParseInsecure(token, []string{params.Audience})
}

// HTTP returns a plain HTTP client with the TLS of svid. It follows no redirect.
func (s *Stack) HTTP(t testing.TB, svid x509svid.Source) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: s.ClientTLS(svid), ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{
		Transport: transport, Timeout: 30 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// CAPool holds the X.509 authorities of acme.test, for clients that do not support SPIFFE.
func (s *Stack) CAPool() *x509.CertPool {
	pool := x509.NewCertPool()
	for _, authority := range s.Acme.Bundle().X509Authorities() {
		pool.AddCert(authority)
	}
	return pool
}
