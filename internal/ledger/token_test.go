package ledger_test

import (
	"crypto/sha256"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/testkit"
)

func isActive(t *testing.T, l *ledger.Ledger, id string, claims [32]byte) bool {
	t.Helper()
	state, err := l.TokenState(t.Context(), id, claims)
	if err != nil {
		t.Fatal(err)
	}
	return state.Active
}

const theList = "5f0b1f1e-52cc-4b56-8a3c-5f0b1f1e52cc"

// in puts the token of a record into the status list.
func in(index int, change func(*broker.Record)) func(*broker.Record) {
	return func(rec *broker.Record) {
		rec.Intent.StatusList, rec.Intent.StatusIndex = theList, index
		if change != nil {
			change(rec)
		}
	}
}

func TestWhichTokensAreActive(t *testing.T) {
	t.Parallel()
	start := moment()
	ended := func(target broker.Selector, at time.Time) *broker.Command {
		cmd := announced(broker.CommandTaskEnd, target)
		cmd.At = at
		return &cmd
	}
	quarantined := func(id string) *broker.Command {
		cmd := announced(broker.CommandQuarantineAdd, broker.Selector{SPIFFEID: id})
		return &cmd
	}
	for _, tc := range []struct {
		name   string
		kind   string
		change func(*broker.Record)
		way    []broker.Status
		order  *broker.Command
		lapsed bool
		want   bool
	}{
		{name: "issued", kind: "jwt", want: true},
		{name: "lapsed", kind: "jwt", change: lapse, lapsed: true},
		{name: "revoked", kind: "jwt", way: []broker.Status{broker.StatusRevoked}},
		{name: "released", kind: "jwt", way: []broker.Status{broker.StatusReleased}},
		{name: "not used yet", kind: "one-shot", want: true},
		{name: "used", kind: "one-shot", way: []broker.Status{broker.StatusUsed}},
		{name: "failed", kind: "jwt", way: []broker.Status{broker.StatusFailed}},
		{name: "its task has ended", kind: "jwt", order: ended(broker.Selector{SPIFFEID: sandbox, Task: "task-1"}, time.Time{})},
		{name: "its task will end", kind: "jwt", order: ended(broker.Selector{SPIFFEID: sandbox, Task: "task-1"}, start.Add(240*time.Hour)), want: true},
		{name: "another task has ended", kind: "jwt", order: ended(broker.Selector{SPIFFEID: sandbox, Task: "task-2"}, time.Time{}), want: true},
		{name: "a sandbox in quarantine", kind: "jwt", order: quarantined(sandbox)},
		{name: "a trust domain in quarantine", kind: "jwt", order: quarantined("spiffe://acme.test")},
		{name: "below it is a quarantine", kind: "jwt", order: quarantined(sandbox + "/x"), want: true},
		{name: "beside it is a quarantine", kind: "jwt", order: quarantined(sandbox + "x"), want: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := testkit.NewDB(t).Ledger(t)
			rec := bring(t, l, tc.kind, tc.way, in(7, tc.change))
			if tc.order != nil {
				announce(t, l, *tc.order)
			}
			if got := isActive(t, l, rec.ID, rec.Intent.ClaimsDigest); got != tc.want {
				t.Errorf("got active %v, want %v", got, tc.want)
			}
			if got, err := alive(t, l, rec.ID); err != nil || got != tc.want {
				t.Errorf("got alive %v, %v, want %v", got, err, tc.want)
			}
			ended, err := l.EndedIn(t.Context(), theList)
			switch {
			case tc.lapsed:
				if !errors.Is(err, broker.ErrNotFound) {
					t.Errorf("got %v, %v of a list without a token that has time left, want %v", ended, err, broker.ErrNotFound)
				}
			case err != nil, slices.Equal(ended, []int{7}) == tc.want:
				t.Errorf("got %v, %v as ended in its list, want it there: %v", ended, err, !tc.want)
			}
		})
	}
}

// A service whose clock is behind accepts a token for a little longer, but not one that was ended.
func TestStatusListsOutliveTheirTokens(t *testing.T) {
	t.Parallel()
	l := testkit.NewDB(t).Ledger(t)
	bring(t, l, "jwt", []broker.Status{broker.StatusRevoked}, in(7, func(rec *broker.Record) {
		rec.Expires = time.Now().Add(-10 * time.Second).Truncate(time.Second)
		rec.Time = rec.Expires.Add(-time.Minute)
	}))
	if ended, err := l.EndedIn(t.Context(), theList); err != nil || !slices.Equal(ended, []int{7}) {
		t.Errorf("got %v, %v, want 7", ended, err)
	}
}

// Only the token that was issued is active. Another one with its id was signed by someone who has the key.
func TestForgedTokenIsInactive(t *testing.T) {
	t.Parallel()
	l := testkit.NewDB(t).Ledger(t)
	rec := bring(t, l, "jwt", nil, nil)
	if isActive(t, l, rec.ID, sha256.Sum256([]byte("other claims"))) {
		t.Error("another token with the id of one is active")
	}
	for _, id := range []string{"", "x", strings.ToUpper(rec.ID), "00000000-0000-7000-8000-000000000000", "a\x00"} {
		if isActive(t, l, id, rec.Intent.ClaimsDigest) {
			t.Errorf("a token with the id %q is active", id)
		}
	}
	login := bring(t, l, "database", []broker.Status{broker.StatusIssued}, nil)
	if isActive(t, l, login.ID, login.Intent.ClaimsDigest) {
		t.Error("a login is an active token")
	}
	for _, id := range []string{"", "x", strings.ToUpper(theList), theList, "a\x00"} {
		if ended, err := l.EndedIn(t.Context(), id); !errors.Is(err, broker.ErrNotFound) {
			t.Errorf("got %v, %v of the list %q, want %v", ended, err, id, broker.ErrNotFound)
		}
	}
	l.Close()
	if ended, err := l.EndedIn(t.Context(), theList); !errors.Is(err, broker.ErrLedgerUnavailable) {
		t.Errorf("got %v, %v, want %v", ended, err, broker.ErrLedgerUnavailable)
	}
	if _, err := l.TokenState(t.Context(), rec.ID, rec.Intent.ClaimsDigest); !errors.Is(err, broker.ErrLedgerUnavailable) {
		t.Errorf("got %v, want %v", err, broker.ErrLedgerUnavailable)
	}
}

// alive reports whether a credential of the sandbox is in force.
func alive(t *testing.T, l *ledger.Ledger, id string) (bool, error) {
	t.Helper()
	got, err := l.AliveAmong(t.Context(), sandbox, []string{id})
	return len(got) == 1 && got[0] == id, err
}

// AliveAmong answers about each id by itself, and only to the holder.
func TestAliveIsDecidedForEachCredential(t *testing.T) {
	t.Parallel()
	l := testkit.NewDB(t).Ledger(t)
	issued := []broker.Status{broker.StatusIssued}
	mine := []string{bring(t, l, "jwt", nil, nil).ID, bring(t, l, "database", issued, nil).ID}
	slices.Sort(mine)
	others := []string{
		bring(t, l, "database", nil, nil).ID, bring(t, l, "jwt", nil, as(moment(), sandbox+"/x", "git.read", "task-1", 0)).ID,
		"00000000-0000-7000-8000-000000000000", "x", "",
	}
	got, err := l.AliveAmong(t.Context(), sandbox, append(slices.Clone(others), append(mine, mine...)...))
	slices.Sort(got)
	if err != nil || !slices.Equal(got, mine) {
		t.Errorf("got %v, %v, want %v", got, err, mine)
	}
	for _, ids := range [][]string{others, nil} {
		if got, err := l.AliveAmong(t.Context(), sandbox, ids); err != nil || len(got) != 0 {
			t.Errorf("got %v, %v, want none", got, err)
		}
	}
	if got, err := l.AliveAmong(t.Context(), sandbox+"/x", mine); err != nil || len(got) != 0 {
		t.Errorf("for another sandbox: got %v, %v, want none", got, err)
	}
}

// A static credential ends with its task for every caller, and an unknown one was never alive.
func TestLiveCredentialEndsWithItsTask(t *testing.T) {
	t.Parallel()
	l := testkit.NewDB(t).Ledger(t)
	wants := func(name, id string, want bool) {
		t.Helper()
		if got, err := alive(t, l, id); err != nil || got != want {
			t.Errorf("%s: got %t, %v, want %t", name, got, err, want)
		}
	}
	ids := map[string]string{}
	for _, kind := range []string{"database", "kv"} {
		ids[kind] = bring(t, l, kind, []broker.Status{broker.StatusIssued}, nil).ID
		wants(kind, ids[kind], true)
	}
	wants("not issued yet", bring(t, l, "database", nil, nil).ID, false)
	announce(t, l, announced(broker.CommandTaskEnd, broker.Selector{SPIFFEID: sandbox, Task: "task-1"}))
	for kind, id := range ids {
		wants(kind+" of a task that has ended", id, false)
	}
	for _, id := range []string{"", "x", "00000000-0000-7000-8000-000000000000"} {
		wants("nothing", id, false)
	}
	l.Close()
	if _, err := alive(t, l, ids["kv"]); !errors.Is(err, broker.ErrLedgerUnavailable) {
		t.Errorf("got %v, want %v", err, broker.ErrLedgerUnavailable)
	}
}

// A failover that lost a revocation does not bring the token back (I6): a replica that knows of the missing entries gives no
// answer.
func TestRolledBackDatabaseHasNoActiveToken(t *testing.T) {
	t.Parallel()
	const back = `DELETE FROM entries WHERE index = 1; UPDATE ledger_head SET size = 1; UPDATE issuances SET status = 'issued', status_detail = NULL, actor = NULL`
	revoked := func(t *testing.T) (*testkit.DB, *ledger.Ledger, broker.Record) {
		db := testkit.NewDB(t)
		l := db.Ledger(t)
		return db, l, bring(t, l, "jwt", []broker.Status{broker.StatusRevoked}, nil)
	}
	wantNone := func(t *testing.T, l *ledger.Ledger, rec broker.Record) {
		t.Helper()
		got, err := l.TokenState(t.Context(), rec.ID, rec.Intent.ClaimsDigest)
		if !errors.Is(err, broker.ErrLedgerUnavailable) {
			t.Errorf("got %+v, %v; want %v", got, err, broker.ErrLedgerUnavailable)
		}
		if ended, err := l.EndedIn(t.Context(), theList); !errors.Is(err, broker.ErrLedgerUnavailable) {
			t.Errorf("got %v, %v of a list; want %v", ended, err, broker.ErrLedgerUnavailable)
		}
	}
	t.Run("by a checkpoint", func(t *testing.T) {
		db, l, rec := revoked(t)
		n := newNotary(t)
		sealed(t, l, n)
		tamper(t, db, back)
		if _, err := l.SealOnce(t.Context(), n); !errors.Is(err, postgres.ErrWentBack) {
			t.Fatalf("got %v, want %v", err, postgres.ErrWentBack)
		}
		wantNone(t, l, rec)
	})
	t.Run("before it has looked at one", func(t *testing.T) {
		db, l, rec := revoked(t)
		if isActive(t, l, rec.ID, rec.Intent.ClaimsDigest) {
			t.Fatal("a revoked token is active")
		}
		tamper(t, db, back)
		testkit.HangUp(t, db)
		wantNone(t, l, rec)
	})
}

// I6: no token is active by the word of a server that does not hold what was committed here, since it may lack the token's
// end.
func TestStaleServerHasNoActiveToken(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	rec := bring(t, l, "jwt", nil, in(7, nil))
	if !isActive(t, l, rec.ID, rec.Intent.ClaimsDigest) { // on a connection that is used again
		t.Fatal("not active")
	}
	bring(t, l, "jwt", nil, nil)
	tamper(t, db, `DELETE FROM entries WHERE index = 1; UPDATE ledger_head SET size = 1; DELETE FROM issuances WHERE entry_index = 1`)
	got, err := l.TokenState(t.Context(), rec.ID, rec.Intent.ClaimsDigest)
	if !errors.Is(err, broker.ErrLedgerUnavailable) {
		t.Errorf("got %+v, %v, want %v", got, err, broker.ErrLedgerUnavailable)
	}
	if got, err := alive(t, l, rec.ID); !errors.Is(err, broker.ErrLedgerUnavailable) {
		t.Errorf("got alive %v, %v, want %v", got, err, broker.ErrLedgerUnavailable)
	}
	if ended, err := l.EndedIn(t.Context(), theList); !errors.Is(err, broker.ErrLedgerUnavailable) {
		t.Errorf("got the list %v, %v, want %v", ended, err, broker.ErrLedgerUnavailable)
	}
}
