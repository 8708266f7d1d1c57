package scopes

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cedar-policy/cedar-go"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Subject is the caller, as attestation identified it.
type Subject struct {
	ID      spiffeid.ID
	Expires time.Time // of the SVID
	Bound   bool      // the caller presented an X.509-SVID over mTLS
	Proved  bool      // the caller sent a DPoP proof made with the key that the token will be bound to
	User    *User     // the person the caller acts for, as their provider identified them; nil for none
}

// User is the person whom a sandbox acts for.
type User struct {
	ID     string // issuer, "#" and subject
	Groups []string
	// Until is when the evidence that the sandbox presents for this person expires. The credential ends then too. Zero
	// sets no bound.
	Until time.Time
}

// Ask is a sandbox's request for a scope. No field of it identifies the caller.
type Ask struct {
	Scope  string
	Params map[string]any // string, bool, and whole numbers in the types that JSON decoders produce
	TTL    time.Duration  // 0 for the scope's default
	RequestContext
	// CSR (PEM) and PublicKey (OpenSSH) are the caller's own key, for scopes that certify one.
	CSR, PublicKey string
}

// Outcome is the result of a decision.
type Outcome string

// The outcomes.
const (
	Allow   Outcome = "allow"
	Deny    Outcome = "deny"
	Pending Outcome = "pending" // a person has to approve it
)

// Invalid is the outcome of a malformed request, for reports. No decision exists for it.
const Invalid Outcome = "invalid"

// The stable codes of Decision.Reason.
const (
	ReasonPermitted        = "permitted"
	ReasonApprovalRequired = "approval_required"
	ReasonApproved         = "approved"    // permitted because people approved it
	ReasonBreakGlass       = "break_glass" // permitted because the break-glass group approved it in place of Group
	ReasonNoPermit         = "no_permit"   // no policy permits it: the default
	ReasonForbidden        = "forbidden"
	ReasonUnknownScope     = "unknown_scope"
	ReasonPolicyError      = "policy_error"
	ReasonBindingRequired  = "binding_required"
	ReasonProofRequired    = "proof_required"
	ReasonSVIDExpiring     = "svid_expiring"
	ReasonUserExpiring     = "user_expiring" // the ID token of the person the caller acts for expires

	// Decide never returns these: only the code that records a decision knows them.
	ReasonLimited     = "limited"     // a limit of the scope is reached
	ReasonQuarantined = "quarantined" // the sandbox is quarantined
	ReasonTaskEnded   = "task_ended"  // the task has ended
)

// The bounds that can shorten a TTL.
const (
	BoundScopeMax   = "scope.max"
	BoundSVID       = "svid.expires"
	BoundUser       = "user.expires" // the end of the person's ID token
	BoundBreakGlass = "break_glass"
	BoundParent     = "parent.expires" // the expiry of the parent token in a token exchange; Decide never returns it
)

// Clamp records which bound shortened the requested TTL.
type Clamp struct {
	Bound    string
	From, To time.Duration
}

// Decision is the result with everything that its record needs.
type Decision struct {
	Outcome     Outcome
	Scope       *Scope         // nil if the scope is unknown
	Resource    string         // rendered
	Params      map[string]any // each a string, int64 or bool
	TTL         time.Duration  // whole seconds, after all clamps
	Clamps      []Clamp        // in the order in which they applied
	Policies    []string       // the @ids that decided, sorted
	Reason      string
	Explanation string     // a few plain sentences for a person
	Approval    *Approval  // if pending: who may approve
	Narrowest   *Ask       // if denied: the nearest request that would pass, if any
	NearMisses  []NearMiss // if no policy permits: the permits of which only a condition does not hold
	Grant       *Grant     // unless denied: the request for Vault; nil for a JWT
	// FederatedSubject is the rendered subject of a token for another system; empty for every other credential.
	FederatedSubject string
	// Exchange is the exchange of such a token with the parameters filled in, if the scope has one.
	Exchange  Exchange
	Catalogue string // the digest
}

var taskSyntax = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`)

// ValidTask reports whether a task of that name can exist.
func ValidTask(task string) bool { return taskSyntax.MatchString(task) }

// Decide decides one request. It returns *InvalidAsk if the request is malformed and ErrNoSubject if who has no usable
// SPIFFE ID. In every other case, including an unknown scope, it returns a decision.
func (c *Catalogue) Decide(who Subject, ask Ask, now time.Time) (Decision, error) {
	return c.answer(who, ask, newKeyProofs(ask), now, c.judge)
}

// DecideApproved is Decide for a request that people have approved. It allows what a policy permits with context.approved
// set to true, and never returns pending.
func (c *Catalogue) DecideApproved(who Subject, ask Ask, now time.Time) (Decision, error) {
	return c.answer(who, ask, newKeyProofs(ask), now, c.judgeApproved)
}

// DecideBreakGlass is DecideApproved for a request that the break-glass group approved. The TTL is at most BreakGlassTTL.
func (c *Catalogue) DecideBreakGlass(who Subject, ask Ask, now time.Time) (Decision, error) {
	return c.answer(who, ask, newKeyProofs(ask), now, c.judgeBreakGlass)
}

// Assess is Decide for a request whose keys are not available: an example, or a person's what-if question. If the scope
// certifies the caller's key, or binds its token to one, Assess assumes that a suitable key was sent. Its Grant is nil, so
// nothing can be minted from the result.
func (c *Catalogue) Assess(who Subject, ask Ask, now time.Time) (Decision, error) {
	return c.assess(who, ask, now, c.judge)
}

// AssessApproved is Assess for a request that people have approved, as DecideApproved is Decide.
func (c *Catalogue) AssessApproved(who Subject, ask Ask, now time.Time) (Decision, error) {
	return c.assess(who, ask, now, c.judgeApproved)
}

func (c *Catalogue) assess(who Subject, ask Ask, now time.Time, judge judge) (Decision, error) {
	ask.CSR, ask.PublicKey = "", ""
	if def, ok := c.scopes[ask.Scope]; ok && def.scope.Credential.Bind == BindDPoP {
		who.Proved = true
	}
	d, err := c.answer(who, ask, c.assumeKeys(ask.Scope), now, judge)
	d.Grant = nil
	return d, err
}

// Redecide decides a recorded request again, as approved if the recorded reason says so. It assumes the keys that the scope
// certifies, as Assess does, and leaves out Grant, Explanation and Narrowest.
func (c *Catalogue) Redecide(who Subject, ask Ask, now time.Time, reason string) (Decision, error) {
	judge := c.judge
	switch reason {
	case ReasonApproved:
		judge = c.judgeApproved
	case ReasonBreakGlass:
		judge = c.judgeBreakGlass
	}
	d, err := c.decide(who, ask, c.assumeKeys(ask.Scope), now, judge)
	d.Grant = nil
	return d, err
}

// assumeKeys stands for the keys that a request for a scope would carry.
func (c *Catalogue) assumeKeys(scope string) keyProofs {
	sent := newKeyProofs(Ask{})
	if def, ok := c.scopes[scope]; ok {
		sent.csr, sent.publicKey = def.scope.Credential.certifies()
	}
	return sent
}

// answer decides, adds the explanation, and for a denial the nearest request that would pass. sent are the caller's keys.
func (c *Catalogue) answer(who Subject, ask Ask, sent keyProofs, now time.Time, judge judge) (Decision, error) {
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
	if d.Reason == ReasonNoPermit {
		d.NearMisses = c.nearMisses(c.question(who, c.scopes[ask.Scope], ask, d), d.Scope.Approval != nil)
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
		for _, value := range ask.Params {
			switch value.(type) {
			case string, json.Number, bool, float64, int64, int:
			default:
				return d, invalid("params", "must be strings, numbers or booleans") // no scope could accept them
			}
		}
		return d, nil
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
	if def.scope.Credential.Federated() {
		if d.FederatedSubject, bad = def.recipe.subject.render(params); bad != nil {
			return d, bad
		}
		if d.Exchange, bad = def.exchange(params); bad != nil {
			return d, bad
		}
	}
	d.Scope, d.Params = def.scope.clone(), params

	// I3: clamp the TTL to every bound, and keep the bounds that shortened it.
	d.TTL = ask.TTL
	if d.TTL == 0 {
		d.TTL = def.scope.TTL.Default
	}
	clamp := func(bound string, limit time.Duration) {
		if d.TTL > limit {
			d.Clamps = append(d.Clamps, Clamp{Bound: bound, From: d.TTL, To: limit})
			d.TTL = limit
		}
	}
	clamp(BoundScopeMax, def.scope.TTL.Max)
	if def.scope.Credential.EndsWithSVID(who) {
		// Truncate, never round up: the credential must end before the SVID does.
		clamp(BoundSVID, max(0, who.Expires.Sub(now).Truncate(time.Second)))
	}
	if who.User != nil && !who.User.Until.IsZero() {
		clamp(BoundUser, max(0, who.User.Until.Sub(now).Truncate(time.Second)))
	}
	shortest := max(time.Second, def.scope.Credential.MinTTL)
	if ask.TTL > 0 && ask.TTL < shortest {
		return d, invalid("ttl", "must be at least %s, the shortest life that the other system gives", FormatDuration(shortest))
	}
	if d.TTL < shortest {
		d.TTL, d.Reason = 0, ReasonSVIDExpiring
		if d.Clamps[len(d.Clamps)-1].Bound == BoundUser {
			d.Reason = ReasonUserExpiring
		}
		return d, nil
	}

	judge(&d, c.question(who, def, ask, d))
	switch bind := def.scope.Credential.Bind; {
	case d.Outcome == Deny:
	case bind == BindMTLS && !who.Bound:
		d.Outcome, d.Reason, d.Approval = Deny, ReasonBindingRequired, nil
	case bind == BindDPoP && !who.Proved:
		d.Outcome, d.Reason, d.Approval = Deny, ReasonProofRequired, nil
	default:
		d.Grant = grant
	}
	return d, nil
}

// checkAsk applies to every request, including one for an unknown scope.
func checkAsk(who Subject, ask Ask) error {
	switch {
	case who.ID.Path() == "" || len(who.ID.String()) > maxSPIFFEID:
		return ErrNoSubject
	case len(ask.Scope) > maxName || !nameSyntax.MatchString(ask.Scope):
		return invalid("scope", "must be the name of a scope, such as github.issues.read")
	case ask.TTL < 0 || ask.TTL%time.Second != 0: // rejects fractions of a second too
		return invalid("ttl", "must be a whole number of seconds, at least 1")
	case len(ask.CSR) > maxKeyText:
		return invalid("csr", "must be at most %d bytes long", maxKeyText)
	case len(ask.PublicKey) > maxKeyText:
		return invalid("public_key", "must be at most %d bytes long", maxKeyText)
	}
	for _, f := range ask.Fields() {
		if !ValidTask(f.Value) && (f.Value != "" || f.Name == "task") {
			return invalid(f.Name, "must be 1 to 128 letters, digits and . _ : - and begin with a letter or digit")
		}
	}
	total := 0
	for name, value := range ask.Params {
		total += len(name)
		switch v := value.(type) {
		case string:
			total += len(v)
		case json.Number:
			total += len(v)
		}
	}
	if total > maxParamBytes {
		return invalid("params", "must not exceed %d bytes in total", maxParamBytes)
	}
	return nil
}

// EndsWithSVID reports whether the credential must end with the SVID. A JWT can be bound to a certificate only if the
// caller presented one, so bind: mtls counts only for such a caller.
func (c Credential) EndsWithSVID(who Subject) bool {
	return c.WithinSVID || c.Bind == BindMTLS && who.Bound
}

// judge sets the outcome by policy: permitted now, permitted once a person approves, or denied.
func (c *Catalogue) judge(d *Decision, q question) {
	now := c.evaluate(q, false)
	d.settle(now, ReasonPermitted)
	if d.Outcome == Allow || len(now.erred) > 0 || d.Scope.Approval == nil {
		return
	}
	approved := c.evaluate(q, true)
	d.settle(approved, ReasonApproved)
	if d.Outcome == Allow {
		// The policies that permit it once approved, and those that forbid it until then, decided together.
		d.Outcome, d.Reason, d.Approval = Pending, ReasonApprovalRequired, d.Scope.Approval.clone()
		d.Policies = slices.Concat(now.decided, approved.decided)
		slices.Sort(d.Policies)
		d.Policies = slices.Compact(d.Policies)
	}
}

// judgeApproved sets the outcome of a request that people approved. Policy has to permit it with that approval: an
// approval alone is not enough.
func (c *Catalogue) judgeApproved(d *Decision, q question) {
	d.settle(c.evaluate(q, true), ReasonApproved)
}

// judgeBreakGlass is judgeApproved for a break-glass approval. Policies see the TTL before the break-glass bound, which
// is the TTL that the approvers saw.
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

// verdict is the combined result of all policies for one question. It permits nothing if any policy failed to evaluate:
// Cedar ignores such a policy, and it may have been the one that forbids the request.
type verdict struct {
	permitted bool
	decided   []string // the permits, or the forbids that overrode them; sorted
	erred     []string
}

// settle sets what a verdict means: allowed for the given reason, or denied.
func (d *Decision) settle(v verdict, permitted string) {
	d.Policies = v.decided
	switch {
	case len(v.erred) > 0:
		d.Reason, d.Policies = ReasonPolicyError, v.erred
	case v.permitted:
		d.Outcome, d.Reason = Allow, permitted
	case len(v.decided) > 0:
		d.Reason = ReasonForbidden
	default:
		d.Reason = ReasonNoPermit
	}
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
	// The policies are kept sorted by id, so the ids that Cedar reports are sorted.
	for _, r := range diag.Reasons {
		v.decided = append(v.decided, string(r.PolicyID))
	}
	v.permitted = decision == cedar.Allow && len(v.erred) == 0
	return v
}

// question is one request in Cedar's terms, with the entities it involves.
type question struct {
	principal, action cedar.Entity
	resource          cedar.EntityUID
	context           cedar.RecordMap
	about             some // the policies that may apply
}

// question takes the principal from the subject alone. The rest of the subject, and the request, are context.
func (c *Catalogue) question(who Subject, def *definition, ask Ask, d Decision) question {
	params := make(cedar.RecordMap, len(d.Params))
	for name, value := range d.Params {
		switch v := value.(type) {
		case string:
			params[cedar.String(name)] = cedar.String(v)
		case int64:
			params[cedar.String(name)] = cedar.Long(v)
		case bool:
			params[cedar.String(name)] = cedar.Boolean(v)
		}
	}
	binding := BindNone
	switch {
	case who.Bound:
		binding = BindMTLS
	case who.Proved:
		binding = BindDPoP
	}
	context := cedar.RecordMap{}
	for _, f := range ask.Fields() {
		context[cedar.String(f.Name)] = cedar.String(f.Value)
	}
	// What is proven or decided comes after what the sandbox states, and replaces it.
	context["params"], context["ttl"] = cedar.NewRecord(params), cedar.Long(d.TTL/time.Second)
	context["binding"] = cedar.String(binding)
	if who.User != nil {
		groups := make([]cedar.Value, len(who.User.Groups))
		for i, group := range who.User.Groups {
			groups[i] = cedar.String(group)
		}
		context["user"] = cedar.NewRecord(cedar.RecordMap{"id": cedar.String(who.User.ID), "groups": cedar.NewSet(groups...)})
	}
	principal, action := sandbox(who.ID), cedar.Entity{UID: def.action, Parents: def.parents}
	return question{
		principal: principal,
		action:    action,
		about:     some{c.policies, c.index.about(principal, action)},
		resource:  cedar.NewEntityUID(typeResource, cedar.String(d.Resource)),
		context:   context,
	}
}

// Get makes question an entity store for Cedar. Every group of an entity is its direct parent, so the store needs no
// other entities.
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

// sandbox builds the Cedar entity of an ID. Its parents are its trust domain and every path prefix that ends at a segment
// boundary, including the whole path. So spiffe://td/a/b is in Path::"spiffe://td/a", and spiffe://td/ab is not (H33).
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
