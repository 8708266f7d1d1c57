package webhook

import (
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/secret"
)

// What the tests of this package see of its inside.
var (
	RetryAfter = retryAfter
	ErrAnswer  = errAnswer
)

// Sign returns the signature of a body.
func Sign(whsec, id string, at time.Time, body []byte) (string, error) {
	keys, err := parseKeys(secret.New(whsec))
	return signature(keys, id, at, body), err
}

// Body is what a webhook would be sent.
func Body(s Spec, n broker.Notice, link string) ([]byte, error) {
	h, err := newHook(s)
	if err != nil {
		return nil, err
	}
	return h.body(n, link)
}
