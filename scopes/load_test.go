package scopes_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/go-cmp/cmp"
)

// refusal loads a broken catalogue and returns the message that a person sees.
func refusal(t *testing.T, files ...scopes.File) string {
	t.Helper()
	c, err := scopes.Load(files)
	var problems scopes.Problems
	if !errors.As(err, &problems) || len(problems) == 0 {
		t.Fatalf("got catalogue %v and error %v, want Problems", c, err)
	}
	if c != nil {
		t.Errorf("got a catalogue beside the error")
	}
	return err.Error()
}

// mistake is one error in the world and the expected message.
type mistake struct {
	name      string
	old, with string // in the scopes
	want      string
}

var mistakes = []mistake{
	{
		name: "unknown key", old: "title: Read mail\n", with: "title: Read mail\n    quota: 60\n",
		want: "scopes.yaml:40: scope: unknown key \"quota\"; the keys are name, title, authority, params, resource, ttl, approval, limits, credential, egress",
	},
	{
		name: "duplicate key", old: "title: Read mail\n", with: "title: Read mail\n    title: Read all mail\n",
		want: `scopes.yaml:40: scope: key "title" is listed twice; remove one`,
	},
	{
		name: "duplicate scope", old: "name: mail.read", with: "name: git.issues.read",
		want: "scopes.yaml:38: scope git.issues.read is defined twice; the first is at scopes.yaml:2",
	},
	{
		name: "one word name", old: "name: mail.read", with: "name: mail",
		want: `scopes.yaml:38: scope name "mail" must be two or more lower-case words separated by dots, such as github.issues.read, and at most 100 bytes`,
	},
	{
		name: "bidi in title", old: "title: Read mail", with: "title: \"Read \u202email\"",
		want: "scopes.yaml:39: scope mail.read: title must be one line of visible text, at most 200 bytes",
	},
	{
		name: "title missing", old: "    title: Read mail\n", with: "",
		want: "scopes.yaml:38: scope mail.read: title is missing",
	},
	{
		name: "number for text", old: "title: Read mail", with: "title: 7",
		want: "scopes.yaml:39: scope mail.read: title must be text; put it in quotes",
	},
	{
		name: "authority", old: "authority: payment", with: "authority: root",
		want: `scopes.yaml:30: scope pay.refund: authority "root" is unknown; choose read, draft, write, delete, payment or permission`,
	},
	{
		name: "ttl over a day", old: "max: 1h", with: "max: 25h",
		want: "scopes.yaml:42: scope mail.read: ttl.max must be whole seconds from 1s to 24h, such as 90s or 5m",
	},
	{
		name: "ttl of parts of a second", old: "default: 10m", with: "default: 1500ms",
		want: "scopes.yaml:42: scope mail.read: ttl.default must be whole seconds from 1s to 24h, such as 90s or 5m",
	},
	{
		name: "ttl upside down", old: "default: 10m, max: 1h", with: "default: 2h, max: 1h",
		want: "scopes.yaml:42: scope mail.read: ttl.default (2h) is longer than ttl.max (1h)",
	},
	{
		name: "ttl without max", old: "{default: 10m, max: 1h}", with: "{default: 10m}",
		want: "scopes.yaml:42: scope mail.read: ttl needs default and max, such as {default: 5m, max: 15m}",
	},
	{
		name: "quorum of nobody", old: "quorum: 2", with: "quorum: 0",
		want: "scopes.yaml:26: scope git.repo.delete: approval.quorum must be a whole number from 1 to 10",
	},
	{
		name: "approval without group", old: "{group: oncall}", with: "{quorum: 1}",
		want: "scopes.yaml:17: scope git.issues.write: approval needs a group, such as {group: oncall}",
	},
	{
		name: "passkey of no known word", old: "{group: oncall}", with: "{group: oncall, passkey: preferred}",
		want: `scopes.yaml:17: scope git.issues.write: approval.passkey "preferred" must be never or required`,
	},
	{
		name: "break glass of the same group", old: "{group: oncall}", with: "{group: oncall, break_glass: oncall}",
		want: "scopes.yaml:17: scope git.issues.write: approval.break_glass must differ from approval.group: it approves when that group does not respond",
	},
	{
		name: "break glass of no group", old: "{group: oncall}", with: "{group: oncall, break_glass: ''}",
		want: `scopes.yaml:17: scope git.issues.write: approval.break_glass "" must be lower-case letters, digits and dashes, at most 64`,
	},
	{
		name: "break glass for what is stored", old: "{group: oncall}\n    credential: {kind: jwt, audience: https://git.example}",
		with: "{group: oncall, break_glass: leads}\n    credential: {kind: kv, path: secret/data/git}",
		want: "scopes.yaml:17: scope git.issues.write: approval.break_glass cannot be used with a static credential: a break-glass credential ends after 30m, and Brevet cannot revoke a static one",
	},
	{
		name: "break glass without a lease", old: "{group: oncall}\n    credential: {kind: jwt, audience: https://git.example}",
		with: "{group: oncall, break_glass: leads}\n    credential: {kind: vault, method: read, path: git/token, static: true}",
		want: "scopes.yaml:17: scope git.issues.write: approval.break_glass cannot be used with a static credential: a break-glass credential ends after 30m, and Brevet cannot revoke a static one",
	},
	{
		name: "default shorter than the other system gives", old: "{kind: jwt, audience: https://mail.example, bind: mtls}",
		with: "{kind: vault, method: write, path: aws/creds/a, revocable: false, min_ttl: 15m}",
		want: "scopes.yaml:43: scope mail.read: credential.min_ttl (15m) is longer than ttl.default (10m)",
	},
	{
		name: "break glass shorter than the other system gives", old: "ttl: {default: 5m, max: 15m}\n    approval: {group: oncall}\n    credential: {kind: jwt, audience: https://git.example}",
		with: "ttl: {default: 1h, max: 1h}\n    approval: {group: oncall, break_glass: leads}\n    credential: {kind: vault, method: write, path: aws/creds/a, revocable: false, min_ttl: 45m}",
		want: "scopes.yaml:18: scope git.issues.write: credential.min_ttl (45m) is longer than a break-glass credential lives (30m)",
	},
	{
		name: "approval waits too long", old: "expires: 1h", with: "expires: 48h",
		want: "scopes.yaml:26: scope git.repo.delete: approval.expires must be whole seconds from 1m to 24h, such as 90s or 5m",
	},
	{
		name: "limits that are no list", old: "ttl: {default: 10m, max: 1h}\n", with: "ttl: {default: 10m, max: 1h}\n    limits: {per: sandbox, count: 1, window: 1s}\n",
		want: "scopes.yaml:43: scope mail.read: limits must be a list",
	},
	{
		name: "limit of nothing", old: "ttl: {default: 10m, max: 1h}\n", with: "ttl: {default: 10m, max: 1h}\n    limits: [{per: sandbox, count: 0, window: 1h}]\n",
		want: "scopes.yaml:43: scope mail.read: limit.count must be a whole number from 1 to 1000000",
	},
	{
		name: "limit without end", old: "ttl: {default: 10m, max: 1h}\n", with: "ttl: {default: 10m, max: 1h}\n    limits: [{per: task, count: 1000001, window: 1h}]\n",
		want: "scopes.yaml:43: scope mail.read: limit.count must be a whole number from 1 to 1000000",
	},
	{
		name: "limit of a moment", old: "ttl: {default: 10m, max: 1h}\n", with: "ttl: {default: 10m, max: 1h}\n    limits: [{per: task, count: 1, window: 500ms}]\n",
		want: "scopes.yaml:43: scope mail.read: limit.window must be whole seconds from 1s to 24h, such as 90s or 5m",
	},
	{
		name: "limit over a week", old: "ttl: {default: 10m, max: 1h}\n", with: "ttl: {default: 10m, max: 1h}\n    limits: [{per: task, count: 1, window: 168h}]\n",
		want: "scopes.yaml:43: scope mail.read: limit.window must be whole seconds from 1s to 24h, such as 90s or 5m",
	},
	{
		name: "limit per what", old: "ttl: {default: 10m, max: 1h}\n", with: "ttl: {default: 10m, max: 1h}\n    limits: [{per: user, count: 1, window: 1h}]\n",
		want: `scopes.yaml:43: scope mail.read: limit.per "user" is unknown; choose sandbox, task, trust_domain`,
	},
	{
		name: "limit without window", old: "ttl: {default: 10m, max: 1h}\n", with: "ttl: {default: 10m, max: 1h}\n    limits: [{per: task, count: 1}]\n",
		want: "scopes.yaml:43: scope mail.read: a limit needs per, and either count and window or live, such as {per: sandbox, count: 60, window: 1h} or {per: sandbox, live: 5}",
	},
	{
		name: "limit with more", old: "ttl: {default: 10m, max: 1h}\n", with: "ttl: {default: 10m, max: 1h}\n    limits: [{per: task, count: 1, window: 1h, burst: 2}]\n",
		want: "scopes.yaml:43: scope mail.read: limit: unknown key \"burst\"; the keys are per, count, window, live",
	},
	{
		name: "limit twice", old: "ttl: {default: 10m, max: 1h}\n", with: "ttl: {default: 10m, max: 1h}\n    limits: [{per: task, count: 1, window: 1h}, {per: task, count: 9, window: 2h}]\n",
		want: "scopes.yaml:43: scope mail.read: limits: per task is listed twice; remove one",
	},
	{
		name: "limit that is neither", old: "ttl: {default: 10m, max: 1h}\n", with: "ttl: {default: 10m, max: 1h}\n    limits: [{per: task}]\n",
		want: "scopes.yaml:43: scope mail.read: a limit needs per, and either count and window or live, such as {per: sandbox, count: 60, window: 1h} or {per: sandbox, live: 5}",
	},
	{
		name: "limit that is both", old: "ttl: {default: 10m, max: 1h}\n", with: "ttl: {default: 10m, max: 1h}\n    limits: [{per: task, count: 1, window: 1h, live: 1}]\n",
		want: "scopes.yaml:43: scope mail.read: a limit needs per, and either count and window or live, such as {per: sandbox, count: 60, window: 1h} or {per: sandbox, live: 5}",
	},
	{
		name: "none alive", old: "ttl: {default: 10m, max: 1h}\n", with: "ttl: {default: 10m, max: 1h}\n    limits: [{per: task, live: 0}]\n",
		want: "scopes.yaml:43: scope mail.read: limit.live must be a whole number from 1 to 1000000",
	},
	{
		name: "live limit twice", old: "ttl: {default: 10m, max: 1h}\n", with: "ttl: {default: 10m, max: 1h}\n    limits: [{per: task, live: 1}, {per: task, live: 2}]\n",
		want: "scopes.yaml:43: scope mail.read: limits: per task is listed twice; remove one",
	},
	{
		name: "seven limits", old: "ttl: {default: 10m, max: 1h}\n", with: "ttl: {default: 10m, max: 1h}\n    limits: [{per: sandbox, count: 1, window: 1h}, {per: task, count: 1, window: 1h}, {per: trust_domain, count: 1, window: 1h}, {per: sandbox, live: 1}, {per: task, live: 1}, {per: trust_domain, live: 1}, {per: task, live: 2}]\n",
		want: "scopes.yaml:43: scope mail.read: limits: at most 6 are allowed\nscopes.yaml:43: scope mail.read: limits: per task is listed twice; remove one",
	},
	{
		name: "kind", old: "{kind: jwt, audience: https://mail", with: "{kind: postgres, audience: https://mail",
		want: `scopes.yaml:43: scope mail.read: credential.kind "postgres" is unknown; choose jwt, vault-token, database, pki, ssh, kv, vault, github or none`,
	},
	{
		name: "bind", old: "bind: mtls", with: "bind: tls",
		want: `scopes.yaml:43: scope mail.read: credential.bind "tls" is unknown; choose none, mtls or dpop`,
	},
	{
		name: "empty audience", old: "https://mail.example", with: `""`,
		want: "scopes.yaml:43: scope mail.read: credential.audience must be an absolute URI without fragment or user, such as https://gateway.example",
	},
	{
		name: "audience with fragment", old: "https://mail.example", with: `"https://mail.example/#a"`,
		want: "scopes.yaml:43: scope mail.read: credential.audience must be an absolute URI without fragment or user, such as https://gateway.example",
	},
	{
		name: "no audience", old: "kind: jwt, audience: https://mail.example", with: "kind: jwt",
		want: "scopes.yaml:43: scope mail.read: credential of kind jwt: audience is missing; example: {kind: jwt, audience: https://gateway.example}",
	},
	{
		name: "undeclared placeholder", old: "resource: mail:all", with: "resource: mail:box/{box}",
		want: "scopes.yaml:41: scope mail.read: resource names {box}, which is not in params (none)",
	},
	{
		name: "resource literal", old: "resource: mail:all", with: "resource: mail:*",
		want: `scopes.yaml:41: scope mail.read: resource "mail:*" may contain only {param} and letters, digits and : / . _ -`,
	},
	{
		name: "resource dot segment", old: "resource: mail:all", with: "resource: mail:a/../b",
		want: `scopes.yaml:41: scope mail.read: resource "mail:a/../b" has a . or .. segment; remove it`,
	},
	{
		name: "resource without kind", old: "resource: git:repo/{repo}", with: "resource: '{repo}'",
		want: `scopes.yaml:7: scope git.issues.read: resource "{repo}" must begin with a kind and a colon, such as github:repo/`,
	},
	{
		name: "open brace", old: "resource: mail:all", with: "resource: 'mail:{x'",
		want: `scopes.yaml:41: scope mail.read: resource "mail:{x" has a { without a }`,
	},
	{
		name: "adjacent placeholders", old: "pay:{currency}/{cents}", with: "pay:{currency}{cents}",
		want: `scopes.yaml:35: scope pay.refund: resource "pay:{currency}{cents}" has {currency}{cents} with nothing between them; put a separator between them`,
	},
	{
		name: "parameter type", old: "{type: bool}", with: "{type: float}",
		want: `scopes.yaml:34: scope pay.refund: params.urgent: type "float" is unknown; choose string, enum, int or bool`,
	},
	{
		name: "parameter name of Cedar's", old: "urgent: {", with: "in: {",
		want: `scopes.yaml:34: scope pay.refund: parameter name "in" must be lower-case letters, digits and _, at most 50, and not a reserved word of Cedar`,
	},
	{
		name: "key of another type", old: "{type: bool}", with: "{type: bool, min: 1}",
		want: `scopes.yaml:34: scope pay.refund: params.urgent: unknown key "min"; the keys are type`,
	},
	{
		name: "int without max", old: "min: 1, max: 10000", with: "min: 1",
		want: "scopes.yaml:32: scope pay.refund: params.cents: max is missing; a parameter of type int needs it",
	},
	{
		name: "int upside down", old: "min: 1, max: 10000", with: "min: 2, max: 1",
		want: "scopes.yaml:32: scope pay.refund: params.cents: min is greater than max",
	},
	{
		name: "int beyond what JSON carries", old: "max: 10000", with: "max: 9007199254740993",
		want: "scopes.yaml:32: scope pay.refund: params.cents.max must be a whole number from -9007199254740992 to 9007199254740992",
	},
	{
		name: "string without pattern", old: "pattern: '[a-z0-9-]+/[a-z0-9._-]+', ", with: "",
		want: "scopes.yaml:6: scope git.issues.read: params.repo: pattern is missing; a parameter of type string needs it",
	},
	{
		name: "pattern that closes our group", old: "'[a-z0-9-]+/[a-z0-9._-]+'", with: "'a)|(?:.*'",
		want: "scopes.yaml:6: scope git.issues.read: params.repo.pattern is not an RE2 expression: error parsing regexp: unexpected ): `a)|(?:.*`",
	},
	{
		name: "enum with a list separator", old: "[EUR, USD]", with: "['EUR,USD']",
		want: `scopes.yaml:33: scope pay.refund: params.currency.values: "EUR,USD" may contain only letters, digits and . _ - / : @`,
	},
	{
		name: "enum of nothing", old: "[EUR, USD]", with: "[]",
		want: "scopes.yaml:33: scope pay.refund: params.currency.values must list 1 to 100 values",
	},
	{
		name: "enum value twice", old: "[EUR, USD]", with: "[EUR, EUR]",
		want: `scopes.yaml:33: scope pay.refund: params.currency.values: "EUR" is listed twice`,
	},
	{
		name: "enum of a number", old: "[EUR, USD]", with: "[EUR, 7]",
		want: "scopes.yaml:33: scope pay.refund: params.currency.values[1] must be text; put it in quotes",
	},
	{
		name: "enum that is no list", old: "[EUR, USD]", with: "EUR",
		want: "scopes.yaml:33: scope pay.refund: params.currency.values must be a list",
	},
	{
		name: "parameter without type", old: "{type: bool}", with: "{}",
		want: "scopes.yaml:34: scope pay.refund: params.urgent: type is missing; choose string, enum, int or bool",
	},
	{
		name: "parameter that is no mapping", old: "{type: bool}", with: "bool",
		want: "scopes.yaml:34: scope pay.refund: params.urgent must be a mapping (key: value)",
	},
	{
		name: "pattern of nothing", old: "'[a-z0-9-]+/[a-z0-9._-]+'", with: "''",
		want: "scopes.yaml:6: scope git.issues.read: params.repo.pattern must be 1 to 500 bytes long",
	},
	{
		name: "more than an ask may hold", old: "      repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+', max_length: 40}\n    resource: git:repo/{repo}\n    ttl: {default: 5m, max: 15m}\n    credential",
		with: "      repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+', max_length: 1000}\n      a: {type: string, pattern: 'a', max_length: 1000}\n      b: {type: string, pattern: 'a', max_length: 1000}\n      c: {type: string, pattern: 'a', max_length: 1000}\n      d: {type: string, pattern: 'a', max_length: 100}\n    resource: git:repo/{repo}\n    ttl: {default: 5m, max: 15m}\n    credential",
		want: "scopes.yaml:6: scope git.issues.read: params: the longest values add up to 4108 bytes, and a request may have 4096; lower max_length",
	},
	{
		name: "max_length", old: "max_length: 40", with: "max_length: 1001",
		want: "scopes.yaml:6: scope git.issues.read: params.repo.max_length must be a whole number from 1 to 1000",
	},
	{
		name: "ttl that is no mapping", old: "{default: 10m, max: 1h}", with: "10m",
		want: "scopes.yaml:42: scope mail.read: ttl must be a mapping (key: value)",
	},
	{
		name: "name missing", old: "  - name: mail.read\n    title", with: "  - title",
		want: "scopes.yaml:38: scope: name is missing",
	},
	{
		name: "group", old: "group: oncall", with: "group: On Call",
		want: `scopes.yaml:17: scope git.issues.write: approval.group "On Call" must be lower-case letters, digits and dashes, at most 64`,
	},
	{
		name: "no scopes key", old: "scopes:\n", with: "scope:\n",
		want: "scopes.yaml:1: file: unknown key \"scope\"; the keys are scopes\nscopes.yaml:1: scopes is missing; list the scopes under it",
	},
	{
		name: "alias", old: "title: Read mail", with: "title: &t Read mail",
		want: "scopes.yaml:39: anchors and aliases are not allowed; write the value out",
	},
	{
		name: "merge key", old: "title: Read mail", with: "<<: {title: Read mail}",
		want: "scopes.yaml:39: scope: keys must be plain words\nscopes.yaml:38: scope mail.read: title is missing",
	},
	{
		name: "tag", old: "title: Read mail", with: "title: !!binary aGk=",
		want: "scopes.yaml:39: tags such as !!binary are not allowed; remove it",
	},
	{
		name: "second document", old: "  - name: mail.read", with: "---\nscopes:\n  - name: mail.read",
		want: "scopes.yaml: not valid YAML: one document per file; move the part after --- to another file",
	},
}

func TestLoadRefusesWorldWithOneMistake(t *testing.T) {
	for _, tt := range slices.Concat(mistakes, egressMistakes) {
		t.Run(tt.name, func(t *testing.T) {
			changed := replace(t, worldScopes, tt.old, tt.with)
			got := refusal(t, file("scopes.yaml", changed), file("policies.cedar", worldPolicies))
			// The error's lines are sorted; here they are written in reading order.
			if diff := cmp.Diff(sortedLines(tt.want), sortedLines(got)); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
		})
	}
}

func file(name, data string) scopes.File { return scopes.File{Name: name, Data: []byte(data)} }

func sortedLines(s string) []string {
	lines := strings.Split(s, "\n")
	slices.Sort(lines)
	return lines
}

func TestLoadRefusesPolicies(t *testing.T) {
	tests := []struct{ name, policy, want string }{
		{
			"typo in an action", `@id("a") permit (principal, action == Action::"git.issue.read", resource);`,
			`p.cedar:1: policy a: Action::"git.issue.read" is neither a scope nor a group of scopes; did you mean git.issues.read?`,
		},
		{
			"action from nowhere", `@id("a") permit (principal, action in [Action::"kubernetes.pods"], resource);`,
			`p.cedar:1: policy a: Action::"kubernetes.pods" is neither a scope nor a group of scopes; use the name of a scope, a group such as github.*, or authority:read`,
		},
		{
			"typo in an action in a condition", `@id("a") permit (principal, action, resource) when { action in Action::"git.issue.*" };`,
			`p.cedar:1: policy a: Action::"git.issue.*" is neither a scope nor a group of scopes; did you mean git.issues.*?`,
		},
		{
			"group by equality", `@id("a") forbid (principal, action == Action::"git.*", resource);`,
			`p.cedar:1: policy a: Action::"git.*" is a group, which no action equals; write ` + "`action in`" + ` instead of ==`,
		},
		{
			"group by equality in a condition", `@id("a") forbid (principal, action, resource) unless { action != Action::"authority:write" };`,
			`p.cedar:1: policy a: Action::"authority:write" is a group, which no action equals; write ` + "`action in`" + ` instead of ==`,
		},
		{
			"unknown attribute", `@id("a") forbid (principal, action == Action::"mail.read", resource) when { context.owner == "x" };`,
			"p.cedar:1: policy a: attribute `owner` in context for Action::\"mail.read\" not found",
		},
		{
			"unknown parameter", `@id("a") permit (principal, action in Action::"git.issues.*", resource) when { context.params.rep like "a/*" };`,
			"p.cedar:1: policy a: attribute `rep` in context for Action::\"git.issues.read\" not found\n" +
				"p.cedar:1: policy a: attribute `rep` in context for Action::\"git.issues.write\" not found",
		},
		{
			"wrong type", `@id("a") permit (principal, action, resource) when { context.ttl == "5m" };`,
			"p.cedar:1: policy a: the types Long and String are not compatible",
		},
		{
			"number as text", `@id("a") permit (principal, action == Action::"pay.refund", resource) when { context.params.currency < 3 };`,
			"p.cedar:1: policy a: unexpected type: expected datetime, or duration, or Long but saw String",
		},
		{
			"unknown entity type", `@id("a") permit (principal in Group::"x", action, resource);`,
			"p.cedar:1: policy a: unable to find an applicable action given the policy scope constraints\n" +
				"p.cedar:1: policy a: unrecognized entity type `Group`",
		},
		{
			"path as a principal", `@id("a") permit (principal == Path::"spiffe://td.example/a", action, resource);`,
			"p.cedar:1: policy a: unable to find an applicable action given the policy scope constraints",
		},
		{
			"resource that no scope has", `@id("a") forbid (principal, action, resource == Resource::"gut:repo/acme/api");`,
			`p.cedar:1: policy a: Resource::"gut:repo/acme/api" is a resource that no scope can produce; compare it with the resource: templates`,
		},
		{
			"trust domain as an ID", `@id("a") permit (principal in TrustDomain::"spiffe://td.example", action, resource);`,
			`p.cedar:1: policy a: TrustDomain::"spiffe://td.example" is not a trust domain; write its name alone, such as acme.example`,
		},
		{
			"upper-case trust domain", `@id("a") permit (principal, action, resource) when { principal in TrustDomain::"TD.example" };`,
			`p.cedar:1: policy a: TrustDomain::"TD.example" is not a trust domain; write its name alone, such as acme.example`,
		},
		{
			"number read from the ask", `@id("a") forbid (principal, action, resource) when { decimal(context.task) == decimal("1.0") };`,
			"p.cedar:1: policy a: extension constructors may not be called with non-literal expressions",
		},
		{"no id", "\npermit (principal, action, resource);", `p.cedar:2: policy has no @id; put @id("a-name-for-it") before it`},
		{"bad id", `@id("A b") permit (principal, action, resource);`, `p.cedar:1: policy @id "A b" must be lower-case letters, digits and dashes, at most 100`},
		{
			"two of one id", "@id(\"a\") permit (principal, action, resource);\n@id(\"a\") forbid (principal, action, resource);",
			`p.cedar:2: policy @id "a" is used twice; the first is at p.cedar:1`,
		},
		{
			"three of one id",
			"@id(\"a\") permit (principal, action, resource);\n@id(\"a\") forbid (principal, action, resource);\n@id(\"a\") forbid (principal, action, resource);",
			"p.cedar:2: policy @id \"a\" is used twice; the first is at p.cedar:1\np.cedar:3: policy @id \"a\" is used twice; the first is at p.cedar:1",
		},
		{"syntax", "@id(\"a\")\npermit (principal, action);", `p.cedar:2: not a Cedar policy: ";": exact got ) want ,`},
		{"bad UTF-8", "@id(\"a\") permit (principal, action, resource) when { context.task == \"\xff\" };", "p.cedar:1: not a Cedar policy: invalid UTF-8 encoding"},
		{"none at all", "// nothing here\n", "the catalogue has no policies, so nothing would be permitted; add a .cedar file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := refusal(t, file("scopes.yaml", worldScopes), file("p.cedar", tt.policy))
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
		})
	}
}

// H32: an ID that is not canonical could never match, so Load refuses it where a person still sees it. H35: an ID is not
// a pattern, which could match across segments.
func TestLoadRefusesIDsInPolicies(t *testing.T) {
	ids := []string{
		"spiffe://TD.example/a", "spiffe://td.example/%2e", "spiffe://td.example//a", "spiffe://td.example/./a",
		"spiffe://td.example/a/", "spiffe://td.example:443/a", "spiffe://user@td.example/a", "spiffe://td.example/a?x",
		"spiffe://td.example/a#x", "spiffe://td.example", "spiffe://td.example/", "SPIFFE://td.example/a", "td.example/a", "",
		"spiffe://td.example/" + strings.Repeat("a", 2049),
		"spiffe://td.example/agents/*", "spiffe://td.example/ag*", "spiffe://td.example/agents/?", "spiffe://*/a",
	}
	for _, id := range ids {
		for _, kind := range []string{"Sandbox", "Path"} {
			t.Run(kind+" "+id[:min(len(id), 40)], func(t *testing.T) {
				policy := fmt.Sprintf(`@id("a") forbid (principal, action, resource) when { principal in %s::%q };`, kind, id)
				got := refusal(t, file("scopes.yaml", worldScopes), file("p.cedar", policy))
				if !strings.Contains(got, "is not a SPIFFE ID with a path; write it as spiffe://trust-domain/path") {
					t.Errorf("got %q, want it to name the ID", got)
				}
			})
		}
	}
}

func TestLoadReportsEveryMistakeAtOnce(t *testing.T) {
	got := refusal(t,
		file("b.yaml", "scopes:\n  - {name: a.b, title: 3, owner: me}\n"),
		file("a.cedar", "permit (principal, action, resource);\nforbid (principal, action, resource);\n"),
		file("notes.txt", "hello"),
	)
	want := `a.cedar:1: policy has no @id; put @id("a-name-for-it") before it
a.cedar:2: policy has no @id; put @id("a-name-for-it") before it
b.yaml:2: scope: unknown key "owner"; the keys are name, title, authority, params, resource, ttl, approval, limits, credential, egress
b.yaml:2: scope a.b: authority is missing
b.yaml:2: scope a.b: resource is missing
b.yaml:2: scope a.b: ttl is missing
b.yaml:2: scope a.b: credential is missing
b.yaml:2: scope a.b: title must be text; put it in quotes
notes.txt: is neither a scope file (.yaml, .yml) nor a policy file (.cedar); rename or remove it`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("message (-want +got):\n%s", diff)
	}
}

func TestLoadRefusesFiles(t *testing.T) {
	good := []scopes.File{file("scopes.yaml", worldScopes), file("p.cedar", worldPolicies)}
	tests := []struct {
		name  string
		files []scopes.File
		want  string
	}{
		{"none", nil, "the catalogue has no scopes; add a .yaml file with scopes:\nthe catalogue has no policies, so nothing would be permitted; add a .cedar file"},
		{"twice", append(good, good[0]), "scopes.yaml: is listed twice"},
		{"line break in a name", append(good, file("a\nb.yaml", "")), `file name "a\nb.yaml" may contain only letters, digits and . _ - /, and no part may begin with a dot`},
		{"parent folder", append(good, file("../a.yaml", "")), `file name "../a.yaml" may contain only letters, digits and . _ - /, and no part may begin with a dot`},
		{"large scopes", append(good, file("a.yaml", strings.Repeat("#", scopes.MaxScopeFile+1))), "a.yaml: is larger than 1024 KiB; split it"},
		{"large policies", append(good, file("a.cedar", strings.Repeat("/", scopes.MaxPolicyFile+1))), "a.cedar: is larger than 64 KiB; split it"},
		{"many", slices.Repeat(good, scopes.MaxFiles), "512 files are too many; at most 256"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, refusal(t, tt.files...)); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLoadRefusesTooMany(t *testing.T) {
	got := refusal(t, grown(scopes.MaxScopes+1)...)
	if want := "10001 scopes are too many; at most 10000\n10001 policies are too many; at most 10000"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Loading the largest and deepest files that are accepted returns a result and does not crash the process.
func TestLoadSurvivesDeepFiles(t *testing.T) {
	n := scopes.MaxPolicyFile - 200
	for name, expression := range map[string]string{
		"brackets": strings.Repeat("(", n/2) + "true" + strings.Repeat(")", n/2),
		"open":     strings.Repeat("(", n),
		"not":      strings.Repeat("!", n) + "true",
		"if":       strings.Repeat("if true then true else ", n/23) + "true",
		"and":      strings.Repeat("true&&", n/6) + "true",
	} {
		t.Run(name, func(t *testing.T) {
			policy := `@id("deep") permit (principal, action == Action::"mail.read", resource) when { ` + expression + ` };`
			c, err := scopes.Load([]scopes.File{file("s.yaml", worldScopes), file("p.cedar", policy)})
			if err != nil {
				if c != nil {
					t.Errorf("got a catalogue beside the error %v", err)
				}
				return
			}
			if _, err := c.Decide(boundSubject("spiffe://td.example/a"), scopes.Ask{Scope: "mail.read", RequestContext: scopes.RequestContext{Task: "t"}}, noon); err != nil {
				t.Errorf("deciding: %v", err)
			}
		})
	}
	t.Run("yaml", func(t *testing.T) {
		got := refusal(t, file("s.yaml", "scopes: "+strings.Repeat("[", 500_000)), file("p.cedar", worldPolicies))
		if want := "s.yaml:1: not valid YAML: while increasing flow level: exceeded max depth of 16"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
	t.Run("alias bomb", func(t *testing.T) {
		bomb := "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nscopes: [*b,*b,*b,*b]\n"
		got := refusal(t, file("s.yaml", bomb), file("p.cedar", worldPolicies))
		if want := "s.yaml:1: anchors and aliases are not allowed; write the value out"; !strings.HasPrefix(got, want) {
			t.Errorf("got %q, want it to begin with %q", got, want)
		}
	})
}

// Load keeps a guardrail about an authority that no scope has yet.
func TestLoadKeepsIdleGuardrails(t *testing.T) {
	c := load(t, worldScopes, `@id("later") forbid (principal, action in Action::"authority:permission", resource);`)
	if got := c.Policies(); !slices.Equal(got, []string{"later"}) {
		t.Errorf("got policies %v, want [later]", got)
	}
	withTypo := `@id("later") forbid (principal, action in Action::"authority:permissions", resource);`
	if got := refusal(t, file("s.yaml", worldScopes), file("p.cedar", withTypo)); !strings.Contains(got, "did you mean authority:permission?") {
		t.Errorf("got %q, want the authority that was meant", got)
	}
}

func TestCatalogueReturnsItsContents(t *testing.T) {
	c := world(t)
	var names []string
	for _, s := range c.Scopes() {
		names = append(names, s.Name)
	}
	if want := []string{"git.issues.read", "git.issues.write", "git.repo.delete", "mail.read", "pay.refund"}; !slices.Equal(names, want) {
		t.Errorf("got scopes %v, want %v", names, want)
	}
	got, ok := c.Scope("git.issues.write")
	want := &scopes.Scope{
		Name: "git.issues.write", Title: "Write issues", Authority: scopes.Write,
		Params:     map[string]scopes.Param{"repo": {Type: scopes.ParamString, Pattern: "[a-z0-9-]+/[a-z0-9._-]+", MaxLength: 40}},
		Resource:   "git:repo/{repo}",
		TTL:        scopes.TTL{Default: 5 * 60e9, Max: 15 * 60e9},
		Approval:   &scopes.Approval{Group: "oncall", Quorum: 1, Expires: 10 * 60e9, Remember: scopes.RememberNever, Passkey: scopes.PasskeyNever},
		Credential: scopes.Credential{Kind: "jwt", Audience: "https://git.example", Bind: "none", Algorithm: "ES256"},
	}
	if diff := cmp.Diff(want, got); !ok || diff != "" {
		t.Errorf("scope (-want +got), found %v:\n%s", ok, diff)
	}
	if _, ok := c.Scope("git.issues"); ok {
		t.Errorf("found a scope that is only a prefix")
	}
	if want := `action "git.issues.write" in ["git.issues.*", "authority:write"] appliesTo {`; !strings.Contains(c.Schema(), want) {
		t.Errorf("the schema lacks %q:\n%s", want, c.Schema())
	}
}

// Callers get a copy, so they cannot change a decision.
func TestCatalogueIsImmutable(t *testing.T) {
	c := world(t)
	s, _ := c.Scope("git.issues.write")
	s.TTL.Max, s.Approval.Group = 0, "everyone"
	clear(s.Params)
	pay, _ := c.Scope("pay.refund")
	pay.Params["currency"].Values[0] = "XXX"
	d, err := c.Decide(subject("spiffe://td.example/agents/a"), scopes.Ask{Scope: "git.issues.write", Params: repo("acme/api"), RequestContext: scopes.RequestContext{Task: "t"}}, noon)
	if err != nil {
		t.Fatal(err)
	}
	d.Scope.Credential.Audience, d.Approval.Group = "https://evil.example", "everyone"
	again, _ := c.Scope("git.issues.write")
	if again.TTL.Max == 0 || again.Approval.Group != "oncall" || len(again.Params) != 1 || again.Credential.Audience != "https://git.example" {
		t.Errorf("the catalogue changed: %+v", again)
	}
	if p, _ := c.Scope("pay.refund"); p.Params["currency"].Values[0] != "EUR" {
		t.Errorf("got values %v, want EUR first", p.Params["currency"].Values)
	}
}

func TestAuthorityRank(t *testing.T) {
	ordered := []scopes.Authority{scopes.Read, scopes.Draft, scopes.Write, scopes.Delete, scopes.Payment, scopes.Permission}
	for want, a := range ordered {
		if got := a.Rank(); got != want {
			t.Errorf("%s: got rank %d, want %d", a, got, want)
		}
	}
	if got := scopes.Authority("admin").Rank(); got != -1 {
		t.Errorf("unknown authority: got rank %d, want -1", got)
	}
}

// The digest can be recomputed with standard tools.
func TestDigestMatchesCoreutils(t *testing.T) {
	dir := t.TempDir()
	files := map[string]string{"z.yaml": worldScopes, "policies/B.cedar": worldPolicies, "policies/a.cedar": "// empty\n"}
	for name, data := range files {
		full := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := scopes.LoadFS(os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `find * -type f | LC_ALL=C sort | xargs sha256sum | sha256sum`)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("running sha256sum: %v", err)
	}
	if want := "sha256:" + strings.Fields(string(out))[0]; c.Digest() != want {
		t.Errorf("got %s, want %s", c.Digest(), want)
	}
}

func TestDigestDependsOnContentAndNamesOnly(t *testing.T) {
	digest := func(files ...scopes.File) string {
		c, err := scopes.Load(files)
		if err != nil {
			t.Fatal(err)
		}
		return c.Digest()
	}
	s, p := file("s.yaml", worldScopes), file("p.cedar", worldPolicies)
	first := digest(s, p)
	if got := digest(p, s); got != first {
		t.Errorf("the order of files changed the digest")
	}
	if got := digest(s, file("p.cedar", worldPolicies+"\n")); got == first {
		t.Errorf("one more byte left the digest as it was")
	}
	if got := digest(s, file("q.cedar", worldPolicies)); got == first {
		t.Errorf("another name left the digest as it was")
	}
}

func TestLoadFSLeavesOutOtherFilesAndDotFolders(t *testing.T) {
	fsys := fstest.MapFS{
		"scopes.yml":                  {Data: []byte(worldScopes)},
		"team/policies.cedar":         {Data: []byte(worldPolicies)},
		"README.md":                   {Data: []byte("# hello")},
		"..2030_01_01/scopes.yml":     {Data: []byte(worldScopes)},
		".git/objects/policies.cedar": {Data: []byte("not cedar")},
	}
	c, err := scopes.LoadFS(fsys)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(c.Scopes()); got != 5 {
		t.Errorf("got %d scopes, want 5", got)
	}
}

func TestLoadFSRefusesWhatItCannotRead(t *testing.T) {
	fsys := fstest.MapFS{"scopes.yaml": {Data: []byte(worldScopes)}, "pipe.cedar": {Mode: os.ModeNamedPipe}}
	if _, err := scopes.LoadFS(fsys); err == nil || !strings.Contains(err.Error(), "pipe.cedar") {
		t.Errorf("got %v, want an error about pipe.cedar", err)
	}
	large := fstest.MapFS{"s.yaml": {Data: []byte(worldScopes)}, "p.cedar": {Data: make([]byte, 10<<20)}}
	var problems scopes.Problems
	if _, err := scopes.LoadFS(large); !errors.As(err, &problems) || !strings.Contains(err.Error(), "p.cedar: is larger than 64 KiB; split it") {
		t.Errorf("got %v, want a Problem about p.cedar", err)
	}
}

// Limits are for the code that counts: Load reads them and the digest covers them, but they do not affect decisions.
func TestLimitsAreRead(t *testing.T) {
	const ttl = "ttl: {default: 10m, max: 1h}\n"
	with := replace(t, worldScopes, ttl, ttl+"    limits: [{per: sandbox, count: 60, window: 1h}, {per: trust_domain, count: 1000000, window: 90s}, {per: sandbox, live: 5}]\n")
	c, err := scopes.Load([]scopes.File{file("scopes.yaml", with), file("policies.cedar", worldPolicies)})
	if err != nil {
		t.Fatal(err)
	}
	got, ok := c.Scope("mail.read")
	want := []scopes.Limit{
		{Per: scopes.PerSandbox, Count: 60, Window: time.Hour},
		{Per: scopes.PerTrustDomain, Count: 1_000_000, Window: 90 * time.Second},
		{Per: scopes.PerSandbox, Live: 5},
	}
	if diff := cmp.Diff(want, got.Limits); diff != "" || !ok {
		t.Fatalf("limits (-want +got):\n%s", diff)
	}
	if got.Limits[0].String() != "60 in 1h per sandbox" || got.Limits[1].String() != "1000000 in 1m30s per trust domain" ||
		got.Limits[2].String() != "5 at a time per sandbox" {
		t.Errorf("got %q", got.Limits)
	}
	got.Limits[0].Count = 1
	if again, _ := c.Scope("mail.read"); again.Limits[0].Count != 60 {
		t.Error("a copy of a scope reaches into the catalogue")
	}
}

// A policy is quoted as written, without the text around it.
func TestPolicyIsQuotedAsWritten(t *testing.T) {
	const written = "@id(\"mail\") @why(\"a; \\\"b\\\"\")\npermit (principal, action == Action::\"mail.read\", resource)\n// not yet;\nwhen { context.task != \";\" /* ; */ };"
	c := load(t, worldScopes, "// é before\n\n"+written+" // after\n@id(\"other\") forbid (principal, action, resource);\n")
	got, ok := c.Policy("mail")
	want := scopes.Policy{ID: "mail", Effect: scopes.EffectPermit, File: "policies.cedar", Line: 3, Text: written}
	if diff := cmp.Diff(want, got); diff != "" || !ok {
		t.Errorf("policy (-want +got), found %v:\n%s", ok, diff)
	}
	if other, _ := c.Policy("other"); other.Text != `@id("other") forbid (principal, action, resource);` || other.Line != 7 {
		t.Errorf("got %+v", other)
	}
	if _, ok := c.Policy("mai"); ok {
		t.Error("found a policy that is not there")
	}
}
