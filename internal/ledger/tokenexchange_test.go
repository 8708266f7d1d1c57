package ledger_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/internal/token"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// handedDown returns the record of a token that a sub-agent got in exchange from the holder of a parent.
func handedDown(parent broker.Record, change func(*broker.Record)) broker.Record {
	return allowed(func(rec *broker.Record) {
		rec.Subject.ID = spiffeid.RequireFromString(parent.Subject.ID.String() + "/helper")
		rec.Request.Parent = &token.Claims{ID: parent.ID}
		rec.Time, rec.Expires = parent.Time, parent.Expires // the clock may be in the next second
		if change != nil {
			change(rec)
		}
	})
}

// I3: the database accepts an exchanged token only within the limits of the token it comes from, whoever writes it.
func TestExchangedTokenIsNoBroaderThanItsParent(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	parent := bring(t, l, "jwt", nil, nil)
	chain := []broker.Record{parent}
	for range 3 {
		chain = append(chain, handedDown(chain[len(chain)-1], nil))
		begin(t, l, chain[len(chain)-1])
	}
	for name, tc := range map[string]struct {
		parent broker.Record
		change func(*broker.Record)
		want   error
	}{
		"the same":              {parent: parent},
		"for less time":         {parent, func(r *broker.Record) { r.Expires = r.Expires.Add(-time.Minute) }, nil},
		"for more time":         {parent, func(r *broker.Record) { r.Expires = r.Expires.Add(time.Second) }, record.ErrUnrecordable},
		"another scope":         {parent, func(r *broker.Record) { r.Request.Scope = "git.write" }, record.ErrUnrecordable},
		"another resource":      {parent, func(r *broker.Record) { r.Decision.Resource = "git:repo/acme/web" }, record.ErrUnrecordable},
		"another parameter":     {parent, func(r *broker.Record) { r.Decision.Params = map[string]any{"repo": "acme/api"} }, record.ErrUnrecordable},
		"another audience":      {parent, func(r *broker.Record) { r.Intent.Audience = "https://db.test" }, record.ErrUnrecordable},
		"another task":          {parent, func(r *broker.Record) { r.Request.Task = "task-2" }, record.ErrUnrecordable},
		"to oneself":            {parent, func(r *broker.Record) { r.Subject.ID = parent.Subject.ID }, record.ErrUnrecordable},
		"a fourth time":         {parent: chain[3], want: record.ErrUnrecordable},
		"from a one-shot token": {parent: bring(t, l, "one-shot", nil, nil), want: record.ErrUnrecordable},
		"from a login":          {parent: bring(t, l, "database", []broker.Status{broker.StatusIssued}, nil), want: record.ErrUnrecordable},
		"from a permit":         {parent: bring(t, l, "none", nil, nil), want: record.ErrUnrecordable},
		"from nothing":          {parent: allowed(nil), want: record.ErrUnrecordable},
	} {
		if _, err := l.Begin(t.Context(), handedDown(tc.parent, tc.change)); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", name, err, tc.want)
		}
	}
	db.Check(t)
}

// An exchanged token is in force while all tokens that it comes from are.
func TestExchangedTokenIsActiveWhileItsParentsAre(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, l *ledger.Ledger, ended broker.Record){
		"revoked": func(t *testing.T, l *ledger.Ledger, ended broker.Record) {
			settle(t, l, to(ended, broker.StatusRevoked))
		},
		"released": func(t *testing.T, l *ledger.Ledger, ended broker.Record) {
			settle(t, l, to(ended, broker.StatusReleased))
		},
		"failed": func(t *testing.T, l *ledger.Ledger, ended broker.Record) {
			settle(t, l, to(ended, broker.StatusFailed))
		},
		"its task has ended": func(t *testing.T, l *ledger.Ledger, ended broker.Record) {
			announce(t, l, announced(broker.CommandTaskEnd, broker.Selector{SPIFFEID: ended.Subject.ID.String(), Task: ended.Request.Task}))
		},
		"its sandbox is in quarantine": func(t *testing.T, l *ledger.Ledger, ended broker.Record) {
			announce(t, l, announced(broker.CommandQuarantineAdd, broker.Selector{SPIFFEID: ended.Subject.ID.String()}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := testkit.NewDB(t).Ledger(t)
			top := bring(t, l, "jwt", nil, nil)
			middle := handedDown(top, in(0, nil))
			bottom := handedDown(middle, in(1, nil))
			beside := handedDown(top, in(2, func(r *broker.Record) { r.Subject.ID = spiffeid.RequireFromString("spiffe://other.test/x") }))
			begin(t, l, middle)
			begin(t, l, bottom, beside)
			for _, rec := range []broker.Record{top, middle, bottom, beside} {
				if !isActive(t, l, rec.ID, rec.Intent.ClaimsDigest) {
					t.Errorf("%s is not active at first", rec.Subject.ID)
				}
			}
			end(t, l, middle)
			for _, tc := range []struct {
				rec  broker.Record
				want bool
			}{{top, true}, {middle, false}, {bottom, false}, {beside, true}} {
				if got := isActive(t, l, tc.rec.ID, tc.rec.Intent.ClaimsDigest); got != tc.want {
					t.Errorf("%s: got active %v, want %v", tc.rec.Subject.ID, got, tc.want)
				}
			}
			if ended, err := l.EndedIn(t.Context(), theList); err != nil || !slices.Equal(ended, []int{0, 1}) {
				t.Errorf("got %v, %v as ended in the list, want the middle and the bottom", ended, err)
			}
		})
	}
}

// family begins a token and three that come from it, one after the other. Each belongs to a separate sandbox, none of which is
// below another.
func family(t *testing.T, l *ledger.Ledger, name string, change func(*broker.Record)) (chain [4]broker.Record) {
	t.Helper()
	of := func(generation int) spiffeid.ID {
		return spiffeid.RequireFromString(fmt.Sprintf("spiffe://acme.test/families/%s-%d", name, generation))
	}
	chain[0] = allowed(func(r *broker.Record) {
		r.Subject.ID = of(0)
		if change != nil {
			change(r)
		}
	})
	for i := range chain[1:] {
		chain[i+1] = handedDown(chain[i], func(r *broker.Record) { r.Subject.ID = of(i + 1) })
	}
	begin(t, l, chain[:3]...)
	return chain
}

// I6: the broker checks a token before it commits one that comes from it. Whatever ends between the two, also further up, the
// commit does not issue the new token.
func TestTokenIsNotExchangedAfterAnAncestorHasEnded(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	ofTask := func(r broker.Record) broker.Selector {
		return broker.Selector{SPIFFEID: r.Subject.ID.String(), Task: r.Request.Task}
	}
	for name, end := range map[string]func(ended broker.Record){
		"revoked":  func(r broker.Record) { settle(t, l, to(r, broker.StatusRevoked)) },
		"released": func(r broker.Record) { settle(t, l, to(r, broker.StatusReleased)) },
		"failed":   func(r broker.Record) { settle(t, l, to(r, broker.StatusFailed)) },
		"task-ended": func(r broker.Record) {
			announce(t, l, announced(broker.CommandTaskEnd, ofTask(r)))
		},
		"deadline": func(r broker.Record) {
			cmd := announced(broker.CommandTaskEnd, ofTask(r))
			cmd.At = time.Now().Add(200 * time.Millisecond)
			announce(t, l, cmd)
			until(t, "the deadline passes", func() bool { return !isActive(t, l, r.ID, r.Intent.ClaimsDigest) })
		},
		"quarantined": func(r broker.Record) {
			announce(t, l, announced(broker.CommandQuarantineAdd, broker.Selector{SPIFFEID: r.Subject.ID.String()}))
		},
	} {
		for ancestor := range 3 {
			chain := family(t, l, fmt.Sprintf("%s-%d", name, ancestor), nil)
			child := chain[3]
			if !isActive(t, l, chain[2].ID, chain[2].Intent.ClaimsDigest) {
				t.Fatalf("%s: the parent is not active at first", name)
			}
			end(chain[ancestor])
			if earlier, err := l.Begin(t.Context(), child); !errors.Is(err, broker.ErrInactive) || earlier != nil {
				t.Errorf("ancestor %d %s: got %v, %v, want ErrInactive", ancestor, name, earlier, err)
			}
			if _, err := l.Get(t.Context(), child.ID, everything); !errors.Is(err, broker.ErrNotFound) {
				t.Errorf("ancestor %d %s: got %v for the record of the child, want none", ancestor, name, err)
			}
		}
	}
	short := family(t, l, "expired", func(r *broker.Record) { r.Expires = time.Now().Add(4 * time.Second).Truncate(time.Second) })
	until(t, "the parent expires", func() bool { return !isActive(t, l, short[2].ID, short[2].Intent.ClaimsDigest) })
	if _, err := l.Begin(t.Context(), short[3]); !errors.Is(err, broker.ErrInactive) {
		t.Errorf("expired: got %v, want ErrInactive", err)
	}
	intact := family(t, l, "intact", nil)
	begin(t, l, intact[3])
	db.Check(t)
}

// A denied exchange is recorded whatever has become of the parent.
func TestDenialOfAnExchangeIsRecordedAfterTheParentHasEnded(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	parent := bring(t, l, "jwt", []broker.Status{broker.StatusRevoked}, nil)
	begin(t, l, denied(func(r *broker.Record) { r.Request.Parent = &token.Claims{ID: parent.ID} }))
	db.Check(t)
}

// The end of a token and an exchange of one that comes from it may share a commit. They count in the order of the batch.
func TestExchangeAndEndOfAnAncestorInOneCommit(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	for ancestor := range 3 {
		for name, endFirst := range map[string]bool{"end-first": true, "exchange-first": false} {
			chain := family(t, l, fmt.Sprintf("%s-%d", name, ancestor), nil)
			apart := family(t, l, fmt.Sprintf("apart-%s-%d", name, ancestor), nil)
			var ended, exchanged, unrelated error
			both := []func(){
				func() { ended = l.RecordOutcome(t.Context(), to(chain[ancestor], broker.StatusRevoked)) },
				func() { _, exchanged = l.Begin(t.Context(), chain[3]) },
				func() { _, unrelated = l.Begin(t.Context(), apart[3]) },
			}
			if !endFirst {
				both[0], both[1] = both[1], both[0]
			}
			inOneCommit(t, db, l, both...)
			if ended != nil || unrelated != nil {
				t.Errorf("ancestor %d, %s: got %v for the end, %v for an exchange elsewhere", ancestor, name, ended, unrelated)
			}
			if endFirst && !errors.Is(exchanged, broker.ErrInactive) || !endFirst && exchanged != nil {
				t.Errorf("ancestor %d, %s: got %v for the exchange", ancestor, name, exchanged)
			}
			if isActive(t, l, chain[3].ID, chain[3].Intent.ClaimsDigest) {
				t.Errorf("ancestor %d, %s: the exchanged token is active", ancestor, name)
			}
			if !isActive(t, l, apart[3].ID, apart[3].Intent.ClaimsDigest) {
				t.Errorf("ancestor %d, %s: an exchanged token elsewhere is not active", ancestor, name)
			}
		}
	}
	db.Check(t)
}

// Commands are appended after the records that are queued with them. So a token that is exchanged at the same moment ends with
// its parent.
func TestExchangeBesideTheEndOfATask(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	for name, endFirst := range map[string]bool{"end-first": true, "exchange-first": false} {
		chain := family(t, l, name, nil)
		end := announced(broker.CommandTaskEnd, broker.Selector{SPIFFEID: chain[0].Subject.ID.String(), Task: chain[0].Request.Task})
		end.Actor = &broker.Actor{Workload: chain[0].Subject} // a command of an admin would come before
		var ended, exchanged error
		both := []func(){
			func() { ended = l.Announce(t.Context(), end) },
			func() { _, exchanged = l.Begin(t.Context(), chain[3]) },
		}
		if !endFirst {
			both[0], both[1] = both[1], both[0]
		}
		inOneCommit(t, db, l, both...)
		if ended != nil || exchanged != nil {
			t.Errorf("%s: got %v for the end, %v for the exchange", name, ended, exchanged)
		}
		if isActive(t, l, chain[3].ID, chain[3].Intent.ClaimsDigest) {
			t.Errorf("%s: the exchanged token is active", name)
		}
		entries := db.Entries(t)
		at := func(id string) int {
			return slices.IndexFunc(entries, func(e testkit.Entry) bool { return e.ID == id })
		}
		if at(chain[3].ID) > at(end.ID) {
			t.Errorf("%s: the token was issued at %d, after the end at %d", name, at(chain[3].ID), at(end.ID))
		}
	}
	db.Check(t)
}
