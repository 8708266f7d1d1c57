package audit

import "fmt"

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
		case of == bodiesAreTrue && !d.certain || d.body == d.kept:
			v.judgeBeside(d, of)
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

// judgeBeside reports the stored hash that does not match the body.
func (v *evidence) judgeBeside(d doubt, of verdict) {
	if d.column {
		v.entries.add(Finding{
			Code: LeafHash, Index: d.index, Where: "entries.leaf_hash",
			What: "the hash beside the entry was changed, but not the entry",
		})
	}
	if d.inTile && of == bodiesAreTrue {
		v.tiles.differs(0, d.index/tileWidth, fmt.Sprintf("its hash of entry %d was changed, but not the entry", d.index))
	}
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
		v.entries.add(Finding{
			Code: EntriesSwapped, Index: d.index, Through: next.index, What: "the two entries were swapped",
		})
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
