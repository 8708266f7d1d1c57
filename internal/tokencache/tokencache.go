// Package tokencache answers from memory whether a token is in force. It holds what Postgres answered about tokens, and what
// has ended since. The owner of a cache asks Postgres, reads the ledger entries that end tokens, and takes leases. A lease
// allows the cache to answer for a short time.
//
// The package must never answer without a lease. Once it was told of something that ends a token, it must never answer that the
// token is in force. It does no I/O.
package tokencache

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/google/uuid"
)

// LeaseTime is how long a replica may answer from its cache after it has taken a lease.
const LeaseTime = 400 * time.Millisecond

const (
	// maxCached bounds the number of cached tokens, and maxMarks the marks of each token. The cache takes about twenty
	// megabytes, forty at most. A token has a mark for each segment of its sandbox's path, and a path can have a thousand
	// segments.
	maxCached, maxMarks = 1 << 16, 100
	// endings is the number of marks for what has ended. It is a power of two, and each mark takes eight bytes.
	endings = 1 << 17
	// kindOutcome is the prefix of the kinds of entries that record the outcome of one issuance.
	kindOutcome = "issuance."
)

// Cache is the cache with which a replica answers token lookups itself. It holds the state of tokens when Postgres was
// asked, and what has ended since. The lease decides whether the cache is recent enough to use. It is safe for concurrent use.
type Cache struct {
	now       func() time.Time
	standings standings
	// A mark is the size of the ledger after the last entry that ended something. A hash assigns a mark to each thing that can
	// end, so several things share one mark. The replica therefore also asks Postgres again about some tokens that have not
	// ended. Outsiders cannot predict which, because the hash has a random seed.
	marks [endings]atomic.Int64
	seed  maphash.Seed
	// cleared is a size of the ledger: the cache uses no state from a time when the ledger was smaller. Clear sets it. So does an
	// entry whose effect is unknown, to the size after that entry.
	cleared atomic.Int64
	lease   atomic.Pointer[Lease]
	used    atomic.Bool // since the last call of Used
}

// Lease says from when on, and with which catalogue in force, a replica may answer from its cache. It lasts for LeaseTime.
type Lease struct {
	Taken     time.Time
	Catalogue string
}

// Link is an issuance that a token comes from, as Postgres returned it.
type Link struct {
	ID       uuid.UUID
	SPIFFEID string `db:"spiffe_id"`
	Task     string
	Left     time.Duration // until it or its task ends by itself
}

// Ending is an entry that ends something. SPIFFEID and Task are nil if the entry names none.
type Ending struct {
	Index    int64
	ID       uuid.UUID
	Kind     string
	SPIFFEID *string
	Task     *string
}

// state is the cached state of a token. An inactive token has no time left.
type state struct {
	claims [32]byte
	at     int64 // the size of the ledger when Postgres answered
	asked  time.Time
	left   time.Duration // from asked until the token ends by itself
	marks  []uint32      // of everything whose end also ends the token
}

// New returns an empty cache without a lease. now is a clock with a monotonic reading.
func New(now func() time.Time) *Cache { return &Cache{now: now, seed: maphash.MakeSeed()} }

// SetLease replaces the lease. Everything that ended before the lease was taken must have been invalidated.
func (c *Cache) SetLease(l Lease) { c.lease.Store(&l) }

// Used reports whether a state was looked up since the last call of Used.
func (c *Cache) Used() bool { return c.used.Swap(false) }

// Clear makes the cache use no state from a time when the ledger was smaller than size.
func (c *Cache) Clear(size int64) { c.cleared.Store(size) }

// State returns the token's state if the cache shows that the token is active. If ok is false, the caller must ask
// Postgres.
func (c *Cache) State(id string, claims [32]byte) (s broker.TokenState, ok bool) {
	if !c.used.Load() {
		c.used.Store(true)
	}
	lease := c.lease.Load() // load it first: the marks already include everything that ended before this lease was taken
	t, known := c.standings.get(id)
	if lease == nil || !known || t.claims != claims || c.endedSince(t) {
		return s, false
	}
	now := c.now() // read the clock last: a goroutine that was delayed before this may have lost its lease
	if elapsed(lease.Taken, now) >= LeaseTime || elapsed(t.asked, now) >= t.left {
		return s, false
	}
	return broker.TokenState{Active: true, Catalogue: lease.Catalogue}, true
}

func (c *Cache) endedSince(t state) bool {
	return c.cleared.Load() > t.at || slices.ContainsFunc(t.marks, func(mark uint32) bool { return c.marks[mark].Load() > t.at })
}

// elapsed returns the longer of the times by the monotonic and the wall clock. One of them may have stood still while the
// machine slept.
func elapsed(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}

// Keep caches an active token, unless the token has too many marks. at is the size of the ledger when Postgres answered, and
// asked is the time before that. The chain begins with the token, and continues with the tokens that it was exchanged from.
func (c *Cache) Keep(id string, claims [32]byte, at int64, asked time.Time, chain []Link) {
	t := state{claims: claims, at: at, asked: asked, left: chain[0].Left}
	for _, l := range chain {
		t.left = min(t.left, l.Left)
		t.marks = append(t.marks, c.mark("issuance", l.ID.String()), c.mark("task", l.SPIFFEID, l.Task))
		for at := l.SPIFFEID; len(at) > len("spiffe://"); at = at[:max(0, strings.LastIndexByte(at, '/'))] {
			if len(t.marks) >= maxMarks {
				return
			}
			t.marks = append(t.marks, c.mark("quarantine", at))
		}
	}
	c.standings.put(id, t)
}

// Ended caches that Postgres reported a token as not active when the size of the ledger was at. This prevents two errors. If
// another caller asked Postgres earlier but gets its answer later, it cannot cache the token as active again. And until the
// replica has read the entry that ended the token, the cache does not use an older state of the token.
func (c *Cache) Ended(id string, at int64) { c.standings.put(id, state{at: at}) }

// mark returns the place of the mark for the end of something.
func (c *Cache) mark(kind string, names ...string) uint32 {
	return uint32(maphash.String(c.seed, kind+"\x00"+strings.Join(names, "\x00"))) % endings
}

// Invalidate marks what an entry has ended.
func (c *Cache) Invalidate(e Ending) {
	var mark uint32
	switch {
	case e.Kind == broker.CommandTaskEnd && e.SPIFFEID != nil && e.Task != nil:
		mark = c.mark("task", *e.SPIFFEID, *e.Task)
	case e.Kind == broker.CommandQuarantineAdd && e.SPIFFEID != nil:
		mark = c.mark("quarantine", *e.SPIFFEID)
	case strings.HasPrefix(e.Kind, kindOutcome):
		mark = c.mark("issuance", e.ID.String())
	default: // perhaps from a newer version
		c.cleared.Store(e.Index + 1)
		return
	}
	c.marks[mark].Store(e.Index + 1)
}

// standings are the cached standings of tokens by id. Tokens that were not looked up for a long time are dropped.
type standings struct {
	mu         sync.Mutex
	young, old map[string]state
}

func (k *standings) get(id string) (state, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	t, ok := k.young[id]
	if ok {
		return t, true
	}
	if t, ok = k.old[id]; ok {
		k.add(id, t)
	}
	return t, ok
}

// put caches a token's state, unless the cache already holds a later answer of Postgres about the token.
func (k *standings) put(id string, t state) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if max(k.young[id].at, k.old[id].at) <= t.at {
		k.add(id, t)
	}
}

func (k *standings) add(id string, t state) {
	if k.young == nil || len(k.young) >= maxCached/2 {
		k.young, k.old = map[string]state{}, k.young
	}
	k.young[id] = t
}
