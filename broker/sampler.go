package broker

import (
	"maps"
	"sync"
	"time"
)

// refusalsPerSecond is how many refusals one replica records each second. An attacker without an identity can
// cause them at will, and must not be able to fill the ledger.
const refusalsPerSecond = 50

// unsignedPerSecond is the same for each kind of calls that gateways pass on from whoever has no token of ours. A gateway
// that is open to the world has as many as the world likes, day and night, and one tells as much as fifty.
const unsignedPerSecond = 1

// codeSuppressed is the code of a refusal that stands for nothing but the count it carries.
const codeSuppressed = "suppressed"

// sampler lets a fixed number through each second and counts the rest exactly.
type sampler struct {
	mu         sync.Mutex
	rate       int
	second     time.Time
	used       int
	suppressed int
}

func newSampler(rate int, now time.Time) *sampler {
	return &sampler{rate: rate, second: now}
}

// take says whether this one goes through and, if so, how many were suppressed since the last that did.
func (s *sampler) take(now time.Time) (suppressed int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.second) >= time.Second {
		s.second, s.used = now, 0
	}
	if s.used >= s.rate {
		s.suppressed++
		return 0, false
	}
	s.used++
	suppressed, s.suppressed = s.suppressed, 0
	return suppressed, true
}

// drain returns what was suppressed since the last that went through, and forgets it.
func (s *sampler) drain() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.suppressed
	s.suppressed = 0
	return n
}

// putBack returns a count that could not be recorded.
func (s *sampler) putBack(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.suppressed += n
}

// samplers are one for each kind. The kinds are fixed codes, so they are few.
type samplers struct {
	mu sync.Mutex
	of map[string]*sampler
}

func (s *samplers) kind(kind string, now time.Time) *sampler {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[string]*sampler{}
	}
	if s.of[kind] == nil {
		s.of[kind] = newSampler(unsignedPerSecond, now)
	}
	return s.of[kind]
}

func (s *samplers) all() map[string]*sampler {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.of)
}
