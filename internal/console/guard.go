package console

import (
	"net/http"
	"strings"

	"github.com/brevet-dev/brevet/internal/ratelimit"
)

// policy is the Content-Security-Policy of every page. The browser runs and loads only files in this binary, and no
// site may frame a page.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// mostBody is the largest size of a request body, in bytes.
const mostBody = 2 << 20

// guarded applies the checks that every request needs: the host, the origin, the rate and the size. It also sets the
// security headers.
func (c *Console) guarded(next http.Handler) http.Handler {
	crossing := http.NewCrossOriginProtection()
	crossing.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { c.fail(w, r, nil, errForeignPage) }))
	checked := crossing.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.protect(w.Header())
		if !strings.EqualFold(r.Host, c.origin.Host) {
			http.Error(w, "Unknown host. Open the console at "+c.origin.String(), http.StatusMisdirectedRequest)
			return
		}
		if foreign(r) {
			c.fail(w, r, nil, errForeignPage)
			return
		}
		if !c.strangers.Allow(ratelimit.RemoteIP(r), c.cfg.Now()) {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "Rate limit exceeded for your address. Wait a second and retry.", http.StatusTooManyRequests)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, mostBody)
		checked.ServeHTTP(w, r)
	})
}

// foreign reports whether the browser sent the request on behalf of another site. Links that a person follows are allowed.
// Other sites must not load anything from the console or act in it.
func foreign(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	follows := r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
	return (site == "cross-site" || site == "same-site") && !follows
}

func (c *Console) protect(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=(), publickey-credentials-create=(self), publickey-credentials-get=(self)")
	h.Set("Cache-Control", "no-store")
	if c.origin.Scheme == "https" {
		h.Set("Strict-Transport-Security", "max-age=31536000")
	}
}

// Limits for one person, as at the API: nobody exceeds them by hand. Limits for an address are higher, because many people
// can share one behind a proxy.
const (
	callsPerSecond        = 20
	callsAtOnce           = 200
	addressCallsPerSecond = 200
	addressCallsAtOnce    = 1000
)
