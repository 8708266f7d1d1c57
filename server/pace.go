package server

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// A person's calls: a few for each thing that they look at, more at once when they decide on many. Beyond that it is no
// person (H95).
const (
	callsPerSecond = 20
	callsAtOnce    = 200
	// pollsPerSecond is one each pollAfter, a second less for the sake of the network.
	pollsPerSecond = 1.0 / (pollAfter - 1)
	// A sandbox reads what it may ask for once, and again after a change. Each time, all policies are held against all scopes.
	offersPerSecond = 1
	offersAtOnce    = 10
	// A gateway reports once of each credential, and of all that it holds for a sandbox when it stops.
	reportsPerSecond = 20
	reportsAtOnce    = 1000
	// mostPaced bounds the memory. They are few, and who is forgotten begins anew.
	mostPaced = 10_000
)

// pace holds back each one who calls too often.
type pace struct {
	limit rate.Limit
	burst int
	mu    sync.Mutex
	of    map[string]*rate.Limiter
}

func (p *pace) allows(who string, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == nil || len(p.of) >= mostPaced {
		p.of = map[string]*rate.Limiter{}
	}
	limiter := p.of[who]
	if limiter == nil {
		limiter = rate.NewLimiter(p.limit, p.burst)
		p.of[who] = limiter
	}
	return limiter.AllowN(now, 1)
}
