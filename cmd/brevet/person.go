package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/client"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

// loggedIn provides the ID token of the logged-in person, and renews it shortly before it expires.
type loggedIn struct{ mu sync.Mutex }

// IDToken reads the login each time, because another process may have renewed it.
func (s *loggedIn) IDToken(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, err := readLogin()
	if err != nil {
		return "", err
	}
	if time.Until(l.Expires) <= renewBefore && l.renewable() {
		if l, err = renewOnce(ctx, l); err != nil {
			return "", err
		}
	}
	if !time.Now().Before(l.Expires) {
		return "", errLoginEnded
	}
	return l.idToken.Reveal(), nil
}

// renewOnce renews the login unless another process has just done so, because a refresh token may be valid for one use
// only. If the provider is unavailable, renewOnce returns the old login for as long as its token is valid.
func renewOnce(ctx context.Context, l login) (login, error) {
	path, err := loginFile()
	if err != nil {
		return l, err
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return l, fmt.Errorf("locking the login: %w", err)
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return l, fmt.Errorf("locking the login: %w", err)
	}
	if l, err = readLogin(); err != nil || time.Until(l.Expires) > renewBefore {
		return l, err
	}
	renewed, err := l.renew(ctx)
	switch {
	case err == nil:
	case !errors.Is(err, errLoginEnded) && time.Now().Before(l.Expires):
		return l, nil
	default:
		return l, err
	}
	if !renewed.renewable() {
		renewed.refreshToken = l.refreshToken
	}
	if err := renewed.write(); err != nil {
		return l, fmt.Errorf("storing the login: %w", err)
	}
	return renewed, nil
}

// PersonFlags say which broker to call as the logged-in person, and how to verify the broker.
type PersonFlags struct {
	Server      string `help:"URL of the broker." required:"" env:"BREVET_SERVER"`
	ServerID    string `help:"SPIFFE ID of the broker's SVID. Without it, the system's roots must verify the broker's certificate." env:"BREVET_SERVER_ID"`
	CAFile      string `help:"PEM file with the roots for the broker's certificate, instead of the system's." name:"ca-file" env:"BREVET_CA_FILE"`
	WorkloadAPI string `help:"Workload API socket with the broker's authorities, for --server-id without --ca-file." name:"workload-api" env:"SPIFFE_ENDPOINT_SOCKET"`
}

// open returns a client and a function that closes it. If nobody is logged in, it fails before it calls the broker.
func (f PersonFlags) open(ctx context.Context) (*client.Client, func(), error) {
	person := &loggedIn{}
	if _, err := person.IDToken(ctx); err != nil {
		return nil, nil, err
	}
	c, done, err := f.anyone(ctx)
	if err != nil {
		return nil, nil, err
	}
	asPerson, err := c.AsPerson(person)
	if err != nil {
		done()
		return nil, nil, err
	}
	return asPerson, done, nil
}

// anyone returns a client that verifies the broker but does not authenticate itself.
func (f PersonFlags) anyone(ctx context.Context) (*client.Client, func(), error) {
	cfg, options, done := client.Config{BaseURL: f.Server}, []client.Option(nil), func() {}
	switch {
	case f.ServerID != "":
		option, end, err := f.spiffeServer(ctx)
		if err != nil {
			return nil, nil, err
		}
		options, done = append(options, option), end
	case f.CAFile != "":
		roots, err := readRoots(f.CAFile)
		if err != nil {
			return nil, nil, fmt.Errorf("--ca-file: %w", err)
		}
		cfg.HTTPClient = &http.Client{Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
		}}
	}
	c, err := client.New(cfg, options...)
	if err != nil {
		done()
		return nil, nil, err
	}
	return c, func() { c.Close(); done() }, nil
}

func (f PersonFlags) spiffeServer(ctx context.Context) (client.Option, func(), error) {
	id, err := attest.ParseID(f.ServerID)
	if err != nil {
		return nil, nil, fmt.Errorf("--server-id: %w", err)
	}
	if f.CAFile != "" {
		bundle, err := x509bundle.Load(id.TrustDomain(), f.CAFile)
		if err != nil {
			return nil, nil, fmt.Errorf("--ca-file: %w", err)
		}
		return client.WithServer(bundle, tlsconfig.AuthorizeID(id)), func() {}, nil
	}
	if f.WorkloadAPI == "" {
		return nil, nil, errors.New("--server-id: requires --ca-file or --workload-api")
	}
	ctx, cancel := context.WithTimeout(ctx, workloadTimeout)
	defer cancel()
	source, err := workloadapi.NewBundleSource(ctx, workloadapi.WithClientOptions(workloadapi.WithAddr(f.WorkloadAPI)))
	if err != nil {
		return nil, nil, fmt.Errorf("no bundle from the Workload API at %s: %w", f.WorkloadAPI, err)
	}
	return client.WithServer(source, tlsconfig.AuthorizeID(id)), func() { _ = source.Close() }, nil
}

// hint adds advice if the broker does not accept the person, or if the broker cannot be verified.
func (f PersonFlags) hint(err error) error {
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.Is(err, client.ErrUnauthenticated):
		return fmt.Errorf("%w\nRun brevet login, and check with brevet whoami that the provider and the client match the broker", err)
	case f.ServerID == "" && errors.As(err, &untrusted):
		return fmt.Errorf("%w\nIf the broker serves with an SVID, set --server-id or BREVET_SERVER_ID", err)
	default:
		return err
	}
}
