package scopes_test

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/go-cmp/cmp"
)

// TestMistakesDoNotHideOthers checks that a mistake in one place does not keep Load from reporting those elsewhere, and that nothing is
// reported that is right.
func TestMistakesDoNotHideOthers(t *testing.T) {
	broken := strings.Replace(worldScopes, "title: Read mail", "title: 3", 1)
	for _, tt := range []struct{ name, yaml, cedar, want string }{
		{
			"syntax of several policies", worldScopes,
			"@id(\"a\")\npermit (principal, action, resource)\nwhen { context.ttl < };\n\n@id(\"b\") forbid (principal, action == Action::\"mail.raed\", resource);\n@id(\"c\") forbid (principal, action, resource) when { 1 < };\npermit (principal, action, resource) when { context.owner == \"x\" };\n",
			"p.cedar:3: not a Cedar policy: \";\": invalid primary\n" +
				"p.cedar:5: policy b: Action::\"mail.raed\" is neither a scope nor a group of scopes; did you mean mail.read?\n" +
				"p.cedar:6: not a Cedar policy: \";\": invalid primary\n" +
				"p.cedar:7: policy has no @id; put @id(\"a-name-for-it\") before it\n" +
				"p.cedar:7: policy without @id: ",
		},
		{
			"a scope and a policy about another one", broken,
			"@id(\"a\") permit (principal, action == Action::\"pay.refund\", resource) when { context.params.owner == \"x\" };\n" +
				"@id(\"b\") permit (principal, action == Action::\"mail.read\", resource) when { context.params.box == \"x\" };\n" +
				"@id(\"c\") permit (principal in Path::\"nonsense\", action == Action::\"mail.read\", resource);\n" +
				"@id(\"d\") permit (principal, action in Action::\"mail.*\", resource == Resource::\"mail:all\");\n" +
				"@id(\"e\") permit (principal, action, resource);\n",
			"p.cedar:1: policy a: attribute `owner` in context for Action::\"pay.refund\" not found\n" +
				"p.cedar:3: policy c: Path::\"nonsense\" is not a SPIFFE ID with a path; write it as spiffe://trust-domain/path, without a trailing slash\n" +
				"scopes.yaml:39: scope mail.read: title must be text; put it in quotes",
		},
		{
			"no scope can be read", "scopes: [{name: x}]",
			"@id(\"a\") permit (principal, action == Action::\"mail.read\", resource);\n@id(\"b\") permit (principal, action, resource) when { context.x };\n",
			"scopes.yaml:1: scope",
		},
		{
			"a string that does not end", worldScopes,
			"@id(\"a\") permit (principal, action, resource) when { context.task == \"x };\n@id(\"b\") forbid (principal, action, resource) when { 1 < };\n",
			"p.cedar:1: not a Cedar policy: ",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := refusal(t, file("scopes.yaml", tt.yaml), file("p.cedar", tt.cedar))
			if strings.HasSuffix(tt.want, " ") || strings.HasSuffix(tt.want, "scope") { // the rest is Cedar's or another test's
				if !strings.HasPrefix(got, tt.want) || tt.name != "syntax of several policies" && strings.Contains(got, "policy") != strings.Contains(tt.want, "policy") {
					t.Errorf("got\n%s\nwant it to begin with\n%s", got, tt.want)
				}
				return
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
		})
	}
	many := strings.Repeat("nonsense;\n", 10_000)
	_, err := scopes.Load([]scopes.File{file("scopes.yaml", worldScopes), file("p.cedar", many[:scopes.MaxPolicyFile])})
	if n := strings.Count(err.Error(), "\n"); n > 30 {
		t.Errorf("got %d lines for one file", n)
	}
}

// TestValuesThatCannotOccurAreRefused checks comparisons with values that no request can have.
func TestValuesThatCannotOccurAreRefused(t *testing.T) {
	const refund, issues = `action == Action::"pay.refund"`, `action in Action::"git.*"`
	for _, tt := range []struct{ name, head, condition, want string }{
		{"enum", refund, `context.params.currency == "USDD"`, `no request has params.currency "USDD": it must be one of EUR, USD in pay.refund`},
		{"enum, reversed", refund, `"USDD" == context.params.currency`, `params.currency "USDD"`},
		{"enum, unequal", refund, `context.params.currency != "usd"`, `params.currency "usd"`},
		{"enum in a set", refund, `["EUR", "GBP"].contains(context.params.currency)`, `params.currency "GBP"`},
		{"enum like nothing", refund, `context.params.currency like "GB*"`, "no request has params.currency like this: it must be one of EUR, USD"},
		{"enum, in any policy", "action", `context.params has currency && context.params.currency == "GBP"`, ""},
		{"number beyond the maximum", refund, `context.params.cents == 10001`, "params.cents 10001: it must be a whole number from 1 to 10000"},
		{"pattern", issues, `context.params.repo == "acme"`, `params.repo "acme": it must match`},
		{"length", issues, `context.params.repo == "acme/` + strings.Repeat("a", 40) + `"`, "it must be at most 40 bytes long"},
		{"binding", issues, `context.binding == "tls"`, `no request has binding "tls": it must be one of none, mtls, dpop`},
		{"enum that occurs", refund, `context.params.currency == "USD" || ["EUR", "USD"].contains(context.params.currency)`, "-"},
		{"enum like one", refund, `context.params.currency like "E*"`, "-"},
		{"bound above the maximum", refund, `context.params.cents <= 20000`, "-"},
		{"boolean", refund, `context.params.urgent == false`, "-"},
		{"pattern that fits", issues, `context.params.repo == "acme/api" && context.params.repo like "zzz*"`, "-"},
		{"binding that occurs", issues, `context.binding == "mtls"`, "-"},
		{"task", issues, `context.task == "anything"`, "-"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, effect := range []string{"permit", "forbid"} {
				policy := "@id(\"a\")\n" + effect + " (principal, " + tt.head + ", resource)\nwhen {\n  " + tt.condition + "\n};"
				_, err := scopes.Load([]scopes.File{file("scopes.yaml", worldScopes), file("p.cedar", policy)})
				switch {
				case tt.want == "-" && err != nil:
					t.Errorf("got %v, want it loaded", err)
				case tt.want != "-" && (err == nil || !strings.Contains(err.Error(), tt.want)):
					t.Errorf("got %v, want %q", err, tt.want)
				case err != nil && strings.Contains(err.Error(), "no request has") && !strings.Contains(tt.want, "like") && !strings.HasPrefix(err.Error(), "p.cedar:4: policy a: "):
					t.Errorf("got %v, want the line of the value", err)
				}
			}
		})
	}
}

// TestNearMissNamesTheConditionThatDoesNotHold checks which permits count as near misses, and that the explanation, which a sandbox
// reads, has only permits about this sandbox, with all fields of their conditions and nothing of what a policy compares them with.
func TestNearMissNamesTheConditionThatDoesNotHold(t *testing.T) {
	const secret = "somebody-else"
	theirs := func(condition, failed string, fields ...string) (policy string, want []scopes.NearMiss) {
		return `@id("somebody-else") permit (principal, action in Action::"git.*", resource) ` + condition + `;`, []scopes.NearMiss{{"somebody-else", fields, failed, false}}
	}
	type test struct {
		name, policies string
		want           []scopes.NearMiss
		says           string
	}
	tests := []test{
		{
			"a parameter", `@id("a") permit (principal, action in Action::"git.*", resource) when { context.ttl < 900 && context.params.repo like "somebody-else/*" };`,
			[]scopes.NearMiss{{"a", []string{"params.repo", "ttl"}, `when { context.params.repo like "somebody-else/*" }`, true}},
			"A condition does not hold in: a (params.repo, ttl).",
		},
		{
			"an unless", `@id("a") permit (principal in Path::"spiffe://td.example/agents", action in Action::"git.*", resource) unless { context.task == "somebody-else" || context.ttl > 60 };`,
			[]scopes.NearMiss{{"a", []string{"task", "ttl"}, `unless { context.ttl > 60 }`, true}},
			"a (task, ttl)",
		},
		{
			"a person", `@id("a") permit (principal, action, resource) when { context has user && context.user.groups.contains("somebody-else") };`,
			[]scopes.NearMiss{{"a", []string{"user"}, `when { context has user }`, true}},
			"a (user)",
		},
		{
			"several, sorted", `@id("b") permit (principal, action, resource) when { context.task == "somebody-else" }; @id("a") permit (principal, action, resource) when { context.binding == "dpop" };`,
			[]scopes.NearMiss{{"a", []string{"binding"}, `when { context.binding == "dpop" }`, true}, {"b", []string{"task"}, `when { context.task == "somebody-else" }`, true}},
			"a (binding), b (task).",
		},
		{
			"a condition about this sandbox", `@id("a") permit (principal, action, resource) when { principal in Path::"spiffe://td.example/agents" && context.ttl < 1 };`,
			[]scopes.NearMiss{{"a", []string{"principal", "ttl"}, `when { context.ttl < 1 }`, true}},
			"a (principal, ttl).",
		},
		{
			"other heads", `@id("a") permit (principal == Sandbox::"spiffe://td.example/other", action, resource) when { context.ttl < 1 }; @id("b") permit (principal, action == Action::"mail.read", resource); @id("c") permit (principal, action, resource == Resource::"git:repo/acme/other"); @id("d") forbid (principal, action, resource) when { context.ttl < 1 };`,
			nil, "for this sandbox.",
		},
		{
			"the head names one resource", `@id("somebody-else") permit (principal, action, resource == Resource::"git:repo/acme/api") when { context.ttl < 1 };`,
			[]scopes.NearMiss{{"somebody-else", []string{"ttl"}, `when { context.ttl < 1 }`, false}},
			"for this sandbox.",
		},
	}
	const them, us = `principal in Path::"spiffe://other.example/secops"`, `principal in Path::"spiffe://td.example/agents"`
	for _, tt := range []struct{ condition, failed, fields string }{
		{"when { " + them + " }", "when { " + them + " }", "principal"},
		{"when { context.ttl < 1 && " + them + " }", "when { context.ttl < 1 }", "principal ttl"},
		{"when { context.ttl < 1 } when { " + them + " }", "when { context.ttl < 1 }", "principal ttl"},
		{"unless { context.ttl > 1 || !(" + them + ") }", "unless { context.ttl > 1 }", "principal ttl"},
		{"when { context.ttl < 1 && (" + them + ` || context.params.repo == "acme/api") }`, "when { context.ttl < 1 }", "params.repo principal ttl"},
		{"when { context.ttl < 1 && (" + us + ` || context.params.repo == "acme/api") }`, "when { context.ttl < 1 }", "params.repo principal ttl"},
		{"when { context.ttl < 1 && (" + us + ` || context.params == context.params) }`, "when { context.ttl < 1 }", "principal ttl"},
	} {
		policy, want := theirs(tt.condition, tt.failed, strings.Fields(tt.fields)...)
		tests = append(tests, test{"a condition about others: " + tt.condition, policy, want, "for this sandbox."})
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := load(t, worldScopes, tt.policies)
			ask := scopes.Ask{Scope: "git.issues.read", Params: repo("acme/api"), RequestContext: scopes.RequestContext{Task: "t"}}
			d, err := c.Decide(subject("spiffe://td.example/agents/a"), ask, noon)
			if err != nil || d.Reason != scopes.ReasonNoPermit {
				t.Fatalf("got %v, %v", d.Reason, err)
			}
			if diff := cmp.Diff(tt.want, d.NearMisses); diff != "" {
				t.Errorf("near misses (-want +got):\n%s", diff)
			}
			if !strings.Contains(d.Explanation, tt.says) || strings.Contains(d.Explanation, secret) {
				t.Errorf("got %q", d.Explanation)
			}
		})
	}
}

// TestNearMissesOfASandboxAreNoOracle checks that a sandbox cannot find the values in a condition by a series of requests: every
// denial of a scope tells it the same.
func TestNearMissesOfASandboxAreNoOracle(t *testing.T) {
	for name, policy := range map[string]string{
		"a condition":        `permit (principal, action in Action::"git.*", resource) when { context.params.repo == "acme/api" && context.ttl <= 137 && context.task == "t-7" && context has user };`,
		"a resource":         `permit (principal, action, resource == Resource::"git:repo/acme/api") when { context has user };`,
		"mixed, of us":       `permit (principal, action, resource) when { context has user && (principal in Path::"spiffe://td.example/agents" || context.ttl <= 137) };`,
		"mixed, of others":   `permit (principal, action, resource) when { context has user && (principal in Path::"spiffe://other.example/a" || context.ttl <= 137) };`,
		"an if":              `permit (principal, action, resource) when { context has user && (if context.ttl <= 137 then principal in Path::"spiffe://td.example/a" else true) };`,
		"more than it tells": `permit (principal, action, resource) when { context has user };` + strings.Repeat(`@id("%d") permit (principal, action, resource == Resource::"git:repo/acme/api") when { context has user };`, 70),
	} {
		t.Run(name, func(t *testing.T) {
			for n := 0; strings.Contains(policy, "%d"); n++ {
				policy = strings.Replace(policy, "%d", strconv.Itoa(n), 1)
			}
			c := load(t, worldScopes, `@id("release") `+policy)
			told := map[string]bool{}
			for _, name := range []string{"acme/api", "acme/other"} {
				for _, ttl := range []time.Duration{137 * time.Second, 138 * time.Second} {
					for _, task := range []string{"t-7", "t-8"} {
						ask := scopes.Ask{Scope: "git.issues.read", Params: repo(name), TTL: ttl, RequestContext: scopes.RequestContext{Task: task}}
						d, err := c.Decide(subject("spiffe://td.example/agents/a"), ask, noon)
						if err != nil || d.Reason != scopes.ReasonNoPermit {
							t.Fatalf("got %v, %v", d.Reason, err)
						}
						told[strings.ReplaceAll(d.Explanation, name, "")] = true
					}
				}
			}
			if len(told) != 1 {
				t.Errorf("got %d different answers: %v", len(told), slices.Sorted(maps.Keys(told)))
			}
		})
	}
}
