package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"syscall"
)

// upstreamErrors maps kinds of errors of a host to fixed texts. The error's own text can quote certificates and responses, so a
// host could use it to talk to an agent. The first match applies. An error that matches none, such as a broken connection, has
// no text, since it may come from the sandbox's own connection.
var upstreamErrors = []struct {
	fits func(error) bool
	text string
}{
	{notInDNS, "the host name does not exist in DNS"},
	{a[*net.DNSError], "DNS returned no address for the host name"},
	{expired, "the host's certificate has expired, or is not valid yet, by the gateway's clock"},
	{a[x509.HostnameError], "the host's certificate is for another host name"},
	{a[x509.UnknownAuthorityError], "the host's certificate is from an authority that the gateway does not trust; the gateway's --host-ca sets the trusted ones"},
	{a[*tls.CertificateVerificationError], "the host's certificate cannot be verified"},
	{withoutTLS, "the host does not speak TLS at this port"},
	{is(syscall.ECONNREFUSED), "the host refuses the connection: nothing listens at this port, or a firewall rejects it"},
	{is(syscall.EHOSTUNREACH, syscall.ENETUNREACH), "the host cannot be reached: there is no route to it"},
	{late, "the host did not answer in time"},
}

// upstreamError returns the text for an error, or "" if no kind matches.
func upstreamError(err error) string {
	for _, known := range upstreamErrors {
		if known.fits(err) {
			return known.text
		}
	}
	return ""
}

func a[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

func is(targets ...error) func(error) bool {
	return func(err error) bool {
		for _, target := range targets {
			if errors.Is(err, target) {
				return true
			}
		}
		return false
	}
}

func notInDNS(err error) bool {
	dns, ok := errors.AsType[*net.DNSError](err)
	return ok && dns.IsNotFound
}

func expired(err error) bool {
	invalid, ok := errors.AsType[x509.CertificateInvalidError](err)
	return ok && invalid.Reason == x509.Expired
}

func withoutTLS(err error) bool {
	return errors.Is(err, http.ErrSchemeMismatch) || a[tls.RecordHeaderError](err)
}

// late reports whether connecting or the handshake timed out. A later timeout may be due to the sandbox's own body.
func late(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op != "dial" {
		return false
	}
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}
