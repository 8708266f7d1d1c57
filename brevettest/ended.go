package brevettest

import "fmt"

// Ended prints what a suite ends with, and returns its exit code. What failed outside of its rows, such as the start of its servers,
// is one more that failed; and a suite of which nothing ran has failed.
func Ended(code, passed, failed int) int {
	if failed == 0 && (code != 0 || passed == 0) {
		failed = 1
	}
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	return max(code, min(failed, 1))
}
