package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/testkit"
	"golang.org/x/sync/errgroup"
)

// asking returns a request for approval, of which people would be shown these members besides what is of the request alone.
func asking(scope, members string) broker.Record {
	return pending(func(rec *broker.Record) {
		rec.Request.Scope, rec.Request.IdempotencyKey = scope, ""
		rec.Canonical = fmt.Sprintf(`{"v":1,"request":%q,"scope":%q,"ttl":300,"digest":"%x","expires":1%s}`, rec.ID, scope, rec.Digest, members)
		rec.Expires = time.Now().Add(time.Hour).Truncate(time.Second)
		rec.Limits = []broker.Limit{{Limit: broker.AskingLimit, Key: "|asking|" + rec.Subject.ID.String()}}
	})
}

// T9: the lock of the ledger holds that no two equal requests are pending, whichever replicas they reach at once, and however they are
// batched. One that is refused counts against no limit.
func TestEqualRequestsAtOnceAreOneOnTwoLedgers(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	ledgers := []*ledger.Ledger{open(t, db.BrokerURL), open(t, db.BrokerURL)}
	for round := range 5 {
		var calls errgroup.Group
		begun := make(chan string, 64)
		for i := range 64 {
			calls.Go(func() error {
				rec := asking("git.issues.write", fmt.Sprintf(`,"resource":"git:%d"`, round))
				rec.Request.Reason = fmt.Sprintf("said by %d", i)
				earlier, err := ledgers[i%2].Begin(context.WithoutCancel(t.Context()), rec)
				switch {
				case err == nil && earlier == nil:
					begun <- rec.ID
				case !errors.Is(err, broker.ErrAlreadyAsked):
					return fmt.Errorf("got %v, %w, want ErrAlreadyAsked", earlier, err)
				}
				return nil
			})
		}
		if err := calls.Wait(); err != nil {
			t.Fatal(err)
		}
		close(begun)
		var ids []string
		for id := range begun {
			ids = append(ids, id)
		}
		if len(ids) != 1 {
			t.Fatalf("round %d: began %q, want one request", round, ids)
		}
		found, err := ledgers[round%2].EqualRequest(t.Context(), asking("git.issues.write", fmt.Sprintf(`,"resource":"git:%d"`, round)), nil)
		if err != nil || found == nil || found.ID != ids[0] {
			t.Errorf("round %d: got %+v, %v, want request %s", round, found, err, ids[0])
		}
	}
	// 5 of the 60 requests that may begin at once have begun.
	for i := range broker.WaitingLimit.Live - 5 {
		begin(t, ledgers[0], asking("git.issues.write", fmt.Sprintf(`,"resource":"git:more-%d"`, i)))
	}
	db.Check(t)
}

// The ledger compares all that people are shown of a request, and the TTL that it asks for.
func TestEqualRequestIsFound(t *testing.T) {
	t.Parallel()
	l := testkit.NewDB(t).Ledger(t)
	first := asking("git.issues.write", `,"key":"aa","params":{"n":1.0}`)
	begin(t, l, first)
	for name, tc := range map[string]struct {
		rec    broker.Record
		except []string
		equal  bool
	}{
		"equal":            {rec: asking("git.issues.write", `,"params":{"n":1.0},"key":"aa"`), equal: true},
		"left out":         {rec: asking("git.issues.write", `,"key":"aa","params":{"n":1.0}`), except: []string{first.ID}},
		"another key":      {rec: asking("git.issues.write", `,"key":"ab","params":{"n":1.0}`)},
		"no key":           {rec: asking("git.issues.write", `,"params":{"n":1.0}`)},
		"one more member":  {rec: asking("git.issues.write", `,"key":"aa","params":{"n":1.0},"jkt":"x"`)},
		"another scope":    {rec: asking("git.tags.write", `,"key":"aa","params":{"n":1.0}`)},
		"nothing is shown": {rec: pending(func(rec *broker.Record) { rec.Request.Scope = "git.issues.write" })},
	} {
		found, err := l.EqualRequest(t.Context(), tc.rec, tc.except)
		if err != nil || (found != nil) != tc.equal {
			t.Errorf("%s: got %+v, %v, want it equal: %t", name, found, err, tc.equal)
		}
		if _, err := l.Begin(t.Context(), tc.rec); errors.Is(err, broker.ErrAlreadyAsked) != (tc.equal || slices.Contains(tc.except, first.ID)) {
			t.Errorf("%s: begins with %v, want it to be equal: %t", name, err, tc.equal)
		}
	}
	longer := asking("git.issues.write", `,"key":"aa","params":{"n":1.0}`)
	longer.Request.TTL += time.Minute
	begin(t, l, longer)
}
