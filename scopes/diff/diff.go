// Package diff compares two versions of a catalogue: what changed, and whether callers can get more or less by it.
//
// It must never call a change narrower, or without effect, if some caller can get more by it. When in doubt, it says Changed.
package diff

import (
	"maps"
	"slices"

	"github.com/brevet-dev/brevet/scopes"
)

// Reach says how a change affects what callers can get. Widened and Narrowed consider every request that anybody could
// make. They ignore one thing: a policy that fails to evaluate denies the request (scopes.ReasonPolicyError), and any
// change can introduce or remove such a failure.
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
	default:
		return r
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

// Summary counts scopes and policies together.
type Summary struct {
	Add     int `json:"add"`
	Change  int `json:"change"`
	Remove  int `json:"remove"`
	Widened int `json:"widened"` // how many of them widen reach in any part
	Unclear int `json:"unclear"` // how many of the others have an unknown reach
}

// Summary counts the changes.
func (d Diff) Summary() Summary {
	var s Summary
	count := func(change Change, reach Reach, widens bool) {
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
	for _, c := range d.Scopes {
		widens := func(f FieldChange) bool { return f.Reach == Widened }
		count(c.Change, c.Reach, c.Reach == Widened || slices.ContainsFunc(c.Fields, widens))
	}
	for _, c := range d.Policies {
		count(c.Change, c.Reach, c.Reach == Widened)
	}
	return s
}

// Empty reports whether both catalogues are the same version. Files that differ only in comments are different versions,
// although Compare then lists no scope and no policy.
func (d Diff) Empty() bool { return d.From == d.To }

// Compare returns what replacing from by to would change; nil stands for an empty catalogue. Adding or removing a scope
// has reach Same if no policy could permit the scope.
func Compare(from, to *scopes.Catalogue) Diff {
	if from == nil {
		from = &scopes.Catalogue{}
	}
	if to == nil {
		to = &scopes.Catalogue{}
	}
	return Diff{From: from.Digest(), To: to.Digest(), Scopes: compareScopes(from, to), Policies: comparePolicies(from, to)}
}

func compareScopes(from, to *scopes.Catalogue) []ScopeChange {
	reachOfNew := func(c *scopes.Catalogue, name string) Reach {
		if c.Permittable(name) {
			return Widened
		}
		return Same
	}
	before, after := byName(from), byName(to)
	var out []ScopeChange
	for _, name := range unionKeys(before, after) {
		a, was := before[name]
		b, is := after[name]
		change := ScopeChange{Name: name}
		switch {
		case !was:
			change.Change, change.Reach, change.Fields = Added, reachOfNew(to, name), fieldsOf(b)
		case !is:
			change.Change, change.Reach, change.Fields = Removed, reachOfNew(from, name).opposite(), fieldsOf(a)
			for i, f := range change.Fields {
				change.Fields[i].Old, change.Fields[i].New = f.New, ""
			}
		default:
			var fields fieldDiff
			fields.scope(a, b, reachOfAuthority(from, to, a, b))
			change.Change, change.Fields, change.Reach = Modified, fields.changes, Same
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

func byName(c *scopes.Catalogue) map[string]*scopes.Scope {
	out := map[string]*scopes.Scope{}
	for _, s := range c.Scopes() {
		out[s.Name] = s
	}
	return out
}

// fieldsOf lists all fields of a scope, as new.
func fieldsOf(s *scopes.Scope) []FieldChange {
	var out fieldDiff
	out.scope(&scopes.Scope{}, s, Same)
	for i := range out.changes {
		out.changes[i].Reach = Same
	}
	return out.changes
}

// reachOfAuthority returns the reach of a change of authority. Guardrails are written for the higher classes, so a lower
// class is wider, unless some policy depends on the class in another way.
func reachOfAuthority(from, to *scopes.Catalogue, before, after *scopes.Scope) Reach {
	lower, higher, reach := after, before, Widened
	switch {
	case before.Authority == after.Authority:
		return Same
	case after.Authority.Rank() > before.Authority.Rank():
		lower, higher, reach = before, after, Narrowed
	}
	if from.FavoursHigher(lower, higher) || to.FavoursHigher(lower, higher) {
		return Changed
	}
	return reach
}

func comparePolicies(from, to *scopes.Catalogue) []PolicyChange {
	reachOfNew := func(p scopes.Policy) Reach {
		if p.Effect == scopes.EffectPermit {
			return Widened
		}
		return Narrowed
	}
	ids := slices.Concat(from.Policies(), to.Policies())
	slices.Sort(ids)
	var out []PolicyChange
	for _, id := range slices.Compact(ids) {
		a, was := from.Policy(id)
		b, is := to.Policy(id)
		change := PolicyChange{ID: id, Effect: b.Effect, Old: a.Text, New: b.Text}
		switch {
		case !was:
			change.Change, change.Reach = Added, reachOfNew(b)
		case !is:
			change.Change, change.Reach, change.Effect = Removed, reachOfNew(a).opposite(), a.Effect
		case a.Text == b.Text:
			continue
		case a.Effect != b.Effect:
			change.Change, change.Reach = Modified, reachOfNew(b)
		case from.SamePolicy(to, id):
			change.Change, change.Reach = Modified, Same
		default:
			change.Change, change.Reach = Modified, Changed
		}
		out = append(out, change)
	}
	return out
}

func unionKeys[V any](a, b map[string]V) []string {
	keys := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(keys)
	return slices.Compact(keys)
}
