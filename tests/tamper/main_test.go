// Package tamper_test changes ledgers as only the owner of the database can, one change at a time, and checks that an auditor
// finds each change and names it correctly. `make tamper` runs all of it.
//
// It must never accept another finding in place of the expected one.
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
