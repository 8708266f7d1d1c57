package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// callTimeout is for one call, from the lookup of the host to the end of the answer.
	callTimeout = 10 * time.Second
	// maxAnswer is how much of an answer is read, in bytes.
	maxAnswer = 16 << 10
)

// ErrAddress tells that a host has an address that is not to be called.
var ErrAddress = errors.New("the address is not a public one")

// errAnswer tells that the receiver did not take a notice.
var errAnswer = errors.New("the receiver did not answer with a 2xx status")

// special are networks that netip does not know to be no public ones: those of RFC 6890 and its successors, and those
// that hold an IPv4 address which somebody on the way would call.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.88.99.0/24"), netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("::/96"), netip.MustParsePrefix("::ffff:0:0:0/96"), netip.MustParsePrefix("64:ff9b::/96"),
	netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("100::/64"), netip.MustParsePrefix("2001::/23"),
	netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("3fff::/20"),
	netip.MustParsePrefix("5f00::/16"), netip.MustParsePrefix("fec0::/10"),
}

// callable is nil for an address that may be called.
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

// newClient returns a client that calls nothing but public addresses and those that the operator has opened; without TLS
// nothing but loopback. It looks at the address that is being connected to, so no answer of a resolver gets past it. It
// uses no proxy from the environment, follows no redirect, and does not unpack.
func newClient(s Spec) *http.Client {
	plain := strings.HasPrefix(strings.ToLower(s.URL.Reveal()), "http:")
	dialer := &net.Dialer{
		Timeout: callTimeout, KeepAlive: -1, Resolver: s.Resolver,
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(address)
			if err != nil || plain && !to.Addr().Unmap().IsLoopback() {
				return ErrAddress
			}
			if plain {
				return nil
			}
			return callable(to.Addr(), s.AllowPrivate)
		},
	}
	return &http.Client{
		Timeout: callTimeout,
		Transport: &http.Transport{
			DialContext:            dialer.DialContext,
			TLSClientConfig:        &tls.Config{RootCAs: s.Roots, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    callTimeout,
			DisableKeepAlives:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: maxAnswer,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// call sends one request and reads no more of the answer than whether it is a yes.
func call(client *http.Client, req *http.Request) error {
	resp, err := client.Do(req)
	if err != nil {
		var quoting *url.Error
		if errors.As(err, &quoting) {
			err = quoting.Err // the rest is the URL, which may be a secret
		}
		return fmt.Errorf("calling the receiver: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswer) // so that a receiver that writes first is not cut off
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return fmt.Errorf("%w: %d", errAnswer, resp.StatusCode)
	}
	return nil
}
