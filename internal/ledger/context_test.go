package ledger_test

import (
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/google/go-cmp/cmp"
)

// TestRecordKeepsTheRequestContext checks that every field of the request context is read back, and that no row differs from its
// entry: the verifier finds a changed field, and the schema refuses a task that the context does not have.
func TestRecordKeepsTheRequestContext(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	rec := allowed(func(rec *broker.Record) {
		for _, field := range rec.Request.Fields() {
			rec.Request.Set(field.Name, "a-"+field.Name)
		}
	})
	begin(t, l, rec)
	got, err := l.Get(t.Context(), rec.ID, everything)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(rec.Request.RequestContext, got.RequestContext); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	db.Check(t)
	owner := testkit.Connect(t, db.AdminURL)
	exec(t, owner, `ALTER TABLE issuances DISABLE TRIGGER issuances_only_forward`)
	for name, context := range map[string]string{
		"another task": `{"task":"another"}`, "a member that is no text": `{"task":"a-task","x":5}`, "a list": `["task"]`,
		"too large": `{"task":"a-task","x":"` + strings.Repeat("y", 4096) + `"}`,
	} {
		if got := refusedBy(t, owner, `UPDATE issuances SET context = $1::jsonb`, context); got != violation {
			t.Errorf("%s: got %q, want %q", name, got, violation)
		}
	}
	exec(t, owner, `UPDATE issuances SET context = context || '{"TASK":"another","ta\u017fk":"another"}'`)
	if got, err := l.Get(t.Context(), rec.ID, everything); err != nil || got.Task != rec.Request.Task {
		t.Errorf("got %+v, %v, want the task %q", got, err, rec.Request.Task)
	}
	exec(t, owner, `UPDATE issuances SET context = context || '{"added":"later"}'`)
	if found := testkit.Findings(t, db.AdminURL); len(found) != 1 || found[0].Where != "issuances.context" {
		t.Errorf("got the findings %v, want one about the context", found)
	}
}

// TestApprovalIsForOneRequestContext checks that the schema lets nobody redeem or reuse an approval for a request with another
// context, in any member.
func TestApprovalIsForOneRequestContext(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	owner := testkit.Connect(t, db.AdminURL)
	exec(t, owner, `ALTER TABLE issuances DISABLE TRIGGER issuances_only_forward`)
	changed := func(id string) {
		exec(t, owner, `UPDATE issuances SET context = context || '{"added":"later"}' WHERE id = $1::uuid`, id)
	}
	first := approved(t, l)
	changed(first.ID)
	if _, err := l.Begin(t.Context(), redeems(first)); err == nil || !strings.Contains(err.Error(), violation) {
		t.Errorf("redeeming with another context: got %v, want %s", err, violation)
	}
	var asks []broker.Record
	for range 2 {
		rec := pending(func(rec *broker.Record) {
			rec.Canonical = `{"what":"people see","remember":"task"}`
			rec.Expires = time.Now().Add(time.Hour).Truncate(time.Second)
		})
		begin(t, l, rec)
		asks = append(asks, rec)
	}
	for i, who := range []approval.Voter{bobVotes, carolVotes} {
		if _, err := l.UpsertPerson(t.Context(), who, moment()); err != nil {
			t.Fatal(err)
		}
		step := broker.Transition{
			Request: asks[0].ID, Actor: who.ID, Time: time.Now(), Was: broker.StatusPending, Votes: i,
			Becomes: []broker.Status{broker.StatusPending, broker.StatusApproved}[i],
			Vote:    &approval.Vote{Voter: who, Verdict: approval.Approve, Covers: approval.CoverTask, Time: time.Now()},
			Hash:    approval.Canonical(asks[0].Canonical).Hash(),
		}
		if err := l.Apply(t.Context(), step); err != nil {
			t.Fatal(err)
		}
	}
	reuse := broker.Transition{
		Request: asks[1].ID, Was: broker.StatusPending, Becomes: broker.StatusApproved, Time: time.Now(),
		Actor: asks[1].Subject.ID.String(), Remembered: asks[0].ID,
	}
	changed(asks[1].ID)
	if err := l.Apply(t.Context(), reuse); err == nil || !strings.Contains(err.Error(), violation) {
		t.Errorf("reusing an approval with another context: got %v, want %s", err, violation)
	}
	exec(t, owner, `UPDATE issuances SET context = context - 'added'`)
	if err := l.Apply(t.Context(), reuse); err != nil {
		t.Errorf("reusing an approval with the same context: got %v", err)
	}
}
