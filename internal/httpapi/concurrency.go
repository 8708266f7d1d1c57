package httpapi

import (
	"runtime"
	"sync"

	"github.com/brevet-dev/brevet/attest"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// How many credentials one replica makes at a time. More would each wait longer, and none would come sooner: a request
// beyond the limit is refused at once, before any decision. Whoever ends something, votes, introspects, or
// checks is not counted here, so that no number of requests keeps a credential alive.
// Who keeps a processor busy are about 32.
const (
	makingAtOnceEach = 64 // for each processor
	// makingAtOnceForOne leaves room for others when one sandbox asks over many connections.
	makingAtOnceForOne = 64
)

func makingAtOnce() int { return makingAtOnceEach * max(2, runtime.GOMAXPROCS(0)) }

// concurrencyLimit bounds what is made at a time: most of all, and each for a sandbox.
type concurrencyLimit struct {
	most, each int

	mu  sync.Mutex
	all int
	of  map[spiffeid.ID]int
}

// enter takes a place until leave is called, which may be more than once. Errors: errBusy, errTooMany.
func (l *concurrencyLimit) enter(who attest.Identity) (leave func(), err error) {
	id := who.ID()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.of[id] >= l.each:
		return nil, &requestError{kind: errTooMany, detail: "lane"}
	case l.all >= l.most:
		return nil, &requestError{kind: errBusy, detail: "lane"}
	}
	if l.of == nil {
		l.of = map[spiffeid.ID]int{}
	}
	l.all++
	l.of[id]++
	return sync.OnceFunc(func() { l.leave(id) }), nil
}

func (l *concurrencyLimit) leave(id spiffeid.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.of[id]--; l.of[id] == 0 {
		delete(l.of, id)
	}
}
