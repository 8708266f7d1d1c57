package faults_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/testkit"
)

const (
	// electionSpan is how long the cluster has no active node.
	electionSpan = 3 * time.Second
	// longer is longer than a credential lives that is not renewed.
	longer = 40 * time.Second
)

// cluster is a world whose Vault is a cluster with two standbys that lag.
type cluster struct {
	*world
	nodes *testkit.Cluster
	each  int // how many credentials of each kind are released, revoked, ended with their task, and kept

	mu   sync.Mutex
	kept []kept
}

// kept is a credential that nobody ends.
type kept struct {
	kind
	answer
}

// TestStandbys uses a cluster of Vault through a balancer. An end that Brevet confirms right after the mint, when the standbys do
// not know the credential yet, is an end (I6), and what Brevet delivers lives as long as promised.
func TestStandbys(t *testing.T) {
	c := &cluster{each: 10}
	if *all {
		c.each = 250
	}
	c.world = newWorldOn(t, testkit.Options{VaultVia: func(addr string) string {
		c.nodes = testkit.NewCluster(t, addr)
		return c.nodes.URL()
	}})
	var renewed time.Time
	for _, k := range kinds {
		if k.leased() {
			c.row(t, "standby: "+k.name+" renewed, and released, revoked or ended with its task", func(t *testing.T) string { return c.ends(t, k) })
			renewed = time.Now()
		}
	}
	c.row(t, "standby: no active node during mints", c.election)
	c.row(t, "standby: what was renewed, after "+longer.String(), func(t *testing.T) string {
		pauseFor(t.Context(), time.Until(renewed.Add(longer)))
		c.crowded(t, len(c.kept), func(i int) {
			if k := c.kept[i]; !k.opens(t, c.inventory, k.answer) {
				t.Errorf("the %s %s is dead: it was not renewed", k.name, k.ID)
			}
		})
		return fmt.Sprintf("%d work", len(c.kept))
	})
	t.Logf("%d answers of standbys differed from the active node's", c.nodes.Stale())
}

func (c *cluster) row(t *testing.T, fault string, run func(*testing.T) string) {
	t.Run(fault, func(t *testing.T) {
		seen := "not all of it"
		t.Cleanup(func() { results.other(fault, seen, !t.Failed()) })
		seen = run(t)
	})
}

// crowded runs do for each number below n, with a few callers.
func (c *cluster) crowded(t *testing.T, n int, do func(i int)) {
	t.Helper()
	next := make(chan int)
	var callers sync.WaitGroup
	for range 12 {
		callers.Go(func() {
			for i := range next {
				do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	callers.Wait()
}

// ends requests credentials of a kind. It keeps one of four, and ends the others at once.
func (c *cluster) ends(t *testing.T, k kind) string {
	name := strings.ReplaceAll(k.name, "-", "")
	subject := "spiffe://acme.test/standbys/" + name
	each := c.each
	if k.name == "kubernetes" { // Vault sends the cluster five requests a second
		each = min(each, 20)
	}
	client, began, stale := c.client(t, subject), time.Now(), c.nodes.Stale()
	var mu sync.Mutex
	confirmed, open := 0, map[string]answer{}
	c.crowded(t, 4*each, func(i int) {
		job := fmt.Sprintf("%s-%d", name, i)
		body := k.body()
		body["scope"], body["task"] = "test."+k.name, job
		got, err := call(t.Context(), client, c.stack.URL+"/v1/tokens", body)
		if err != nil || !got.has() {
			t.Errorf("got status %d %s, %v; want a credential", got.status, got.Code, err)
			return
		}
		c.inventory.deliver(got.ID)
		var ended answer
		switch i % 4 {
		case 0:
			ended, err = call(t.Context(), client, c.stack.URL+"/v1/issuances/"+got.ID+"/release", nil)
		case 1:
			ended, err = call(t.Context(), c.admin, c.stack.URL+"/v1/revocations", map[string]any{"id": got.ID, "reason": "test"})
		case 2:
			ended, err = call(t.Context(), client, c.stack.URL+"/v1/tasks/"+job+"/end", map[string]any{})
		case 3:
			c.mu.Lock()
			defer c.mu.Unlock()
			c.kept = append(c.kept, kept{k, got})
			return
		}
		sure := err == nil && len(ended.Ended) == 1 && slices.Contains([]string{"released", "revoked"}, ended.Ended[0].Status)
		if sure && k.opens(t, c.inventory, got) {
			t.Errorf("%s is %s, and works", got.ID, ended.Ended[0].Status)
		}
		mu.Lock()
		defer mu.Unlock()
		if sure {
			confirmed++
		} else {
			open[got.ID] = got
		}
	})
	took := time.Since(began)
	c.awaitEnd(t, subject, time.Now().Add(grace), func(r row) bool { _, is := open[r.ID]; return is })
	for id, got := range open {
		if k.opens(t, c.inventory, got) {
			t.Errorf("%s has ended by the record, and works", id)
		}
	}
	t.Logf("%d credentials in %s, %d stale answers", 4*each, took.Round(time.Second), c.nodes.Stale()-stale)
	return fmt.Sprintf("%d ends, %d confirmed at once, nothing alive", 3*each, confirmed)
}

// election mints while there is no active node. A mint that Vault may have carried out is unknown until nothing of it lives, and one that
// failed has made nothing.
func (c *cluster) election(t *testing.T) string {
	const subject = "spiffe://acme.test/standbys/election"
	client := c.client(t, subject)
	body := map[string]any{"scope": "test.vault-token", "task": task, "params": map[string]any{"agent": "researcher"}}
	until := time.Now().Add(electionSpan)
	c.nodes.Elect(electionSpan)
	refused := 0
	for time.Now().Before(until.Add(-500 * time.Millisecond)) {
		var mu sync.Mutex
		c.crowded(t, 12, func(int) {
			if got, err := call(t.Context(), client, c.stack.URL+"/v1/tokens", body); err != nil || got.has() {
				t.Errorf("got status %d, %v; want no credential", got.status, err)
			}
			mu.Lock()
			defer mu.Unlock()
			refused++
		})
	}
	counts, failed := map[string]int{}, map[string]bool{}
	for _, r := range c.inventory.rows(t.Context(), t, subject) {
		counts[r.Status]++
		failed[r.ID] = r.Status == "failed"
	}
	for _, tok := range c.inventory.tokens(t.Context(), t) {
		if failed[tok.issuance] {
			t.Errorf("the record of %s says that nothing was made, and its token lives", tok.issuance)
		}
	}
	if counts["unknown"] > 3*12 {
		t.Errorf("%d of %d mints may have made something: want only those that were under way", counts["unknown"], refused)
	}
	began := time.Now()
	for {
		got, err := call(t.Context(), client, c.stack.URL+"/v1/tokens", body)
		if err == nil && got.has() {
			c.inventory.deliver(got.ID)
			break
		}
		if time.Since(began) > patience(electionSpan+back) {
			t.Fatalf("still refused %s later: status %d %s", time.Since(began), got.status, got.Code)
		}
		pauseFor(t.Context(), 100*time.Millisecond)
	}
	return fmt.Sprintf("%d mints refused, of which %d are unknown until nothing lives", refused, counts["unknown"])
}
