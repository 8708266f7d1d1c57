package ledger_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/jackc/pgx/v5"
)

// partition is the range of entries of a partition.
type partition struct{ First, Beyond int64 }

// partitionsOf returns the bounds of the partitions, and how many entries each has.
func partitionsOf(t *testing.T, db *testkit.DB) (all []partition, filled []int64) {
	t.Helper()
	conn := testkit.Connect(t, db.AdminURL)
	rows, err := conn.Query(t.Context(), `SELECT first, beyond FROM entry_partitions ORDER BY first`)
	if err != nil {
		t.Fatal(err)
	}
	if all, err = pgx.CollectRows(rows, pgx.RowToStructByName[partition]); err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		var n int64
		if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM entries WHERE index >= $1 AND index < $2`, p.First, p.Beyond).Scan(&n); err != nil {
			t.Fatal(err)
		}
		filled = append(filled, n)
	}
	return all, filled
}

// Replicas that append across the bounds of partitions at once create the next ones ahead, and leave no gap.
func TestEntriesGoOnAcrossPartitions(t *testing.T) {
	t.Parallel()
	start := moment()
	db := testkit.NewDB(t)
	db.SmallPartitions(t, 3)
	one, other := db.Ledger(t), db.Ledger(t)
	var wg sync.WaitGroup
	for n := range 800 {
		wg.Go(func() {
			l := []*ledger.Ledger{one, other}[n%2]
			if n%3 == 0 {
				begin(t, l, allowed(ofSandbox(n, nil)))
			} else if err := l.Refuse(t.Context(), broker.Refusal{Time: start, Code: "invalid"}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	one.Close()
	other.Close()
	all, filled := partitionsOf(t, db)
	if len(all) < 4 || filled[0] != 256 || filled[1] != 256 || filled[2] != 256 || filled[3] != 800-3*256 {
		t.Errorf("got %+v with %d entries", all, filled)
	}
	db.Check(t)
}

// An entry that no partition takes is not recorded, and the caller gets an error. Appends work again once there is a
// partition.
func TestEntryWithoutAPartitionIsRefused(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	db.SmallPartitions(t, 1)
	owner := testkit.Connect(t, db.AdminURL)
	exec(t, owner, `REVOKE EXECUTE ON FUNCTION extend_entries FROM brevet_broker`)
	var lines lockedBuffer
	room := make(chan int64, 100)
	l, err := ledger.Open(t.Context(), ledger.Config{
		URL: db.BrokerURL, Log: slog.New(slog.NewTextHandler(&lines, nil)), OnRoom: func(n int64) { room <- n },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	grow(t, l, 256)
	if _, err := l.Begin(t.Context(), allowed(nil)); !errors.Is(err, broker.ErrLedgerUnavailable) {
		t.Errorf("without room: got %v, want ErrLedgerUnavailable", err)
	}
	if err := l.Ready(t.Context()); err != nil {
		t.Errorf("Ready: %v", err)
	}
	for <-room != 0 {
	}
	exec(t, owner, `GRANT EXECUTE ON FUNCTION extend_entries TO brevet_broker`)
	for <-room == 0 {
	}
	if !strings.Contains(lines.String(), "the ledger is almost full") {
		t.Errorf("nothing is logged of it: %s", lines.String())
	}
	begin(t, l, allowed(nil))
	if got := len(db.Entries(t)); got != 257 {
		t.Errorf("got %d entries, want 257", got)
	}
	db.Check(t)
}

// A login that can only read can take any advisory lock, and still not keep partitions from being created.
func TestReadersCannotStopNewPartitions(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	db.SmallPartitions(t, 1)
	exec(t, testkit.Connect(t, db.AuditorURL), `SELECT pg_advisory_lock(hashtextextended('brevet/partitions/' || current_schema(), 0))`)
	grow(t, db.Ledger(t), 300)
	if got := len(db.Entries(t)); got != 300 {
		t.Errorf("got %d entries, want 300", got)
	}
}

type lockedBuffer struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}

func TestPartitionSize(t *testing.T) {
	t.Parallel()
	conn := testkit.Connect(t, testkit.NewDB(t).AdminURL)
	for _, tc := range []struct {
		grown  int64
		during string
		last   int64
		want   int64
	}{
		{1, "0", 4096, 1 << 12},
		{0, "-1 day", 4096, 1 << 12},
		{4096, "41 days", 4096, 1 << 12},
		{1 << 20, "30 days", 1 << 20, 1 << 20},
		{1<<20 + 1, "30 days", 1 << 20, 1 << 21},
		{100_000_000, "30 days", 1 << 22, 1 << 22},
		{100_000_000, "1 hour", 4096, 1 << 15}, // a burst
		{1, "1 year", 1 << 22, 1 << 12},
		{1 << 20, "30 days", 10_000_128, 1 << 20}, // after the entries from before there were partitions
	} {
		var got int64
		if err := conn.QueryRow(t.Context(), `SELECT partition_size($1, $2::interval, $3)`, tc.grown, tc.during, tc.last).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != tc.want {
			t.Errorf("%+v: got %d", tc, got)
		}
	}
}

// Partitions can be reached only through the table. The table checks what a single partition cannot.
func TestPartitionsAreGuarded(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	db.SmallPartitions(t, 2)
	l := db.Ledger(t)
	first := allowed(nil)
	begin(t, l, first)
	grow(t, l, 255)
	as := map[string]*pgx.Conn{"broker": testkit.Connect(t, db.BrokerURL), "owner": testkit.Connect(t, db.AdminURL)}
	appends := func(index int, kind, id string) string {
		body := fmt.Sprintf(`convert_to('{"id":"%s","kind":"%s"}', 'UTF8')`, id, kind)
		return fmt.Sprintf(`WITH head AS (UPDATE ledger_head SET size = %d)
			INSERT INTO entries SELECT %d, '%s', now(), '%s', %s, sha256('\x00'::bytea || %[5]s)`, index+1, index, id, kind, body)
	}
	const fresh = "00000000-0000-7000-8000-000000000001"
	for _, tc := range []struct{ who, sql, want string }{
		{"broker", appends(256, "call.refused", fresh), ""},
		{"broker", appends(257, "call.refused", fresh), violation}, // a gap
		{"broker", appends(256, "call.refused", first.ID), notUnique},
		{"broker", appends(256, "ledger.pruned", fresh), noRight},
		{"owner", appends(256, "ledger.pruned", fresh), ""},
		{"broker", `INSERT INTO entries_256 SELECT * FROM entries LIMIT 1`, noRight},
		{"broker", `SELECT FROM entries_0`, noRight},
		{"broker", `DELETE FROM entries_0`, noRight},
		{"broker", `TRUNCATE entries_0`, noRight},
		{"broker", `DROP TABLE entries_0`, noRight},
		{"broker", `ALTER TABLE entries DETACH PARTITION entries_0`, noRight},
		{"broker", `SELECT add_partition(256)`, noRight},
		{"broker", `SELECT guard_partition('entries_0')`, noRight},
		{"broker", `SELECT extend_entries()`, ""},
		{"broker", `SET brevet.pruning = 'on'; DELETE FROM issuances`, noRight},
		{"broker", `SET brevet.pruning = 'on'; DELETE FROM votes`, noRight},
		{"broker", `SET brevet.pruning = 'on'; DELETE FROM task_ends`, noRight},
		{"owner", `INSERT INTO entries_256 SELECT * FROM entries LIMIT 1`, noRight},
		{"owner", `UPDATE entries_0 SET body = body`, noRight},
		{"owner", `DELETE FROM entries_0`, noRight},
		{"owner", `TRUNCATE entries_0`, noRight},
		{"owner", `SELECT add_partition(100)`, violation},
	} {
		if got := refusedBy(t, as[tc.who], tc.sql, pgx.QueryExecModeSimpleProtocol); got != tc.want {
			t.Errorf("%s: %s: got %q, want %q", tc.who, tc.sql, got, tc.want)
		}
	}
}
