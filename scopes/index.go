package scopes

import (
	"iter"
	"slices"

	"github.com/cedar-policy/cedar-go"
)

// index finds the policies whose head may match a request without checking the others. It looks them up by the action or
// group that the head names, then by the principal or group. The zero EntityUID stands for a head that names none.
// Skipping the other policies changes nothing: a policy whose head does not match neither permits nor forbids, and never
// errs.
type index map[cedar.EntityUID]map[cedar.EntityUID][]int // positions in the policies

func newIndex(ps policies) index {
	x := index{}
	for i, p := range ps {
		for _, action := range namedOrAny(headLiterals(p.tree().Action)) {
			if x[action] == nil {
				x[action] = map[cedar.EntityUID][]int{}
			}
			for _, principal := range namedOrAny(headLiterals(p.tree().Principal)) {
				x[action][principal] = append(x[action][principal], i)
			}
		}
	}
	return x
}

func namedOrAny(named []cedar.EntityUID) []cedar.EntityUID {
	if len(named) == 0 {
		return []cedar.EntityUID{{}}
	}
	return named
}

// about returns the positions, in order, of the policies that may match a principal and an action. All groups of both
// must be their direct parents.
func (x index) about(principal, action cedar.Entity) []int {
	var places []int
	for a := range selfAndGroups(action) {
		byPrincipal := x[a]
		if len(byPrincipal) == 0 {
			continue
		}
		for p := range selfAndGroups(principal) {
			places = append(places, byPrincipal[p]...)
		}
	}
	slices.Sort(places)
	return slices.Compact(places) // a head can name two groups of one action
}

// selfAndGroups yields what a head that matches an entity may name: nothing, the entity, or one of its groups.
func selfAndGroups(e cedar.Entity) iter.Seq[cedar.EntityUID] {
	return func(yield func(cedar.EntityUID) bool) {
		if yield(cedar.EntityUID{}) && yield(e.UID) {
			e.Parents.All()(yield)
		}
	}
}

// some is the subset of the policies at these positions.
type some struct {
	policies policies
	places   []int
}

// All yields the policies by id, in order. Cedar's own sets number policies by their position in a file, which means
// nothing in a record.
func (s some) All() iter.Seq2[cedar.PolicyID, *cedar.Policy] {
	return func(yield func(cedar.PolicyID, *cedar.Policy) bool) {
		for _, i := range s.places {
			if !yield(cedar.PolicyID(s.policies[i].id), s.policies[i].cedar) {
				return
			}
		}
	}
}
