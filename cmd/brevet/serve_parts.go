package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/httpapi"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/mint"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

func openMeters(registry *prometheus.Registry) (*httpapi.Stopwatch, *httpapi.Gauges, error) {
	watch, watchErr := httpapi.NewStopwatch(registry, time.Now)
	gauges, err := httpapi.NewGauges(registry, time.Now)
	return watch, gauges, errors.Join(watchErr, err,
		registry.Register(collectors.NewGoCollector()), registry.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})))
}

func (s *service) openAttestor(ctx context.Context, cfg Config, core *broker.Broker) (*attest.Sources, *attest.Attestor, error) {
	specs, domains, err := bundleSpecs(cfg.TrustDomains)
	if err != nil {
		return nil, nil, err
	}
	bundles, err := attest.Open(ctx, specs, s.log, time.Now)
	if err != nil {
		return nil, nil, fmt.Errorf("opening the trust domains' bundles: %w", err)
	}
	s.onClose(func() { _ = bundles.Close() })
	attestor, err := attest.New(attest.Config{
		Bundles: bundles, TrustDomains: domains, Audience: cfg.Issuer, Now: time.Now,
		OnRefusal: httpapi.RecordHandshakes(core, s.log),
	})
	return bundles, attestor, err
}

// anyBundle returns a readiness check that passes while at least one trust domain has a bundle. The outage of another trust
// domain must not take this replica away from everyone else.
func anyBundle(bundles *attest.Sources) func(context.Context) error {
	return func(context.Context) error {
		for _, b := range bundles.Status() {
			if b.Available {
				return nil
			}
		}
		return errors.New("no trust domain has a bundle")
	}
}

func (s *service) openLedger(ctx context.Context, cfg PostgresConfig, gauges *httpapi.Gauges) (*ledger.Ledger, error) {
	databaseURL, err := readSecretFile(cfg.URLFile)
	if err != nil {
		return nil, fmt.Errorf("postgres.url_file: %w", err)
	}
	settings := ledger.Config{
		URL: databaseURL, MaxConns: cfg.MaxConnections, AuditConns: cfg.AuditConnections, Log: s.log, Tracer: queryTracer(),
		OnSealed: gauges.Sealed, OnRoom: gauges.Room, Now: time.Now,
	}
	if cfg.AuditURLFile != "" {
		if settings.AuditURL, err = readSecretFile(cfg.AuditURLFile); err != nil {
			return nil, fmt.Errorf("postgres.audit_url_file: %w", err)
		}
	}
	book, err := ledger.Open(ctx, settings)
	if err != nil {
		return nil, fmt.Errorf("opening the ledger with the URL in %s (postgres.url_file): %w", cfg.URLFile, err)
	}
	s.onClose(book.Close)
	return book, nil
}

// openCatalogue returns the catalogue in force. If none was ever in force, that is the one in the folder.
func (s *service) openCatalogue(ctx context.Context, folder string, book *ledger.Ledger) (*scopes.Catalogue, error) {
	files, err := scopes.ReadFS(os.DirFS(folder))
	if err != nil {
		return nil, fmt.Errorf("reading the catalogue in %s: %w", folder, err)
	}
	catalogue, err := broker.OpenCatalogue(ctx, book, files, time.Now(), s.log)
	if err != nil {
		return nil, fmt.Errorf("opening the catalogue (first loaded from %s): %w", folder, err)
	}
	s.log.InfoContext(ctx, "catalogue loaded", "digest", catalogue.Digest(), "scopes", len(catalogue.Scopes()))
	return catalogue, nil
}

// longestToken is the longest TTL that any catalogue can give. Another catalogue may be in force tomorrow.
const longestToken = 24 * time.Hour

// openMinter opens Vault, and the key in Vault that signs the ledger's checkpoints.
func (s *service) openMinter(ctx context.Context, all Config) (*mint.Minter, notary, error) {
	cfg := all.Vault
	auth, err := s.vaultAuth(ctx, cfg)
	if err != nil {
		return nil, notary{}, err
	}
	minter, err := mint.Open(ctx, mint.Config{
		Addr: cfg.Address, CAFile: cfg.CAFile, Namespace: cfg.Namespace, Auth: auth,
		Mount: cfg.TransitMount, SigningKey: cfg.SigningKey, TokenRole: cfg.TokenRole,
		JWKSMaxAge: cfg.JWKSMaxAge, MaxTTL: longestToken, Timeout: cfg.Timeout,
		Now: time.Now, Log: s.log,
	})
	if err != nil {
		return nil, notary{}, fmt.Errorf("opening Vault at %s (brevet bootstrap creates the login and the key %q): %w", cfg.Address, cfg.SigningKey, err)
	}
	s.tasks.Go(func() error { return ended(ctx, minter.Run(ctx)) })
	logKey, err := minter.LogKey(ctx, all.LedgerName)
	if err != nil {
		return nil, notary{}, fmt.Errorf("opening the key that signs checkpoints (run brevet bootstrap again to create it): %w", err)
	}
	return minter, notary{logKey, all.FormerLedgerKeys}, nil
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

func (s *service) vaultAuth(ctx context.Context, cfg VaultConfig) (mint.Auth, error) {
	switch {
	case cfg.AppRole != nil:
		roleID, err := readSecretFile(cfg.AppRole.RoleIDFile)
		if err != nil {
			return mint.Auth{}, fmt.Errorf("vault.approle.role_id_file: %w", err)
		}
		return mint.Auth{AppRole: &mint.AppRole{
			Mount: cfg.AppRole.Mount, RoleID: roleID, SecretIDFile: cfg.AppRole.SecretIDFile,
		}}, nil
	case cfg.JWT != nil && cfg.JWT.WorkloadAPI != "":
		source, err := workloadapi.NewJWTSource(ctx, workloadapi.WithClientOptions(insistent(cfg.JWT.WorkloadAPI)...))
		if err != nil {
			return mint.Auth{}, fmt.Errorf("vault.jwt.workload_api: %w", err)
		}
		s.onClose(func() { _ = source.Close() })
		return mint.Auth{JWT: &mint.JWT{Mount: cfg.JWT.Mount, Role: cfg.JWT.Role, Token: jwtSVID(source, cfg.JWT.Audience)}}, nil
	case cfg.JWT != nil:
		return mint.Auth{JWT: &mint.JWT{Mount: cfg.JWT.Mount, Role: cfg.JWT.Role, TokenFile: cfg.JWT.TokenFile}}, nil
	default:
		return mint.Auth{TokenFile: cfg.TokenFile}, nil
	}
}

// jwtSVID returns a function that fetches a fresh JWT-SVID for each login to Vault.
func jwtSVID(source *workloadapi.JWTSource, audience string) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		svid, err := source.FetchJWTSVID(ctx, jwtsvid.Params{Audience: audience})
		if err != nil {
			return "", fmt.Errorf("fetching a JWT-SVID: %w", err)
		}
		return svid.Marshal(), nil
	}
}
