package ledger_test

import (
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

const sandbox = testkit.Sandbox

// The short names of what testkit makes and does.
var (
	allowed, denied, pending, dynamic = testkit.Allowed, testkit.Denied, testkit.Pending, testkit.Dynamic
	moment, ofSandbox                 = testkit.RecordTime, testkit.OfSandbox
	begin, settle, bring              = testkit.Begin, testkit.Settle, testkit.Bring
	announced, announce               = testkit.Announced, testkit.Announce
	minted, to                        = testkit.MintedFor, testkit.OutcomeOf
	grow, sealed, tamper              = testkit.Grow, testkit.Sealed, testkit.Tamper
	bobVotes, carolVotes              = testkit.Bob, testkit.Carol
	saidEarlier                       = testkit.SaidEarlier
	waits, cast, approved, redeems    = testkit.Waiting, testkit.Vote, testkit.Approved, testkit.Redeeming
	as, records, used, ago            = testkit.RecordAs, testkit.Records, testkit.UseOf, testkit.Ago
	inside, places, notPlaces         = testkit.Inside, testkit.Places, testkit.NotPlaces
	refusedBy                         = testkit.RefusedBy
	line                              = testkit.Cosignature
)

type notary = testkit.Notary

func newNotary(t *testing.T) notary { return testkit.NewNotary(t, testkit.Origin) }

// SQLSTATE codes that a statement is refused with.
const (
	noRight   = "42501" // insufficient_privilege: a grant or an append-only trigger
	violation = "23514" // check_violation
	notUnique = "23505"
	noParent  = "23503" // foreign_key_violation
	isNull    = "23502"
)

// everything is a reach that holds all records of these tests.
var everything = broker.Reach{TrustDomains: []string{"acme.test", "other.test"}}

// viewOf returns the view that a record must have when it is read.
func viewOf(rec broker.Record, index int64) broker.View {
	d := rec.Decision
	v := broker.View{
		ID: rec.ID, Index: index, Time: rec.Time.Truncate(time.Microsecond), Subject: rec.Subject, RequestContext: scopes.RequestContext{Task: rec.Request.Task},
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
		switch {
		case i.Grant != nil:
			v.VaultPath = i.Grant.Path
		case i.Kind == scopes.KindJWT:
			v.ClaimsDigest = fmt.Sprintf("%x", i.ClaimsDigest)
		}
	}
	return v
}

// flushTimeout bounds a commit with its read-back. It is longer than in production: tests run in parallel and on slow machines.
const flushTimeout = 10 * time.Second

// open opens a ledger on databaseURL.
func open(t *testing.T, databaseURL string) *ledger.Ledger {
	t.Helper()
	l, err := ledger.Open(t.Context(), ledger.Config{
		URL: databaseURL, Log: slog.New(slog.DiscardHandler), FlushTimeout: flushTimeout, Now: time.Now,
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
