package testkit

import (
	"flag"
	"fmt"
)

// Ended prints what a suite ends with, and returns its exit code. What failed outside of its rows, such as the start of its servers,
// is one more that failed; and a suite of which nothing ran has failed, unless some of its tests were chosen.
func Ended(code, passed, failed int) int {
	if failed == 0 && (code != 0 || passed == 0 && !chosen()) {
		failed = 1
	}
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	return max(code, min(failed, 1))
}

func chosen() bool {
	for _, name := range []string{"test.run", "test.list"} {
		if f := flag.Lookup(name); f != nil && f.Value.String() != "" {
			return true
		}
	}
	return false
}
