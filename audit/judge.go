package audit

import "fmt"

// verdict is what a checkpoint says of hashes that do not agree.
type verdict int

const (
	undecided verdict = iota
	bodiesAreTrue
	keptAreTrue
)

// judge says what is wrong with entries whose hashes do not agree.
func (v *evidence) judge(doubts []doubt, of verdict) {
	for len(doubts) > 0 {
		d, alike := doubts[0], 1
		switch {
		case of == bodiesAreTrue || d.body == d.kept:
			v.judgeBeside(d, of)
		case of == undecided && !d.inTile:
			v.entries.at(LeafHash, d.index, "its body and the hash beside it do not belong together, and no later signature tells which was changed")
		default:
			alike = v.judgeBody(doubts)
		}
		doubts = doubts[alike:]
	}
}

// judgeBeside names the hash that is not that of the body.
func (v *evidence) judgeBeside(d doubt, of verdict) {
	if d.column {
		v.entries.add(Finding{
			Code: LeafHash, Index: d.index, Where: "entries.leaf_hash",
			What: "the hash beside the entry was changed, the entry was not",
		})
	}
	if d.inTile && of == bodiesAreTrue {
		v.tiles.differs(0, d.index/tileWidth, fmt.Sprintf("its hash of entry %d was changed, the entry was not", d.index))
	}
}

// judgeBody says what became of an entry that has another body than once, and how many of the entries that follow became
// the same.
func (v *evidence) judgeBody(doubts []doubt) int {
	d := doubts[0]
	follows := func(n int) bool { return n < len(doubts) && doubts[n].index == d.index+int64(n) }
	switch {
	case follows(1) && d.body == doubts[1].kept && doubts[1].body == d.kept:
		v.entries.add(Finding{
			Code: EntriesSwapped, Index: d.index, Through: d.index + 1, What: "the two entries have changed places",
		})
		return 2
	case follows(1) && d.body == doubts[1].kept:
		n := 1
		for follows(n+1) && doubts[n].body == doubts[n+1].kept {
			n++
		}
		v.entries.at(EntryMissing, d.index, "it was taken out, and those after it were moved up")
		return n + 1
	case follows(1) && doubts[1].body == d.kept:
		n := 1
		for follows(n+1) && doubts[n+1].body == doubts[n].kept {
			n++
		}
		v.entries.at(EntryInserted, d.index, "it was put in, and those after it were moved down")
		return n + 1
	}
	v.entries.at(EntryChanged, d.index, "its body is not the one whose hash was kept")
	return 1
}
