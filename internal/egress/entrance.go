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

// entrance handles incoming calls, which arrive as to a proxy or by a base URL.
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

// maxTarget is the greatest length of a host name with a port.
const maxTarget = 253 + len(":65535")

// turnAway answers a call that belongs to no known sandbox. It asks for the password if that is what is missing.
func (e *entrance) turnAway(w http.ResponseWriter, r *http.Request, err error) {
	status, field := http.StatusProxyAuthRequired, "Proxy-Authenticate"
	switch {
	case !errors.Is(err, errCaller):
		e.gateway.cfg.Log.WarnContext(r.Context(), "egress caller not identified", "error", err)
		refuse(w, &refusal{code: codeCaller})
		return
	case r.Method != http.MethodConnect && !r.URL.IsAbs():
		status, field = http.StatusUnauthorized, "WWW-Authenticate"
	}
	w.Header().Set(field, `Basic realm="brevet egress"`)
	w.WriteHeader(status)
}

// connect opens a tunnel that ends at the gateway itself. The gateway connects to no host until a call comes through the
// tunnel.
func (e *entrance) connect(w http.ResponseWriter, r *http.Request, sandbox *Sandbox) {
	target := strings.ToLower(r.Host)
	host, port, err := net.SplitHostPort(target)
	if err != nil || host == "" || port == "" || len(target) > maxTarget {
		refuse(w, &refusal{code: codeMisdirected})
		return
	}
	if _, err := netip.ParseAddr(host); err == nil {
		refuse(w, &refusal{code: codeNoRule, explanation: "egress rules match host names, not IP addresses"})
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

// absolute handles a call that names its host in the request line. Clients send such a call to a proxy if the URL is not https.
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

// below handles a call whose path begins with its host, for programs that accept a base URL but no proxy.
func (e *entrance) below(w http.ResponseWriter, r *http.Request, sandbox *Sandbox) {
	host, path, found := strings.Cut(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
	target, err := url.Parse("https://" + host + "/" + path)
	if !found || err != nil || target.User != nil || target.Host != host {
		refuse(w, &refusal{code: codeNoRule, explanation: "the path does not begin with a host: a base URL is the gateway's URL, a slash and the host"})
		return
	}
	target.RawQuery = r.URL.RawQuery
	e.gateway.pass(w, r, sandbox, target)
}

// fromTunnel handles a call from a tunnel. It refuses a call for another host than the one that the tunnel was opened for.
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

// origin returns a host and port in canonical form: lower case, without ":443".
func origin(host string) string { return strings.TrimSuffix(strings.ToLower(host), ":443") }
