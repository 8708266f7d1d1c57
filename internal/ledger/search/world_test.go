package search_test

import (
	"os"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

const sandbox = testkit.Sandbox

// The short names of what testkit makes and does.
var (
	allowed, denied, pending, dynamic = testkit.Allowed, testkit.Denied, testkit.Pending, testkit.Dynamic
	moment, ofSandbox                 = testkit.RecordTime, testkit.OfSandbox
	begin, settle, bring, to          = testkit.Begin, testkit.Settle, testkit.Bring, testkit.OutcomeOf
	as, records, used, ago            = testkit.RecordAs, testkit.Records, testkit.UseOf, testkit.Ago
	inside, places                    = testkit.Inside, testkit.Places
)

const noRight = "42501" // the SQLSTATE insufficient_privilege

// lapse gives a record an end that has passed.
func lapse(rec *broker.Record) {
	rec.Time = moment().Add(-time.Hour)
	rec.Expires = rec.Time.Add(30 * time.Minute).Truncate(time.Second)
}

// everything is a reach that holds all records of these tests.
var everything = broker.Reach{TrustDomains: []string{"acme.test", "other.test"}}

// until waits until something happens.
func until(t *testing.T, what string, happens func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !happens(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("it did not come to pass: %s", what)
		}
	}
}

// exec runs a statement as the owner of the schema.
func exec(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
