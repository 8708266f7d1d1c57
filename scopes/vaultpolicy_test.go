package scopes_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/go-cmp/cmp"
)

var (
	ruleText = regexp.MustCompile(`path "([^"]*)" \{\n  capabilities = \[([^\]]*)\]\n\}\n`)
	nameText = regexp.MustCompile(`^brevet-scope\.([a-z0-9_.-]+)\.[0-9a-f]{8}$`)
)

// rulesOf parses a policy's text: the capabilities by path.
func rulesOf(text string) map[string][]string {
	out := map[string][]string{}
	for _, m := range ruleText.FindAllStringSubmatch(text, -1) {
		for capability := range strings.SplitSeq(m[2], ", ") {
			out[m[1]] = append(out[m[1]], strings.Trim(capability, `"`))
		}
	}
	return out
}

// T4: the token with which Brevet requests a credential can request what the scope can name, and nothing else where that can be listed.
func TestVaultPolicies(t *testing.T) {
	c := vaultWorld(t)
	policies := c.VaultPolicies()
	if !slices.IsSortedFunc(policies, func(a, b scopes.VaultPolicy) int { return strings.Compare(a.Name, b.Name) }) {
		t.Errorf("not sorted by name")
	}
	if diff := cmp.Diff(policies, vaultWorld(t).VaultPolicies()); diff != "" {
		t.Errorf("the same catalogue has other policies:\n%s", diff)
	}
	byScope := map[string][]string{}
	for _, p := range policies {
		m := nameText.FindStringSubmatch(p.Name)
		sum := sha256.Sum256([]byte(p.Text))
		if m == nil || !strings.HasSuffix(p.Name, "."+hex.EncodeToString(sum[:])[:8]) {
			t.Errorf("policy name %q, want it to end in the digest of its text", p.Name)
			continue
		}
		if rest := ruleText.ReplaceAllString(p.Text, ""); rest != "" {
			t.Errorf("%s has %q besides its paths", p.Name, rest)
		}
		byScope[m[1]] = append(byScope[m[1]], p.Text)
	}
	read, write := `["read"]`, `["create", "update"]`
	for scope, want := range map[string][2]string{
		"db.reporting": {"team/database/creds/dev-ro team/database/creds/prod-ro", read}, "db.any": {"database/creds/+", read}, "web.cert": {"pki/sign/web", write},
		"web.full": {"pki/issue/web-1 pki/issue/web-2 pki/issue/web-3 pki/issue/web0 pki/issue/web1 pki/issue/web2 pki/issue/web3", write}, "ssh.login": {"ssh/sign/deploy", write}, "kv.agent": {"secret/data/agents/+", read},
		"aws.creds": {"aws/+/creds/+", read}, "gcp.token": {"gcp/roleset/+/token", write},
		"aws.keys": {"aws/creds/site", write},
	} {
		var text strings.Builder // a path of each combination of values, if they can be listed
		for path := range strings.FieldsSeq(want[0]) {
			fmt.Fprintf(&text, "path %q {\n  capabilities = %s\n}\n", path, want[1])
		}
		if diff := cmp.Diff([]string{text.String()}, byScope[scope]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", scope, diff)
		}
	}
	// 2 agents, 3 numbers, true and false.
	if got := len(byScope["token.agent"]); got != 12 {
		t.Errorf("got %d policies for token.agent, want 12", got)
	}
	if len(byScope) != 10 || len(world(t).VaultPolicies()) != 0 {
		t.Errorf("got policies of %d scopes, want 10, and none for JWTs", len(byScope))
	}
}

// The policy of a vault-token is exact: it grants nothing that belongs to another combination of values.
func TestTokenPoliciesAreExact(t *testing.T) {
	c := vaultWorld(t)
	d, err := ask(t, c, "token.agent", map[string]any{"agent": "planner", "n": 3, "all": true, "why": "x"})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(c.VaultPolicies(), func(p scopes.VaultPolicy) bool { return p.Name == d.Grant.Policy })
	want := map[string][]string{
		"secret/data/agents/planner/3": {"read", "update"}, "secret/metadata/agents/planner/*": {"list"},
		"secret/data/+/shared": {"read"}, "secret/data/all-true": {"read"},
	}
	if diff := cmp.Diff(want, rulesOf(c.VaultPolicies()[i].Text)); diff != "" {
		t.Errorf("policy (-want +got):\n%s", diff)
	}
	other, err := ask(t, c, "token.agent", map[string]any{"agent": "planner", "n": 3, "all": true, "why": "y"})
	if err != nil || other.Grant.Policy != d.Grant.Policy {
		t.Errorf("a parameter outside the policy changed it: %v and %v", other.Grant, err)
	}
	names := map[string]bool{}
	for _, a := range []string{"planner", "coder"} {
		for n := 1; n <= 3; n++ {
			for _, all := range []bool{true, false} {
				d, err := ask(t, c, "token.agent", map[string]any{"agent": a, "n": n, "all": all, "why": "x"})
				if err != nil {
					t.Fatal(err)
				}
				names[d.Grant.Policy] = true
			}
		}
	}
	if len(names) != 12 {
		t.Errorf("got %d names for 12 combinations", len(names))
	}
}

// Two rules that render to one path are merged.
func TestTokenRulesOfOnePathAreMerged(t *testing.T) {
	c, err := scopes.Load(oneScope(
		"{kind: vault-token, policy: [{path: 'a/{env}', capabilities: [update, list]}, {path: a/dev, capabilities: [read, list]}]}"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range c.VaultPolicies() {
		rules := rulesOf(p.Text)
		if may, ok := rules["a/prod"]; ok {
			if !slices.Equal(may, []string{"list", "update"}) || !slices.Equal(rules["a/dev"], []string{"list", "read"}) {
				t.Errorf("got %v", rules)
			}
		} else if !slices.Equal(rules["a/dev"], []string{"list", "read", "update"}) || strings.Count(p.Text, "path ") != 1 {
			t.Errorf("got %v", rules)
		}
	}
	// Values that could be read in two ways are refused at load time, where the admin sees it.
	files := oneScope("{kind: vault-token, policy: [{path: 'a/{env}-{yes}', capabilities: [read]}]}")
	files[0].Data = []byte(strings.Replace(string(files[0].Data), "[dev, prod]", "[dev, pre-prod]", 1))
	want := `s.yaml:15: scope one.scope: credential.policy: params.env must not contain "-", which separates it from yes in the path`
	if got := refusal(t, files...); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A catalogue must not exhaust the memory, however many values it lists.
func TestTokenPoliciesAreBounded(t *testing.T) {
	var wide strings.Builder
	wide.WriteString("{kind: vault-token, policy: [{path: 'a/{few}/{env}', capabilities: [read]}")
	for i := range 15 {
		fmt.Fprintf(&wide, ", {path: 'a%d/{few}/{env}', capabilities: [read]}", i)
	}
	c, err := scopes.Load(oneScope(wide.String() + "]}"))
	if err != nil {
		t.Fatal(err)
	}
	if got := len(c.VaultPolicies()); got != 256 {
		t.Errorf("got %d policies, want 256", got)
	}
}

// The matcher that the other tests use, checked with the examples of Vault's documentation.
func TestVaultAllows(t *testing.T) {
	for _, tt := range []struct {
		pattern, path string
		want          bool
	}{
		{"secret/foo", "secret/foo", true},
		{"secret/foo", "secret/foo/bar", false},
		{"secret/bar/*", "secret/bar/zip/zap", true},
		{"secret/bar/*", "secret/bars/zip", false},
		{"secret/zip-*", "secret/zip-zap/zong", true},
		{"secret/zip-*", "secret/zip/zap", false},
		{"secret/+/teamb", "secret/foo/teamb", true},
		{"secret/+/teamb", "secret/foo/bar/teamb", false},
		{"secret/+", "secret/", false},
		{"secret/+/+/teamb", "secret/foo/bar/teamb", true},
		{"secret/+/a*", "secret/x/ab/c", true},
		{"secret/+/a*", "secret/x/b", false},
	} {
		if got := vaultAllows(tt.pattern, tt.path); got != tt.want {
			t.Errorf("%s on %s: got %v, want %v", tt.pattern, tt.path, got, tt.want)
		}
	}
}
