package egress

import (
	"io"
	"net/http"

	"github.com/brevet-dev/brevet/internal/secret"
)

// MaxTunnels is how many tunnels a sandbox may have open.
const MaxTunnels = maxTunnels

// MaxConns is how many connections a listener may have open of sandboxes.
const MaxConns = maxConns

// Masked returns a reader of a body with the secrets masked.
func Masked(body io.Reader, secrets ...string) io.Reader {
	var texts []secret.Text
	for _, one := range secrets {
		texts = append(texts, secret.New(one))
	}
	return newMask(texts).body(io.NopCloser(body), -1, func() http.Header { return nil })
}

// HasAllRoom reports whether no body of the sandbox that is read whole takes room now.
func HasAllRoom(s *Sandbox) bool {
	if !s.bodies.TryAcquire(maxSignedAtOnce) {
		return false
	}
	s.bodies.Release(maxSignedAtOnce)
	return true
}

// SameExchange reports whether a token may be exchanged by a rule.
var SameExchange = sameExchange
