package faults_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/testkit"
)

var (
	issuances = flag.Int("issuances", 150, "credentials to issue while servers are killed")
	killEvery = flag.Duration("kill-every", 5*time.Second, "time between two kills")
	seed      = flag.Uint64("seed", 0, "seed of who is killed when; 0 takes one from the clock")
)

// fewestKills is the least number of kills that makes the test meaningful.
const fewestKills = 2

// killsUnderLoad issues credentials of all kinds through two replicas. During that time, at random, one of them or Vault is
// killed and started again. Nothing may be delivered without a record. A minute after the last kill, nothing may be alive without
// a record.
func (w *world) killsUnderLoad(t *testing.T) {
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", *seed)
	l := &load{world: w, random: rand.New(rand.NewPCG(*seed, 0))}
	for i := range l.replicas {
		l.restart(t, i)
	}
	start := time.Now()
	stop := make(chan struct{})
	var killer sync.WaitGroup
	killer.Go(func() { l.killAtRandom(t, stop) })
	l.issueAll(t)
	close(stop)
	killer.Wait()
	took := time.Since(start)
	t.Logf("%d delivered, %d calls without a credential, %d kills, in %s",
		l.delivered.Load(), l.refused.Load(), l.kills.Load(), took.Round(time.Second))
	unrecorded := l.unrecorded(t)
	if unrecorded > 0 {
		t.Errorf("%d were delivered without a record (I1)", unrecorded)
	}
	results.other(
		fmt.Sprintf("%d credentials of all kinds, %d kills of a replica or of Vault", l.delivered.Load(), l.kills.Load()),
		fmt.Sprintf("%d delivered without a record", unrecorded), !t.Failed())
}

// loadKinds are the kinds that live for a minute and that Vault ends even if it was killed while it made them. AWS gives no key for a
// minute, and Vault can forget a service account: docs/credentials.md.
var loadKinds = slices.DeleteFunc(slices.Clone(kinds), func(k kind) bool { return k.name == "aws" || k.name == "kubernetes" })

type load struct {
	*world
	mu       sync.RWMutex
	replicas [2]*replica
	// random belongs to the killer alone.
	random *rand.Rand

	delivered, refused, kills atomic.Int64
}

func (l *load) restart(t *testing.T, i int) {
	t.Helper()
	r := l.startReplica(t, &fault{}, sweeping)
	l.mu.Lock()
	l.replicas[i] = r
	l.mu.Unlock()
}

func (l *load) replica(i int) *replica {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.replicas[i]
}

func (l *load) killAtRandom(t *testing.T, stop <-chan struct{}) {
	t.Helper()
	tick := time.NewTicker(*killEvery)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		l.kills.Add(1)
		victim := l.random.IntN(3)
		if victim < len(l.replicas) {
			r := l.replica(victim)
			_ = r.cmd.Process.Kill()
			<-r.ended
			l.restart(t, victim)
			continue
		}
		l.killVault(t)
	}
}

// issueAll sends requests until enough credentials were delivered and enough servers were killed. Each caller is a separate
// sandbox with one task for every ten requests. It leaves most credentials to expire.
func (l *load) issueAll(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	var callers sync.WaitGroup
	for n := range 8 {
		callers.Go(func() {
			client := l.client(t, fmt.Sprintf("spiffe://acme.test/load/agent-%d", n))
			for i := 0; ctx.Err() == nil && (l.delivered.Load() < int64(*issuances) || l.kills.Load() < fewestKills); i++ {
				l.issue(ctx, client, n, i)
			}
		})
	}
	callers.Wait()
	if ctx.Err() != nil {
		t.Errorf("only %d of %d were delivered in time, with %d kills", l.delivered.Load(), *issuances, l.kills.Load())
	}
}

func (l *load) issue(ctx context.Context, client *http.Client, n, i int) {
	k, to := loadKinds[(n+i)%len(loadKinds)], l.replica((n+i)%len(l.replicas))
	name := fmt.Sprintf("t-%d", i/10)
	body := k.body()
	body["scope"], body["task"], body["ttl"] = "test."+k.name, name, 60
	got, err := call(ctx, client, to.url+"/v1/tokens", body)
	if err != nil || !got.has() {
		l.refused.Add(1)
		pauseFor(ctx, 50*time.Millisecond)
		return
	}
	l.inventory.deliver(got.ID)
	l.delivered.Add(1)
	if i%10 == 9 && n%2 == 0 {
		_, _ = call(ctx, client, to.url+"/v1/tasks/"+name+"/end", map[string]any{})
	}
}

func pauseFor(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// unrecorded counts the delivered credentials without a record of their delivery.
func (l *load) unrecorded(t *testing.T) int {
	t.Helper()
	recorded := map[string]bool{}
	for _, r := range l.inventory.rows(t.Context(), t, "") {
		recorded[r.ID] = r.Status != "intent" && r.Status != "failed" && r.Status != "unknown" && r.Status != "compensated"
	}
	l.inventory.mu.Lock()
	defer l.inventory.mu.Unlock()
	missing := 0
	for id := range l.inventory.delivered {
		if !recorded[id] {
			missing++
		}
	}
	return missing
}

// killVault ends Vault as a crash would, and starts it again.
func (w *world) killVault(t *testing.T) {
	t.Helper()
	vault := testkit.Devstack(t).Vault
	if err := vault.Kill(); err != nil {
		t.Errorf("killing Vault: %v", err)
	}
	if err := vault.Start(t.Context()); err != nil {
		t.Errorf("starting Vault again: %v", err)
	}
}
