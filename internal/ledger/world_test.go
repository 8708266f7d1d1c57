package ledger_test

import (
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

const sandbox = "spiffe://acme.test/agents/a"

// moment returns the time of a record that a test makes now. It is finer than Postgres keeps, on purpose. It is recent,
// because the database decides what has expired.
func moment() time.Time { return time.Now().UTC().Truncate(time.Second).Add(-time.Second + 123456789) }

// everything is a reach that holds all records of these tests.
var everything = broker.Reach{TrustDomains: []string{"acme.test", "other.test"}}

// allowed returns a record with an intent; change adapts it before the digests are made.
func allowed(change func(*broker.Record)) broker.Record {
	start := moment()
	rec := broker.Record{
		ID:      uuid.Must(uuid.NewV7()).String(),
		Time:    start,
		Subject: broker.Subject{ID: spiffeid.RequireFromString(sandbox), Kind: attest.KindX509, Thumbprint: "dGh1bWI"},
		Request: broker.Request{
			Scope: "git.read", Params: map[string]any{"repo": "acme/api", "depth": int64(3)}, TTL: time.Hour, Task: "task-1",
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
	if rec.Intent != nil && rec.Intent.Grant == nil {
		rec.Intent.ClaimsDigest = sha256.Sum256(rec.Intent.Claims)
	}
	rec.Digest = sha256.Sum256(fmt.Append(nil, rec.Request))
	return rec
}

// dynamic returns a record with the intent of a credential that Vault makes.
func dynamic(kind string, change func(*broker.Record)) broker.Record {
	return allowed(func(rec *broker.Record) {
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

// minted returns what Vault made for a dynamic record.
func minted(rec broker.Record) *broker.Minted {
	m := &broker.Minted{Name: "v-" + rec.ID}
	if rec.Intent.Grant.Leased {
		m.VaultLease = broker.VaultLease{Accessor: "accessor-" + rec.ID, Lease: "database/creds/x/" + rec.ID}
	}
	if !rec.Intent.Grant.Static {
		m.Digest = sha256.Sum256([]byte(rec.ID))
	}
	return m
}

// to returns the outcome that moves a record to a state.
func to(rec broker.Record, status broker.Status) broker.Outcome {
	out := broker.Outcome{ID: rec.ID, Time: rec.Time.Add(time.Second), Status: status, Detail: "because"}
	if slices.Contains([]broker.Status{broker.StatusIssued, broker.StatusExpired, broker.StatusUsed}, status) {
		out.Detail = ""
	}
	if status == broker.StatusIssued && rec.Intent != nil && rec.Intent.Grant != nil {
		out.Minted = minted(rec)
	}
	return out
}

func settle(t *testing.T, l *ledger.Ledger, outs ...broker.Outcome) {
	t.Helper()
	for _, out := range outs {
		if err := l.RecordOutcome(t.Context(), out); err != nil {
			t.Fatalf("Settle to %s: %v", out.Status, err)
		}
	}
}

// announced returns a command by an admin.
func announced(kind string, target broker.Selector) broker.Command {
	return broker.Command{
		ID: uuid.Must(uuid.NewV7()).String(), Time: moment(), Kind: kind, Target: target, Reason: "because",
		Actor: &broker.Actor{Workload: broker.Subject{
			ID: spiffeid.RequireFromString("spiffe://acme.test/admin"), Kind: attest.KindX509, Thumbprint: "dGh1bWI",
		}},
	}
}

func announce(t *testing.T, l *ledger.Ledger, cmds ...broker.Command) {
	t.Helper()
	for _, cmd := range cmds {
		if err := l.Announce(t.Context(), cmd); err != nil {
			t.Fatalf("Announce of %s: %v", cmd.Kind, err)
		}
	}
}

// ofSandbox assigns a record to a separate sandbox, so that no sandbox has too many pending requests.
func ofSandbox(n int, change func(*broker.Record)) func(*broker.Record) {
	return func(rec *broker.Record) {
		rec.Subject.ID = spiffeid.RequireFromString(fmt.Sprintf("%s/%d", sandbox, n))
		if change != nil {
			change(rec)
		}
	}
}

func denied(change func(*broker.Record)) broker.Record {
	return allowed(func(rec *broker.Record) {
		rec.Decision.Outcome, rec.Decision.Reason, rec.Decision.TTL = scopes.Deny, scopes.ReasonNoPermit, 0
		rec.Decision.Policies, rec.Decision.Clamps = nil, nil
		rec.Status, rec.Intent, rec.Expires = broker.StatusDenied, nil, time.Time{}
		if change != nil {
			change(rec)
		}
	})
}

func pending(change func(*broker.Record)) broker.Record {
	return allowed(func(rec *broker.Record) {
		rec.Decision.Outcome, rec.Decision.Reason = scopes.Pending, scopes.ReasonApprovalRequired
		rec.Decision.Approval = &scopes.Approval{Group: "oncall", Quorum: 2, Expires: 40 * time.Minute}
		rec.Status, rec.Intent, rec.Expires = broker.StatusPending, nil, rec.Time.Add(40*time.Minute).Truncate(time.Second)
		if change != nil {
			change(rec)
		}
	})
}

// viewOf returns the view that a record must have when it is read.
func viewOf(rec broker.Record, index int64) broker.View {
	d := rec.Decision
	v := broker.View{
		ID: rec.ID, Index: index, Time: rec.Time.Truncate(time.Microsecond), Subject: rec.Subject, Task: rec.Request.Task,
		Scope: rec.Request.Scope, Resource: d.Resource, Params: d.Params, Reason: rec.Request.Reason,
		TTLAsked: rec.Request.TTL, TTL: d.TTL, Decision: string(d.Outcome), DecisionCode: d.Reason,
		Explanation: d.Explanation, Policies: d.Policies, Catalogue: d.Catalogue,
		Status: rec.Status, StatusTime: rec.Time.Truncate(time.Microsecond), Expires: rec.Expires, RequestDigest: rec.Digest,
	}
	if d.Scope != nil {
		v.Authority = string(d.Scope.Authority)
	}
	for _, c := range d.Clamps {
		v.Clamps = append(v.Clamps, c.Bound)
	}
	if d.Approval != nil {
		v.ApprovalGroup, v.ApprovalQuorum = d.Approval.Group, d.Approval.Quorum
	}
	if i := rec.Intent; i != nil {
		v.CredentialKind, v.Audience, v.KeyID = i.Kind, i.Audience, i.KeyID
		if i.Grant == nil {
			v.ClaimsDigest = fmt.Sprintf("%x", i.ClaimsDigest)
		} else {
			v.VaultPath = i.Grant.Path
		}
	}
	return v
}

func begin(t *testing.T, l *ledger.Ledger, recs ...broker.Record) {
	t.Helper()
	for _, rec := range recs {
		earlier, err := l.Begin(t.Context(), rec)
		if err != nil || earlier != nil {
			t.Fatalf("Begin: got %v, %v", earlier, err)
		}
	}
}

// open opens a ledger on databaseURL with a short deadline.
func open(t *testing.T, databaseURL string) *ledger.Ledger {
	t.Helper()
	l, err := ledger.Open(t.Context(), ledger.Config{
		URL: databaseURL, Log: slog.New(slog.DiscardHandler), FlushTimeout: 2 * time.Second, Now: time.Now,
	})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(l.Close)
	return l
}

// exec runs a statement as the owner of the schema.
func exec(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
