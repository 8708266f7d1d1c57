package ledger

import (
	"context"
	"fmt"
	"time"
)

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

// CountInChunksOf has uses counted so many entry indexes at a time, until the test ends.
func CountInChunksOf(t interface{ Cleanup(func()) }, size int64) {
	before := usageChunk
	usageChunk = size
	t.Cleanup(func() { usageChunk = before })
}

// Elapsed is what has passed by either clock.
func Elapsed(from, to time.Time) time.Duration { return elapsed(from, to) }

// MostTold bounds how many tokens are remembered.
const MostTold = mostTold

// ToldLate tells whether a token is remembered as active by who asked before its end, but is told so after somebody else was
// told of that.
func ToldLate() bool {
	m := newMemory(time.Now)
	m.lease.Store(&lease{taken: time.Now()})
	m.ended("token", 8)
	m.keep("token", [32]byte{}, time.Now(), []link{{Size: 7, Left: time.Hour, Active: true}})
	_, ok := m.standing("token", [32]byte{})
	return ok
}

// Told counts those of so many tokens that are remembered after all of them were.
func Told(tokens int) (n int) {
	var k standings
	for i := range tokens {
		k.put(fmt.Sprint(i), standing{})
	}
	for i := range tokens {
		if _, ok := k.old[fmt.Sprint(i)]; ok {
			n++
		}
	}
	return n + len(k.young)
}

// TallyInChunks has tallies count so many entries at a time, and begin again when they are so far behind, until the test
// ends.
func TallyInChunks(t interface{ Cleanup(func()) }, chunk, behind int64) {
	beforeChunk, beforeBehind := tallyChunk, mostBehind
	tallyChunk, mostBehind = chunk, behind
	t.Cleanup(func() { tallyChunk, mostBehind = beforeChunk, beforeBehind })
}

// Tallies is how many reaches are counted.
func (l *Ledger) Tallies() int {
	l.tallies.mu.Lock()
	defer l.tallies.mu.Unlock()
	return len(l.tallies.of)
}
