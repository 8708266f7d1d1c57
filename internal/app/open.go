package app

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"slices"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/clientip"
	pages "github.com/brevet-dev/brevet/internal/console"
	"github.com/brevet-dev/brevet/internal/github"
	"github.com/brevet-dev/brevet/internal/httpapi"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/mint"
	"github.com/brevet-dev/brevet/internal/passkey"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/quiet"
	"github.com/brevet-dev/brevet/internal/safehttp"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/brevet-dev/brevet/migrations"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/exaring/otelpgx"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

func (s *service) openMeters(context.Context) error {
	s.registry = prometheus.NewRegistry()
	var watchErr, err error
	s.watch, watchErr = httpapi.NewStopwatch(s.registry, s.Now)
	s.gauges, err = httpapi.NewGauges(s.registry, s.Now)
	return errors.Join(watchErr, err, s.registry.Register(collectors.NewGoCollector()),
		s.registry.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})))
}

// readSecret returns the content of a file that the configuration names with a key, or the zero value if it names none.
func readSecret(key, path string) (secret.Text, error) {
	if path == "" {
		return secret.Text{}, nil
	}
	text, err := secret.ReadFile(path)
	if err != nil {
		return secret.Text{}, fmt.Errorf("%s: %w", key, err)
	}
	return secret.New(text), nil
}

func (c PostgresConfig) urlOptions() []migrations.URLOption {
	if c.InsecureNetwork {
		return []migrations.URLOption{migrations.InsecureNetwork}
	}
	return nil
}

// readURL is readSecret for the URL of a database that Brevet may connect to.
func (c PostgresConfig) readURL(key, path string) (secret.Text, error) {
	text, err := readSecret(key, path)
	if err != nil || path == "" {
		return text, err
	}
	if _, err := migrations.ParseURL(text.Reveal(), c.urlOptions()...); err != nil {
		return secret.Text{}, fmt.Errorf("%s %s: %w", key, path, err)
	}
	return text, nil
}

// warnInsecure logs that postgres.insecure_network is on, with the hosts that need it.
func warnInsecure(ctx context.Context, log *slog.Logger, urls ...secret.Text) error {
	var hosts []string
	for _, u := range urls {
		more, err := migrations.InsecureHosts(u.Reveal())
		if err != nil {
			return err
		}
		hosts = append(hosts, more...)
	}
	slices.Sort(hosts)
	if hosts = slices.Compact(hosts); len(hosts) == 0 {
		log.WarnContext(ctx, "postgres.insecure_network is on, and no host needs it")
		return nil
	}
	log.WarnContext(ctx, "postgres.insecure_network is on: others on the network can read and change the record on its way", "hosts", hosts)
	return nil
}

func (s *service) openLedger(ctx context.Context) error {
	cfg := s.cfg.Postgres
	databaseURL, err := cfg.readURL("postgres.url_file", cfg.URLFile)
	auditURL, auditErr := cfg.readURL("postgres.audit_url_file", cfg.AuditURLFile)
	if err := errors.Join(err, auditErr); err != nil {
		return err
	}
	if cfg.InsecureNetwork {
		if err := warnInsecure(ctx, s.Log, databaseURL, cmp.Or(auditURL, databaseURL)); err != nil {
			return err
		}
	}
	s.book, err = ledger.Open(ctx, ledger.Config{
		URL: databaseURL.Reveal(), MaxConns: cfg.MaxConnections, AuditURL: auditURL.Reveal(), AuditConns: cfg.AuditConnections,
		URLOptions: cfg.urlOptions(), Log: s.Log, Tracer: otelpgx.NewTracer(), OnSealed: s.gauges.Sealed, OnRoom: s.gauges.Room, OnFull: s.gauges.DiskFull, Now: s.Now,
	})
	if err != nil {
		return fmt.Errorf("opening the ledger with the URL in %s (postgres.url_file): %w", cfg.URLFile, err)
	}
	s.onClose(s.book.Close)
	return nil
}

// longestToken is the longest TTL that any catalogue can give. Another catalogue may be in force tomorrow.
const longestToken = 24 * time.Hour

// openVault opens Vault, and the key in Vault that signs the ledger's checkpoints.
func (s *service) openVault(ctx context.Context) error {
	cfg := s.cfg.Vault
	auth, err := s.vaultAuth(ctx)
	if err != nil {
		return err
	}
	gitHub, err := openGitHub(s.cfg.GitHub)
	if err != nil {
		return err
	}
	err = s.await(ctx, func() (err error) {
		s.minter, err = mint.Open(ctx, mint.Config{
			GitHub: gitHub,
			Addr:   cfg.Address, CAFile: cfg.CAFile, Namespace: cfg.Namespace, Auth: auth,
			Mount: cfg.TransitMount, SigningKey: cfg.SigningKey, TokenRole: cfg.TokenRole,
			JWKSMaxAge: cfg.JWKSMaxAge, MaxTTL: longestToken, Timeout: cfg.Timeout,
			Now: s.Now, Log: s.Log,
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("opening Vault at %s (brevet bootstrap creates the login and the key %q): %w", cfg.Address, cfg.SigningKey, err)
	}
	s.background(ctx, s.minter.Run)
	var logKey *mint.LogKey
	if err = s.await(ctx, func() (err error) {
		logKey, err = s.minter.LogKey(ctx, s.cfg.LedgerName)
		return err
	}); err != nil {
		return fmt.Errorf("opening the key that signs checkpoints (run brevet bootstrap again to create it): %w", err)
	}
	s.logKey = notary{logKey, s.cfg.FormerLedgerKeys}
	return nil
}

// electionPatience is how long a start waits for Vault to have an active node.
const electionPatience = time.Minute

// await repeats a call to Vault while Vault answers that it has no active node.
func (s *service) await(ctx context.Context, do func() error) error {
	began := s.Now()
	for {
		err := do()
		waited := s.Now().Sub(began)
		if !mint.NoActiveNode(err) || waited > electionPatience {
			return err
		}
		s.Log.WarnContext(ctx, "waiting for vault to have an active node", "waited", waited.Round(time.Second), "at_most", electionPatience, "error", err)
		if !wait.For(ctx, time.Second) {
			return err
		}
	}
}

// openGitHub reads the GitHub Apps of the configuration.
func openGitHub(apps map[string]GitHubConfig) (map[string]mint.GitHubApp, error) {
	out := make(map[string]mint.GitHubApp, len(apps))
	for name, cfg := range apps {
		key := "github." + name
		address := cmp.Or(cfg.URL, "https://api.github.com")
		u, err := url.Parse(address)
		switch {
		case !scopes.IsApp(name):
			return nil, fmt.Errorf("github: %q cannot name an App: use lower-case letters, digits and inner dashes", name)
		case cfg.ClientID == "":
			return nil, fmt.Errorf("%s.client_id is missing", key)
		case err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
			return nil, fmt.Errorf("%s.url must be an https URL without user or query, such as https://github.acme.example/api/v3", key)
		}
		app := mint.GitHubApp{App: github.App{ClientID: cfg.ClientID, URL: u}}
		if cfg.CAFile != "" {
			text, err := os.ReadFile(cfg.CAFile)
			if err != nil {
				return nil, fmt.Errorf("%s.ca_file: %w", key, err)
			}
			app.Roots = x509.NewCertPool()
			if !app.Roots.AppendCertsFromPEM(text) {
				return nil, fmt.Errorf("%s.ca_file: no certificate in %s", key, cfg.CAFile)
			}
		}
		out[name] = app
	}
	return out, nil
}

// notary is the log's key, together with its former keys.
type notary struct {
	*mint.LogKey
	former []string
}

// Keys returns all keys that a checkpoint of the ledger may be signed with.
func (n notary) Keys(ctx context.Context) ([]string, error) {
	keys, err := n.LogKey.Keys(ctx)
	return slices.Concat(n.former, keys), err
}

func (s *service) vaultAuth(ctx context.Context) (mint.Auth, error) {
	switch cfg := s.cfg.Vault; {
	case cfg.AppRole != nil:
		roleID, err := readSecret("vault.approle.role_id_file", cfg.AppRole.RoleIDFile)
		return mint.Auth{AppRole: &mint.AppRole{
			Mount: cfg.AppRole.Mount, RoleID: roleID.Reveal(), SecretIDFile: cfg.AppRole.SecretIDFile,
		}}, err
	case cfg.JWT != nil && cfg.JWT.WorkloadAPI != "":
		source, err := workloadapi.NewJWTSource(ctx, workloadapi.WithClientOptions(WorkloadAPI(cfg.JWT.WorkloadAPI)...))
		if err != nil {
			return mint.Auth{}, fmt.Errorf("vault.jwt.workload_api: %w", err)
		}
		s.onClose(func() { _ = source.Close() })
		fresh := func(ctx context.Context) (string, error) { // for each login
			svid, err := source.FetchJWTSVID(ctx, jwtsvid.Params{Audience: cfg.JWT.Audience})
			if err != nil {
				return "", fmt.Errorf("fetching a JWT-SVID: %w", err)
			}
			return svid.Marshal(), nil
		}
		return mint.Auth{JWT: &mint.JWT{Mount: cfg.JWT.Mount, Role: cfg.JWT.Role, Token: fresh}}, nil
	case cfg.JWT != nil:
		return mint.Auth{JWT: &mint.JWT{Mount: cfg.JWT.Mount, Role: cfg.JWT.Role, TokenFile: cfg.JWT.TokenFile}}, nil
	default:
		return mint.Auth{TokenFile: cfg.TokenFile}, nil
	}
}

// openCatalogue opens the catalogue in force. If none was ever in force, it applies the catalogue in the folder.
func (s *service) openCatalogue(ctx context.Context) error {
	folder := s.cfg.Catalogue
	files, err := scopes.ReadFS(os.DirFS(folder))
	if err != nil {
		return fmt.Errorf("reading the catalogue in %s: %w", folder, err)
	}
	s.catalogue, err = broker.OpenCatalogue(ctx, s.book, files, s.Now(), s.Log)
	if err != nil {
		return fmt.Errorf("opening the catalogue (first loaded from %s): %w", folder, err)
	}
	for _, scope := range s.catalogue.Scopes() {
		if c := scope.Credential; c.Kind == scopes.KindGitHub && s.cfg.GitHub[c.App] == (GitHubConfig{}) {
			s.Log.WarnContext(ctx, "a scope names a GitHub App that the configuration does not have below github", "scope", scope.Name, "app", c.App)
		}
	}
	s.Log.InfoContext(ctx, "catalogue loaded", "digest", s.catalogue.Digest(), "scopes", len(s.catalogue.Scopes()))
	return nil
}

// electors are the configured people: how they authenticate, and what they may do.
type electors struct {
	verifier *people.Verifier
	policy   approval.Policy
	// bootstrap is the id of the bootstrap admin, if there is one.
	bootstrap string
}

// open turns the configuration into what the broker and the server need. If no people are configured, nobody can
// authenticate as a person.
func (p *PeopleConfig) open(now func() time.Time) (electors, error) {
	if p == nil {
		return electors{}, nil
	}
	var rules []people.Rule
	for _, r := range p.Roles {
		rules = append(rules, people.Rule{Role: people.Role(r.Role), Group: r.Group, Within: r.Within})
	}
	var e electors
	var errs [5]error
	e.policy.Rules, errs[0] = people.NewRules(rules)
	e.policy.Owners, errs[1] = people.NewOwners(p.Owners)
	var carrier *http.Client
	carrier, errs[2] = p.carrier()
	e.verifier, errs[3] = people.New(people.Config{
		Issuer: p.Issuer, ClientID: p.ClientID, Delegations: p.DelegationAudiences, GroupsClaim: p.GroupsClaim, OwnerClaim: p.OwnerClaim,
		HTTPClient: carrier, Now: now,
	})
	if p.BootstrapAdmin != "" {
		e.bootstrap, errs[4] = people.ParseID(p.Issuer, p.BootstrapAdmin)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return electors{}, fmt.Errorf("people: %w", err)
	}
	return e, nil
}

// openPeople opens the configured people, and logs whether the bootstrap admin is on.
func (s *service) openPeople(ctx context.Context) (err error) {
	if s.people, err = s.cfg.People.open(s.Now); err != nil || s.people.bootstrap == "" {
		return err
	}
	end, on, err := s.book.Bootstrap(ctx)
	switch {
	case err != nil:
		return err
	case on:
		s.Log.WarnContext(ctx, "bootstrap admin is on", "person", s.people.bootstrap, "until", end)
	default:
		s.Log.InfoContext(ctx, "bootstrap admin is off", "person", s.people.bootstrap, "since", end)
	}
	return nil
}

// carrier returns an HTTP client that trusts the configured roots and no others. If no roots are configured, it returns nil;
// callers then use the system's roots.
func (p *PeopleConfig) carrier() (*http.Client, error) {
	if p.CAFile == "" {
		return nil, nil //nolint:nilnil // the system's roots
	}
	roots, err := safehttp.ReadRoots(p.CAFile)
	if err != nil {
		return nil, fmt.Errorf("ca_file: %w", err)
	}
	return &http.Client{Transport: quiet.New(&http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}})}, nil
}

// openBroker makes the broker, and starts its sweeper and the task that follows the catalogue.
func (s *service) openBroker(ctx context.Context) error {
	site, err := relyingParty(s.cfg.Console)
	if err != nil {
		return err
	}
	s.core, err = broker.New(broker.Config{
		Ledger: s.watch.Ledger(s.book), Live: s.watch.LiveCredentials(s.book), Feed: s.book, Usage: s.book, Stats: s.book, Tokens: s.book,
		Approvals: s.book, Passkeys: s.book, RelyingParty: site, DPoPReplayCache: s.book,
		Minter: s.watch.Minter(s.minter), Signer: s.minter, ApprovalPolicy: s.people.policy, Catalogue: func() *scopes.Catalogue { return s.catalogue },
		Catalogues: s.book, SecondAdmin: s.cfg.CatalogueSecondAdmin, Prepare: s.Prepare, Issuer: s.cfg.Issuer, Now: s.Now, Log: s.Log, OnUnrevoked: s.gauges.Unrevoked,
	})
	if err != nil {
		return err
	}
	s.onClose(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := s.core.Close(ctx); err != nil {
			s.Log.ErrorContext(ctx, "refusals not recorded", "error", err)
		}
	})
	warnUnsignable(ctx, s.Log, site, s.catalogue)
	warnUnowned(ctx, s.Log, s.cfg.People, s.catalogue)
	s.background(ctx, func(ctx context.Context) error { return s.core.Sweep(ctx, s.book) })
	s.background(ctx, s.core.FollowCatalogue)
	s.background(ctx, s.core.RecordCounts)
	return nil
}

// relyingParty returns the site that passkeys are for: the console's host and its only origin. Without a console it returns
// the zero value.
func relyingParty(c *ConsoleConfig) (passkey.RelyingParty, error) {
	if c == nil {
		return passkey.RelyingParty{}, nil
	}
	u, err := pages.ParseURL(c.URL)
	if err != nil {
		return passkey.RelyingParty{}, fmt.Errorf("console: %w", err)
	}
	origin := url.URL{Scheme: u.Scheme, Host: u.Host}
	return passkey.RelyingParty{ID: u.Hostname(), Origins: []string{origin.String()}}, nil
}

// warnUnsignable logs the scopes that nobody can approve, because they need a passkey and there is no console to sign in.
func warnUnsignable(ctx context.Context, log *slog.Logger, site passkey.RelyingParty, catalogue *scopes.Catalogue) {
	if site.Configured() {
		return
	}
	for _, s := range catalogue.Scopes() {
		if s.Approval != nil && s.Approval.Passkey == scopes.PasskeyRequired {
			log.WarnContext(ctx, "scope requires passkeys, but no console is configured", "scope", s.Name)
		}
	}
}

// warnUnowned logs that no sandbox has an owner, if people approve anything: then they may approve what they ask for themselves.
func warnUnowned(ctx context.Context, log *slog.Logger, cfg *PeopleConfig, catalogue *scopes.Catalogue) {
	approved := func(s *scopes.Scope) bool { return s.Approval != nil }
	if cfg != nil && len(cfg.Owners) == 0 && slices.ContainsFunc(catalogue.Scopes(), approved) {
		log.WarnContext(ctx, "people.owners is empty: people may approve requests of sandboxes that they run")
	}
}

func (s *service) openAttestor(ctx context.Context) error {
	var specs []attest.BundleSpec
	var domains []spiffeid.TrustDomain
	for _, d := range s.cfg.TrustDomains {
		name, err := spiffeid.TrustDomainFromString(d.Name)
		if err != nil {
			return fmt.Errorf("trust_domains: %q: %w", d.Name, err)
		}
		spec := attest.BundleSpec{TrustDomain: name, WorkloadAPI: d.WorkloadAPI, File: d.BundleFile}
		if e := d.BundleEndpoint; e != nil {
			spec.Endpoint = &attest.EndpointSpec{URL: e.URL, Profile: e.Profile}
			if e.Profile != attest.ProfileHTTPSSPIFFE {
				spec.Endpoint.CAFile = e.TrustFile
			} else {
				spec.Endpoint.BundleFile = e.TrustFile
				if spec.Endpoint.SPIFFEID, err = attest.ParseID(e.SPIFFEID); err != nil {
					return fmt.Errorf("trust_domains.%s.bundle_endpoint: spiffe_id: %w", d.Name, err)
				}
			}
		}
		specs, domains = append(specs, spec), append(domains, name)
	}
	var err error
	if s.bundles, err = attest.Open(ctx, specs, s.Log, s.Now); err != nil {
		return fmt.Errorf("opening the trust domains' bundles: %w", err)
	}
	s.onClose(func() { _ = s.bundles.Close() })
	s.attestor, err = attest.New(attest.Config{
		Bundles: s.bundles, TrustDomains: domains, Audience: s.cfg.Issuer, Now: s.Now, OnRefusal: httpapi.RecordHandshakes(s.core, s.Log),
	})
	return err
}

// openAPI opens the server's certificate, and makes the server.
func (s *service) openAPI(ctx context.Context) (err error) {
	if err = httpapi.MeterBundles(s.registry, s.bundles.Status, s.Now); err != nil {
		return err
	}
	if s.served, err = s.openCertificate(ctx, s.cfg.TLS); err != nil {
		return err
	}
	s.background(ctx, func(ctx context.Context) error { return s.served.watch(ctx, s.Log, watchCertificate) })
	if err = httpapi.MeterCertificate(s.registry, s.served.expires); err != nil {
		return err
	}
	auditors, admins, orchestrators, rolesErr := s.cfg.roles()
	resourceServers, err := s.cfg.resourceServers()
	proxies, proxiesErr := clientip.ParseProxies(s.cfg.TrustedProxies)
	if err = errors.Join(rolesErr, proxiesErr, err); err != nil {
		return err
	}
	cursorKey, err := s.cursorKey()
	if err != nil {
		return err
	}
	hosts := s.cfg.Hosts
	if u, err := url.Parse(s.cfg.Issuer); err == nil {
		hosts = append(hosts, u.Host)
	}
	var console string
	if s.cfg.Console != nil {
		console = s.cfg.Console.URL
	}
	s.api, err = httpapi.New(httpapi.Config{
		ConsoleURL: console,
		Broker:     s.core, Attestor: s.attestor, People: s.people.verifier, Keys: s.minter, InclusionProofs: s.book, LogKeys: s.logKey,
		Hosts: hosts, TrustedProxies: proxies, JWKSMaxAge: s.cfg.Vault.JWKSMaxAge, CursorKey: cursorKey,
		Auditors: auditors, Admins: admins, Orchestrators: orchestrators,
		ResourceServers: resourceServers, BootstrapAdmin: s.people.bootstrap, Bootstrap: s.book,
		ReadConns: int(s.cfg.Postgres.MaxConnections), AuditConns: int(s.cfg.Postgres.AuditConnections),
		Ready: []httpapi.Check{
			{Name: "ledger", Probe: s.book.Ready},
			{Name: "ledger_disk", Probe: s.book.HasRoom},
			{Name: "vault", Probe: s.minter.Ready},
			{Name: "bundles", Probe: s.anyBundle},
			{Name: "certificate", Probe: s.served.ready},
		},
		Log: s.Log, Registry: s.registry, Now: s.Now,
	})
	return err
}

// cursorKey returns the key that the replicas share: the one of the file, or else the one in the database.
func (s *service) cursorKey() ([]byte, error) {
	key, err := readSecret("cursor_key_file", s.cfg.CursorKeyFile)
	switch {
	case err != nil:
		return nil, err
	case s.cfg.CursorKeyFile == "":
		return s.book.CursorKey(), nil
	case len(key.Reveal()) < httpapi.MinCursorKey:
		return nil, fmt.Errorf("cursor_key_file: the key has %d bytes: use at least %d random ones", len(key.Reveal()), httpapi.MinCursorKey)
	}
	return []byte(key.Reveal()), nil
}

// anyBundle returns an error unless at least one trust domain has a bundle. The outage of another trust domain must not take
// this replica away from everyone else.
func (s *service) anyBundle(context.Context) error {
	if !slices.ContainsFunc(s.bundles.Status(), func(b attest.BundleStatus) bool { return b.Available }) {
		return errors.New("no trust domain has a bundle")
	}
	return nil
}

func (s *service) openConsole() (*pages.Console, error) {
	carrier, err := s.cfg.People.carrier()
	if err != nil {
		return nil, fmt.Errorf("people: %w", err)
	}
	key, err := s.cursorKey()
	if err != nil {
		return nil, err
	}
	cfg := pages.Config{
		Broker: s.core, People: s.people.verifier, InclusionProofs: s.book, LogKeys: s.logKey, Sessions: s.book, Past: s.book, Ledger: s.book,
		Vault: s.minter, Key: key, Voted: s.api.CountVote,
		SessionIdle: s.cfg.Console.SessionIdle, SessionLength: s.cfg.Console.SessionLength, LoginMaxAge: s.cfg.Console.LoginMaxAge,
		ClientID: s.cfg.People.ClientID, HTTPClient: carrier, URL: s.cfg.Console.URL, Log: s.Log, Now: s.Now,
		Bundles: func() []pages.Bundle {
			var all []pages.Bundle
			for _, of := range s.bundles.Status() {
				b := pages.Bundle{TrustDomain: of.TrustDomain.Name(), Problem: of.Err}
				if of.Available {
					b.Fetched = of.Fetched
				}
				all = append(all, b)
			}
			return all
		},
	}
	if cfg.TrustedProxies, err = clientip.ParseProxies(s.cfg.TrustedProxies); err != nil {
		return nil, err
	}
	if cfg.ClientSecret, err = readSecret("console.client_secret_file", s.cfg.Console.ClientSecretFile); err != nil {
		return nil, err
	}
	for _, domain := range s.cfg.TrustDomains {
		cfg.TrustDomains = append(cfg.TrustDomains, domain.Name)
	}
	for _, p := range httpapi.ProblemTexts() {
		cfg.Problems = append(cfg.Problems, pages.Problem(p))
	}
	return pages.New(cfg)
}
