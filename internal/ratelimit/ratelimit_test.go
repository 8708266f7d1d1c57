package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
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
	s, now := ratelimit.NewSampler(2, 1000), time.Unix(1_800_000_000, 0)
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

// TestBudgetCountsExactly checks that what is allowed and what is counted add up, by key, and that one key takes nothing from another (T11).
func TestBudgetCountsExactly(t *testing.T) {
	b, now := ratelimit.NewBudget(1, 10, 100, 15), time.Unix(1_800_000_000, 0)
	allowed := map[string]int{}
	for range 1000 {
		for _, key := range []string{"loud", "quiet"} {
			if b.Take("domain", key, now) {
				allowed[key]++
			}
		}
	}
	if allowed["loud"] != 8 || allowed["quiet"] != 7 { // 15 of the group, in turn
		t.Errorf("got %v allowed", allowed)
	}
	if !b.Take("other", "loud", now) {
		t.Error("another group has no budget")
	}
	got := b.Drain()
	if got[ratelimit.Suppressed{Group: "domain", Key: "loud"}] != 992 || got[ratelimit.Suppressed{Group: "domain", Key: "quiet"}] != 993 || len(got) != 2 {
		t.Errorf("got %v counted", got)
	}
	if left := b.Drain(); len(left) != 0 {
		t.Errorf("got %v counted twice", left)
	}
	for n := range 20_000 {
		b.Take("domain", strconv.Itoa(n), now)
	}
	total, counts := 0, b.Drain()
	for _, n := range counts {
		total += n
	}
	if len(counts) > 21 {
		t.Errorf("got %d counts for one group, want 20 keys and the others together", len(counts))
	}
	if total != 20_000 {
		t.Errorf("got %d of 20000 counted among many keys", total)
	}
}

// TestSharesAreFairAndLent checks that one group cannot take all places, that a newcomer finds a place, and that places come back (T11).
func TestSharesAreFairAndLent(t *testing.T) {
	s := ratelimit.NewFairSemaphore(24, 100)
	take := func(group, key string) (leaves []func()) {
		for {
			leave, err := s.Enter(group, key)
			if err != nil {
				return leaves
			}
			leaves = append(leaves, leave)
		}
	}
	alone := take("loud", "one") // half of the half of a group that is alone
	others := take("loud", "two")
	if len(alone) != 6 || len(alone)+len(others) > 12 {
		t.Errorf("got %d and %d places for one group, want 6 and at most 12 together", len(alone), len(others))
	}
	quiet := take("quiet", "one")
	if len(quiet) < 4 {
		t.Errorf("got %d places for a newcomer, want 4 at least", len(quiet))
	}
	// However many keys a group has, each of which may have one place, they take no more than the share of the group.
	var crowd []func()
	for n := range 100 {
		if leave, err := s.Enter("loud", strconv.Itoa(n)); err == nil {
			crowd = append(crowd, leave)
		}
	}
	if got := len(alone) + len(others) + len(crowd); got > 12 {
		t.Errorf("got %d places for a group with many keys, want 12 at most", got)
	}
	for _, leave := range slices.Concat(alone, others, quiet, crowd) {
		leave()
		leave()
	}
	if again := take("quiet", "one"); len(again) != 6 {
		t.Errorf("got %d places after all came back, want 6", len(again))
	}
}

// TestQueueServesGroupsAndKeysInTurn checks that who waits behind many entries of one key gets the next place of its own, and that
// places that nobody else wants are lent.
func TestQueueServesGroupsAndKeysInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := ratelimit.NewFairQueue(3, 1000, 400)
		served, leaves := []string{}, map[string][]func(){}
		wait := func(group, key string) {
			go func() {
				leave, err := q.Enter(t.Context(), group, key)
				if err != nil {
					t.Errorf("%s: got %v", key, err)
					return
				}
				served = append(served, key)
				leaves[key] = append(leaves[key], leave)
			}()
			synctest.Wait()
		}
		end := func(key string) {
			t.Helper()
			if len(leaves[key]) == 0 {
				t.Fatalf("%s has no place: got %v", key, served)
			}
			leave := leaves[key][0]
			leaves[key] = leaves[key][1:]
			leave()
			leave()
			synctest.Wait()
		}
		for range 100 {
			wait("acme", "loud")
		}
		if len(served) != 2 {
			t.Fatalf("got %d places for one group, want 2: the last is for newcomers", len(served))
		}
		wait("other", "far") // at once, in the last place
		wait("acme", "near") // behind 98 entries of its neighbour
		end("loud")          // leaves the group one place, and the next is that of the key that has none
		end("far")           // the place becomes free for a newcomer only
		wait("third", "new")
		if want := []string{"loud", "loud", "far", "near", "new"}; !slices.Equal(served, want) {
			t.Errorf("got %v served, want %v", served, want)
		}
		end("near")
		end("new")
		for range 98 {
			end("loud")
		}
		if len(served) != 5+98 {
			t.Errorf("got %d served, want 103", len(served))
		}
		end("loud")
		wait("acme", "loud")
		wait("acme", "loud")
		if len(served) != 105 {
			t.Errorf("got %d served after all places came back, want 105", len(served))
		}
	})
}

// TestQueueIsBounded checks that one key cannot fill the queue, and that who no longer waits leaves no trace.
func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := ratelimit.NewFairQueue(1, 40, 10)
		leave, err := q.Enter(t.Context(), "acme", "loud")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var refused, canceled, taken atomic.Int64
		enter := func(group, key string) {
			go func() {
				switch out, err := q.Enter(ctx, group, key); {
				case errors.Is(err, ratelimit.ErrKeyBusy):
					refused.Add(1)
				case errors.Is(err, context.Canceled):
					canceled.Add(1)
				case err == nil:
					taken.Add(1)
					out()
				}
			}()
			synctest.Wait()
		}
		for range 30 {
			enter("acme", "loud")
		}
		enter("other", "quiet")
		if refused.Load() != 21 {
			t.Errorf("got %d of 30 refused, want 21: ten may be there", refused.Load())
		}
		cancel()
		synctest.Wait()
		if canceled.Load() != 10 {
			t.Errorf("got %d that stopped waiting, want 10", canceled.Load())
		}
		ctx = t.Context()
		enter("other", "quiet")
		if taken.Load() != 0 {
			t.Error("the only place was taken twice")
		}
		leave()
		synctest.Wait()
		if taken.Load() != 1 {
			t.Error("the next one has no place")
		}
	})
}

// TestActionsAreSharedFairly checks that a group that is alone leaves room, and that the groups and keys of the last second have equal
// shares.
func TestActionsAreSharedFairly(t *testing.T) {
	l, now := ratelimit.NewFairLimiter(2000, 200), time.Unix(1_800_000_000, 0)
	all := func(group, key string) (n int) {
		for range 3000 {
			if l.Allow(group, key, now) {
				n++
			}
		}
		return n
	}
	if n := all("acme", "one"); n != 200 {
		t.Errorf("got %d for one key, want 200", n)
	}
	loud := 200
	for key := range 100 {
		loud += all("acme", strconv.Itoa(key))
	}
	if loud > 1000 {
		t.Errorf("got %d for a group that is alone, want half at most", loud)
	}
	if n := all("other", "quiet"); n != 200 {
		t.Errorf("got %d for a newcomer, want 200", n)
	}
	now = now.Add(time.Second)
	byGroup := map[string]int{}
	for range 3000 {
		for key := range 20 {
			for _, group := range []string{"acme", "other"} {
				if l.Allow(group, strconv.Itoa(key), now) {
					byGroup[group]++
				}
			}
		}
	}
	if byGroup["acme"] < 500 || byGroup["acme"] > 667 || byGroup["other"] < 500 || byGroup["other"] > 667 {
		t.Errorf("got %v in the second after, want about a third each", byGroup)
	}
	if n := all("third", "new"); n < 100 {
		t.Errorf("got %d for a third group, want 100 at least", n)
	}
	now = now.Add(time.Minute)
	if n := all("acme", "one"); n != 200 {
		t.Errorf("got %d a minute later, want 200", n)
	}
}
