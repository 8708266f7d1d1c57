package ledger_test

import (
	"errors"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

var sameView = cmp.Options{
	cmp.Comparer(func(a, b spiffeid.ID) bool { return a == b }), cmpopts.EquateEmpty(),
}

func TestRecordsRoundTrip(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	for index, rec := range []broker.Record{
		allowed(nil),
		denied(nil),
		pending(nil),
		// An unknown scope has no parameter types, so the parameters of the request are kept unchanged.
		denied(func(rec *broker.Record) {
			rec.Decision.Scope, rec.Decision.Resource, rec.Decision.Params = nil, "", nil
			rec.Request.Scope = "no.such"
			rec.Request.Params = map[string]any{"n": int64(1 << 60), "f": 1.5, "deep": map[string]any{"a": []any{true, nil, "x"}}}
		}),
		allowed(func(rec *broker.Record) {
			rec.Subject.Kind, rec.Subject.Thumbprint = attest.KindJWT, ""
			rec.Request.Reason = "\x1b[31m ünïcödé \u202e \\u0000 \\"
			rec.Request.TTL = 0
		}),
	} {
		begin(t, l, rec)
		got, err := l.Get(t.Context(), rec.ID, everything)
		if err != nil {
			t.Fatalf("Get: %v", err)
		}
		want := viewOf(rec, int64(index))
		if rec.Decision.Params == nil {
			want.Params = rec.Request.Params
		}
		if diff := cmp.Diff(want, *got, sameView); diff != "" {
			t.Errorf("record %d (-want +got):\n%s", index, diff)
		}
	}
	db.Check(t)
}

func TestRecordOutcomeMovesForwardOnly(t *testing.T) {
	t.Parallel()
	start := moment()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	issued, refused, waiting := allowed(nil), denied(nil), pending(nil)
	begin(t, l, issued, refused, waiting)
	later := start.Add(time.Second)
	for _, tc := range []struct {
		name string
		out  broker.Outcome
		want error
	}{
		{"issued to failed", broker.Outcome{ID: issued.ID, Time: later, Status: broker.StatusFailed, Detail: "vault_unavailable"}, nil},
		{"failed again", broker.Outcome{ID: issued.ID, Time: later, Status: broker.StatusFailed, Detail: "mint_mismatch"}, broker.ErrInvalidTransition},
		{"back to issued", broker.Outcome{ID: issued.ID, Time: later, Status: broker.StatusIssued}, broker.ErrInvalidTransition},
		{"denied to failed", broker.Outcome{ID: refused.ID, Time: later, Status: broker.StatusFailed, Detail: "x"}, broker.ErrInvalidTransition},
		{"pending to failed", broker.Outcome{ID: waiting.ID, Time: later, Status: broker.StatusFailed, Detail: "x"}, broker.ErrInvalidTransition},
		{"never begun", broker.Outcome{ID: uuid.Must(uuid.NewV7()).String(), Time: later, Status: broker.StatusFailed, Detail: "x"}, broker.ErrNotFound},
		{"no code", broker.Outcome{ID: waiting.ID, Time: later, Status: broker.StatusFailed}, record.ErrUnrecordable},
		{"no id", broker.Outcome{ID: "x", Time: later, Status: broker.StatusFailed, Detail: "x"}, record.ErrUnrecordable},
	} {
		if err := l.RecordOutcome(t.Context(), tc.out); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", tc.name, err, tc.want)
		}
	}
	got, err := l.Get(t.Context(), issued.ID, everything)
	if err != nil {
		t.Fatal(err)
	}
	want := viewOf(issued, 0)
	want.Status, want.StatusDetail, want.StatusTime = broker.StatusFailed, "vault_unavailable", later.Truncate(time.Microsecond)
	if diff := cmp.Diff(want, *got, sameView); diff != "" {
		t.Errorf("after the failure (-want +got):\n%s", diff)
	}
	if entries := db.Entries(t); len(entries) != 4 || entries[3].Kind != "issuance.failed" {
		t.Errorf("got entries %v, want three begun and one failed", entries)
	}
	db.Check(t)
}

func TestRefusalsAreEntries(t *testing.T) {
	t.Parallel()
	start := moment()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	subject := broker.Subject{ID: spiffeid.RequireFromString(sandbox), Kind: attest.KindX509, Thumbprint: "dGh1bWI"}
	for _, ref := range []broker.Refusal{
		{Time: start, Code: "unauthenticated", Detail: "expired", Remote: "127.0.0.1:9", Operation: "issue"},
		{Time: start, Code: "invalid", Subject: &subject, Suppressed: 7},
	} {
		if err := l.Refuse(t.Context(), ref); err != nil {
			t.Fatalf("Refuse: %v", err)
		}
	}
	entries := db.Entries(t)
	if len(entries) != 2 {
		t.Fatalf("got %d entries, want 2", len(entries))
	}
	want := map[string]any{
		"version": 1.0, "kind": "call.refused", "id": entries[0].ID, "time": start.Truncate(time.Microsecond).Format(time.RFC3339Nano),
		"code": "unauthenticated", "detail": "expired", "remote": "127.0.0.1:9", "operation": "issue", "suppressed": 0.0,
	}
	if diff := cmp.Diff(want, entries[0].Body); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	who, _ := entries[1].Body["subject"].(map[string]any)
	if who["spiffe_id"] != sandbox || entries[1].Body["suppressed"] != 7.0 {
		t.Errorf("got %v, want the subject and 7 suppressed", entries[1].Body)
	}
	db.Check(t)
}

func TestReachLimitsGet(t *testing.T) {
	t.Parallel()
	l := testkit.NewDB(t).Ledger(t)
	rec := allowed(nil)
	begin(t, l, rec)
	for _, tc := range []struct {
		name  string
		id    string
		reach broker.Reach
		want  error
	}{
		{"own", rec.ID, broker.Reach{Subject: sandbox}, nil},
		{"own trust domain", rec.ID, broker.Reach{TrustDomains: []string{"other.test", "acme.test"}}, nil},
		{"nobody", rec.ID, broker.Reach{}, broker.ErrNotFound},
		{"an empty list", rec.ID, broker.Reach{TrustDomains: []string{}}, broker.ErrNotFound},
		{"an empty name", rec.ID, broker.Reach{TrustDomains: []string{""}}, broker.ErrNotFound},
		{"another sandbox", rec.ID, broker.Reach{Subject: sandbox + "b"}, broker.ErrNotFound},
		{"another trust domain", rec.ID, broker.Reach{TrustDomains: []string{"other.test"}}, broker.ErrNotFound},
		{"a subject is not widened by a domain", rec.ID, broker.Reach{Subject: sandbox + "b", TrustDomains: []string{"acme.test"}}, broker.ErrNotFound},
		{"unknown", uuid.Must(uuid.NewV7()).String(), broker.Reach{Subject: sandbox}, broker.ErrNotFound},
		{"not an id", "' OR 1=1 --", broker.Reach{Subject: sandbox}, broker.ErrNotFound},
		{"another form of the id", "urn:uuid:" + rec.ID, broker.Reach{Subject: sandbox}, broker.ErrNotFound},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := l.Get(t.Context(), tc.id, tc.reach)
			if !errors.Is(err, tc.want) || (err == nil) != (got != nil) {
				t.Errorf("got %v, %v, want %v", got, err, tc.want)
			}
		})
	}
}
