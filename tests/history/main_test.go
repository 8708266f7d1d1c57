// Package history_test has many callers work on a few tokens, requests and keys at two replicas at once while connections,
// replicas and Vault fail, writes down every call with when it began and when its answer came, and holds what was written down
// to small models: whether there is an order, in which each call happens between its beginning and its answer, that the model
// allows. `make history` runs many seeds.
//
// It must never take a call without an answer for one that did nothing: it may have happened at any time later.
//
// What callers do, on which replica and during which fault, and the faults themselves, follow from a seed. How their calls
// interleave does not: a failing seed is likely to fail again, and not certain to.
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
