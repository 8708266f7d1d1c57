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
	// mostPaced bounds the memory. People are few, and who is forgotten begins anew.
	mostPaced = 10_000
)

// pace holds back each person who calls too often.
type pace struct {
	mu     sync.Mutex
	people map[string]*rate.Limiter
}

func (p *pace) allows(person string, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.people == nil || len(p.people) >= mostPaced {
		p.people = map[string]*rate.Limiter{}
	}
	limiter := p.people[person]
	if limiter == nil {
		limiter = rate.NewLimiter(callsPerSecond, callsAtOnce)
		p.people[person] = limiter
	}
	return limiter.AllowN(now, 1)
}
