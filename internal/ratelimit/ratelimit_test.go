package ratelimit_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/ratelimit"
)

// H95: a caller over its rate has to wait, and the other callers do not.
func TestEachCallerHasItsOwnLimit(t *testing.T) {
	p, now := ratelimit.New(1, 2), time.Unix(1_800_000_000, 0)
	for i, want := range []bool{true, true, false} {
		if got := p.Allow("alice", now); got != want {
			t.Errorf("call %d of Alice: got %t, want %t", i+1, got, want)
		}
	}
	if !p.Allow("bob", now) {
		t.Error("Bob waits for Alice")
	}
	if now = now.Add(time.Second); !p.Allow("alice", now) || p.Allow("alice", now) {
		t.Error("a second later Alice may not call once")
	}
}

// Names that anybody can invent take a bounded amount of memory, and reset nobody who keeps calling. A caller that stopped calling is
// forgotten.
func TestInventedNamesResetNoLimit(t *testing.T) {
	p, now := ratelimit.New(1, 1), time.Unix(1_800_000_000, 0)
	p.Allow("alice", now)
	p.Allow("bob", now)
	for i := range 50_000 {
		p.Allow(fmt.Sprint(i), now)
		if i%5_000 == 0 && p.Allow("alice", now) {
			t.Fatalf("Alice may call again after %d invented names", i)
		}
	}
	if !p.Allow("bob", now) {
		t.Error("Bob is remembered beside 50,000 others")
	}
}

func TestSemaphore(t *testing.T) {
	s := ratelimit.NewSemaphore(3, 2)
	enter := func(key string, want error) func() {
		t.Helper()
		leave, err := s.Enter(key)
		if !errors.Is(err, want) {
			t.Fatalf("%s: got %v, want %v", key, err, want)
		}
		return leave
	}
	first := enter("dave", nil)
	enter("dave", nil)
	enter("dave", ratelimit.ErrKeyBusy)
	carol := enter("carol", nil)
	enter("bob", ratelimit.ErrBusy)
	first()
	first() // a second call gives no second place
	enter("dave", nil)
	enter("bob", ratelimit.ErrBusy)
	carol()
	enter("bob", nil)
}

func TestSamplerCountsWhatItSuppresses(t *testing.T) {
	s, now := ratelimit.NewSampler(2), time.Unix(1_800_000_000, 0)
	for i, want := range []bool{true, true, false, false} {
		if suppressed, ok := s.Take("a", now); ok != want || suppressed != 0 {
			t.Errorf("event %d: got %d, %t", i, suppressed, ok)
		}
	}
	if _, ok := s.Take("b", now); !ok {
		t.Error("another kind is suppressed")
	}
	if suppressed, ok := s.Take("a", now.Add(time.Second)); !ok || suppressed != 2 {
		t.Errorf("a second later: got %d, %t, want the 2 that were suppressed", suppressed, ok)
	}
	s.PutBack("a", 3)
	if left := s.Drain(); left["a"] != 3 || len(left) != 1 {
		t.Errorf("got %v left, want 3 of a", left)
	}
	if left := s.Drain(); len(left) != 0 {
		t.Errorf("got %v after draining", left)
	}
}
