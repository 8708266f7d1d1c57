package scopes

import (
	"slices"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
	"github.com/cedar-policy/cedar-go/x/exp/eval"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Offer is a scope that a sandbox may request.
type Offer struct {
	Scope    *Scope
	Approval Consent
}

// Consent says whether people have to approve a request.
type Consent string

// How often people are asked.
const (
	ConsentNever  Consent = "never"
	ConsentMaybe  Consent = "maybe" // it depends on the request
	ConsentAlways Consent = "always"
)

// Offers returns the scopes for which policy does not deny every request of a sandbox, sorted by name. It does not know a
// request's parameters, TTL, task or proofs, so it treats a condition on them as one that may or may not hold. So Offers
// includes everything that Decide would allow or leave pending, but Decide may still deny a request for an offered scope.
func (c *Catalogue) Offers(id spiffeid.ID) []Offer {
	who := sandbox(id)
	var offers []Offer
	for _, name := range c.names {
		def := c.scopes[name]
		action := cedar.Entity{UID: def.action, Parents: def.parents}
		o := outlook{def: def, q: question{principal: who, action: action, about: some{c.policies, c.index.about(who, action)}}}
		now := o.open(false)
		later := def.scope.Approval != nil && o.open(true)
		offer := Offer{Scope: def.scope.clone(), Approval: ConsentNever}
		switch {
		case !now && !later:
			continue
		case !now:
			offer.Approval = ConsentAlways
		case later:
			offer.Approval = ConsentMaybe
		}
		offers = append(offers, offer)
	}
	return offers
}

// truth is the set of values that a condition can have over all requests. Evaluation may fail instead, which never
// permits.
type truth struct{ yes, no bool }

var unknown = truth{yes: true, no: true}

func known(holds bool) truth { return truth{yes: holds, no: !holds} }

func (t truth) not() truth { return truth{yes: t.no, no: t.yes} }

// and short-circuits like Cedar's: it ignores next if t is always false.
func (t truth) and(next truth) truth {
	return truth{yes: t.yes && next.yes, no: t.no || t.yes && next.no}
}

func (t truth) or(next truth) truth { return t.not().and(next.not()).not() }

// outlook covers all requests of one sandbox for one scope.
type outlook struct {
	def *definition
	q   question
	env eval.Env
}

// open reports whether policy may permit some request, with or without approval.
func (o outlook) open(approved bool) bool {
	o.env = eval.Env{
		Entities: o.q, Principal: o.q.principal.UID, Action: o.q.action.UID,
		Context: cedar.NewRecord(cedar.RecordMap{"approved": cedar.Boolean(approved)}),
	}
	permitted := false
	for _, i := range o.q.about.places {
		p := o.q.about.policies[i]
		switch {
		case p.Effect == EffectPermit:
			permitted = permitted || o.policy(p.tree()).yes
		case !o.policy(p.tree()).no:
			return false // it forbids every request, or it errs, which denies too
		}
	}
	return permitted
}

func (o outlook) policy(p *ast.Policy) truth {
	holds := heads(p.Principal, o.q.principal).and(heads(p.Action, o.q.action)).and(o.def.resourceMatches(p.Resource))
	for _, condition := range p.Conditions {
		if !holds.yes {
			return holds
		}
		body := o.condition(condition.Body)
		if condition.Condition == ast.ConditionUnless {
			body = body.not()
		}
		holds = holds.and(body)
	}
	return holds
}

// heads reports whether a policy's head matches an entity. All groups of the entity must be its direct parents.
func heads(head ast.IsScopeNode, e cedar.Entity) truth {
	in := func(group cedar.EntityUID) bool { return group == e.UID || e.Parents.Contains(group) }
	switch h := head.(type) {
	case ast.ScopeTypeAll:
		return known(true)
	case ast.ScopeTypeEq:
		return known(h.Entity == e.UID)
	case ast.ScopeTypeIn:
		return known(in(h.Entity))
	case ast.ScopeTypeInSet:
		return known(slices.ContainsFunc(h.Entities, in))
	case ast.ScopeTypeIs:
		return known(h.Type == e.UID.Type)
	case ast.ScopeTypeIsIn:
		return known(h.Type == e.UID.Type && in(h.Entity))
	}
	return unknown
}

// resourceMatches reports whether a head may match a resource of the scope.
func (d *definition) resourceMatches(head ast.IsScopeNode) truth {
	if _, all := head.(ast.ScopeTypeAll); all {
		return known(true)
	}
	named := headLiterals(head)
	if len(named) > 0 && !slices.ContainsFunc(named, func(uid cedar.EntityUID) bool { return d.shape.MatchString(string(uid.ID)) }) {
		return known(false)
	}
	return unknown
}

func (o outlook) condition(n ast.IsNode) truth {
	switch v := n.(type) {
	case ast.NodeTypeNot:
		return o.condition(v.Arg).not()
	case ast.NodeTypeAnd:
		return o.condition(v.Left).and(o.condition(v.Right))
	case ast.NodeTypeOr:
		return o.condition(v.Left).or(o.condition(v.Right))
	case ast.NodeTypeHas:
		if params, ok := v.Arg.(ast.NodeTypeAccess); ok && isContext(params.Arg) && params.Value == "params" {
			_, has := o.def.scope.Params[string(v.Value)]
			return known(has)
		}
	}
	// An expression that depends on more than the sandbox, the scope, and whether people approved the request may hold or not.
	more := false
	ast.Inspect(ast.NewNode(n), func(n ast.IsNode) bool {
		access, ok := n.(ast.NodeTypeAccess)
		if ok && isContext(access.Arg) && access.Value == "approved" {
			return false
		}
		v, ok := n.(ast.NodeTypeVariable)
		more = more || ok && (v.Name == "context" || v.Name == "resource")
		return true
	})
	if more {
		return unknown
	}
	value, err := eval.Eval(n, o.env)
	if holds, ok := value.(cedar.Boolean); ok && err == nil {
		return known(bool(holds))
	}
	return unknown
}
