package broker_test

import (
	"errors"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/go-cmp/cmp"
)

func TestRecordsCountAgainstTheirLimits(t *testing.T) {
	f := newFixture(t)
	write, denied := read(), read()
	write.Scope, denied.Scope = "github.issues.write", "github.repo.delete"
	for _, req := range []broker.Request{read(), write, denied} {
		if _, err := f.Issue(t.Context(), f.who, req); err != nil {
			t.Fatal(err)
		}
	}
	type counted struct {
		Key      string
		Emission time.Duration
	}
	var got []counted
	for _, rec := range f.tape.records {
		for _, l := range rec.Limits {
			got = append(got, counted{l.Key, l.Emission()})
		}
	}
	// Each key names the trust domain (I14).
	const scope, agent = "github.issues.read|", "spiffe://acme.example/research/agent-7"
	want := []counted{
		{scope + "sandbox|" + agent, time.Minute},
		{scope + "task|" + agent + "|t-1", 142858 * time.Microsecond},
		{scope + "trust_domain|acme.example", time.Microsecond},
		{"|asking|" + agent, time.Minute},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
}

// If a limit is reached, the denial is recorded under its own ID and without the idempotency key, and Vault is not asked.
func TestRateLimitedRequestIsRecordedAsDenied(t *testing.T) {
	reached := &broker.Limited{
		Limit: scopes.Limit{Per: scopes.PerSandbox, Count: 60, Window: time.Hour}, RetryAfter: 1500 * time.Millisecond,
	}
	req := read()
	req.IdempotencyKey = "k"
	f := newFixture(t)
	f.tape.limited = reached
	result, err := f.Issue(t.Context(), f.who, req)
	var got *broker.Limited
	if !errors.As(err, &got) || !errors.Is(err, broker.ErrLimited) || result.Credential != nil {
		t.Fatalf("got %+v, %v, want ErrLimited", result, err)
	}
	if diff := cmp.Diff([]string{"begin issued", "begin denied"}, f.tape.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	first, denial := f.tape.records[0], f.tape.records[1]
	if denial.ID == first.ID || denial.ID != got.Record.ID || denial.Digest != first.Digest || denial.Intent != nil ||
		denial.Request.IdempotencyKey != "" || len(denial.Limits) != 0 || !denial.Expires.IsZero() {
		t.Errorf("got the denial %+v of %+v", denial, first)
	}
	const why = "github.issues.read is limited to 60 in 1h per sandbox. The next request is allowed in 2 s."
	if d := denial.Decision; d.Outcome != scopes.Deny || d.Reason != scopes.ReasonLimited || d.Explanation != why || d.TTL != 0 {
		t.Errorf("got the decision %+v", d)
	}

	// If the denial cannot be recorded, the caller does not get it either.
	f = newFixture(t)
	f.tape.limited, f.tape.beginErr = reached, broker.ErrLedgerUnavailable
	if _, err := f.Issue(t.Context(), f.who, req); !errors.Is(err, broker.ErrLedgerUnavailable) || errors.Is(err, broker.ErrLimited) {
		t.Errorf("got %v, want ErrLedgerUnavailable alone", err)
	}
}
