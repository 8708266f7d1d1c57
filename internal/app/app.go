// Package app is a running broker: its configuration, the checks of it, and the wiring of the other packages.
//
// It must never read the environment or the command line, and never begin to serve with a configuration that it has not
// checked.
package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/httpapi"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/mint"
	"github.com/brevet-dev/brevet/internal/quiet"
	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"
)

const (
	// drainTimeout is how long requests in progress may take to finish after a stop.
	drainTimeout = 25 * time.Second
	// maxConsoleConnections limits connections to the console, so that file descriptors are left for everything else.
	maxConsoleConnections = 2048
)

// Process is what a broker gets from the process that runs it.
type Process struct {
	Log     *slog.Logger
	Now     func() time.Time
	Version string // of the binary, for traces
	// Prepare sets up Vault for a catalogue that an admin applies. Nil means that an operator does this.
	Prepare func(context.Context, *scopes.Catalogue) error
}

// service is a running broker and everything that stops with it.
type service struct {
	Process
	cfg     Config
	tasks   *errgroup.Group
	closers []func()
	serving atomic.Pointer[httpapi.Server] // nil until it serves

	// The parts, in the order in which start opens them.
	registry  *prometheus.Registry
	watch     *httpapi.Stopwatch
	gauges    *httpapi.Gauges
	book      *ledger.Ledger
	minter    *mint.Minter
	logKey    notary
	catalogue *scopes.Catalogue
	people    electors
	core      *broker.Broker
	bundles   *attest.Sources
	attestor  *attest.Attestor
	served    *servedCertificate
	api       *httpapi.Server
}

// Serve runs the broker until asked ends, and then keeps serving for cfg.LameDuck. It calls ready with the address on which it
// listens.
func Serve(asked context.Context, cfg Config, in Process, ready func(address string)) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(asked))
	tasks, ctx := errgroup.WithContext(ctx)
	s := &service{Process: in, cfg: cfg, tasks: tasks}
	defer s.close()
	defer context.AfterFunc(asked, func() {
		defer cancel()
		if api := s.serving.Load(); api != nil && cfg.LameDuck > 0 {
			s.Log.InfoContext(ctx, "shutting down", "lame_duck", cfg.LameDuck)
			api.Leave()
			wait.For(ctx, cfg.LameDuck) // load balancers notice
		}
	})()
	startErr := s.start(ctx, ready)
	if startErr != nil {
		cancel()
	}
	defer cancel()
	return errors.Join(startErr, tasks.Wait())
}

func (s *service) start(ctx context.Context, ready func(address string)) error {
	for _, open := range []func(context.Context) error{
		s.openTraces, s.openMeters, s.openLedger, s.openVault, s.sealLedger, s.openCatalogue, s.openPeople, s.openBroker, s.openAttestor,
		s.openAPI, s.openWebhooks,
	} {
		if err := open(ctx); err != nil {
			return err
		}
	}
	listener, err := listen(ctx, s.cfg.Listen, "")
	if err != nil {
		return err
	}
	api := s.api.HTTP(s.attestor.TLSConfig(s.served.get))
	s.run(ctx, api, func() error { return api.ServeTLS(listener, "", "") })
	s.serving.Store(s.api)
	s.background(ctx, s.api.CloseUntrusted)
	if s.cfg.Console != nil {
		if err := s.serveConsole(ctx); err != nil {
			return err
		}
	}
	if s.cfg.MetricsListen != "" {
		listener, err := listen(ctx, s.cfg.MetricsListen, " for metrics")
		if err != nil {
			return err
		}
		metrics := &http.Server{Handler: s.api.Metrics(), ReadHeaderTimeout: 5 * time.Second, ErrorLog: quiet.ServerLog(s.Log)}
		s.run(ctx, metrics, func() error { return metrics.Serve(listener) })
	}
	s.Log.InfoContext(ctx, "serving", "address", listener.Addr().String(), "issuer", s.cfg.Issuer)
	ready(listener.Addr().String())
	return nil
}

func (s *service) serveConsole(ctx context.Context) error {
	web, err := s.openConsole()
	if err != nil {
		return err
	}
	cfg := s.cfg.Console
	var secured *tls.Config
	if cfg.CertFile != "" {
		certificate, err := s.openCertificate(ctx, TLSConfig{CertFile: cfg.CertFile, KeyFile: cfg.KeyFile})
		if err != nil {
			return fmt.Errorf("console: %w", err)
		}
		secured = &tls.Config{GetCertificate: certificate.get, MinVersion: tls.VersionTLS13}
	}
	listener, err := listen(ctx, cfg.Listen, " for the console")
	if err != nil {
		return err
	}
	listener = netutil.LimitListener(listener, maxConsoleConnections)
	srv := web.HTTP(secured)
	s.run(ctx, srv, func() error {
		if secured == nil {
			return srv.Serve(listener)
		}
		return srv.ServeTLS(listener, "", "")
	})
	s.Log.InfoContext(ctx, "serving the console", "address", listener.Addr().String(), "url", cfg.URL)
	return nil
}

func listen(ctx context.Context, address, purpose string) (net.Listener, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening on %s%s: %w", address, purpose, err)
	}
	return listener, nil
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

// background runs a task until ctx ends. Its error stops the broker, unless ctx was canceled, which is how a broker is asked
// to stop.
func (s *service) background(ctx context.Context, task func(context.Context) error) {
	s.tasks.Go(func() error {
		if err := task(ctx); !errors.Is(ctx.Err(), context.Canceled) {
			return err
		}
		return nil
	})
}

func (s *service) onClose(f func()) { s.closers = append(s.closers, f) }

func (s *service) close() {
	for _, f := range slices.Backward(s.closers) {
		f()
	}
}
