// Package repo_test holds what the repository promises as a whole: who may import whom, that documents lead to tests that exist, and the
// licences of what the binary links.
package repo_test

import (
	"fmt"
	"os"
	"testing"
)

// The tests read the repository from its root.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
