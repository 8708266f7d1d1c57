package ledger_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"testing"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/jackc/pgx/v5"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

const origin = "brevet.test/ledger"

// notary signs with a key of this process.
type notary struct {
	signer note.Signer
	keys   []string
}

func newNotary(t *testing.T) notary {
	t.Helper()
	return notaryOf(t, origin)
}

func notaryOf(t *testing.T, name string) notary {
	t.Helper()
	private, public, err := note.GenerateKey(rand.Reader, name)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := note.NewSigner(private)
	if err != nil {
		t.Fatal(err)
	}
	return notary{signer, []string{public}}
}

func (n notary) Origin() string                         { return n.signer.Name() }
func (n notary) Keys(context.Context) ([]string, error) { return n.keys, nil }
func (n notary) Sign(_ context.Context, text string) ([]byte, error) {
	return note.Sign(&note.Note{Text: text}, n.signer)
}

func (n notary) verifiers(t *testing.T) note.Verifiers {
	t.Helper()
	v, err := note.NewVerifier(n.keys[0])
	if err != nil {
		t.Fatal(err)
	}
	return note.VerifierList(v)
}

// grow appends this many entries.
func grow(t *testing.T, l *ledger.Ledger, entries int) {
	t.Helper()
	var wg sync.WaitGroup
	for range entries {
		wg.Go(func() {
			if err := l.Refuse(t.Context(), broker.Refusal{Time: moment(), Code: "invalid"}); err != nil {
				t.Errorf("Refuse: %v", err)
			}
		})
	}
	wg.Wait()
}

func sealed(t *testing.T, l *ledger.Ledger, n notary) {
	t.Helper()
	if _, err := l.SealOnce(t.Context(), n); err != nil {
		t.Fatalf("SealOnce: %v", err)
	}
}

// treeUpTo returns the tree over the first entries. It uses only the bodies of the entries, and nothing else that the ledger
// made.
func treeUpTo(t *testing.T, db *testkit.DB, size int64) (tlog.HashReader, tlog.Hash) {
	t.Helper()
	rows, err := testkit.Connect(t, db.AdminURL).Query(t.Context(), `SELECT body FROM entries WHERE index < $1 ORDER BY index`, size)
	if err != nil {
		t.Fatal(err)
	}
	bodies, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		t.Fatal(err)
	}
	var hashes []tlog.Hash
	reader := tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		found := make([]tlog.Hash, len(indexes))
		for i, index := range indexes {
			found[i] = hashes[index]
		}
		return found, nil
	})
	for n, body := range bodies {
		made, err := tlog.StoredHashes(int64(n), body, reader)
		if err != nil {
			t.Fatal(err)
		}
		hashes = append(hashes, made...)
	}
	root, err := tlog.TreeHash(size, reader)
	if err != nil {
		t.Fatal(err)
	}
	return reader, root
}

type checkpointRow struct {
	Size int64
	Root []byte
	Note string
}

func checkpoints(t *testing.T, db *testkit.DB) []checkpointRow {
	t.Helper()
	rows, err := testkit.Connect(t, db.AuditorURL).Query(t.Context(), `SELECT size, root, note FROM checkpoints ORDER BY size`)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByName[checkpointRow])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestCheckpointsAreOfTheTreeOverTheEntries(t *testing.T) {
	t.Parallel()
	db, n := testkit.NewDB(t), newNotary(t)
	l := db.Ledger(t)
	sealed(t, l, n)
	if got := checkpoints(t, db); len(got) != 0 {
		t.Errorf("got %d checkpoints of an empty ledger, want none", len(got))
	}
	for _, more := range []int{1, 2, 252, 1, 1, 300, 700} { // whole tiles, and tiles that lack one hash
		grow(t, l, more)
		sealed(t, l, n)
		sealed(t, l, n) // nothing new
	}
	all := checkpoints(t, db)
	if len(all) != 7 {
		t.Fatalf("got %d checkpoints, want 7", len(all))
	}
	for _, c := range all {
		got, err := audit.OpenCheckpoint([]byte(c.Note), origin, n.verifiers(t))
		if err != nil {
			t.Fatal(err)
		}
		if _, root := treeUpTo(t, db, c.Size); got.N != c.Size || got.Hash != root {
			t.Errorf("got the checkpoint %d %s, want the root %s", got.N, got.Hash, root)
		}
	}
	var tiles int
	err := testkit.Connect(t, db.AuditorURL).QueryRow(t.Context(), `SELECT count(*) FROM tree_tiles`).Scan(&tiles)
	if err != nil || tiles != 1257/256 {
		t.Errorf("got %d whole tiles (%v), want %d", tiles, err, 1257/256)
	}
}

func TestReplicasSignOneLineOfCheckpoints(t *testing.T) {
	t.Parallel()
	db, n := testkit.NewDB(t), newNotary(t)
	replicas := []*ledger.Ledger{db.Ledger(t), db.Ledger(t), db.Ledger(t)}
	ctx, stop := context.WithCancel(t.Context())
	var sealing, writing sync.WaitGroup
	for _, l := range replicas {
		sealing.Go(func() {
			for ctx.Err() == nil {
				if _, err := l.SealOnce(t.Context(), n); err != nil {
					t.Errorf("SealOnce: %v", err)
				}
			}
		})
		writing.Go(func() { grow(t, l, 400) })
	}
	writing.Wait()
	stop()
	sealing.Wait()
	sealed(t, replicas[0], n)
	all := checkpoints(t, db)
	if len(all) < 2 || all[len(all)-1].Size != 1200 {
		t.Fatalf("got %d checkpoints, the last of %d; want several, the last of 1200", len(all), all[len(all)-1].Size)
	}
	reader, root := treeUpTo(t, db, 1200)
	for _, c := range all {
		proof, err := tlog.ProveTree(1200, c.Size, reader)
		if err == nil && c.Size < 1200 {
			err = tlog.CheckTree(proof, 1200, root, c.Size, tlog.Hash(c.Root))
		}
		if err != nil {
			t.Errorf("the checkpoint of %d is not of this log: %v", c.Size, err)
		}
	}
}

// tamper changes a ledger as only the owner of the database can.
func tamper(t *testing.T, db *testkit.DB, statements ...string) {
	t.Helper()
	owner := testkit.Connect(t, db.AdminURL)
	for _, sql := range append([]string{`SET session_replication_role = replica`}, statements...) {
		if _, err := owner.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// I15: if what a replica or a checkpoint knows of is gone or changed, at least that replica appends nothing.
func TestNothingIsAppendedToWhatWentBack(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		damage string
		// fresh is set if a replica that has just started notices it too.
		fresh bool
	}{
		"an older backup":  {`DELETE FROM checkpoints WHERE size > 5; DELETE FROM entries WHERE index >= 5; UPDATE ledger_head SET size = 5`, false},
		"entries gone":     {`DELETE FROM entries WHERE index >= 5; UPDATE ledger_head SET size = 5`, true},
		"checkpoints gone": {`DELETE FROM checkpoints`, false},
		"an entry changed": {`ALTER TABLE entries DROP CONSTRAINT entries_check; UPDATE entries SET leaf_hash = sha256('x') WHERE index = 3`, true},
		"an entry missing": {`DELETE FROM entries WHERE index = 3`, true},
		"another key":      {`UPDATE checkpoints SET note = replace(note, '— ', '— x') WHERE size = 11`, true},
	} {
		t.Run(name, func(t *testing.T) {
			db, n := testkit.NewDB(t), newNotary(t)
			l := db.Ledger(t)
			grow(t, l, 5)
			sealed(t, l, n)
			grow(t, l, 6)
			sealed(t, l, n)
			grow(t, l, 1) // otherwise there would be nothing to sign
			tamper(t, db, tc.damage)
			for _, replica := range []*ledger.Ledger{l, db.Ledger(t)} { // in this order, since the second may sign what l has not seen
				who, want := "a replica that saw it", true
				if replica != l {
					who, want = "a fresh one", tc.fresh
				}
				if _, err := replica.SealOnce(t.Context(), n); errors.Is(err, ledger.ErrWentBack) != want {
					t.Errorf("%s: got %v, want that it notices: %t", who, err, want)
				}
				if _, err := replica.Begin(t.Context(), denied(nil)); errors.Is(err, broker.ErrLedgerUnavailable) != want {
					t.Errorf("%s: got %v from Begin, want that it is refused: %t", who, err, want)
				}
				if err := replica.Ready(t.Context()); (err != nil) != want {
					t.Errorf("%s: got %v from Ready, want that it is not: %t", who, err, want)
				}
			}
		})
	}
}

// If the key is lost, or the log gets another name, nothing is appended until the earlier key is configured.
func TestALogGoesOnUnderAnotherKey(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]notary{"another key": notaryOf(t, origin), "another name": notaryOf(t, "brevet.test/new")} {
		t.Run(name, func(t *testing.T) {
			db, before := testkit.NewDB(t), newNotary(t)
			l := db.Ledger(t)
			grow(t, l, 3)
			sealed(t, l, before)
			if _, err := l.SealOnce(t.Context(), next); !errors.Is(err, ledger.ErrWentBack) || !errors.Is(err, audit.ErrUnsigned) {
				t.Errorf("got %v, want %v", err, ledger.ErrWentBack)
			}
			next.keys = append(next.keys, before.keys...)
			sealed(t, l, next)
			grow(t, l, 3)
			sealed(t, l, next)
			all := checkpoints(t, db)
			c, err := audit.OpenCheckpoint([]byte(all[1].Note), next.Origin(), next.verifiers(t))
			if err != nil || c.N != 6 || len(all) != 2 {
				t.Errorf("got %v, %v of %d checkpoints; want the second, of 6 entries", c, err, len(all))
			}
		})
	}
}

// A replica that reconnects to a database without the last entry that it has appended does not append there, even before it
// has checked a checkpoint.
func TestNothingIsAppendedWhereTheLastEntryIsMissing(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	grow(t, l, 3)
	tamper(t, db, `DELETE FROM entries WHERE index = 2`, `UPDATE ledger_head SET size = 2`)
	hangUp(t, db)
	for range 2 { // the first may have been sent to a connection that was closed
		if _, err := l.Begin(t.Context(), denied(nil)); !errors.Is(err, broker.ErrLedgerUnavailable) {
			t.Errorf("got %v from Begin, want %v", err, broker.ErrLedgerUnavailable)
		}
	}
	if got := len(db.Entries(t)); got != 2 {
		t.Errorf("got %d entries, want the 2 that are left", got)
	}
	if _, err := db.Ledger(t).Begin(t.Context(), denied(nil)); err != nil {
		t.Errorf("got %v from a replica that knows of nothing, want none", err)
	}
}

// hangUp closes all connections of the broker to this schema.
func hangUp(t *testing.T, db *testkit.DB) {
	t.Helper()
	parsed, err := pgx.ParseConfig(db.BrokerURL)
	if err != nil {
		t.Fatal(err)
	}
	_, err = testkit.Connect(t, db.AdminURL).Exec(t.Context(),
		`SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = $1`, parsed.User)
	if err != nil {
		t.Fatal(err)
	}
}

func TestTheDatabaseKeepsTheTree(t *testing.T) {
	t.Parallel()
	db, n := testkit.NewDB(t), newNotary(t)
	l := db.Ledger(t)
	grow(t, l, 300)
	sealed(t, l, n)
	as := map[string]*pgx.Conn{
		"broker":  testkit.Connect(t, db.BrokerURL),
		"auditor": testkit.Connect(t, db.AuditorURL),
		"owner":   testkit.Connect(t, db.AdminURL),
	}
	const note = `'x' || E'\n301\n' || encode(sha256('x'), 'base64') || E'\n'`
	for _, tc := range []struct{ who, sql, want string }{
		{"broker", `UPDATE checkpoints SET note = note`, noRight},
		{"broker", `DELETE FROM checkpoints`, noRight},
		{"broker", `TRUNCATE checkpoints`, noRight},
		{"broker", `INSERT INTO checkpoints SELECT size - 1, root, time, replace(note, '300', '299') FROM checkpoints`, violation},
		{"broker", `INSERT INTO checkpoints VALUES (301, sha256('x'), now(), ` + note + `)`, violation}, // larger than the ledger
		{"broker", `INSERT INTO checkpoints VALUES (301, sha256('y'), now(), ` + note + `)`, violation},
		{"broker", `INSERT INTO checkpoints VALUES (302, sha256('x'), now(), ` + note + `)`, violation},
		{"broker", `UPDATE tree_tiles SET root = root`, noRight},
		{"broker", `DELETE FROM tree_tiles`, noRight},
		{"broker", `TRUNCATE tree_tiles`, noRight},
		{"broker", `INSERT INTO tree_tiles (level, number, root) VALUES (0, 1, sha256('x'))`, violation}, // has 44 of 256 entries
		{"broker", `INSERT INTO tree_tiles (level, number, root) VALUES (0, 0, sha256('x'))`, notUnique},
		{"broker", `INSERT INTO tree_tiles (level, number, root) VALUES (1, 0, sha256('x'))`, violation},
		{"broker", `INSERT INTO tree_tiles (level, number, root) VALUES (2, 0, sha256('x'))`, isNull},
		{"auditor", `SELECT FROM checkpoints, tree_tiles`, ""},
		{"auditor", `INSERT INTO checkpoints SELECT * FROM checkpoints`, noRight},
		{"auditor", `INSERT INTO tree_tiles SELECT * FROM tree_tiles`, noRight},
		{"owner", `UPDATE checkpoints SET note = note`, noRight},
		{"owner", `DELETE FROM tree_tiles`, noRight},
	} {
		if got := refusedBy(t, as[tc.who], tc.sql); got != tc.want {
			t.Errorf("%s: %s: got SQLSTATE %q, want %q", tc.who, tc.sql, got, tc.want)
		}
	}
	var made, want []byte
	err := as["auditor"].QueryRow(t.Context(), `
		SELECT hashes, (SELECT string_agg(leaf_hash, '' ORDER BY index) FROM entries WHERE index < 256) FROM tree_tiles`).Scan(&made, &want)
	if err != nil || !bytes.Equal(made, want) {
		t.Errorf("the tile has not the hashes of its entries (%v)", err)
	}
}
