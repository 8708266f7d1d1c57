package scopes

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cedar-policy/cedar-go"
	expast "github.com/cedar-policy/cedar-go/x/exp/ast"
	expschema "github.com/cedar-policy/cedar-go/x/exp/schema"
	"github.com/cedar-policy/cedar-go/x/exp/schema/ast"
	"github.com/cedar-policy/cedar-go/x/exp/schema/validate"
)

const authorityPrefix = "authority:"

// schema is the Cedar schema of a catalogue. Only this file uses the validator, which its authors still call
// experimental.
type schema struct {
	text     string
	actions  map[string]bool // every scope and every group
	validate func(policy) []string
}

func newSchema(c *Catalogue) *schema {
	whole := newTree()
	for _, name := range c.names {
		addAction(whole.Actions, c.scopes[name].scope)
	}
	s := &schema{actions: make(map[string]bool, len(whole.Actions))}
	for action := range whole.Actions {
		s.actions[string(action)] = true
	}
	text, err := expschema.NewSchemaFromAST(whole).MarshalCedar()
	s.text = string(text)
	if err != nil {
		s.validate = refuseAll(err)
		return s
	}
	// Check each policy against the part of the schema that concerns it. The validator tries every action of its schema with
	// every policy, and with a thousand scopes nearly all of that work would be wasted.
	members := map[cedar.EntityUID][]string{}
	for _, name := range c.names {
		def := c.scopes[name]
		members[def.action] = append(members[def.action], name)
		for group := range def.parents.All() {
			members[group] = append(members[group], name)
		}
	}
	checks := map[string]func(policy) []string{}
	s.validate = func(p policy) []string {
		key, head, named := "", headLiterals(p.tree().Action), []cedar.EntityUID(nil)
		if len(head) > 0 {
			named = slices.Concat(head, p.conditionLiterals())
			key = fmt.Sprint(head, named)
		}
		if checks[key] == nil {
			tree := whole
			if len(head) > 0 {
				tree = c.part(head, named, members)
			}
			checks[key] = compileSchema(tree)
		}
		return checks[key](p)
	}
	return s
}

func newTree() *ast.Schema {
	tree := &ast.Schema{
		Entities: ast.Entities{
			ast.Ident(typePath): {}, ast.Ident(typeTrustDomain): {}, ast.Ident(typeResource): {},
			ast.Ident(typeSandbox): {ParentTypes: []ast.EntityTypeRef{ast.EntityTypeRef(typePath), ast.EntityTypeRef(typeTrustDomain)}},
		},
		Actions: ast.Actions{},
	}
	for _, a := range authorities {
		tree.Actions[cedar.String(authorityPrefix+string(a))] = ast.Action{}
	}
	return tree
}

// part returns the schema of the scopes that the head matches. It also contains the other actions that the policy names,
// with the groups above them, because a condition may refer to those.
func (c *Catalogue) part(head, named []cedar.EntityUID, members map[cedar.EntityUID][]string) *ast.Schema {
	tree := newTree()
	for _, uid := range head {
		for _, name := range members[uid] {
			addAction(tree.Actions, c.scopes[name].scope)
		}
	}
	for _, uid := range named {
		if of := members[uid]; len(of) > 0 {
			addAction(tree.Actions, c.scopes[of[0]].scope)
		}
		if _, there := tree.Actions[uid.ID]; uid.Type == typeAction && !there {
			tree.Actions[uid.ID] = ast.Action{}
		}
	}
	return tree
}

// addAction adds a scope and its groups: one for its authority, and one for each prefix of its name (github.issues.* and
// github.* for github.issues.read).
func addAction(actions ast.Actions, s Scope) {
	below := func(group string) []ast.ParentRef { return []ast.ParentRef{ast.ParentRefFromID(cedar.String(group))} }
	groups := prefixGroups(s.Name)
	for i, group := range groups {
		var parents []ast.ParentRef
		if i+1 < len(groups) {
			parents = below(groups[i+1])
		}
		actions[cedar.String(group)] = ast.Action{Parents: parents}
	}
	params := ast.RecordType{}
	for name, p := range s.Params {
		kind := ast.IsType(ast.String())
		switch p.Type {
		case ParamInt:
			kind = ast.Long()
		case ParamBool:
			kind = ast.Bool()
		case ParamString, ParamEnum:
		}
		params[cedar.String(name)] = ast.Attribute{Type: kind}
	}
	context := ast.RecordType{
		"params":   {Type: params},
		"ttl":      {Type: ast.Long()},
		"binding":  {Type: ast.String()},
		"approved": {Type: ast.Bool()},
		"user":     {Type: ast.RecordType{"id": {Type: ast.String()}, "groups": {Type: ast.Set(ast.String())}}, Optional: true},
	}
	for _, name := range contextNames {
		context[cedar.String(name)] = ast.Attribute{Type: ast.String()}
	}
	actions[cedar.String(s.Name)] = ast.Action{
		Parents: append(below(groups[0]), below(authorityPrefix+string(s.Authority))...),
		AppliesTo: &ast.AppliesTo{
			Principals: []ast.EntityTypeRef{ast.EntityTypeRef(typeSandbox)},
			Resources:  []ast.EntityTypeRef{ast.EntityTypeRef(typeResource)},
			Context:    context,
		},
	}
}

// compileSchema returns a strict check of one policy against a schema. The check returns everything that is wrong.
func compileSchema(tree *ast.Schema) func(policy) []string {
	resolved, err := expschema.NewSchemaFromAST(tree).Resolve()
	if err != nil {
		return refuseAll(err)
	}
	validator := validate.New(resolved, validate.WithStrict())
	return func(p policy) []string {
		err := validator.Policy("", (*expast.Policy)(p.cedar.AST()))
		if err == nil {
			return nil
		}
		// The validator ranges over maps, so sort its lines: the same mistake then always gives the same text.
		lines := strings.Split(err.Error(), "\n")
		slices.Sort(lines)
		return slices.Compact(lines)
	}
}

// refuseAll is the check if there is no usable schema: every policy fails.
func refuseAll(err error) func(policy) []string {
	return func(policy) []string { return []string{"the schema of the scopes is unusable: " + err.Error()} }
}

// prefixGroups lists the groups of a scope name, the narrowest first.
func prefixGroups(name string) []string {
	var groups []string
	for {
		dot := strings.LastIndexByte(name, '.')
		if dot < 0 {
			return groups
		}
		name = name[:dot]
		groups = append(groups, name+".*")
	}
}

// actionOf returns a scope's action and every group above it.
func actionOf(s Scope) (cedar.EntityUID, cedar.EntityUIDSet) {
	parents := []cedar.EntityUID{cedar.NewEntityUID(typeAction, cedar.String(authorityPrefix+string(s.Authority)))}
	for _, group := range prefixGroups(s.Name) {
		parents = append(parents, cedar.NewEntityUID(typeAction, cedar.String(group)))
	}
	return cedar.NewEntityUID(typeAction, cedar.String(s.Name)), cedar.NewEntityUIDSet(parents...)
}

func isAuthorityGroup(uid cedar.EntityUID) bool {
	name, ok := strings.CutPrefix(string(uid.ID), authorityPrefix)
	return ok && uid.Type == typeAction && Authority(name).Rank() >= 0
}
