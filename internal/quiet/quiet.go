// Package quiet makes the HTTP transports of Brevet, and the loggers of its HTTP servers.
//
// It must never put into an error or a log what the other side of a connection has sent: that can be a credential.
package quiet

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
)

// Transport is an [http.Transport] whose errors quote nothing that a server has sent. It cannot keep net/http from printing such text
// to the default logger of package log, which the command brevet redirects.
type Transport struct{ *http.Transport }

// New returns a transport with the settings of t.
func New(t *http.Transport) *Transport { return &Transport{t} }

// NewUsual returns a transport with the settings of [http.DefaultTransport]. It uses a proxy from the environment.
func NewUsual() *Transport {
	return New(http.DefaultTransport.(*http.Transport).Clone()) //nolint:forbidigo,forcetypeassert // a copy, which nobody else changes
}

// RoundTrip implements [http.RoundTripper]. It removes a Location that is not a URL, because [http.Client] would quote it.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	var connected atomic.Bool
	ctx := httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	resp, err := t.Transport.RoundTrip(req.WithContext(ctx))
	switch {
	case err != nil && connected.Load():
		return nil, unquoted(ctx, err)
	case err != nil: // it is about an address or a certificate
		return nil, err
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
	return n, unquoted(b.ctx, err)
}

func (b body) Close() error { return unquoted(b.ctx, b.ReadCloser.Close()) }

// ResponseError is the error of a call over an open connection. Its text is the system's or a fixed one. Whoever unwraps it must not
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

func unquoted(ctx context.Context, err error) error {
	if err == nil || err == io.EOF || err == io.ErrUnexpectedEOF { //nolint:errorlint // readers compare these two
		return err
	}
	e := &ResponseError{cause: err}
	op, isOp := errors.AsType[*net.OpError](err)
	switch cause := context.Cause(ctx); {
	case cause != nil && errors.Is(err, cause):
		e.text = cause.Error()
	case isOp:
		e.text = op.Error()
	case e.Timeout():
		e.text = "the server did not answer in time"
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		e.text = "the server closed the connection: EOF"
	default:
		e.text = "the call broke off: the response is not valid HTTP, or the request could not be sent as a whole"
	}
	return e
}
