//go:build race

package main

import "os"

// The binary under test is built like the tests, so that the race detector also checks real processes. By default each of
// them would wait a second before it exits.
func init() {
	buildFlags = append(buildFlags, "-race")
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0")
}
