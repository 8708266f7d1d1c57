package ratelimit_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/ratelimit"
)

// H95: a caller over its rate has to wait, and the other callers do not.
func TestEachHasTheirOwn(t *testing.T) {
	p, now := ratelimit.New(1, 2), time.Unix(1_800_000_000, 0)
	for i, want := range []bool{true, true, false} {
		if got := p.Allows("alice", now); got != want {
			t.Errorf("call %d of Alice: got %t, want %t", i+1, got, want)
		}
	}
	if !p.Allows("bob", now) {
		t.Error("Bob waits for Alice")
	}
	if now = now.Add(time.Second); !p.Allows("alice", now) || p.Allows("alice", now) {
		t.Error("a second later Alice may not call once")
	}
}

// Names that anybody can invent take a bounded amount of memory: beyond it, all callers start again.
func TestTheForgottenBeginAnew(t *testing.T) {
	p, now := ratelimit.New(1, 1), time.Unix(1_800_000_000, 0)
	p.Allows("alice", now)
	for i := range 10_000 {
		p.Allows(fmt.Sprint(i), now)
	}
	if !p.Allows("alice", now) {
		t.Error("Alice is remembered beside 10,000 others")
	}
}
