package ledger_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// standings is a webhook that gets every notice.
var standings = broker.Subscription{
	Name: "one", Within: []string{people.Everywhere},
	Kinds: []broker.NoticeKind{broker.NoticeWaiting, broker.NoticeDecided, broker.NoticeUnrevoked},
}

func openOutbox(t *testing.T, db *testkit.DB, subs ...broker.Subscription) *ledger.Outbox {
	t.Helper()
	box, err := ledger.OpenOutbox(t.Context(), ledger.Config{URL: db.BrokerURL, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(box.Close)
	for _, sub := range subs {
		if err := box.Subscribe(t.Context(), sub.Name); err != nil {
			t.Fatal(err)
		}
	}
	return box
}

// tells checks the next notice and ends it.
func tells(t *testing.T, box *ledger.Outbox, sub broker.Subscription, kind broker.NoticeKind, rec broker.Record, status broker.Status) {
	t.Helper()
	n, err := box.Next(t.Context(), sub)
	if err != nil || n == nil || n.Kind != kind || n.Request != rec.ID || n.Status != status || n.Attempts != 1 {
		t.Fatalf("got %+v, %v, want %s of %s as %s", n, err, kind, rec.ID, status)
	}
	if n.SPIFFEID != rec.Subject.ID.String() || n.Task != rec.Request.Task || n.Resource != rec.Decision.Resource || n.Scope != rec.Request.Scope {
		t.Errorf("got %+v, want what was recorded", n)
	}
	if err := box.MarkDelivered(t.Context(), sub.Name, *n); err != nil {
		t.Fatal(err)
	}
}

func tellsNothing(t *testing.T, box *ledger.Outbox, sub broker.Subscription) {
	t.Helper()
	if n, err := box.Next(t.Context(), sub); err != nil || n != nil {
		t.Fatalf("got %+v, %v, want nothing to tell", n, err)
	}
}

func TestNoticesFollowFromEntries(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	waits(t, l) // before any webhook has subscribed
	acme := standings
	acme.Name, acme.Within, acme.Kinds = "acme", []string{"spiffe://acme.test/agents"}, standings.Kinds[1:2]
	box := openOutbox(t, db, standings, acme)
	tellsNothing(t, box, standings)

	approvedOne := approved(t, l)
	tells(t, box, standings, broker.NoticeWaiting, approvedOne, "pending")
	tells(t, box, standings, broker.NoticeDecided, approvedOne, "approved")
	if err := cast(t, l, approvedOne, bobVotes, broker.Transition{Was: "approved", Votes: 2, Becomes: "rejected"}); err != nil {
		t.Fatal(err)
	}
	tells(t, box, standings, broker.NoticeDecided, approvedOne, "rejected")
	abroad := pending(func(rec *broker.Record) {
		rec.Subject.ID = spiffeid.RequireFromString("spiffe://other.test/agents/a")
		rec.Expires = time.Now().Add(time.Hour)
	})
	beside := pending(func(rec *broker.Record) {
		rec.Subject.ID = spiffeid.RequireFromString("spiffe://acme.test/agents-too/a")
		rec.Expires = time.Now().Add(time.Hour)
	})
	begin(t, l, allowed(nil), denied(nil), abroad, beside)
	tells(t, box, standings, broker.NoticeWaiting, abroad, "pending")
	tells(t, box, standings, broker.NoticeWaiting, beside, "pending")
	tellsNothing(t, box, standings)
	tells(t, box, acme, broker.NoticeDecided, approvedOne, "approved")
	tells(t, box, acme, broker.NoticeDecided, approvedOne, "rejected")
	tellsNothing(t, box, acme)
	db.Check(t)
}

// A request that reuses an earlier approval causes a notice that it is decided, and never one that it waits.
func TestReusedApprovalSendsNoPendingNotice(t *testing.T) {
	t.Parallel()
	start := moment()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	first := waits(t, l)
	for i, who := range []approval.Voter{bobVotes, carolVotes} {
		if _, err := l.UpsertPerson(t.Context(), who, start); err != nil {
			t.Fatal(err)
		}
		at := time.Now()
		if err := l.Apply(t.Context(), broker.Transition{
			Request: first.ID, Was: "pending", Votes: i, Becomes: []broker.Status{"pending", "approved"}[i], Time: at, Actor: who.ID,
			Vote: &approval.Vote{Voter: who, Verdict: approval.Approve, Covers: approval.CoverTask, Time: at},
			Hash: (&broker.ApprovalRequest{View: broker.View{Canonical: first.Canonical}}).Hash(),
		}); err != nil {
			t.Fatal(err)
		}
	}
	box := openOutbox(t, db, standings)
	second := waits(t, l)
	if err := l.Apply(t.Context(), broker.Transition{
		Request: second.ID, Was: "pending", Becomes: "approved", Time: time.Now(), Actor: sandbox, Remembered: first.ID,
	}); err != nil {
		t.Fatal(err)
	}
	tells(t, box, standings, broker.NoticeDecided, second, "approved")
	tellsNothing(t, box, standings)
	db.Check(t)
}

// A notice that follows from no entry is sent when it is due, and only if it is still true then.
func TestTimedNoticeIsSentOnlyIfStillTrue(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	box := openOutbox(t, db, standings)
	lasting := func(d time.Duration) broker.Record {
		return pending(func(rec *broker.Record) { rec.Canonical, rec.Expires = "{}", time.Now().Add(d) })
	}
	withdrawn := lasting(10 * time.Second)
	begin(t, l, withdrawn)
	tells(t, box, standings, broker.NoticeWaiting, withdrawn, "pending")
	if err := l.Apply(t.Context(), broker.Transition{
		Request: withdrawn.ID, Was: "pending", Becomes: "withdrawn", Time: time.Now(), Actor: sandbox,
	}); err != nil {
		t.Fatal(err)
	}
	tells(t, box, standings, broker.NoticeDecided, withdrawn, "withdrawn")
	expires := lasting(10 * time.Second)
	begin(t, l, expires)
	tells(t, box, standings, broker.NoticeWaiting, expires, "pending")
	until(t, "the end of both waits", func() bool { return time.Now().After(expires.Expires.Add(100 * time.Millisecond)) })
	tells(t, box, standings, broker.NoticeDecided, expires, "expired")
	tellsNothing(t, box, standings)

	admin := testkit.Connect(t, db.AdminURL)
	justNow := func(way ...broker.Status) broker.Record {
		rec := dynamic(scopes.KindDatabase, nil)
		begin(t, l, rec)
		for _, status := range way {
			out := to(rec, status)
			out.Time = time.Now() // otherwise it would be overdue already
			settle(t, l, out)
		}
		return rec
	}
	stuck, done := justNow("issued", "revoking"), justNow("issued", "revoking", "revoked")
	tellsNothing(t, box, standings)
	exec(t, admin, `UPDATE webhook_notices SET due = now()`)
	tells(t, box, standings, broker.NoticeUnrevoked, stuck, "revoking")
	tellsNothing(t, box, standings)
	var left int
	if err := admin.QueryRow(t.Context(), `SELECT count(*) FROM webhook_notices`).Scan(&left); err != nil || left != 0 {
		t.Errorf("got %d notices left, %v, want that of %s gone too", left, err, done.ID)
	}
}

// A notice that waits for another attempt lets others pass, keeps its id, and is dropped when it is moot. Only one Outbox
// serves a webhook at once.
func TestUndeliveredNoticeDoesNotBlockOthers(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	box, other := openOutbox(t, db, standings), openOutbox(t, db)
	first, second := waits(t, l), waits(t, l)
	n, err := box.Next(t.Context(), standings)
	if err != nil || n == nil || n.Request != first.ID {
		t.Fatalf("got %+v, %v", n, err)
	}
	tellsNothing(t, other, standings)
	if err := box.PutOff(t.Context(), standings.Name, *n, 0); err != nil {
		t.Fatal(err)
	}
	again, err := box.Next(t.Context(), standings)
	if err != nil || again == nil || again.ID != n.ID || again.Attempts != 2 {
		t.Fatalf("got %+v, %v, want %s again", again, err, n.ID)
	}
	if err := box.PutOff(t.Context(), standings.Name, *again, time.Hour); err != nil {
		t.Fatal(err)
	}
	tells(t, box, standings, broker.NoticeWaiting, second, "pending")
	if err := cast(t, l, first, bobVotes, broker.Transition{Was: "pending", Becomes: "rejected"}); err != nil {
		t.Fatal(err)
	}
	tells(t, box, standings, broker.NoticeDecided, first, "rejected")
	exec(t, testkit.Connect(t, db.AdminURL), `UPDATE webhook_notices SET due = now() WHERE kind = 'approval.waiting'`)
	tellsNothing(t, box, standings)
	if err := box.Release(t.Context(), standings.Name); err != nil {
		t.Fatal(err)
	}
	third := waits(t, l)
	tells(t, other, standings, broker.NoticeWaiting, third, "pending")
	tellsNothing(t, box, standings)
}

// A webhook that got no notices for long gets those of the last day, however many entries there were.
func TestNoticesCatchUp(t *testing.T) {
	start := moment()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	box := openOutbox(t, db, standings)
	old := pending(func(rec *broker.Record) { rec.Time, rec.Expires = start.Add(-25*time.Hour), time.Now().Add(time.Hour) })
	begin(t, l, old)
	for range 2100 / 100 {
		var many []broker.Record
		for range 100 {
			many = append(many, denied(nil))
		}
		begin(t, l, many...)
	}
	last := waits(t, l)
	tells(t, box, standings, broker.NoticeWaiting, last, "pending")
	tellsNothing(t, box, standings)
}
