// Package mutants has small changes that each break one promise of SECURITY.md, and the test that must find each change. `make mutants`
// makes them one by one, in a copy that only the compiler sees, and fails if a test passes all the same.
package mutants

import (
	"slices"
	"strings"
)

// Mutant is a change that breaks a promise.
type Mutant struct {
	Claim  string // an invariant, threat or crash point of SECURITY.md: I1, T3, C5
	Breaks string // what the changed program does wrong
	File   string // path from the root of the module
	// Old occurs once in File. New replaces it.
	Old, New string
	// Package and Test name what must fail: a directory from the root of the module, and a pattern of go test -run.
	Package, Test string
	Args          []string // flags of the test itself
}

// TestName returns the name of the test, without its parts.
func (m Mutant) TestName() string {
	name, _, _ := strings.Cut(m.Test, "/")
	return strings.Trim(name, "^$()")
}

// All returns every mutant, in the order of the claims.
func All() []Mutant { return slices.Concat(invariants, threats, crashes) }
