package history_test

import (
	"math/rand/v2"
	"testing"
	"time"
)

// fault is a failure that lasts for a while.
type fault struct {
	what string
	on   int // the replica
	last time.Duration
	by   time.Duration
}

// A silent Postgres is drawn more often: a replica that receives nothing and does not notice is the one that could give outdated
// answers.
var whats = []string{"killed", "cut from Postgres", "slow Postgres", "silent Postgres", "silent Postgres", "cut from callers", "restarted", "Vault"}

// calm is the time before a fault. During it the replicas fill their caches.
const calm = 300 * time.Millisecond

// plan draws the faults of a seed.
func plan(random *rand.Rand, many int) []fault {
	faults := make([]fault, many)
	for i := range faults {
		faults[i] = fault{
			what: whats[random.IntN(len(whats))], on: random.IntN(2),
			last: time.Duration(150+random.IntN(600)) * time.Millisecond, by: time.Duration(20+random.IntN(300)) * time.Millisecond,
		}
		if faults[i].what == "silent Postgres" {
			faults[i].last += 600 * time.Millisecond // longer than any replica waits for it
		}
	}
	return faults
}

// strike begins and ends the faults, one after the other.
func (w *world) strike(t *testing.T, faults []fault) {
	t.Helper()
	defer close(w.over)
	for i, f := range faults {
		t.Logf("%.3f: replica %d: %s for %s", time.Since(w.start).Seconds(), f.on, f.what, f.last)
		close(w.before[i])
		<-time.After(calm)
		w.begin(t, f)
		close(w.during[i])
		<-time.After(f.last)
		w.end(t, f)
	}
}

func (w *world) begin(t *testing.T, f fault) {
	t.Helper()
	switch f.what {
	case "killed":
		_, err := w.admin.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND pid % 2 = $1`, f.on)
		if err != nil {
			t.Errorf("killing connections: %v", err)
		}
	case "cut from Postgres":
		w.back[f.on].Cut()
	case "slow Postgres":
		w.back[f.on].Slow(f.by)
	case "silent Postgres":
		w.back[f.on].Hush()
	case "cut from callers":
		w.front[f.on].Cut()
	case "restarted":
		w.now[f.on].CloseServer()
	case "Vault":
		w.vault[f.on].Store(4)
	}
}

func (w *world) end(t *testing.T, f fault) {
	t.Helper()
	switch f.what {
	case "cut from Postgres", "slow Postgres", "silent Postgres":
		w.back[f.on].Restore()
	case "cut from callers":
		w.front[f.on].Restore()
	case "restarted":
		w.front[f.on].Lead(w.serve(t, f.on))
	case "Vault":
		w.vault[f.on].Store(0)
	}
}
