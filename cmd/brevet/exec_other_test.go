//go:build !linux

package main

import "testing"

// execAtTerminal is for Linux, where a test can make a terminal.
func (s *session) execAtTerminal(*testing.T) {}
