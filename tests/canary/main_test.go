// Package canary_test makes a broker create and receive secrets of every kind, while everything that keeps a trace of its work
// keeps as much as it can. Then it searches all traces for each secret, in each spelling (I9). `make canary` runs it.
//
// It must never call a place clean unless it finds there the marker that it planted itself.
package canary_test

import (
	"os"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }
