package ledger_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/google/uuid"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// remembers reports whether a ledger has a token cached as active.
func remembers(l *ledger.Ledger, rec broker.Record) bool {
	state, ok := l.Cached(rec.ID, rec.Intent.ClaimsDigest)
	return ok && state.Active
}

// remember makes a ledger cache tokens.
func remember(t *testing.T, l *ledger.Ledger, recs ...broker.Record) {
	t.Helper()
	for _, rec := range recs {
		eventually(t, "remembered", func() bool {
			if !isActive(t, l, rec.ID, rec.Intent.ClaimsDigest) {
				t.Fatalf("%s is not active", rec.ID)
			}
			return remembers(l, rec)
		})
	}
}

func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not %s after ten seconds", what)
		}
	}
}

// I6: when a token ends on one replica, the other drops it from its cache after WaitForReplicas, and drops nothing else.
func TestEndedTokenLeavesEveryCache(t *testing.T) {
	t.Parallel()
	ends := func(target broker.Selector, at time.Time) func(*testing.T, *ledger.Ledger, broker.Record) {
		return func(t *testing.T, l *ledger.Ledger, _ broker.Record) {
			announce(t, l, taskEnd(target.SPIFFEID, target.Task, at))
		}
	}
	confines := func(id string) func(*testing.T, *ledger.Ledger, broker.Record) {
		return func(t *testing.T, l *ledger.Ledger, _ broker.Record) { announce(t, l, quarantine(id)) }
	}
	becomes := func(status broker.Status) func(*testing.T, *ledger.Ledger, broker.Record) {
		return func(t *testing.T, l *ledger.Ledger, rec broker.Record) { settle(t, l, to(rec, status)) }
	}
	for _, tc := range []struct {
		name  string
		event func(*testing.T, *ledger.Ledger, broker.Record)
		want  bool // of the token, and of the token exchanged from it
	}{
		{"revoked", becomes(broker.StatusRevoked), false},
		{"released", becomes(broker.StatusReleased), false},
		{"failed", becomes(broker.StatusFailed), false},
		{"its task has ended", ends(broker.Selector{SPIFFEID: sandbox, Task: "task-1"}, time.Time{}), false},
		{"another task has ended", ends(broker.Selector{SPIFFEID: sandbox, Task: "task-2"}, time.Time{}), true},
		{"a sandbox in quarantine", confines(sandbox), false},
		{"a path in quarantine", confines("spiffe://acme.test/agents"), false},
		{"a trust domain in quarantine", confines("spiffe://acme.test"), false},
		{"beside it is a quarantine", confines(sandbox + "x"), true},
		{"another token", func(t *testing.T, l *ledger.Ledger, _ broker.Record) {
			bring(t, l, "jwt", []broker.Status{broker.StatusRevoked}, nil)
		}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			db := testkit.NewDB(t)
			one, other := db.Ledger(t), db.Ledger(t)
			rec := bring(t, one, "jwt", nil, nil)
			below := handedDown(rec, nil)
			begin(t, one, below)
			remember(t, other, rec, below)
			tc.event(t, one, rec)
			one.WaitForReplicas(t.Context())
			for _, r := range []broker.Record{rec, below} {
				if got := remembers(other, r); got != tc.want {
					t.Errorf("%s: got remembered %v, want %v", r.Subject.ID, got, tc.want)
				}
			}
			db.Check(t)
		})
	}
}

// I13: once a replica has learned from Postgres that a token ended, its cache does not say otherwise, even before the
// replica has read the entry.
func TestCacheNeverRevivesAnEndedToken(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	one, other := db.Ledger(t), db.Ledger(t)
	for n := range 20 {
		rec := bring(t, one, "jwt", nil, func(rec *broker.Record) { rec.Request.Task = fmt.Sprintf("task-%d", n) })
		remember(t, other, rec)
		announce(t, one, taskEnd(sandbox, rec.Request.Task, time.Time{}))
		if isActive(t, other, rec.ID, rec.Intent.ClaimsDigest) {
			t.Fatal("active after its task has ended")
		}
		if remembers(other, rec) {
			t.Errorf("token %d: active from memory after it was told to be inactive", n)
		}
	}
}

// A task's end with a later time takes effect without a further entry.
func TestCachedTokenEndsWithItsTask(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	one, other := db.Ledger(t), db.Ledger(t)
	rec := bring(t, one, "jwt", nil, nil)
	remember(t, other, rec)
	ends := time.Now().Add(4 * time.Second)
	announce(t, one, taskEnd(sandbox, "task-1", ends))
	one.WaitForReplicas(t.Context()) // some seconds at most
	remember(t, other, rec)
	time.Sleep(time.Until(ends) + time.Millisecond)
	if remembers(other, rec) {
		t.Error("active from memory after its task has ended")
	}
	if isActive(t, other, rec.ID, rec.Intent.ClaimsDigest) {
		t.Error("active after its task has ended")
	}
}

// Another token with the id of a cached one is not found: someone with the key has signed it.
func TestCacheMatchesTheWholeToken(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	rec := bring(t, l, "jwt", nil, nil)
	remember(t, l, rec)
	if _, ok := l.Cached(rec.ID, [32]byte{1}); ok {
		t.Error("another token with that id is remembered")
	}
	if _, ok := l.Cached(uuid.NewString(), rec.Intent.ClaimsDigest); ok {
		t.Error("another token with those claims is remembered")
	}
}

// H104, H106 and I6, thousands of times: however busy two replicas are, a lookup that begins after WaitForReplicas has
// returned does not find an ended token active, even if the token was being looked up at that time.
func TestNoLookupMissesAnEndedToken(t *testing.T) {
	t.Parallel()
	const tokens, callers = 2000, 32
	db := testkit.NewDB(t)
	replicas := []*ledger.Ledger{db.Ledger(t), db.Ledger(t)}
	var next, found atomic.Int64
	first := bring(t, replicas[0], "jwt", nil, nil)
	for _, l := range replicas {
		remember(t, l, first)
	}
	var busy sync.WaitGroup
	for range callers {
		busy.Go(func() {
			for n := next.Add(1); n <= tokens && !t.Failed(); n = next.Add(1) {
				here, there := replicas[n%2], replicas[(n+1)%2]
				rec := allowed(ofSandbox(int(n), nil))
				if _, err := here.Begin(t.Context(), rec); err != nil {
					t.Errorf("Begin: %v", err)
					return
				}
				found.Add(endedWhileLookedAt(t, here, there, rec, n%3 == 0))
			}
		})
	}
	busy.Wait()
	if found.Load() < tokens/2 {
		t.Errorf("got %d answers from memory before the ends of %d tokens: it was not tried", found.Load(), tokens)
	}
	db.Check(t)
}

// endedWhileLookedAt ends a token here while there looks it up, and counts the answers from the cache before the end.
func endedWhileLookedAt(t *testing.T, here, there *ledger.Ledger, rec broker.Record, byTask bool) (found int64) {
	var confirmed atomic.Bool
	var looker sync.WaitGroup
	looker.Go(func() {
		for more := true; more; {
			over := confirmed.Load() // read before the lookup
			active := remembers(there, rec)
			if active {
				found++
			} else {
				state, err := there.TokenState(t.Context(), rec.ID, rec.Intent.ClaimsDigest)
				if err != nil {
					t.Errorf("TokenState: %v", err)
				}
				active = state.Active
			}
			if over && active {
				t.Errorf("%s is active after its end was confirmed", rec.ID)
			}
			more = !over
			time.Sleep(time.Millisecond)
		}
	})
	for range 3 { // so that it is looked up before
		_, _ = there.TokenState(t.Context(), rec.ID, rec.Intent.ClaimsDigest)
	}
	var err error
	if byTask {
		err = here.Announce(t.Context(), taskEnd(rec.Subject.ID.String(), rec.Request.Task, time.Time{}))
	} else {
		err = here.RecordOutcome(t.Context(), to(rec, broker.StatusReleased))
	}
	if err != nil {
		t.Errorf("ending %s: %v", rec.ID, err)
	}
	here.WaitForReplicas(t.Context())
	confirmed.Store(true)
	looker.Wait()
	return found
}

// A replica that is stuck answers nothing from its cache once others have confirmed an end without it, which they do within
// a second. When it continues, it takes part again.
func TestStuckReplicaStopsServingFromItsCache(t *testing.T) {
	t.Parallel()
	for name, hold := range map[string]string{
		"before it tells how far it has read": `SELECT FROM replicas FOR UPDATE`,
		"with all that is known of replicas":  `LOCK TABLE replicas IN ACCESS EXCLUSIVE MODE`,
	} {
		t.Run(name, func(t *testing.T) {
			db := testkit.NewDB(t)
			one, other := db.Ledger(t), db.Ledger(t)
			rec, later := bring(t, one, "jwt", nil, nil), bring(t, one, "jwt", nil, nil)
			remember(t, other, rec, later)
			tx, err := testkit.Connect(t, db.AdminURL).Begin(t.Context())
			if err == nil {
				_, err = tx.Exec(t.Context(), hold)
			}
			if err != nil {
				t.Fatal(err)
			}
			settle(t, one, to(rec, broker.StatusRevoked))
			began := time.Now()
			one.WaitForReplicas(t.Context())
			if took := time.Since(began); took > 1500*time.Millisecond {
				t.Errorf("took %s, want about half a second", took)
			}
			for range 100 {
				if remembers(other, rec) || remembers(other, later) {
					t.Fatal("answered from memory without a lease")
				}
				time.Sleep(time.Millisecond)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			remember(t, other, later)
			if remembers(other, rec) {
				t.Error("what was ended meanwhile is remembered")
			}
			settle(t, one, to(later, broker.StatusRevoked))
			one.WaitForReplicas(t.Context())
			if remembers(other, later) {
				t.Error("nobody waited for a replica that is there again")
			}
		})
	}
}

// Other replicas wait only once for a replica that died.
func TestDeadReplicaIsWaitedForOnce(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	conn := testkit.Connect(t, db.AdminURL)
	exec(t, conn, `INSERT INTO replicas (id, seen, beat) VALUES (gen_random_uuid(), 0, 1)`)
	bring(t, l, "jwt", nil, nil)
	began := time.Now()
	l.WaitForReplicas(t.Context())
	if took := time.Since(began); took < 400*time.Millisecond || took > 1500*time.Millisecond {
		t.Errorf("took %s, want about half a second", took)
	}
	eventually(t, "gone", func() bool {
		var left int
		if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM replicas`).Scan(&left); err != nil {
			t.Fatal(err)
		}
		return left == 0
	})
	began = time.Now()
	l.WaitForReplicas(t.Context())
	if took := time.Since(began); took > 300*time.Millisecond {
		t.Errorf("took %s, want nobody waited for", took)
	}
}

// A server that does not hold what was committed here does not know which replicas to wait for. So the replica waits for the
// end of all leases.
func TestStaleServerMakesReplicasWaitForAllLeases(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	bring(t, l, "jwt", []broker.Status{broker.StatusRevoked}, nil)
	tamper(t, db, `DELETE FROM entries WHERE index = 1; UPDATE ledger_head SET size = 1`)
	began := time.Now()
	l.WaitForReplicas(t.Context())
	if took := time.Since(began); took < 400*time.Millisecond {
		t.Errorf("took %s, want about half a second", took)
	}
}

// No replica waits for a closed ledger, and a new ledger starts with an empty cache.
func TestCacheEndsWithTheLedger(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	one, other := db.Ledger(t), db.Ledger(t)
	rec := bring(t, one, "jwt", nil, nil)
	remember(t, other, rec)
	other.Close()
	if remembers(other, rec) {
		t.Error("remembered by a ledger that is closed")
	}
	var left int
	if err := testkit.Connect(t, db.AdminURL).QueryRow(t.Context(), `SELECT count(*) FROM replicas`).Scan(&left); err != nil || left != 0 {
		t.Errorf("got %d, %v replicas, want none", left, err)
	}
	if remembers(db.Ledger(t), rec) {
		t.Error("remembered from the start")
	}
}

// Without Postgres no cached token is active for longer than the lease. Once Postgres is back, a token that ended during
// that time is not active.
func TestCacheExpiresWithoutPostgres(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	p, url := through(t, db.BrokerURL)
	one, other := db.Ledger(t), open(t, url)
	rec, kept := bring(t, one, "jwt", nil, nil), bring(t, one, "jwt", nil, nil)
	remember(t, other, rec, kept)
	p.cutOff()
	cut := time.Now()
	settle(t, one, to(rec, broker.StatusRevoked))
	one.WaitForReplicas(t.Context())
	if remembers(other, rec) {
		t.Error("remembered after its end was confirmed")
	}
	eventually(t, "forgotten", func() bool { return !remembers(other, kept) })
	if took := time.Since(cut); took > time.Second {
		t.Errorf("remembered for %s without Postgres", took)
	}
	if got, err := other.TokenState(t.Context(), kept.ID, kept.Intent.ClaimsDigest); !errors.Is(err, broker.ErrLedgerUnavailable) {
		t.Errorf("got %+v, %v, want %v", got, err, broker.ErrLedgerUnavailable)
	}
	p.restore()
	eventually(t, "there again", func() bool {
		_, err := other.TokenState(t.Context(), kept.ID, kept.Intent.ClaimsDigest)
		return err == nil && remembers(other, kept)
	})
	if isActive(t, other, rec.ID, rec.Intent.ClaimsDigest) || remembers(other, rec) {
		t.Error("what was ended meanwhile is active")
	}
}

// Answers of a server that went back are not cached, and what was cached before is dropped.
func TestRollbackClearsTheCache(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	first, rec := bring(t, l, "jwt", nil, nil), bring(t, l, "jwt", nil, nil)
	remember(t, l, first, rec)
	tamper(t, db, `DELETE FROM entries WHERE index = 1; UPDATE ledger_head SET size = 1; DELETE FROM issuances WHERE entry_index = 1`)
	eventually(t, "forgotten", func() bool { return !remembers(l, first) })
	for range 300 {
		if remembers(l, first) || remembers(l, rec) {
			t.Fatal("remembered by what went back")
		}
		time.Sleep(time.Millisecond)
	}
}

// If a replica reads an entry of an unknown kind, it drops everything that is cached.
func TestUnknownEntryClearsTheCache(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	rec := bring(t, l, "jwt", nil, nil)
	remember(t, l, rec)
	tamper(t, db, `
		WITH b AS (SELECT convert_to('{"id":"00000000-0000-7000-8000-000000000001","kind":"new.kind"}', 'UTF8') AS body),
			h AS (UPDATE ledger_head SET size = size + 1 RETURNING size - 1 AS index)
		INSERT INTO entries (index, id, time, kind, body, leaf_hash)
		SELECT index, '00000000-0000-7000-8000-000000000001', now(), 'new.kind', body, sha256('\x00'::bytea || body) FROM b, h`)
	l.WaitForReplicas(t.Context())
	if remembers(l, rec) {
		t.Error("remembered after something that nobody knows has happened")
	}
	remember(t, l, rec)
}

// A token of a sandbox with a path of a thousand segments is not cached, so it takes no more memory than others.
func TestLongPathsAreNotCached(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	deep := func(segments int) broker.Record {
		return bring(t, l, "jwt", nil, func(rec *broker.Record) {
			rec.Subject.ID = spiffeid.RequireFromString("spiffe://acme.test" + strings.Repeat("/a", segments))
		})
	}
	rec, longer := deep(90), deep(1000)
	remember(t, l, rec)
	if !isActive(t, l, longer.ID, longer.Intent.ClaimsDigest) || remembers(l, longer) {
		t.Error("remembered by a thousand marks, or not active")
	}
	settle(t, l, to(rec, broker.StatusRevoked))
	l.WaitForReplicas(t.Context())
	if remembers(l, rec) {
		t.Error("remembered after its end")
	}
}

// BenchmarkCachedToken times an answer from the cache.
func BenchmarkCachedToken(b *testing.B) {
	db := testkit.NewDB(b)
	l := db.Ledger(b)
	rec := allowed(nil)
	if _, err := l.Begin(b.Context(), rec); err != nil {
		b.Fatal(err)
	}
	for !remembers(l, rec) {
		if _, err := l.TokenState(b.Context(), rec.ID, rec.Intent.ClaimsDigest); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if !remembers(l, rec) {
			b.Fatal(fmt.Errorf("%s is forgotten", rec.ID))
		}
	}
}
