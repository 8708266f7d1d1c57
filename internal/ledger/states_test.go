package ledger_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

var statuses = []broker.Status{
	broker.StatusDenied, broker.StatusPending, broker.StatusIntent, broker.StatusIssued, broker.StatusFailed,
	broker.StatusUnknown, broker.StatusCompensated, broker.StatusRevoking, broker.StatusRevoked, broker.StatusReleased,
	broker.StatusExpired, broker.StatusUsed,
}

// ways lists the moves that lead to each state of a kind.
var ways = map[string]map[broker.Status][]broker.Status{
	"jwt": {
		broker.StatusIssued: {}, broker.StatusFailed: {broker.StatusFailed}, broker.StatusRevoked: {broker.StatusRevoked},
		broker.StatusReleased: {broker.StatusReleased},
	},
	"one-shot": {broker.StatusIssued: {}, broker.StatusUsed: {broker.StatusUsed}},
	"database": {
		broker.StatusIntent: {}, broker.StatusIssued: {broker.StatusIssued}, broker.StatusFailed: {broker.StatusFailed},
		broker.StatusUnknown: {broker.StatusUnknown}, broker.StatusCompensated: {broker.StatusUnknown, broker.StatusCompensated},
		broker.StatusRevoking: {broker.StatusIssued, broker.StatusRevoking},
		broker.StatusRevoked:  {broker.StatusIssued, broker.StatusRevoking, broker.StatusRevoked},
		broker.StatusReleased: {broker.StatusRevoking, broker.StatusReleased},
		broker.StatusExpired:  {broker.StatusIssued, broker.StatusExpired},
	},
	"ssh": {broker.StatusIntent: {}, broker.StatusIssued: {broker.StatusIssued}, broker.StatusRevoking: {broker.StatusRevoking}},
	"none": {
		broker.StatusIssued: {}, broker.StatusRevoked: {broker.StatusRevoked}, broker.StatusReleased: {broker.StatusReleased},
	},
	"kv": {broker.StatusIntent: {}, broker.StatusIssued: {broker.StatusIssued}},
}

// onward lists the allowed moves by kind and state. All others must be refused.
func onward(kind string, from broker.Status) string {
	if from == broker.StatusIssued {
		return map[string]string{
			"jwt": "failed revoked released", "one-shot": "failed revoked released used", "database": "revoking expired", "ssh": "revoked released",
			"none": "revoked released",
		}[kind]
	}
	return map[broker.Status]string{
		broker.StatusIntent: "issued failed unknown compensated revoking", broker.StatusUnknown: "compensated",
		broker.StatusRevoking: "revoked released",
	}[from]
}

// I13: every allowed move happens and every other one is refused, through the ledger, and as SQL by the broker's own role
// and by the owner.
func TestStatesMoveForwardOnly(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	logins := []*pgx.Conn{testkit.Connect(t, db.BrokerURL), testkit.Connect(t, db.AdminURL)}
	for kind, states := range ways {
		for from, way := range states {
			for _, next := range statuses {
				rec := bring(t, l, kind, way, nil)
				allowed := slices.Contains(strings.Fields(onward(kind, from)), string(next))
				want := violation
				if allowed {
					want = ""
				}
				for _, conn := range logins {
					if got := refusedBy(t, conn, moveSQL, rec.ID, string(next)); got != want {
						t.Errorf("%s from %s to %s as SQL: got %q, want %q", kind, from, next, got, want)
					}
				}
				err := l.RecordOutcome(t.Context(), to(rec, next))
				if (err == nil) != allowed || (err != nil && !errors.Is(err, broker.ErrInvalidTransition)) {
					t.Errorf("%s from %s to %s: got %v, want it allowed: %t", kind, from, next, err, allowed)
				}
			}
		}
	}
	for name, rec := range map[string]broker.Record{"denied": denied(nil), "pending": pending(nil)} {
		begin(t, l, rec)
		for _, next := range statuses {
			if got := refusedBy(t, logins[0], moveSQL, rec.ID, string(next)); got != violation {
				t.Errorf("from %s to %s as SQL: got %q", name, next, got)
			}
			if err := l.RecordOutcome(t.Context(), to(rec, next)); !errors.Is(err, broker.ErrInvalidTransition) {
				t.Errorf("from %s to %s: got %v, want ErrInvalidTransition", name, next, err)
			}
		}
	}
	db.Check(t)
}

// moveSQL moves a record with all the rights that anyone could have.
const moveSQL = `
	UPDATE issuances SET status = $2, status_time = now(),
		status_detail = CASE WHEN $2 IN ('failed', 'unknown', 'compensated', 'revoking', 'revoked', 'released') THEN 'x' END,
		idempotency_key = CASE WHEN $2 NOT IN ('failed', 'unknown', 'compensated') THEN idempotency_key END,
		vault_accessor = CASE WHEN leased AND $2 = 'issued' THEN 'x' ELSE vault_accessor END
	WHERE id = $1`

// A move changes only the columns that it has to, whoever makes it.
func TestTransitionChangesOnlyItsColumns(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	conn := testkit.Connect(t, db.AdminURL)
	rec := bring(t, l, "database", []broker.Status{broker.StatusIssued}, withKey("k"))
	for column := range strings.FieldsSeq(`entry_index=77 time=now() trust_domain='x' spiffe_id='spiffe://acme.test/x'
		svid_kind='jwt-svid' thumbprint='x' task='x' scope='x' authority='x' resource='x' params='{}' reason='x'
		ttl_asked=9 ttl=9 decision='deny' decision_code='x' explanation='x' policies='{x}' clamps='{x}' catalogue='x'
		expires_at='2030-01-01' approval_group='x' approval_quorum=9 credential_kind='x' audience='x' key_id='x'
		claims_digest='x' request_digest='x' idempotency_key='x' idempotency_key=NULL vault_path='x' vault_accessor='x'
		vault_accessor=NULL vault_lease='x' credential_name='x' secret_digest=sha256('x') leased=false static=true one_shot=true`) {
		sql := `UPDATE issuances SET status = 'revoking', status_detail = 'x', ` + column + ` WHERE id = $1`
		if got := refusedBy(t, conn, sql, rec.ID); got != violation {
			t.Errorf("a move that also sets %s: got %q, want %q", column, got, violation)
		}
	}
	if got := refusedBy(t, conn, `UPDATE issuances SET status = 'revoking', status_detail = 'x', actor = 'x' WHERE id = $1`, rec.ID); got != "" {
		t.Errorf("a move with an actor: got %q", got)
	}
}

func TestOutcomesAreReadBack(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	token := dynamic("vault-token", nil)
	begin(t, l, token)
	settle(t, l, to(token, broker.StatusIssued))
	view := get(t, l, token.ID)
	want := viewOf(token, 0)
	want.Leased = true
	want.Status, want.StatusTime, want.Minted = broker.StatusIssued, to(token, "").Time.Truncate(time.Microsecond), *minted(token)
	if diff := cmp.Diff(want, *view, sameView); diff != "" {
		t.Errorf("issued (-want +got):\n%s", diff)
	}
	revoking := to(token, broker.StatusRevoking)
	revoking.Actor, revoking.Detail = "spiffe://acme.test/admin", broker.CauseRevoked
	revoked := to(token, broker.StatusRevoked) // by the sweeper, which does not name the actor
	revoked.Detail = broker.CauseRevoked
	settle(t, l, revoking, revoked)
	want.Status, want.StatusDetail, want.Actor = broker.StatusRevoked, broker.CauseRevoked, revoking.Actor
	if diff := cmp.Diff(want, *get(t, l, token.ID), sameView); diff != "" {
		t.Errorf("revoked (-want +got):\n%s", diff)
	}
	lost := dynamic("database", nil)
	begin(t, l, lost)
	out := to(lost, broker.StatusUnknown)
	out.Minted = &broker.Minted{VaultLease: broker.VaultLease{Accessor: "only this"}}
	settle(t, l, out)
	if got := get(t, l, lost.ID).Minted; got != *out.Minted {
		t.Errorf("unknown: got %+v, want %+v", got, *out.Minted)
	}
	intent := db.Entries(t)[0].Body["intent"]
	wantIntent := map[string]any{"kind": "vault-token", "grant": map[string]any{
		"policy": "brevet-scope.x.00000000", "method": "", "path": "", "data": map[string]any{}, "leased": true, "static": false,
	}}
	if diff := cmp.Diff(wantIntent, intent); diff != "" {
		t.Errorf("the intent's body (-want +got):\n%s", diff)
	}
	db.Check(t)
}

func get(t *testing.T, l *ledger.Ledger, id string) *broker.View {
	t.Helper()
	view, err := l.Get(t.Context(), id, everything)
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	return view
}

// A record that failed frees its idempotency key, and no other record does.
func TestOnlyFailureFreesTheIdempotencyKey(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	for status, way := range ways["database"] {
		key := string(status)
		bring(t, l, "database", way, withKey(key))
		earlier, err := l.Begin(t.Context(), allowed(withKey(key)))
		free := slices.Contains([]broker.Status{broker.StatusFailed, broker.StatusUnknown, broker.StatusCompensated}, status)
		if err != nil || (earlier == nil) != free {
			t.Errorf("%s: got %v, %v, want the key free: %t", status, earlier, err, free)
		}
	}
	db.Check(t)
}

// Outcomes and intents that contradict themselves are refused, without effect on others.
func TestBadOutcomes(t *testing.T) {
	t.Parallel()
	start := moment()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	rec, static := dynamic("database", nil), dynamic("kv", nil)
	begin(t, l, rec, static)
	for name, out := range map[string]broker.Outcome{
		"issued with a code":               {ID: rec.ID, Time: start, Status: broker.StatusIssued, Detail: "x", Minted: minted(rec)},
		"leased, and no handle":            {ID: rec.ID, Time: start, Status: broker.StatusIssued},
		"a lost mint without its code":     {ID: rec.ID, Time: start, Status: broker.StatusUnknown},
		"the digest of a static secret":    {ID: static.ID, Time: start, Status: broker.StatusIssued, Minted: minted(rec)},
		"an accessor that is not readable": {ID: rec.ID, Time: start, Status: broker.StatusIssued, Minted: &broker.Minted{VaultLease: broker.VaultLease{Accessor: "\x00"}}},
	} {
		if err := l.RecordOutcome(t.Context(), out); !errors.Is(err, record.ErrUnrecordable) {
			t.Errorf("%s: got %v, want ErrUnrecordable", name, err)
		}
	}
	for name, change := range map[string]func(*broker.Record){
		"a JWT with a grant":   func(rec *broker.Record) { rec.Intent.Kind = "jwt" },
		"no grant":             func(rec *broker.Record) { rec.Intent.Grant = nil },
		"issued at once":       func(rec *broker.Record) { rec.Status = broker.StatusIssued },
		"no path":              func(rec *broker.Record) { rec.Intent.Grant.Path = "" },
		"an unknown kind":      func(rec *broker.Record) { rec.Intent.Kind = "password" },
		"leased and static":    func(rec *broker.Record) { rec.Intent.Grant.Static = true },
		"a permit's kind":      func(rec *broker.Record) { rec.Intent.Kind = "none" },
		"a permit":             func(rec *broker.Record) { rec.Intent = testkit.Permit(nil).Intent },
		"an intent of a JWT's": func(rec *broker.Record) { rec.Intent = allowed(nil).Intent },
	} {
		if _, err := l.Begin(t.Context(), dynamic("database", change)); !errors.Is(err, record.ErrUnrecordable) {
			t.Errorf("%s: got %v, want ErrUnrecordable", name, err)
		}
	}
	db.Check(t)
}

// I13: when many callers move the same records at once, over two replicas, each record takes one path through its states.
func TestConcurrentTransitionsTakeOnePath(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	replicas := []*ledger.Ledger{db.Ledger(t), db.Ledger(t)}
	for range 20 {
		rec := dynamic("database", nil)
		begin(t, replicas[0], rec)
		var wg sync.WaitGroup
		for _, status := range statuses[3:] {
			for n := range replicas {
				wg.Go(func() {
					if err := replicas[n].RecordOutcome(t.Context(), to(rec, status)); err != nil && !errors.Is(err, broker.ErrInvalidTransition) {
						t.Errorf("Settle to %s: %v", status, err)
					}
				})
			}
		}
		wg.Wait()
	}
	db.Check(t)
}

// If two moves of one record wait for the same commit, both happen, one after the other.
func TestQueuedTransitionsHappenInOrder(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := open(t, db.BrokerURL)
	rec := dynamic("database", nil)
	begin(t, l, rec)
	waiting, release := hold(t, db)
	defer release()
	var wg sync.WaitGroup
	wg.Go(func() { begin(t, l, denied(nil)) })
	waiting()
	for n, status := range []broker.Status{broker.StatusIssued, broker.StatusRevoking, broker.StatusRevoked} {
		wg.Go(func() { settle(t, l, to(rec, status)) })
		until(t, "it is queued", func() bool { return l.Queued() == n+1 })
	}
	release()
	wg.Wait()
	if got := get(t, l, rec.ID).Status; got != broker.StatusRevoked {
		t.Errorf("got %s, want revoked", got)
	}
	db.Check(t)
}
