package testkit

import (
	"flag"
	"fmt"
)

// Ended prints the totals of a suite and returns its exit code. A failure outside the suite's rows, such as a server that
// did not start, counts as one more failure. A suite that ran nothing has failed, unless -test.run or -test.list is set.
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
