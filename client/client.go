// Package client requests credentials from a Brevet server, and reads the record of what was issued.
//
// It must never send an SVID to a server other than its own, never follow a redirect, and never print a credential. It must
// never repeat a request that may have been decided, except in Hold, which exists to do so. It leaves the program's loggers alone:
// with GODEBUG=http2debug=1 or 2, net/http prints the headers of all calls of a program.
package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/internal/quiet"
	"github.com/brevet-dev/brevet/openapi"
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
	// cannot be combined with WithX509 or WithServer, which configure TLS themselves. A transport of net/http prints to the default
	// logger of package log what a server sends after a response over HTTP/1.1, unless MaxIdleConnsPerHost is negative.
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
	timeout := defaultTimeout
	var transport http.RoundTripper
	switch given := cfg.HTTPClient; {
	case given != nil:
		if transport = given.Transport; transport == nil {
			usual := newTransport(nil)
			usual.Proxy, transport = http.ProxyFromEnvironment, usual
		}
		if given.Timeout > 0 {
			timeout = given.Timeout
		}
	case c.rotating != nil:
		transport = c.rotating
	default:
		transport = newTransport(c.tls)
	}
	// A Brevet server never redirects. A server that does is not Brevet, and must not get the SVID or the request.
	c.http = &http.Client{
		Transport: transport, Timeout: timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// newTransport returns a transport that connects to one server with the given TLS configuration. It shares connections of HTTP/2
// among calls, and uses a connection of HTTP/1.1 once: from an idle one, net/http would print what the server sends to the default
// logger of package log, which is the program's.
func newTransport(config *tls.Config) *quiet.Transport {
	return quiet.New(&http.Transport{
		TLSClientConfig:     config,
		ForceAttemptHTTP2:   true,
		TLSHandshakeTimeout: 10 * time.Second,
		IdleConnTimeout:     30 * time.Second,
		MaxIdleConnsPerHost: -1, // of HTTP/1.1
	})
}

// rotatingTransport sends requests with the source's current X.509-SVID. A connection presents one certificate for its whole
// life, and HTTP/2 uses one connection for all requests. So each SVID has its own transport: requests in progress finish on
// their connection, and requests after a rotation open a new one.
type rotatingTransport struct {
	source x509svid.Source
	config func(x509svid.Source) *tls.Config

	mu      sync.Mutex
	svid    *x509svid.SVID
	current *quiet.Transport
}

// RoundTrip implements [http.RoundTripper]. It sends a request once more if the server refused the connection's certificate and
// the source has a newer one of the same identity. The server returned 401 before it acted on the request, so a retry is safe.
func (t *rotatingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	carrier, used, err := t.latest()
	if err != nil {
		return nil, err
	}
	resp, err := carrier.RoundTrip(req)
	if err != nil || resp.StatusCode != http.StatusUnauthorized || !refusesCertificate(resp) {
		return resp, err
	}
	next, newer, err := t.latest()
	if err != nil || newer == used || newer.ID != used.ID { // another identity must not get what this one requested
		return resp, nil //nolint:nilerr // the server's answer says more
	}
	again := req.Clone(req.Context())
	if req.Body != nil && req.Body != http.NoBody {
		if req.GetBody == nil {
			return resp, nil
		}
		if again.Body, err = req.GetBody(); err != nil {
			return resp, nil //nolint:nilerr // as above
		}
	}
	_ = resp.Body.Close()
	return next.RoundTrip(again)
}

// CloseIdleConnections is called by [http.Client.CloseIdleConnections].
func (t *rotatingTransport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current != nil {
		t.current.CloseIdleConnections()
	}
}

// latest returns the transport for the source's current SVID.
func (t *rotatingTransport) latest() (*quiet.Transport, *x509svid.SVID, error) {
	svid, err := t.source.GetX509SVID()
	if err != nil {
		return nil, nil, fmt.Errorf("getting an X.509-SVID: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	same := t.svid == svid || t.svid != nil && len(t.svid.Certificates) > 0 && len(svid.Certificates) > 0 &&
		slices.Equal(t.svid.Certificates[0].Raw, svid.Certificates[0].Raw)
	if !same {
		if t.current != nil {
			t.current.CloseIdleConnections()
		}
		t.svid, t.current = svid, newTransport(t.config(svid))
	}
	return t.current, t.svid, nil
}

// longestRefusal is how much of a 401 is read to find its cause, in bytes.
const longestRefusal = 64 << 10

// refusesCertificate reports whether the server no longer accepts the connection's certificate. The body can be read again.
func refusesCertificate(resp *http.Response) bool {
	body, err := io.ReadAll(io.LimitReader(resp.Body, longestRefusal))
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), resp.Body), resp.Body}
	var p openapi.Problem
	return err == nil && json.Unmarshal(body, &p) == nil && p.Code == openapi.CodeUnauthenticated &&
		slices.Contains([]string{"svid_expired", "svid_authority", "svid_signature"}, p.Reason)
}

// PersonSource returns the ID token of the calling person, and renews it when necessary. The client calls it for each call to
// the server, from several goroutines.
type PersonSource interface {
	IDToken(ctx context.Context) (string, error)
}

// AsPerson returns a client that authenticates a person with an ID token from source. It uses the server and the connections of
// c, and authenticates the server as c does. c must not authenticate a workload, because a call has one caller.
func (c *Client) AsPerson(source PersonSource) (*Client, error) {
	switch {
	case source == nil:
		return nil, errors.New("client: a person needs a source of ID tokens")
	case c.jwt != nil || c.rotating != nil:
		return nil, errors.New("client: it proves a workload, and cannot prove a person too")
	}
	person, carrier := *c, *c.http
	carrier.Transport = personTransport{source: source, next: c.http.Transport}
	person.http = &carrier
	return &person, nil
}

// personTransport adds the ID token to each call. Calls go only to the client's server, since no redirect is followed.
type personTransport struct {
	source PersonSource
	next   http.RoundTripper
}

// RoundTrip implements [http.RoundTripper]. It sends a copy of the request, since a RoundTripper must not change the caller's.
func (t personTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	token, err := t.source.IDToken(req.Context())
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // a RoundTripper must close the body, also on errors
		}
		return nil, fmt.Errorf("fetching an ID token: %w", err)
	}
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+token)
	return t.next.RoundTrip(req)
}

// CloseIdleConnections lets Close reach the transport below.
func (t personTransport) CloseIdleConnections() {
	if closer, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		closer.CloseIdleConnections()
	}
}

// WhoAmI returns the identity of the caller, workload or person, as the server sees it, and its roles.
func (c *Client) WhoAmI(ctx context.Context) (openapi.Caller, error) {
	return fetch[openapi.Caller](ctx, c, call{path: "/v1/whoami"})
}
