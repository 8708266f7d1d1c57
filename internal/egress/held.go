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
	// confirmEvery is how often Brevet is asked whether a credential that is in use is alive.
	confirmEvery = 250 * time.Millisecond
	// confirmWithin bounds one such question, and confirmTries how often it is put while a call waits for the answer.
	confirmWithin = 600 * time.Millisecond
	confirmTries  = 3
	// fresh is for how long a yes counts for calls that begin: what has ended is of no use a second later.
	fresh = 900 * time.Millisecond
	// mostUses is how many can be reported.
	mostUses = 1_000_000_000
	// patience is for how long what is under way goes on while Brevet cannot be asked.
	patience = 3 * time.Second
)

// errEnded is why a call was broken off: its credential is not alive any more.
var errEnded = errors.New("the credential has ended")

// held is a credential that is alive as far as anybody knows.
type held struct {
	id    string
	scope string
	user  string      // of a login, or the id of a key of AWS's
	value secret.Text // what is sent, or signed by: a token, a key, a password
	// session is what goes with a key of AWS's that is for a while, and lines are the connections of a certificate.
	session secret.Text
	lines   lines
	// masked are the forms in which it must not come back.
	masked []secret.Text
	ends   time.Time

	life context.Context //nolint:containedctx // what is done with the credential ends with it
	end  context.CancelCauseFunc

	calls     atomic.Int64 // that it was used for
	used      atomic.Pointer[time.Time]
	users     atomic.Int64
	open      atomic.Int64 // connections with its certificate
	touched   atomic.Bool  // since it was last confirmed
	confirmed atomic.Pointer[time.Time]
}

// ready tells whether it may be used without asking.
func (h *held) ready(now time.Time) bool {
	return h.alive(now) && now.Sub(*h.confirmed.Load()) < fresh
}

func (h *held) alive(now time.Time) bool { return h.life.Err() == nil && now.Before(h.ends) }

// confirm asks whether it is alive, and ends it when it is not. An error is that nobody can tell.
func (h *held) confirm(ctx context.Context, broker *client.Client, now func() time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, confirmWithin)
	defer cancel()
	began := now() // an end that is acknowledged after this may not be in the answer
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

// watch confirms it for as long as it is used, or a connection with its certificate is open, and ends it when it cannot be confirmed
// while it is used: what is under way breaks off then.
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

// count has one more call reported.
func (h *held) count(now time.Time) {
	h.calls.Add(1)
	h.used.Store(&now)
}

// use begins a call with it: the context ends with the credential, and done says that the call is over.
func (h *held) use(ctx context.Context) (using context.Context, done func()) {
	h.users.Add(1)
	h.touched.Store(true)
	using, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(h.life, func() { cancel(errEnded) })
	return using, func() {
		stop()
		cancel(nil)
		h.touched.Store(true) // it is confirmed once more: a host may be the first to know of its end
		h.users.Add(-1)
	}
}

// uses is what is reported of it.
func (h *held) uses() openapi.UseRequest {
	said := openapi.UseRequest{Calls: min(h.calls.Load(), mostUses)}
	if last := h.used.Load(); last != nil {
		said.LastUsedAt = last.UTC()
	}
	return said
}
