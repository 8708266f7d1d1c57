// Package ratelimit holds back each one who calls too often: people, sandboxes or addresses, at the API as in the console.
//
// It must never remember more than so many of them: who is forgotten begins anew.
package ratelimit

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// most bounds the memory.
const most = 10_000

// Pace is how often each may call. The zero value lets nobody; it is safe for concurrent use.
type Pace struct {
	limit rate.Limit
	burst int
	mu    sync.Mutex
	of    map[string]*rate.Limiter
}

// New returns a Pace by which each may call so often a second, and so often at once.
func New(perSecond rate.Limit, atOnce int) *Pace { return &Pace{limit: perSecond, burst: atOnce} }

// Allows tells whether somebody may call now, and counts the call if so.
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
