package replay

import (
	"cmp"
	"maps"
	"slices"
)

const (
	maxGroups  = 10_000 // kept while counting
	maxSamples = 3      // per group and shift
)

// Report says what a draft would have changed. It is also its own JSON document.
type Report struct {
	Catalogue string          `json:"catalogue"` // the draft's digest
	Decisions int64           `json:"decisions"`
	Counts    map[Shift]int64 `json:"counts"` // their sum is Decisions
	Scopes    []Group         `json:"scopes,omitempty"`
	Sandboxes []Group         `json:"sandboxes,omitempty"` // by sandbox and scope
	// Unlisted counts the changes that are in no group of Scopes, and those in none of Sandboxes.
	Unlisted struct {
		Scopes    int64 `json:"scopes"`
		Sandboxes int64 `json:"sandboxes"`
	} `json:"unlisted"`
	// AtLeast is set if there were more groups than are kept. A listed group may then have more changes than it shows.
	AtLeast bool `json:"at_least,omitzero"`
}

// Group says what would have changed for one scope, or for one scope of one sandbox.
type Group struct {
	SPIFFEID string             `json:"spiffe_id,omitzero"`
	Scope    string             `json:"scope"`
	Changes  int64              `json:"changes"`
	Counts   map[Shift]int64    `json:"counts"`  // of changes only
	Samples  map[Shift][]string `json:"samples"` // a few ids each: the smallest, which for UUIDv7 are the oldest
}

// Report returns the exact totals and the groups with the most changes, at most top of each kind.
func (r *Replayer) Report(top int) Report {
	out := Report{Catalogue: r.draft.Digest(), Decisions: r.total, Counts: maps.Clone(r.counts)}
	out.Scopes, out.Unlisted.Scopes = r.scopes.top(top)
	out.Sandboxes, out.Unlisted.Sandboxes = r.pairs.top(top)
	out.AtLeast = r.scopes.dropped+r.pairs.dropped > 0
	return out
}

type groupKey struct{ spiffeID, scope string }

// groups counts changes by group. It bounds memory: if there are too many groups, it drops those with the fewest changes.
type groups struct {
	by      map[groupKey]*Group
	dropped int64 // changes of dropped groups
}

func newGroups() groups { return groups{by: map[groupKey]*Group{}} }

func (g *groups) add(key groupKey, shift Shift, id string) {
	group := g.group(key)
	group.Changes++
	group.Counts[shift]++
	group.sample(shift, id)
	g.prune()
}

func (g *groups) group(key groupKey) *Group {
	group, ok := g.by[key]
	if !ok {
		group = &Group{SPIFFEID: key.spiffeID, Scope: key.scope, Counts: map[Shift]int64{}, Samples: map[Shift][]string{}}
		g.by[key] = group
	}
	return group
}

// sample keeps the smallest ids, so the result does not depend on the order of the decisions.
func (group *Group) sample(shift Shift, id string) {
	ids := group.Samples[shift]
	at, twice := slices.BinarySearch(ids, id)
	if twice || at == maxSamples {
		return
	}
	ids = slices.Insert(ids, at, id)
	group.Samples[shift] = ids[:min(len(ids), maxSamples)]
}

func (g *groups) merge(other groups) {
	g.dropped += other.dropped
	for key, theirs := range maps.All(other.by) {
		ours := g.group(key)
		ours.Changes += theirs.Changes
		for shift, n := range maps.All(theirs.Counts) {
			ours.Counts[shift] += n
			for _, id := range theirs.Samples[shift] {
				ours.sample(shift, id)
			}
		}
	}
	g.prune()
}

// prune keeps only the top maxGroups/2 groups if there are more than maxGroups, so it rarely runs.
func (g *groups) prune() {
	if len(g.by) <= maxGroups {
		return
	}
	for _, group := range g.sorted()[maxGroups/2:] {
		g.dropped += group.Changes
		delete(g.by, groupKey{spiffeID: group.SPIFFEID, scope: group.Scope})
	}
}

func (g *groups) sorted() []*Group {
	return slices.SortedFunc(maps.Values(g.by), func(a, b *Group) int {
		return cmp.Or(-cmp.Compare(a.Changes, b.Changes), cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.SPIFFEID, b.SPIFFEID))
	})
}

// top returns copies of the groups with the most changes, and the number of changes in no such group.
func (g *groups) top(n int) ([]Group, int64) {
	var out []Group
	unlisted := g.dropped
	for i, group := range g.sorted() {
		if i >= n {
			unlisted += group.Changes
			continue
		}
		c := *group
		c.Counts, c.Samples = maps.Clone(group.Counts), maps.Clone(group.Samples)
		for shift, ids := range c.Samples {
			c.Samples[shift] = slices.Clone(ids)
		}
		out = append(out, c)
	}
	return out, unlisted
}
