package audit

import "fmt"

// Code names a kind of damage. Codes are stable, so programs may depend on them.
type Code string

// These are the kinds of damage. docs/audit.md explains what each means and what to do.
const (
	EntryMissing   Code = "entry_missing"
	EntryInserted  Code = "entry_inserted"
	EntriesSwapped Code = "entries_swapped"
	EntryChanged   Code = "entry_changed"
	LeafHash       Code = "leaf_hash"
	ColumnDiffers  Code = "column_differs"
	NotCanonical   Code = "not_canonical"
	Unreadable     Code = "unreadable"
	Impossible     Code = "impossible"
	PrunedDiffers  Code = "pruned_differs"

	HeadDiffers Code = "head_differs"
	Truncated   Code = "truncated"
	RolledBack  Code = "rolled_back"
	SplitView   Code = "split_view"

	CheckpointUnsigned Code = "checkpoint_unsigned"
	CheckpointDiffers  Code = "checkpoint_differs"
	CheckpointRoot     Code = "checkpoint_root"
	TileDiffers        Code = "tile_differs"
	TileMissing        Code = "tile_missing"

	ProjectionDiffers Code = "projection_differs"
	ProjectionMissing Code = "projection_missing"
	ProjectionExtra   Code = "projection_extra"
)

// Meanings explains each kind of damage.
var Meanings = map[Code]string{
	EntryMissing:   "an entry was removed",
	EntryInserted:  "an entry was inserted",
	EntriesSwapped: "two entries were swapped",
	EntryChanged:   "an entry was changed after it was made",
	LeafHash:       "the hash beside an entry does not match the entry",
	ColumnDiffers:  "a column beside an entry does not match the entry",
	NotCanonical:   "an entry is not in canonical form",
	Unreadable:     "an entry cannot be read, or its version is newer than this program supports",
	Impossible:     "an entry cannot follow the entries before it: Brevet did not make it, or did not make one of them",

	PrunedDiffers: "after pruning, the remaining entries are not those that the log names",

	HeadDiffers: "the number of entries in the head of the ledger is wrong",
	Truncated:   "the last entries were removed",
	RolledBack:  "the ledger is older than the checkpoint that you kept: a backup was restored, or the last entries and all traces of them were removed",
	SplitView:   "the log's key has signed two histories: its holder showed you another one before",

	CheckpointUnsigned: "a checkpoint is not signed by the log's key: it was changed, or another key signed it",
	CheckpointDiffers:  "the columns beside a checkpoint do not match the signed text",
	CheckpointRoot:     "the entries do not match a signed checkpoint: some of the named entries were changed, and their hashes too",
	TileDiffers:        "stored hashes for proofs were changed",
	TileMissing:        "stored hashes for proofs are missing",

	ProjectionDiffers: "a table does not match the entries: trust the entries",
	ProjectionMissing: "a table lacks a row that the entries require: trust the entries",
	ProjectionExtra:   "a table has a row that no entry explains: trust the entries",
}

// Finding is one defect.
type Finding struct {
	Code Code `json:"code"`
	// Index is the entry that the finding is about. Through is the last entry if the finding is about several, or if the
	// evidence does not show which of them is affected.
	Index   int64 `json:"index"`
	Through int64 `json:"through"`
	// Where is the table and the row or column, or empty for the entry as a whole. What describes the defect. Both may quote
	// data from the ledger.
	Where string `json:"where,omitempty"`
	What  string `json:"what"`
}

// rank sorts findings about entries first, then those about the tree, then those about tables that follow from the entries.
func (f Finding) rank() int {
	switch f.Code {
	case ProjectionDiffers, ProjectionMissing, ProjectionExtra:
		return 2
	case HeadDiffers, CheckpointUnsigned, CheckpointDiffers, TileDiffers, TileMissing:
		return 1
	default:
		return 0
	}
}

// Report is the result of Verify.
type Report struct {
	// Entries is the number of entries, including pruned ones. Sealed is the number of entries that a checkpoint covers and
	// the log's key has signed. Entries after those are not signed yet.
	Entries int64 `json:"entries"`
	Sealed  int64 `json:"sealed"`
	// Checkpoints is the number of checkpoints whose signature and root hold, including kept ones.
	Checkpoints int64 `json:"checkpoints"`
	// Pruned lists the entries that the database's owner has dropped and that a ledger.pruned entry describes.
	Pruned []PrunedRange `json:"pruned"`
	// Signatures reports whether signatures were checked. Without a key they are not.
	Signatures bool `json:"signatures"`
	// Findings are sorted: findings about entries by index, then about the tree, then about other tables. There are at most
	// MaxFindings; More is the number of further findings.
	Findings []Finding `json:"findings"`
	More     int       `json:"more"`
}

// MaxFindings is the largest number of findings in a report.
const MaxFindings = 100

// Whole reports whether Verify found nothing wrong.
func (r Report) Whole() bool { return len(r.Findings) == 0 }

// findings holds the first findings of one kind of check. more counts the others.
type findings struct {
	all  []Finding
	more int
}

func (f *findings) add(found ...Finding) {
	for _, one := range found {
		one.Through = max(one.Through, one.Index)
		if len(f.all) >= MaxFindings {
			f.more++
			continue
		}
		f.all = append(f.all, one)
	}
}

func (f *findings) at(code Code, index int64, format string, args ...any) {
	f.add(Finding{Code: code, Index: index, What: fmt.Sprintf(format, args...)})
}
