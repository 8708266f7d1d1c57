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

// fieldDiff collects the fields that differ between two versions of a scope.
type fieldDiff struct{ changes []FieldChange }

// add records a field unless both values read the same.
func (d *fieldDiff) add(field, before, after string, reach Reach) {
	if before != after {
		d.changes = append(d.changes, FieldChange{Field: field, Old: before, New: after, Reach: reach})
	}
}

// more records a number for which a larger value is wider.
func (d *fieldDiff) more(field string, before, after int64) {
	d.add(field, number(before), number(after), wider(after >= before, after <= before))
}

// longer records a duration for which a longer one is wider.
func (d *fieldDiff) longer(field string, before, after time.Duration) {
	d.add(field, span(before), span(after), wider(after >= before, after <= before))
}

// members records a set for which a superset is wider. Order does not matter.
func (d *fieldDiff) members(field string, before, after []string) {
	d.add(field, strings.Join(before, ", "), strings.Join(after, ", "), wider(covers(after, before), covers(before, after)))
}

// wider returns the reach of a change. atLeast means that the new value allows at least what the old one did, and atMost
// that it allows at most that. Either, both or neither may hold.
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

// number and span return "" for zero, the value in a scope that does not exist.
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

// fieldsOf lists all fields of a scope, as new.
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

// reachOfAuthority returns the reach of a change of authority. Guardrails are written for the higher classes, so a lower
// class is wider, unless some policy depends on the class in another way.
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

// favoursHigher reports whether a policy may allow more for the scope in the higher of two classes than in the lower one.
func (p policy) favoursHigher(lower, higher *definition) bool {
	if p.effect() == EffectPermit && p.admits(higher) && !p.admits(lower) || p.effect() == EffectForbid && p.admits(lower) && !p.admits(higher) {
		return true
	}
	return slices.ContainsFunc(p.conditionLiterals(), func(uid cedar.EntityUID) bool {
		return isAuthorityGroup(uid) && lower.parents.Contains(uid) != higher.parents.Contains(uid)
	})
}

// compare goes through the fields in the order in which a catalogue writes them.
func (d *fieldDiff) compare(a, b Scope, authority Reach) {
	d.add("title", a.Title, b.Title, Same)
	d.add("authority", string(a.Authority), string(b.Authority), authority)
	d.params(a.Params, b.Params)
	d.add("resource", a.Resource, b.Resource, Changed)
	// A request without a TTL gets the default, so a longer default gives the same request a longer life.
	d.longer("ttl.default", a.TTL.Default, b.TTL.Default)
	d.longer("ttl.max", a.TTL.Max, b.TTL.Max)
	d.approval(a.Approval, b.Approval)
	d.limits(a.Limits, b.Limits)
	d.credential(a.Credential, b.Credential)
	d.egress(a.Egress, b.Egress)
}

// approval compares who may approve. If a scope has no approval, whatever needs an approval is denied, so removing the
// approval narrows the scope. A policy, not the scope, decides whether an approval is needed.
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

// pick returns the one limit for per that is a live count or, if live is false, a rate. It returns nil if there is none.
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

// allows reports whether l allows everything that other does: as large a burst, and as much in the long run.
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

// words describes a parameter on one line.
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

// rebound returns the reach of a change of binding. Two bindings cannot be compared, but no binding is the loosest.
func rebound(was, is string) Reach {
	if was != BindNone && is != BindNone {
		return Changed
	}
	return looser(was != BindNone, is != BindNone)
}

// looser returns the reach of removing or adding a restriction.
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

// rules compares the rules of a Vault token. In Vault, a more specific path overrides one with a *, so adding a path can
// remove permissions. Rules are only comparable if both versions have the same paths.
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

// egress compares egress rules. The rules together define what is allowed, so each call is compared by itself, whichever
// rule allows it. It does not detect that one pattern covers another.
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
