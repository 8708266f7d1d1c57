package httpapi

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	. "github.com/brevet-dev/brevet/openapi"
)

const (
	probeTimeout = 2 * time.Second
	// healthLife is how long a result is reused, so that unauthenticated clients cannot overload the stores.
	healthLife = time.Second
)

// going is the state of a replica that is about to stop, regardless of its checks.
var going = Health{Status: HealthFailing, Checks: map[string]HealthStatus{"running": HealthFailing}}

// health runs the readiness checks, at most once per healthLife.
type health struct {
	checks []Check
	log    *slog.Logger
	now    func() time.Time

	mu   sync.Mutex
	last Health
	at   time.Time
}

func (h *health) state(ctx context.Context) Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := h.now(); h.at.IsZero() || now.Sub(h.at) >= healthLife {
		// Other callers share the result, so the first caller must not be able to cancel it.
		h.last, h.at = h.probe(context.WithoutCancel(ctx)), now
	}
	return h.last
}

func (h *health) probe(ctx context.Context) Health {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	failures := make([]error, len(h.checks))
	var wg sync.WaitGroup
	for i, check := range h.checks {
		wg.Go(func() { failures[i] = check.Probe(ctx) })
	}
	wg.Wait()
	out := Health{Status: HealthOK, Checks: map[string]HealthStatus{}}
	for i, check := range h.checks {
		out.Checks[check.Name] = HealthOK
		if failures[i] != nil {
			out.Status, out.Checks[check.Name] = HealthFailing, HealthFailing
			h.log.WarnContext(ctx, "readiness check failing", "check", check.Name, "error", failures[i])
		}
	}
	return out
}

// Live reports that the process answers.
func (s *Server) Live(w http.ResponseWriter, r *http.Request) {
	s.begin(r, "live")
	writeJSON(w, http.StatusOK, Health{Status: HealthOK})
}

// Ready reports for each check whether it passes, but not why.
func (s *Server) Ready(w http.ResponseWriter, r *http.Request) {
	s.begin(r, "ready")
	state, status := going, http.StatusOK
	if !s.leaving.Load() {
		state = s.health.state(r.Context())
	}
	if state.Status != HealthOK {
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
	}
	writeJSON(w, status, state)
}

// writeNoContent answers that an order was executed.
func writeNoContent(w http.ResponseWriter) {
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusNoContent)
}

// writeJSON writes a response that caches must not store.
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	writeBody(w, status, v)
}
