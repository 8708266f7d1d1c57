package tlog_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/jackc/pgx/v5"
	"golang.org/x/mod/sumdb/tlog"
)

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

func TestCheckpointsCoverTheEntryTree(t *testing.T) {
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
		got, err := audit.OpenCheckpoint([]byte(c.Note), origin, n.Verifiers(t))
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

// A login that can only read can take any advisory lock, and still not keep checkpoints from being signed.
func TestReadersCannotStopCheckpoints(t *testing.T) {
	t.Parallel()
	db, n := testkit.NewDB(t), newNotary(t)
	_, err := testkit.Connect(t, db.AuditorURL).Exec(t.Context(), `SELECT pg_advisory_lock(hashtextextended('brevet/checkpoint/' || current_schema(), 0))`)
	if err != nil {
		t.Fatal(err)
	}
	l := db.Ledger(t)
	grow(t, l, 3)
	sealed(t, l, n)
	if got := checkpoints(t, db); len(got) != 1 || got[0].Size != 3 {
		t.Errorf("got the checkpoints %v, want one of 3 entries", got)
	}
	for _, sql := range []string{`SELECT FROM deployment FOR UPDATE`, `LOCK TABLE entries IN SHARE UPDATE EXCLUSIVE MODE`} {
		if _, err := testkit.Connect(t, db.AuditorURL).Exec(t.Context(), sql); err == nil {
			t.Errorf("a reader can take the lock of %s", sql)
		}
	}
}

func TestReplicasSignOneCheckpointSequence(t *testing.T) {
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

// If the key is lost, or the log gets another name, nothing is appended until the earlier key is configured.
func TestLogContinuesUnderANewKey(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]notary{"another key": testkit.NewNotary(t, origin), "another name": testkit.NewNotary(t, "brevet.test/new")} {
		t.Run(name, func(t *testing.T) {
			db, before := testkit.NewDB(t), newNotary(t)
			l := db.Ledger(t)
			grow(t, l, 3)
			sealed(t, l, before)
			if _, err := l.SealOnce(t.Context(), next); !errors.Is(err, postgres.ErrWentBack) || !errors.Is(err, audit.ErrUnsigned) {
				t.Errorf("got %v, want %v", err, postgres.ErrWentBack)
			}
			next.Public = append(next.Public, before.Public...)
			sealed(t, l, next)
			grow(t, l, 3)
			sealed(t, l, next)
			all := checkpoints(t, db)
			c, err := audit.OpenCheckpoint([]byte(all[1].Note), next.Origin(), next.Verifiers(t))
			if err != nil || c.N != 6 || len(all) != 2 {
				t.Errorf("got %v, %v of %d checkpoints; want the second, of 6 entries", c, err, len(all))
			}
		})
	}
}

func TestCheckpointsCannotBeForgedOrChanged(t *testing.T) {
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
