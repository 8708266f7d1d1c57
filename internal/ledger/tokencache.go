package ledger

import (
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/broker"
)

const (
	// mostCached bounds the number of cached tokens, and mostMarks the marks of each token. The cache takes about twenty
	// megabytes, forty at most. A token has a mark for each segment of its sandbox's path, and a path can have a thousand
	// segments.
	mostCached, mostMarks = 1 << 16, 100
	// endings is the number of marks for what has ended. It is a power of two, and each mark takes eight bytes.
	endings = 1 << 17
)

// memory is the cache with which a replica answers token lookups itself. It holds the standing of tokens when Postgres was
// asked, and what has ended since. The lease decides whether the cache is recent enough to use.
type memory struct {
	now       func() time.Time
	standings standings
	// A mark is the position after the last entry that ended something. Several names share one mark, so the replica looks
	// up more tokens again than have ended. Outsiders cannot predict which.
	marks [endings]atomic.Int64
	seed  maphash.Seed
	// cleared is the position after the last entry whose effect is unknown. Standings from before it are not used.
	cleared atomic.Int64
	lease   atomic.Pointer[lease]
	used    atomic.Bool // since the last beat
}

// lease says from when on, and with which catalogue in force, a replica may answer from its cache. It lasts for leaseTime.
type lease struct {
	taken     time.Time
	catalogue string
}

// standing is the cached state of a token. An inactive token has no time left.
type standing struct {
	claims [32]byte
	at     int64 // the size of the ledger when Postgres answered
	asked  time.Time
	left   time.Duration // from asked until the token ends by itself
	marks  []uint32      // of everything whose end also ends the token
}

func newMemory(now func() time.Time) *memory { return &memory{now: now, seed: maphash.MakeSeed()} }

// standing returns the token's standing if the cache shows that the token is active. If ok is false, the caller must ask
// Postgres.
func (m *memory) standing(id string, claims [32]byte) (s broker.TokenStanding, ok bool) {
	if !m.used.Load() {
		m.used.Store(true)
	}
	lease := m.lease.Load() // load it before the marks, which then include everything that the lease covers
	t, known := m.standings.get(id)
	if lease == nil || !known || t.claims != claims || m.endedSince(t) {
		return s, false
	}
	now := m.now() // read the clock last: a goroutine that was delayed before this may have lost its lease
	if elapsed(lease.taken, now) >= leaseTime || elapsed(t.asked, now) >= t.left {
		return s, false
	}
	return broker.TokenStanding{Active: true, Catalogue: lease.catalogue}, true
}

func (m *memory) endedSince(t standing) bool {
	if m.cleared.Load() > t.at {
		return true
	}
	for _, mark := range t.marks {
		if m.marks[mark].Load() > t.at {
			return true
		}
	}
	return false
}

// elapsed returns the longer of the times by the monotonic and the wall clock. One of them may have stood still while the
// machine slept.
func elapsed(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}

// keep caches an active token, unless its end could have too many marks.
func (m *memory) keep(id string, claims [32]byte, asked time.Time, chain []link) {
	t := standing{claims: claims, at: chain[0].Size, asked: asked, left: chain[0].Left}
	for _, l := range chain {
		t.left = min(t.left, l.Left)
		t.marks = append(t.marks, m.mark("issuance", l.ID.String()), m.mark("task", l.SPIFFEID, l.Task))
		for at := l.SPIFFEID; len(at) > len("spiffe://"); at = at[:max(0, strings.LastIndexByte(at, '/'))] {
			if len(t.marks) == mostMarks {
				return
			}
			t.marks = append(t.marks, m.mark("quarantine", at))
		}
	}
	m.standings.put(id, t)
}

// ended caches that a token is not active. A caller that asked Postgres earlier, and gets its answer later, must not cache
// the token as active. A standing that was cached before must not be used while the entry that ended the token is still
// unread.
func (m *memory) ended(id string, at int64) { m.standings.put(id, standing{at: at}) }

// mark returns the place of the mark for the end of something.
func (m *memory) mark(kind string, names ...string) uint32 {
	return uint32(maphash.String(m.seed, kind+"\x00"+strings.Join(names, "\x00"))) % endings
}

// invalidate marks what an entry has ended.
func (m *memory) invalidate(e ending) {
	var mark uint32
	switch {
	case e.Kind == broker.CommandTaskEnd && e.SPIFFEID != nil && e.Task != nil:
		mark = m.mark("task", *e.SPIFFEID, *e.Task)
	case e.Kind == broker.CommandQuarantineAdd && e.SPIFFEID != nil:
		mark = m.mark("quarantine", *e.SPIFFEID)
	case strings.HasPrefix(e.Kind, kindOutcome):
		mark = m.mark("issuance", e.ID.String())
	default: // perhaps from a newer version
		m.cleared.Store(*e.Index + 1)
		return
	}
	m.marks[mark].Store(*e.Index + 1)
}

// standings are the cached standings of tokens by id. Tokens that were not looked up for a long time are dropped.
type standings struct {
	mu         sync.Mutex
	young, old map[string]standing
}

func (k *standings) get(id string) (standing, bool) {
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

// put caches a token's standing, unless it holds a later answer of Postgres.
func (k *standings) put(id string, t standing) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if max(k.young[id].at, k.old[id].at) <= t.at {
		k.add(id, t)
	}
}

func (k *standings) add(id string, t standing) {
	if k.young == nil || len(k.young) >= mostCached/2 {
		k.young, k.old = map[string]standing{}, k.young
	}
	k.young[id] = t
}
