package scopes

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// maxTypo is how many letters may differ for a name to be the one that was meant.
const maxTypo = 3

// didYouMean ends a sentence about an unknown name.
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

// distance counts the letters to change, add or remove to turn a into b. Names
// longer than a scope's are as far as can be, so that the work is bounded.
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

// sharedSegments counts the leading words that two names have in common.
func sharedSegments(a, b string) int {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	n := 0
	for n < len(as) && n < len(bs) && as[n] == bs[n] {
		n++
	}
	return n
}

// short writes whole seconds as people do: 5m, not 5m0s.
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
