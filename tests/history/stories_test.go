package history_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/openapi"
)

const (
	// faultsEach is the number of faults of one seed, and pause is the time between two calls of one caller.
	faultsEach = 4
	pause      = 5 * time.Millisecond
	// hasty is the timeout of callers that introspect all the time: an answer that does not come from a cache may take longer
	// than the faults last.
	hasty = 300 * time.Millisecond
	// tries bounds how often a caller repeats a call without an answer.
	tries = 5
)

// play runs one seed.
func play(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 0))
	faults := plan(random, faultsEach)
	w := newWorld(t, len(faults))
	stories := []func(*testing.T){
		w.tokens(t, random, "one"), w.tokens(t, random, "two"), w.requests(t, random, "three"), w.requests(t, random, "four"),
		w.keys(t, random, "five"), w.shots(t, random, "six"),
	}
	var acting sync.WaitGroup
	for _, story := range stories {
		acting.Go(func() { story(t) })
	}
	w.strike(t, faults)
	acting.Wait()
	t.Logf("%.3f: %s", time.Since(w.start).Seconds(), &w.tally)
	tried(t, &w.tally, inEach)
	together.join(&w.tally)
	w.stack.DB.Check(t)
}

// wait blocks until a fault has begun.
func (w *world) wait(during int) { <-w.during[during] }

// busy calls do, with pauses, until the faults are over.
func (w *world) busy(do func(n int)) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-w.over:
			return
		case <-tick.C:
			do(n)
		}
	}
}

// slot is a token that a story issues during one fault.
type slot struct {
	task   string
	on     int
	during int
	issued chan struct{} // closed when it is issued, or will never be
	token  *client.Token
	calls  *history
}

// ending is an order that a story gives during one fault.
type ending struct {
	does   string
	slot   int
	on     int
	during int
}

// tokens lets a sandbox get tokens for two tasks. The tokens are released, revoked, end with a task or go into quarantine, while
// a service introspects all of them at both replicas.
func (w *world) tokens(t *testing.T, random *rand.Rand, name string) func(*testing.T) {
	s := &tokenStory{world: w, id: "spiffe://acme.test/h/" + name, gates: map[string]*history{"a": {}, "b": {}}}
	s.sandbox, s.admin, s.service = w.clients(t, s.id), w.clients(t, admin), w.asker(t)
	for i := range 8 {
		s.slots = append(s.slots, &slot{
			task: string("aab"[random.IntN(3)]), on: random.IntN(2), during: i * faultsEach / 8, issued: make(chan struct{}), calls: &history{},
		})
	}
	kinds := []string{"release", "revoke", "end task", "quarantine"}
	for range 4 {
		s.endings = append(s.endings, ending{kinds[random.IntN(len(kinds))], random.IntN(len(s.slots)), random.IntN(2), random.IntN(faultsEach)})
	}
	for i := range s.seeds {
		s.seeds[i] = random.Uint64()
	}
	return s.run
}

type tokenStory struct {
	*world
	id      string
	sandbox [2]*client.Client
	admin   [2]*client.Client
	service asker
	slots   []*slot
	endings []ending
	gates   map[string]*history // by task
	seeds   [6]uint64           // of the introspecting callers: the first one at one replica, the next one at the other, and so on
}

func (s *tokenStory) run(t *testing.T) {
	var acting sync.WaitGroup
	acting.Go(s.issueAll)
	for _, e := range s.endings {
		acting.Go(func() { s.give(e) })
	}
	for on, seed := range s.seeds {
		random := rand.New(rand.NewPCG(seed, 0))
		acting.Go(func() { s.busy(func(int) { s.ask(s.slots[random.IntN(len(s.slots))], on%2, hasty) }) })
	}
	acting.Wait()
	for _, one := range s.slots {
		for on := range 2 {
			s.ask(one, on, patience)
		}
		if one.token != nil {
			calls := one.calls.all()
			holds(t, "token "+one.token.ID+" for task "+one.task, token, phases(calls))
			revived(t, calls)
		}
	}
	for task, h := range s.gates {
		holds(t, "task "+task+" of "+s.id, gate, h.all())
	}
}

func (s *tokenStory) issueAll() {
	for n, one := range s.slots {
		<-s.before[one.during]
		ask := client.Ask{Scope: "git.issues.read", Task: one.task, Params: map[string]any{"repo": "api"}}
		c := s.make("issue", "", one.on, func(ctx context.Context) string {
			answer, err := s.sandbox[one.on].Request(ctx, ask)
			one.token = answer.Token
			return answered(err, "issued", map[openapi.ProblemCode]string{openapi.CodeDenied: "denied"})
		})
		if c.got != "" {
			s.gates[one.task].add(c)
		}
		if one.token != nil {
			one.calls.add(c)
		}
		close(one.issued)
		if n == 0 { // before anything fails or ends: on a busy machine the hasty callers may never see an active token
			s.ask(one, one.on, patience)
		}
	}
}

// ask introspects a token, if it has been issued.
func (s *tokenStory) ask(one *slot, on int, most time.Duration) {
	select {
	case <-one.issued:
	default:
		return
	}
	if one.token == nil {
		return
	}
	c := s.make("ask", "", on, func(ctx context.Context) string {
		ctx, cancel := context.WithTimeout(ctx, most)
		defer cancel()
		return s.service.active(ctx, on, one.token.Secret.Reveal())
	})
	if c.got == "active" || c.got == "inactive" {
		one.calls.add(c)
	}
}

// give repeats an order until it is confirmed. Then it lifts a quarantine.
func (s *tokenStory) give(e ending) {
	s.wait(e.during)
	one := s.slots[e.slot]
	if e.does == "release" || e.does == "revoke" {
		if <-one.issued; one.token == nil {
			return
		}
	}
	if s.until(e, one) && e.does == "quarantine" {
		s.until(ending{"lift", e.slot, 1 - e.on, e.during}, one)
	}
}

func (s *tokenStory) until(e ending, one *slot) bool {
	for n := range tries {
		on := (e.on + n) % 2
		c := s.make(e.does, "", on, func(ctx context.Context) string { return s.order(ctx, e.does, one, on) })
		if c.got != "" {
			s.write(c, one)
		}
		if c.got == "done" {
			return true
		}
	}
	return false
}

// write adds an order to the history of everything that it affects.
func (s *tokenStory) write(c call, one *slot) {
	for task, h := range s.gates {
		if c.does == "quarantine" || c.does == "lift" || c.does == "end task" && task == one.task {
			h.add(c)
		}
	}
	for _, other := range s.slots {
		if c.does == "quarantine" || c.does == "lift" || c.does == "end task" && other.task == one.task || other == one {
			other.calls.add(c)
		}
	}
}

func (s *tokenStory) order(ctx context.Context, does string, one *slot, on int) string {
	var err error
	switch does {
	case "release":
		_, err = s.sandbox[on].Release(ctx, one.token.ID)
	case "revoke":
		_, err = s.admin[on].Revoke(ctx, client.Selection{ID: one.token.ID}, "history")
	case "end task":
		_, err = s.sandbox[on].EndTask(ctx, one.task, client.TaskEnd{})
	case "quarantine":
		_, err = s.admin[on].Quarantine(ctx, s.id, "history")
	case "lift":
		err = s.admin[on].Unquarantine(ctx, s.id, "history")
	}
	return answered(err, "done", nil)
}

// keys lets a sandbox repeat requests with one idempotency key, and sometimes use the key for another request.
func (w *world) keys(t *testing.T, random *rand.Rand, name string) func(*testing.T) {
	sandbox := w.clients(t, "spiffe://acme.test/h/"+name)
	seeds := []uint64{random.Uint64(), random.Uint64(), random.Uint64()}
	return func(t *testing.T) {
		histories := make([]history, faultsEach)
		var acting sync.WaitGroup
		for _, seed := range seeds {
			random := rand.New(rand.NewPCG(seed, 0))
			acting.Go(func() {
				for n := range histories {
					w.wait(n)
					for range tries {
						on, repo := random.IntN(2), []string{"api", "api", "api", "web"}[random.IntN(4)]
						ask := client.Ask{Scope: "git.issues.read", Task: "a", Params: map[string]any{"repo": repo}, IdempotencyKey: fmt.Sprintf("key-%d", n)}
						c := w.make("issue", repo, on, func(ctx context.Context) string {
							_, err := sandbox[on].Request(ctx, ask)
							return answered(err, "issued", map[openapi.ProblemCode]string{
								openapi.CodeAlreadyIssued: "conflict", openapi.CodeIdempotencyMismatch: "mismatch",
							})
						})
						if c.got != "" {
							histories[n].add(c)
						}
					}
				}
			})
		}
		acting.Wait()
		for n := range histories {
			holds(t, fmt.Sprintf("key %d", n), key, histories[n].all())
		}
	}
}

// shots lets two callers of a service introspect one-shot tokens at both replicas.
func (w *world) shots(t *testing.T, random *rand.Rand, name string) func(*testing.T) {
	sandbox, service := w.clients(t, "spiffe://acme.test/h/"+name), w.asker(t)
	seeds := []uint64{random.Uint64(), random.Uint64(), random.Uint64()}
	return func(t *testing.T) {
		for n := range faultsEach {
			w.wait(n)
			var issued *client.Token
			for try := 0; issued == nil && try < tries; try++ {
				if answer, err := sandbox[try%2].Request(t.Context(), client.Ask{Scope: "bank.order.pay", Task: "a"}); err == nil {
					issued = answer.Token
				}
			}
			if issued == nil {
				continue
			}
			var uses history
			var acting sync.WaitGroup
			for _, seed := range seeds {
				random := rand.New(rand.NewPCG(seed, uint64(n)))
				acting.Go(func() {
					for range tries {
						on := random.IntN(2)
						c := w.make("use", "", on, func(ctx context.Context) string { return service.active(ctx, on, issued.Secret.Reveal()) })
						if c.got != "" {
							uses.add(c)
						}
					}
				})
			}
			acting.Wait()
			holds(t, "one-shot token "+issued.ID, shot, uses.all())
		}
	}
}
