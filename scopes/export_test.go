package scopes

import "github.com/cedar-policy/cedar-go"

// Unindexed is the catalogue as it would be if every policy might be about every ask.
func (c *Catalogue) Unindexed() *Catalogue {
	whole := *c
	var all []int
	for i := range c.policies {
		all = append(all, i)
	}
	whole.index = index{cedar.EntityUID{}: {cedar.EntityUID{}: all}}
	return &whole
}
