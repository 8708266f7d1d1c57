package scopes

import (
	"maps"
	"slices"

	"github.com/cedar-policy/cedar-go"
)

// Unindexed returns a copy of the catalogue that evaluates every policy for every request.
func (c *Catalogue) Unindexed() *Catalogue {
	whole := *c
	var all []int
	for i := range c.policies {
		all = append(all, i)
	}
	whole.index = index{cedar.EntityUID{}: {cedar.EntityUID{}: all}}
	return &whole
}

// Validations returns the validator's messages for each policy: against the part of the schema that concerns it, and
// against the whole schema.
func Validations(files []File) (part, whole map[string][]string) {
	var problems Problems
	c := &Catalogue{scopes: map[string]*definition{}}
	for _, f := range files {
		if isScopeFile(f.Name) {
			c.readScopes(f, &problems)
		} else {
			c.policies = append(c.policies, readPolicies(f, &problems)...)
		}
	}
	c.names = slices.Sorted(maps.Keys(c.scopes))
	tree := newTree()
	for _, name := range c.names {
		addAction(tree.Actions, c.scopes[name].scope)
	}
	byPart, byWhole := newSchema(c).validate, compileSchema(tree)
	part, whole = map[string][]string{}, map[string][]string{}
	for _, p := range c.policies {
		part[p.Text], whole[p.Text] = byPart(p), byWhole(p)
	}
	return part, whole
}
