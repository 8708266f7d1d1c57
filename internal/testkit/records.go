package testkit

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/uuid"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Sandbox is the sandbox of a record, unless a test changes it.
const Sandbox = "spiffe://acme.test/agents/a"

// RecordTime returns the time of a record that a test makes now. It is finer than Postgres keeps, on purpose. It is recent,
// because the database decides what has expired.
func RecordTime() time.Time {
	return time.Now().UTC().Truncate(time.Second).Add(-time.Second + 123456789)
}

// Allowed returns a record with an intent; change adapts it before the digests are made.
func Allowed(change func(*broker.Record)) broker.Record {
	start := RecordTime()
	rec := broker.Record{
		ID:      uuid.Must(uuid.NewV7()).String(),
		Time:    start,
		Subject: broker.Subject{ID: spiffeid.RequireFromString(Sandbox), Kind: attest.KindX509, Thumbprint: "dGh1bWI"},
		Request: broker.Request{
			Scope: "git.read", Params: map[string]any{"repo": "acme/api", "depth": int64(3)}, TTL: time.Hour, RequestContext: scopes.RequestContext{Task: "task-1"},
			Reason: `look at <b>"it"</b> \u0000 = not a NUL`,
		},
		Decision: scopes.Decision{
			Outcome: scopes.Allow, Scope: &scopes.Scope{Name: "git.read", Authority: scopes.Read},
			Resource: "git:repo/acme/api", Params: map[string]any{"repo": "acme/api", "depth": int64(3)},
			TTL: 15 * time.Minute, Clamps: []scopes.Clamp{{Bound: scopes.BoundScopeMax, From: time.Hour, To: 15 * time.Minute}},
			Policies: []string{"may-read"}, Reason: scopes.ReasonPermitted, Explanation: "Policy may-read permits it.",
			Catalogue: "sha256:c0ffee",
		},
		Status:  broker.StatusIssued,
		Expires: start.Add(15 * time.Minute).Truncate(time.Second),
		Intent: &broker.Intent{
			Kind: "jwt", Audience: "https://git.test", KeyID: "key-1", Algorithm: "ES256", Claims: []byte(`{"jti":"x"}`),
		},
	}
	if change != nil {
		change(&rec)
	}
	if rec.Intent != nil && rec.Intent.Kind == scopes.KindJWT {
		rec.Intent.ClaimsDigest = sha256.Sum256(rec.Intent.Claims)
	}
	rec.Digest = sha256.Sum256(fmt.Append(nil, rec.Request))
	return rec
}

// Dynamic returns a record with the intent of a credential that Vault makes.
func Dynamic(kind string, change func(*broker.Record)) broker.Record {
	return Allowed(func(rec *broker.Record) {
		grant := &scopes.Grant{
			Policy: "brevet-scope.x.00000000", Method: scopes.MethodRead, Path: kind + "/creds/x",
			Leased: kind == scopes.KindDatabase || kind == scopes.KindVaultToken, Static: kind == scopes.KindKV,
		}
		if kind == scopes.KindVaultToken {
			grant.Method, grant.Path = "", ""
		}
		rec.Status, rec.Intent = broker.StatusIntent, &broker.Intent{ID: rec.ID, Kind: kind, Grant: grant}
		if change != nil {
			change(rec)
		}
	})
}

// Permit returns a record of a permit, which is for no credential.
func Permit(change func(*broker.Record)) broker.Record {
	return Allowed(func(rec *broker.Record) {
		rec.Intent = &broker.Intent{ID: rec.ID, Kind: scopes.KindNone}
		if change != nil {
			change(rec)
		}
	})
}

// MintedFor returns what Vault made for a dynamic record.
func MintedFor(rec broker.Record) *broker.Minted {
	m := &broker.Minted{Name: "v-" + rec.ID}
	if rec.Intent.Grant.Leased {
		m.VaultLease = broker.VaultLease{Accessor: "accessor-" + rec.ID, Lease: "database/creds/x/" + rec.ID}
	}
	if !rec.Intent.Grant.Static {
		m.Digest = sha256.Sum256([]byte(rec.ID))
	}
	return m
}

// OutcomeOf returns the outcome that moves a record to a state.
func OutcomeOf(rec broker.Record, status broker.Status) broker.Outcome {
	out := broker.Outcome{ID: rec.ID, Time: rec.Time.Add(time.Second), Status: status, Detail: "because"}
	if slices.Contains([]broker.Status{broker.StatusIssued, broker.StatusExpired, broker.StatusUsed}, status) {
		out.Detail = ""
	}
	if status == broker.StatusIssued && rec.Intent != nil && rec.Intent.Grant != nil {
		out.Minted = MintedFor(rec)
	}
	return out
}

// Denied returns a record of a denial.
func Denied(change func(*broker.Record)) broker.Record {
	return Allowed(func(rec *broker.Record) {
		rec.Decision.Outcome, rec.Decision.Reason, rec.Decision.TTL = scopes.Deny, scopes.ReasonNoPermit, 0
		rec.Decision.Policies, rec.Decision.Clamps = nil, nil
		rec.Status, rec.Intent, rec.Expires = broker.StatusDenied, nil, time.Time{}
		if change != nil {
			change(rec)
		}
	})
}

// Pending returns a record of a request that two people have to approve.
func Pending(change func(*broker.Record)) broker.Record {
	return Allowed(func(rec *broker.Record) {
		rec.Decision.Outcome, rec.Decision.Reason = scopes.Pending, scopes.ReasonApprovalRequired
		rec.Decision.Approval = &scopes.Approval{Group: "oncall", Quorum: 2, Expires: 40 * time.Minute}
		rec.Status, rec.Intent, rec.Expires = broker.StatusPending, nil, rec.Time.Add(40*time.Minute).Truncate(time.Second)
		if change != nil {
			change(rec)
		}
	})
}

// Begin commits records.
func Begin(t testing.TB, l *ledger.Ledger, recs ...broker.Record) {
	t.Helper()
	for _, rec := range recs {
		earlier, err := l.Begin(t.Context(), rec)
		if err != nil || earlier != nil {
			t.Fatalf("Begin: got %v, %v", earlier, err)
		}
	}
}

// Settle commits outcomes.
func Settle(t testing.TB, l *ledger.Ledger, outs ...broker.Outcome) {
	t.Helper()
	for _, out := range outs {
		if err := l.RecordOutcome(t.Context(), out); err != nil {
			t.Fatalf("RecordOutcome to %s: %v", out.Status, err)
		}
	}
}

// Bring begins a record and takes it to a state.
func Bring(t testing.TB, l *ledger.Ledger, kind string, way []broker.Status, change func(*broker.Record)) broker.Record {
	t.Helper()
	rec := Allowed(change)
	switch kind {
	case "jwt":
	case scopes.KindNone:
		rec = Permit(change)
	case "one-shot":
		rec = Allowed(func(rec *broker.Record) {
			rec.Intent.OneShot = true
			if change != nil {
				change(rec)
			}
		})
	default:
		rec = Dynamic(kind, change)
	}
	Begin(t, l, rec)
	for _, status := range way {
		Settle(t, l, OutcomeOf(rec, status))
	}
	return rec
}

// Announced returns a command by an admin.
func Announced(kind string, target broker.Selector) broker.Command {
	return broker.Command{
		ID: uuid.Must(uuid.NewV7()).String(), Time: RecordTime(), Kind: kind, Target: target, Reason: "because",
		Actor: &broker.Actor{Workload: broker.Subject{
			ID: spiffeid.RequireFromString("spiffe://acme.test/admin"), Kind: attest.KindX509, Thumbprint: "dGh1bWI",
		}},
	}
}

// Announce commits commands.
func Announce(t testing.TB, l *ledger.Ledger, cmds ...broker.Command) {
	t.Helper()
	for _, cmd := range cmds {
		if err := l.Announce(t.Context(), cmd); err != nil {
			t.Fatalf("Announce of %s: %v", cmd.Kind, err)
		}
	}
}

// OfSandbox assigns a record to a separate sandbox, so that no sandbox has too many pending requests.
func OfSandbox(n int, change func(*broker.Record)) func(*broker.Record) {
	return func(rec *broker.Record) {
		rec.Subject.ID = spiffeid.RequireFromString(fmt.Sprintf("%s/%d", Sandbox, n))
		if change != nil {
			change(rec)
		}
	}
}

// SaidEarlier is when the provider reported people's groups: before anything that happens in a test.
var SaidEarlier = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// Bob and Carol are in the group that the pending requests of these tests wait for.
var (
	Bob   = approval.Voter{ID: "https://idp.test#bob", Name: "Bob", Handle: "bob", Groups: []string{"oncall"}, SaidAt: SaidEarlier}
	Carol = approval.Voter{ID: "https://idp.test#carol", Name: "Carol", Handle: "carol", Groups: []string{"oncall"}, SaidAt: SaidEarlier}
)

// Waiting begins a request that two people have to approve.
func Waiting(t testing.TB, l *ledger.Ledger) broker.Record {
	t.Helper()
	rec := Pending(func(rec *broker.Record) {
		rec.Canonical = `{"what":"people see"}`
		rec.Expires = time.Now().Add(time.Hour).Truncate(time.Second)
	})
	Begin(t, l, rec)
	return rec
}

// Vote records a vote, and first the person who casts it.
func Vote(t testing.TB, l *ledger.Ledger, rec broker.Record, who approval.Voter, step broker.Transition) error {
	t.Helper()
	if _, err := l.UpsertPerson(t.Context(), who, RecordTime()); err != nil {
		t.Fatal(err)
	}
	step.Request, step.Actor, step.Time = rec.ID, who.ID, time.Now()
	step.Vote = &approval.Vote{Voter: who, Verdict: approval.Approve, Covers: approval.CoverRequest, Time: step.Time}
	if step.Becomes == broker.StatusRejected {
		step.Vote.Verdict = approval.Deny
	}
	step.Hash = (&broker.ApprovalRequest{View: broker.View{Canonical: rec.Canonical}}).Hash()
	return l.Apply(t.Context(), step)
}

// Approved begins a request that two people have approved.
func Approved(t testing.TB, l *ledger.Ledger) broker.Record {
	t.Helper()
	rec := Waiting(t, l)
	for i, who := range []approval.Voter{Bob, Carol} {
		becomes := []broker.Status{broker.StatusPending, broker.StatusApproved}[i]
		if err := Vote(t, l, rec, who, broker.Transition{Was: broker.StatusPending, Votes: i, Becomes: becomes}); err != nil {
			t.Fatal(err)
		}
	}
	return rec
}

// Redeeming returns the issuance that redeems a request.
func Redeeming(request broker.Record) broker.Record {
	return Allowed(func(rec *broker.Record) {
		rec.ID = uuid.Must(uuid.NewV7()).String()
		rec.Subject, rec.Request, rec.Digest = request.Subject, request.Request, request.Digest
		rec.Request.IdempotencyKey = ""
		rec.Decision.Scope, rec.Decision.Params, rec.Decision.Resource = request.Decision.Scope, request.Decision.Params, request.Decision.Resource
		rec.Decision.Catalogue, rec.Decision.TTL, rec.Decision.Reason = request.Decision.Catalogue, request.Decision.TTL, scopes.ReasonApproved
		rec.Approves, rec.Canonical = request.ID, request.Canonical
	})
}

// RecordAs returns a change of the sandbox, the scope and the task of a record, and of its time to that many minutes after start.
func RecordAs(start time.Time, id, scope, task string, minutes int) func(*broker.Record) {
	return func(rec *broker.Record) {
		rec.Subject.ID = spiffeid.RequireFromString(id)
		rec.Request.Scope, rec.Request.Task = scope, task
		rec.Time = start.Add(time.Duration(minutes) * time.Minute)
		if !rec.Expires.IsZero() {
			rec.Expires = rec.Time.Add(time.Hour)
		}
	}
}

// Records yields n records, each of another task.
func Records(n int) func(func(broker.Record) bool) {
	return func(yield func(broker.Record) bool) {
		for i := range n {
			if !yield(Allowed(func(rec *broker.Record) { rec.Request.Task = fmt.Sprintf("task-%d", i) })) {
				return
			}
		}
	}
}

// UseOf returns the report of a record's holder.
func UseOf(rec broker.Record, calls int64) broker.Use {
	use := broker.Use{Issuance: rec.ID, Holder: broker.Actor{Workload: rec.Subject}, Time: rec.Time.Add(time.Minute), Calls: calls}
	if calls > 0 {
		use.LastUsed = rec.Time.Add(30 * time.Second)
	}
	return use
}

// Ago gives a record the times of one that was issued and has ended this long ago.
func Ago(issued, ended time.Duration) func(*broker.Record) {
	return func(rec *broker.Record) {
		now := RecordTime()
		rec.Time, rec.Expires = now.Add(-issued), now.Add(-ended)
	}
}
