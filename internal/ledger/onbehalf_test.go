package ledger_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/go-cmp/cmp"
)

func bobsUser() *scopes.User {
	return &scopes.User{ID: bobVotes.ID, Groups: []string{"dev", `o"ddλ`}}
}

// onBobsBehalf makes a request on behalf of Bob wait for two people, who are shown that.
func onBobsBehalf(rec *broker.Record) {
	rec.Request.User, rec.Canonical = bobsUser(), `{"on_behalf_of":"`+bobVotes.ID+`"}`
	rec.Expires = time.Now().Add(time.Hour).Truncate(time.Second)
}

// What a record says of a person is read back, in every kind of record.
func TestRecordKeepsThePerson(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	ofBob := func(rec *broker.Record) { rec.Request.User = bobsUser() }
	loner := &scopes.User{ID: "https://idp.test#loner", Groups: []string{}}
	for _, rec := range []broker.Record{
		allowed(ofBob), denied(ofBob), pending(onBobsBehalf), dynamic(scopes.KindDatabase, ofBob),
		allowed(func(rec *broker.Record) { rec.Request.User = loner }), allowed(nil),
	} {
		begin(t, l, rec)
		got, err := l.Get(t.Context(), rec.ID, everything)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(rec.Request.User, got.User); diff != "" {
			t.Errorf("%s (-want +got):\n%s", rec.Decision.Outcome, diff)
		}
	}
	db.Check(t)
}

// I5 and T3: Bob cannot approve a request on his own behalf, and it is not issued on behalf of anyone else, whoever writes
// the rows.
func TestPersonCannotApproveOnTheirOwnBehalf(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	rec := pending(onBobsBehalf)
	begin(t, l, rec)
	for _, step := range []broker.Transition{
		{Was: broker.StatusPending, Becomes: broker.StatusPending}, {Was: broker.StatusPending, Becomes: broker.StatusRejected},
	} {
		if err := cast(t, l, rec, bobVotes, step); err == nil {
			t.Errorf("Bob has made it %s", step.Becomes)
		}
	}
	dave := approval.Voter{ID: "https://idp.test#dave", Name: "Dave", Groups: []string{"oncall"}, SaidAt: saidEarlier}
	for i, who := range []approval.Voter{carolVotes, dave} {
		becomes := []broker.Status{broker.StatusPending, broker.StatusApproved}[i]
		if err := cast(t, l, rec, who, broker.Transition{Was: broker.StatusPending, Votes: i, Becomes: becomes}); err != nil {
			t.Fatal(err)
		}
	}
	for name, user := range map[string]*scopes.User{
		"nobody": nil, "Carol": {ID: carolVotes.ID, Groups: []string{}}, "Bob in other groups": {ID: bobVotes.ID, Groups: []string{"admins"}},
	} {
		other := redeems(rec)
		other.Request.User = user
		if _, err := l.Begin(t.Context(), other); !errors.Is(err, record.ErrUnrecordable) {
			t.Errorf("on behalf of %s: got %v, want ErrUnrecordable", name, err)
		}
	}
	begin(t, l, redeems(rec))
	db.Check(t)
}

// An approval for the task covers requests on behalf of the same person, or on nobody's behalf if it was given for such a
// request.
func TestReusedApprovalCoversOnePerson(t *testing.T) {
	t.Parallel()
	start := moment()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	carols := func(rec *broker.Record) {
		onBobsBehalf(rec)
		rec.Request.User.ID = carolVotes.ID
		rec.Canonical = strings.ReplaceAll(rec.Canonical, bobVotes.ID, carolVotes.ID)
	}
	nobodys := func(rec *broker.Record) { onBobsBehalf(rec); rec.Request.User, rec.Canonical = nil, `{}` }
	quick := func(change func(*broker.Record)) broker.Record {
		return pending(func(rec *broker.Record) { rec.Decision.Approval.Quorum = 1; change(rec) })
	}
	for name, first := range map[string]func(*broker.Record){"Bob": onBobsBehalf, "nobody": nobodys} {
		asked := quick(first)
		begin(t, l, asked)
		dave := approval.Voter{ID: "https://idp.test#dave", Name: "Dave", Groups: []string{"oncall"}, SaidAt: saidEarlier}
		if _, err := l.UpsertPerson(t.Context(), dave, start); err != nil {
			t.Fatal(err)
		}
		err := l.Apply(t.Context(), broker.Transition{
			Request: asked.ID, Was: broker.StatusPending, Becomes: broker.StatusApproved, Actor: dave.ID, Time: time.Now(),
			Vote: &approval.Vote{Voter: dave, Verdict: approval.Approve, Covers: approval.CoverTask, Time: time.Now()},
			Hash: (&broker.ApprovalRequest{View: broker.View{Canonical: asked.Canonical}}).Hash(),
		})
		if err != nil {
			t.Fatal(err)
		}
		for whose, then := range map[string]func(*broker.Record){"Bob": onBobsBehalf, "Carol": carols, "nobody": nobodys} {
			next := quick(then)
			begin(t, l, next)
			err := l.Apply(t.Context(), broker.Transition{
				Request: next.ID, Was: broker.StatusPending, Becomes: broker.StatusApproved, Time: time.Now(), Actor: sandbox, Remembered: asked.ID,
			})
			if (err == nil) != (name == whose) {
				t.Errorf("said for %s, recalled for %s: got %v", name, whose, err)
			}
		}
	}
	db.Check(t)
}

func TestExchangedTokenIsForTheSamePerson(t *testing.T) {
	t.Parallel()
	l := testkit.NewDB(t).Ledger(t)
	parent := allowed(func(rec *broker.Record) { rec.Request.User = bobsUser() })
	begin(t, l, parent)
	for name, tc := range map[string]struct {
		user *scopes.User
		want error
	}{
		"Bob": {bobsUser(), nil}, "nobody": {nil, record.ErrUnrecordable},
		"Carol":               {&scopes.User{ID: carolVotes.ID}, record.ErrUnrecordable},
		"Bob in other groups": {&scopes.User{ID: bobVotes.ID, Groups: []string{"admins"}}, record.ErrUnrecordable},
	} {
		_, err := l.Begin(t.Context(), handedDown(parent, func(rec *broker.Record) { rec.Request.User = tc.user }))
		if !errors.Is(err, tc.want) {
			t.Errorf("on behalf of %s: got %v, want %v", name, err, tc.want)
		}
	}
}
