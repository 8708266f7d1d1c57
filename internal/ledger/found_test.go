package ledger_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/jackc/pgx/v5"
)

// Searches for what has to end read only what is alive, so earlier issuances do not slow them down. Here most are over, and
// PostgreSQL estimates that a fifth of all are issued, leased and past their time.
func TestSweeperQueriesReadOnlyLiveRecords(t *testing.T) {
	t.Parallel()
	const all, maxRead = 40_000, 4000 // about 1200 are alive, each read in an index and in the table
	db := testkit.NewDB(t)
	if err := devstack.Fill(t.Context(), db.AdminURL, 0, all, func(string, ...any) {}); err != nil {
		t.Fatal(err)
	}
	owner := testkit.Connect(t, db.AdminURL)
	reckonWithADisk(t, owner)
	for name, look := range map[string]func(l *ledger.Ledger) (found int, err error){
		"everything alive":   live(t, broker.Selector{}, everything),
		"those of a domain":  live(t, broker.Selector{TrustDomain: "other.test"}, everything),
		"those of a path":    live(t, broker.Selector{SPIFFEIDPrefix: "spiffe://acme.test/team-1"}, everything),
		"those of a scope":   live(t, broker.Selector{Scope: "app1.verb1"}, everything),
		"a domain's own":     live(t, broker.Selector{}, broker.Reach{TrustDomains: []string{"other.test"}}),
		"a path's own":       live(t, broker.Selector{}, broker.Reach{Within: []string{"spiffe://acme.test/team-1"}}),
		"one of another one": live(t, broker.Selector{TrustDomain: "acme.test"}, broker.Reach{TrustDomains: []string{"other.test"}}),
		"what is due": func(l *ledger.Ledger) (int, error) {
			due, err := l.Overdue(t.Context(), broker.Overdue{Unfinished: time.Now(), Overdue: time.Now(), Limit: 200})
			return len(due), err
		},
		"what waits for people": func(l *ledger.Ledger) (int, error) {
			waiting, _, err := l.Waiting(t.Context(), broker.WaitingQuery{Groups: []string{"group-1"}, Within: []string{people.Everywhere}, Limit: 100})
			return len(waiting), err
		},
		"the live counts": func(l *ledger.Ledger) (int, error) {
			all, err := l.LiveCounts(t.Context(), everything)
			return int(all.Total.Count), err
		},
	} {
		before := rowsRead(t, owner)
		l, err := ledger.Open(t.Context(), ledger.Config{URL: db.BrokerURL, Log: slog.New(slog.DiscardHandler), Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		found, err := look(l)
		l.Close()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		none := name == "what is due" || name == "what waits for people" || name == "one of another one"
		if found == 0 && !none || found > 0 && name == "one of another one" {
			t.Errorf("%s: %d found", name, found)
		}
		if read := rowsRead(t, owner) - before; read > maxRead {
			t.Errorf("%s: %d rows read of %d, want %d at most", name, read, all, maxRead)
		}
	}
}

// reckonWithADisk makes new connections plan for a database that is larger than memory, as with a ledger of ten million.
func reckonWithADisk(t *testing.T, owner *pgx.Conn) {
	t.Helper()
	var name string
	if err := owner.QueryRow(t.Context(), "SELECT current_database()").Scan(&name); err != nil {
		t.Fatal(err)
	}
	if _, err := owner.Exec(t.Context(), "ALTER DATABASE "+pgx.Identifier{name}.Sanitize()+" SET random_page_cost = 20"); err != nil {
		t.Fatal(err)
	}
}

func live(t *testing.T, sel broker.Selector, reach broker.Reach) func(*ledger.Ledger) (int, error) {
	return func(l *ledger.Ledger) (int, error) {
		held, err := l.Live(t.Context(), sel, reach, broker.LivePage{Limit: 100})
		return len(held), err
	}
}

// rowsRead returns how many rows of issuances and of its indexes were read so far. Connections report that when they end.
func rowsRead(t *testing.T, owner *pgx.Conn) (rows int64) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var others int
		err := owner.QueryRow(t.Context(), `
			SELECT (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()),
				(SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'issuances')
					+ (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'issuances')::bigint`).Scan(&others, &rows)
		if err != nil {
			t.Fatal(err)
		}
		if others == 0 {
			return rows
		}
		if time.Now().After(deadline) {
			t.Fatal("connections of the ledger have not ended")
		}
	}
}
