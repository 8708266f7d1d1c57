//go:build !linux

package main

import "testing"

// execAtTerminal does nothing: only on Linux can the test make a terminal.
func (s *session) execAtTerminal(*testing.T) {}
