// Package hostile_test sends everything that docs/hostile-inputs.md numbers, H1 to H107, to a real deployment: two replicas
// behind TLS, on one Postgres and one Vault, with two trust domains and people who log in. `make hostile` runs it.
//
// A row is never skipped: a row that cannot be tried has failed.
package hostile_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/testkit"
)

var update = flag.Bool("update", false, "write the table of docs/hostile-inputs.md again")

func TestMain(m *testing.M) {
	flag.Parse()
	// On a machine that has never built Vault this takes minutes, which must not count towards a test's time.
	if err := devstack.Prepare(context.Background(), func(line string) { fmt.Fprintln(os.Stderr, line) }); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := testkit.Main(m)
	passed, failed := results.count()
	os.Exit(testkit.Ended(code, passed, failed))
}

// results counts the rows of this run.
var results board

type board struct {
	mu             sync.Mutex
	passed, failed int
}

func (b *board) add(ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ok {
		b.passed++
	} else {
		b.failed++
	}
}

func (b *board) count() (passed, failed int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.passed, b.failed
}
