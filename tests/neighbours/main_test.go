package neighbours_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/testkit"
)

func TestMain(m *testing.M) {
	if name := os.Getenv(loudly); name != "" {
		if err := beLoud(name); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// On a machine that has never built Vault this takes minutes, which must not count towards a test's time.
	if err := devstack.Prepare(context.Background(), func(line string) { fmt.Fprintln(os.Stderr, line) }); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(testkit.Main(m))
}
