// Package history_test runs many callers that work on a few tokens, requests and keys at two replicas at once, while connections,
// replicas and Vault fail. It records every call with the times of its start and of its answer. Then it checks the history
// against small models: there must be an order, in which each call takes effect between its start and its answer, that the model
// allows. `make history` runs many seeds.
//
// It must never treat a call without an answer as one without an effect: the call may take effect at any later time.
//
// The calls, the replicas and the faults during which they happen, and the faults themselves follow from a seed. The interleaving
// of the calls does not: a failing seed is likely to fail again, but not certain to.
package history_test

import (
	"flag"
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit"
)

var (
	first = flag.Uint64("seed", 1, "the first seed")
	many  = flag.Int("seeds", 3, "how many seeds to run")
	tell  = flag.Bool("tell", false, "write every history down, and not just those that are not what they should be")
)

var passed, failed atomic.Int64

func TestMain(m *testing.M) {
	flag.Parse()
	code := testkit.Main(m)
	os.Exit(testkit.Ended(code, int(passed.Load()), int(failed.Load())))
}

func TestHistories(t *testing.T) {
	for seed := *first; seed < *first+uint64(*many); seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Cleanup(func() {
				if t.Failed() {
					failed.Add(1)
					fmt.Printf("seed %d failed: go test ./history -args -seed %d -seeds 1\n", seed, seed)
				} else {
					passed.Add(1)
				}
			})
			play(t, seed)
		})
	}
	if *many >= enough {
		tried(t, &together, inSome)
	}
}
