package egress

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/scopes"
	"github.com/brevet-dev/brevet/scopes/egressrule"
)

// passage is one call through the gateway.
type passage struct {
	gateway *Gateway
	sandbox *Sandbox
	target  *url.URL
	match   match
	held    *held
	mask    mask
	began   time.Time
	room    int64 // bytes of sandbox.bodies that the body takes
}

// pass forwards a call with the credential that it needs, or refuses it.
func (g *Gateway) pass(w http.ResponseWriter, r *http.Request, sandbox *Sandbox, target *url.URL) {
	p := &passage{gateway: g, sandbox: sandbox, target: target, began: g.cfg.Now()}
	seen := &answer{ResponseWriter: w}
	sandbox.recorder.begin()
	defer func() { p.log(r, seen) }() // deferred, because ReverseProxy panics when a response breaks off
	leave, ok := sandbox.calls.take(maxCalls)
	if !ok {
		seen.refuse(&refusal{code: codeTooMany, after: time.Second})
		return
	}
	defer leave()
	defer func() { sandbox.bodies.Release(p.room) }()
	if err := p.prepare(r); err != nil {
		seen.refuse(err)
		return
	}
	conn := http.NewResponseController(w)
	p.held.count(p.began)
	ctx, done := p.held.use(r.Context())
	defer done()
	// Once the credential has ended, the gateway does not wait long for a sandbox that does not read the response, or does not
	// send the rest of its body.
	stop := context.AfterFunc(ctx, func() {
		end := time.Now().Add(lastWords) //nolint:forbidigo // for a connection, not for a decision
		_, _ = conn.SetWriteDeadline(end), conn.SetReadDeadline(end)
	})
	defer stop()
	r = r.WithContext(ctx)
	r.Body = &steadyBody{http.MaxBytesReader(seen, r.Body, maxBody), ctx, conn, &seen.received}

	var transport http.RoundTripper = sandbox.lines.by(r.ProtoMajor)
	switch p.match.route.Send.As {
	case scopes.SendAWS:
		transport = &signer{p, transport}
	case scopes.SendCertificate:
		transport = p.held.lines.by(r.ProtoMajor)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:        func(out *httputil.ProxyRequest) { p.rewrite(out.Out) },
		ModifyResponse: p.clean,
		ErrorHandler: func(_ http.ResponseWriter, r *http.Request, err error) {
			if cause := context.Cause(r.Context()); cause != nil {
				err = cause
			} else if p.held.life.Err() != nil {
				err = errEnded // its end closed its connections
			}
			seen.refuse(err)
		},
		// ReverseProxy flushes a response of unknown length at once.
		Transport: transport, BufferPool: &copies, ErrorLog: g.below,
	}
	proxy.ServeHTTP(seen, r)
}

// prepare checks the call, finds the rule for it, and gets the credential.
func (p *passage) prepare(r *http.Request) error {
	if upgrade := r.Header.Get("Upgrade"); upgrade != "" && !strings.EqualFold(upgrade, "websocket") {
		return &refusal{code: codeUpgrade}
	}
	if p.target.Port() == "80" {
		return &refusal{code: codePlaintext}
	}
	if r.ContentLength > maxBody {
		return &refusal{code: codeTooLarge}
	}
	// HTTP/2 can carry a blank, which would end the target in a request line of HTTP/1.
	if strings.Contains(p.target.RawQuery, " ") {
		return &refusal{code: codeNoRule, explanation: "the query has a blank that is not escaped"}
	}
	// Match the call that will be sent, not the one that was received.
	call := egressrule.Call{Method: r.Method, Host: p.target.Host, Path: p.target.EscapedPath()}
	var err error
	if p.match, err = p.sandbox.rules.find(r.Context(), call, egressrule.Unusual(r.Header)); err != nil {
		return err
	}
	if !p.sandbox.pace.allows(origin(p.target.Host), p.began) {
		return &refusal{code: codeTooMany, scopes: []string{p.match.scope.Name}, after: time.Second}
	}
	send := p.match.route.Send
	if p.match.scope.Credential != scopes.KindNone {
		if key := send.CredentialIn(p.target.RawQuery); key != "" {
			return &refusal{
				code: codeQuery, scopes: []string{p.match.scope.Name},
				explanation: "the query has the key " + key + ", which usually carries a credential; the gateway adds the credential of the rule, so send the call without the key",
			}
		}
	}
	if send.As == scopes.SendAWS {
		if err := signable(r, send.Service); err != nil {
			return err
		}
	}
	if p.held, err = p.sandbox.credentials.credential(r.Context(), p.match); err != nil {
		return err
	}
	p.mask = newMask(p.held.masked)
	return nil
}

// copies is a pool of buffers for response bodies.
var copies = buffers{sync.Pool{New: func() any { return new([maskAtOnce]byte) }}}

type buffers struct{ sync.Pool }

func (b *buffers) Get() []byte { return b.Pool.Get().(*[maskAtOnce]byte)[:] } //nolint:forcetypeassert // it holds nothing else
func (b *buffers) Put(p []byte) {
	b.Pool.Put((*[maskAtOnce]byte)(p))
}

// rewrite removes the identity that the sandbox claims, and adds the credential, if the call needs one.
func (p *passage) rewrite(out *http.Request) {
	out.URL, out.Host = p.target, p.target.Host
	maps.DeleteFunc(out.Header, func(name string, _ []string) bool { return !p.match.route.Forwards(name) })
	out.Trailer = nil
	out.Header.Set("Accept-Encoding", "identity")
	if beta := p.held.beta; beta != "" && !slices.ContainsFunc(out.Header[anthropicBeta], func(listed string) bool { return strings.Contains(listed, beta) }) {
		out.Header.Set(anthropicBeta, strings.Join(append(out.Header[anthropicBeta], beta), ","))
	}
	if p.held.permit {
		return
	}
	send, value := p.match.route.Send, p.held.value.Reveal()
	switch send.As {
	case scopes.SendBasic:
		out.SetBasicAuth(send.User, value)
	case scopes.SendHeader:
		delete(out.Header, textproto.CanonicalMIMEHeaderKey(send.Name))
		out.Header.Set(send.Name, value)
	case scopes.SendQuery:
		query := out.URL.Query()
		query.Set(send.Name, value)
		withKey := *out.URL
		withKey.RawQuery = query.Encode()
		out.URL = &withKey
	case scopes.SendAWS, scopes.SendCertificate: // the transport adds the credential
	default:
		out.Header.Set("Authorization", "Bearer "+value)
	}
}

// clean removes credentials from a response: those that were sent, and those that the host issues.
func (p *passage) clean(resp *http.Response) error {
	fields := func(h http.Header) {
		for _, name := range []string{"Set-Cookie", "Set-Cookie2", "Alt-Svc"} {
			h.Del(name)
		}
		p.mask.header(h)
	}
	fields(resp.Header)
	fields(resp.Trailer) // the announced names
	if resp.StatusCode != http.StatusSwitchingProtocols {
		resp.Body = p.mask.body(resp.Body, resp.ContentLength, func() { fields(resp.Trailer) })
	}
	return nil
}

// log logs a call that is over, and counts it.
func (p *passage) log(r *http.Request, seen *answer) {
	sent := seen.sent.Load()
	attrs := []slog.Attr{
		slog.String("sandbox", p.sandbox.cfg.ID), slog.String("task", p.sandbox.cfg.Task), slog.String("scope", p.match.scope.Name),
		slog.String("method", p.mask.text(r.Method)), slog.String("host", p.target.Host), slog.String("path", p.match.route.Path),
		slog.Int("status", seen.status), slog.Int64("bytes", sent), slog.Duration("took", p.gateway.cfg.Now().Sub(p.began)),
	}
	if p.held != nil {
		attrs = append(attrs, slog.String("issuance", p.held.id))
	}
	if seen.refused != nil {
		attrs = append(attrs, slog.String("refused", p.mask.text(seen.refused.Error())))
	}
	p.gateway.cfg.Log.LogAttrs(r.Context(), slog.LevelInfo, "egress call", attrs...)
	call := endedCall{
		callKey: callKey{p.target.Host, p.mask.text(r.Method), p.match.route.Path, p.match.scope.Name, codeOf(seen.refused)},
		status:  seen.status, in: seen.received.Load(), out: sent,
	}
	if seen.refused != nil {
		call.status, call.out = 0, 0 // the response is the gateway's, and not the host's
	}
	p.sandbox.recorder.ended(call)
}

// answer records the status of the response to the sandbox, and how many bytes of content the sandbox sent and got.
type answer struct {
	http.ResponseWriter
	status         int
	received, sent atomic.Int64
	refused        error
}

// WriteHeader drops informational responses (1xx), which clean has not checked. It passes 101 on.
func (a *answer) WriteHeader(status int) {
	if status < http.StatusOK && status != http.StatusSwitchingProtocols {
		return
	}
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(p []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	n, err := a.ResponseWriter.Write(p)
	a.sent.Add(int64(n))
	return n, err
}

// refuse sends the sandbox a refusal, and keeps it for the log.
func (a *answer) refuse(err error) {
	a.refused = err
	refuse(a, err)
}

// Hijack implements [http.Hijacker], for the response that ReverseProxy writes itself: 101. The returned connection counts the
// content of the WebSocket.
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(a.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	a.status = http.StatusSwitchingProtocols
	return &countedConn{conn, a}, buffered, nil
}

type countedConn struct {
	net.Conn
	of *answer
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.of.received.Add(int64(n))
	return n, err
}

func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.of.sent.Add(int64(n))
	return n, err
}

// Unwrap lets [http.ResponseController] reach the connection.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// steadyBody is a body with a read timeout: a read fails if the sandbox sends nothing for bodyPause, or if ctx has ended. After
// the end of the body there is no deadline, so the response may take any time.
type steadyBody struct {
	io.ReadCloser
	ctx  context.Context //nolint:containedctx // the call's
	conn *http.ResponseController
	size *atomic.Int64 // bytes read so far
}

func (b *steadyBody) Read(p []byte) (int, error) {
	_ = b.conn.SetReadDeadline(time.Now().Add(bodyPause)) //nolint:forbidigo // for a connection, not for a decision
	if b.ctx.Err() != nil {                               // checked after the deadline is set, so that the shorter one of pass wins
		return 0, context.Cause(b.ctx)
	}
	n, err := b.ReadCloser.Read(p)
	b.size.Add(int64(n))
	if errors.Is(err, io.EOF) {
		_ = b.conn.SetReadDeadline(time.Time{})
	}
	return n, err
}
