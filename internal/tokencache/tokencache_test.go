package tokencache_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/tokencache"
	"github.com/google/uuid"
)

// A lease ends by whichever clock says so first: one of them may have stood still while the machine slept.
func TestElapsedByEitherClock(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, tc := range []struct {
		to   time.Time
		want time.Duration
	}{
		{now.Add(time.Second), time.Second},
		{now.Round(0).Add(time.Minute), time.Minute},
	} {
		if got := tokencache.Elapsed(now, tc.to); got != tc.want {
			t.Errorf("got %s, want %s", got, tc.want)
		}
	}
}

// I13: the answer of a caller that asked before a token's end, and caches it after another caller has learned of the end,
// does not make the token active again.
func TestLateAnswerDoesNotReviveAnEndedToken(t *testing.T) {
	t.Parallel()
	now := time.Now()
	c := tokencache.New(func() time.Time { return now })
	c.SetLease(tokencache.Lease{Taken: now})
	links := []tokencache.Link{{ID: uuid.New(), SPIFFEID: "spiffe://acme.test/a", Task: "task-1", Left: time.Hour}}
	c.Keep("other", [32]byte{}, 7, now, links)
	if state, ok := c.State("other", [32]byte{}); !ok || !state.Active {
		t.Error("a token that has not ended is not active from memory")
	}
	c.Ended("token", 8)
	c.Keep("token", [32]byte{}, 7, now, links)
	if _, ok := c.State("token", [32]byte{}); ok {
		t.Error("active from memory, as somebody was told late who asked before its end")
	}
}

func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	c := tokencache.New(time.Now)
	for i := range 3 * tokencache.MaxCached {
		c.Ended(fmt.Sprint(i), 0)
	}
	if got := c.Len(); got > tokencache.MaxCached || got < tokencache.MaxCached/2 {
		t.Errorf("got %d tokens remembered, want at most %d", got, tokencache.MaxCached)
	}
}
