package mint_test

import (
	"slices"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/mint"
	"github.com/google/go-cmp/cmp"
)

var (
	epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	// With these values, a version settles 5m45s after its creation (30s + 5m + 15s of slack), and a replaced one stays for
	// another 15m15s.
	waits   = mint.Config{Refresh: 30 * time.Second, JWKSMaxAge: 5 * time.Minute, MaxTTL: 15 * time.Minute}
	settled = 5*time.Minute + 45*time.Second
	gone    = settled + 15*time.Minute + 15*time.Second
)

func at(d time.Duration) time.Time { return epoch.Add(d) }

func TestRotation(t *testing.T) {
	const day = 24 * time.Hour
	one := []mint.Born{{1, at(0)}}
	two := []mint.Born{{1, at(0)}, {2, at(day)}}
	hasty := []mint.Born{{1, at(0)}, {2, at(day)}, {3, at(day + time.Minute)}}
	fresh := []mint.Born{{1, at(0)}, {2, at(time.Second)}}
	for _, tc := range []struct {
		name      string
		born      []mint.Born
		floor     int
		now       time.Time
		sign      int
		published []int
	}{
		{"a key's first version signs at once", one, 1, at(0), 1, []int{1}},
		{"even when Vault's clock is ahead", one, 1, at(-3 * time.Second), 1, []int{1}},
		{"a new version is published but does not sign", two, 1, at(day), 1, []int{1, 2}},
		{"not a nanosecond early", two, 1, at(day + settled - 1), 1, []int{1, 2}},
		{"the new one signs when all verifiers have it", two, 1, at(day + settled), 2, []int{1, 2}},
		{"the old one stays for what it signed", two, 1, at(day + gone - 1), 2, []int{1, 2}},
		{"and then goes", two, 1, at(day + gone), 2, []int{2}},
		{"two rotations in a row: neither signs early", hasty, 1, at(day + settled - 1), 1, []int{1, 2, 3}},
		{"the first of them settles first", hasty, 1, at(day + settled), 2, []int{1, 2, 3}},
		{"then the second", hasty, 1, at(day + settled + time.Minute), 3, []int{1, 2, 3}},
		{"they leave in order", hasty, 1, at(day + gone), 3, []int{2, 3}},
		{"until the last is alone", hasty, 1, at(day + gone + time.Minute), 3, []int{3}},
		{"a key rotated at birth: the oldest signs", fresh, 1, at(2 * time.Second), 1, []int{1, 2}},
		{"a raised minimum takes effect at once", two, 2, at(day + time.Second), 2, []int{1, 2}},
		{"a minimum above all versions leaves none", two, 3, at(2 * day), 0, []int{2}},
		{"no versions", nil, 1, at(0), 0, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := mint.SigningVersion(tc.born, tc.floor, tc.now, waits); got != tc.sign {
				t.Errorf("signing: got version %d, want %d", got, tc.sign)
			}
			if diff := cmp.Diff(tc.published, mint.PublishedVersions(tc.born, tc.now, waits)); diff != "" {
				t.Errorf("published (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRotationNeverStrandsAToken simulates rotations at every spacing, with replicas that lag by as much as Refresh and verifiers
// that cache for as long as they may. Whatever any replica signs, at any time, must verify with any of those caches until it
// expires.
func TestRotationNeverStrandsAToken(t *testing.T) {
	const step = 15 * time.Second
	for gap := time.Duration(0); gap <= 30*time.Minute; gap += 5 * time.Minute {
		born := []mint.Born{{1, at(-24 * time.Hour)}, {2, at(0)}, {3, at(gap)}, {4, at(2*gap + time.Minute)}}
		seen := func(read time.Time) []mint.Born {
			return slices.DeleteFunc(slices.Clone(born), func(b mint.Born) bool { return b.At.After(read) })
		}
		for now := at(-time.Minute); now.Before(at(2*gap + time.Hour)); now = now.Add(step) {
			for _, lag := range []time.Duration{0, waits.Refresh} {
				v := mint.SigningVersion(seen(now.Add(-lag)), 1, now, waits)
				for _, use := range []time.Time{now, now.Add(waits.MaxTTL / 2), now.Add(waits.MaxTTL)} {
					for _, cached := range []time.Duration{0, waits.JWKSMaxAge} {
						for _, behind := range []time.Duration{0, waits.Refresh} {
							served := use.Add(-cached)
							keys := mint.PublishedVersions(seen(served.Add(-behind)), served, waits)
							if !slices.Contains(keys, v) {
								t.Fatalf("gap %v: version %d signed at %v, but at %v a cache of %v from a replica %v behind holds %v",
									gap, v, now.Sub(epoch), use.Sub(epoch), cached, behind, keys)
							}
						}
					}
				}
			}
		}
	}
}
