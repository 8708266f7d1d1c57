package attest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
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
	e.client = newFetchClient(tlsConfig)
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
	if err == nil {
		err = e.notOlder(bundle)
	}
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
	return refreshAfter(bundle)
}

func (e *endpoint) fetch(ctx context.Context) (*spiffebundle.Bundle, error) {
	doc, err := fetchBundle(ctx, e.client, e.spec.URL)
	if err != nil {
		return nil, err
	}
	return parseBundle(e.domain, doc)
}

// trusted returns the newest known bundle, however stale. It authenticates the server in https_spiffe.
func (e *endpoint) trusted() *spiffebundle.Bundle {
	if b := e.last(); b != nil {
		return b
	}
	return e.initial
}

// notOlder rejects a bundle whose spiffe_sequence is lower than before: an attacker who replays an old bundle brings back removed
// keys. A bundle that drops the number altogether is rejected too.
func (e *endpoint) notOlder(next *spiffebundle.Bundle) error {
	known := e.trusted()
	if known == nil {
		return nil
	}
	had, ok := known.SequenceNumber()
	if !ok {
		return nil
	}
	if got, ok := next.SequenceNumber(); !ok || got < had {
		return fmt.Errorf("the bundle is older than the known one: sequence %d after %d", got, had)
	}
	return nil
}

// refreshAfter bounds the bundle's refresh hint, so that no hint makes Brevet overload a server or stop refreshing.
func refreshAfter(b *spiffebundle.Bundle) time.Duration {
	hint, ok := b.RefreshHint()
	if !ok {
		return defaultRefresh
	}
	return min(max(hint, minRefresh), maxRefresh)
}
