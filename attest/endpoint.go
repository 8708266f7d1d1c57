package attest

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/brevet-dev/brevet/internal/quiet"
	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// The endpoint profiles of SPIFFE Federation, section 5.2.
const (
	ProfileHTTPSWeb    = "https_web"
	ProfileHTTPSSPIFFE = "https_spiffe"
)

const (
	fetchTimeout   = 10 * time.Second
	defaultRefresh = 5 * time.Minute // as the specification suggests for a bundle without a hint
	minRefresh     = time.Second
	maxRefresh     = time.Hour
	firstRetry     = time.Second
	maxRetry       = time.Minute
)

// EndpointSpec is a bundle endpoint and how to authenticate it. An operator configures it; no part of it is ever taken from the
// network.
type EndpointSpec struct {
	// URL is an https URL without userinfo.
	URL string
	// Profile is ProfileHTTPSWeb or ProfileHTTPSSPIFFE.
	Profile string
	// CAFile is a PEM file with the authorities that may sign the server's certificate in https_web. If empty, the system's
	// authorities are trusted.
	CAFile string
	// SPIFFEID is the server's ID in https_spiffe. It is in the trust domain that the endpoint serves.
	SPIFFEID spiffeid.ID
	// BundleFile is the initial bundle in https_spiffe. It authenticates the server at the first fetch; after that, the fetched
	// bundle does. It never verifies SVIDs.
	BundleFile string
}

// endpoint fetches the bundle of one trust domain from a federation endpoint.
type endpoint struct {
	*held
	spec    EndpointSpec
	client  *http.Client
	initial *spiffebundle.Bundle // https_spiffe only
	retry   time.Duration
}

func newEndpoint(spec EndpointSpec, h *held) (*endpoint, error) {
	e := &endpoint{held: h, spec: spec, retry: firstRetry}
	if err := e.check(); err != nil {
		return nil, fmt.Errorf("attest: endpoint of %s: %w", h.domain, err)
	}
	tlsConfig, err := e.tlsConfig()
	if err != nil {
		return nil, fmt.Errorf("attest: endpoint of %s: %w", h.domain, err)
	}
	// The client connects only to the configured endpoint. It follows no redirect: otherwise the authenticated server could choose
	// who speaks for the domain. It uses no proxy from the environment. It does not decompress, so the size cap applies to the
	// received bytes. It authenticates the server again for each fetch.
	e.client = &http.Client{
		Timeout: fetchTimeout,
		Transport: quiet.New(&http.Transport{
			TLSClientConfig:        tlsConfig,
			TLSHandshakeTimeout:    fetchTimeout,
			DisableKeepAlives:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: 64 << 10,
		}),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return e, nil
}

func (e *endpoint) check() error {
	u, err := url.Parse(e.spec.URL)
	if err != nil {
		return errors.New("the URL cannot be parsed") // err would quote it, and it may hold a password
	}
	switch {
	case u.Scheme != "https" || u.Hostname() == "":
		return errors.New("the URL is not https")
	case u.User != nil:
		return errors.New("the URL contains userinfo")
	case e.spec.Profile == ProfileHTTPSWeb:
		if !e.spec.SPIFFEID.IsZero() || e.spec.BundleFile != "" {
			return errors.New("https_web takes no SPIFFE ID and no initial bundle")
		}
	case e.spec.Profile == ProfileHTTPSSPIFFE:
		if e.spec.CAFile != "" || e.spec.BundleFile == "" {
			return errors.New("https_spiffe requires an initial bundle and takes no CA file")
		}
		if e.spec.SPIFFEID.Path() == "" || !e.spec.SPIFFEID.MemberOf(e.domain) {
			return fmt.Errorf("https_spiffe requires the SPIFFE ID of a server in %s", e.domain)
		}
	default:
		return fmt.Errorf("the profile is neither %s nor %s", ProfileHTTPSWeb, ProfileHTTPSSPIFFE)
	}
	return nil
}

func (e *endpoint) run(ctx context.Context, started func()) {
	for ctx.Err() == nil {
		delay := e.refresh(ctx)
		started()
		wait.For(ctx, delay)
	}
}

// refresh fetches once and returns the delay until the next fetch. While an endpoint is down, the last good bundle stays in use,
// up to MaxStale.
func (e *endpoint) refresh(ctx context.Context) time.Duration {
	bundle, err := e.fetch(ctx)
	if err != nil {
		if ctx.Err() == nil {
			e.fail(err)
		}
		delay := e.retry
		e.retry = min(2*e.retry, maxRetry)
		return delay
	}
	e.set(bundle)
	e.retry = firstRetry
	hint, ok := bundle.RefreshHint()
	if !ok {
		return defaultRefresh
	}
	return min(max(hint, minRefresh), maxRefresh) // a wrong hint must neither overload the server nor stop the refreshing
}

// fetch rejects a bundle whose spiffe_sequence is lower than before: an attacker who replays an old bundle brings back removed
// keys. It also rejects a bundle without a number if the known one has a number.
func (e *endpoint) fetch(ctx context.Context) (bundle *spiffebundle.Bundle, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.spec.URL, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("fetching bundle: %w", err)
	}
	resp, err := e.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("fetching bundle: %w", err)
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("fetching bundle: the endpoint returned status %d", resp.StatusCode)
	}
	doc, err := readCapped(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("fetching bundle: %w", err)
	}
	if bundle, err = parseBundle(e.domain, doc); err != nil {
		return nil, err
	}
	if known := e.trusted(); known != nil {
		had, numbered := known.SequenceNumber()
		if got, ok := bundle.SequenceNumber(); numbered && (!ok || got < had) {
			return nil, fmt.Errorf("the bundle is older than the known one: sequence %d after %d", got, had)
		}
	}
	return bundle, nil
}

// trusted returns the newest known bundle, however stale. It authenticates the server in https_spiffe.
func (e *endpoint) trusted() *spiffebundle.Bundle {
	e.mu.Lock()
	defer e.mu.Unlock()
	return cmp.Or(e.current, e.initial)
}

func (e *endpoint) tlsConfig() (*tls.Config, error) {
	if e.spec.Profile == ProfileHTTPSSPIFFE {
		initial, err := readBundleFile(e.domain, e.spec.BundleFile)
		if err != nil {
			return nil, err
		}
		e.initial = initial
		return &tls.Config{
			MinVersion: tls.VersionTLS12,
			// The server's identity is its SPIFFE ID, not a host name: verifyServer does all the checks.
			InsecureSkipVerify: true, //nolint:gosec // see above
			VerifyConnection:   e.verifyServer,
		}, nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if e.spec.CAFile == "" {
		return cfg, nil
	}
	pem, err := os.ReadFile(e.spec.CAFile)
	if err != nil {
		return nil, fmt.Errorf("reading CA file: %w", err)
	}
	cfg.RootCAs = x509.NewCertPool()
	if !cfg.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("reading CA file: no certificate in %s", e.spec.CAFile)
	}
	return cfg, nil
}

// verifyServer authenticates an https_spiffe server: its SVID must verify against the domain's own bundle and have exactly the
// configured ID.
func (e *endpoint) verifyServer(state tls.ConnectionState) error {
	if err := checkChain(state.PeerCertificates); err != nil {
		return err
	}
	id, _, err := x509svid.Verify(state.PeerCertificates, e.trusted().X509Bundle(), x509svid.WithTime(e.now()))
	if err != nil {
		return fmt.Errorf("verifying bundle endpoint: %w", err)
	}
	if id != e.spec.SPIFFEID {
		return errors.New("verifying bundle endpoint: the server has another SPIFFE ID")
	}
	return nil
}
