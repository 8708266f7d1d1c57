package tamper_test

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/ledger/snapshot"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

const (
	worldSize = 1000
	sealEvery = 40
	// keptSize is the size of the checkpoint that the auditor has kept. backupSize is the size of the ledger when its database
	// was copied.
	keptSize, backupSize = 880, 600
)

// world is a ledger with every kind of content, made by the real code, with the log's key and the auditor's checkpoint.
type world struct {
	t      testing.TB
	l      *ledger.Ledger
	url    string // as its owner
	conn   *pgx.Conn
	log    *log
	begun  time.Time
	digest string // of the deciding catalogue
	kept   audit.Checkpoint
	backup []audit.Item
	keys   map[string]*testkit.Authenticator // by person
}

// newWorld fills a schema, and removes the rules that would stop its owner from changing it.
func newWorld(t testing.TB) *world {
	t.Helper()
	w := grownWorld(t, testkit.NewDB(t))
	disarm(t, w.conn)
	return w
}

// grownWorld fills a schema.
func grownWorld(t testing.TB, db *testkit.DB) *world {
	t.Helper()
	w := &world{
		t: t, l: db.Ledger(t), url: db.AdminURL, conn: testkit.Connect(t, db.AdminURL), log: newLog(t, "log.test"),
		begun: time.Now().UTC().Truncate(time.Second).Add(-time.Minute), digest: "sha256:c0ffee", keys: map[string]*testkit.Authenticator{},
	}
	for n := 0; ; n += kinds {
		size := w.log.sealUpTo(t, w.conn, sealEvery)
		switch {
		case size >= backupSize && w.backup == nil:
			w.backup = w.items()
		case w.log.last.N >= keptSize && w.kept.N == 0:
			w.kept = w.log.last
		}
		if size > worldSize-50 {
			break
		}
		w.stories(n)
	}
	for w.log.size(t, w.conn) < worldSize {
		w.refuse()
	}
	w.log.sealUpTo(t, w.conn, 1)
	return w
}

// disarm drops every constraint of the schema, and moves all entries into one table, as a database owner can.
func disarm(t testing.TB, conn *pgx.Conn) {
	t.Helper()
	_, err := conn.Exec(t.Context(), `
		DO $$
		DECLARE
			it record;
		BEGIN
			FOR it IN SELECT conname, conrelid::regclass AS place FROM pg_constraint
				WHERE connamespace = current_schema()::regnamespace AND conrelid <> 0 AND coninhcount = 0
				ORDER BY contype = 'p', contype = 'u' LOOP
				EXECUTE format('ALTER TABLE %s DROP CONSTRAINT IF EXISTS %I CASCADE', it.place, it.conname);
			END LOOP;
			FOR it IN SELECT indexrelid::regclass AS place FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
				WHERE c.relnamespace = current_schema()::regnamespace AND i.indisunique LOOP
				EXECUTE format('DROP INDEX %s', it.place);
			END LOOP;
			DROP VIEW entry_partitions, audit_calls;
			CREATE TABLE every_entry AS TABLE entries;
			DROP TABLE entries;
			ALTER TABLE every_entry RENAME TO entries;
		END $$`)
	if err != nil {
		t.Fatal(err)
	}
}

// copied are the tables that auditors read.
var copied = append([]*audit.Table{{Name: "entries"}, {Name: "ledger_head"}, {Name: "tree_tiles"}, {Name: "checkpoints"}, audit.Issuances},
	audit.Tables...)

// copy returns the same world in another schema, so that attacks can run in parallel.
func (w *world) copy() *world {
	w.t.Helper()
	other, schema := *w, "copy_"+strings.ToLower(rand.Text())
	other.conn = testkit.Connect(w.t, w.url)
	_, err := other.conn.Exec(w.t.Context(), `CREATE SCHEMA `+schema)
	w.must(err)
	for _, table := range copied {
		_, err := other.conn.Exec(w.t.Context(), `CREATE TABLE `+schema+`.`+table.Name+` AS TABLE `+table.Name)
		w.must(err)
	}
	_, err = other.conn.Exec(w.t.Context(), `SET search_path = `+schema)
	w.must(err)
	return &other
}

func (w *world) items() (all []audit.Item) {
	w.t.Helper()
	tx, err := w.conn.Begin(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(w.t.Context()) }()
	for item, err := range snapshot.Of(tx).Items(w.t.Context()) {
		if err != nil {
			w.t.Fatal(err)
		}
		all = append(all, item)
	}
	return all
}

// must fails the test if the ledger returns an error.
func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// kinds is the number of kinds of stories.
const kinds = 13

// stories runs one story of each kind: first the one about the catalogue, then the others in parallel.
func (w *world) stories(n int) {
	w.t.Helper()
	w.story(n)
	var group sync.WaitGroup
	for of := 1; of < kinds; of++ {
		group.Go(func() { w.story(n + of) })
	}
	group.Wait()
	if w.t.Failed() {
		w.t.FailNow()
	}
}

// story is the history of one sandbox.
func (w *world) story(n int) {
	w.t.Helper()
	switch n % kinds {
	case 0:
		w.catalogue(n)
	case 1:
		w.begin(w.record(n, nil))
	case 2:
		rec := w.record(n, nil)
		w.begin(rec)
		w.report(rec, int64(n/kinds%3))
	case 3:
		w.end(w.record(n, nil), []broker.Status{broker.StatusFailed, broker.StatusRevoked, broker.StatusReleased}[n/kinds%3])
	case 4:
		w.begin(w.record(n, denied))
	case 5:
		w.end(w.record(n, dynamic(scopes.KindDatabase)), broker.StatusIssued, broker.StatusRevoking, broker.StatusRevoked)
	case 6:
		w.approval(n)
	case 7:
		w.end(w.record(n, dynamic(scopes.KindSSH)), broker.StatusIssued, broker.StatusReleased)
	case 8:
		w.refuse()
		w.reportCalls(n)
	case 9:
		w.commands(n)
	case 10:
		w.end(w.record(n, dynamic(scopes.KindVaultToken)), broker.StatusUnknown, broker.StatusCompensated)
	case 11:
		rec := w.record(n, dynamic(scopes.KindKV))
		w.end(rec, broker.StatusIssued)
		w.report(rec, 1)
	case 12:
		rec := w.record(n, permit)
		w.end(rec, broker.StatusRevoked)
		w.report(rec, 2)
	}
}

func subject(n int) broker.Subject {
	id := spiffeid.RequireFromString(fmt.Sprintf("spiffe://acme.test/agents/%d", n))
	if n%3 == 0 {
		return broker.Subject{ID: id, Kind: attest.KindJWT}
	}
	return broker.Subject{ID: id, Kind: attest.KindX509, Thumbprint: "dGh1bWI"}
}

// record returns the record of a JWT, after change has modified it.
func (w *world) record(n int, change func(*broker.Record)) broker.Record {
	params := map[string]any{"repo": "acme/api", "depth": int64(n) << 40, "share": 0.25, "paths": []any{"a", "b"}}
	at := w.begun.Add(time.Duration(n) * time.Millisecond)
	rec := broker.Record{
		ID: uuid.Must(uuid.NewV7()).String(), Time: at, Subject: subject(n),
		Request: broker.Request{
			Scope: "git.read", Params: params, TTL: time.Hour, RequestContext: scopes.RequestContext{Task: fmt.Sprintf("task-%d", n)}, Reason: `look at <b>"it"</b> – 🔍`,
		},
		Decision: scopes.Decision{
			Outcome: scopes.Allow, Scope: &scopes.Scope{Name: "git.read", Authority: scopes.Read}, Resource: "git:repo/acme/api",
			Params: params, TTL: 15 * time.Minute, Policies: []string{"may-read", "p"}, Reason: scopes.ReasonPermitted,
			Clamps:      []scopes.Clamp{{Bound: scopes.BoundScopeMax, From: time.Hour, To: 15 * time.Minute}},
			Explanation: "Policy may-read permits it.", Catalogue: w.digest,
		},
		Status: broker.StatusIssued, Expires: at.Add(15 * time.Minute),
		Intent: &broker.Intent{Kind: "jwt", Audience: "https://git.test", KeyID: "key-1", Algorithm: "ES256", Claims: []byte(`{"jti":"x"}`)},
	}
	if n%2 == 0 {
		rec.Request.IdempotencyKey = fmt.Sprintf("key-%d", n)
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

func denied(rec *broker.Record) {
	rec.Decision.Outcome, rec.Decision.Reason, rec.Decision.TTL = scopes.Deny, scopes.ReasonNoPermit, 0
	rec.Decision.Policies, rec.Decision.Clamps, rec.Decision.Params = nil, nil, nil
	rec.Status, rec.Intent, rec.Expires, rec.Request.IdempotencyKey = broker.StatusDenied, nil, time.Time{}, ""
}

func pending(rec *broker.Record) {
	rec.Decision.Outcome, rec.Decision.Reason = scopes.Pending, scopes.ReasonApprovalRequired
	rec.Decision.Approval = &scopes.Approval{Group: "oncall", Quorum: 2, Expires: 10 * time.Minute, BreakGlass: "leads"}
	rec.Status, rec.Intent, rec.Canonical = broker.StatusPending, nil, `{"what":"people see","break_glass":"leads"}`
	rec.Expires, rec.Request.IdempotencyKey = time.Now().Add(time.Hour), ""
}

func permit(rec *broker.Record) { rec.Intent = &broker.Intent{Kind: scopes.KindNone} }

func dynamic(kind string) func(*broker.Record) {
	return func(rec *broker.Record) {
		grant := &scopes.Grant{
			Policy: "brevet-scope.x.00000000", Method: scopes.MethodRead, Path: kind + "/creds/x",
			Leased: kind == scopes.KindDatabase || kind == scopes.KindVaultToken, Static: kind == scopes.KindKV,
		}
		if kind == scopes.KindVaultToken {
			grant.Method, grant.Path = "", ""
		}
		rec.Status, rec.Intent = broker.StatusIntent, &broker.Intent{ID: rec.ID, Kind: kind, Grant: grant}
	}
}

func (w *world) begin(rec broker.Record) {
	w.t.Helper()
	_, err := w.l.Begin(w.t.Context(), rec)
	w.must(err)
}

// end takes a record through states.
func (w *world) end(rec broker.Record, states ...broker.Status) {
	w.t.Helper()
	w.begin(rec)
	for i, status := range states {
		out := broker.Outcome{ID: rec.ID, Time: rec.Time.Add(time.Duration(i+1) * time.Second), Status: status, Detail: "because"}
		if status == broker.StatusIssued {
			out.Detail, out.Minted = "", &broker.Minted{Name: "v-" + rec.ID}
			if rec.Intent.Grant.Leased {
				out.Minted.VaultLease = broker.VaultLease{Accessor: "accessor-" + rec.ID, Lease: "database/creds/x/" + rec.ID}
			}
			if !rec.Intent.Grant.Static {
				out.Minted.Digest = sha256.Sum256([]byte(rec.ID))
			}
		}
		if status == broker.StatusRevoking {
			out.Actor = "spiffe://acme.test/admin"
		}
		w.must(w.l.RecordOutcome(w.t.Context(), out))
	}
}

// report reports, as the holder of a credential, how often it was used.
func (w *world) report(rec broker.Record, calls int64) {
	w.t.Helper()
	use := broker.Use{Issuance: rec.ID, Holder: broker.Actor{Workload: rec.Subject}, Time: rec.Time.Add(3 * time.Second), Calls: calls}
	if calls > 0 {
		use.LastUsed = rec.Time.Add(2 * time.Second)
	}
	_, err := w.l.Report(w.t.Context(), use)
	w.must(err)
}

// reportCalls reports, as a sandbox's egress gateway, what the sandbox called.
func (w *world) reportCalls(n int) {
	w.t.Helper()
	report := broker.CallReport{
		Task: fmt.Sprintf("task-%d", n), Sandbox: broker.Actor{Workload: subject(n)}, Time: w.begun.Add(3 * time.Second),
		Session: uuid.NewString(), Sequence: 1, Since: w.begun, Until: w.begun.Add(2 * time.Second), Final: n%24 > 12,
	}
	for host := range n % 3 {
		report.Calls = append(report.Calls, broker.CallRow{
			Host: fmt.Sprintf("host-%d.test", host), Method: "GET", Count: 2, First: w.begun, Last: w.begun, Statuses: map[string]int64{"2xx": 1, "none": 1},
		})
	}
	_, err := w.l.ReportCalls(w.t.Context(), report)
	w.must(err)
}

func (w *world) refuse() {
	w.t.Helper()
	w.must(w.l.Refuse(w.t.Context(), broker.Refusal{
		Time: w.begun, Code: "unauthenticated", Detail: "svid_expired", Remote: "192.0.2.1:443", Operation: "issueToken",
	}))
}

// commands end tasks and quarantine sandboxes.
func (w *world) commands(n int) {
	w.t.Helper()
	id := subject(n).ID.String()
	order := func(kind string, target broker.Selector, at time.Time) {
		w.must(w.l.Announce(w.t.Context(), broker.Command{
			ID: uuid.Must(uuid.NewV7()).String(), Time: w.begun, Kind: kind, Target: target, At: at, Reason: "because",
			Actor: &broker.Actor{Person: "https://idp.test#alice", Name: "Alice"},
		}))
	}
	task := broker.Selector{SPIFFEID: id, Task: fmt.Sprintf("task-%d", n)}
	order(broker.CommandTaskEnd, task, w.begun.Add(time.Hour))
	if n/kinds%2 == 1 {
		order(broker.CommandTaskEnd, task, time.Time{})
	}
	order(broker.CommandQuarantineAdd, broker.Selector{SPIFFEID: id}, time.Time{})
	if n/kinds%3 == 2 {
		order(broker.CommandQuarantineRemove, broker.Selector{SPIFFEID: id}, time.Time{})
	}
	order(broker.CommandRevoke, broker.Selector{TrustDomain: "acme.test", Task: task.Task}, time.Time{})
}
