// Package ratelimit bounds what callers may take: how often each may act, how many things run at once, and how many events are
// recorded.
//
// It must never remember more than a fixed number of keys.
package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// remembered is how many keys a Limiter remembers at least, and half of the number that it remembers at most.
const remembered = 10_000

// Limiter limits how often each key may act: a person, a sandbox or an address. It is safe for concurrent use.
type Limiter struct {
	perSecond rate.Limit
	burst     int

	mu sync.Mutex
	// A key moves from old to young when it acts. When young is full it becomes old, and what was old is forgotten. So inventing keys
	// gives no other key a new allowance while that key keeps acting.
	young, old map[string]*rate.Limiter
}

// New returns a Limiter that allows each key perSecond actions a second, in bursts of at most burst.
func New(perSecond rate.Limit, burst int) *Limiter {
	return &Limiter{perSecond: perSecond, burst: burst, young: map[string]*rate.Limiter{}}
}

// Allow reports whether the key may act now, and if so counts the action.
func (l *Limiter) Allow(key string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	limiter := l.young[key]
	if limiter == nil {
		if limiter = l.old[key]; limiter == nil {
			limiter = rate.NewLimiter(l.perSecond, l.burst)
		}
		if len(l.young) >= remembered {
			l.young, l.old = map[string]*rate.Limiter{}, l.young
		}
		l.young[key] = limiter
	}
	return limiter.AllowN(now, 1)
}

// Errors of Semaphore.Enter.
var (
	ErrKeyBusy = errors.New("the key has too many in progress")
	ErrBusy    = errors.New("too many are in progress")
)

// Semaphore limits how many things are in progress at once, in total and for each key. It is safe for concurrent use.
type Semaphore struct {
	total, perKey int

	mu    sync.Mutex
	all   int
	byKey map[string]int
}

// NewSemaphore returns a Semaphore for so many in total and for each key.
func NewSemaphore(total, perKey int) *Semaphore {
	return &Semaphore{total: total, perKey: perKey, byKey: map[string]int{}}
}

// Enter takes a place until leave is called; a second call of leave does nothing. It does not wait: the error is ErrKeyBusy or ErrBusy.
func (s *Semaphore) Enter(key string) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.byKey[key] >= s.perKey:
		return nil, ErrKeyBusy
	case s.all >= s.total:
		return nil, ErrBusy
	}
	s.all++
	s.byKey[key]++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all--
		if s.byKey[key]--; s.byKey[key] == 0 {
			delete(s.byKey, key)
		}
	}), nil
}

// FairSemaphore limits how many things are in progress at once, in total, for each group and for each key of a group. With n groups
// in progress, each group may have one of n+1 equal shares of the total, and each of the m keys of a group one of m+1 equal shares of
// that. So a group that is alone takes half of the total, and leaves the rest for newcomers. It is safe for concurrent use.
type FairSemaphore struct {
	total, perKey int

	mu     sync.Mutex
	all    int
	groups map[string]*fairGroup
}

type fairGroup struct {
	all  int
	keys map[string]int
}

// NewFairSemaphore returns a FairSemaphore for so many in total, and for at most so many of one key.
func NewFairSemaphore(total, perKey int) *FairSemaphore {
	return &FairSemaphore{total: total, perKey: perKey, groups: map[string]*fairGroup{}}
}

// Enter takes a place until leave is called; a second call of leave does nothing. It does not wait: the error is ErrKeyBusy if the key
// or its group has its share, and ErrBusy if all places are taken.
func (s *FairSemaphore) Enter(group, key string) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.groups[group]
	if g == nil {
		g = &fairGroup{keys: map[string]int{}}
	}
	share := max(1, s.total/(1+len(s.groups)+newcomer(s.groups, group)))
	own := min(s.perKey, max(1, share/(1+len(g.keys)+newcomer(g.keys, key))))
	switch {
	case s.all >= s.total:
		return nil, ErrBusy
	case g.all >= share, g.keys[key] >= own:
		return nil, ErrKeyBusy
	}
	s.groups[group] = g
	s.all++
	g.all++
	g.keys[key]++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all--
		g.all--
		if g.keys[key]--; g.keys[key] == 0 {
			delete(g.keys, key)
		}
		if g.all == 0 {
			delete(s.groups, group)
		}
	}), nil
}

// newcomer returns 1 if the map lacks the key, and 0 otherwise.
func newcomer[V any](m map[string]V, key string) int {
	if _, known := m[key]; known {
		return 0
	}
	return 1
}

// FairQueue limits how many things are in progress at once, and lets the others wait. The next place goes to the group with the fewest
// in progress, and in it to the key with the fewest, then to whoever was served least recently. The last place is only for a group that
// has none. So the queue of one key delays no other key by more than one turn, and unused places are lent. It is safe for concurrent
// use.
type FairQueue struct {
	present *FairSemaphore // those in progress and those that wait

	mu      sync.Mutex
	places  int
	taken   int
	turns   uint64
	groups  map[string]*queueGroup
	waiting []*queueEntry // in the order of arrival
}

// queueParty is a group or a key: how many of its entries are in the queue, how many of these are in progress, and when the last one
// got its place.
type queueParty struct {
	present, running int
	served           uint64
}

type queueGroup struct {
	queueParty

	keys map[string]*queueParty
}

type queueEntry struct {
	group      *queueGroup
	key        *queueParty
	name, kept string
	turn       chan struct{} // closed when the entry has its place
}

// NewFairQueue returns a FairQueue with so many places. total bounds the places and those that wait for one, as in a FairSemaphore,
// and perKey those of one key.
func NewFairQueue(places, total, perKey int) *FairQueue {
	return &FairQueue{present: NewFairSemaphore(total, perKey), places: max(1, places), groups: map[string]*queueGroup{}}
}

// Enter waits for a place, and takes it until leave is called; a second call of leave does nothing. The error is ErrKeyBusy or ErrBusy
// if too many wait already, and otherwise that of ctx.
func (q *FairQueue) Enter(ctx context.Context, group, key string) (leave func(), err error) {
	out, err := q.present.Enter(group, key)
	if err != nil {
		return nil, err
	}
	q.mu.Lock()
	e := q.join(group, key)
	q.serve()
	q.mu.Unlock()
	leave = sync.OnceFunc(func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.remove(e)
		q.serve()
		out()
	})
	select {
	case <-e.turn:
		return leave, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

func (q *FairQueue) join(group, key string) *queueEntry {
	g := q.groups[group]
	if g == nil {
		g = &queueGroup{keys: map[string]*queueParty{}}
		q.groups[group] = g
	}
	k := g.keys[key]
	if k == nil {
		k = &queueParty{}
		g.keys[key] = k
	}
	g.present++
	k.present++
	e := &queueEntry{group: g, key: k, name: group, kept: key, turn: make(chan struct{})}
	q.waiting = append(q.waiting, e)
	return e
}

// remove takes an entry out, whether it waits or has its place.
func (q *FairQueue) remove(e *queueEntry) {
	if at := slices.Index(q.waiting, e); at >= 0 {
		q.waiting = slices.Delete(q.waiting, at, at+1)
	} else {
		q.taken--
		e.group.running--
		e.key.running--
	}
	if e.key.present--; e.key.present == 0 {
		delete(e.group.keys, e.kept)
	}
	if e.group.present--; e.group.present == 0 {
		delete(q.groups, e.name)
	}
}

// serve gives the free places away.
func (q *FairQueue) serve() {
	for q.taken < q.places && len(q.waiting) > 0 {
		next := slices.MinFunc(q.waiting, func(a, b *queueEntry) int {
			return cmp.Or(
				cmp.Compare(a.group.running, b.group.running), cmp.Compare(a.group.served, b.group.served),
				cmp.Compare(a.key.running, b.key.running), cmp.Compare(a.key.served, b.key.served))
		})
		if q.taken > 0 && q.taken == q.places-1 && next.group.running > 0 {
			return
		}
		q.turns++
		q.taken++
		for _, party := range []*queueParty{&next.group.queueParty, next.key} {
			party.running++
			party.served = q.turns
		}
		q.waiting = slices.DeleteFunc(q.waiting, func(e *queueEntry) bool { return e == next })
		close(next.turn)
	}
}

// fairWindow is the time over which a FairLimiter counts.
const fairWindow = time.Second

// FairLimiter limits how many actions there are each second: in total, for each group and for each key of a group. The shares are those
// of a FairSemaphore, among the groups and keys that acted in this second or the one before. It is safe for concurrent use.
type FairLimiter struct {
	total, perKey int

	mu    sync.Mutex
	began time.Time
	all   int
	// groups has who acted in this second, and with a count of zero who acted in the one before. So it has at most two entries for each
	// allowed action.
	groups map[string]*fairGroup
}

// NewFairLimiter returns a FairLimiter that allows total actions a second, and at most perKey of one key.
func NewFairLimiter(total, perKey int) *FairLimiter {
	return &FairLimiter{total: total, perKey: perKey, groups: map[string]*fairGroup{}}
}

// Allow reports whether a key of a group may act now, and if so counts the action.
func (l *FairLimiter) Allow(group, key string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if past := now.Sub(l.began); past >= fairWindow {
		l.began = now
		l.begin(past < 2*fairWindow)
	}
	g := l.groups[group]
	if g == nil {
		g = &fairGroup{keys: map[string]int{}}
	}
	share := max(1, l.total/(1+len(l.groups)+newcomer(l.groups, group)))
	own := min(l.perKey, max(1, share/(1+len(g.keys)+newcomer(g.keys, key))))
	if l.all >= l.total || g.all >= share || g.keys[key] >= own {
		return false
	}
	l.groups[group] = g
	l.all++
	g.all++
	g.keys[key]++
	return true
}

// begin begins another second, which directly follows the last one or not.
func (l *FairLimiter) begin(follows bool) {
	last := l.groups
	l.all, l.groups = 0, map[string]*fairGroup{}
	for name, g := range last {
		if !follows || g.all == 0 {
			continue
		}
		kept := &fairGroup{keys: map[string]int{}}
		for key, n := range g.keys {
			if n > 0 {
				kept.keys[key] = 0
			}
		}
		l.groups[name] = kept
	}
}

// Sampler lets a number of events of each kind pass each second and each day, and counts the others. The kinds must be fixed codes, so that they are
// few. It is safe for concurrent use.
type Sampler struct {
	perSecond, perDay int

	mu    sync.Mutex
	kinds map[string]*sample
}

type sample struct {
	limiter    *rate.Limiter
	daily      *rate.Limiter
	suppressed int
}

// NewSampler returns a Sampler that lets perSecond events of each kind pass each second, and about perDay each day: perDay at once, and
// then as many spread over each day.
func NewSampler(perSecond, perDay int) *Sampler {
	return &Sampler{perSecond: perSecond, perDay: perDay, kinds: map[string]*sample{}}
}

// Take reports whether an event passes now and, if so, how many of its kind were suppressed since the last one that passed.
func (s *Sampler) Take(kind string, now time.Time) (suppressed int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.kinds[kind]
	if of == nil {
		of = &sample{
			limiter: rate.NewLimiter(rate.Limit(s.perSecond), s.perSecond),
			daily:   rate.NewLimiter(rate.Limit(float64(s.perDay)/(24*time.Hour).Seconds()), s.perDay),
		}
		s.kinds[kind] = of
	}
	if !of.limiter.AllowN(now, 1) || !of.daily.AllowN(now, 1) {
		of.suppressed++
		return 0, false
	}
	suppressed, of.suppressed = of.suppressed, 0
	return suppressed, true
}

// PutBack returns a count that could not be recorded.
func (s *Sampler) PutBack(kind string, suppressed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if of := s.kinds[kind]; of != nil {
		of.suppressed += suppressed
	}
}

// Drain returns how many events of each kind were suppressed since the last one that passed, and forgets them.
func (s *Sampler) Drain() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := map[string]int{}
	for kind, of := range s.kinds {
		if of.suppressed > 0 {
			left[kind], of.suppressed = of.suppressed, 0
		}
	}
	return left
}

// Budget bounds how many events are recorded of each key, and of each group of keys. It counts the others exactly. It is safe for
// concurrent use.
//
// It names a few keys of each group, so that a group with many keys does not fill the record with counts: what further keys do counts
// under the key "" of the group.
type Budget struct {
	keys, groups *Limiter

	mu         sync.Mutex
	suppressed map[Suppressed]int
	named      map[string]int // keys of each group
}

// maxNamed is how many keys of a group have counts of their own at a time.
const maxNamed = 20

// Suppressed names what was counted: a key of a group, or "" for keys of the group that are not known one by one.
type Suppressed struct{ Group, Key string }

// NewBudget returns a Budget with a rate and a burst for each key, and for each group.
func NewBudget(perKey rate.Limit, keyBurst int, perGroup rate.Limit, groupBurst int) *Budget {
	return &Budget{keys: New(perKey, keyBurst), groups: New(perGroup, groupBurst), suppressed: map[Suppressed]int{}, named: map[string]int{}}
}

// Take reports whether an event may be recorded now. If not, it counts the event.
func (b *Budget) Take(group, key string, now time.Time) bool {
	if b.keys.Allow(group+"\x00"+key, now) && b.groups.Allow(group, now) {
		return true
	}
	b.PutBack(Suppressed{group, key}, 1)
	return false
}

// PutBack counts events that could not be recorded.
func (b *Budget) PutBack(of Suppressed, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.suppressed[of]; !known && of.Key != "" {
		if b.named[of.Group] >= maxNamed {
			of.Key = ""
		} else {
			b.named[of.Group]++
		}
	}
	b.suppressed[of] += n
}

// Drain returns how many events were counted since the last call, and forgets them.
func (b *Budget) Drain() map[Suppressed]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.suppressed
	b.suppressed, b.named = map[Suppressed]int{}, map[string]int{}
	return all
}
