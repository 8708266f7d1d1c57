package tamper_test

import (
	"fmt"
	"slices"

	"github.com/brevet-dev/brevet/internal/audit"
)

// tiled is the number of entries in whole tiles, which keep their hashes. For the other entries only the roots are kept, so a
// change of several entries is located only between two checkpoints.
const tiled = worldSize / 256 * 256

// step is the distance between the entries that are tampered with.
func step() int64 {
	if *all {
		return 1
	}
	return 250
}

// ofEntries changes, removes, moves and adds entries.
func ofEntries(w *world) (todo []tampering) {
	for k := int64(0); k < worldSize; k += step() {
		todo = append(todo, moved(k), corrupted(k), removed(k), inserted(w, k), renumbered(k))
		if k+1 < worldSize {
			todo = append(todo, swapped(k))
		}
	}
	for from := int64(0); from < worldSize; from += atATime * step() {
		todo = append(todo,
			columns(from, "id", "gen_random_uuid()", audit.ColumnDiffers),
			columns(from, "time", "time + interval '1 microsecond'", audit.ColumnDiffers),
			columns(from, "kind", "CASE kind WHEN 'call.refused' THEN 'request.denied' ELSE 'call.refused' END", audit.ColumnDiffers),
			columns(from, "leaf_hash", "set_byte(leaf_hash, 5, get_byte(leaf_hash, 5) # 1)", audit.LeafHash))
	}
	return todo
}

// columns changes a column of several entries at once. Each change must be found separately.
func columns(from int64, column, to string, code audit.Code) tampering {
	one := tampering{
		name: fmt.Sprintf("entries.%s, %d rows from %d", column, atATime, from),
		do: statement(`UPDATE entries SET `+column+` = `+to+` WHERE index >= $1 AND index < $2 AND index % $3 = 0`,
			from, from+atATime*step(), step()),
	}
	var all []audit.Finding
	for k := from; k < min(from+atATime*step(), worldSize); k += step() {
		all = append(all, audit.Finding{Code: code, Index: k, Where: "entries." + column})
	}
	one.cases = len(all)
	one.want = func(_ *world, r audit.Report) string { return exactly(r.Findings, all) }
	return one
}

// moved gives an entry another index.
func moved(k int64) tampering {
	return tampering{
		name: fmt.Sprintf("entries.index of %d", k),
		do:   statement(`UPDATE entries SET index = index + 10000 WHERE index = $1`, k),
		want: first(audit.EntryMissing, k),
	}
}

// corrupted flips a bit of a body.
func corrupted(k int64) tampering {
	const bit = "($1 * 7919 % (octet_length(body) * 8))::integer"
	return tampering{
		name: fmt.Sprintf("entries.body of %d", k),
		do:   statement(`UPDATE entries SET body = set_bit(body, `+bit+`, 1 - get_bit(body, `+bit+`)) WHERE index = $1`, k),
		want: first(audit.EntryChanged, k),
	}
}

func removed(k int64) tampering {
	one := tampering{
		name: fmt.Sprintf("entry %d removed", k), do: statement(`DELETE FROM entries WHERE index = $1`, k),
		want: first(audit.EntryMissing, k),
	}
	if k == worldSize-1 {
		one.want = first(audit.Truncated, k)
	}
	return one
}

// renumbered removes an entry and closes the gap.
func renumbered(k int64) tampering {
	one := tampering{
		name: fmt.Sprintf("entry %d removed and its gap closed", k),
		do: statements(statement(`DELETE FROM entries WHERE index = $1`, k),
			statement(`UPDATE ledger_head SET size = size - 1`),
			func(w *world, tx tx) error {
				_, err := tx.Exec(w.t.Context(), `UPDATE entries SET index = index - 1 WHERE index > $1`, k)
				return err
			}),
		want: ranged(audit.CheckpointRoot, k),
	}
	switch {
	case k < tiled:
		one.want = either(first(audit.EntryMissing, k), one.want)
	case k >= worldSize-2*sealEvery: // the last checkpoint covers more entries than are left
		one.want = among(audit.Truncated, worldSize-1)
	}
	return one
}

func swapped(k int64) tampering {
	one := tampering{
		name: fmt.Sprintf("entries %d and %d swapped", k, k+1),
		do:   statement(`UPDATE entries SET index = 2 * $1::bigint + 1 - index WHERE index IN ($1::bigint, $1::bigint + 1)`, k),
		want: ranged(audit.CheckpointRoot, k),
	}
	if k+1 < tiled {
		one.want = first(audit.EntriesSwapped, k)
	}
	return one
}

// inserted adds an entry that is valid by itself, and moves the entries after it.
func inserted(w *world, k int64) tampering {
	one := tampering{
		name: fmt.Sprintf("an entry inserted at %d", k),
		do: statements(
			statement(`UPDATE entries SET index = index + 1 WHERE index >= $1`, k),
			statement(`UPDATE ledger_head SET size = size + 1`),
			statement(`
				INSERT INTO entries (index, id, time, kind, body, leaf_hash)
				SELECT $1, e.id, e.time, e.kind, e.body, sha256('\x00'::bytea || e.body)
				FROM (
					SELECT id, time, kind, convert_to(replace(convert_from(body, 'UTF8'), '192.0.2.1', '192.0.2.2'), 'UTF8') AS body
					FROM entries WHERE kind = 'call.refused' LIMIT 1
				) AS e`, k)),
		want: ranged(audit.CheckpointRoot, k),
	}
	if k < tiled {
		one.want = either(first(audit.EntryInserted, k), one.want)
	}
	return one
}

// either accepts one of two results if the tiles end between two checkpoints: the change is located in the tiles, or only between
// the two checkpoints.
func either(one, other func(*world, audit.Report) string) func(*world, audit.Report) string {
	return func(w *world, r audit.Report) string {
		problem := one(w, r)
		if problem != "" && other(w, r) == "" && r.Findings[0].Through >= tiled {
			return ""
		}
		return problem
	}
}

// among wants a finding at any position.
func among(code audit.Code, index int64) func(*world, audit.Report) string {
	return func(_ *world, r audit.Report) string {
		if !slices.ContainsFunc(r.Findings, func(f audit.Finding) bool { return f.Code == code && f.Index == index }) {
			return fmt.Sprintf("got %s, want %s at %d", told(r.Findings), code, index)
		}
		return ""
	}
}
