package scopes

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cedar-policy/cedar-go"
)

// fieldDiff collects the fields of two versions of a scope that differ.
type fieldDiff struct{ changes []FieldChange }

// add notes a field unless it reads the same.
func (d *fieldDiff) add(field, before, after string, reach Reach) {
	if before != after {
		d.changes = append(d.changes, FieldChange{Field: field, Old: before, New: after, Reach: reach})
	}
}

// more notes a number of which more is wider.
func (d *fieldDiff) more(field string, before, after int64) {
	d.add(field, number(before), number(after), wider(after >= before, after <= before))
}

// longer notes a time of which a longer one is wider.
func (d *fieldDiff) longer(field string, before, after time.Duration) {
	d.add(field, span(before), span(after), wider(after >= before, after <= before))
}

// members notes a set of which a larger one is wider. What is in another order is the same.
func (d *fieldDiff) members(field string, before, after []string) {
	d.add(field, strings.Join(before, ", "), strings.Join(after, ", "), wider(covers(after, before), covers(before, after)))
}

// wider is the reach of a change after which there is at least what was there before, at most, both or neither.
func wider(atLeast, atMost bool) Reach {
	switch {
	case atLeast && atMost:
		return Same
	case atLeast:
		return Widened
	case atMost:
		return Narrowed
	default:
		return Changed
	}
}

func covers(all, some []string) bool {
	return !slices.ContainsFunc(some, func(s string) bool { return !slices.Contains(all, s) })
}

// number and span are empty for what a scope that is not there has.
func number(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

func span(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return short(d)
}

// fieldsOf lists what a scope says, as what is new in it.
func fieldsOf(d *definition) []FieldChange {
	var out fieldDiff
	out.compare(Scope{}, d.scope, Same)
	for i := range out.changes {
		out.changes[i].Reach = Same
	}
	return out.changes
}

func compareScopes(from, to *Catalogue, name string) []FieldChange {
	var out fieldDiff
	before, after := from.scopes[name], to.scopes[name]
	out.compare(before.scope, after.scope, reachOfAuthority(from, to, name))
	return out.changes
}

// reachOfAuthority: guardrails are written for the higher classes, so that a lower one is wider, unless some policy turns
// on the class in another way.
func reachOfAuthority(from, to *Catalogue, name string) Reach {
	before, after := from.scopes[name], to.scopes[name]
	lower, higher, reach := after, before, Widened
	if after.scope.Authority.Rank() > before.scope.Authority.Rank() {
		lower, higher, reach = before, after, Narrowed
	}
	favours := func(p policy) bool { return p.favoursHigher(lower, higher) }
	if slices.ContainsFunc(from.policies, favours) || slices.ContainsFunc(to.policies, favours) {
		return Changed
	}
	return reach
}

// favoursHigher says whether a policy may give more of a scope in the higher of two classes than in the lower.
func (p policy) favoursHigher(lower, higher *definition) bool {
	if p.effect() == EffectPermit && p.admits(higher) && !p.admits(lower) || p.effect() == EffectForbid && p.admits(lower) && !p.admits(higher) {
		return true
	}
	return slices.ContainsFunc(p.conditionLiterals(), func(uid cedar.EntityUID) bool {
		return isAuthorityGroup(uid) && lower.parents.Contains(uid) != higher.parents.Contains(uid)
	})
}

// compare goes through the fields in the order in which a scope is written.
func (d *fieldDiff) compare(a, b Scope, authority Reach) {
	d.add("title", a.Title, b.Title, Same)
	d.add("authority", string(a.Authority), string(b.Authority), authority)
	d.params(a.Params, b.Params)
	d.add("resource", a.Resource, b.Resource, Changed)
	// Who names no TTL gets the default: a longer one is a longer life for the same ask.
	d.longer("ttl.default", a.TTL.Default, b.TTL.Default)
	d.longer("ttl.max", a.TTL.Max, b.TTL.Max)
	d.approval(a.Approval, b.Approval)
	d.limits(a.Limits, b.Limits)
	d.credential(a.Credential, b.Credential)
	d.egress(a.Egress, b.Egress)
}

// approval: with nobody to ask, what needs a yes is denied. So a scope that loses its approval is narrower; what makes
// the yes necessary is a policy.
func (d *fieldDiff) approval(a, b *Approval) {
	if a == nil || b == nil {
		d.add("approval", a.words(), b.words(), wider(b != nil || a == nil, a != nil || b == nil))
		return
	}
	d.add("approval.group", a.Group, b.Group, Changed)
	d.add("approval.quorum", number(int64(a.Quorum)), number(int64(b.Quorum)), wider(b.Quorum <= a.Quorum, b.Quorum >= a.Quorum))
	d.longer("approval.expires", a.Expires, b.Expires)
	d.add("approval.remember", a.Remember, b.Remember, wider(b.Remember == RememberTask, a.Remember == RememberTask))
	d.add("approval.break_glass", a.BreakGlass, b.BreakGlass, wider(a.BreakGlass == "", b.BreakGlass == ""))
	d.add("approval.passkey", a.Passkey, b.Passkey, wider(a.Passkey == PasskeyRequired, b.Passkey == PasskeyRequired))
}

func (a *Approval) words() string {
	if a == nil {
		return ""
	}
	words := fmt.Sprintf("%d of %s within %s", a.Quorum, a.Group, short(a.Expires))
	if a.Passkey == PasskeyRequired {
		words += ", signed by a passkey"
	}
	if a.Remember == RememberTask {
		words += ", remembered for the task"
	}
	if a.BreakGlass != "" {
		words += fmt.Sprintf(", or %d of %s in an emergency", BreakGlassQuorum, a.BreakGlass)
	}
	return words
}

func (d *fieldDiff) limits(a, b []Limit) {
	for _, per := range limitPers {
		for _, live := range []bool{false, true} {
			d.limit(per, pick(a, per, live), pick(b, per, live))
		}
	}
}

// pick returns the one limit per something of one sort, or nil.
func pick(limits []Limit, per string, live bool) *Limit {
	i := slices.IndexFunc(limits, func(l Limit) bool { return l.Per == per && (l.Live > 0) == live })
	if i < 0 {
		return nil
	}
	return &limits[i]
}

func (d *fieldDiff) limit(per string, a, b *Limit) {
	field := "limits." + per
	switch {
	case a == nil && b == nil:
	case a == nil:
		d.add(field, "", b.String(), Narrowed)
	case b == nil:
		d.add(field, a.String(), "", Widened)
	default:
		d.add(field, a.String(), b.String(), wider(b.allows(*a), a.allows(*b)))
	}
}

// allows says whether l lets pass whatever other does: as many in one go, and as many in the long run.
func (l Limit) allows(other Limit) bool {
	if l.Live > 0 {
		return l.Live >= other.Live
	}
	return l.Count >= other.Count && int64(l.Count)*int64(other.Window/time.Second) >= int64(other.Count)*int64(l.Window/time.Second)
}

func (d *fieldDiff) params(a, b map[string]Param) {
	for _, name := range unionKeys(a, b) {
		field := "params." + name
		before, was := a[name]
		after, is := b[name]
		switch {
		case !was:
			d.add(field, "", after.words(), Changed)
		case !is:
			d.add(field, before.words(), "", Changed)
		case before.Type != after.Type:
			d.add(field, before.words(), after.words(), Changed)
		default:
			d.param(field, before, after)
		}
	}
}

func (d *fieldDiff) param(field string, a, b Param) {
	d.add(field+".pattern", a.Pattern, b.Pattern, Changed)
	d.more(field+".max_length", int64(a.MaxLength), int64(b.MaxLength))
	d.members(field+".values", a.Values, b.Values)
	if a.Type == ParamInt {
		d.add(field+".min", strconv.FormatInt(a.Min, 10), strconv.FormatInt(b.Min, 10), wider(b.Min <= a.Min, b.Min >= a.Min))
		d.add(field+".max", strconv.FormatInt(a.Max, 10), strconv.FormatInt(b.Max, 10), wider(b.Max >= a.Max, b.Max <= a.Max))
	}
}

// words is a parameter on one line.
func (p Param) words() string {
	switch p.Type {
	case ParamString:
		return fmt.Sprintf("string that matches %s, at most %d bytes", p.Pattern, p.MaxLength)
	case ParamEnum:
		return "one of " + strings.Join(p.Values, ", ")
	case ParamInt:
		return fmt.Sprintf("int from %d to %d", p.Min, p.Max)
	case ParamBool:
		return "bool"
	default:
		return string(p.Type)
	}
}

func (d *fieldDiff) credential(a, b Credential) {
	d.add("credential.kind", a.Kind, b.Kind, Changed)
	d.add("credential.audience", a.Audience, b.Audience, Changed)
	d.add("credential.bind", a.Bind, b.Bind, rebound(a.Bind, b.Bind))
	d.add("credential.uses", usesOf(a), usesOf(b), looser(a.OneShot, b.OneShot))
	d.add("credential.status_list", yes(a.StatusList), yes(b.StatusList), looser(a.StatusList, b.StatusList))
	d.add("credential.mount", a.Mount, b.Mount, Changed)
	d.add("credential.role", a.Role, b.Role, Changed)
	d.add("credential.method", a.Method, b.Method, Changed)
	d.add("credential.path", a.Path, b.Path, Changed)
	for _, key := range unionKeys(a.Data, b.Data) {
		d.add("credential.data."+key, a.Data[key], b.Data[key], Changed)
	}
	d.add("credential.static", yes(a.Static), yes(b.Static), Changed)
	d.add("credential.common_name", a.CommonName, b.CommonName, Changed)
	d.members("credential.dns_names", a.DNSNames, b.DNSNames)
	d.add("credential.key", keyOf(a), keyOf(b), Changed)
	d.members("credential.principals", a.Principals, b.Principals)
	d.rules(a.Policy, b.Policy)
	d.add("credential.within_svid", yes(a.WithinSVID), yes(b.WithinSVID), looser(a.WithinSVID, b.WithinSVID))
}

// rebound is the reach of another binding: one is not looser than the other, but none is.
func rebound(was, is string) Reach {
	if was != BindNone && is != BindNone {
		return Changed
	}
	return looser(was != BindNone, is != BindNone)
}

// looser is the reach of a bond that is loosed or put on.
func looser(was, is bool) Reach { return wider(was || !is, is || !was) }

func yes(b bool) string {
	if b {
		return "true"
	}
	return ""
}

func usesOf(c Credential) string {
	if c.OneShot {
		return "1"
	}
	return ""
}

func keyOf(c Credential) string {
	if c.ServerKey {
		return "server"
	}
	return ""
}

// rules: to Vault a path with more letters hides one with a *, so that one more path can be less. Only what may be done
// at the same paths can be compared.
func (d *fieldDiff) rules(a, b []Rule) {
	before, after := byPath(a), byPath(b)
	paths := slices.Equal(sortedKeys(before), sortedKeys(after))
	for _, path := range unionKeys(before, after) {
		reach := Changed
		if paths {
			reach = wider(covers(after[path], before[path]), covers(before[path], after[path]))
		}
		d.add("credential.policy."+path, strings.Join(before[path], ", "), strings.Join(after[path], ", "), reach)
	}
}

func byPath(rules []Rule) map[string][]string {
	out := map[string][]string{}
	for _, r := range rules {
		out[r.Path] = append(out[r.Path], r.Capabilities...)
	}
	for path, may := range maps.All(out) {
		slices.Sort(may)
		out[path] = slices.Compact(may)
	}
	return out
}

// egress: what is allowed is the sum of the rules, so that they are compared call by call, whichever rule has it. That
// one pattern covers another is not looked into.
func (d *fieldDiff) egress(a, b []Egress) {
	before, after := byHost(a), byHost(b)
	for _, host := range unionKeys(before, after) {
		d.members("egress."+host, before[host], after[host])
	}
}

func byHost(rules []Egress) map[string][]string {
	out := map[string][]string{}
	for _, rule := range rules {
		for _, host := range rule.Hosts {
			for _, database := range rule.Databases {
				out[host] = append(out[host], "database "+database)
			}
			for _, path := range rule.Paths {
				for _, method := range rule.Methods {
					out[host] = append(out[host], method+" "+path+rule.Send.words())
				}
			}
		}
	}
	for host, calls := range maps.All(out) {
		slices.Sort(calls)
		out[host] = slices.Compact(calls)
	}
	return out
}
