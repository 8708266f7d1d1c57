package diff_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit/testscopes"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/brevet-dev/brevet/scopes/diff"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// Each row is one change to the world, with the expected fields and reach. The reverse change has the opposite reach.
func TestPlanOfOneChange(t *testing.T) {
	const ttl = "ttl: {default: 10m, max: 1h}\n"
	const limits = "    limits: [{per: sandbox, count: 60, window: 1h}, {per: task, live: 5}]\n"
	withLimits := testscopes.Replace(t, testscopes.Scopes, ttl, ttl+limits)
	withHeaders := func(paths string) string {
		return testscopes.Replace(t, testscopes.Scopes, "bind: mtls}\n", "bind: mtls}\n    egress: [{hosts: [mail.example], methods: [GET], paths: "+paths+"}]\n")
	}
	withEgress := testscopes.Replace(t, testscopes.Scopes, "bind: mtls}\n", "bind: mtls}\n    egress: ["+testscopes.MailRule+"]\n")
	for _, tc := range []struct {
		name      string
		base      string // empty for the world
		old, with string
		want      []string // field: old -> new, reach
		reach     diff.Reach
	}{
		{name: "title", old: "title: Read mail", with: "title: Read all mail", want: []string{"title: Read mail -> Read all mail, same"}, reach: diff.Same},
		{name: "comment", old: "    title: Read mail", with: "    # Of the team.\n    title: Read mail", reach: diff.Same},
		{name: "ttl.max", old: "default: 10m, max: 1h", with: "default: 10m, max: 2h", want: []string{"ttl.max: 1h -> 2h, widened"}, reach: diff.Widened},
		{name: "ttl.default", old: "default: 10m, max: 1h", with: "default: 20m, max: 1h", want: []string{"ttl.default: 10m -> 20m, widened"}, reach: diff.Widened},
		{
			name: "both ways", old: "default: 10m, max: 1h", with: "default: 20m, max: 30m",
			want: []string{"ttl.default: 10m -> 20m, widened", "ttl.max: 1h -> 30m, narrowed"}, reach: diff.Changed,
		},
		{name: "authority", old: "authority: delete", with: "authority: draft", want: []string{"authority: delete -> draft, widened"}, reach: diff.Widened},
		{name: "resource", old: "resource: mail:all", with: "resource: mail:every", want: []string{"resource: mail:all -> mail:every, changed"}, reach: diff.Changed},
		// Nobody can be asked any more, so whatever needs an approval is denied.
		{name: "approval", old: "    approval: {group: oncall}\n", with: "", want: []string{"approval: 1 of oncall within 10m -> , narrowed"}, reach: diff.Narrowed},
		{name: "group", old: "group: oncall", with: "group: everybody", want: []string{"approval.group: oncall -> everybody, changed"}, reach: diff.Changed},
		{name: "quorum", old: "quorum: 2", with: "quorum: 1", want: []string{"approval.quorum: 2 -> 1, widened"}, reach: diff.Widened},
		{name: "waits longer", old: "expires: 1h", with: "expires: 2h", want: []string{"approval.expires: 1h -> 2h, widened"}, reach: diff.Widened},
		{name: "signed by a passkey", old: "group: oncall", with: "group: oncall, passkey: required", want: []string{"approval.passkey: never -> required, narrowed"}, reach: diff.Narrowed},
		{name: "signed no more", old: "group: oncall", with: "group: oncall, passkey: never", want: nil, reach: diff.Same},
		{name: "remembered", old: "group: oncall", with: "group: oncall, remember: task", want: []string{"approval.remember: never -> task, widened"}, reach: diff.Widened},
		{name: "glass to break", old: "group: oncall", with: "group: oncall, break_glass: leads", want: []string{"approval.break_glass:  -> leads, widened"}, reach: diff.Widened},
		{
			name: "approval with a glass", old: "    resource: mail:all\n", with: "    resource: mail:all\n    approval: {group: oncall, break_glass: leads}\n",
			want: []string{"approval:  -> 1 of oncall within 10m, or 2 of leads in an emergency, widened"}, reach: diff.Widened,
		},
		{
			name: "limit removed", base: withLimits, old: "{per: sandbox, count: 60, window: 1h}, ", with: "",
			want: []string{"limits.sandbox: 60 in 1h per sandbox -> , widened"}, reach: diff.Widened,
		},
		{
			name: "limit higher", base: withLimits, old: "count: 60, window: 1h", with: "count: 61, window: 1h",
			want: []string{"limits.sandbox: 60 in 1h per sandbox -> 61 in 1h per sandbox, widened"}, reach: diff.Widened,
		},
		{
			name: "limit faster", base: withLimits, old: "count: 60, window: 1h", with: "count: 60, window: 30m",
			want: []string{"limits.sandbox: 60 in 1h per sandbox -> 60 in 30m per sandbox, widened"}, reach: diff.Widened,
		},
		{
			name: "limit of the same rate and a larger burst", base: withLimits, old: "count: 60, window: 1h", with: "count: 120, window: 2h",
			want: []string{"limits.sandbox: 60 in 1h per sandbox -> 120 in 2h per sandbox, widened"}, reach: diff.Widened,
		},
		{
			name: "limit faster and smaller", base: withLimits, old: "count: 60, window: 1h", with: "count: 30, window: 10m",
			want: []string{"limits.sandbox: 60 in 1h per sandbox -> 30 in 10m per sandbox, changed"}, reach: diff.Changed,
		},
		{
			name: "limit alive", base: withLimits, old: "live: 5", with: "live: 6",
			want: []string{"limits.task: 5 at a time per task -> 6 at a time per task, widened"}, reach: diff.Widened,
		},
		{
			name: "pattern", old: "'[a-z0-9-]+/[a-z0-9._-]+'", with: "'.+'",
			want: []string{"params.repo.pattern: [a-z0-9-]+/[a-z0-9._-]+ -> .+, changed"}, reach: diff.Changed,
		},
		{name: "max_length", old: "max_length: 40", with: "max_length: 50", want: []string{"params.repo.max_length: 40 -> 50, widened"}, reach: diff.Widened},
		{name: "int", old: "min: 1, max: 10000", with: "min: -1, max: 10001", want: []string{"params.cents.min: 1 -> -1, widened", "params.cents.max: 10000 -> 10001, widened"}, reach: diff.Widened},
		{name: "values", old: "[EUR, USD]", with: "[EUR, USD, GBP]", want: []string{"params.currency.values: EUR, USD -> EUR, USD, GBP, widened"}, reach: diff.Widened},
		{name: "other values", old: "[EUR, USD]", with: "[EUR, GBP]", want: []string{"params.currency.values: EUR, USD -> EUR, GBP, changed"}, reach: diff.Changed},
		{name: "order of values", old: "[EUR, USD]", with: "[USD, EUR]", want: []string{"params.currency.values: EUR, USD -> USD, EUR, same"}, reach: diff.Same},
		{name: "parameter", old: "      urgent: {type: bool}\n", with: "", want: []string{"params.urgent: bool -> , changed"}, reach: diff.Changed},
		{
			name: "type of a parameter", old: "{type: enum, values: [EUR, USD]}", with: "{type: string, pattern: '[A-Z]+'}",
			want: []string{"params.currency: one of EUR, USD -> string that matches [A-Z]+, at most 200 bytes, changed"}, reach: diff.Changed,
		},
		{name: "bind to another key", old: ", bind: mtls", with: ", bind: dpop", want: []string{"credential.bind: mtls -> dpop, changed"}, reach: diff.Changed},
		{name: "algorithm", old: ", bind: mtls", with: ", bind: mtls, algorithm: EdDSA", want: []string{"credential.algorithm: ES256 -> EdDSA, changed"}, reach: diff.Changed},
		{name: "bind", old: ", bind: mtls", with: "", want: []string{"credential.bind: mtls -> none, widened"}, reach: diff.Widened},
		{name: "uses", old: ", bind: mtls", with: ", bind: mtls, uses: 1", want: []string{"credential.uses:  -> 1, narrowed"}, reach: diff.Narrowed},
		{name: "status list", old: ", bind: mtls", with: ", bind: mtls, status_list: true", want: []string{"credential.status_list:  -> true, narrowed"}, reach: diff.Narrowed},
		{
			name: "federation", old: ", bind: mtls", with: ", federation: {subject: 'mail:in'}",
			want: []string{"credential.algorithm: ES256 -> , changed", "credential.bind: mtls -> none, widened", "credential.federation.subject:  -> mail:in, changed", "credential.federation.algorithm:  -> RS256, changed"}, reach: diff.Changed,
		},
		{
			name: "exchange", base: testscopes.Replace(t, testscopes.Scopes, ", bind: mtls", ", federation: {subject: 'mail:in', exchange: {as: aws, role: 'arn:aws:iam::123456789012:role/in', region: eu-central-1}}"),
			old: "role/in', region: eu-central-1", with: "role/out', region: eu-west-1",
			want: []string{
				"credential.federation.exchange.url: https://sts.eu-central-1.amazonaws.com -> https://sts.eu-west-1.amazonaws.com, changed",
				"credential.federation.exchange.role: arn:aws:iam::123456789012:role/in -> arn:aws:iam::123456789012:role/out, changed",
				"credential.federation.exchange.region: eu-central-1 -> eu-west-1, changed",
			}, reach: diff.Changed,
		},
		{name: "audience", old: "https://mail.example", with: "https://post.example", want: []string{"credential.audience: https://mail.example -> https://post.example, changed"}, reach: diff.Changed},
		{
			name: "first egress", old: "bind: mtls}\n", with: "bind: mtls}\n    egress: [" + testscopes.MailRule + "]\n",
			want: []string{"egress.mail.example:  -> GET /in, GET /out, widened"}, reach: diff.Widened,
		},
		{
			name: "egress to more", base: withEgress, old: testscopes.MailRule, with: testscopes.MailRule + ", " + testscopes.PostRule,
			want: []string{"egress.mail.example: GET /in, GET /out -> GET /in, GET /out, POST /out, widened"}, reach: diff.Widened,
		},
		{
			name: "egress elsewhere", base: withEgress, old: "[/in, /out]", with: "[/in, /all]",
			want: []string{"egress.mail.example: GET /in, GET /out -> GET /all, GET /in, changed"}, reach: diff.Changed,
		},
		{
			name: "egress in another way", base: testscopes.Replace(t, testscopes.Scopes, testscopes.MailJWT, withSend(", send: {as: header, name: x-key, field: key}")),
			old: "{as: header, name: x-key, field: key}", with: "{as: basic, user: bot, field: key}",
			want:  []string{"egress.mail.example: GET /in with header x-key of key -> GET /in with basic for bot of key, changed"},
			reach: diff.Changed,
		},
		{
			name: "egress that is signed elsewhere", base: testscopes.Replace(t, testscopes.Scopes, testscopes.MailJWT, withSend(", send: {as: aws, service: s3, region: eu-central-1}")),
			old: "region: eu-central-1", with: "region: us-east-1",
			want:  []string{"egress.mail.example: GET /in with aws for s3 in eu-central-1 -> GET /in with aws for s3 in us-east-1, changed"},
			reach: diff.Changed,
		},
		{
			name: "egress to more databases", base: testscopes.Replace(t, testscopes.Scopes, testscopes.MailJWT, withLogins("{hosts: ['db.example:5432'], databases: [mail]}")),
			old: "databases: [mail]", with: "databases: [mail, post]",
			want: []string{"egress.db.example:5432: database mail -> database mail, database post, widened"}, reach: diff.Widened,
		},
		{
			name: "egress with a header", base: withEgress, old: "[/in, /out]", with: "[/in, /out], headers: [sudo]",
			want: []string{"egress.mail.example: GET /in, GET /out -> GET /in and headers sudo, GET /out and headers sudo, widened"}, reach: diff.Widened,
		},
		{
			name: "egress with more headers", base: withHeaders("[/in], headers: [x-goog-acl]"), old: "[x-goog-acl]", with: "[sudo, 'x-goog-*']",
			want: []string{"egress.mail.example: GET /in and headers x-goog-acl -> GET /in and headers sudo x-goog-*, widened"}, reach: diff.Widened,
		},
		{
			name: "egress with another header", base: withHeaders("[/in], headers: [sudo]"), old: "[sudo]", with: "[x-goog-acl]",
			want: []string{"egress.mail.example: GET /in and headers sudo -> GET /in and headers x-goog-acl, changed"}, reach: diff.Changed,
		},
		{ // together, the headers allow a call that neither rule allowed
			name: "egress with two headers in one call", old: "[/in], headers: [sudo]}, {hosts: [mail.example], methods: [GET], paths: [/in], headers: [x-goog-acl]}",
			base: withHeaders("[/in], headers: [sudo]}, {hosts: [mail.example], methods: [GET], paths: [/in], headers: [x-goog-acl]"), with: "[/in], headers: [sudo, x-goog-acl]}",
			want: []string{"egress.mail.example: GET /in and headers sudo, GET /in and headers x-goog-acl -> GET /in and headers sudo x-goog-acl, widened"}, reach: diff.Widened,
		},
		{name: "order of egress headers", base: withHeaders("[/in], headers: [sudo, x-goog-acl]"), old: "[sudo, x-goog-acl]", with: "[x-goog-acl, sudo]", reach: diff.Same},
		{name: "order of egress", base: withEgress, old: "[/in, /out]", with: "[/out, /in]", reach: diff.Same},
		{
			name: "egress to two hosts", base: withEgress, old: "[mail.example]", with: "[post.example]",
			want: []string{"egress.mail.example: GET /in, GET /out -> , narrowed", "egress.post.example:  -> GET /in, GET /out, widened"}, reach: diff.Changed,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			base := tc.base
			if base == "" {
				base = testscopes.Scopes
			}
			policies := `@id("all") permit (principal, action, resource);` + "\n"
			a, b := testscopes.Load(t, base, policies), testscopes.Load(t, testscopes.Replace(t, base, tc.old, tc.with), policies)
			got := diff.Compare(a, b)
			if differs := cmp.Diff(tc.want, fieldLines(t, got)); differs != "" {
				t.Errorf("fields (-want +got):\n%s", differs)
			}
			if reach := reachOf(got); reach != tc.reach {
				t.Errorf("got reach %s, want %s", reach, tc.reach)
			}
			if back := reachOf(diff.Compare(b, a)); back != mirrored[tc.reach] {
				t.Errorf("got reach %s for the way back, want %s", back, mirrored[tc.reach])
			}
			if got.Empty() {
				t.Error("got an empty diff of different files")
			}
		})
	}
}

var mirrored = map[diff.Reach]diff.Reach{
	diff.Widened: diff.Narrowed, diff.Narrowed: diff.Widened, diff.Changed: diff.Changed, diff.Same: diff.Same,
}

// fieldLines formats the fields of the only scope in a diff, if any.
func fieldLines(t *testing.T, d diff.Diff) []string {
	t.Helper()
	if len(d.Scopes) > 1 || len(d.Policies) > 0 {
		t.Fatalf("got %+v, want one scope at most", d)
	}
	var lines []string
	for _, s := range d.Scopes {
		for _, f := range s.Fields {
			lines = append(lines, fmt.Sprintf("%s: %s -> %s, %s", f.Field, f.Old, f.New, f.Reach))
		}
	}
	return lines
}

func reachOf(d diff.Diff) diff.Reach {
	if len(d.Scopes) == 0 {
		return diff.Same
	}
	return d.Scopes[0].Reach
}

// A policy can reverse the effect of an authority class. Plan then reports the reach as changed.
func TestPlanOfAuthorityLooksAtPolicies(t *testing.T) {
	lower := testscopes.Replace(t, testscopes.Scopes, "authority: delete", "authority: draft")
	for _, tc := range []struct {
		name, policy string
		want         diff.Reach
	}{
		{"guardrail", `forbid (principal, action in Action::"authority:delete", resource)`, diff.Widened},
		{"permit of the lower class", `permit (principal, action in Action::"authority:draft", resource)`, diff.Widened},
		{"permit of the higher class", `permit (principal, action in [Action::"authority:delete", Action::"mail.read"], resource)`, diff.Changed},
		{"forbid of the lower class", `forbid (principal, action in Action::"authority:draft", resource)`, diff.Changed},
		{"in a condition", `forbid (principal, action, resource) unless { action in Action::"authority:delete" }`, diff.Changed},
		{"another class", `permit (principal, action in Action::"authority:read", resource)`, diff.Widened},
	} {
		t.Run(tc.name, func(t *testing.T) {
			policies := `@id("a") ` + tc.policy + ";\n"
			a, b := testscopes.Load(t, testscopes.Scopes, policies), testscopes.Load(t, lower, policies)
			if got := reachOf(diff.Compare(a, b)); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
			if got := reachOf(diff.Compare(b, a)); got != mirrored[tc.want] {
				t.Errorf("got %s for the way back, want %s", got, mirrored[tc.want])
			}
		})
	}
}

func TestPlanOfPolicies(t *testing.T) {
	const permit, forbid = `permit (principal, action == Action::"mail.read", resource)`, `forbid (principal, action == Action::"mail.read", resource)`
	for _, tc := range []struct {
		name, from, to string
		want           []string
	}{
		{"permit added", "", `@id("p") ` + permit + ";", []string{"p added permit widened"}},
		{"permit removed", `@id("p") ` + permit + ";", "", []string{"p removed permit narrowed"}},
		{"forbid added", "", `@id("p") ` + forbid + ";", []string{"p added forbid narrowed"}},
		{"forbid removed", `@id("p") ` + forbid + ";", "", []string{"p removed forbid widened"}},
		{"turned into a forbid", `@id("p") ` + permit + ";", `@id("p") ` + forbid + ";", []string{"p changed forbid narrowed"}},
		{"turned into a permit", `@id("p") ` + forbid + ";", `@id("p") ` + permit + ";", []string{"p changed permit widened"}},
		{"condition", `@id("p") ` + permit + ";", `@id("p") ` + permit + " when { context.ttl < 60 };", []string{"p changed permit changed"}},
		{"condition of a forbid", `@id("p") ` + forbid + ";", `@id("p") ` + forbid + " when { context.ttl < 60 };", []string{"p changed forbid changed"}},
		{"layout and comments", `@id("p") ` + permit + ";", "@id(\"p\")\n// see the wiki; it says why\n" + strings.ReplaceAll(permit, ", ", ",\n  ") + "\n;", []string{"p changed permit same"}},
		{"annotation", `@id("p") ` + permit + ";", `@id("p") @owner("a;b") ` + permit + ";", []string{"p changed permit same"}},
		{"comment between policies", `@id("p") ` + permit + ";", "// Mail.\n" + `@id("p") ` + permit + "; // tail", nil},
		{"renamed", `@id("p") ` + permit + ";", `@id("q") ` + permit + ";", []string{"p removed permit narrowed", "q added permit widened"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			const always = `@id("always") forbid (principal, action == Action::"pay.refund", resource);` + "\n"
			got := diff.Compare(testscopes.Load(t, testscopes.Scopes, always+tc.from), testscopes.Load(t, testscopes.Scopes, always+tc.to))
			var lines []string
			for _, p := range got.Policies {
				lines = append(lines, fmt.Sprintf("%s %s %s %s", p.ID, p.Change, p.Effect, p.Reach))
			}
			if differs := cmp.Diff(tc.want, lines); differs != "" || len(got.Scopes) != 0 {
				t.Errorf("policies (-want +got), and %d scopes:\n%s", len(got.Scopes), differs)
			}
		})
	}
}

// The first catalogue of a deployment is compared with nothing.
func TestPlanFromNothing(t *testing.T) {
	c := testscopes.World(t)
	got := diff.Compare(nil, c)
	if got.From != "" || got.To != c.Digest() || len(got.Scopes) != 5 || len(got.Policies) != 7 {
		t.Fatalf("got %+v, want every scope and policy", got)
	}
	want := diff.ScopeChange{Name: "mail.read", Change: diff.Added, Reach: diff.Widened, Fields: []diff.FieldChange{
		{Field: "title", New: "Read mail", Reach: diff.Same},
		{Field: "authority", New: "read", Reach: diff.Same},
		{Field: "resource", New: "mail:all", Reach: diff.Same},
		{Field: "ttl.default", New: "10m", Reach: diff.Same},
		{Field: "ttl.max", New: "1h", Reach: diff.Same},
		{Field: "credential.kind", New: "jwt", Reach: diff.Same},
		{Field: "credential.audience", New: "https://mail.example", Reach: diff.Same},
		{Field: "credential.algorithm", New: "ES256", Reach: diff.Same},
		{Field: "credential.bind", New: "mtls", Reach: diff.Same},
	}}
	if differs := cmp.Diff(want, got.Scopes[3]); differs != "" {
		t.Errorf("scope (-want +got):\n%s", differs)
	}
	// No policy permits deleting a repository, so adding the scope alone gives nobody anything.
	if s := got.Scopes[2]; s.Name != "git.repo.delete" || s.Reach != diff.Same {
		t.Errorf("got %s %s, want the same reach", s.Name, s.Reach)
	}
	if differs := cmp.Diff(diff.Summary{Add: 12, Widened: 7}, got.Summary()); differs != "" {
		t.Errorf("summary (-want +got):\n%s", differs)
	}
	gone := diff.Compare(c, nil).Scopes[3]
	if gone.Change != diff.Removed || gone.Reach != diff.Narrowed || gone.Fields[0].Old != "Read mail" || gone.Fields[0].New != "" {
		t.Errorf("got %+v, want the same removed", gone)
	}
}

// Changes to what Vault is asked for count too.
func TestPlanOfCredentials(t *testing.T) {
	for _, tc := range []struct{ name, from, to, want string }{
		{"capability", "{kind: vault-token, policy: [{path: secret/a, capabilities: [read]}]}", "{kind: vault-token, policy: [{path: secret/a, capabilities: [list, read]}]}", "credential.policy.secret/a: read -> list, read, widened"},
		{"rule", "{kind: vault-token, policy: [{path: 'secret/*', capabilities: [read]}]}", "{kind: vault-token, policy: [{path: 'secret/*', capabilities: [read]}, {path: secret/a, capabilities: [list]}]}", "credential.policy.secret/a:  -> list, changed"},
		{"role", "{kind: database, mount: database, role: a}", "{kind: database, mount: database, role: b}", "credential.role: a -> b, changed"},
		{"names", "{kind: pki, mount: pki, role: a, common_name: a.example}", "{kind: pki, mount: pki, role: a, common_name: a.example, dns_names: [b.example]}", "credential.dns_names:  -> b.example, widened"},
		{"key", "{kind: pki, mount: pki, role: a, common_name: a.example}", "{kind: pki, mount: pki, role: a, common_name: a.example, key: server}", "credential.key:  -> server, changed"},
		{"principals", "{kind: ssh, mount: ssh, role: a, principals: [a, b]}", "{kind: ssh, mount: ssh, role: a, principals: [a]}", "credential.principals: a, b -> a, narrowed"},
		{"data", "{kind: vault, method: write, path: aws/a, data: {x: '1'}}", "{kind: vault, method: write, path: aws/a, data: {x: '2'}}", "credential.data.x: 1 -> 2, changed"},
		{"within SVID", "{kind: kv, path: secret/a}", "{kind: kv, path: secret/a, within_svid: true}", "credential.within_svid:  -> true, narrowed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := func(credential string) *scopes.Catalogue {
				return testscopes.Load(t, testscopes.Replace(t, testscopes.Scopes, "{kind: jwt, audience: https://mail.example, bind: mtls}", credential), testscopes.Policies)
			}
			if got := fieldLines(t, diff.Compare(c(tc.from), c(tc.to))); !slices.Equal(got, []string{tc.want}) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// edits lists texts in the world, each with its possible replacements.
var edits = [][]string{
	{"default: 10m, max: 1h", "default: 5m, max: 2h", "default: 20m, max: 30m"},
	{"authority: delete", "authority: draft", "authority: write"},
	{"    approval: {group: oncall}\n", "", "    approval: {group: oncall, quorum: 2, remember: task, passkey: required}\n"},
	{"quorum: 2, expires: 1h", "quorum: 2, expires: 1h, break_glass: leads", "quorum: 2, expires: 1h, break_glass: others"},
	{"[EUR, USD]", "[EUR]", "[USD, GBP]"},
	{"min: 1, max: 10000", "min: 0, max: 10000", "min: 5, max: 50"},
	{", bind: mtls", "", ", bind: none"},
	{"bind: mtls}\n", "bind: mtls}\n    egress: [" + testscopes.MailRule + "]\n", "bind: mtls}\n    egress: [" + testscopes.MailRule + ", " + testscopes.PostRule + "]\n"},
	{"resource: mail:all\n", "resource: mail:some\n", "resource: mail:all\n    limits: [{per: task, live: 2}]\n"},
	{"name: git.repo.delete", "name: git.repo.remove", "name: git.tags.delete"},
}

// drawScopes changes the world in a few places.
func drawScopes(t *rapid.T) string {
	text := testscopes.Scopes
	for _, edit := range edits {
		text = strings.Replace(text, edit[0], rapid.SampledFrom(edit).Draw(t, edit[0]), 1)
	}
	return text
}

// The reverse change has the opposite reach, and no change gives an empty diff.
func TestPlanMirrors(t *testing.T) {
	draw := func(t *rapid.T) *scopes.Catalogue {
		return testscopes.MustLoadBoth(t, drawScopes(t), drawAnyPolicies(t))
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw(t), draw(t)
		if d := diff.Compare(a, a); !d.Empty() || len(d.Scopes) != 0 || len(d.Policies) != 0 {
			t.Fatalf("got %+v for one and the same", d)
		}
		there, back := diff.Compare(a, b), diff.Compare(b, a)
		if len(there.Scopes) != len(back.Scopes) || len(there.Policies) != len(back.Policies) {
			t.Fatalf("got %+v there and %+v back", there, back)
		}
		for i, s := range there.Scopes {
			if r := back.Scopes[i]; r.Name != s.Name || r.Reach != mirrored[s.Reach] || len(r.Fields) != len(s.Fields) {
				t.Fatalf("got %+v there and %+v back", s, r)
			}
			for j, f := range s.Fields {
				if r := back.Scopes[i].Fields[j]; r.Field != f.Field || r.Old != f.New || r.New != f.Old || r.Reach != mirrored[f.Reach] {
					t.Fatalf("got %+v there and %+v back", f, r)
				}
			}
		}
		for i, p := range there.Policies {
			if r := back.Policies[i]; r.ID != p.ID || r.Old != p.New || r.New != p.Old || r.Reach != mirrored[p.Reach] {
				t.Fatalf("got %+v there and %+v back", p, r)
			}
		}
	})
}

// drawAnyPolicies draws policies that are valid for any scopes.
func drawAnyPolicies(t *rapid.T) string {
	var b strings.Builder
	for i := range rapid.IntRange(1, 4).Draw(t, "policies") {
		fmt.Fprintf(&b, "@id(\"p%d\") %s (principal, action%s, resource)%s;\n", i,
			rapid.SampledFrom([]string{"permit", "forbid"}).Draw(t, "effect"),
			rapid.SampledFrom([]string{"", ` in Action::"authority:read"`, ` in Action::"git.*"`, ` == Action::"mail.read"`}).Draw(t, "action"),
			rapid.SampledFrom([]string{"", " when { context.approved }", " // no more\n"}).Draw(t, "condition"))
	}
	return b.String()
}

// The reach of a scope's change holds for every request: callers get no less if it is widened, and no more if it is
// narrowed. The test skips requests whose TTL changes, because a policy on the TTL may then decide differently.
func TestReachHoldsForDecisions(t *testing.T) {
	seen := map[diff.Reach]int{}
	rapid.Check(t, func(t *rapid.T) {
		policies, edit := testscopes.DrawPolicies(t), rapid.SampledFrom(edits[1:7]).Draw(t, "edit")
		changed := strings.Replace(testscopes.Scopes, edit[0], rapid.SampledFrom(edit[1:]).Draw(t, "with"), 1)
		a, b := testscopes.MustLoad(t, policies), testscopes.MustLoadBoth(t, changed, policies)
		reach := map[string]diff.Reach{}
		for _, s := range diff.Compare(a, b).Scopes {
			reach[s.Name] = s.Reach
		}
		for range 20 {
			who, ask := testscopes.DrawSubject(t), testscopes.DrawAsk(t)
			before, err := a.Decide(who, ask, testscopes.Noon)
			after, errAfter := b.Decide(who, ask, testscopes.Noon)
			r, is := reach[ask.Scope]
			erred := before.Reason == scopes.ReasonPolicyError || after.Reason == scopes.ReasonPolicyError
			if err != nil || errAfter != nil || !is || erred || before.TTL != after.TTL {
				continue
			}
			seen[r]++
			less, more := width[after.Outcome] < width[before.Outcome], width[after.Outcome] > width[before.Outcome]
			if less && (r == diff.Widened || r == diff.Same) || more && (r == diff.Narrowed || r == diff.Same) {
				t.Fatalf("%s is %s, and %s became %s for %+v", ask.Scope, r, before.Outcome, after.Outcome, ask)
			}
		}
	})
	if seen[diff.Widened] == 0 || seen[diff.Narrowed] == 0 {
		t.Errorf("got %v: too little was checked", seen)
	}
}

// withSend is another credential of the mail scope, which a gateway puts into calls.
func withSend(send string) string {
	return "{kind: kv, path: secret/data/mail}\n    egress: [{hosts: [mail.example], methods: [GET], paths: [/in]" + send + "}]\n"
}

func withLogins(rule string) string {
	return "{kind: database, mount: database, role: mail}\n    egress: [" + rule + "]\n"
}

var width = map[scopes.Outcome]int{scopes.Deny: 0, scopes.Pending: 1, scopes.Allow: 2}
