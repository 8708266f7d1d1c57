// Package ratelimit limits how often each caller may call: a person, a sandbox or an address, at the API and in the
// console.
//
// It must never remember more than a fixed number of callers. A forgotten caller starts again with a full allowance.
package ratelimit

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// most is how many callers a Pace remembers; it bounds the memory.
const most = 10_000

// Pace is the rate at which each caller may call. The zero value allows no calls. It is safe for concurrent use.
type Pace struct {
	limit rate.Limit
	burst int
	mu    sync.Mutex
	of    map[string]*rate.Limiter
}

// New returns a Pace that allows each caller perSecond calls a second, with bursts of atOnce.
func New(perSecond rate.Limit, atOnce int) *Pace { return &Pace{limit: perSecond, burst: atOnce} }

// Allows reports whether a caller may call now, and if so counts the call.
func (p *Pace) Allows(who string, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == nil || len(p.of) >= most {
		p.of = map[string]*rate.Limiter{}
	}
	limiter := p.of[who]
	if limiter == nil {
		limiter = rate.NewLimiter(p.limit, p.burst)
		p.of[who] = limiter
	}
	return limiter.AllowN(now, 1)
}
