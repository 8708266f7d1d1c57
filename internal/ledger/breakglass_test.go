package ledger_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
)

// daveVotes and erinVotes are in the group that may break the glass, and not in the group that is asked to approve.
var (
	daveVotes = approval.Voter{ID: "https://idp.test#dave", Name: "Dave", Handle: "dave", Groups: []string{"leads"}, SaidAt: saidEarlier}
	erinVotes = approval.Voter{ID: "https://idp.test#erin", Name: "Erin", Handle: "erin", Groups: []string{"leads"}, SaidAt: saidEarlier}
)

// breakable begins a request that three people have to approve, or two who break the glass.
func breakable(t *testing.T, l *ledger.Ledger) broker.Record {
	t.Helper()
	rec := pending(func(rec *broker.Record) {
		rec.Decision.Approval.Quorum, rec.Decision.Approval.BreakGlass = 3, "leads"
		rec.Decision.TTL = time.Hour
		rec.Canonical = `{"what":"people see","break_glass":"leads"}`
		rec.Expires = time.Now().Add(time.Hour).Truncate(time.Second)
	})
	begin(t, l, rec)
	return rec
}

// breaks records votes that break the glass, one after the other. The last one leads to a status.
func breaks(t *testing.T, l *ledger.Ledger, rec broker.Record, last broker.Status, who ...approval.Voter) {
	t.Helper()
	for i, v := range who {
		step := broker.Transition{Was: broker.StatusPending, Votes: i, Becomes: broker.StatusPending}
		if i == len(who)-1 {
			step.Becomes = last
		}
		if err := breakOnce(t, l, rec, v, step); err != nil {
			t.Fatal(err)
		}
	}
}

func breakOnce(t *testing.T, l *ledger.Ledger, rec broker.Record, who approval.Voter, step broker.Transition) error {
	t.Helper()
	if _, err := l.UpsertPerson(t.Context(), who, moment()); err != nil {
		t.Fatal(err)
	}
	vote := approval.Vote{Voter: who, Verdict: approval.BreakGlass, Covers: approval.CoverRequest, Time: time.Now(), Note: "oncall does not answer"}
	if step.Vote != nil {
		vote.Covers, vote.Note = step.Vote.Covers, step.Vote.Note
	}
	step.Request, step.Actor, step.Time, step.Vote = rec.ID, who.ID, vote.Time, &vote
	step.Hash = (&broker.ApprovalRequest{View: broker.View{Canonical: rec.Canonical}}).Hash()
	return l.Apply(t.Context(), step)
}

// redeemsBroken returns the issuance that redeems a request by break-glass votes.
func redeemsBroken(request broker.Record, change func(*broker.Record)) broker.Record {
	rec := redeems(request)
	rec.Decision.Reason, rec.Decision.TTL = scopes.ReasonBreakGlass, scopes.BreakGlassTTL
	rec.Expires = rec.Time.Add(rec.Decision.TTL).Truncate(time.Second)
	if change != nil {
		change(&rec)
	}
	return rec
}

func TestTwoBreakGlassVotesApprove(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	request := breakable(t, l)
	if view, err := l.Get(t.Context(), request.ID, everything); err != nil || view.BreakGlass != "leads" || view.Broken {
		t.Errorf("got %+v, %v, want the glass whole", view, err)
	}
	breaks(t, l, request, broker.StatusPending, daveVotes)
	if view, err := l.Get(t.Context(), request.ID, everything); err != nil || !view.Broken {
		t.Errorf("got %+v, %v, want the glass broken", view, err)
	}
	if err := breakOnce(t, l, request, erinVotes, broker.Transition{Was: broker.StatusPending, Votes: 1, Becomes: broker.StatusApproved}); err != nil {
		t.Fatal(err)
	}
	issued := redeemsBroken(request, nil)
	begin(t, l, issued, allowed(nil))
	page, err := l.List(t.Context(), broker.Query{DecisionCode: "break_glass", Limit: 10}, everything)
	if err != nil || len(page.Records) != 1 || page.Records[0].ID != issued.ID {
		t.Errorf("got %+v, %v, want what was issued by breaking the glass, and nothing else", page, err)
	}
	db.Check(t)
}

// The database checks whose votes approve a request and its issuance, whatever the broker writes.
func TestForgedBreakGlass(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	to := func(votes int, becomes broker.Status) broker.Transition {
		return broker.Transition{Was: broker.StatusPending, Votes: votes, Becomes: becomes}
	}
	unkept := func(name string, err error) {
		t.Helper()
		if !errors.Is(err, record.ErrUnrecordable) {
			t.Errorf("%s: got %v, want ErrUnrecordable", name, err)
		}
	}
	request := breakable(t, l)
	unkept("approved by one", breakOnce(t, l, request, daveVotes, to(0, broker.StatusApproved)))
	unkept("for the task", breakOnce(t, l, request, daveVotes, broker.Transition{
		Was: broker.StatusPending, Becomes: broker.StatusPending, Vote: &approval.Vote{Covers: approval.CoverTask, Note: "x"},
	}))
	unkept("without a note", breakOnce(t, l, request, daveVotes, broker.Transition{
		Was: broker.StatusPending, Becomes: broker.StatusPending, Vote: &approval.Vote{Covers: approval.CoverRequest, Note: " \n"},
	}))
	breaks(t, l, request, broker.StatusPending, daveVotes)
	unkept("one person twice", breakOnce(t, l, request, daveVotes, to(1, broker.StatusApproved)))
	unkept("one person in both ways", cast(t, l, request, daveVotes, to(1, broker.StatusPending)))
	unkept("somebody of the group that was asked", breakOnce(t, l, request, bobVotes, to(1, broker.StatusApproved)))
	if err := cast(t, l, request, bobVotes, to(1, broker.StatusPending)); err != nil {
		t.Fatal(err)
	}
	unkept("one of each, and one more who was asked", cast(t, l, request, carolVotes, to(2, broker.StatusApproved)))
	whole := waits(t, l)
	breaks(t, l, whole, broker.StatusPending, daveVotes)
	unkept("a request that nobody may break the glass for", breakOnce(t, l, whole, erinVotes, to(1, broker.StatusApproved)))
	db.Check(t)
}

// I3 and I5: the database issues on a break-glass approval for 30 minutes at most, and only on the votes of people in the group.
func TestBreakGlassIssuanceIsShortAndNeedsItsVotes(t *testing.T) {
	t.Parallel()
	start := moment()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	request := breakable(t, l)
	breaks(t, l, request, broker.StatusApproved, daveVotes, erinVotes)
	for name, change := range map[string]func(*broker.Record){
		"a TTL above 30 minutes": func(rec *broker.Record) { rec.Decision.TTL += time.Second },
		"a later end":            func(rec *broker.Record) { rec.Expires = rec.Expires.Add(2 * time.Second) },
	} {
		if _, err := l.Begin(t.Context(), redeemsBroken(request, change)); !errors.Is(err, record.ErrUnrecordable) {
			t.Errorf("%s: got %v, want ErrUnrecordable", name, err)
		}
	}
	if _, err := l.Begin(t.Context(), redeems(request)); !errors.Is(err, broker.ErrNotApproved) {
		t.Errorf("as if the group had approved it: got %v, want ErrNotApproved", err)
	}
	ordinary := approved(t, l)
	if _, err := l.Begin(t.Context(), redeemsBroken(ordinary, nil)); !errors.Is(err, broker.ErrNotApproved) {
		t.Errorf("as if the glass had been broken: got %v, want ErrNotApproved", err)
	}
	left := erinVotes
	left.Groups, left.SaidAt = []string{"oncall"}, start.Add(time.Minute)
	if _, err := l.UpsertPerson(t.Context(), left, start); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Begin(t.Context(), redeemsBroken(request, nil)); !errors.Is(err, broker.ErrNotApproved) {
		t.Errorf("somebody has left the group: got %v, want ErrNotApproved", err)
	}
	left.Groups, left.SaidAt = []string{"leads"}, start.Add(2*time.Minute)
	if _, err := l.UpsertPerson(t.Context(), left, start); err != nil {
		t.Fatal(err)
	}
	begin(t, l, redeemsBroken(request, nil))
	db.Check(t)
}

func TestBreakGlassGroupSeesPendingRequests(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	request := breakable(t, l)
	breaks(t, l, request, broker.StatusPending, daveVotes)
	for _, groups := range [][]string{{"oncall"}, {"leads"}, {"leads", "oncall"}} {
		name := strings.Join(groups, " and ")
		q := broker.WaitingQuery{Groups: groups, Within: []string{people.Everywhere}, Limit: 10}
		views, more, err := l.Waiting(t.Context(), q)
		if err != nil || more || len(views) != 1 || views[0].ID != request.ID {
			t.Errorf("%s: got %+v, %v, want the request once", name, views, err)
		}
		want := broker.PendingRequest{ID: request.ID, SPIFFEID: sandbox, Group: "oncall", BreakGlass: "leads", Broken: true}
		if pending, err := l.PendingRequests(t.Context(), []broker.WaitingQuery{q, q}); err != nil || len(pending) != 1 || pending[0] != want {
			t.Errorf("%s: got %+v, %v, want %+v", name, pending, err, want)
		}
	}
}

func TestBreakGlassSendsNotices(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	alarmed := standings
	alarmed.Kinds = []broker.NoticeKind{broker.NoticeBroken}
	box := openOutbox(t, db, alarmed)
	approved(t, l)
	request := breakable(t, l)
	tellsNothing(t, box, alarmed)
	breaks(t, l, request, broker.StatusApproved, daveVotes, erinVotes)
	for _, status := range []broker.Status{broker.StatusPending, broker.StatusApproved} {
		n, err := box.Next(t.Context(), alarmed)
		if err != nil || n == nil || n.Status != status || n.Request != request.ID || n.Group != "leads" || n.Quorum != 2 {
			t.Fatalf("got %+v, %v, want that the glass is broken and it is %s", n, err, status)
		}
		if err := box.MarkDelivered(t.Context(), alarmed.Name, *n); err != nil {
			t.Fatal(err)
		}
	}
	tellsNothing(t, box, alarmed)
}

// T3: no writer can record a break-glass approval as an approval by the group.
func TestBreakGlassIsNotRecordedAsGroupApproval(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	redeemed, request := breakable(t, l), breakable(t, l)
	for _, rec := range []broker.Record{redeemed, request} {
		breaks(t, l, rec, broker.StatusApproved, daveVotes, erinVotes)
	}
	issued := redeemsBroken(redeemed, nil)
	begin(t, l, issued)
	conn := testkit.Connect(t, db.AdminURL) // the broker cannot insert an issuance at all
	for change, want := range map[string]string{
		`{}`:                                     "",
		`{"decision_code": "approved"}`:          violation,
		`{"decision_code": "permitted"}`:         violation,
		`{"ttl": 1801}`:                          violation,
		`{"expires_at": "2099-01-01T00:00:00Z"}`: violation,
	} {
		got := refusedBy(t, conn, `
			WITH forged AS (SELECT gen_random_uuid() AS id), redeemed AS (
				UPDATE issuances AS i SET status = 'redeemed', status_time = now(), redemptions = 1, redeemed_by = forged.id
				FROM forged WHERE i.id = $2
			)
			INSERT INTO issuances SELECT (jsonb_populate_record(i, jsonb_build_object(
				'id', forged.id, 'approves', $2::uuid, 'entry_index', 1000) || $3::jsonb)).*
			FROM issuances AS i, forged WHERE i.id = $1`, issued.ID, request.ID, change)
		if got != want {
			t.Errorf("%s: got %q, want %q", change, got, want)
		}
	}
}
