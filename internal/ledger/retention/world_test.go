package retention_test

import (
	"os"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/internal/token"
	"github.com/jackc/pgx/v5"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

const sandbox = testkit.Sandbox

// The short names of what testkit makes and does.
var (
	allowed, denied, pending, dynamic = testkit.Allowed, testkit.Denied, testkit.Pending, testkit.Dynamic
	moment, ofSandbox                 = testkit.RecordTime, testkit.OfSandbox
	begin, settle, to                 = testkit.Begin, testkit.Settle, testkit.OutcomeOf
	announced, announce               = testkit.Announced, testkit.Announce
	bobVotes                          = testkit.Bob
	approved, redeems                 = testkit.Approved, testkit.Redeeming
	sealed, tamper                    = testkit.Sealed, testkit.Tamper
)

type notary = testkit.Notary

func newNotary(t *testing.T) notary { return testkit.NewNotary(t, testkit.Origin) }

// everything is a reach that holds all records of these tests.
var everything = broker.Reach{TrustDomains: []string{"acme.test", "other.test"}}

// old makes a record one that is over for long.
func old(rec *broker.Record) {
	rec.Time = moment().Add(-48 * time.Hour)
	if !rec.Expires.IsZero() {
		rec.Expires = rec.Time.Add(15 * time.Minute).Truncate(time.Second)
	}
}

// handedDown returns the record of a token that a sub-agent got in exchange from the holder of a parent.
func handedDown(parent broker.Record, change func(*broker.Record)) broker.Record {
	return allowed(func(rec *broker.Record) {
		rec.Subject.ID = spiffeid.RequireFromString(parent.Subject.ID.String() + "/helper")
		rec.Request.Parent = &token.Claims{ID: parent.ID}
		rec.Time, rec.Expires = parent.Time, parent.Expires // the clock may be in the next second
		if change != nil {
			change(rec)
		}
	})
}

// exec runs a statement as the owner of the schema.
func exec(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
