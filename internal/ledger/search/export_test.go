package search

// SearchInBlocks makes searches read blocks of these sizes, and sort at most this many far records at once, until the test
// ends.
func SearchInBlocks(t interface{ Cleanup(func()) }, most int, shifts ...uint) {
	before, maxBefore := blockShifts, maxFar
	blockShifts, maxFar = shifts, most
	t.Cleanup(func() { blockShifts, maxFar = before, maxBefore })
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
	beforeChunk, beforeBehind := tallyChunk, maxBehind
	tallyChunk, maxBehind = chunk, behind
	t.Cleanup(func() { tallyChunk, maxBehind = beforeChunk, beforeBehind })
}

// Tallies returns how many reaches are counted.
func (r *Searcher) Tallies() int {
	r.tallies.mu.Lock()
	defer r.tallies.mu.Unlock()
	return len(r.tallies.of)
}
