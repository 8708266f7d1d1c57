package main

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// costs are what one issue takes of each server. They decide how many replicas one primary can serve.
type costs struct {
	generator, broker, vault time.Duration // processor time for each issue
	signing                  time.Duration // latency of a call to Vault, besides its processor time
	commit, entry            time.Duration // PostgreSQL's processor time for each commit, and for each entry in it
	flush                    time.Duration // until the commit is on disk
}

// simulated describes a deployment to simulate.
type simulated struct {
	replicas, callers int // callers of each replica
	cores             int // of each replica
	shared            int // unless 0, the number of cores that all servers and the load generator share
	ledgers           int // primaries. Replicas are spread over them.
}

// outcome holds what a simulation shows.
type outcome struct {
	rate  float64
	p50   time.Duration
	batch float64 // mean number of entries in a commit
	busy  float64 // share of the time during which a ledger has a commit in progress
}

// extrapolate simulates deployments with the measured costs, and prints a table. It starts with replicas that share two cores, as
// `-growth -part replicas` measures them, so that a reader can compare the model with a measurement.
func extrapolate(_ context.Context, o options, out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "replicas\tcores\tledgers\t/s\tp50\tentries per commit\tledger busy\t")
	for _, n := range []int{1, 2, 4} {
		s := simulated{replicas: n, callers: 64 / n, shared: 2, ledgers: 1}
		simulate(o.costs, s).row(table, s, "2 for all")
	}
	for _, n := range []int{1, 2, 4, 8} {
		s := simulated{replicas: n, callers: 128, cores: 2, ledgers: 1}
		simulate(o.costs, s).row(table, s, "2 each")
	}
	for _, n := range []int{2, 4} {
		s := simulated{replicas: 8, callers: 128, cores: 2, ledgers: n}
		simulate(o.costs, s).row(table, s, "2 each")
	}
	return table.Flush()
}

func (r outcome) row(out io.Writer, s simulated, cores string) {
	fmt.Fprintf(out, "%d\t%s\t%d\t%.0f\t%s\t%.0f\t%.0f %%\t\n", s.replicas, cores, s.ledgers, r.rate, r.p50.Round(100*time.Microsecond), r.batch, 100*r.busy)
}

// largestBatch is the largest number of entries in a commit, as in the ledger.
const largestBatch = 256

// simulate runs a closed loop: each caller sends the next request when it has the answer. A replica uses half of its processor time
// before the commit, and half after Vault's signature. It has one commit in progress. Commits to one ledger wait for each other.
func simulate(c costs, s simulated) outcome {
	const warm, lasts = 2 * time.Second, 10 * time.Second
	w := &world{}
	cores := func(n int) *pool {
		if s.shared > 0 {
			return w.shared(s.shared)
		}
		return &pool{free: n}
	}
	var ledgers []*primary
	for range s.ledgers {
		ledgers = append(ledgers, &primary{world: w, costs: c, from: warm, lock: &pool{free: 1}, cores: cores(1)})
	}
	unlimited := s.replicas * s.callers
	generator, vault := cores(unlimited), cores(unlimited)
	var took []time.Duration
	for n := range s.replicas {
		r := &group{of: ledgers[n%s.ledgers]}
		replica := cores(s.cores)
		for range s.callers {
			var began time.Duration
			steps := []func(then func()){
				func(then func()) { began = w.now; w.use(generator, c.generator/2, then) },
				func(then func()) { w.use(replica, c.broker/2, then) },
				r.append,
				func(then func()) { w.use(vault, c.vault, then) },
				func(then func()) { w.after(c.signing, then) },
				func(then func()) { w.use(replica, c.broker/2, then) },
				func(then func()) { w.use(generator, c.generator/2, then) },
				func(then func()) {
					if w.now > warm {
						took = append(took, w.now-began)
					}
					then()
				},
			}
			w.repeat(steps)
		}
	}
	w.run(warm + lasts)
	slices.Sort(took)
	var all primary
	for _, l := range ledgers {
		all.commits, all.entries, all.busy = all.commits+l.commits, all.entries+l.entries, all.busy+l.busy
	}
	return outcome{
		rate: float64(len(took)) / lasts.Seconds(), p50: took[len(took)/2],
		batch: float64(all.entries) / float64(all.commits), busy: all.busy.Seconds() / lasts.Seconds() / float64(s.ledgers),
	}
}

// primary is a ledger's server. Its lock puts all commits in order.
type primary struct {
	*world
	costs
	from             time.Duration // when counting begins
	lock, cores      *pool
	commits, entries int
	busy             time.Duration
}

// commitAll commits a batch when it has the lock.
func (p *primary) commitAll(batch int, then func()) {
	p.acquire(p.lock, func(release func()) {
		locked := p.now
		p.use(p.cores, p.costs.commit+time.Duration(batch)*p.entry, func() {
			p.after(p.flush, func() {
				release()
				if p.now > p.from {
					p.commits, p.entries, p.busy = p.commits+1, p.entries+batch, p.busy+p.now-max(locked, p.from)
				}
				then()
			})
		})
	})
}

// group collects the entries of one replica while a commit is in progress, and then commits them together.
type group struct {
	of         *primary
	waiting    []func()
	committing bool
}

func (g *group) append(then func()) {
	g.waiting = append(g.waiting, then)
	g.flush()
}

func (g *group) flush() {
	if g.committing || len(g.waiting) == 0 {
		return
	}
	g.committing = true
	n := min(len(g.waiting), largestBatch)
	batch := g.waiting[:n:n]
	g.waiting = g.waiting[n:]
	g.of.commitAll(n, func() {
		g.committing = false
		for _, then := range batch {
			then()
		}
		g.flush()
	})
}

// pool is a number of cores, or a lock. What waits for it is served in order.
type pool struct {
	free    int
	waiting []func()
}

// world is the simulated time and what happens in it.
type world struct {
	now    time.Duration
	queue  events
	count  int
	common *pool
}

// shared returns the cores that all servers share.
func (w *world) shared(cores int) *pool {
	if w.common == nil {
		w.common = &pool{free: cores}
	}
	return w.common
}

// after calls do when the time d has passed.
func (w *world) after(d time.Duration, do func()) {
	w.count++
	heap.Push(&w.queue, event{w.now + d, w.count, do})
}

// acquire calls then when a place of the pool is free. The place is taken until release is called.
func (w *world) acquire(p *pool, then func(release func())) {
	start := func() {
		then(func() {
			p.free++
			if len(p.waiting) > 0 {
				next := p.waiting[0]
				p.waiting = p.waiting[1:]
				p.free--
				next()
			}
		})
	}
	if p.free == 0 {
		p.waiting = append(p.waiting, start)
		return
	}
	p.free--
	start()
}

// use takes a place of the pool for the time d, and then calls then.
func (w *world) use(p *pool, d time.Duration, then func()) {
	w.acquire(p, func(release func()) {
		w.after(d, func() {
			release()
			then()
		})
	})
}

// repeat takes the steps one after the other, again and again.
func (w *world) repeat(steps []func(then func())) {
	var take func(n int)
	take = func(n int) { steps[n](func() { w.after(0, func() { take((n + 1) % len(steps)) }) }) }
	take(0)
}

func (w *world) run(until time.Duration) {
	for len(w.queue) > 0 && w.queue[0].at <= until {
		next, _ := heap.Pop(&w.queue).(event)
		w.now = next.at
		next.do()
	}
}

type event struct {
	at    time.Duration
	order int // events of the same time happen in the order in which they were added
	do    func()
}

// events is a heap.
type events []event

func (e events) Len() int      { return len(e) }
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e events) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(e[i].at, e[j].at), cmp.Compare(e[i].order, e[j].order)) < 0
}

func (e *events) Push(x any) {
	added, _ := x.(event)
	*e = append(*e, added)
}

func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}
