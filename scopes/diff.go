package scopes

import (
	"maps"
	"slices"
)

// Reach says how a change affects what callers can get. Widened and Narrowed consider every request that anybody could
// make. They ignore one thing: a policy that fails to evaluate denies the request (ReasonPolicyError), and any change can
// introduce or remove such a failure.
type Reach string

// The reaches of a change.
const (
	Widened  Reach = "widened"  // callers can get more, for longer or more easily, and nothing less
	Narrowed Reach = "narrowed" // the opposite
	Changed  Reach = "changed"  // unknown, or both: a person has to check
	Same     Reach = "same"     // no effect on decisions: titles, comments, layout
)

// and returns the reach of two changes together.
func (r Reach) and(other Reach) Reach {
	switch {
	case r == other || other == Same:
		return r
	case r == Same:
		return other
	default:
		return Changed
	}
}

// opposite returns the reach of the reverse change.
func (r Reach) opposite() Reach {
	switch r {
	case Widened:
		return Narrowed
	case Narrowed:
		return Widened
	case Changed, Same:
		return r
	default:
		return Changed
	}
}

// Change is what happened to a scope or a policy.
type Change string

// The kinds of change.
const (
	Added    Change = "added"
	Removed  Change = "removed"
	Modified Change = "changed"
)

// Diff lists what replacing one catalogue by another would change, by name. It is also its own JSON document.
type Diff struct {
	From     string         `json:"from,omitzero"` // the digest; empty if there was no catalogue
	To       string         `json:"to,omitzero"`
	Scopes   []ScopeChange  `json:"scopes,omitempty"`   // sorted by name
	Policies []PolicyChange `json:"policies,omitempty"` // sorted by id
}

// ScopeChange describes the changes to one scope.
type ScopeChange struct {
	Name   string        `json:"name"`
	Change Change        `json:"change"`
	Reach  Reach         `json:"reach"`
	Fields []FieldChange `json:"fields"` // in catalogue order; all fields unless Modified
}

// FieldChange is one field of a scope, with its old and new value in words. A value is empty if the field was or is
// absent.
type FieldChange struct {
	Field string `json:"field"` // such as ttl.max
	Old   string `json:"old,omitzero"`
	New   string `json:"new,omitzero"`
	Reach Reach  `json:"reach"` // Same in a scope that is added or removed entirely
}

// PolicyChange describes the change to one policy. Moving a policy to another file is not a change.
type PolicyChange struct {
	ID     string `json:"id"`
	Change Change `json:"change"`
	Reach  Reach  `json:"reach"`
	Effect string `json:"effect"` // the new effect; for a removed policy, the old one
	Old    string `json:"old,omitzero"`
	New    string `json:"new,omitzero"`
}

// Widens reports whether any part of the change widens reach, whatever the other parts do.
func (s ScopeChange) Widens() bool {
	return s.Reach == Widened || slices.ContainsFunc(s.Fields, func(f FieldChange) bool { return f.Reach == Widened })
}

// DiffSummary counts scopes and policies together.
type DiffSummary struct {
	Add     int `json:"add"`
	Change  int `json:"change"`
	Remove  int `json:"remove"`
	Widened int `json:"widened"` // how many of them widen reach in any part
	Unclear int `json:"unclear"` // how many of the others have an unknown reach
}

// Summary counts the changes.
func (d Diff) Summary() DiffSummary {
	var s DiffSummary
	for _, c := range d.Scopes {
		s.count(c.Change, c.Reach, c.Widens())
	}
	for _, c := range d.Policies {
		s.count(c.Change, c.Reach, c.Reach == Widened)
	}
	return s
}

func (s *DiffSummary) count(change Change, reach Reach, widens bool) {
	switch change {
	case Added:
		s.Add++
	case Removed:
		s.Remove++
	case Modified:
		s.Change++
	}
	switch {
	case widens:
		s.Widened++
	case reach == Changed:
		s.Unclear++
	}
}

// Empty reports whether both catalogues are the same version. Files that differ only in comments are different versions,
// although Diff then lists no scope and no policy.
func (d Diff) Empty() bool { return d.From == d.To }

// Plan compares two catalogues; nil stands for an empty one. Adding or removing a scope has reach Same if no policy could
// permit the scope.
func Plan(from, to *Catalogue) Diff {
	from, to = orEmpty(from), orEmpty(to)
	return Diff{From: from.digest, To: to.digest, Scopes: planScopes(from, to), Policies: planPolicies(from, to)}
}

func orEmpty(c *Catalogue) *Catalogue {
	if c == nil {
		return &Catalogue{}
	}
	return c
}

func planScopes(from, to *Catalogue) []ScopeChange {
	var out []ScopeChange
	for _, name := range unionKeys(from.scopes, to.scopes) {
		before, was := from.scopes[name]
		after, is := to.scopes[name]
		change := ScopeChange{Name: name}
		switch {
		case !was:
			change.Change, change.Reach, change.Fields = Added, reachOfNew(to, after), fieldsOf(after)
		case !is:
			change.Change, change.Reach, change.Fields = Removed, reachOfNew(from, before).opposite(), fieldsOf(before)
			for i, f := range change.Fields {
				change.Fields[i].Old, change.Fields[i].New = f.New, ""
			}
		default:
			change.Change, change.Fields = Modified, compareScopes(from, to, name)
			change.Reach = Same
			for _, f := range change.Fields {
				change.Reach = change.Reach.and(f.Reach)
			}
		}
		if len(change.Fields) > 0 {
			out = append(out, change)
		}
	}
	return out
}

func reachOfNew(c *Catalogue, d *definition) Reach {
	if c.policies.permittable(d) {
		return Widened
	}
	return Same
}

func planPolicies(from, to *Catalogue) []PolicyChange {
	before, after := from.policies.byID(), to.policies.byID()
	var out []PolicyChange
	for _, id := range unionKeys(before, after) {
		a, was := before[id]
		b, is := after[id]
		switch {
		case !was:
			out = append(out, PolicyChange{ID: id, Change: Added, Reach: b.reach(), Effect: b.effect(), New: b.text})
		case !is:
			out = append(out, PolicyChange{ID: id, Change: Removed, Reach: a.reach().opposite(), Effect: a.effect(), Old: a.text})
		case a.text != b.text:
			out = append(out, PolicyChange{ID: id, Change: Modified, Reach: rewritten(a, b), Effect: b.effect(), Old: a.text, New: b.text})
		}
	}
	return out
}

func (ps policies) byID() map[string]policy {
	out := make(map[string]policy, len(ps))
	for _, p := range ps {
		out[p.id] = p
	}
	return out
}

// reach returns the reach of adding the policy.
func (p policy) reach() Reach {
	if p.effect() == EffectPermit {
		return Widened
	}
	return Narrowed
}

func rewritten(a, b policy) Reach {
	switch {
	case a.effect() != b.effect():
		return b.reach()
	case a.meaning() == b.meaning():
		return Same
	default:
		return Changed
	}
}

func unionKeys[A, B any](a map[string]A, b map[string]B) []string {
	keys := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(keys)
	return slices.Compact(keys)
}
