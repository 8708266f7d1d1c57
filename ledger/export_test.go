package ledger

import "context"

// Queued counts the records that wait for a commit.
func (l *Ledger) Queued() int { return len(l.queue) }

// InChunksOf sets how many entry indexes a statement of Read covers.
func (h *History) InChunksOf(size int64) { h.size = size }

// SealOnce looks once whether there is something to sign, as Seal does all the time, and tells what it made of that.
func (l *Ledger) SealOnce(ctx context.Context, notary Notary) (more bool, err error) {
	more, err = l.sealOnce(ctx, notary)
	l.judge(ctx, err)
	return more, err
}

// SearchInBlocks has searches go through blocks of these sizes, and put so many that are far into order at once, until the
// test ends.
func SearchInBlocks(t interface{ Cleanup(func()) }, most int, shifts ...uint) {
	before, mostBefore := blockShifts, mostFar
	blockShifts, mostFar = shifts, most
	t.Cleanup(func() { blockShifts, mostFar = before, mostBefore })
}
