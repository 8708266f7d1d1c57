package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/broker"
	pages "github.com/brevet-dev/brevet/internal/console"
	"github.com/brevet-dev/brevet/internal/httpapi"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/mint"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
)

// drainTimeout is how long requests in progress may take to finish after a stop.
const drainTimeout = 25 * time.Second

// ServeCmd is `brevet serve`.
type ServeCmd struct {
	Config string `help:"Configuration file (docs/configuration.md)." default:"brevet.yaml" type:"path" env:"BREVET_CONFIG"`
}

// Run serves until ctx ends, and then for the lame-duck time.
func (c *ServeCmd) Run(ctx context.Context, con *console) error {
	if err := closed(); err != nil {
		return err
	}
	cfg, err := loadConfig(c.Config)
	if err != nil {
		return err
	}
	log, err := newLogger(cfg.Log, con.err)
	if err != nil {
		return err
	}
	return serve(ctx, cfg, log, func(string) {})
}

// service is a running broker and everything that stops with it.
type service struct {
	log     *slog.Logger
	api     atomic.Pointer[httpapi.Server] // set once it is served
	closers []func()
	tasks   *errgroup.Group
}

// ballast makes the garbage collector run less often. It is for processes that serve many calls with few live objects, in
// which the collector would run all the time and use a tenth of the processor or more. The collector counts the ballast
// until the returned function is called. Nothing touches the ballast, so it takes no physical memory.
func ballast() (drop func()) {
	spare := make([]byte, 56<<20)
	return func() { runtime.KeepAlive(spare) }
}

// serve runs the broker until asked ends, and then for cfg.LameDuck. It calls ready with the address on which it listens.
func serve(asked context.Context, cfg Config, log *slog.Logger, ready func(address string)) error {
	defer ballast()()
	ctx, cancel := context.WithCancel(context.WithoutCancel(asked))
	tasks, ctx := errgroup.WithContext(ctx)
	s := &service{log: log, tasks: tasks}
	defer s.close()
	defer context.AfterFunc(asked, func() {
		s.leave(ctx, cfg.LameDuck)
		cancel()
	})()
	startErr := s.start(ctx, cfg, ready)
	if startErr != nil {
		cancel()
	}
	defer cancel()
	return errors.Join(startErr, tasks.Wait())
}

// leave tells load balancers that this replica stops, and returns after they have had the time to notice.
func (s *service) leave(ctx context.Context, lameDuck time.Duration) {
	api := s.api.Load()
	if api == nil || lameDuck == 0 {
		return
	}
	s.log.InfoContext(ctx, "shutting down", "lame_duck", lameDuck)
	api.Leave()
	select {
	case <-time.After(lameDuck):
	case <-ctx.Done():
	}
}

func (s *service) start(ctx context.Context, cfg Config, ready func(string)) error {
	shutdown, err := startTraces(ctx, cfg.TracesEndpoint)
	if err != nil {
		return err
	}
	s.onClose(shutdown)
	srv, tlsConfig, shown, err := s.build(ctx, cfg)
	if err != nil {
		return err
	}
	if err := s.tellOthers(ctx, cfg); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("listening on %s: %w", cfg.Listen, err)
	}
	api := srv.HTTP(tlsConfig)
	s.run(ctx, api, func() error { return api.ServeTLS(listener, "", "") })
	s.api.Store(srv)
	s.tasks.Go(func() error { return ended(ctx, srv.CloseUntrusted(ctx)) })
	if err := s.serveConsole(ctx, cfg, shown); err != nil {
		return err
	}
	if cfg.MetricsListen != "" {
		metrics, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.MetricsListen)
		if err != nil {
			return fmt.Errorf("listening on %s for metrics: %w", cfg.MetricsListen, err)
		}
		plain := &http.Server{Handler: srv.Metrics(), ReadHeaderTimeout: 5 * time.Second}
		s.run(ctx, plain, func() error { return plain.Serve(metrics) })
	}
	s.log.InfoContext(ctx, "serving", "address", listener.Addr().String(), "issuer", cfg.Issuer)
	ready(listener.Addr().String())
	return nil
}

// parts are the components of a broker. Each is opened with only what it needs.
type parts struct {
	watch     *httpapi.Stopwatch
	gauges    *httpapi.Gauges
	book      *ledger.Ledger
	minter    *mint.Minter
	logKey    notary
	catalogue *scopes.Catalogue
	voters    electors
}

func (s *service) open(ctx context.Context, cfg Config, registry *prometheus.Registry) (p parts, err error) {
	if p.watch, p.gauges, err = openMeters(registry); err != nil {
		return p, err
	}
	if p.book, err = s.openLedger(ctx, cfg.Postgres, p.gauges); err != nil {
		return p, err
	}
	if p.minter, p.logKey, err = s.openMinter(ctx, cfg); err != nil {
		return p, err
	}
	if err = s.seal(ctx, cfg, p.book, p.logKey, p.gauges); err != nil {
		return p, err
	}
	if p.catalogue, err = s.openCatalogue(ctx, cfg.Catalogue, p.book); err != nil {
		return p, err
	}
	p.voters, err = s.openElectors(ctx, cfg.People, p.book)
	return p, err
}

// openBroker makes the broker, and starts its sweeper and the task that follows the catalogue.
func (s *service) openBroker(ctx context.Context, cfg Config, p parts) (*broker.Broker, error) {
	site, err := relyingParty(cfg.Console)
	if err != nil {
		return nil, err
	}
	core, err := broker.New(broker.Config{
		Ledger: p.watch.Ledger(p.book), Live: p.watch.LiveCredentials(p.book), Feed: p.book, Usage: p.book, Stats: p.book, Tokens: p.book,
		Approvals: p.book, Passkeys: p.book, RelyingParty: site, DPoPReplayCache: p.book,
		Minter: p.watch.Minter(p.minter), Signer: p.minter, ApprovalPolicy: p.voters.policy, Catalogue: func() *scopes.Catalogue { return p.catalogue },
		Catalogues: p.book, SecondAdmin: cfg.CatalogueSecondAdmin, Issuer: cfg.Issuer, Now: time.Now, Log: s.log, OnUnrevoked: p.gauges.Unrevoked,
	})
	if err != nil {
		return nil, err
	}
	s.onClose(func() { s.closeBroker(ctx, core) })
	warnUnsignable(ctx, s.log, site, p.catalogue)
	s.tasks.Go(func() error { return ended(ctx, core.Sweep(ctx, p.book)) })
	s.tasks.Go(func() error { return ended(ctx, core.FollowCatalogue(ctx)) })
	return core, nil
}

// build connects the packages. shown is the configuration of the console.
func (s *service) build(ctx context.Context, cfg Config) (_ *httpapi.Server, _ *tls.Config, shown pages.Config, err error) {
	registry := prometheus.NewRegistry()
	p, err := s.open(ctx, cfg, registry)
	if err != nil {
		return nil, nil, shown, err
	}
	core, err := s.openBroker(ctx, cfg, p)
	if err != nil {
		return nil, nil, shown, err
	}
	bundles, attestor, err := s.openAttestor(ctx, cfg, core)
	if err != nil {
		return nil, nil, shown, err
	}
	if err := httpapi.MeterBundles(registry, bundles.Status, time.Now); err != nil {
		return nil, nil, shown, err
	}
	served, err := s.openCertificate(ctx, cfg.TLS)
	if err != nil {
		return nil, nil, shown, err
	}
	s.tasks.Go(func() error { return ended(ctx, served.watch(ctx, s.log, watchCertificate)) })
	if err := httpapi.MeterCertificate(registry, served.expires); err != nil {
		return nil, nil, shown, err
	}
	srv, err := httpapi.New(httpapi.Config{
		Broker: core, Attestor: attestor, People: p.voters.verifier, Keys: p.minter, InclusionProofs: p.book, LogKeys: p.logKey,
		Hosts: hosts(cfg), JWKSMaxAge: cfg.Vault.JWKSMaxAge, CursorKey: p.book.CursorKey(),
		Auditors:        roles(cfg, func(d TrustDomainConfig) []WorkloadRoleConfig { return d.Auditors }),
		Admins:          roles(cfg, func(d TrustDomainConfig) []WorkloadRoleConfig { return d.Admins }),
		Orchestrators:   roles(cfg, func(d TrustDomainConfig) []WorkloadRoleConfig { return d.Orchestrators }),
		ResourceServers: resourceServers(cfg), BootstrapAdmin: p.voters.bootstrap, Bootstrap: p.book,
		Ready: []httpapi.Check{
			{Name: "ledger", Probe: p.book.Ready},
			{Name: "vault", Probe: p.minter.Ready},
			{Name: "bundles", Probe: anyBundle(bundles)},
			{Name: "certificate", Probe: served.ready},
		},
		Log: s.log, Registry: registry, Now: time.Now,
	})
	if err != nil {
		return nil, nil, shown, err
	}
	shown = pages.Config{
		Broker: core, People: p.voters.verifier, InclusionProofs: p.book, LogKeys: p.logKey, Sessions: p.book, Past: p.book, Ledger: p.book, Vault: p.minter,
		Bundles: bundlesFor(bundles), Key: p.book.CursorKey(), Voted: srv.CountVote,
	}
	return srv, attestor.TLSConfig(served.get), shown, nil
}

func (s *service) closeBroker(ctx context.Context, core *broker.Broker) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := core.Close(ctx); err != nil {
		s.log.ErrorContext(ctx, "refusals not recorded", "error", err)
	}
}

// run serves until ctx ends, and then lets requests in progress finish.
func (s *service) run(ctx context.Context, srv *http.Server, serve func() error) {
	s.tasks.Go(func() error {
		if err := serve(); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serving: %w", err)
		}
		return nil
	})
	s.tasks.Go(func() error {
		<-ctx.Done()
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		return srv.Shutdown(drain)
	})
}

func (s *service) onClose(f func()) { s.closers = append(s.closers, f) }

func (s *service) close() {
	for i := len(s.closers) - 1; i >= 0; i-- {
		s.closers[i]()
	}
}

// ended returns nil if ctx was canceled, because that is how a service is asked to stop.
func ended(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil
	}
	return err
}

func hosts(cfg Config) []string {
	all := cfg.Hosts
	if u, err := url.Parse(cfg.Issuer); err == nil {
		all = append(all, u.Host)
	}
	return all
}
