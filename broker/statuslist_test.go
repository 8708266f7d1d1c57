package broker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
)

// No two tokens share a place. A list takes only as many tokens as it has places, and only within an hour.
func TestStatusListIndexIsAssignedOnce(t *testing.T) {
	const places = 1 << 13
	var p broker.Places
	now := time.Now()
	of := map[string][]int{}
	take := func() string {
		t.Helper()
		list, place, err := p.Take("acme.test", now)
		if err != nil {
			t.Fatal(err)
		}
		of[list] = append(of[list], place)
		return list
	}
	for range 2 * places {
		take()
	}
	if len(of) != 2 {
		t.Fatalf("got %d lists, want 2", len(of))
	}
	for list, given := range of {
		if slices.IsSorted(given) {
			t.Errorf("the places of %s are given in order", list)
		}
		slices.Sort(given)
		if len(slices.Compact(given)) != places || given[0] != 0 || given[places-1] != places-1 {
			t.Errorf("%s: got %d places from %d", list, len(given), given[0])
		}
	}
	third := take()
	now = now.Add(time.Hour - time.Second)
	if same := take(); same != third {
		t.Errorf("got another list within the hour")
	}
	now = now.Add(time.Second)
	fourth := take()
	if fourth == third {
		t.Errorf("got the same list after an hour")
	}
	if other, _, err := p.Take("other.test", now); err != nil || of[other] != nil {
		t.Errorf("got %s, %v for another trust domain, want a list of its own", other, err)
	}
	if same := take(); same != fourth {
		t.Errorf("got another list after a token of another trust domain")
	}
}

// ends is a fake store of ended tokens, and a fake signer.
type ends struct {
	standing
	ended        []int
	err          error
	read, signed int
}

func (e *ends) EndedIn(context.Context, string) ([]int, error) {
	e.read++
	return e.ended, e.err
}

func (e *ends) Sign(context.Context, broker.Key, string) (string, error) {
	e.signed++
	return fmt.Sprint(e.signed), nil
}

// A list is read at most once a second, and signed again only if its content has changed or its signature is old.
func TestStatusListsAreReadAndSignedWhenNeeded(t *testing.T) {
	const list, other = "5f0b1f1e-52cc-4b56-8a3c-5f0b1f1e52cc", "5f0b1f1e-52cc-4b56-8a3c-5f0b1f1e52cd"
	f, e := newFixture(t), &ends{}
	f.cfg.Signer = e
	f.useTokens(t, e)
	wants := func(step string, read, signed int, want error) {
		t.Helper()
		if got, err := f.StatusList(t.Context(), list, "192.0.2.7"); !errors.Is(err, want) || (err == nil) != (got.Token != "") {
			t.Errorf("%s: got %+v, %v, want %v", step, got, err, want)
		}
		if e.read != read || e.signed != signed {
			t.Errorf("%s: read %d times and signed %d, want %d and %d", step, e.read, e.signed, read, signed)
		}
	}
	wants("first", 1, 1, nil)
	wants("at once", 1, 1, nil)
	f.clock = f.clock.Add(time.Second)
	wants("the same", 2, 1, nil)
	e.ended = []int{7}
	wants("not looked for yet", 2, 1, nil)
	f.clock = f.clock.Add(time.Second)
	wants("another", 3, 2, nil)
	f.clock = f.clock.Add(20 * time.Second)
	wants("old", 4, 3, nil)
	f.clock = f.clock.Add(time.Second)
	e.err = broker.ErrLedgerUnavailable
	wants("nobody can tell", 5, 3, broker.ErrLedgerUnavailable)
	e.err = broker.ErrNotFound
	crowded := 0
	for n := range 1000 {
		if _, err := f.StatusList(t.Context(), other, fmt.Sprintf("192.0.2.%d", n/200)); errors.Is(err, broker.ErrListsCrowded) {
			crowded++
		}
	}
	if e.read > 255 || e.read < 200 || crowded != 1000-(e.read-5) {
		t.Errorf("read %d times while strangers asked a thousand times for what there is not, want 250 more than 5 at most", e.read)
	}
	before := e.read
	for range 100 {
		_, _ = f.StatusList(t.Context(), other, "spiffe://acme.test/service")
	}
	if n := e.read - before; n < 50 {
		t.Errorf("read %d times for a trust domain beside strangers, want 50 at least", n)
	}
}

// searched is a fake store that looks for unknown lists for as long as the test wants.
type searched struct {
	ends
	known          string
	looking, found chan struct{}
}

func (s *searched) EndedIn(ctx context.Context, list string) ([]int, error) {
	if list == s.known {
		return nil, nil
	}
	s.looking <- struct{}{}
	<-s.found
	return nil, broker.ErrNotFound
}

// Requests for made-up lists do not delay requests for known lists.
func TestUnknownStatusListsDelayNoOthers(t *testing.T) {
	f := newFixture(t)
	s := &searched{known: "5f0b1f1e-52cc-4b56-8a3c-5f0b1f1e52cc", looking: make(chan struct{}), found: make(chan struct{})}
	f.cfg.Signer = s
	f.useTokens(t, s)
	if _, err := f.StatusList(t.Context(), s.known, "192.0.2.7"); err != nil {
		t.Fatal(err)
	}
	f.clock = f.clock.Add(time.Second)
	made := make(chan error)
	go func() {
		_, err := f.StatusList(t.Context(), "5f0b1f1e-52cc-4b56-8a3c-5f0b1f1e52cd", "192.0.2.7")
		made <- err
	}()
	<-s.looking
	if got, err := f.StatusList(t.Context(), s.known, "192.0.2.7"); err != nil || got.Token == "" {
		t.Errorf("got %+v, %v while another one is looked for", got, err)
	}
	close(s.found)
	if err := <-made; !errors.Is(err, broker.ErrNotFound) {
		t.Errorf("got %v of what there is not, want %v", err, broker.ErrNotFound)
	}
}

// left is a fake store whose caller disconnects during the lookup.
type left struct {
	ends
	leave func()
}

func (l *left) EndedIn(ctx context.Context, _ string) ([]int, error) {
	l.leave()
	return nil, ctx.Err()
}

// If a caller disconnects while a list is read or signed, the result is still there for the next caller.
func TestStatusListReadOutlivesItsCaller(t *testing.T) {
	f := newFixture(t)
	ctx, leave := context.WithCancel(t.Context())
	s := &left{leave: leave}
	f.cfg.Signer = s
	f.useTokens(t, s)
	if got, err := f.StatusList(ctx, "5f0b1f1e-52cc-4b56-8a3c-5f0b1f1e52cc", "192.0.2.7"); err != nil || got.Token == "" || s.signed != 1 {
		t.Errorf("got %+v, %v and %d signatures, want the list to be there for others", got, err, s.signed)
	}
}
