package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/internal/ratelimit"
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

// call is what is noted about one call, for the log, the metrics and the record of a refusal. Who calls is not in
// it: the identity travels as an argument.
type call struct {
	id        string
	operation string // the operation id, "none" until it is known
	code      ProblemCode
	relayed   bool // a gateway asks about somebody else's
	bootstrap bool // the log says already that the bootstrap admin calls
}

type callKey struct{}

func callOf(r *http.Request) *call { return r.Context().Value(callKey{}).(*call) }

// observed wraps the router in all that every call gets: a trace, an id, a log line, metrics, and a net below it.
func (s *Server) observed(next http.Handler) http.Handler {
	_, untraced := otel.GetTracerProvider().(noop.TracerProvider)
	return unforwarded(otelhttp.NewHandler(s.noted(s.guarded(next)), "none",
		// A span costs the same when nobody keeps it.
		otelhttp.WithFilter(func(*http.Request) bool { return !untraced }),
		// A sandbox may name the trace it belongs to, which becomes a link. Its baggage is dropped.
		otelhttp.WithPublicEndpointFn(func(*http.Request) bool { return true }),
		otelhttp.WithPropagators(propagation.TraceContext{})))
}

// unforwarded takes away what a caller says of where it comes from, before a library believes it (H29).
func unforwarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = keepForwarded(r)
		for _, header := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip"} {
			r.Header.Del(header)
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Server) noted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &call{id: uuid.NewString(), operation: "none"}
		// What a caller puts into a path may be anything: a token, say. The name of the span tells the route.
		trace.SpanFromContext(r.Context()).SetAttributes(attribute.String("url.path", ""), attribute.String("url.query", ""))
		r = r.WithContext(context.WithValue(r.Context(), callKey{}, c))
		out, start := middleware.NewWrapResponseWriter(w, r.ProtoMajor), s.cfg.Now()
		s.metrics.inFlight.Inc()
		defer func() {
			s.metrics.inFlight.Dec()
			s.note(r, out, s.cfg.Now().Sub(start))
		}()
		h := out.Header()
		h.Set("Request-Id", c.id)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		// With a transfer coding, and maybe a length beside it, what somebody in between takes for the end of the call may be
		// another place than where Go sees it: what follows is nobody's call (RFC 9112, section 6.1).
		if s.aged(r) || len(r.TransferEncoding) > 0 {
			h.Set("Connection", "close")
		}
		next.ServeHTTP(out, r)
	})
}

func (s *Server) note(r *http.Request, out middleware.WrapResponseWriter, took time.Duration) {
	c := callOf(r)
	s.metrics.requests.WithLabelValues(c.operation, strconv.Itoa(out.Status())).Inc()
	s.metrics.duration.WithLabelValues(c.operation).Observe(took.Seconds())
	s.cfg.Log.InfoContext(r.Context(), "call answered",
		"request_id", c.id, "operation", c.operation, "status", out.Status(), "code", string(c.code),
		"bytes", out.BytesWritten(), "duration_ms", took.Milliseconds(), "remote", ratelimit.RemoteIP(r))
}

// guarded refuses what must not reach the router, and turns a panic into a problem.
func (s *Server) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer s.recovered(w, r)
		_, check := checked(r)
		switch {
		case check:
			// What is odd about its host, path or origin is the call's that it is about.
			s.CheckCall(w, r)
		case !s.ourHost(r.Host) && !probes(r):
			s.fail(w, r, nobody, &requestError{kind: errMisdirected, detail: "host"})
		case !plainPath(r):
			s.fail(w, r, nobody, &requestError{kind: errNoRoute, detail: "path_form"})
		case foreignPage(r):
			s.fail(w, r, nobody, &requestError{kind: errForeignPage, detail: "cross_origin"})
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// probes tells whether a call asks how the replica does. Balancers and kubelets ask by address, and the answer is the same for every name.
func probes(r *http.Request) bool { return r.URL.Path == "/livez" || r.URL.Path == "/readyz" }

// recovered answers a panic. The value may hold anything, so the log gets its type and the stack, whose arguments
// are addresses.
func (s *Server) recovered(w http.ResponseWriter, r *http.Request) {
	v := recover()
	if v == nil {
		return
	}
	c := callOf(r)
	c.code = CodeInternal
	s.cfg.Log.ErrorContext(r.Context(), "call panicked",
		"request_id", c.id, "operation", c.operation, "panic", fmt.Sprintf("%T", v), "stack", string(debug.Stack()))
	// An answer that has begun cannot become another; cutting it off is how the caller learns.
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

// plainPath says whether a path has one spelling only: no escapes, no empty or dotted segments, no trailing slash.
func plainPath(r *http.Request) bool {
	p := r.URL.Path
	return r.URL.RawPath == "" && r.URL.EscapedPath() == p && path.Clean(p) == p
}

// foreignPage says whether a browser calls for a page of somebody else, or shows the answer in a frame (H91). Nothing
// here is for browsers, and what they add to a call by themselves must never vote.
func foreignPage(r *http.Request) bool {
	framed := slices.Contains([]string{"iframe", "frame", "embed", "object"}, r.Header.Get("Sec-Fetch-Dest"))
	return framed || http.NewCrossOriginProtection().Check(r) != nil
}

// underAPI says whether a call was meant for what is called as somebody, however its path is spelled.
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
		s.fail(w, r, nobody, &requestError{kind: errNoRoute, detail: "path"})
		return
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	s.fail(w, r, nobody, &requestError{kind: errMethod, detail: "method"})
}

// begin notes which operation a call is for.
func (s *Server) begin(r *http.Request, operation string) {
	callOf(r).operation = operation
	if route, ok := s.rules.routes[operation]; ok {
		trace.SpanFromContext(r.Context()).SetName(route.Method + " " + route.Path)
	}
}
