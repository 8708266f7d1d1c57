// Package upgrade_test takes two replicas behind a balancer, real processes of `brevet serve`, from one version to another and
// back while sandboxes, a gateway, an admin, an auditor and people keep calling. Every call has to be answered: a call that is
// shed (429 or 503, with Retry-After) is repeated, and any other failure fails the step. `make upgrade` upgrades from the version
// before the last migration, or from HEAD while the baseline is the last one. Without -from the replicas are restarted, one after the
// other, at this version.
//
// It must never count a step as passed if a kind of call did not succeed in it, nor a call that was cut as one that was shed.
package upgrade_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/testkit"
)

var (
	from     = flag.String("from", "", "the binary of the version to begin with")
	fromName = flag.String("from-name", "the version before", "what that version is called in the rows")
)

// this is the binary of this tree.
var this string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "brevet-upgrade-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	this = filepath.Join(dir, "brevet")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", this, "../../cmd/brevet").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building brevet: %v\n%s", err, out)
		return 1
	}
	if err := devstack.Prepare(ctx, func(line string) { fmt.Fprintln(os.Stderr, line) }); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := testkit.Main(m)
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	return code
}
