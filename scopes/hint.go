package scopes

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"
)

// maxTries bounds the work that a denied request can cause: each try costs as much as a decision.
const maxTries = 16

// narrowest returns the nearest request for which this subject would not be denied, and its outcome; nil if there is
// none. Each proposal is decided first, so a hint is never wrong.
func (c *Catalogue) narrowest(ask Ask, denied Decision, decide func(Ask) (Decision, error)) (*Ask, Outcome) {
	tries := 0
	for candidate := range c.candidates(ask, denied) {
		if tries++; tries > maxTries {
			break
		}
		d, err := decide(candidate)
		if err == nil && d.Outcome != Deny {
			return &candidate, d.Outcome
		}
	}
	return nil, Deny
}

// candidates yields requests from the nearest to the farthest: the same scope for a shorter time, the same scope with a
// smaller number, then a related scope. Numbers and times are lowered to a threshold of a policy.
func (c *Catalogue) candidates(ask Ask, denied Decision) iter.Seq[Ask] {
	return func(yield func(Ask) bool) {
		for _, seconds := range c.below("ttl", int64(denied.TTL/time.Second), 1) {
			shorter := ask
			shorter.Params, shorter.TTL = maps.Clone(denied.Params), time.Duration(seconds)*time.Second
			if !yield(shorter) {
				return
			}
		}
		for _, name := range sortedKeys(denied.Params) {
			value, ok := denied.Params[name].(int64)
			if !ok {
				continue
			}
			for _, n := range c.below("params."+name, value, denied.Scope.Params[name].Min) {
				smaller := ask
				smaller.Params = maps.Clone(denied.Params)
				smaller.Params[name] = n
				if ask.TTL != 0 {
					smaller.TTL = denied.TTL
				}
				if !yield(smaller) {
					return
				}
			}
		}
		// A related scope has no more authority than the denied one. If the name is not a scope, a typing error counts as
		// close too, and scopes with the least authority come first among equally close ones.
		type neighbour struct {
			def         *definition
			away, order int
		}
		var near []neighbour
		for _, name := range c.names {
			def, shared := c.scopes[name], sharedSegments(ask.Scope, name)
			rank := def.scope.Authority.Rank()
			if denied.Scope != nil {
				if shared > 0 && name != ask.Scope && rank <= denied.Scope.Authority.Rank() {
					near = append(near, neighbour{def, -shared, -rank})
				}
			} else if away := distance(ask.Scope, name); shared > 0 || away <= maxTypo {
				near = append(near, neighbour{def, away, rank})
			}
		}
		slices.SortStableFunc(near, func(a, b neighbour) int {
			return cmp.Or(cmp.Compare(a.away, b.away), cmp.Compare(a.order, b.order))
		})
		for _, n := range near {
			if !yield(project(ask, n.def)) {
				return
			}
		}
	}
}

// below returns the values next to each threshold that are less than value and at least lo, the largest first.
func (c *Catalogue) below(name string, value, lo int64) []int64 {
	var out []int64
	for _, at := range c.thresholds[name] {
		for _, n := range []int64{at - 1, at, at + 1} {
			if n < value && n >= lo {
				out = append(out, n)
			}
		}
	}
	slices.Sort(out)
	out = slices.Compact(out)
	slices.Reverse(out)
	return out
}

// project requests another scope with those parameters that it also has, and with the caller's key if the scope certifies
// it.
func project(ask Ask, def *definition) Ask {
	out := Ask{Scope: def.scope.Name, Params: map[string]any{}, RequestContext: ask.RequestContext}
	for name := range def.scope.Params {
		if value, ok := ask.Params[name]; ok {
			out.Params[name] = value
		}
	}
	csr, publicKey := def.scope.Credential.certifies()
	if csr {
		out.CSR = ask.CSR
	}
	if publicKey {
		out.PublicKey = ask.PublicKey
	}
	if ask.TTL != 0 {
		out.TTL = min(ask.TTL, def.scope.TTL.Max)
	}
	return out
}

// maxTypo is the edit distance up to which a known name counts as the intended one.
const maxTypo = 3

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
