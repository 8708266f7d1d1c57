// Package client requests credentials from a Brevet server, and reads the record of what was issued.
//
// It must never send an SVID to a server other than its own, never follow a redirect, and never print a credential. It must
// never repeat a request that may have been decided, except in Hold, which exists to do so.
package client

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// defaultTimeout bounds one call unless its context is shorter.
const defaultTimeout = 30 * time.Second

// Config says which server to call, and with which HTTP client.
type Config struct {
	// BaseURL is the server's https URL, without a path.
	BaseURL string
	// HTTPClient, if set, sends the calls instead of the package's own client. Its redirect policy and cookies are not used. It
	// cannot be combined with WithX509 or WithServer, which configure TLS themselves.
	HTTPClient *http.Client
}

// Option configures how the caller authenticates, and how the server does.
type Option func(*Client)

// WithX509 authenticates the caller with an X.509-SVID over mutual TLS. The server must present an X.509-SVID that bundles
// verifies and server accepts. The client follows the source: after a rotation it opens a new connection.
func WithX509(source x509svid.Source, bundles x509bundle.Source, server tlsconfig.Authorizer) Option {
	return func(c *Client) {
		c.rotating = &rotatingTransport{source: source, config: func(svid x509svid.Source) *tls.Config {
			return tlsconfig.MTLSClientConfig(svid, bundles, server)
		}}
	}
}

// WithX509AndWebPKI is [WithX509] for a server with a Web PKI certificate. roots verify it; nil means the system's roots.
func WithX509AndWebPKI(source x509svid.Source, roots *x509.CertPool) Option {
	return func(c *Client) {
		c.rotating = &rotatingTransport{source: source, config: func(svid x509svid.Source) *tls.Config {
			return tlsconfig.MTLSWebClientConfig(svid, roots)
		}}
	}
}

// WithServer requires the server to present an X.509-SVID that bundles verifies and server accepts. The client presents no
// certificate.
func WithServer(bundles x509bundle.Source, server tlsconfig.Authorizer) Option {
	return func(c *Client) { c.tls = tlsconfig.TLSClientConfig(bundles, server) }
}

// WithRoots requires the server to present a Web PKI certificate that roots verify. The client presents no certificate.
func WithRoots(roots *x509.CertPool) Option {
	return func(c *Client) { c.tls = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12} }
}

// WithJWT authenticates the caller with a JWT-SVID, which it fetches for each call. audience is the server's issuer.
func WithJWT(source jwtsvid.Source, audience string) Option {
	return func(c *Client) { c.jwt, c.audience = source, audience }
}

// WithSubject requests the JWT-SVIDs of one identity from the source of [WithJWT], for a workload with several.
func WithSubject(id spiffeid.ID) Option {
	return func(c *Client) { c.subject = id }
}

// Client calls one server. It is safe for concurrent use.
type Client struct {
	base     *url.URL
	http     *http.Client
	tls      *tls.Config
	rotating *rotatingTransport // nil if the caller authenticates without an X.509-SVID
	jwt      jwtsvid.Source
	audience string
	subject  spiffeid.ID
	nonce    *atomic.Pointer[string] // the nonce for the next DPoP proof
}

// New returns a Client, or an error for a configuration that could leak an SVID.
func New(cfg Config, options ...Option) (*Client, error) {
	base, err := url.Parse(cfg.BaseURL)
	if err != nil {
		return nil, fmt.Errorf("parsing the base URL: %w", err)
	}
	if base.Scheme != "https" || base.Host == "" || base.User != nil || base.RawQuery != "" || (base.Path != "" && base.Path != "/") {
		return nil, errors.New("client: the base URL must be https://host[:port]")
	}
	c := &Client{base: &url.URL{Scheme: base.Scheme, Host: base.Host}, nonce: new(atomic.Pointer[string])}
	for _, option := range options {
		option(c)
	}
	if c.jwt != nil && c.audience == "" {
		return nil, errors.New("client: a JWT-SVID needs an audience: the server's issuer")
	}
	if cfg.HTTPClient != nil && (c.tls != nil || c.rotating != nil) {
		return nil, errors.New("client: give either an HTTP client or the TLS of WithX509 and WithServer")
	}
	c.http = c.httpClient(cfg.HTTPClient)
	return c, nil
}

func (c *Client) httpClient(given *http.Client) *http.Client {
	out := &http.Client{Timeout: defaultTimeout}
	switch {
	case given != nil:
		out.Transport = given.Transport
		if given.Timeout > 0 {
			out.Timeout = given.Timeout
		}
	case c.rotating != nil:
		out.Transport = c.rotating
	default:
		out.Transport = newTransport(c.tls)
	}
	// A Brevet server never redirects. A server that does is not Brevet, and must not get the SVID or the request.
	out.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return out
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }
