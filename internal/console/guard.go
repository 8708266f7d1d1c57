package console

import (
	"net/http"
	"strings"

	"github.com/brevet-dev/brevet/internal/ratelimit"
)

// policy is the Content-Security-Policy of every page: nothing runs, loads or frames but what is in this binary.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// mostBody is the most bytes that a form may have.
const mostBody = 2 << 20

// guarded is what holds for every call: its host, where it comes from, how much it may send, and what browsers may do with
// the answer.
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
		if !c.strangers.Allows(ratelimit.RemoteIP(r), c.cfg.Now()) {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "Rate limit exceeded for your address. Wait a second and retry.", http.StatusTooManyRequests)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, mostBody)
		checked.ServeHTTP(w, r)
	})
}

// foreign tells of a call that a browser makes for another site, and that is no link which somebody follows: nothing here is to be
// had from within the pages of others, nor to be done by them.
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

// A person's calls, as at the API: beyond that it is no person. An address may be that of many, behind a proxy.
const (
	callsPerSecond        = 20
	callsAtOnce           = 200
	addressCallsPerSecond = 200
	addressCallsAtOnce    = 1000
)
