package upgrade_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
)

const (
	// patience is how long a caller waits for one answer, and insistence is how long it retries calls that are shed.
	patience   = 15 * time.Second
	insistence = time.Minute
)

// kinds are the kinds of calls, in the order of the rows.
var kinds = []string{"issued", "by JWT", "logins", "approved", "released", "revoked", "active", "inactive", "checked", "searched"}

// tally counts the outcomes of calls.
type tally struct {
	mu      sync.Mutex
	done    map[string]int
	shed    int
	cut     []error // calls that were neither answered nor refused
	failed  []error
	changed chan struct{} // closed and replaced at each call
}

// counts is a snapshot of a tally.
type counts struct {
	done   map[string]int
	shed   int
	cut    []error
	failed []error
}

func newTally() *tally { return &tally{done: map[string]int{}, changed: make(chan struct{})} }

// take returns the counts since its last call.
func (c *tally) take() counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := counts{c.done, c.shed, c.cut, c.failed}
	c.done, c.shed, c.cut, c.failed = map[string]int{}, 0, nil, nil
	return taken
}

func (c *tally) note(kind string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() {
		close(c.changed)
		c.changed = make(chan struct{})
	}()
	switch {
	case err == nil:
		c.done[kind]++
	case shed(err) > 0:
		c.shed++
	case answered(err):
		c.failed = append(c.failed, fmt.Errorf("%s: %w", kind, err))
	default:
		c.cut = append(c.cut, fmt.Errorf("%s: %w", kind, err))
	}
}

// atLeast blocks until each kind of call has succeeded that many more times, or one has failed.
func (c *tally) atLeast(ctx context.Context, least int) error {
	c.mu.Lock()
	before := maps.Clone(c.done)
	c.mu.Unlock()
	for {
		c.mu.Lock()
		changed, broken := c.changed, len(c.failed) > 0
		rare := slices.DeleteFunc(slices.Clone(kinds), func(kind string) bool { return c.done[kind] >= before[kind]+least })
		c.mu.Unlock()
		if len(rare) == 0 || broken {
			return nil // row reports failures with the rest
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("not %d times %q: %w", least, rare, ctx.Err())
		}
	}
}

// answerError is an HTTP answer other than the expected one.
type answerError struct {
	status     int
	retryAfter time.Duration
	body       string
}

func (e *answerError) Error() string { return fmt.Sprintf("status %d: %.300s", e.status, e.body) }

// wrongError is an answer whose content is wrong.
type wrongError struct{ what string }

func (e *wrongError) Error() string { return e.what }

// shed returns how long to wait before repeating a call that was shed, or zero if it was not shed.
func shed(err error) time.Duration {
	var problem *client.Problem
	var answer *answerError
	status, after := 0, time.Duration(0)
	switch {
	case errors.As(err, &problem):
		status, after = problem.Status, problem.RetryAfter
	case errors.As(err, &answer):
		status, after = answer.status, answer.retryAfter
	}
	if status != http.StatusTooManyRequests && status != http.StatusServiceUnavailable {
		return 0
	}
	return after
}

// answered reports whether the error comes from the server's answer.
func answered(err error) bool {
	var problem *client.Problem
	var answer *answerError
	var wrong *wrongError
	return errors.As(err, &problem) || errors.As(err, &answer) || errors.As(err, &wrong) || errors.Is(err, client.ErrAnswer)
}

// call makes a call, repeats it after a while if it is shed, and counts the outcome.
func (c *tally) call(kind string, do func(ctx context.Context) error) error {
	began := time.Now()
	for {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		err := do(ctx)
		cancel()
		c.note(kind, err)
		wait := shed(err)
		if wait == 0 {
			return err
		}
		if time.Since(began)+wait > insistence {
			err = &wrongError{fmt.Sprintf("turned away for %s: %v", insistence, err)}
			c.note(kind, err)
			return err
		}
		<-time.After(wait)
	}
}

// load is a set of callers that repeat their stories.
type load struct {
	*tally
	stop    context.CancelFunc
	callers sync.WaitGroup
}

// caller runs its nth story. The story ends with the first call that fails, which has been counted.
type caller func(n int) error

func begin(t *testing.T, c *tally, pause time.Duration, callers ...caller) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	l := &load{tally: c, stop: cancel}
	for _, tell := range callers {
		l.callers.Go(func() {
			tick := time.NewTicker(pause)
			defer tick.Stop()
			for n := 0; ; n++ {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
					_ = tell(n) // the tally counts failures
				}
			}
		})
	}
	t.Cleanup(l.end)
	return l
}

// end waits until all callers have finished their stories.
func (l *load) end() {
	l.stop()
	l.callers.Wait()
}
