package people_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/people"
)

func rules(t *testing.T) people.Rules {
	t.Helper()
	r, err := people.NewRules([]people.Rule{
		{Role: people.RoleAdmin, Group: "platform"},
		{Role: people.RoleApprover, Group: "oncall", Within: []string{"spiffe://acme.test/agents", "spiffe://acme.test/agents/a", "spiffe://other.test"}},
		{Role: people.RoleApprover, Group: "leads", Within: []string{"spiffe://acme.test/agents"}},
		{Role: people.RoleAuditor, Group: "audit", Within: []string{"spiffe://acme.test"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestMay(t *testing.T) {
	r := rules(t)
	for _, tc := range []struct {
		groups string
		role   people.Role
		id     string
		want   bool
	}{
		{"platform", people.RoleAdmin, "spiffe://any.test/x", true},
		{"platform", people.RoleAdmin, "spiffe://any.test", true},
		{"platform", people.RoleApprover, "spiffe://acme.test/agents/a", false},
		{"Platform", people.RoleAdmin, "spiffe://any.test/x", false},
		{"", people.RoleAdmin, "spiffe://any.test/x", false},
		{"oncall", people.RoleApprover, "spiffe://acme.test/agents", true},
		{"oncall", people.RoleApprover, "spiffe://acme.test/agents/a/b", true},
		{"oncall", people.RoleApprover, "spiffe://acme.test/agents-evil/a", false}, // H33
		{"oncall", people.RoleApprover, "spiffe://acme.test/other", false},
		{"oncall", people.RoleApprover, "spiffe://acme.test", false},
		{"oncall", people.RoleApprover, "spiffe://other.test/x", true},
		{"oncall", people.RoleApprover, "spiffe://other.test.evil/x", false}, // H34
		{"oncall", people.RoleApprover, "spiffe://other.testevil/x", false},
		{"oncall", people.RoleApprover, "spiffe://ACME.test/agents/a", false},
		{"oncall", people.RoleApprover, "spiffe://acme.test/agents/../other", false},
		{"oncall", people.RoleApprover, "spiffe://acme.test/agents/", false},
		{"oncall", people.RoleApprover, "", false},
		{"platform", people.RoleAdmin, "", false},
		{"platform", people.RoleAdmin, "spiffe://", false},
		{"platform", people.RoleAdmin, "https://acme.test/x", false},
		{"platform", "owner", "spiffe://acme.test/x", false},
		{"oncall audit", people.RoleAuditor, "spiffe://acme.test/x", true},
		{"audit", people.RoleAuditor, "spiffe://other.test/x", false},
	} {
		if got := r.May(strings.Fields(tc.groups), tc.role, tc.id); got != tc.want {
			t.Errorf("%q as %s on %q: got %t, want %t", tc.groups, tc.role, tc.id, got, tc.want)
		}
	}
	var none people.Rules
	if none.May([]string{"platform"}, people.RoleAdmin, "spiffe://acme.test/x") {
		t.Error("no rules gave somebody a role")
	}
}

func TestWithin(t *testing.T) {
	r := rules(t)
	for _, tc := range []struct {
		groups string
		role   people.Role
		want   []string
	}{
		{"platform", people.RoleAdmin, []string{people.Everywhere}},
		{"oncall leads", people.RoleApprover, []string{"spiffe://acme.test/agents", "spiffe://other.test"}},
		{"audit oncall", people.RoleAuditor, []string{"spiffe://acme.test"}},
		{"audit", people.RoleApprover, nil},
		{"", people.RoleAdmin, nil},
	} {
		if got := r.Within(strings.Fields(tc.groups), tc.role); !slices.Equal(got, tc.want) {
			t.Errorf("%q as %s: got %q, want %q", tc.groups, tc.role, got, tc.want)
		}
	}
}

// Later changes to the caller's rules have no effect.
func TestRulesAreCopied(t *testing.T) {
	given := []people.Rule{{Role: people.RoleAdmin, Group: "a", Within: []string{"spiffe://acme.test/x"}}}
	r, err := people.NewRules(given)
	if err != nil {
		t.Fatal(err)
	}
	given[0].Group, given[0].Within[0] = "b", "spiffe://acme.test"
	r.Within([]string{"a"}, people.RoleAdmin)[0] = "spiffe://acme.test"
	if !r.May([]string{"a"}, people.RoleAdmin, "spiffe://acme.test/x") || r.May([]string{"a"}, people.RoleAdmin, "spiffe://acme.test/y") {
		t.Error("the rules changed")
	}
}

func TestNewRulesRefuses(t *testing.T) {
	for name, rule := range map[string]people.Rule{
		"no role":        {Group: "a"},
		"unknown role":   {Role: "Admin", Group: "a"},
		"no group":       {Role: people.RoleAdmin},
		"a long group":   {Role: people.RoleAdmin, Group: strings.Repeat("a", 256)},
		"everywhere":     {Role: people.RoleAdmin, Group: "a", Within: []string{people.Everywhere}},
		"empty within":   {Role: people.RoleAdmin, Group: "a", Within: []string{""}},
		"slash at end":   {Role: people.RoleAdmin, Group: "a", Within: []string{"spiffe://acme.test/"}},
		"pattern":        {Role: people.RoleAdmin, Group: "a", Within: []string{"spiffe://acme.test/*"}},
		"upper case":     {Role: people.RoleAdmin, Group: "a", Within: []string{"spiffe://Acme.test"}},
		"path only":      {Role: people.RoleAdmin, Group: "a", Within: []string{"/agents"}},
		"one bad of two": {Role: people.RoleAdmin, Group: "a", Within: []string{"spiffe://acme.test", "acme.test"}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := people.NewRules([]people.Rule{{Role: people.RoleAuditor, Group: "a"}, rule}); err == nil || !strings.Contains(err.Error(), "rule 2") {
				t.Errorf("got %v, want an error about rule 2", err)
			}
		})
	}
}
