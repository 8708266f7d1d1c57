package scopes

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// maxTypo is the edit distance up to which a known name counts as the intended one.
const maxTypo = 3

// didYouMean returns the end of a sentence about an unknown name.
func didYouMean(name string, known map[string]bool) string {
	best, least := "", maxTypo+1
	for _, k := range slices.Sorted(maps.Keys(known)) {
		if d := distance(name, k); d < least {
			best, least = k, d
		}
	}
	if best == "" {
		return "; use the name of a scope, a group such as github.*, or authority:read"
	}
	return "; did you mean " + best + "?"
}

// distance returns how many letters to change, add or remove to turn a into b. A name longer than any scope name gets the
// maximum distance without comparison, to bound the work.
func distance(a, b string) int {
	if len(a) > maxName+len(".*") || len(b) > maxName+len(".*") {
		return max(len(a), len(b))
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// sharedSegments counts the leading segments that two names have in common.
func sharedSegments(a, b string) int {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	n := 0
	for n < len(as) && n < len(bs) && as[n] == bs[n] {
		n++
	}
	return n
}

// short formats whole seconds the way people write them: 5m, not 5m0s.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
