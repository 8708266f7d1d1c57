package tamper_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/ledger/retention"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/mod/sumdb/note"
)

// prunedUpTo is how many entries were old enough to be dropped.
const prunedUpTo = 512

// prunedWorld is a world whose owner has legitimately dropped old entries.
func prunedWorld(t *testing.T) *world {
	t.Helper()
	db := testkit.NewDB(t)
	db.SmallPartitions(t, 5)
	w := grownWorld(t, db)
	w.reportLate()
	pruner, err := retention.Open(t.Context(), db.AdminURL)
	w.must(err)
	defer pruner.Close(t.Context())
	for first := int64(0); first < prunedUpTo; first += 256 {
		done, err := pruner.Drop(t.Context(), retention.Partition{First: first, Beyond: first + 256}, time.Now(), nil)
		w.must(err)
		if done.Entries == 0 || done.Left == 0 {
			t.Fatalf("got %+v, want some dropped and some left", done)
		}
	}
	w.log.sealUpTo(t, w.conn, 1)
	w.refuse() // an entry that is not signed yet
	db.Check(t)
	disarm(t, w.conn)
	return w
}

// reportLate reports the use of a credential that is old enough to be dropped. The report keeps the credential's entry from being
// dropped.
func (w *world) reportLate() {
	w.t.Helper()
	var id, holder string
	w.must(w.conn.QueryRow(w.t.Context(), `
		SELECT i.id::text, i.spiffe_id FROM issuances AS i
		WHERE i.entry_index < 256 AND i.credential_kind = 'jwt' AND i.status = 'issued'
			AND NOT EXISTS (SELECT FROM uses AS u WHERE u.issuance = i.id)
		ORDER BY i.entry_index LIMIT 1`).Scan(&id, &holder))
	who := broker.Actor{Workload: broker.Subject{ID: spiffeid.RequireFromString(holder), Kind: attest.KindJWT}}
	_, err := w.l.Report(w.t.Context(), broker.Use{Issuance: id, Holder: who, Time: time.Now()})
	w.must(err)
}

// TestPrunedLedger verifies what is left of a ledger, and damages that.
func TestPrunedLedger(t *testing.T) {
	w := prunedWorld(t)
	for _, one := range ofPruned(w) {
		count(t, one, w.try(t.Context(), one))
	}
	var file bytes.Buffer
	w.must(audit.WriteSnapshot(&file, each(w.items()), nil))
	cfg := audit.Config{Keys: note.VerifierList(w.log.verifier), Trusted: []audit.Checkpoint{w.kept, w.log.at(t, 100)}}
	report, err := audit.Verify(t.Context(), audit.ReadSnapshot(&file), cfg)
	w.must(err)
	size := w.log.size(t, w.conn)
	if !report.Whole() || report.Entries != size || report.Sealed != size-1 || len(report.Pruned) != 2 {
		t.Fatalf("got %s of %+v", told(report.Findings), report)
	}
	var there int64
	w.must(w.conn.QueryRow(t.Context(), `SELECT count(*) FROM entries`).Scan(&there))
	first, second := report.Pruned[0], report.Pruned[1]
	if first.Dropped+second.Dropped != size-there || first.First != 0 || first.Beyond != 256 || second.First != 256 ||
		second.Beyond != prunedUpTo || first.By == "" || first.Index >= second.Index {
		t.Errorf("got %+v, and %d of %d entries", report.Pruned, there, size)
	}
}

// ofPruned damages the entries left in the dropped range, and the entries that record the drop.
func ofPruned(w *world) (todo []tampering) {
	add := func(name string, do func(*world, tx) error, want func(*world, audit.Report) string) {
		todo = append(todo, tampering{name: "pruned: " + name, do: do, want: want, keeps: kept})
	}
	left := w.number(`SELECT max(index) FROM entries WHERE index < 512 AND kind = 'person.seen'`)
	lone := w.number(`SELECT min(index) FROM entries WHERE index < 512 AND kind = 'quarantine.add'`)
	gap := w.number(`SELECT min(n) FROM generate_series(256, 511) AS n WHERE n NOT IN (SELECT index FROM entries)`)
	last := w.number(`SELECT max(index) FROM entries WHERE kind = 'ledger.pruned'`)
	refused := w.number(`SELECT min(index) FROM entries WHERE index >= 512 AND kind = 'call.refused'`)

	add("nothing", func(*world, tx) error { return nil }, whole)
	add("what is left, changed", corrupted(left).do, among(audit.EntryChanged, left))
	add("what is left, gone", statement(`DELETE FROM entries WHERE index = $1`, lone), among(audit.PrunedDiffers, 0))
	add("a record that is left, gone", statement(`DELETE FROM issuances WHERE entry_index = (SELECT min(entry_index) FROM issuances WHERE entry_index < 512)`),
		has(audit.ProjectionMissing))
	add("one put back", statement(`
		INSERT INTO entries SELECT $1, gen_random_uuid(), time, kind, body, leaf_hash FROM entries WHERE index = $2`, gap, refused),
		among(audit.PrunedDiffers, gap))
	add("more gone than it says", statement(`DELETE FROM entries WHERE index = 600`), first(audit.EntryMissing, 600))
	add("nothing tells of it", statement(`DELETE FROM entries WHERE index = $1`, last), among(audit.EntryMissing, gap))
	add("the head alone tells of it", statement(`UPDATE entries SET body = '{}' WHERE index = $1`, last), among(audit.EntryMissing, gap))
	wider := statement(`
		UPDATE entries AS e SET body = n.body, leaf_hash = sha256('\x00'::bytea || n.body)
		FROM (SELECT index, convert_to(replace(convert_from(body, 'UTF8'), '"beyond":512', '"beyond":768'), 'UTF8') AS body FROM entries) AS n
		WHERE e.index = n.index AND e.index = $1`, last)
	add("more than it said", statements(wider, statement(`DELETE FROM entries WHERE index >= 512 AND index < 768`)),
		among(audit.CheckpointRoot, worldSize))
	add("a hash of it", statement(`UPDATE tree_tiles SET hashes = set_byte(hashes, $1, get_byte(hashes, $1) # 1) WHERE number = 1 AND level = 0`,
		int32(gap-256)*32), among(audit.TileDiffers, 256))
	add("the hashes of it", statement(`DELETE FROM tree_tiles WHERE number = 1 AND level = 0`), among(audit.TileMissing, 256))
	next := w.number(`SELECT min(index) FROM entries WHERE index > ` + fmt.Sprint(refused) + ` AND kind = 'call.refused'`)
	add("one gone, and an entry that tells of the whole range", feigned(refused), among(audit.PrunedDiffers, next))
	return todo
}

func (w *world) number(sql string) (n int64) {
	w.t.Helper()
	w.must(w.conn.QueryRow(w.t.Context(), sql).Scan(&n))
	return n
}

// feigned drops one entry, and appends a forged entry that claims to drop the range around it.
func feigned(k int64) func(*world, tx) error {
	return statements(
		statement(`DELETE FROM entries WHERE index = $1`, k),
		statement(`
			WITH said AS (
				SELECT h.size AS index, gen_random_uuid() AS id, convert_to(format(
					'{"actor":"x","before":"2026-01-01T00:00:00Z","beyond":768,"first":512,"id":"%s","kind":"ledger.pruned",'
					'"left":{"count":%s,"sha256":"%s"},"time":"2026-01-01T00:00:00Z","version":1}', '00000000-0000-7000-8000-000000000000',
					(SELECT count(*) FROM entries WHERE index < 768),
					(SELECT encode(sha256(string_agg(int8send(index), ''::bytea ORDER BY index)), 'hex') FROM entries WHERE index < 768)),
					'UTF8') AS body
				FROM ledger_head AS h
			), moved AS (
				UPDATE ledger_head SET size = size + 1
			)
			INSERT INTO entries
			SELECT index, '00000000-0000-7000-8000-000000000000', '2026-01-01T00:00:00Z', 'ledger.pruned', body, sha256('\x00'::bytea || body) FROM said`))
}
