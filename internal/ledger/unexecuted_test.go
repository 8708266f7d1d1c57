package ledger_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/jackc/pgx/v5"
)

// unexecuted returns what commands should have ended, by sandbox.
func unexecuted(t *testing.T, l *ledger.Ledger, orders time.Time, limit int) []string {
	t.Helper()
	held, err := l.Overdue(t.Context(), broker.Overdue{Orders: orders, Limit: limit})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, h := range held {
		got = append(got, h.Subject+" "+h.Detail)
	}
	slices.Sort(got)
	return got
}

// A credential that several commands forbid is returned once. Commands from long ago are left out.
func TestCommandMakesCredentialsOverdue(t *testing.T) {
	t.Parallel()
	start := moment()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	for _, id := range []string{"spiffe://acme.test/a", "spiffe://acme.test/a/b", "spiffe://acme.test/ab", "spiffe://acme.test.evil/a", "spiffe://other.test/a"} {
		begin(t, l, allowed(as(moment(), id, "git.read", "t", 0)))
	}
	hourAgo, now := start.Add(-time.Hour), start.Add(-10*time.Second)
	at := func(cmd broker.Command, at time.Time) broker.Command {
		cmd.Time = at
		return cmd
	}
	announce(t, l, at(quarantine("spiffe://acme.test"), now), at(quarantine("spiffe://acme.test/a"), hourAgo),
		// This deadline passed long ago, and was only now carried out.
		at(taskEnd("spiffe://other.test/a", "t", hourAgo), hourAgo.Add(-time.Hour)),
		at(taskEnd("spiffe://other.test/a", "t", time.Time{}), now),
		at(taskEnd("spiffe://acme.test/a/b", "t", time.Time{}), now))
	of := map[string]string{
		"spiffe://acme.test/a": broker.CauseQuarantined, "spiffe://acme.test/a/b": broker.CauseTaskEnded,
		"spiffe://acme.test/ab": broker.CauseQuarantined, "spiffe://other.test/a": broker.CauseTaskEnded,
	}
	var want []string
	for id, cause := range of {
		want = append(want, id+" "+cause)
	}
	slices.Sort(want)
	for name, orders := range map[string]time.Time{"all": {}, "of the last minute": now.Add(-time.Minute)} {
		if got := unexecuted(t, l, orders, 100); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if got := unexecuted(t, l, now.Add(time.Second), 100); len(got) != 0 {
		t.Errorf("later orders: got %q", got)
	}
	if got := unexecuted(t, l, time.Time{}, 2); len(got) != 2 {
		t.Errorf("two at most: got %q", got)
	}
	db.Check(t)
}

// copies fills the tables without their triggers, which are not under test. The lapsed records were JWTs, and stay issued.
func copies(t *testing.T, conn *pgx.Conn, rec broker.Record, live, lapsed, quarantines, tasks int) {
	t.Helper()
	exec(t, conn, `SET session_replication_role = replica`)
	exec(t, conn, `
		INSERT INTO issuances SELECT made.*
		FROM issuances AS i, generate_series(0, $2::int + $3::int - 1) AS n, jsonb_populate_record(i, jsonb_build_object(
			'id', gen_random_uuid(), 'entry_index', 1000 + n, 'task', 'task-' || n, 'context', jsonb_build_object('task', 'task-' || n),
			'spiffe_id', 'spiffe://acme.test/agents/' || n % 500 || '/' || n % 20000,
			'time', now() - CASE WHEN n < $2 THEN interval '1 minute' ELSE (n % 1000 + 25) * interval '1 hour' END,
			'expires_at', CASE WHEN n < $2 THEN now() + (n % 1400 + 10) * interval '1 minute'
				ELSE now() - (n % 1000 + 1) * interval '1 minute' END)) AS made
		WHERE i.id = $1`, rec.ID, live, lapsed)
	exec(t, conn, `
		INSERT INTO quarantines SELECT CASE n WHEN 0 THEN 'spiffe://none.test' ELSE 'spiffe://acme.test/agents/x' || n END,
			now() - interval '1 minute', NULL, '', gen_random_uuid(), 0
		FROM generate_series(0, $1::int - 1) AS n`, quarantines)
	exec(t, conn, `
		INSERT INTO task_ends SELECT 'spiffe://acme.test/agents/' || n % 500 || '/' || n % 20000, 'over-' || n,
			now() - n * interval '4 s', true, now() - n * interval '4 s', gen_random_uuid(), 0
		FROM generate_series(0, $1::int - 1) AS n`, tasks)
	exec(t, conn, `SET session_replication_role = origin`)
}

// The sweeper queries each second. The answer must come however many credentials live, have ended, or are subject to
// commands.
func TestOverdueIsFast(t *testing.T) {
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	conn := testkit.Connect(t, db.AdminURL)
	rec := allowed(as(moment(), "spiffe://acme.test/first", "git.read", "t", 0))
	begin(t, l, rec)
	copies(t, conn, rec, 100_000, 50_000, 51, 20_000)
	look := func(name string, want int) {
		t.Helper()
		for _, orders := range []time.Time{{}, time.Now().Add(-2 * time.Minute)} {
			best := time.Hour // of three: the machine may be busy
			for range 3 {
				began := time.Now()
				got := unexecuted(t, l, orders, 200)
				best = min(best, time.Since(began))
				if len(got) != want {
					t.Errorf("%s: got %d records, want %d", name, len(got), want)
				}
			}
			t.Logf("%s, orders since %s: %s", name, orders.Format(time.TimeOnly), best)
			if best > 3*time.Second { // the test is about plans, and the machine may be busy
				t.Errorf("%s: took %s, want three seconds at most", name, best)
			}
		}
	}
	look("not analyzed, nothing to end", 0)
	exec(t, conn, `ANALYZE issuances, task_ends, quarantines`)
	look("nothing to end", 0)
	exec(t, conn, `SET session_replication_role = replica`)
	for n, id := range []string{"spiffe://acme.test/agents/7", "spiffe://acme.test/agents", "spiffe://acme.test"} {
		exec(t, conn, fmt.Sprintf(`INSERT INTO quarantines VALUES ('%s', now() - interval '%d s', NULL, '', gen_random_uuid(), 0)`, id, 10+n))
		look("below "+id, 200)
	}
}

// After a denial, what it has not ended yet is overdue: what the request was redeemed by, and what reused its approval.
func TestDenialMakesCredentialsOverdue(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	refused, kept := approved(t, l), approved(t, l)
	begin(t, l, redeems(refused), redeems(kept))
	if got := unexecuted(t, l, time.Time{}, 100); len(got) != 0 {
		t.Errorf("before the no: got %q", got)
	}
	no := broker.Transition{
		Request: refused.ID, Was: broker.StatusRedeemed, Votes: 2, Becomes: broker.StatusRedeemed, Actor: carolVotes.ID, Time: time.Now().Add(-3 * time.Second),
		Hash: (&broker.ApprovalRequest{View: broker.View{Canonical: refused.Canonical}}).Hash(),
	}
	no.Vote = &approval.Vote{Voter: carolVotes, Verdict: approval.Deny, Covers: approval.CoverRequest, Time: no.Time}
	if err := l.Apply(t.Context(), no); err != nil {
		t.Fatal(err)
	}
	if got, want := unexecuted(t, l, time.Time{}, 100), []string{sandbox + " " + broker.CauseRevoked}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := unexecuted(t, l, time.Now().Add(time.Second), 100); len(got) != 0 {
		t.Errorf("later orders: got %q", got)
	}
}
