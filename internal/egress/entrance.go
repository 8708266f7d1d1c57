package egress

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"
)

// entrance is where calls come in: as a proxy's, or by a base URL.
type entrance struct {
	gateway *Gateway
	who     Caller
}

// ServeHTTP implements [http.Handler].
func (e *entrance) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	sandbox, err := e.who(r)
	if err != nil {
		e.turnAway(w, r, err)
		return
	}
	switch {
	case r.Method == http.MethodConnect:
		e.connect(w, r, sandbox)
	case r.URL.IsAbs():
		e.absolute(w, r, sandbox)
	default:
		e.below(w, r, sandbox)
	}
}

// maxTarget is the longest name with a port.
const maxTarget = 253 + len(":65535")

// turnAway asks for a password where one would do.
func (e *entrance) turnAway(w http.ResponseWriter, r *http.Request, err error) {
	status, field := http.StatusProxyAuthRequired, "Proxy-Authenticate"
	switch {
	case !errors.Is(err, errCaller):
		e.gateway.cfg.Log.WarnContext(r.Context(), "egress caller is not known", "error", err)
		refuse(w, &refusal{code: codeCaller})
		return
	case r.Method != http.MethodConnect && !r.URL.IsAbs():
		status, field = http.StatusUnauthorized, "WWW-Authenticate"
	}
	w.Header().Set(field, `Basic realm="brevet egress"`)
	w.WriteHeader(status)
}

// connect opens a tunnel to the gateway itself. Nothing is called before there is a call in it.
func (e *entrance) connect(w http.ResponseWriter, r *http.Request, sandbox *Sandbox) {
	target := strings.ToLower(r.Host)
	host, port, err := net.SplitHostPort(target)
	if err != nil || host == "" || port == "" || len(target) > maxTarget {
		refuse(w, &refusal{code: codeMisdirected})
		return
	}
	if _, err := netip.ParseAddr(host); err == nil {
		refuse(w, &refusal{code: codeNoRule, explanation: "egress rules have names of hosts, and no addresses"})
		return
	}
	leave, ok := sandbox.tunnels.take(mostTunnels)
	if !ok {
		refuse(w, &refusal{code: codeTooMany, after: time.Minute})
		return
	}
	t := &tunnel{whose: func() (*Sandbox, error) { return e.who(r) }, target: target, closed: leave}
	if err := e.gateway.open(w, t); err != nil {
		e.gateway.cfg.Log.DebugContext(r.Context(), "opening a tunnel", "error", err)
	}
}

// absolute is a call that names its host in the request line, as clients do with a proxy for what is not over TLS.
func (e *entrance) absolute(w http.ResponseWriter, r *http.Request, sandbox *Sandbox) {
	switch {
	case r.URL.Scheme != "https":
		refuse(w, &refusal{code: codePlaintext})
	case r.URL.User != nil:
		refuse(w, &refusal{code: codeMisdirected})
	default:
		e.gateway.pass(w, r, sandbox, r.URL)
	}
}

// below is a call whose path begins with its host, for programs that can be given a base URL and no proxy.
func (e *entrance) below(w http.ResponseWriter, r *http.Request, sandbox *Sandbox) {
	host, path, found := strings.Cut(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
	target, err := url.Parse("https://" + host + "/" + path)
	if !found || err != nil || target.User != nil || target.Host != host {
		refuse(w, &refusal{code: codeNoRule, explanation: "the path begins with no host: a base URL is that of the gateway, a slash, and the host"})
		return
	}
	target.RawQuery = r.URL.RawQuery
	e.gateway.pass(w, r, sandbox, target)
}

// fromTunnel is a call over TLS, which is for the host that the tunnel was opened for or for nobody.
func (g *Gateway) fromTunnel(w http.ResponseWriter, r *http.Request) {
	t, ok := r.Context().Value(tunnelKey{}).(*tunnel)
	if !ok || r.Method == http.MethodConnect || r.URL.IsAbs() || origin(r.Host) != origin(t.target) {
		refuse(w, &refusal{code: codeMisdirected})
		return
	}
	sandbox, err := t.whose()
	if err != nil {
		refuse(w, &refusal{code: codeCaller, cause: err})
		return
	}
	target := *r.URL
	target.Scheme, target.Host = "https", origin(t.target)
	g.pass(w, r, sandbox, &target)
}

// origin is a host and port in one spelling.
func origin(host string) string { return strings.TrimSuffix(strings.ToLower(host), ":443") }
