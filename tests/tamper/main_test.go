// Package tamper_test changes ledgers as only somebody can who owns the database, one thing at a time, and looks whether
// an auditor finds it and names it rightly. `make tamper` runs all of it.
//
// It must never take another finding for the one that was to be made.
package tamper_test

import (
	"flag"
	"os"
	"sync/atomic"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit"
)

var all = flag.Bool("all", false, "tamper with everything, and not with a sample only")

var passed, failed atomic.Int64

func TestMain(m *testing.M) {
	flag.Parse()
	code := testkit.Main(m)
	os.Exit(testkit.Ended(code, int(passed.Load()), int(failed.Load())))
}
