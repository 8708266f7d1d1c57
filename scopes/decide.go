package scopes

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cedar-policy/cedar-go"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Subject is who asks, as the attestation found it.
type Subject struct {
	ID      spiffeid.ID
	Expires time.Time // of the SVID
	Bound   bool      // presented an X.509-SVID over mTLS
	Proved  bool      // made a DPoP proof with the key that the token is to be bound to
	User    *User     // on whose behalf it asks, as their provider said; nil for nobody's
}

// Ask is what a sandbox asks for. Nothing in it says who asks.
type Ask struct {
	Scope  string
	Params map[string]any // string, bool, and whole numbers as JSON decoders give them
	TTL    time.Duration  // 0 for the scope's default
	Task   string
	// CSR (PEM) and PublicKey (OpenSSH) are the caller's own key, for scopes that
	// certify one.
	CSR, PublicKey string
}

// Outcome is the answer to an ask.
type Outcome string

// The outcomes.
const (
	Allow   Outcome = "allow"
	Deny    Outcome = "deny"
	Pending Outcome = "pending" // a person has to approve it
)

// The stable codes of Decision.Reason.
const (
	ReasonPermitted        = "permitted"
	ReasonApprovalRequired = "approval_required"
	ReasonApproved         = "approved"    // permitted because people have approved it
	ReasonBreakGlass       = "break_glass" // permitted because others have, in place of those who were asked
	ReasonNoPermit         = "no_permit"   // no policy permits it: the default
	ReasonForbidden        = "forbidden"
	ReasonUnknownScope     = "unknown_scope"
	ReasonPolicyError      = "policy_error"
	ReasonBindingRequired  = "binding_required"
	ReasonProofRequired    = "proof_required"
	ReasonSVIDExpiring     = "svid_expiring"
	ReasonUserExpiring     = "user_expiring" // the ID token of the person on whose behalf it asks

	// Never by Decide: only whoever records a decision knows.
	ReasonLimited     = "limited"     // a limit of the scope is reached
	ReasonQuarantined = "quarantined" // the sandbox gets nothing
	ReasonTaskEnded   = "task_ended"  // the task is over
)

// The bounds that can shorten a TTL.
const (
	BoundScopeMax   = "scope.max"
	BoundSVID       = "svid.expires"
	BoundUser       = "user.expires" // the end of the person's ID token
	BoundBreakGlass = "break_glass"
	BoundParent     = "parent.expires" // never by Decide: the end of what it is handed down from
)

// Clamp says which bound shortened the TTL that was asked for.
type Clamp struct {
	Bound    string
	From, To time.Duration
}

// Decision is the answer with everything that a record of it needs.
type Decision struct {
	Outcome     Outcome
	Scope       *Scope         // nil when unknown
	Resource    string         // rendered
	Params      map[string]any // string, int64 or bool each
	TTL         time.Duration  // whole seconds, after all clamps
	Clamps      []Clamp        // in the order in which they applied
	Policies    []string       // the @ids that decided, sorted
	Reason      string
	Explanation string    // a few plain sentences for a person
	Approval    *Approval // when pending: who could approve
	Narrowest   *Ask      // when denied: the nearest ask that would pass, if any
	Grant       *Grant    // unless denied: what is asked of Vault; nil for a JWT
	Catalogue   string    // the digest
}

var taskSyntax = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`)

// Decide answers one ask. The error is *InvalidAsk when the ask is malformed,
// and ErrNoSubject when who is nobody; everything else, an unknown scope
// included, is a decision.
func (c *Catalogue) Decide(who Subject, ask Ask, now time.Time) (Decision, error) {
	return c.answer(who, ask, now, c.judge)
}

// DecideApproved is Decide for an ask that people have approved: what a policy permits once context.approved is true
// is allowed, and nothing is pending.
func (c *Catalogue) DecideApproved(who Subject, ask Ask, now time.Time) (Decision, error) {
	return c.answer(who, ask, now, c.judgeApproved)
}

// DecideBreakGlass is DecideApproved for what people have approved in place of the group that was asked. It lives for
// BreakGlassTTL at most.
func (c *Catalogue) DecideBreakGlass(who Subject, ask Ask, now time.Time) (Decision, error) {
	return c.answer(who, ask, now, c.judgeBreakGlass)
}

func (c *Catalogue) answer(who Subject, ask Ask, now time.Time, judge judge) (Decision, error) {
	sent := newKeyProofs(ask)
	d, err := c.decide(who, ask, sent, now, judge)
	if err != nil {
		return Decision{}, err
	}
	var then Outcome
	if d.Outcome == Deny {
		d.Narrowest, then = c.narrowest(ask, d, func(candidate Ask) (Decision, error) {
			return c.decide(who, candidate, sent, now, judge)
		})
	}
	d.Explanation = explain(ask, d, then)
	return d, nil
}

// judge sets a decision's outcome by policy.
type judge func(d *Decision, q question)

// decide is answer without the hint and the explanation.
func (c *Catalogue) decide(who Subject, ask Ask, sent keyProofs, now time.Time, judge judge) (Decision, error) {
	d := Decision{Outcome: Deny, Catalogue: c.digest}
	if err := checkAsk(who, ask); err != nil {
		return d, err
	}
	def, ok := c.scopes[ask.Scope]
	if !ok {
		d.Reason = ReasonUnknownScope
		return d, flat(ask.Params)
	}
	params, bad := def.accept(ask.Params)
	if bad != nil {
		return d, bad
	}
	if d.Resource, bad = def.resource.render(params); bad != nil {
		return d, bad
	}
	grant, bad := def.grant(params, ask, sent)
	if bad != nil {
		return d, bad
	}
	d.Scope, d.Params = def.scope.clone(), params
	d.TTL, d.Clamps = def.clamp(who, ask.TTL, now)
	if d.TTL < time.Second {
		d.TTL, d.Reason = 0, ReasonSVIDExpiring
		if d.Clamps[len(d.Clamps)-1].Bound == BoundUser {
			d.Reason = ReasonUserExpiring
		}
		return d, nil
	}
	judge(&d, c.question(who, def, ask, d))
	if reason := def.scope.Credential.unbound(who); d.Outcome != Deny && reason != "" {
		d.Outcome, d.Reason, d.Approval = Deny, reason, nil
	}
	if d.Outcome != Deny {
		d.Grant = grant
	}
	return d, nil
}

func checkAsk(who Subject, ask Ask) error {
	switch {
	case who.ID.Path() == "" || len(who.ID.String()) > maxSPIFFEID:
		return ErrNoSubject
	case len(ask.Scope) > maxName || !nameSyntax.MatchString(ask.Scope):
		return invalid("scope", "must be the name of a scope, such as github.issues.read")
	case !taskSyntax.MatchString(ask.Task):
		return invalid("task", "must be 1 to 128 letters, digits and . _ : - and begin with a letter or digit")
	case ask.TTL < 0 || ask.TTL%time.Second != 0: // below a second is no whole number either
		return invalid("ttl", "must be a whole number of seconds, at least 1")
	case len(ask.CSR) > maxKeyText:
		return invalid("csr", "must be at most %d bytes long", maxKeyText)
	case len(ask.PublicKey) > maxKeyText:
		return invalid("public_key", "must be at most %d bytes long", maxKeyText)
	}
	return boundParams(ask.Params)
}

// clamp returns the TTL within every bound (I3) and the bounds that shortened it. The result is below a second when the
// SVID, or the person's ID token, leaves less than that.
func (d *definition) clamp(who Subject, asked time.Duration, now time.Time) (time.Duration, []Clamp) {
	ttl := asked
	if ttl == 0 {
		ttl = d.scope.TTL.Default
	}
	var clamps []Clamp
	bound := func(name string, limit time.Duration) {
		if ttl > limit {
			clamps = append(clamps, Clamp{Bound: name, From: ttl, To: limit})
			ttl = limit
		}
	}
	bound(BoundScopeMax, d.scope.TTL.Max)
	if d.scope.Credential.endsWithSVID(who) {
		// Cut off, never rounded up: the credential ends before the SVID does.
		bound(BoundSVID, max(0, who.Expires.Sub(now).Truncate(time.Second)))
	}
	if who.User != nil && !who.User.Until.IsZero() {
		bound(BoundUser, max(0, who.User.Until.Sub(now).Truncate(time.Second)))
	}
	return ttl, clamps
}

// unbound is the reason to deny somebody who has not shown what the credential has to be bound to, else empty.
func (c Credential) unbound(who Subject) string {
	switch {
	case c.Bind == BindMTLS && !who.Bound:
		return ReasonBindingRequired
	case c.Bind == BindDPoP && !who.Proved:
		return ReasonProofRequired
	}
	return ""
}

// endsWithSVID says whether the SVID's end is the credential's too. Without a
// certificate of the subject's there is none that a JWT could be bound to.
func (c Credential) endsWithSVID(who Subject) bool {
	return c.WithinSVID || c.Bind == BindMTLS && who.Bound
}

// judge sets the outcome by policy: permitted as it is, permitted once a person
// has approved, or denied.
func (c *Catalogue) judge(d *Decision, q question) {
	now := c.evaluate(q, false)
	switch {
	case len(now.erred) > 0:
		d.Reason, d.Policies = ReasonPolicyError, now.erred
		return
	case now.permitted:
		d.Outcome, d.Reason, d.Policies = Allow, ReasonPermitted, now.decided
		return
	case d.Scope.Approval == nil:
		d.Reason, d.Policies = now.denial(), now.decided
		return
	}
	approved := c.evaluate(q, true)
	switch {
	case len(approved.erred) > 0:
		d.Reason, d.Policies = ReasonPolicyError, approved.erred
	case approved.permitted:
		// What permits it then, and what forbids it until then, decided together.
		d.Outcome, d.Reason, d.Approval = Pending, ReasonApprovalRequired, d.Scope.Approval.clone()
		d.Policies = slices.Concat(now.decided, approved.decided)
		slices.Sort(d.Policies)
		d.Policies = slices.Compact(d.Policies)
	default:
		d.Reason, d.Policies = approved.denial(), approved.decided
	}
}

// judgeApproved sets the outcome of what people have approved: policy has to permit it then, and not only have been
// asked to wait for them.
func (c *Catalogue) judgeApproved(d *Decision, q question) {
	approved := c.evaluate(q, true)
	switch {
	case len(approved.erred) > 0:
		d.Reason, d.Policies = ReasonPolicyError, approved.erred
	case approved.permitted:
		d.Outcome, d.Reason, d.Policies = Allow, ReasonApproved, approved.decided
	default:
		d.Reason, d.Policies = approved.denial(), approved.decided
	}
}

// judgeBreakGlass is judgeApproved for when the glass was broken. Policies judge the TTL that people were shown.
func (c *Catalogue) judgeBreakGlass(d *Decision, q question) {
	if c.judgeApproved(d, q); d.Outcome != Allow {
		return
	}
	d.Reason = ReasonBreakGlass
	if d.TTL > BreakGlassTTL {
		d.Clamps = append(d.Clamps, Clamp{Bound: BoundBreakGlass, From: d.TTL, To: BreakGlassTTL})
		d.TTL = BreakGlassTTL
	}
}

// verdict is what all policies together say to one question. It permits nothing
// when any of them erred: Cedar leaves an erring policy out, and it may have
// been the one that forbids.
type verdict struct {
	permitted bool
	decided   []string // the permits, or the forbids that won; sorted
	erred     []string
}

func (v verdict) denial() string {
	if len(v.decided) > 0 {
		return ReasonForbidden
	}
	return ReasonNoPermit
}

func (c *Catalogue) evaluate(q question, approved bool) verdict {
	q.context["approved"] = cedar.Boolean(approved)
	decision, diag := cedar.Authorize(q.about, q, cedar.Request{
		Principal: q.principal.UID,
		Action:    q.action.UID,
		Resource:  q.resource,
		Context:   cedar.NewRecord(q.context),
	})
	var v verdict
	for _, e := range diag.Errors {
		v.erred = append(v.erred, string(e.PolicyID))
	}
	// The policies are kept in order, so what they report is sorted.
	for _, r := range diag.Reasons {
		v.decided = append(v.decided, string(r.PolicyID))
	}
	v.permitted = decision == cedar.Allow && len(v.erred) == 0
	return v
}

// question is one ask in Cedar's terms, and the entities that it is about.
type question struct {
	principal, action cedar.Entity
	resource          cedar.EntityUID
	context           cedar.RecordMap
	about             some // the policies that may have something to say
}

// question takes the principal from the subject alone.
func (c *Catalogue) question(who Subject, def *definition, ask Ask, d Decision) question {
	principal, action := sandbox(who.ID), cedar.Entity{UID: def.action, Parents: def.parents}
	return question{
		principal: principal,
		action:    action,
		about:     some{c.policies, c.index.about(principal, action)},
		resource:  cedar.NewEntityUID(typeResource, cedar.String(d.Resource)),
		context:   contextOf(who, ask, d),
	}
}

// Get makes a question Cedar's store of entities: every group of an entity is
// its direct parent, so that no others are needed.
func (q question) Get(uid cedar.EntityUID) (cedar.Entity, bool) {
	switch uid {
	case q.principal.UID:
		return q.principal, true
	case q.action.UID:
		return q.action, true
	default:
		return cedar.Entity{}, false
	}
}

// sandbox puts an ID below its trust domain and below each path that ends where
// one of its segments does, its own included: spiffe://td/a/b is in
// Path::"spiffe://td/a", and spiffe://td/ab is not (H33).
func sandbox(id spiffeid.ID) cedar.Entity {
	whole := id.String()
	parents := []cedar.EntityUID{cedar.NewEntityUID(typeTrustDomain, cedar.String(id.TrustDomain().Name()))}
	root := len(whole) - len(id.Path())
	for end := len(whole); end > root; end = strings.LastIndexByte(whole[:end], '/') {
		parents = append(parents, cedar.NewEntityUID(typePath, cedar.String(whole[:end])))
	}
	return cedar.Entity{
		UID:     cedar.NewEntityUID(typeSandbox, cedar.String(whole)),
		Parents: cedar.NewEntityUIDSet(parents...),
	}
}
