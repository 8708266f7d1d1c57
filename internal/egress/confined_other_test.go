//go:build !linux

package egress_test

// firstProcess is no argument of a test.
const firstProcess = "\x00"

func confined() int { return 1 }
