package tamper_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/jackc/pgx/v5"
	"golang.org/x/mod/sumdb/note"
)

// ofHistory cuts off, rewrites and restores earlier states of the ledger.
func ofHistory(w *world) (todo []tampering) {
	for k := int64(0); k < worldSize; k += step() {
		todo = append(todo, cut(k)...)
	}
	rows, err := w.conn.Query(w.t.Context(), `SELECT index FROM entries WHERE kind = 'call.refused' ORDER BY index`)
	w.must(err)
	refusals, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	w.must(err)
	for n, k := range refusals {
		if int64(n)%step() == 0 {
			todo = append(todo, rewritten(k)...)
		}
	}
	return todo
}

// cut removes the entries from k on, and step by step the other traces of them.
func cut(k int64) []tampering {
	entries := statement(`DELETE FROM entries WHERE index >= $1`, k)
	head := statement(`UPDATE ledger_head SET size = $1`, k)
	todo := []tampering{
		{name: fmt.Sprintf("cut off at %d", k), do: entries, want: first(audit.Truncated, k)},
		{name: fmt.Sprintf("cut off at %d, with the head", k), do: statements(entries, head), want: first(audit.Truncated, k)},
	}
	if k < keptSize {
		todo = append(todo, tampering{
			name: fmt.Sprintf("cut off at %d, with the head and checkpoints", k), keeps: kept,
			do:   statements(entries, head, statement(`DELETE FROM checkpoints WHERE size > $1`, k)),
			want: first(audit.RolledBack, k),
		})
	}
	return todo
}

// rewritten changes entry k, keeping it valid except for its hash, and step by step everything derived from it.
func rewritten(k int64) []tampering {
	body := statement(`
		UPDATE entries AS e SET body = n.body, leaf_hash = sha256('\x00'::bytea || n.body)
		FROM (SELECT index, convert_to(replace(convert_from(body, 'UTF8'), '192.0.2.1', '192.0.2.9'), 'UTF8') AS body FROM entries) AS n
		WHERE e.index = n.index AND e.index = $1`, k)
	found := ranged(audit.CheckpointRoot, k)
	if k < tiled {
		found = first(audit.EntryChanged, k)
	}
	name := fmt.Sprintf("entry %d rewritten", k)
	todo := []tampering{
		{name: name, do: body, want: found},
		{name: name + " with the tiles", do: statements(body, again(nil, 0)), want: ranged(audit.CheckpointRoot, k)},
		{name: name + " and not signed", do: statements(body, again(unsigned, k)), want: ranged(audit.CheckpointUnsigned, k)},
		{name: name + " and signed with another key", do: statements(body, again(foreign, k)), want: ranged(audit.CheckpointUnsigned, k)},
	}
	if k < keptSize {
		todo = append(todo, tampering{
			name: name + " and signed with the log's key", do: statements(body, again(own, k)), keeps: kept,
			want: first(audit.SplitView, 0),
		})
	}
	return todo
}

// signing signs a checkpoint of a rewritten history.
type signing func(w *world, c audit.Checkpoint, old string) string

func own(w *world, c audit.Checkpoint, _ string) string { return w.log.sign(w.t, c) }

func unsigned(_ *world, c audit.Checkpoint, old string) string {
	_, signature, _ := strings.Cut(old, "\n\n")
	return c.String() + "\n" + signature
}

// foreign signs with another key of the same name.
func foreign(w *world, c audit.Checkpoint, _ string) string {
	return newLog(w.t, w.log.name).sign(w.t, c)
}

// again makes the tiles again, and the checkpoints of more than k entries.
func again(sign signing, k int64) func(*world, tx) error {
	return func(w *world, tx tx) error {
		other := &log{name: w.log.name, signer: w.log.signer}
		other.grow(w.t, tx)
		for n := range int64(tiled / 256) {
			hashes, root := other.tile(w.t, 0, n)
			if err := statement(`UPDATE tree_tiles SET hashes = $2, root = $3 WHERE number = $1`, n, hashes, root)(w, tx); err != nil {
				return err
			}
		}
		if sign == nil {
			return nil
		}
		rows, err := tx.Query(w.t.Context(), `SELECT size, note FROM checkpoints WHERE size > $1`, k)
		if err != nil {
			return err
		}
		all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct {
			Size int64
			Note string
		}])
		for _, old := range all {
			c := other.at(w.t, old.Size)
			err = statement(`UPDATE checkpoints SET root = $2, note = $3 WHERE size = $1`, old.Size, c.Hash[:], sign(w, c, old.Note))(w, tx)
			if err != nil {
				return err
			}
		}
		return err
	}
}

// broughtBack verifies an older copy of the database. The copy is valid, so only an auditor who kept a checkpoint can detect it.
func broughtBack(t *testing.T, w *world) {
	t.Helper()
	for name, tc := range map[string]struct {
		keeps []audit.Checkpoint
		want  func(*world, audit.Report) string
	}{
		"a backup, and nothing kept":       {nil, whole},
		"a backup, and a checkpoint kept":  {kept(w), first(audit.RolledBack, w.backup[0].(audit.Head).Size)},
		"a backup, and a checkpoint of it": {[]audit.Checkpoint{w.log.at(t, 100)}, whole},
	} {
		cfg := audit.Config{Keys: note.VerifierList(w.log.verifier), Trusted: tc.keeps}
		report, err := audit.Verify(t.Context(), each(w.backup), cfg)
		if err != nil {
			t.Fatal(err)
		}
		count(t, tampering{name: name}, tc.want(w, report))
	}
}

// shownTwice makes two histories signed by the log's key, and shows each to another auditor.
func shownTwice(t *testing.T, one *world) {
	t.Helper()
	other := newWorld(t)
	other.log.signer, other.log.verifier = one.log.signer, one.log.verifier
	view := tampering{name: "one of two histories", do: again(own, 0), keeps: kept, want: whole}
	count(t, view, other.try(t.Context(), view))
	view.keeps, view.want = func(*world) []audit.Checkpoint { return kept(one) }, first(audit.SplitView, 0)
	count(t, view, other.try(t.Context(), view))
}
