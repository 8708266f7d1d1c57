package faults_test

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/github"
	"github.com/brevet-dev/brevet/internal/httpapi"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/mint"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// childVariable holds the settings of a replica that runs as a separate process, so that it can be killed.
const childVariable = "BREVET_FAULTS_REPLICA"

// settings holds everything that a replica needs to start.
type settings struct {
	Fault        fault
	Sweeps       bool
	Database     string
	VaultAddr    string
	RoleID       string
	SecretIDFile string
	SigningKey   string
	TokenRole    string
	Catalogue    []scopes.File
	Bundle       []byte // SPIFFE bundle of the trust domain
	TrustDomain  string
	Chain, Key   []byte // PEM, of the replica's own SVID
	Admin        string // SPIFFE ID that may revoke
	// GitHubURL and GitHubRoots lead to the double of GitHub, and GitHubClient is the client id of its App.
	GitHubURL, GitHubClient string
	GitHubRoots             []byte // PEM
}

// serveChild is the main function of the process: it prints its address, and serves until its standard input ends.
func serveChild(text string) error {
	var s settings
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return fmt.Errorf("reading the settings: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	srv, core, elect, err := s.build(ctx, log)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.ServeTLS(listener, "", "") }()
	swept := make(chan struct{})
	go func() {
		defer close(swept)
		if s.Sweeps {
			_ = core.Sweep(ctx, elect)
		}
	}()
	fmt.Println(listener.Addr())
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		_ = srv.Close()
	}()
	err = <-ended
	cancel()
	<-swept
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// build does what `brevet serve` does, with the fault in between.
func (s *settings) build(ctx context.Context, log *slog.Logger) (*http.Server, *broker.Broker, broker.Election, error) {
	catalogue, err := scopes.Load(s.Catalogue)
	if err != nil {
		return nil, nil, nil, err
	}
	book, err := ledger.Open(ctx, ledger.Config{URL: s.Database, Log: log, Now: time.Now})
	if err != nil {
		return nil, nil, nil, err
	}
	f := &s.Fault
	hub, err := url.Parse(s.GitHubURL)
	if err != nil {
		return nil, nil, nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.GitHubRoots)
	minter, err := mint.Open(ctx, mint.Config{
		Addr: s.VaultAddr, Mount: "transit", SigningKey: s.SigningKey, TokenRole: s.TokenRole, MaxTTL: time.Hour,
		Now: time.Now, Log: log, Transport: f.transport,
		GitHub: map[string]mint.GitHubApp{testkit.GitHubApp: {App: github.App{ClientID: s.GitHubClient, URL: hub}, Roots: roots}},
		Auth:   mint.Auth{AppRole: &mint.AppRole{RoleID: s.RoleID, SecretIDFile: s.SecretIDFile}},
	})
	if err != nil {
		return nil, nil, nil, err
	}
	go func() { _ = minter.Run(ctx) }()
	logKey, err := minter.LogKey(ctx, testkit.LogName)
	if err != nil {
		return nil, nil, nil, err
	}
	go func() { _ = book.Seal(ctx, logKey) }()
	voters, err := approvalPolicy()
	if err != nil {
		return nil, nil, nil, err
	}
	core, err := broker.New(broker.Config{
		ApprovalPolicy: voters,
		Ledger:         faultyLedger{book, f}, Live: book, Feed: book, Usage: book, Stats: book, Tokens: book, Approvals: book, Passkeys: book,
		DPoPReplayCache: book, Catalogues: book, Minter: faultyMinter{minter, f}, Signer: minter,
		Catalogue: func() *scopes.Catalogue { return catalogue }, Issuer: testkit.Audience, Now: time.Now, Log: log,
	})
	if err != nil {
		return nil, nil, nil, err
	}
	srv, err := s.server(core, keys{minter, logKey}, book, log)
	return srv, core, book, err
}

// keys implements both signers with Vault.
type keys struct {
	*mint.Minter
	log *mint.LogKey
}

func (s *settings) server(core *broker.Broker, minter keys, book *ledger.Ledger, log *slog.Logger) (*http.Server, error) {
	domain, err := spiffeid.TrustDomainFromString(s.TrustDomain)
	if err != nil {
		return nil, err
	}
	bundle, err := spiffebundle.Parse(domain, s.Bundle)
	if err != nil {
		return nil, err
	}
	svid, err := x509svid.Parse(s.Chain, s.Key)
	if err != nil {
		return nil, err
	}
	attestor, err := attest.New(attest.Config{
		Bundles: bundle, TrustDomains: []spiffeid.TrustDomain{domain}, Audience: testkit.Audience, Now: time.Now,
		OnRefusal: httpapi.RecordHandshakes(core, log),
	})
	if err != nil {
		return nil, err
	}
	api, err := httpapi.New(httpapi.Config{
		Broker: core, Attestor: attestor, Keys: minter, InclusionProofs: book, LogKeys: minter.log, Hosts: []string{"127.0.0.1"}, CursorKey: book.CursorKey(),
		Log: log, Registry: prometheus.NewRegistry(), Now: time.Now,
		Admins: []httpapi.Role{{ID: spiffeid.RequireFromString(s.Admin), TrustDomains: []spiffeid.TrustDomain{domain}}},
		Ready:  []httpapi.Check{{Name: "ledger", Probe: book.Ready}, {Name: "ledger_disk", Probe: book.HasRoom}, {Name: "vault", Probe: minter.Ready}},
	})
	if err != nil {
		return nil, err
	}
	srv := api.HTTP(attestor.TLSConfig(tlsconfig.GetCertificate(svid)))
	srv.Handler = s.Fault.handler(srv.Handler)
	return srv, nil
}
