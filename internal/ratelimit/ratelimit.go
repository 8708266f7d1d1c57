// Package ratelimit bounds what callers may take: how often each may act, how many things run at once, and how many events are
// recorded.
//
// It must never remember more than a fixed number of keys.
package ratelimit

import (
	"errors"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// remembered is how many keys a Limiter remembers at least, and half of the number that it remembers at most.
const remembered = 10_000

// Limiter limits how often each key may act: a person, a sandbox or an address. It is safe for concurrent use.
type Limiter struct {
	perSecond rate.Limit
	burst     int

	mu sync.Mutex
	// A key moves from old to young when it acts. When young is full it becomes old, and what was old is forgotten. So inventing keys
	// gives no other key a new allowance while that key keeps acting.
	young, old map[string]*rate.Limiter
}

// New returns a Limiter that allows each key perSecond actions a second, in bursts of at most burst.
func New(perSecond rate.Limit, burst int) *Limiter {
	return &Limiter{perSecond: perSecond, burst: burst, young: map[string]*rate.Limiter{}}
}

// Allow reports whether the key may act now, and if so counts the action.
func (l *Limiter) Allow(key string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	limiter := l.young[key]
	if limiter == nil {
		if limiter = l.old[key]; limiter == nil {
			limiter = rate.NewLimiter(l.perSecond, l.burst)
		}
		if len(l.young) >= remembered {
			l.young, l.old = map[string]*rate.Limiter{}, l.young
		}
		l.young[key] = limiter
	}
	return limiter.AllowN(now, 1)
}

// Errors of Semaphore.Enter.
var (
	ErrKeyBusy = errors.New("the key has too many in progress")
	ErrBusy    = errors.New("too many are in progress")
)

// Semaphore limits how many things are in progress at once, in total and for each key. It is safe for concurrent use.
type Semaphore struct {
	total, perKey int

	mu    sync.Mutex
	all   int
	byKey map[string]int
}

// NewSemaphore returns a Semaphore for so many in total and for each key.
func NewSemaphore(total, perKey int) *Semaphore {
	return &Semaphore{total: total, perKey: perKey, byKey: map[string]int{}}
}

// Enter takes a place until leave is called; a second call of leave does nothing. It does not wait: the error is ErrKeyBusy or ErrBusy.
func (s *Semaphore) Enter(key string) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.byKey[key] >= s.perKey:
		return nil, ErrKeyBusy
	case s.all >= s.total:
		return nil, ErrBusy
	}
	s.all++
	s.byKey[key]++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all--
		if s.byKey[key]--; s.byKey[key] == 0 {
			delete(s.byKey, key)
		}
	}), nil
}

// Sampler lets a number of events of each kind pass each second, and counts the others. The kinds must be fixed codes, so that they are
// few. It is safe for concurrent use.
type Sampler struct {
	perSecond int

	mu    sync.Mutex
	kinds map[string]*sample
}

type sample struct {
	limiter    *rate.Limiter
	suppressed int
}

// NewSampler returns a Sampler that lets perSecond events of each kind pass each second.
func NewSampler(perSecond int) *Sampler {
	return &Sampler{perSecond: perSecond, kinds: map[string]*sample{}}
}

// Take reports whether an event passes now and, if so, how many of its kind were suppressed since the last one that passed.
func (s *Sampler) Take(kind string, now time.Time) (suppressed int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.kinds[kind]
	if of == nil {
		of = &sample{limiter: rate.NewLimiter(rate.Limit(s.perSecond), s.perSecond)}
		s.kinds[kind] = of
	}
	if !of.limiter.AllowN(now, 1) {
		of.suppressed++
		return 0, false
	}
	suppressed, of.suppressed = of.suppressed, 0
	return suppressed, true
}

// PutBack returns a count that could not be recorded.
func (s *Sampler) PutBack(kind string, suppressed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if of := s.kinds[kind]; of != nil {
		of.suppressed += suppressed
	}
}

// Drain returns how many events of each kind were suppressed since the last one that passed, and forgets them.
func (s *Sampler) Drain() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := map[string]int{}
	for kind, of := range s.kinds {
		if of.suppressed > 0 {
			left[kind], of.suppressed = of.suppressed, 0
		}
	}
	return left
}
