// Package quiet makes the HTTP transports of Brevet, and the loggers of its HTTP servers.
//
// It must never put into an error or a log what the other side of a connection has sent: that can be a credential.
package quiet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
)

// Transport is an [http.Transport] whose errors quote nothing that a server or a proxy has sent. It cannot keep net/http from printing such text
// to the default logger of package log, which the command brevet redirects.
type Transport struct{ *http.Transport }

// New returns a transport with the settings of t.
func New(t *http.Transport) *Transport {
	t.OnProxyConnectResponse = func(_ context.Context, _ *url.URL, _ *http.Request, resp *http.Response) error {
		if resp.StatusCode != http.StatusOK {
			return proxyError(resp.StatusCode)
		}
		return nil
	}
	return &Transport{t}
}

// proxyError is the status of a proxy that opens no connection to a server.
type proxyError int

func (status proxyError) Error() string {
	return fmt.Sprintf("the proxy opens no connection to the server: status %d %s", int(status), http.StatusText(int(status)))
}

// NewUsual returns a transport with the settings of [http.DefaultTransport]. It uses a proxy from the environment.
func NewUsual() *Transport {
	return New(http.DefaultTransport.(*http.Transport).Clone()) //nolint:forbidigo,forcetypeassert // a copy, which nobody else changes
}

// RoundTrip implements [http.RoundTripper]. It removes a Location that is not a URL, because [http.Client] would quote it.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	var connected, shaken atomic.Bool
	ctx := httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GotConn:          func(httptrace.GotConnInfo) { connected.Store(true) },
		TLSHandshakeDone: func(_ tls.ConnectionState, err error) { shaken.Store(err != nil) },
	})
	resp, err := t.Transport.RoundTrip(req.WithContext(ctx))
	switch _, network := err.(*net.OpError); { //nolint:errorlint // what wraps such an error can quote a proxy
	case err == nil:
	case connected.Load():
		return nil, unquoted(ctx, err, brokeOff)
	case network || shaken.Load(): // it is about an address or a certificate
		return nil, err
	default:
		return nil, unquoted(ctx, err, unconnected)
	}
	resp.Request = req
	if at := resp.Header.Get("Location"); at != "" {
		if _, err := req.URL.Parse(at); err != nil {
			resp.Header.Del("Location")
		}
	}
	if resp.StatusCode != http.StatusSwitchingProtocols && resp.Body != http.NoBody {
		resp.Body = body{resp.Body, ctx}
	}
	return resp, nil
}

// body is the body of a response. Its errors can quote trailers.
type body struct {
	io.ReadCloser
	ctx context.Context //nolint:containedctx // the call's
}

func (b body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	return n, unquoted(b.ctx, err, brokeOff)
}

func (b body) Close() error { return unquoted(b.ctx, b.ReadCloser.Close(), brokeOff) }

// The texts of errors that could quote the other side.
const (
	brokeOff    = "the call broke off: the response is not valid HTTP, or the request could not be sent as a whole"
	unconnected = "no connection was made: the proxy's response is not valid HTTP, or the proxy's address, the URL or a header is not valid"
)

// ResponseError is the error of a call. Its text is the system's or a fixed one. Whoever unwraps it must not
// print what it wraps.
type ResponseError struct {
	text  string
	cause error
}

func (e *ResponseError) Error() string { return e.text }
func (e *ResponseError) Unwrap() error { return e.cause }

// Timeout lets [net/url.Error] report a timeout.
func (e *ResponseError) Timeout() bool {
	timeout, ok := errors.AsType[net.Error](e.cause)
	return ok && timeout.Timeout()
}

// unquoted returns an error that quotes nothing. An error of an unknown kind gets the text otherwise.
func unquoted(ctx context.Context, err error, otherwise string) error {
	if err == nil || err == io.EOF || err == io.ErrUnexpectedEOF { //nolint:errorlint // readers compare these two
		return err
	}
	e := &ResponseError{cause: err}
	op, isOp := errors.AsType[*net.OpError](err)
	proxy, isProxy := errors.AsType[proxyError](err)
	untrusted, isUntrusted := errors.AsType[*tls.CertificateVerificationError](err)
	switch cause := context.Cause(ctx); {
	case cause != nil && errors.Is(err, cause):
		e.text = cause.Error()
	case isOp:
		e.text = op.Error()
	case isProxy:
		e.text = proxy.Error()
	case isUntrusted:
		e.text = untrusted.Error()
	case e.Timeout():
		e.text = "the server did not answer in time"
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		e.text = "the server closed the connection: EOF"
	default:
		e.text = otherwise
	}
	return e
}
