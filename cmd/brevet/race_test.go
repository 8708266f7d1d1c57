//go:build race

package main

// The binary under test is built as the tests are, so that the race detector looks at real processes too.
func init() { buildFlags = append(buildFlags, "-race") }
