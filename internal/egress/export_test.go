package egress

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/openapi"
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
	return newMask(texts).body(io.NopCloser(body), -1, func() {})
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

// The times of a Recorder.
const (
	FirstPause   = firstPause
	LongestPause = longestPause
	AbortWithin  = abortWithin
	FinalWithin  = finalWithin
)

// Recorder counts calls without a gateway.
type Recorder struct{ *recorder }

// NewRecorder returns a recorder whose reports go to report.
func NewRecorder(report func(context.Context, openapi.CallReport) error, log *slog.Logger) Recorder {
	return Recorder{newRecorder(report, time.Now, log)}
}

// Begin begins a call.
func (r Recorder) Begin() { r.begin() }

// Ended ends a call that began, with the text fields of the row.
func (r Recorder) Ended(row openapi.CallRow, status int, in, out int64) {
	r.ended(endedCall{callKey{row.Host, row.Method, row.Path, row.Scope, row.Refused}, status, in, out})
}

// Call begins and ends a call.
func (r Recorder) Call(row openapi.CallRow, status int, in, out int64) {
	r.Begin()
	r.Ended(row, status, in, out)
}

// Close sends the last report.
func (r Recorder) Close(ctx context.Context) { r.close(ctx) }
