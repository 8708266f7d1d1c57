// Package canary_test has a broker make and take secrets of every kind, while everything that keeps a trace of its work is set to
// keep the most it can, and then looks for each secret, in each spelling, in all of that (I9). `make canary` runs it.
//
// It must never take a place for clean in which it would not have found what it has put there itself.
package canary_test

import (
	"os"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }
