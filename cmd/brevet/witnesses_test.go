package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/app"
	"github.com/brevet-dev/brevet/internal/notify/witness"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/jackc/pgx/v5"
)

// statement runs one SQL statement on the maintenance database.
func (d *deployment) statement(t *testing.T, sql string) {
	t.Helper()
	url := strings.Replace(d.Postgres.TCPURL(), "/brevet?", "/postgres?", 1)
	if _, err := testkit.Connect(t, url).Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func (d *deployment) stop(t *testing.T) {
	t.Helper()
	d.broker.signal(t, syscall.SIGTERM)
	d.broker.finish(t).want(t, 0)
}

// lastCheckpoint returns the size of the last checkpoint in the file, once it covers at least this many entries.
func (d *deployment) lastCheckpoint(t *testing.T, file string, entries int64) (size int64) {
	t.Helper()
	got := brevet(t, d.env("auditor"), "audit", "keys")
	got.want(t, 0)
	within(t, patience, "checkpoint in the file", func() bool {
		c, err := witness.File(file).Last(strings.Fields(got.out)...)
		size = c.N
		return err == nil && size >= entries
	})
	return size
}

func (d *deployment) entries(t *testing.T) (n int64) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), d.adminURL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }() // a database with connections cannot be copied
	if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM entries`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestOlderBackupIsDetected restores a whole deployment from an older backup and restarts it. Nothing is issued, because
// an anchor file holds a later checkpoint. Without the file, a witness notices it.
func TestOlderBackupIsDetected(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	keys := brevet(t, d.env("auditor"), "audit", "keys")
	keys.want(t, 0)
	w := testkit.NewWitness(t, "witness.example/w", d.cfg.LedgerName, strings.Fields(keys.out)...)
	ca := d.Path("witness.pem")
	if err := os.WriteFile(ca, w.CA(), 0o600); err != nil {
		t.Fatal(err)
	}
	target := w.Target()
	d.cfg.Witnesses = []app.WitnessConfig{{
		Name: "w", URL: target.URL.Reveal(), Key: w.Key, ReachConfig: app.ReachConfig{CAFile: ca, AllowPrivateCIDRs: []string{"127.0.0.0/8"}},
	}}
	file := d.Path("checkpoints")
	d.cfg.Anchors = []app.AnchorConfig{{Name: "disk", File: file, Every: time.Second}}
	d.stop(t)
	d.serve(t)
	d.request(t, "early").want(t, 0)
	early := d.lastCheckpoint(t, file, d.entries(t))
	d.stop(t)
	d.statement(t, `CREATE DATABASE backup TEMPLATE brevet`)

	d.serve(t)
	d.request(t, "late").want(t, 0)
	if late := d.lastCheckpoint(t, file, d.entries(t)); late <= early {
		t.Fatalf("got checkpoints of %d entries and then of %d, want growth", early, late)
	}
	within(t, patience, "cosignature", func() bool { return w.Seen() > early })
	d.verifies(t, w, keys.out)
	d.stop(t)
	d.statement(t, `DROP DATABASE brevet`)
	d.statement(t, `ALTER DATABASE backup RENAME TO brevet`)

	d.serve(t)
	before := d.entries(t)
	if got := d.request(t, "again"); got.code == 0 || got.out != "" {
		t.Errorf("got exit code %d and %q, want that nothing is issued", got.code, got.out)
	}
	d.broker.waitFor(t, d.broker.err, "nothing is issued")
	if after := d.entries(t); after != before {
		t.Errorf("got %d entries more in an older backup", after-before)
	}
	d.stop(t)

	// Without the file, the witness reports the older history.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	d.serve(t)
	d.request(t, "anew").want(t, 0)
	d.broker.waitFor(t, d.broker.err, "a witness has cosigned another history of the ledger")
}

// verifies verifies the record against a checkpoint that a witness must have cosigned.
func (d *deployment) verifies(t *testing.T, w *testkit.Witness, logKeys string) {
	t.Helper()
	got := brevet(t, d.env("auditor"), "audit", "checkpoint", "--witnesses", "1")
	got.want(t, 0, "— witness.example/w ")
	plain := got.out[:strings.Index(got.out, "— witness.example/w ")]
	path := map[string]string{}
	for name, text := range map[string]string{"cosigned": got.out, "plain": plain, "keys": logKeys, "url": d.adminURL(t)} {
		path[name] = filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path[name], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	verify := []string{"audit", "verify", "--database-url-file", path["url"], "--key-file", path["keys"], "--witness", w.Key}
	brevet(t, nil, append(verify, "--checkpoint", path["cosigned"])...).want(t, 0, "The record is intact")
	brevet(t, nil, append(verify, "--checkpoint", path["plain"])...).want(t, exitUnsaid, "witness.example/w has not cosigned it")
	brevet(t, nil, verify...).want(t, exitUnsaid, "--witness: requires a --checkpoint")
}

// TestAnchorFileWithoutACheckpointPreventsStart checks that an anchor file without a valid checkpoint prevents the start,
// because its content may have been lost.
func TestAnchorFileWithoutACheckpointPreventsStart(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	file := d.Path("checkpoints")
	if err := os.WriteFile(file, []byte("nothing of ours\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.stop(t)
	path := d.configure(t, func(c *app.Config) { c.Anchors = []app.AnchorConfig{{Name: "disk", File: file}} })
	brevet(t, nil, "serve", "--config", path).want(t, 1, "anchors.disk: comparing the ledger with "+file, witness.ErrNoCheckpoint.Error())
}
