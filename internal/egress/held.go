package egress

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/openapi"
)

const (
	// confirmEvery is how often the gateway asks Brevet whether a credential in use is alive.
	confirmEvery = 250 * time.Millisecond
	// confirmWithin bounds one such request. confirmTries is how often the gateway sends it while a call waits for the result.
	confirmWithin = 600 * time.Millisecond
	confirmTries  = 3
	// fresh is how long a confirmation is good for new calls. A credential that has ended must be unusable one second later.
	fresh = 900 * time.Millisecond
	// mostUses is the greatest number of uses that a report can hold.
	mostUses = 1_000_000_000
	// patience is how long calls in progress continue while Brevet can't be reached.
	patience = 3 * time.Second
)

// errEnded is the cause of an aborted call: its credential is no longer alive.
var errEnded = errors.New("the credential has ended")

// held is a credential that is alive as far as the gateway knows.
type held struct {
	id    string
	scope string
	user  string      // of a login, or the id of an AWS key
	value secret.Text // what is sent, or signs the call: a token, a key, a password
	// session is the session token of a temporary AWS key. lines are the connections that present a certificate.
	session secret.Text
	lines   lines
	// masked are all spellings of the credential that responses must not contain.
	masked []secret.Text
	ends   time.Time

	life context.Context //nolint:containedctx // what is done with the credential ends with it
	end  context.CancelCauseFunc

	calls     atomic.Int64 // calls that used the credential
	used      atomic.Pointer[time.Time]
	users     atomic.Int64
	open      atomic.Int64 // connections that present its certificate
	touched   atomic.Bool  // whether it was used since it was last confirmed
	confirmed atomic.Pointer[time.Time]
}

// ready reports whether the credential may be used without asking Brevet.
func (h *held) ready(now time.Time) bool {
	return h.alive(now) && now.Sub(*h.confirmed.Load()) < fresh
}

func (h *held) alive(now time.Time) bool { return h.life.Err() == nil && now.Before(h.ends) }

// confirm asks Brevet whether the credential is alive, and ends it if it is not. It returns an error if Brevet can't be asked.
func (h *held) confirm(ctx context.Context, broker *client.Client, now func() time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, confirmWithin)
	defer cancel()
	began := now() // the response may miss an end that is acknowledged after this
	h.touched.Store(false)
	state, err := broker.State(ctx, h.id)
	if errors.Is(err, client.ErrNotFound) || err == nil && !state.InForce {
		h.end(errEnded)
		return nil
	}
	if err == nil {
		h.confirmed.Store(&began)
	}
	return err
}

// watch confirms the credential at intervals while it is in use or a connection with its certificate is open. If Brevet can't
// confirm it for longer than patience during use, watch ends it, which aborts the calls in progress.
func (h *held) watch(broker *client.Client, now func() time.Time) {
	ticker := time.NewTicker(confirmEvery)
	defer ticker.Stop()
	for {
		select {
		case <-h.life.Done():
			return
		case <-ticker.C:
		}
		if !now().Before(h.ends) {
			h.end(errEnded)
			return
		}
		if h.users.Load() == 0 && h.open.Load() == 0 && !h.touched.Load() {
			continue
		}
		if err := h.confirm(h.life, broker, now); err != nil && h.users.Load() > 0 && now().Sub(*h.confirmed.Load()) > patience {
			h.end(errEnded)
		}
	}
}

// count adds one call to the report.
func (h *held) count(now time.Time) {
	h.calls.Add(1)
	h.used.Store(&now)
}

// use starts a call with the credential. The returned context ends with the credential. The caller calls done when the call is
// over.
func (h *held) use(ctx context.Context) (using context.Context, done func()) {
	h.users.Add(1)
	h.touched.Store(true)
	using, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(h.life, func() { cancel(errEnded) })
	return using, func() {
		stop()
		cancel(nil)
		h.touched.Store(true) // confirm it once more: a host may learn of its end first
		h.users.Add(-1)
	}
}

// uses returns the report of the credential's use.
func (h *held) uses() openapi.UseRequest {
	said := openapi.UseRequest{Calls: min(h.calls.Load(), mostUses)}
	if last := h.used.Load(); last != nil {
		said.LastUsedAt = last.UTC()
	}
	return said
}
