//go:build race

package main

import "os"

// The binary under test is built as the tests are, so that the race detector looks at real processes too. By default
// each of them would wait a second at its end.
func init() {
	buildFlags = append(buildFlags, "-race")
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0")
}
