package ledger_test

import (
	"errors"
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

// The database accepts an exchanged token only within the limits of the token it comes from, whoever writes it.
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
		"from a login":          {parent: bring(t, l, "database", nil, nil), want: record.ErrUnrecordable},
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
