package audit_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/audit"
	"golang.org/x/mod/sumdb/tlog"
)

// refused returns an entry for a refused call.
func refused(n int64) audit.Entry {
	id := fmt.Sprintf("00000000-0000-7000-8000-%012d", n)
	body := fmt.Appendf(nil, `{"code":"unauthenticated","detail":"x","id":"%s","kind":"call.refused","operation":"o","remote":"r",`+
		`"suppressed":0,"time":"2026-01-01T00:00:00Z","version":1}`, id)
	leaf := tlog.RecordHash(body)
	return audit.Entry{
		Index: n, ID: id, Kind: "call.refused", Time: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), Body: body, LeafHash: leaf[:],
	}
}

// large returns a ledger with tiles of two levels and an unsigned checkpoint.
func large(t *testing.T) []audit.Item {
	t.Helper()
	const size = 1<<16 + 300
	var records [][]byte
	var low []audit.Item
	for n := range int64(size) {
		entry := refused(n)
		records, low = append(records, entry.Body), append(low, entry)
	}
	tree, leaves := treeOf(t, records)
	tile := func(level int, number int64) audit.Tile {
		hashes, err := tlog.ReadTileData(tlog.Tile{H: 8, L: level, N: number, W: 256}, tree)
		if err != nil {
			t.Fatal(err)
		}
		root := tree[tlog.StoredHashIndex(8*(level+1), number)]
		return audit.Tile{Level: level, Number: number, Hashes: hashes, Root: root[:]}
	}
	for n := int64(size/256) - 1; n >= 0; n-- {
		low = slices.Insert(low, int(n*256), audit.Item(tile(0, n)))
	}
	root := audit.RootOf(leaves)
	c := audit.Checkpoint{Origin: "log.test", Tree: tlog.Tree{N: size, Hash: root}}
	low = append(low, audit.SignedCheckpoint{Size: size, Root: root[:], Note: c.String() + "\n— log.test x\n"},
		audit.Row{Table: audit.CatalogueHead, Values: []string{"true", "0", audit.Null, audit.Null}})
	return append([]audit.Item{audit.Head{Size: size}, tile(1, 0)}, low...)
}

func each(items []audit.Item) audit.Items {
	return func(yield func(audit.Item, error) bool) {
		for _, item := range items {
			if !yield(item, nil) {
				return
			}
		}
	}
}

func TestTilesOfSeveralLevels(t *testing.T) {
	whole := large(t)
	type place struct{ level, number int64 }
	gone := func(audit.Tile) []audit.Item { return nil }
	for name, tc := range map[string]struct {
		changes map[place]func(audit.Tile) []audit.Item
		want    []string
	}{
		"nothing": {},
		"the last of each level": {map[place]func(audit.Tile) []audit.Item{{1, 0}: gone, {0, 256}: gone}, []string{
			"tile_missing 0", "tile_missing 65536",
		}},
		"a hash above": {map[place]func(audit.Tile) []audit.Item{{1, 0}: flipHash}, []string{
			"tile_differs 0", fmt.Sprintf("tile_differs %d", 1000/32*256),
		}},
		"one of each": {map[place]func(audit.Tile) []audit.Item{
			{1, 0}: flipRoot, {0, 3}: flipHash, {0, 5}: flipRoot, {0, 7}: gone,
			{0, 9}: func(tile audit.Tile) []audit.Item {
				tile.Hashes = tile.Hashes[:32]
				return []audit.Item{tile}
			},
			{0, 11}: func(tile audit.Tile) []audit.Item {
				tile.Level = 8
				return []audit.Item{tile}
			},
		}, []string{
			"tile_differs 0", "tile_differs 1280", "tile_differs 2304", "tile_differs 768", "tile_differs 0",
			"tile_missing 1792", "tile_missing 2304", "tile_missing 2816",
		}},
	} {
		var items []audit.Item
		for _, item := range whole {
			tile, ok := item.(audit.Tile)
			if change := tc.changes[place{int64(tile.Level), tile.Number}]; ok && change != nil {
				items = append(items, change(tile)...)
				continue
			}
			items = append(items, item)
		}
		report, err := audit.Verify(t.Context(), each(items), audit.Config{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range report.Findings {
			got = append(got, fmt.Sprintf("%s %d", f.Code, f.Index))
		}
		slices.Sort(got)
		if slices.Sort(tc.want); !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %+v, want %v", name, report.Findings, tc.want)
		}
	}
}

func flipHash(tile audit.Tile) []audit.Item {
	tile.Hashes = slices.Clone(tile.Hashes)
	tile.Hashes[1000] ^= 1
	return []audit.Item{tile}
}

func flipRoot(tile audit.Tile) []audit.Item {
	tile.Root = slices.Clone(tile.Root)
	tile.Root[0] ^= 1
	return []audit.Item{tile}
}

// The report does not list damage to very many entries one by one, and says how many findings it leaves out.
func TestFindingsAreBounded(t *testing.T) {
	items := []audit.Item{audit.Head{Size: 1000}}
	for n := range int64(1000) {
		entry := refused(n)
		entry.Kind = "request.denied"
		items = append(items, entry)
	}
	items = append(items, audit.Row{Table: audit.CatalogueHead, Values: []string{"true", "0", audit.Null, audit.Null}})
	report, err := audit.Verify(t.Context(), each(items), audit.Config{})
	if err != nil || len(report.Findings) != audit.MaxFindings || report.More != 900 {
		t.Errorf("got %d findings and %d more, and %v", len(report.Findings), report.More, err)
	}
}

// Entries whose body was never valid are reported, and do not stop the verification.
func TestInvalidBodiesAreReported(t *testing.T) {
	for text, want := range map[string]audit.Code{
		"": audit.Unreadable, "x": audit.Unreadable, "[]": audit.Unreadable, `{"version":"1"}`: audit.Unreadable, "\xff": audit.Unreadable,
		`{}`: audit.ColumnDiffers, `{"version":1} `: audit.NotCanonical, `{"version":1,"kind":"call.refused"}`: audit.NotCanonical,
		`{"id":"00000000-0000-7000-8000-000000000000","kind":"issuance.odd","status":"odd","time":"2026-01-01T00:00:00Z","version":1}`:     audit.ColumnDiffers,
		`{"id":"00000000-0000-7000-8000-000000000000","kind":"call.refused","time":"2026-01-01T00:00:00Z","version":2}`:                    audit.Unreadable,
		`{"id":"00000000-0000-7000-8000-000000000000","kind":"call.refused","subject":{},"time":"2026-01-01T00:00:00.000Z","version":1}`:   "",
		`{"id":"00000000-0000-7000-8000-000000000000","kind":"call.refused","subject":[{}],"time":"2026-01-01T00:00:00.000Z","version":1}`: audit.Unreadable,
	} {
		entry := refused(0)
		leaf := tlog.RecordHash([]byte(text))
		entry.Body, entry.LeafHash = []byte(text), leaf[:]
		report, err := audit.Verify(t.Context(), each([]audit.Item{
			audit.Head{Size: 1}, entry, audit.Row{Table: audit.CatalogueHead, Values: []string{"true", "0", audit.Null, audit.Null}},
		}), audit.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if got := report.Findings; want == "" && len(got) != 0 || want != "" && (len(got) == 0 || got[0].Code != want) {
			t.Errorf("%q: got %+v, want %s", text, got, want)
		}
	}
}

// A read error is returned as an error and not as a finding, wherever it occurs.
func TestReadErrorIsNotAFinding(t *testing.T) {
	broken := errors.New("broken")
	for _, after := range []int{0, 1, 700, 5000} {
		_, err := audit.Verify(t.Context(), func(yield func(audit.Item, error) bool) {
			for n := range int64(after) {
				if !yield(refused(n), nil) {
					return
				}
			}
			yield(nil, broken)
		}, audit.Config{})
		if !errors.Is(err, broken) {
			t.Errorf("after %d entries: got %v, want %v", after, err, broken)
		}
	}
}

func TestEveryCodeHasAMeaning(t *testing.T) {
	for _, code := range []audit.Code{
		audit.EntryMissing, audit.EntryInserted, audit.EntriesSwapped, audit.EntryChanged, audit.LeafHash, audit.ColumnDiffers,
		audit.NotCanonical, audit.Unreadable, audit.Impossible, audit.PrunedDiffers, audit.HeadDiffers, audit.Truncated, audit.RolledBack, audit.SplitView,
		audit.CheckpointUnsigned, audit.CheckpointDiffers, audit.CheckpointRoot, audit.TileDiffers, audit.TileMissing,
		audit.ProjectionDiffers, audit.ProjectionMissing, audit.ProjectionExtra,
	} {
		if audit.Meanings[code] == "" {
			t.Errorf("%s has none", code)
		}
	}
}

// small returns a ledger with one whole tile and an unsigned checkpoint after each 64 entries.
func small(t *testing.T) (entries []audit.Entry, rest func([]audit.Entry) []audit.Item) {
	t.Helper()
	var records [][]byte
	for n := range int64(256) {
		entries = append(entries, refused(n))
		records = append(records, entries[n].Body)
	}
	tree, leaves := treeOf(t, records)
	hashes, err := tlog.ReadTileData(tlog.Tile{H: 8, W: 256}, tree)
	if err != nil {
		t.Fatal(err)
	}
	top := audit.RootOf(leaves)
	return entries, func(entries []audit.Entry) []audit.Item {
		items := []audit.Item{audit.Head{Size: int64(len(entries))}, audit.Tile{Hashes: hashes, Root: top[:]}}
		for n, entry := range entries {
			entry.Index = int64(n)
			items = append(items, entry)
			if size := int64(n) + 1; size%64 == 0 {
				root := audit.RootOf(leaves[:size])
				c := audit.Checkpoint{Origin: "log.test", Tree: tlog.Tree{N: size, Hash: root}}
				items = append(items, audit.SignedCheckpoint{Size: size, Root: root[:], Note: c.String() + "\n— log.test x\n"})
			}
		}
		return append(items, audit.Row{Table: audit.CatalogueHead, Values: []string{"true", "0", audit.Null, audit.Null}})
	}
}

// Damage on either side of a checkpoint gets the same code as elsewhere.
func TestDamageAroundCheckpoints(t *testing.T) {
	whole, made := small(t)
	for k := 60; k < 70; k++ {
		swapped := slices.Clone(whole)
		swapped[k], swapped[k+1] = swapped[k+1], swapped[k]
		for want, entries := range map[audit.Code][]audit.Entry{
			audit.EntriesSwapped: swapped,
			audit.EntryMissing:   slices.Delete(slices.Clone(whole), k, k+1),
			audit.EntryInserted:  slices.Insert(slices.Clone(whole), k, refused(1000)),
			audit.EntryChanged:   slices.Replace(slices.Clone(whole), k, k+1, refused(1000)),
		} {
			report, err := audit.Verify(t.Context(), each(made(entries)), audit.Config{})
			if err != nil {
				t.Fatal(err)
			}
			if report.Findings[0].Code != want || report.Findings[0].Index != int64(k) || len(report.Findings) > 2 {
				t.Errorf("at %d: got %+v, want %s", k, report.Findings, want)
			}
		}
	}
}
