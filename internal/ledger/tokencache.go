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
	// mostTold bounds the tokens that are remembered, and mostMarks what each takes: some twenty megabytes, forty at most.
	// A sandbox has as many marks as its path has segments, and of those a thousand if it wants.
	mostTold, mostMarks = 1 << 16, 100
	// endings is how many marks there are for what has ended: a power of two, of eight bytes each.
	endings = 1 << 17
)

// memory is what one reading of the entries lets a replica answer by itself: where tokens stood when Postgres was asked, and
// what has ended since. Whether the reading is recent enough to go by is the lease's to say.
type memory struct {
	now       func() time.Time
	standings standings
	// A mark is the position after the last entry that ended something. Several things share one, so more is asked again
	// than has ended. Nobody outside can tell which.
	marks [endings]atomic.Int64
	seed  maphash.Seed
	// cleared is the position after the last entry of which it is not known what it ended.
	cleared atomic.Int64
	lease   atomic.Pointer[lease]
	used    atomic.Bool // since it was last looked at
}

// lease is how long a replica may answer by what it has read, and what it has read of the catalogue.
type lease struct {
	taken     time.Time
	catalogue string
}

// standing is where a token stood. One that was not active had no time left.
type standing struct {
	claims [32]byte
	at     int64 // the position that Postgres answered at
	asked  time.Time
	left   time.Duration // until it ends by itself, from when it was asked
	marks  []uint32      // of all whose end is the token's too
}

func newMemory(now func() time.Time) *memory { return &memory{now: now, seed: maphash.MakeSeed()} }

// standing tells that a token is active, as far as it was told. Not ok means that Postgres has to be asked.
func (m *memory) standing(id string, claims [32]byte) (s broker.TokenStanding, ok bool) {
	if !m.used.Load() {
		m.used.Store(true)
	}
	lease := m.lease.Load() // before the marks, which say at least what it was taken for
	t, known := m.standings.get(id)
	if lease == nil || !known || t.claims != claims || m.endedSince(t) {
		return s, false
	}
	now := m.now() // at last: who was held up on the way here has no lease any more
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

// elapsed goes by both clocks, the monotonic and the other: one of them may have stood still while the machine slept.
func elapsed(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}

// keep remembers a token that is active, unless there is too much that its end could be called by.
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

// ended remembers that a token is not active: whoever asked earlier, and is told later, is not to have it remembered as active,
// and what was remembered before is not to be gone by until the entry that ended it has been read.
func (m *memory) ended(id string, at int64) { m.standings.put(id, standing{at: at}) }

// mark is where the end of something is marked.
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
	default: // of a newer version, perhaps
		m.cleared.Store(*e.Index + 1)
		return
	}
	m.marks[mark].Store(*e.Index + 1)
}

// standings is where tokens stood, by their ids. Those that nobody has asked about for long are forgotten.
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

// put remembers where a token stands, unless Postgres has told more lately.
func (k *standings) put(id string, t standing) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if max(k.young[id].at, k.old[id].at) <= t.at {
		k.add(id, t)
	}
}

func (k *standings) add(id string, t standing) {
	if k.young == nil || len(k.young) >= mostTold/2 {
		k.young, k.old = map[string]standing{}, k.young
	}
	k.young[id] = t
}
