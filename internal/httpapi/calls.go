package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/brevet-dev/brevet/internal/clientip"
	. "github.com/brevet-dev/brevet/openapi"
	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/google/uuid"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// call collects what the log, the metrics and the record of a refusal need to know about one call. It does not hold the caller:
// the identity is passed as an argument.
type call struct {
	id        string
	operation string // the operation id, "none" until it is known
	code      ProblemCode
	relayed   bool // a gateway asks about the call of another caller
	bootstrap bool // the log already says that the bootstrap admin calls
}

type callKey struct{}

func callOf(r *http.Request) *call { return r.Context().Value(callKey{}).(*call) }

// observed wraps the router in what every call gets: a trace, a request id, a log line, metrics, and recovery from panics.
func (s *Server) observed(next http.Handler) http.Handler {
	_, untraced := otel.GetTracerProvider().(noop.TracerProvider)
	traced := otelhttp.NewHandler(s.noted(s.guarded(next)), "none",
		// A span costs the same whether or not it is exported, so none is created without a tracer provider.
		otelhttp.WithFilter(func(*http.Request) bool { return !untraced }),
		// A sandbox may name its trace in the call. The span links to that trace, and drops its baggage.
		otelhttp.WithPublicEndpointFn(func(*http.Request) bool { return true }),
		otelhttp.WithPropagators(propagation.TraceContext{}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		growStack(false)
		if _, ok := checked(r); ok {
			r = r.WithContext(context.WithValue(r.Context(), forwardedKey{}, r.Header.Values(forwardedHost)))
		}
		r = s.cfg.TrustedProxies.Resolve(r)
		// In these headers a caller claims where it comes from. They go before a library trusts them (H29).
		for _, header := range []string{"Forwarded", "X-Forwarded-For", forwardedHost, "X-Forwarded-Proto", "X-Real-Ip"} {
			r.Header.Del(header)
		}
		traced.ServeHTTP(w, r)
	})
}

// growStack grows the stack of a call's goroutine once, to the 32 KiB that most calls need, while it has few frames. Otherwise the stack
// grows twice in the middle of a call, and each time Go has to adjust dozens of frames. The caller never uses the room: the frame has
// its size anyway, and need not be cleared.
//
//go:noinline
func growStack(use bool) {
	if use {
		var room [20 << 10]byte
		runtime.KeepAlive(&room)
	}
}

func (s *Server) noted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &call{id: uuid.NewString(), operation: "none"}
		// A caller can put anything into a path, even a token, so the span does not record the path. Its name contains the route.
		trace.SpanFromContext(r.Context()).SetAttributes(attribute.String("url.path", ""), attribute.String("url.query", ""))
		r = r.WithContext(context.WithValue(r.Context(), callKey{}, c))
		out, start := middleware.NewWrapResponseWriter(w, r.ProtoMajor), s.cfg.Now()
		s.metrics.inFlight.Inc()
		defer func() {
			took := s.cfg.Now().Sub(start)
			s.metrics.inFlight.Dec()
			s.metrics.requests.WithLabelValues(c.operation, strconv.Itoa(out.Status())).Inc()
			s.metrics.duration.WithLabelValues(c.operation).Observe(took.Seconds())
			s.cfg.Log.InfoContext(r.Context(), "call answered",
				"request_id", c.id, "operation", c.operation, "status", out.Status(), "code", string(c.code),
				"bytes", out.BytesWritten(), "duration_ms", took.Milliseconds(), "remote", clientip.RemoteIP(r))
		}()
		h := out.Header()
		h.Set("Request-Id", c.id)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		// With a transfer coding, and perhaps a Content-Length too, a proxy may find the end of this call at another place than
		// Go does. What follows on the connection must not be read as a call (RFC 9112, section 6.1).
		if s.aged(r) || len(r.TransferEncoding) > 0 {
			h.Set("Connection", "close")
		}
		next.ServeHTTP(out, r)
	})
}

// guarded refuses calls that must not reach the router, and turns a panic into a problem.
func (s *Server) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer s.recovered(w, r)
		_, check := checked(r)
		// Load balancers and kubelets probe by address, and the response is the same for every host name.
		probe := r.URL.Path == "/livez" || r.URL.Path == "/readyz"
		switch {
		case check:
			// An unusual host, path or origin belongs to the forwarded call, not to this one.
			s.CheckCall(w, r)
		case !s.ourHost(r.Host) && !probe:
			s.fail(w, r, nobody, &requestError{kind: errMisdirected, detail: "host"})
		case r.URL.RawPath != "" || r.URL.EscapedPath() != r.URL.Path || path.Clean(r.URL.Path) != r.URL.Path:
			// The path has another spelling: escapes, empty or dotted segments, or a trailing slash.
			s.fail(w, r, nobody, unknown("path_form"))
		case foreignPage(r):
			s.fail(w, r, nobody, &requestError{kind: errForeignPage, detail: "cross_origin"})
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// recovered answers a call whose handler panicked. The panic value may contain anything, so the log gets only its type and the
// stack, which shows arguments as addresses.
func (s *Server) recovered(w http.ResponseWriter, r *http.Request) {
	v := recover()
	if v == nil {
		return
	}
	c := callOf(r)
	c.code = CodeInternal
	s.cfg.Log.ErrorContext(r.Context(), "call panicked",
		"request_id", c.id, "operation", c.operation, "panic", fmt.Sprintf("%T", v), "stack", string(debug.Stack()))
	// A response that has begun cannot be replaced. Cutting it off shows the caller that it failed.
	if out, ok := w.(middleware.WrapResponseWriter); !ok || out.Status() != 0 {
		panic(http.ErrAbortHandler)
	}
	s.fail(w, r, nobody, errFault)
}

func (s *Server) ourHost(host string) bool {
	host = strings.ToLower(host)
	if s.hosts[host] {
		return true
	}
	name, _, found := strings.Cut(host, ":")
	if end := strings.LastIndex(host, "]:"); end >= 0 {
		name, found = host[:end+1], true
	}
	return found && s.hosts[name]
}

// foreignPage reports whether a browser sends this call for a page of another site, or shows the response in a frame (H91). This
// API is not for browsers, and credentials that a browser adds by itself must never cast a vote.
func foreignPage(r *http.Request) bool {
	framed := slices.Contains([]string{"iframe", "frame", "embed", "object"}, r.Header.Get("Sec-Fetch-Dest"))
	return framed || crossOrigin.Check(r) != nil
}

var crossOrigin = http.NewCrossOriginProtection()

// underAPI reports whether a call was meant for an operation that requires authentication, however its path is spelled.
func underAPI(r *http.Request) bool {
	return slices.ContainsFunc(strings.Split(r.URL.Path, "/"), func(part string) bool { return part == "v1" || part == "oauth2" })
}

func (s *Server) methodNotAllowed(w http.ResponseWriter, r *http.Request) {
	var allowed []string
	for _, method := range []string{http.MethodDelete, http.MethodGet, http.MethodPost, http.MethodPut} {
		if s.router.Match(chi.NewRouteContext(), method, r.URL.Path) {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) == 0 {
		s.fail(w, r, nobody, unknown("path"))
		return
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	s.fail(w, r, nobody, &requestError{kind: errMethod, detail: "method"})
}

// parameterError answers a call whose parameters the generated code could not bind. It runs before the operation, so it
// authenticates the caller first, like an operation.
func (s *Server) parameterError(w http.ResponseWriter, r *http.Request, cause error) {
	operation, pattern := "none", chi.RouteContext(r.Context()).RoutePattern()
	for id, rule := range s.rules {
		if rule.Method == r.Method && rule.Path == pattern {
			operation = id
		}
	}
	serve(s, w, r, operation, func(caller) error {
		f := &requestError{kind: errParameter, detail: "parameter_form"}
		if missing, ok := errors.AsType[*RequiredParamError](cause); ok {
			f.field, f.why = missing.ParamName, missing.ParamName+" is missing"
		}
		return f
	})
}

// begin records the operation of a call.
func (s *Server) begin(r *http.Request, operation string) {
	callOf(r).operation = operation
	if rule, ok := s.rules[operation]; ok {
		trace.SpanFromContext(r.Context()).SetName(rule.Method + " " + rule.Path)
	}
}
