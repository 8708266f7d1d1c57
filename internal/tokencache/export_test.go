package tokencache

import "time"

// Elapsed returns the time passed by the monotonic or the wall clock, whichever is longer.
func Elapsed(from, to time.Time) time.Duration { return elapsed(from, to) }

// MaxCached is the largest number of cached tokens.
const MaxCached = maxCached

// Len returns how many tokens are cached. It must not run concurrently with another call.
func (c *Cache) Len() int {
	n := len(c.standings.young)
	for id := range c.standings.old {
		if _, both := c.standings.young[id]; !both {
			n++
		}
	}
	return n
}
