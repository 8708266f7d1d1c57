package webhook

import (
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/secret"
)

// Internals that the tests use.
var (
	RetryAfter = retryAfter
	ErrAnswer  = errAnswer
)

// Sign returns the signature of a body.
func Sign(whsec, id string, at time.Time, body []byte) (string, error) {
	keys, err := parseKeys(secret.New(whsec))
	return signature(keys, id, at, body), err
}

// Body returns the request body for a notice.
func Body(s Spec, n broker.Notice, link string) ([]byte, error) {
	h, err := newHook(s)
	if err != nil {
		return nil, err
	}
	return h.body(n, link)
}
