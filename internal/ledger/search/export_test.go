package search

// SearchInBlocks makes searches read blocks of these sizes, and sort at most this many far records at once, until the test
// ends.
func SearchInBlocks(t interface{ Cleanup(func()) }, most int, shifts ...uint) {
	before, mostBefore := blockShifts, mostFar
	blockShifts, mostFar = shifts, most
	t.Cleanup(func() { blockShifts, mostFar = before, mostBefore })
}

// CountInChunksOf sets how many entry indexes one count of uses covers, until the test ends.
func CountInChunksOf(t interface{ Cleanup(func()) }, size int64) {
	before := usageChunk
	usageChunk = size
	t.Cleanup(func() { usageChunk = before })
}

// TallyInChunks sets how many entries a tally counts at once, and how far behind it must be to start again, until the test
// ends.
func TallyInChunks(t interface{ Cleanup(func()) }, chunk, behind int64) {
	beforeChunk, beforeBehind := tallyChunk, mostBehind
	tallyChunk, mostBehind = chunk, behind
	t.Cleanup(func() { tallyChunk, mostBehind = beforeChunk, beforeBehind })
}

// Tallies returns how many reaches are counted.
func (r *Searcher) Tallies() int {
	r.tallies.mu.Lock()
	defer r.tallies.mu.Unlock()
	return len(r.tallies.of)
}
