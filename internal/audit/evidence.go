package audit

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// maxDoubts bounds the number of doubts that are kept between two checkpoints.
const maxDoubts = 4096

// evidence checks the entries against their hashes: the leaf hashes beside the entries, the hashes in tiles, and the
// signed roots.
//
// It grows two trees: one over the hashes of the bodies, and one over the stored hashes. A stored hash comes from a tile if
// there is one, or else from the entry's row. Both are one tree until a hash differs. The next checkpoint then shows which
// one is true.
type evidence struct {
	cfg    Config
	bodies *frontier
	kept   *frontier // nil while it equals bodies
	next   int64     // the index of the entry that should come next
	good   int64     // the number of entries that a signature covers
	last   int64     // the size of the last signed checkpoint
	holds  int64     // the number of checkpoints whose signature and root hold
	// lost is true once no more roots can be computed.
	lost    bool
	doubts  []doubt
	moved   movement
	trusted []Checkpoint
	agreed  int64        // the size of the last trusted checkpoint that holds
	denied  []Checkpoint // the trusted checkpoints whose root the entries do not have
	tiles   *tiles
	prunes  *prunes
	entries findings
	others  findings
}

// doubt is an entry whose hashes disagree.
type doubt struct {
	index          int64
	body, kept     tlog.Hash
	column, inTile bool // whether the hash beside the entry, or the one in the tile, differs from the body's
	certain        bool // a checkpoint has shown that the stored hash is true
}

func newEvidence(cfg Config) *evidence {
	trusted := slices.Clone(cfg.Trusted)
	slices.SortStableFunc(trusted, func(a, b Checkpoint) int { return cmp.Compare(a.N, b.N) })
	return &evidence{
		cfg: cfg, bodies: &frontier{}, trusted: trusted, prunes: &prunes{sum: sha256.New()},
		tiles: &tiles{upper: map[place]Tile{}, near: map[int64]Tile{}, blamed: map[place]bool{}},
	}
}

// maxIndex is more than the index of any entry. Beyond it, the next index could overflow.
const maxIndex = 1 << 62

// entry takes the next entry. It returns false if the entry's index is lower than the next one, or impossible.
func (v *evidence) entry(e Entry, body tlog.Hash) bool {
	v.absent(e.Index)
	if e.Index < v.next || e.Index >= maxIndex {
		v.entries.at(EntryInserted, e.Index, "an entry has index %d, and the next index is %d", e.Index, v.next)
		return false
	}
	if e.Index > v.next {
		v.entries.add(Finding{Code: EntryMissing, Index: v.next, Through: e.Index - 1, What: "the next entry is " + fmt.Sprint(e.Index)})
		for v.next < e.Index && !v.lost {
			hash, ok := v.tiles.leaf(v.next)
			if !ok {
				v.lose()
				break
			}
			v.push(hash, hash)
		}
		v.next = e.Index
	}
	kept, inTile := v.tiles.leaf(e.Index)
	column := !bytes.Equal(e.LeafHash, body[:])
	if !inTile {
		copy(kept[:], e.LeafHash)
	}
	if column || kept != body {
		v.doubt(doubt{index: e.Index, body: body, kept: kept, column: column, inTile: inTile && kept != body})
	}
	v.push(body, kept)
	return true
}

// absent passes over pruned entries, with the hashes that tiles keep of them. It ends before entries that were not pruned.
func (v *evidence) absent(to int64) {
	for end := min(to, v.prunes.beyond); v.next < end; {
		hash, ok := v.tiles.leaf(v.next)
		if !ok && !v.lost {
			v.lose()
		}
		step := int64(1)
		if i := slices.IndexFunc(v.prunes.claims, func(c claim) bool { return v.next < c.Beyond }); i >= 0 {
			if !ok { // there is nothing to compute, and a claim may name more entries than anybody can count
				step = min(end, v.prunes.claims[i].Beyond) - v.next
			}
			v.prunes.claims[i].Dropped += step
		}
		v.next += step - 1
		v.push(hash, hash)
	}
}

// tile takes a tile that the ledger stores.
func (v *evidence) tile(t Tile) {
	if t.Level == 0 {
		v.absent(t.first())
	}
	v.tiles.add(t)
}

func (v *evidence) push(body, kept tlog.Hash) {
	v.next++
	if v.lost {
		return
	}
	if v.kept == nil && body != kept {
		v.kept = &frontier{v.bodies.size, slices.Clone(v.bodies.roots)}
	}
	v.bodies.push(body)
	if v.kept != nil {
		v.kept.push(kept)
	}
	for len(v.trusted) > 0 && v.trusted[0].N <= v.next {
		switch c := v.trusted[0]; {
		case c.N < v.next:
		case v.resolve(c):
			v.agreed = c.N
		default:
			v.denied = append(v.denied, c)
		}
		v.trusted = v.trusted[1:]
	}
}

func (v *evidence) doubt(d doubt) {
	if v.lost {
		v.judge([]doubt{d}, undecided, -1)
		return
	}
	if len(v.doubts) == maxDoubts {
		v.entries.more++
		return
	}
	v.doubts = append(v.doubts, d)
}

// checkpoint takes a checkpoint that the ledger stores.
func (v *evidence) checkpoint(c SignedCheckpoint) {
	v.absent(c.Size)
	where := fmt.Sprintf("checkpoints of size %d", c.Size)
	signed, err := v.cfg.Open(c.Note)
	if err != nil {
		v.entries.add(Finding{
			Code: CheckpointUnsigned, Index: min(v.good, c.Size-1), Through: c.Size - 1, Where: where,
			What: fmt.Sprintf("%v: no signature covers these entries", err),
		})
		return
	}
	if signed.N != c.Size || !bytes.Equal(signed.Hash[:], c.Root) {
		v.others.add(Finding{
			Code: CheckpointDiffers, Index: c.Size - 1, Where: where,
			What: fmt.Sprintf("the signed size is %d and the signed root is %x", signed.N, signed.Hash),
		})
	}
	v.last = max(v.last, signed.N)
	if signed.N != v.next || v.lost || v.resolve(signed) {
		return
	}
	v.entries.add(Finding{
		Code: CheckpointRoot, Index: v.good, Through: signed.N - 1, Where: where,
		What: fmt.Sprintf("the first %d entries do not match the signature; those before entry %d do", signed.N, v.good),
	})
	v.lose()
}

// resolve uses a checkpoint to decide which tree is true, and judges the doubts. It returns false if neither is.
func (v *evidence) resolve(c Checkpoint) bool {
	var verdict verdict
	switch {
	case v.bodies.root() == c.Hash:
		verdict = bodiesAreTrue
	case v.kept != nil && v.kept.root() == c.Hash:
		verdict = keptAreTrue
		v.bodies = v.kept
	default:
		return false
	}
	v.doubts = v.judge(v.doubts, verdict, c.N-1)
	v.kept, v.good = nil, c.N
	v.holds++
	return true
}

// lose stops the computation of roots.
func (v *evidence) lose() {
	v.judge(v.doubts, undecided, -1)
	v.lost, v.doubts = true, nil
}

// end reports what should have come and did not.
func (v *evidence) end(size int64) {
	v.judge(v.doubts, undecided, -1)
	v.doubts = nil
	switch {
	case max(size, v.last) > v.next:
		v.entries.add(Finding{
			Code: Truncated, Index: v.next, Through: max(size, v.last) - 1,
			What: fmt.Sprintf("the ledger ends here, but its head counts %d entries and it has a signed checkpoint of %d", size, v.last),
		})
	case size < v.next:
		v.others.add(Finding{
			Code: HeadDiffers, Index: v.next - 1, Where: "ledger_head.size",
			What: fmt.Sprintf("the head counts %d entries, and there are %d", size, v.next),
		})
	}
	for _, c := range v.trusted {
		if c.N > v.next {
			v.entries.add(Finding{
				Code: RolledBack, Index: v.next, Through: c.N - 1, Where: fmt.Sprintf("kept checkpoint of size %d", c.N),
				What: fmt.Sprintf("it was signed over %d entries, and there are %d now", c.N, v.next),
			})
		}
	}
	for _, c := range v.denied { // the auditor kept them, and they do not match these entries
		f := Finding{
			Code: CheckpointRoot, Index: v.good, Through: c.N - 1, Where: fmt.Sprintf("kept checkpoint of size %d", c.N),
			What: fmt.Sprintf("the first %d entries do not match it", c.N),
		}
		if v.good >= c.N {
			f.Code, f.Index = SplitView, v.agreed
			f.What += ", but the log's key has signed them too: there are two histories"
		}
		v.entries.add(f)
	}
	v.tiles.end(v.last, v.next)
	v.others.add(v.tiles.found.all...)
	v.prunes.end()
	v.entries.add(v.prunes.found.all...)
}

// Open reads the signed note of a checkpoint. The note must be signed by one of the keys that have the note's name for the
// log. Without keys, Open does not check the signature.
func (cfg Config) Open(signed string) (Checkpoint, error) {
	if cfg.Keys != nil {
		name, _, _ := strings.Cut(signed, "\n")
		return OpenCheckpoint([]byte(signed), name, ofLog{cfg.Keys, name})
	}
	text, _, _ := strings.Cut(signed, "\n\n")
	return ParseCheckpoint(text + "\n")
}

// ofLog holds the keys that a log had under one name.
type ofLog struct {
	note.Verifiers
	name string
}

func (n ofLog) Verifier(name string, hash uint32) (note.Verifier, error) {
	if name != n.name {
		return nil, &note.UnknownVerifierError{Name: name, KeyHash: hash}
	}
	return n.Verifiers.Verifier(name, hash)
}

// verdict is what a checkpoint shows about hashes that disagree.
type verdict int

const (
	undecided verdict = iota
	bodiesAreTrue
	keptAreTrue
)

// judge reports what is wrong with entries whose hashes disagree. It may return the doubt about the last entry, because
// that entry may belong together with the next one.
func (v *evidence) judge(doubts []doubt, of verdict, last int64) (left []doubt) {
	for len(doubts) > 0 {
		d, alike := doubts[0], 1
		switch {
		case of == bodiesAreTrue && !d.certain || d.body == d.kept: // the stored hash does not match the body
			if d.column {
				v.entries.add(Finding{
					Code: LeafHash, Index: d.index, Where: "entries.leaf_hash",
					What: "the hash beside the entry was changed, but not the entry",
				})
			}
			if d.inTile && of == bodiesAreTrue {
				v.tiles.differs(0, d.index/tileWidth, fmt.Sprintf("its hash of entry %d was changed, but not the entry", d.index))
			}
		case of == undecided && !d.inTile && !d.certain:
			v.entries.at(LeafHash, d.index, "its body and the hash beside it do not match, and no later signature shows which of them was changed")
		case d.index == last:
			d.certain = true
			return []doubt{d}
		default:
			alike = v.judgeBody(doubts)
		}
		doubts = doubts[alike:]
	}
	return nil
}

// judgeBody reports what happened to an entry whose body changed, and returns the number of doubts that this explains. If
// entries were moved up or down, it reports the cause once.
func (v *evidence) judgeBody(doubts []doubt) (alike int) {
	d, before := doubts[0], v.moved
	v.moved = movement{}
	var next doubt
	if len(doubts) > 1 && doubts[1].index == d.index+1 {
		next = doubts[1]
	}
	switch {
	case before.last.index == d.index-1 && before.up && before.last.body == d.kept,
		before.last.index == d.index-1 && before.down && before.last.kept == d.body:
		v.moved = movement{d, before.up, before.down}
	case d.body == next.kept && next.body == d.kept:
		v.entries.add(Finding{Code: EntriesSwapped, Index: d.index, Through: next.index, What: "the two entries were swapped"})
		return 2
	case d.body == next.kept:
		v.entries.at(EntryMissing, d.index, "it was removed, and the entries after it moved up")
		v.moved = movement{last: d, up: true}
	case next.body == d.kept:
		v.entries.at(EntryInserted, d.index, "it was inserted, and the entries after it moved down")
		v.moved = movement{last: d, down: true}
	default:
		v.entries.at(EntryChanged, d.index, "its body does not match the stored hash")
	}
	return 1
}

// movement describes entries that now have another index than before.
type movement struct {
	last     doubt
	up, down bool
}
