package diff

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/scopes"
)

// fieldDiff collects the fields that differ between two versions of a scope.
type fieldDiff struct{ changes []FieldChange }

// add records a field unless both values read the same.
func (d *fieldDiff) add(field, before, after string, reach Reach) {
	if before != after {
		d.changes = append(d.changes, FieldChange{Field: field, Old: before, New: after, Reach: reach})
	}
}

// longer records a duration for which a longer one is wider.
func (d *fieldDiff) longer(field string, before, after time.Duration) {
	words := func(d time.Duration) string {
		if d == 0 {
			return ""
		}
		return scopes.FormatDuration(d)
	}
	d.add(field, words(before), words(after), wider(after >= before, after <= before))
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

// number returns "" for zero, the value in a scope that does not exist.
func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// scope goes through the fields in the order in which a catalogue writes them.
func (d *fieldDiff) scope(a, b *scopes.Scope, authority Reach) {
	d.add("title", a.Title, b.Title, Same)
	d.add("authority", string(a.Authority), string(b.Authority), authority)
	d.params(a.Params, b.Params)
	d.add("resource", a.Resource, b.Resource, Changed)
	// A request without a TTL gets the default, so a longer default gives the same request a longer life.
	d.longer("ttl.default", a.TTL.Default, b.TTL.Default)
	d.longer("ttl.max", a.TTL.Max, b.TTL.Max)
	d.approval(a.Approval, b.Approval)
	for _, per := range []string{scopes.PerSandbox, scopes.PerTask, scopes.PerTrustDomain} {
		d.limit("limits."+per, findLimit(a.Limits, per, false), findLimit(b.Limits, per, false))
		d.limit("limits."+per, findLimit(a.Limits, per, true), findLimit(b.Limits, per, true))
	}
	d.credential(a.Credential, b.Credential)
	d.egress(a.Egress, b.Egress)
}

// approval compares who may approve. If a scope has no approval, whatever needs an approval is denied, so removing the
// approval narrows the scope. A policy, not the scope, decides whether an approval is needed.
func (d *fieldDiff) approval(a, b *scopes.Approval) {
	if a == nil || b == nil {
		d.add("approval", describeApproval(a), describeApproval(b), wider(b != nil || a == nil, a != nil || b == nil))
		return
	}
	d.add("approval.group", a.Group, b.Group, Changed)
	d.add("approval.quorum", number(a.Quorum), number(b.Quorum), wider(b.Quorum <= a.Quorum, b.Quorum >= a.Quorum))
	d.longer("approval.expires", a.Expires, b.Expires)
	d.add("approval.remember", a.Remember, b.Remember, wider(b.Remember == scopes.RememberTask, a.Remember == scopes.RememberTask))
	d.add("approval.break_glass", a.BreakGlass, b.BreakGlass, wider(a.BreakGlass == "", b.BreakGlass == ""))
	d.add("approval.passkey", a.Passkey, b.Passkey, wider(a.Passkey == scopes.PasskeyRequired, b.Passkey == scopes.PasskeyRequired))
}

func describeApproval(a *scopes.Approval) string {
	if a == nil {
		return ""
	}
	words := fmt.Sprintf("%d of %s within %s", a.Quorum, a.Group, scopes.FormatDuration(a.Expires))
	if a.Passkey == scopes.PasskeyRequired {
		words += ", signed by a passkey"
	}
	if a.Remember == scopes.RememberTask {
		words += ", remembered for the task"
	}
	if a.BreakGlass != "" {
		words += fmt.Sprintf(", or %d of %s in an emergency", scopes.BreakGlassQuorum, a.BreakGlass)
	}
	return words
}

// findLimit returns the one limit for per that is a live count or, if live is false, a rate. It returns nil if there is none.
func findLimit(limits []scopes.Limit, per string, live bool) *scopes.Limit {
	i := slices.IndexFunc(limits, func(l scopes.Limit) bool { return l.Per == per && (l.Live > 0) == live })
	if i < 0 {
		return nil
	}
	return &limits[i]
}

func (d *fieldDiff) limit(field string, a, b *scopes.Limit) {
	// allows reports whether l allows everything that other does: as large a burst, and as much in the long run.
	allows := func(l, other *scopes.Limit) bool {
		if l.Live > 0 {
			return l.Live >= other.Live
		}
		return l.Count >= other.Count && int64(l.Count)*int64(other.Window/time.Second) >= int64(other.Count)*int64(l.Window/time.Second)
	}
	switch {
	case a == nil && b == nil:
	case a == nil:
		d.add(field, "", b.String(), Narrowed)
	case b == nil:
		d.add(field, a.String(), "", Widened)
	default:
		d.add(field, a.String(), b.String(), wider(allows(b, a), allows(a, b)))
	}
}

func (d *fieldDiff) params(a, b map[string]scopes.Param) {
	for _, name := range unionKeys(a, b) {
		field := "params." + name
		before, was := a[name]
		after, is := b[name]
		if was && is && before.Type == after.Type {
			d.param(field, before, after)
		} else {
			d.add(field, describeParam(before), describeParam(after), Changed)
		}
	}
}

func (d *fieldDiff) param(field string, a, b scopes.Param) {
	d.add(field+".pattern", a.Pattern, b.Pattern, Changed)
	d.add(field+".max_length", number(a.MaxLength), number(b.MaxLength), wider(b.MaxLength >= a.MaxLength, b.MaxLength <= a.MaxLength))
	d.members(field+".values", a.Values, b.Values)
	if a.Type == scopes.ParamInt {
		d.add(field+".min", strconv.FormatInt(a.Min, 10), strconv.FormatInt(b.Min, 10), wider(b.Min <= a.Min, b.Min >= a.Min))
		d.add(field+".max", strconv.FormatInt(a.Max, 10), strconv.FormatInt(b.Max, 10), wider(b.Max >= a.Max, b.Max <= a.Max))
	}
}

// describeParam describes a parameter on one line; "" if there is none.
func describeParam(p scopes.Param) string {
	switch p.Type {
	case scopes.ParamString:
		return fmt.Sprintf("string that matches %s, at most %d bytes", p.Pattern, p.MaxLength)
	case scopes.ParamEnum:
		return "one of " + strings.Join(p.Values, ", ")
	case scopes.ParamInt:
		return fmt.Sprintf("int from %d to %d", p.Min, p.Max)
	case scopes.ParamBool:
		return "bool"
	default:
		return string(p.Type)
	}
}

func (d *fieldDiff) credential(a, b scopes.Credential) {
	d.add("credential.kind", a.Kind, b.Kind, Changed)
	d.add("credential.audience", a.Audience, b.Audience, Changed)
	d.add("credential.algorithm", a.Algorithm, b.Algorithm, Changed)
	rebound := Changed // two bindings cannot be compared, but no binding is the loosest
	if a.Bind == scopes.BindNone || b.Bind == scopes.BindNone {
		rebound = looser(a.Bind != scopes.BindNone, b.Bind != scopes.BindNone)
	}
	d.add("credential.bind", a.Bind, b.Bind, rebound)
	d.add("credential.uses", ifSo(a.OneShot, "1"), ifSo(b.OneShot, "1"), looser(a.OneShot, b.OneShot))
	d.add("credential.status_list", ifSo(a.StatusList, "true"), ifSo(b.StatusList, "true"), looser(a.StatusList, b.StatusList))
	d.add("credential.federation.subject", a.Federation.Subject, b.Federation.Subject, Changed)
	d.add("credential.federation.algorithm", a.Federation.Algorithm, b.Federation.Algorithm, Changed)
	d.exchange(a.Federation.Exchange, b.Federation.Exchange)
	d.add("credential.mount", a.Mount, b.Mount, Changed)
	d.add("credential.role", a.Role, b.Role, Changed)
	d.add("credential.method", a.Method, b.Method, Changed)
	d.add("credential.path", a.Path, b.Path, Changed)
	for _, key := range unionKeys(a.Data, b.Data) {
		d.add("credential.data."+key, a.Data[key], b.Data[key], Changed)
	}
	d.add("credential.static", ifSo(a.Static, "true"), ifSo(b.Static, "true"), Changed)
	d.add("credential.revocable", ifSo(a.Irrevocable, "false"), ifSo(b.Irrevocable, "false"), looser(!a.Irrevocable, !b.Irrevocable))
	d.longer("credential.min_ttl", a.MinTTL, b.MinTTL)
	d.add("credential.common_name", a.CommonName, b.CommonName, Changed)
	d.members("credential.dns_names", a.DNSNames, b.DNSNames)
	d.add("credential.key", ifSo(a.ServerKey, "server"), ifSo(b.ServerKey, "server"), Changed)
	d.members("credential.principals", a.Principals, b.Principals)
	d.rules(a.Policy, b.Policy)
	d.add("credential.app", a.App, b.App, Changed)
	d.add("credential.installation", number(int(a.Installation)), number(int(b.Installation)), Changed)
	d.members("credential.repositories", a.Repositories, b.Repositories)
	for _, name := range unionKeys(a.Permissions, b.Permissions) {
		before, after := permissionRank(a.Permissions[name]), permissionRank(b.Permissions[name])
		d.add("credential.permissions."+name, a.Permissions[name], b.Permissions[name], wider(after >= before, after <= before))
	}
	d.add("credential.within_svid", ifSo(a.WithinSVID, "true"), ifSo(b.WithinSVID, "true"), looser(a.WithinSVID, b.WithinSVID))
}

// permissionRank orders the levels of a permission at GitHub. A template has the highest rank: what it renders to is unknown.
func permissionRank(level string) int {
	const highest = 4
	switch level {
	case "":
		return 0
	case "read":
		return 1
	case "write":
		return 2
	case "admin":
		return 3
	default:
		return highest
	}
}

// exchange compares what another system gives for a token. Only that system knows what a role or an account may do.
func (d *fieldDiff) exchange(a, b scopes.Exchange) {
	for _, member := range []struct{ key, before, after string }{
		{"as", a.As, b.As},
		{"url", a.URL, b.URL},
		{"role", a.Role, b.Role},
		{"region", a.Region, b.Region},
		{"service_account", a.ServiceAccount, b.ServiceAccount},
		{"iam_url", a.IAM, b.IAM},
		{"tenant", a.Tenant, b.Tenant},
		{"client", a.Client, b.Client},
		{"scope", a.Scope, b.Scope},
		{"organization", a.Organization, b.Organization},
		{"rule", a.Rule, b.Rule},
		{"workspace", a.Workspace, b.Workspace},
		{"identity_provider", a.IdentityProvider, b.IdentityProvider},
	} {
		d.add("credential.federation.exchange."+member.key, member.before, member.after, Changed)
	}
	d.members("credential.federation.exchange.scopes", a.Scopes, b.Scopes)
}

// looser returns the reach of removing or adding a restriction.
func looser(was, is bool) Reach { return wider(was || !is, is || !was) }

func ifSo(is bool, word string) string {
	if is {
		return word
	}
	return ""
}

// rules compares the rules of a Vault token. In Vault, a more specific path overrides one with a *, so adding a path can
// remove permissions. Rules are only comparable if both versions have the same paths.
func (d *fieldDiff) rules(a, b []scopes.Rule) {
	before, after := byPath(a), byPath(b)
	paths := maps.EqualFunc(before, after, func(_, _ []string) bool { return true })
	for _, path := range unionKeys(before, after) {
		reach := Changed
		if paths {
			reach = wider(covers(after[path], before[path]), covers(before[path], after[path]))
		}
		d.add("credential.policy."+path, strings.Join(before[path], ", "), strings.Join(after[path], ", "), reach)
	}
}

func byPath(rules []scopes.Rule) map[string][]string {
	out := map[string][]string{}
	for _, r := range rules {
		out[r.Path] = append(out[r.Path], r.Capabilities...)
	}
	return asSets(out)
}

// egress compares egress rules. The rules together define what is allowed, so each call is compared by itself, whichever
// rule allows it. It does not detect that one path covers another.
func (d *fieldDiff) egress(a, b []scopes.Egress) {
	before, after := byHost(a), byHost(b)
	for _, host := range unionKeys(before, after) {
		old, now := before[host], after[host]
		d.add("egress."+host, describeCalls(old), describeCalls(now), wider(allCovered(now, old), allCovered(old, now)))
	}
}

// egressCall is a call that a rule allows, with the request headers that the rule names.
type egressCall struct {
	text    string
	headers []string
}

func describeCalls(calls []egressCall) string {
	var texts []string
	for _, call := range calls {
		text := call.text
		if len(call.headers) > 0 {
			text += " and headers " + strings.Join(call.headers, " ")
		}
		texts = append(texts, text)
	}
	slices.Sort(texts)
	return strings.Join(slices.Compact(texts), ", ")
}

// allCovered reports whether each of some is also in all, with the same headers or more.
func allCovered(all, some []egressCall) bool {
	for _, call := range some {
		if !slices.ContainsFunc(all, func(other egressCall) bool {
			return other.text == call.text && coversHeaders(other.headers, call.headers)
		}) {
			return false
		}
	}
	return true
}

func coversHeaders(all, some []string) bool {
	return !slices.ContainsFunc(some, func(name string) bool {
		return !slices.ContainsFunc(all, func(other string) bool {
			prefix, is := strings.CutSuffix(other, "*")
			return name == other || is && strings.HasPrefix(name, prefix)
		})
	})
}

func byHost(rules []scopes.Egress) map[string][]egressCall {
	out := map[string][]egressCall{}
	for _, rule := range rules {
		headers := slices.Sorted(slices.Values(rule.Headers))
		for _, host := range rule.Hosts {
			for _, database := range rule.Databases {
				out[host] = append(out[host], egressCall{text: "database " + database})
			}
			for _, path := range rule.Paths {
				for _, method := range rule.Methods {
					out[host] = append(out[host], egressCall{method + " " + path + describeSend(rule.Send), headers})
				}
			}
		}
	}
	return out
}

func asSets(lists map[string][]string) map[string][]string {
	for key, list := range lists {
		slices.Sort(list)
		lists[key] = slices.Compact(list)
	}
	return lists
}

// describeSend describes how s differs from a rule without send.
func describeSend(s scopes.Send) string {
	var b strings.Builder
	switch {
	case s == scopes.Send{}:
		return ""
	case s.Name != "":
		fmt.Fprintf(&b, " with %s %s", s.As, s.Name)
	case s.User != "":
		fmt.Fprintf(&b, " with %s for %s", s.As, s.User)
	case s.Service != "":
		fmt.Fprintf(&b, " with %s for %s in %s", s.As, s.Service, s.Region)
	default:
		fmt.Fprintf(&b, " with %s", s.As)
	}
	if s.Field != "" {
		fmt.Fprintf(&b, " of %s", s.Field)
	}
	return b.String()
}
