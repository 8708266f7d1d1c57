package upgrade_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/testkit"
)

// passed and failed count the steps.
var passed, failed int

// journey is the sequence of steps of a deployment while the load continues.
type journey struct {
	*world
	crossing *crossing
	least    int // how often each kind of call has to succeed after each step
	lost     int // calls cut by a version that does not announce its end
	leaving  bool
}

// Replicas go to another version and back, and no caller notices. Every call is answered, and everything handed out is on record
// (I1). What is released, or belongs to a call that was cut, is gone (I2). What is revoked is active nowhere from then on (I6),
// and the ledger holds (I8, I13).
func TestUpgrade(t *testing.T) {
	w := newWorld(t)
	now := w.versionAt(t, "this version", this)
	old, least, pause := now, 2, 100*time.Millisecond
	if *from != "" {
		old, least, pause = w.versionAt(t, *fromName, *from), 10, 25*time.Millisecond
	}
	j := &journey{world: w, crossing: &crossing{world: w}, least: least}
	w.bootstrap(t, old)
	before, had := shape(t, w.owner(t)), w.applied(t)
	for i := range w.replicas {
		w.serve(t, i, old)
		w.comes(t, i)
	}
	header()
	load := j.load(t, pause)
	if *from != "" {
		j.step(t, "both at "+old.name, func(*testing.T) {})
	}
	j.step(t, "schema to "+now.name, func(t *testing.T) {
		j.bootstrap(t, now)
		differ(t, "the upgraded schema", shape(t, w.owner(t)), shape(t, testkit.NewDB(t).AdminURL))
	})
	j.roll(t, now)
	if *from != "" {
		j.roll(t, old)
		j.step(t, "schema back to "+old.name, func(t *testing.T) { j.takeBack(t, old, now, before, had) })
	}
	load.end()
	j.count(t, "books", func(t *testing.T) {
		if err := w.alive(t); err != nil {
			t.Error(err)
		}
		w.loginsGo(t)
		for i := range w.replicas {
			w.tell(t, i)
		}
		for i := range w.replicas {
			w.gone(t, i)
		}
		w.bootstrap(t, now) // the test reads this version's record
		w.balance(t, j.lost)
	})
}

// roll replaces one replica after the other.
func (j *journey) roll(t *testing.T, to version) {
	t.Helper()
	for i := range j.replicas {
		j.step(t, fmt.Sprintf("replica %d to %s", i+1, to.name), func(t *testing.T) {
			j.leaving = !j.replicas[i].announces
			j.replace(t, i, to)
		})
	}
}

// takeBack undoes what the upgrade has added to the schema. The version before leaves that alone.
func (j *journey) takeBack(t *testing.T, old, now version, before []string, had int) {
	t.Helper()
	upgraded := shape(t, j.owner(t))
	j.run(t, old, "migrate", "--database-url-file", j.path("owner-url"))
	differ(t, "the schema that "+old.name+" has migrated", shape(t, j.owner(t)), upgraded)
	for range j.applied(t) - had {
		j.run(t, now, "migrate", "down", "--yes", "--database-url-file", j.path("owner-url"))
	}
	differ(t, "the schema that was taken back", shape(t, j.owner(t)), before)
}

// load starts all callers, with a pause between two stories.
func (j *journey) load(t *testing.T, pause time.Duration) *load {
	t.Helper()
	at := j.balancer.url()
	var callers []caller
	sandbox := func(n int, dial func(id, at string) (*client.Client, error)) *party {
		c, err := dial(fmt.Sprintf("spiffe://acme.test/agents/a-%d", n), at)
		if err != nil {
			t.Fatal(err)
		}
		return j.party(t, c, at)
	}
	for n := range 3 {
		callers = append(callers, sandbox(n, j.proved).tokens("issued"))
	}
	for n := range 2 {
		callers = append(callers, sandbox(10+n, j.bearer).tokens("by JWT"))
	}
	for n := range 2 {
		callers = append(callers, sandbox(20+n, j.proved).logins)
	}
	for n := range 2 {
		p := sandbox(30+n, j.proved)
		callers = append(callers, p.approvals(j.world, fmt.Sprintf("w-%d", n)))
	}
	holder := sandbox(40, j.proved)
	token, err := holder.ask("issued", "git.issues.read")
	if err != nil {
		t.Fatal(err)
	}
	var http1 http.Protocols
	http1.SetHTTP1(true)
	for range 3 {
		p := *holder
		if p.asker, err = j.asker(at, http1); err != nil {
			t.Fatal(err)
		}
		callers = append(callers, p.checks(token))
	}
	looks, err := j.proved(auditor, at)
	if err != nil {
		t.Fatal(err)
	}
	return begin(t, j.tally, pause, append(callers, holder.searches(looks))...)
}

// step does one thing, and then waits until every kind of call succeeds.
func (j *journey) step(t *testing.T, name string, do func(t *testing.T)) {
	t.Helper()
	j.count(t, name, func(t *testing.T) {
		do(t)
		if err := j.goesOn(t); err != nil {
			t.Error(err)
		}
	})
}

// count does one thing, and fails unless all calls were answered in the meantime.
func (j *journey) count(t *testing.T, name string, do func(t *testing.T)) {
	t.Helper()
	began := time.Now()
	ok := t.Run(name, func(t *testing.T) {
		j.leaving = false
		defer j.row(t, name, began)
		do(t)
	})
	if !ok {
		failed++
		t.FailNow()
	}
	passed++
}

// goesOn blocks until callers were sent to both replicas and succeeded, and each replica has continued what the other one has
// begun.
func (j *journey) goesOn(t *testing.T) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepsWithin)
	defer cancel()
	if err := j.balancer.leads(ctx); err != nil {
		return fmt.Errorf("callers are not led to both replicas: %w", err)
	}
	return errors.Join(j.tally.atLeast(ctx, j.least), j.crossing.cross(t))
}

func header() {
	fmt.Printf("%-40s", "")
	for _, kind := range kinds {
		fmt.Printf(" %8s", kind)
	}
	fmt.Printf(" %6s %6s %6s %8s\n", "shed", "turned", "cut", "")
}

// row prints the outcomes of all calls of a step, and fails the step if there are outcomes that must not occur.
func (j *journey) row(t *testing.T, name string, began time.Time) {
	t.Helper()
	got, turned := j.tally.take(), j.balancer.turnedAway()
	fmt.Printf("%-40s", name)
	for _, kind := range kinds {
		fmt.Printf(" %8d", got.done[kind])
	}
	fmt.Printf(" %6d %6d %6d %7.1fs\n", got.shed, turned, len(got.cut), time.Since(began).Seconds())
	wrong := slices.Clone(got.failed)
	if j.leaving {
		j.lost += len(got.cut)
		for _, err := range got.cut {
			t.Logf("cut off: %v", err)
		}
	} else {
		wrong = append(wrong, got.cut...)
	}
	for _, err := range wrong[:min(len(wrong), 10)] {
		t.Error(err)
	}
	if turned > 0 && !j.leaving {
		t.Errorf("%d connections were led to a replica that had gone without saying so", turned)
	}
}
