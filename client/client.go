// Package client asks a Brevet server for credentials, and reads back what was issued.
//
// It must never send an SVID anywhere but to the server it was made for, never follow a redirect, never repeat an
// ask that may have been decided unless that is what it was told to do (Hold), and never print a credential.
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

// Config says which server to call, and over what.
type Config struct {
	// BaseURL is the server's https URL, without a path.
	BaseURL string
	// HTTPClient, if set, carries the calls instead of a client of our own. Its redirect policy and cookies are not
	// used. It cannot be combined with WithX509 or WithServer, which bring TLS of their own.
	HTTPClient *http.Client
}

// Option says how the caller proves who it is, and how the server does.
type Option func(*Client)

// WithX509 proves the caller with an X.509-SVID over mutual TLS. The server must present an X.509-SVID that bundles
// verifies and server accepts. The client follows the source: after a rotation it opens a new connection.
func WithX509(source x509svid.Source, bundles x509bundle.Source, server tlsconfig.Authorizer) Option {
	return func(c *Client) {
		c.rotating = &rotatingTransport{source: source, config: func(svid x509svid.Source) *tls.Config {
			return tlsconfig.MTLSClientConfig(svid, bundles, server)
		}}
	}
}

// WithX509AndWebPKI is [WithX509] for a server that presents a certificate of the web: roots verify it, the system's when roots is nil.
func WithX509AndWebPKI(source x509svid.Source, roots *x509.CertPool) Option {
	return func(c *Client) {
		c.rotating = &rotatingTransport{source: source, config: func(svid x509svid.Source) *tls.Config {
			return tlsconfig.MTLSWebClientConfig(svid, roots)
		}}
	}
}

// WithServer has the server present an X.509-SVID that bundles verifies and server accepts, and shows it no
// certificate.
func WithServer(bundles x509bundle.Source, server tlsconfig.Authorizer) Option {
	return func(c *Client) { c.tls = tlsconfig.TLSClientConfig(bundles, server) }
}

// WithRoots has the server present a certificate of the web that the roots verify, and shows it none.
func WithRoots(roots *x509.CertPool) Option {
	return func(c *Client) { c.tls = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12} }
}

// WithJWT proves the caller with a JWT-SVID, fetched for each call. audience is the server's issuer.
func WithJWT(source jwtsvid.Source, audience string) Option {
	return func(c *Client) { c.jwt, c.audience = source, audience }
}

// WithSubject asks the source of [WithJWT] for the JWT-SVIDs of one identity, where the workload has several.
func WithSubject(id spiffeid.ID) Option {
	return func(c *Client) { c.subject = id }
}

// Client calls one server. It is safe for concurrent use.
type Client struct {
	base     *url.URL
	http     *http.Client
	tls      *tls.Config
	rotating *rotatingTransport // nil when no X.509-SVID proves the caller
	jwt      jwtsvid.Source
	audience string
	subject  spiffeid.ID
	nonce    *atomic.Pointer[string] // what the server wants in the next DPoP proof
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
	// A server of ours never redirects, so one that does is not ours, and must not get the SVID or the ask.
	out.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return out
}

// Close lets go of idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }
