// Package safehttp calls third-party servers over TLS, and only at addresses that are public or that the operator allows.
//
// It must never connect to an address that is not allowed, whatever a name resolves to. It must never follow a redirect, take a
// proxy from the environment, or quote a URL, which may be a secret.
package safehttp

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/brevet-dev/brevet/internal/quiet"
	"github.com/brevet-dev/brevet/internal/secret"
)

const (
	// callTimeout bounds one call, from the lookup of the host to the end of the response.
	callTimeout = 10 * time.Second
	// maxAnswer is how much of a response is read, in bytes.
	maxAnswer = 16 << 10
)

// ErrAddress means that a host has an address that must not be called.
var ErrAddress = errors.New("the address is not public")

// special are networks that netip does not recognize as not public: those of RFC 6890 and its successors, and those that embed
// an IPv4 address, which a gateway on the way would call.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.88.99.0/24"), netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("::/96"), netip.MustParsePrefix("::ffff:0:0:0/96"), netip.MustParsePrefix("64:ff9b::/96"),
	netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("100::/64"), netip.MustParsePrefix("2001::/23"),
	netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("3fff::/20"),
	netip.MustParsePrefix("5f00::/16"), netip.MustParsePrefix("fec0::/10"),
}

// callable returns nil if an address may be called, and ErrAddress otherwise.
func callable(addr netip.Addr, allowed []netip.Prefix) error {
	addr = addr.WithZone("").Unmap()
	in := func(p netip.Prefix) bool { return p.Contains(addr) }
	switch {
	case slices.ContainsFunc(allowed, in):
		return nil
	case !addr.IsGlobalUnicast(), addr.IsPrivate(), slices.ContainsFunc(special, in):
		return ErrAddress
	}
	return nil
}

// Target is a server to call, as the operator configures it.
type Target struct {
	// URL is an https URL without userinfo. It can itself be a secret.
	URL secret.Text
	// Roots verify the server's certificate instead of the system's roots.
	Roots *x509.CertPool
	// AllowPrivate are networks that may be called although they are not public.
	AllowPrivate []netip.Prefix
	// Plaintext allows http to a loopback address, for development.
	Plaintext Plaintext
	// Resolver looks up hosts. Nil means the system's resolver.
	Resolver *net.Resolver
}

// Plaintext says whether a server may be called without TLS.
type Plaintext string

// The choices of Plaintext.
const (
	NoPlaintext       Plaintext = ""
	PlaintextLoopback Plaintext = "loopback"
)

// Client calls one server. It is safe for concurrent use.
type Client struct {
	url  string
	http *http.Client
}

// New checks a target and returns a Client for it. It makes no network calls.
func New(t Target) (*Client, error) {
	if err := checkURL(t.URL.Reveal(), t.Plaintext); err != nil {
		return nil, err
	}
	dialer := NewDialer(t.AllowPrivate, t.Resolver)
	if strings.HasPrefix(strings.ToLower(t.URL.Reveal()), "http:") { // without TLS, only loopback addresses
		dialer = newDialer(t.Resolver, func(to netip.Addr) error {
			if !to.Unmap().IsLoopback() {
				return ErrAddress
			}
			return nil
		})
	}
	dialer.KeepAlive = -1
	return &Client{t.URL.Reveal(), &http.Client{
		Timeout: callTimeout,
		Transport: quiet.New(&http.Transport{ // it uses no proxy from the environment
			DialContext:            dialer.DialContext,
			TLSClientConfig:        &tls.Config{RootCAs: t.Roots, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    callTimeout,
			DisableKeepAlives:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: maxAnswer,
		}),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Answer is the response of a server.
type Answer struct {
	Status int
	Header http.Header
	// Body is cut off after 16 KiB.
	Body []byte
}

// OK reports whether the status is 2xx.
func (a Answer) OK() bool { return a.Status >= 200 && a.Status <= 299 }

// Post sends one body. A response of any status is not an error.
func (c *Client) Post(ctx context.Context, header http.Header, body []byte) (Answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return Answer{}, errors.New("the URL is not valid") // err would quote the URL
	}
	req.Header = header.Clone()
	req.Header.Set("User-Agent", "brevet")
	resp, err := c.http.Do(req)
	if err != nil {
		var quoting *url.Error
		if errors.As(err, &quoting) {
			err = quoting.Err // the outer error quotes the URL
		}
		return Answer{}, fmt.Errorf("calling the receiver: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	got, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer)) // a caller that needs the body can't use a partial one
	return Answer{resp.StatusCode, resp.Header, got}, nil
}

// NewDialer returns a dialer that connects only to public addresses and those that the operator allows. It checks the address
// at connection time, so no DNS response can bypass the check. A nil resolver means the system's.
func NewDialer(allowed []netip.Prefix, resolver *net.Resolver) *net.Dialer {
	return newDialer(resolver, func(to netip.Addr) error { return callable(to, allowed) })
}

func newDialer(resolver *net.Resolver, check func(netip.Addr) error) *net.Dialer {
	return &net.Dialer{
		Timeout: callTimeout, Resolver: resolver,
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(address)
			if err != nil {
				return ErrAddress
			}
			return check(to.Addr())
		},
	}
}

// checkURL returns an error if the URL is not allowed. It never quotes the URL, which may be a secret.
func checkURL(raw string, plaintext Plaintext) error {
	u, err := url.Parse(raw)
	if err != nil {
		return errors.New("the URL cannot be parsed")
	}
	host := u.Hostname()
	addr, notIP := netip.ParseAddr(host)
	loopback := host == "localhost" || notIP == nil && addr.Unmap().IsLoopback()
	switch {
	case host == "" || u.User != nil || u.Fragment != "" || u.Opaque != "":
		return errors.New("the URL has no host, or has userinfo or a fragment")
	case u.Scheme == "http" && plaintext != PlaintextLoopback, u.Scheme != "http" && u.Scheme != "https":
		return errors.New("the URL is not https")
	case u.Scheme == "http" && !loopback:
		return errors.New("the URL is http to an address that is not loopback")
	case notIP != nil && numeric(host):
		return errors.New("the host is a number that some programs take for an IP address")
	}
	return nil
}

// numeric reports whether a resolver may read a host name as an IP address, such as 2130706433, 0x7f.1 or 127.1.
func numeric(host string) bool {
	labels := strings.Split(strings.TrimSuffix(host, "."), ".")
	_, err := strconv.ParseUint(labels[len(labels)-1], 0, 64)
	return err == nil || errors.Is(err, strconv.ErrRange) || strings.Trim(labels[len(labels)-1], "0123456789") == ""
}
