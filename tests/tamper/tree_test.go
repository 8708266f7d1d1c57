package tamper_test

import (
	"fmt"

	"github.com/brevet-dev/brevet/internal/audit"
)

// ofTree changes the data that proves the entries: tiles, checkpoints and the head.
func ofTree(w *world) (todo []tampering) {
	add := func(name string, sql string, want func(*world, audit.Report) string) {
		todo = append(todo, tampering{name: name, do: statement(sql), want: want})
	}
	add("the head counts more", `UPDATE ledger_head SET size = size + 1`, first(audit.Truncated, worldSize))
	add("the head counts less", `UPDATE ledger_head SET size = size - 1`, first(audit.HeadDiffers, worldSize-1))
	for n := range int64(tiled / 256) {
		of := fmt.Sprintf(" WHERE number = %d", n)
		add(fmt.Sprintf("tile %d gone", n), `DELETE FROM tree_tiles`+of, first(audit.TileMissing, n*256))
		add(fmt.Sprintf("tile %d elsewhere", n), `UPDATE tree_tiles SET number = 1000`+of, first(audit.TileMissing, n*256))
		add(fmt.Sprintf("tile %d higher", n), `UPDATE tree_tiles SET level = 1`+of, among(audit.TileMissing, n*256))
		add(fmt.Sprintf("the root of tile %d", n), `UPDATE tree_tiles SET root = sha256(root)`+of, first(audit.TileDiffers, n*256))
		for at := int64(0); at < 256; at += step() {
			add(fmt.Sprintf("hash %d of tile %d", at, n),
				fmt.Sprintf(`UPDATE tree_tiles SET hashes = set_byte(hashes, %d, get_byte(hashes, %[1]d) # 1)`, 32*at)+of,
				first(audit.TileDiffers, n*256))
		}
	}
	var checkpoints int64
	w.must(w.conn.QueryRow(w.t.Context(), `SELECT count(*) FROM checkpoints`).Scan(&checkpoints))
	for at := int64(0); at < checkpoints; at += min(step(), 5) {
		of := fmt.Sprintf(` WHERE size = (SELECT size FROM checkpoints ORDER BY size OFFSET %d LIMIT 1)`, at)
		add(fmt.Sprintf("size of checkpoint %d", at), `UPDATE checkpoints SET size = size + 1`+of, has(audit.CheckpointDiffers))
		add(fmt.Sprintf("root of checkpoint %d", at), `UPDATE checkpoints SET root = sha256(root)`+of, has(audit.CheckpointDiffers))
		for _, line := range []string{"log.test", "=", "— "} {
			add(fmt.Sprintf("note of checkpoint %d", at), `UPDATE checkpoints SET note = replace(note, '`+line+`', 'x')`+of,
				has(audit.CheckpointUnsigned))
		}
	}
	return todo
}

// has wants this one finding, and none about the entries, which are intact.
func has(code audit.Code) func(*world, audit.Report) string {
	return func(_ *world, r audit.Report) string {
		if len(r.Findings) != 1 || r.Findings[0].Code != code {
			return fmt.Sprintf("got %s, want %s only", told(r.Findings), code)
		}
		return ""
	}
}
