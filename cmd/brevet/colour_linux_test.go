package main

import (
	"os"
	"testing"
)

// TestDemoIsBoldOnlyOnATerminal checks that the demo is bold on a terminal, unless NO_COLOR is set, and never in a file.
func TestDemoIsBoldOnlyOnATerminal(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = terminal.Close() }()
	file, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	for _, tc := range []struct {
		name, noColour string
		out            *os.File
		want           bool
	}{
		{"terminal", "", terminal, true},
		{"terminal, not wanted", "1", terminal, false},
		{"file", "", file, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv("NO_COLOR", tc.noColour)
			if got := colourful(tc.out); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}
