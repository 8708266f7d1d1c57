package retention_test

import (
	"errors"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/ledger/retention"
	"github.com/brevet-dev/brevet/internal/ledger/snapshot"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/migrations"
	"github.com/google/uuid"
)

// aged fills the first partition of a ledger, which is a small one, with old entries. young only begins to fill it.
func aged(t *testing.T, change func(l *ledger.Ledger)) (*testkit.DB, *ledger.Ledger, notary) {
	t.Helper()
	db, l, n := young(t, change)
	refuseUpTo(t, db, l, 256)
	return db, l, n
}

func young(t *testing.T, change func(l *ledger.Ledger)) (*testkit.DB, *ledger.Ledger, notary) {
	t.Helper()
	db, n := testkit.NewDB(t), newNotary(t)
	db.SmallPartitions(t, 4)
	l := db.Ledger(t)
	begin(t, l, allowed(old), denied(old))
	if change != nil {
		change(l)
	}
	return db, l, n
}

// refuseUpTo appends old refusals until the ledger has this many entries.
func refuseUpTo(t *testing.T, db *testkit.DB, l *ledger.Ledger, size int64) {
	t.Helper()
	all := db.Entries(t)
	var wg sync.WaitGroup
	for range size - 1 - all[len(all)-1].Index {
		wg.Go(func() {
			if err := l.Refuse(t.Context(), broker.Refusal{Time: moment().Add(-48 * time.Hour), Code: "invalid"}); err != nil {
				t.Errorf("Refuse: %v", err)
			}
		})
	}
	wg.Wait()
}

func pruner(t *testing.T, db *testkit.DB) *retention.Pruner {
	t.Helper()
	r, err := retention.Open(t.Context(), db.AdminURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(t.Context()) })
	return r
}

// pruned drops all entries that are a day old.
func pruned(t *testing.T, r *retention.Pruner) (all []retention.Dropped) {
	t.Helper()
	before := moment().Add(-24 * time.Hour)
	parts, err := r.Old(t.Context(), before)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		if p.Stays != "" {
			break
		}
		done, err := r.Drop(t.Context(), p, before, nil)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, done)
	}
	return all
}

// holds verifies a ledger with its key, and returns the report, which says what was pruned.
func holds(t *testing.T, db *testkit.DB, n notary, kept ...audit.Checkpoint) audit.Report {
	t.Helper()
	s, err := snapshot.Open(t.Context(), db.AuditorURL)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	report, err := audit.Verify(t.Context(), s.Items(t.Context()), audit.Config{Keys: n.Verifiers(t), Trusted: kept})
	if err != nil || !report.Whole() {
		t.Fatalf("got %+v, %v, want a whole record", report.Findings, err)
	}
	return report
}

// ends is a command that ends a task later.
func ends(task string, at time.Time) broker.Command {
	cmd := announced(broker.CommandTaskEnd, broker.Selector{SPIFFEID: sandbox, Task: task})
	cmd.At = at
	return cmd
}

func TestOldEntriesAreDropped(t *testing.T) {
	t.Parallel()
	start := moment()
	var straddles, over broker.Record
	db, l, n := young(t, func(l *ledger.Ledger) {
		straddles, over = allowed(old), allowed(old)
		begin(t, l, straddles, over)
		settle(t, l, to(over, broker.StatusRevoked))
		announce(t, l, announced(broker.CommandTaskEnd, broker.Selector{SPIFFEID: sandbox, Task: "over"}),
			ends("over twice", start.Add(2*time.Hour)), ends("over twice", start.Add(time.Hour)),
			announced(broker.CommandQuarantineAdd, broker.Selector{SPIFFEID: sandbox + "/x"}))
		if _, err := l.UpsertPerson(t.Context(), bobVotes, start.Add(-48*time.Hour)); err != nil {
			t.Fatal(err)
		}
	})
	idle := db.Ledger(t)
	begin(t, idle, denied(old))
	refuseUpTo(t, db, l, 256)
	sealed(t, l, n)
	first := testkit.LastCheckpoint(t, l, n)
	settle(t, l, to(straddles, broker.StatusRevoked))
	announce(t, l, announced(broker.CommandTaskEnd, broker.Selector{SPIFFEID: sandbox, Task: "over twice"}))
	sealed(t, l, n)

	r := pruner(t, db)
	done, err := r.Drop(t.Context(), retention.Partition{Beyond: 256}, start, nil)
	if err != nil {
		t.Fatal(err)
	}
	if done.Entries+done.Left != 256 || done.Index != 258 {
		t.Errorf("got %+v", done)
	}
	sealed(t, l, n)
	report := holds(t, db, n, first)
	if len(report.Pruned) != 1 || report.Pruned[0].Dropped != done.Entries || report.Entries != 259 {
		t.Errorf("got %+v", report)
	}
	var left []string
	for _, e := range db.Entries(t) {
		if e.Index < 256 {
			left = append(left, e.Kind)
		}
	}
	slices.Sort(left)
	if want := []string{"issuance.intent", "person.seen", "quarantine.add", "task.end", "task.end"}; !slices.Equal(left, want) {
		t.Errorf("got %q left, want %q", left, want)
	}
	if _, err := l.Get(t.Context(), over.ID, everything); !errors.Is(err, broker.ErrNotFound) {
		t.Errorf("what was dropped: got %v, want ErrNotFound", err)
	}
	if got, err := l.Get(t.Context(), straddles.ID, everything); err != nil || got.Status != broker.StatusRevoked {
		t.Errorf("what goes on after the range: got %+v, %v", got, err)
	}
	if _, err := l.Receipt(t.Context(), straddles.ID); err != nil {
		t.Errorf("Receipt: %v", err)
	}
	if _, _, _, err := l.ProveEntry(t.Context(), 100, 0); err != nil {
		t.Errorf("proof of an entry that was dropped: %v", err)
	}
	if tile, err := l.Tile(t.Context(), 0, 0, 0); err != nil || len(tile) != 256*32 {
		t.Errorf("got a tile of %d bytes, %v", len(tile), err)
	}
	testkit.HangUp(t, db) // the next connection checks for the last entry that the replica has appended
	_, _ = idle.Begin(t.Context(), denied(nil))
	begin(t, idle, denied(nil))
	db.Check(t)
}

// Approvals stay with what was issued for them, on both sides of a partition's border.
func TestApprovalsAreKeptWithTheirIssuances(t *testing.T) {
	t.Parallel()
	start := moment()
	var asked, unused broker.Record
	parent := allowed(func(rec *broker.Record) {
		old(rec)
		rec.Expires = start.Add(time.Hour).Truncate(time.Second) // only a token in force can be exchanged
	})
	db, l, n := aged(t, func(l *ledger.Ledger) {
		asked, unused = approved(t, l), approved(t, l)
		begin(t, l, parent)
	})
	begin(t, l, redeems(asked), handedDown(parent, func(rec *broker.Record) {
		old(rec)
		rec.Expires = parent.Expires
	}))
	sealed(t, l, n)
	r := pruner(t, db)
	if _, err := r.Drop(t.Context(), retention.Partition{Beyond: 256}, start, nil); err != nil {
		t.Fatal(err)
	}
	sealed(t, l, n)
	holds(t, db, n)
	if _, err := l.Get(t.Context(), asked.ID, everything); err != nil {
		t.Errorf("what was approved: %v", err)
	}
	if _, err := l.Get(t.Context(), parent.ID, everything); err != nil {
		t.Errorf("what was handed on: %v", err)
	}
	if _, err := l.Get(t.Context(), unused.ID, everything); !errors.Is(err, broker.ErrNotFound) {
		t.Errorf("what was approved for nothing: got %v, want ErrNotFound", err)
	}

	refuseUpTo(t, db, l, 520)
	sealed(t, l, n)
	if _, err := r.Drop(t.Context(), retention.Partition{First: 256, Beyond: 512}, start, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Drop(t.Context(), retention.Partition{First: 256, Beyond: 512}, start, nil); !errors.Is(err, retention.ErrMoved) {
		t.Errorf("once more: got %v, want ErrMoved", err)
	}
	sealed(t, l, n)
	report := holds(t, db, n)
	if len(report.Pruned) != 2 || report.Pruned[0].Dropped+report.Pruned[1].Dropped != 512-left(t, db) {
		t.Errorf("got %+v with %d left", report.Pruned, left(t, db))
	}
	if _, err := l.Get(t.Context(), asked.ID, everything); !errors.Is(err, broker.ErrNotFound) {
		t.Errorf("what was approved, with what it was for: got %v, want ErrNotFound", err)
	}
	var first, beyond int64
	err := testkit.Connect(t, db.AdminURL).QueryRow(t.Context(), `SELECT first, beyond FROM entry_partitions ORDER BY first LIMIT 1`).Scan(&first, &beyond)
	if err != nil || first != 0 || beyond != 512 {
		t.Errorf("got entries %d to %d (%v), want one partition of all that is left", first, beyond, err)
	}
}

// left returns how many entries the first partition has.
func left(t *testing.T, db *testkit.DB) (n int64) {
	t.Helper()
	err := testkit.Connect(t, db.AdminURL).QueryRow(t.Context(), `
		SELECT count(*) FROM entries WHERE index < (SELECT min(beyond) FROM entry_partitions)`).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A partition stays if something in it may still be alive, or if it is not old, sealed and hashed. So do all partitions
// after it.
func TestPartitionsWithLiveRecordsAreKept(t *testing.T) {
	t.Parallel()
	start := moment()
	leased := dynamic("database", old)
	for name, tc := range map[string]struct {
		before func(l *ledger.Ledger)
		after  string
		sealed bool
		want   string
	}{
		"nothing":       {nil, `SELECT`, true, ""},
		"not sealed":    {nil, `SELECT`, false, "no checkpoint covers it yet"},
		"alive":         {func(l *ledger.Ledger) { begin(t, l, allowed(alive)) }, `SELECT`, true, "some of its requests are not over"},
		"waiting":       {func(l *ledger.Ledger) { begin(t, l, pending(alive)) }, `SELECT`, true, "some of its requests are not over"},
		"leased":        {func(l *ledger.Ledger) { begin(t, l, leased); settle(t, l, to(leased, broker.StatusIssued)) }, `SELECT`, true, "some of its requests are not over"},
		"an intent":     {func(l *ledger.Ledger) { begin(t, l, dynamic("ssh", old)) }, `SELECT`, true, "some of its requests are not over"},
		"young":         {func(l *ledger.Ledger) { begin(t, l, denied(nil)) }, `SELECT`, true, "not all of its entries are that old"},
		"a tile gone":   {nil, `DELETE FROM tree_tiles`, true, "the hashes of its entries are not all kept, or are others"},
		"another tile":  {nil, `UPDATE tree_tiles SET hashes = set_byte(hashes, 7, get_byte(hashes, 7) # 1)`, true, "the hashes of its entries are not all kept, or are others"},
		"a shorter log": {nil, `DELETE FROM checkpoints`, true, "no checkpoint covers it yet"},
	} {
		t.Run(name, func(t *testing.T) {
			db, l, n := aged(t, tc.before)
			if tc.sealed {
				sealed(t, l, n)
			}
			tamper(t, db, tc.after)
			r := pruner(t, db)
			all, err := r.Old(t.Context(), start.Add(-24*time.Hour))
			if err != nil || len(all) == 0 || all[0].First != 0 || all[0].Beyond != 256 || all[0].Stays != tc.want {
				t.Fatalf("got %+v, %v, want %q", all, err, tc.want)
			}
			if tc.want == "" {
				if len(all) != 2 || all[1].Stays != "its last entry may still come" {
					t.Errorf("got %+v", all)
				}
				return
			}
			if _, err := r.Drop(t.Context(), all[0], start, nil); err == nil {
				t.Error("it was dropped all the same")
			}
		})
	}
}

func alive(rec *broker.Record) {
	rec.Time, rec.Expires = moment().Add(-48*time.Hour), moment().Add(time.Hour).Truncate(time.Second)
}

// Others can append and read while entries are dropped, and lose nothing.
func TestDropWhileOthersAppend(t *testing.T) {
	t.Parallel()
	db, l, n := aged(t, nil)
	sealed(t, l, n)
	stop, ended := make(chan struct{}), make(chan int)
	for range 4 {
		go func() {
			did := 0
			defer func() { ended <- did }()
			for {
				select {
				case <-stop:
					return
				default:
				}
				rec := allowed(ofSandbox(did, nil))
				rec.ID = uuid.Must(uuid.NewV7()).String()
				if _, err := l.Begin(t.Context(), rec); err != nil {
					t.Errorf("Begin: %v", err)
					return
				}
				did++
			}
		}()
	}
	done := pruned(t, pruner(t, db))
	close(stop)
	total := 0
	for range 4 {
		total += <-ended
	}
	if len(done) != 1 || done[0].Entries == 0 || total == 0 {
		t.Errorf("got %+v while %d were appended", done, total)
	}
	sealed(t, l, n)
	if report := holds(t, db, n); report.Entries != int64(256+total+1) {
		t.Errorf("got %d entries, want %d and one", report.Entries, 256+total)
	}
}

// A long read delays the drop, and delays no append.
func TestDropWaitsForReaders(t *testing.T) {
	t.Parallel()
	start := moment()
	db, l, n := aged(t, nil)
	sealed(t, l, n)
	reader, err := snapshot.Open(t.Context(), db.AuditorURL)
	if err != nil {
		t.Fatal(err)
	}
	waiting, done := make(chan struct{}), make(chan error)
	r := pruner(t, db)
	go func() {
		_, err := r.Drop(t.Context(), retention.Partition{Beyond: 256}, start, func(line string) {
			if strings.HasSuffix(line, "waiting for readers") {
				close(waiting)
			}
		})
		done <- err
	}()
	<-waiting
	for range 10 {
		begin(t, l, allowed(nil))
	}
	select {
	case err := <-done:
		t.Fatalf("it did not wait: %v", err)
	default:
	}
	report, err := audit.Verify(t.Context(), reader.Items(t.Context()), audit.Config{})
	if err != nil || !report.Whole() || report.Entries != 266 || len(report.Pruned) != 0 {
		t.Errorf("who reads: got %+v, %v", report, err)
	}
	reader.Close(t.Context())
	if err := <-done; err != nil {
		t.Errorf("Drop: %v", err)
	}
	db.Check(t)
}

// Only the owner can drop entries.
func TestOnlyTheOwnerDrops(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	for _, databaseURL := range []string{db.BrokerURL, db.AuditorURL} {
		if _, err := retention.Open(t.Context(), databaseURL); !errors.Is(err, retention.ErrNotOwner) {
			t.Errorf("got %v, want ErrNotOwner", err)
		}
	}
	if _, err := retention.Open(t.Context(), db.AsVersion(t, db.AdminURL, 18_00_01)); !errors.Is(err, migrations.ErrServer) {
		t.Errorf("of an unfit server: got %v, want ErrServer", err)
	}
}

// An owner without superuser rights can do all of this, and so can the broker whose partitions it owns.
func TestAPlainOwnerWillDo(t *testing.T) {
	t.Parallel()
	start := moment()
	testkit.NewDB(t) // creates the roles of the cluster, which a plain owner may not
	db := testkit.EmptyDB(t)
	u, err := url.Parse(db.AdminURL)
	if err != nil {
		t.Fatal(err)
	}
	schema, password := u.Query().Get("search_path"), uuid.NewString()
	as := func(user string) string {
		u.User = url.UserPassword(user, password)
		return u.String()
	}
	owner, brokerURL := as(schema+"_owner"), as(schema+"_broker")
	if err := migrations.EnsureLogin(t.Context(), db.AdminURL, schema+"_owner", schema+"_owner", password); err != nil {
		t.Fatal(err)
	}
	admin := testkit.Connect(t, db.AdminURL)
	exec(t, admin, `CREATE SCHEMA `+schema+` AUTHORIZATION `+schema+`_owner`)
	defer exec(t, admin, `DROP SCHEMA `+schema+` CASCADE; DROP ROLE `+schema+`_owner`)
	if err := migrations.Up(t.Context(), owner, nil); err != nil {
		t.Fatal(err)
	}
	if err := migrations.EnsureLogin(t.Context(), db.AdminURL, schema+"_broker", migrations.BrokerRole, password); err != nil {
		t.Fatal(err)
	}
	plain := &testkit.DB{AdminURL: owner, BrokerURL: brokerURL, AuditorURL: owner}
	plain.SmallPartitions(t, 1)
	l, n := plain.Ledger(t), newNotary(t)
	begin(t, l, allowed(old), allowed(nil))
	refuseUpTo(t, plain, l, 260)
	sealed(t, l, n)
	if _, err := pruner(t, plain).Drop(t.Context(), retention.Partition{Beyond: 256}, start, nil); err != nil {
		t.Fatal(err)
	}
	sealed(t, l, n)
	holds(t, plain, n)
	l.Close()
}
