package console_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/chromedp/chromedp"
)

// Each role sees its part of the dashboard, and nothing outside its reach (I14).
func TestDashboardShowsWhatTheRolesReach(t *testing.T) {
	w := newWorldWith(t, func(o *testkit.Options) {
		o.Rules = append(o.Rules, people.Rule{Role: people.RoleApprover, Group: "admins"}, people.Rule{Role: people.RoleAuditor, Group: "engineers", Within: []string{"spiffe://other.test"}})
	})
	first := waits(t, w.agent(t, "triage-1"), comment("acme/api", "the milestone is done"))
	second := waits(t, w.agent(t, "triage-2"), comment("acme/web", ""))
	w.issue(t, "reader", "triage", "")
	if _, err := w.agent(t, "reader").Request(t.Context(), client.Ask{Scope: "no.such.scope", Task: "triage"}); err == nil {
		t.Fatal("got a credential of an unknown scope")
	}
	programs := map[string]*http.Client{}
	for _, who := range []string{"alice", "bob", "dave", "erin"} {
		programs[who] = w.program(t, who)
	}
	// The figures of the last day can take a moment on a fresh replica.
	eventually(t, "complete figures", func() bool {
		page := w.read(t, programs["dave"], "/")
		return strings.Contains(page, "<strong>1</strong> Denied, last 24 h") && !strings.Contains(page, "still counts")
	})
	for _, row := range []struct {
		who             string
		present, absent []string
	}{
		{"bob", []string{"<strong>2</strong> Pending approvals", `/approvals/` + first, `/approvals/` + second, "github:repo/acme/api"}, []string{"Live credentials", "Latest denials", "PostgreSQL", "no.such.scope"}},
		{"dave", []string{"<strong>1</strong> Live credentials", "<strong>1</strong> Issued, last 24 h", "no.such.scope", "unknown scope", "PostgreSQL"}, []string{"Pending approvals", "acme/api", "Revoke credentials"}},
		{"alice", []string{"<strong>2</strong> Pending approvals", "<strong>0</strong> Live credentials", "<strong>0</strong> Denied, last 24 h", "No denials"}, []string{"no.such.scope", "agents/reader", "Trust bundle of acme.test"}},
		{"erin", []string{"None of your groups has a role"}, []string{"Pending approvals", "Live credentials", "PostgreSQL"}},
	} {
		page := w.read(t, programs[row.who], "/")
		_, main, _ := strings.Cut(page, "<main")
		for _, text := range row.present {
			if !strings.Contains(main, text) {
				t.Errorf("%s: %q is missing:\n%s", row.who, text, main)
			}
		}
		for _, text := range row.absent {
			if strings.Contains(main, text) {
				t.Errorf("%s: %q is shown:\n%s", row.who, text, main)
			}
		}
		if row.who == "bob" && strings.Index(main, first) > strings.Index(main, second) {
			t.Errorf("the oldest request is not first:\n%s", main)
		}
	}
	carol, bob := w.tab(t), w.tab(t)
	carol.login("carol")
	carol.open("/")
	carol.has("Nothing is pending for your groups.", "Live credentials", "Latest denials", "Health", "OK", "Revoke credentials…")
	bob.login("bob")
	bob.open("/")
	bob.harmless("dashboard")
	bob.run(chromedp.Click(`a[href="/approvals/`+first+`"]`), chromedp.WaitVisible(`//h1[.="Comment on issues of one repository"]`))
}
