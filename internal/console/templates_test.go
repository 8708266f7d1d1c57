package console

import (
	"bytes"
	"fmt"
	"html/template"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"text/template/parse"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/ratelimit"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/brevet-dev/brevet/scopes/replay"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/mod/sumdb/tlog"
)

// sampled is the time at which the samples are shown.
var sampled = time.Date(2026, 11, 23, 3, 4, 5, 0, time.UTC)

// sample is one page as a visitor sees it.
type sample struct {
	view

	name   string
	who    *visitor
	notice string
}

// bare returns a console that renders pages and serves nothing.
func bare(t *testing.T) *Console {
	t.Helper()
	c := &Console{cfg: Config{Now: func() time.Time { return sampled }, TrustDomains: []string{"acme.test"}}, pace: ratelimit.New(1, 1)}
	var err error
	if c.static, err = newStatic(); err != nil {
		t.Fatal(err)
	}
	if c.pages, err = c.parsePages(); err != nil {
		t.Fatal(err)
	}
	return c
}

// render executes a template as show does.
func (c *Console) render(s sample) (string, error) {
	var body bytes.Buffer
	section := s.page
	if section == "home" {
		section = ""
	}
	person := ""
	if s.who != nil {
		person = "cGVyc29u"
	}
	err := c.pages[s.page].ExecuteTemplate(&body, "layout.html", framed{
		Page: s.page, Title: s.title, Section: section, Who: s.who, Notice: s.notice, Data: s.data, Now: sampled, Person: person, opens: c.opens,
	})
	return body.String(), err
}

// Every branch of every template executes with the type of data that its handlers pass. A field that was renamed in Go alone
// fails here, and not in front of somebody.
func TestTemplatesExecute(t *testing.T) {
	c := bare(t)
	taken, all := map[string]bool{}, map[string]bool{}
	for _, p := range c.pages {
		watchBranches(p, taken, all)
	}
	shown := map[string]bool{}
	for _, s := range samples(t) {
		shown[s.page] = true
		text, err := c.render(s)
		switch {
		case err != nil:
			t.Errorf("%s: %v", s.name, err)
		case strings.Contains(text, "<no value>"), strings.Contains(text, "ZgotmplZ"), strings.Contains(text, "%!"):
			t.Errorf("%s: the page has a value that cannot be shown:\n%s", s.name, text)
		}
	}
	for _, name := range sortedKeys(c.pages) {
		if !shown[name] {
			t.Errorf("no sample of page %s", name)
		}
	}
	for _, branch := range slices.Sorted(maps.Keys(all)) {
		if !taken[branch] {
			t.Errorf("no sample takes the branch %s", branch)
		}
	}
}

// watchBranches makes a page record in taken which branches it executes, and adds all of its branches to all.
func watchBranches(page *template.Template, taken, all map[string]bool) {
	page.Funcs(template.FuncMap{"taken": func(branch string, value any) any {
		if truth, _ := template.IsTrue(value); truth {
			taken[branch+" (true)"] = true
		} else {
			taken[branch+" (false)"] = true
		}
		return value
	}})
	for _, t := range page.Templates() {
		if t.Tree != nil {
			watchList(t.Tree, t.Tree.Root, all)
		}
	}
}

func watchList(tree *parse.Tree, list *parse.ListNode, all map[string]bool) {
	if list == nil {
		return
	}
	watch := func(n parse.Node, b *parse.BranchNode) {
		location, _ := tree.ErrorContext(n)
		branch := location + ": " + b.Pipe.String()
		all[branch+" (true)"] = true
		if b.ElseList != nil {
			all[branch+" (false)"] = true
		}
		call := parse.NewIdentifier("taken").SetTree(tree).SetPos(n.Position())
		name := &parse.StringNode{NodeType: parse.NodeString, Pos: n.Position(), Quoted: fmt.Sprintf("%q", branch), Text: branch}
		b.Pipe.Cmds = append(b.Pipe.Cmds, &parse.CommandNode{NodeType: parse.NodeCommand, Pos: n.Position(), Args: []parse.Node{call, name}})
		watchList(tree, b.List, all)
		watchList(tree, b.ElseList, all)
	}
	for _, n := range list.Nodes {
		switch n := n.(type) {
		case *parse.IfNode:
			watch(n, &n.BranchNode)
		case *parse.RangeNode:
			watch(n, &n.BranchNode)
		case *parse.WithNode:
			watch(n, &n.BranchNode)
		}
	}
}

func TestTimesAreRelative(t *testing.T) {
	for want, after := range map[string]time.Duration{
		"now": 300 * time.Millisecond, "in 42 s": 42 * time.Second, "in 5 min": 5*time.Minute + 59*time.Second, "in 1 h 20 min": 80 * time.Minute, "in 2 h": 2 * time.Hour,
		"in 1 day": 25 * time.Hour, "in 3 days": 80 * time.Hour, "59 s ago": -59 * time.Second, "3 min ago": -200 * time.Second, "5 h ago": -5*time.Hour - 50*time.Minute, "12 days ago": -12*24*time.Hour - 1,
	} {
		if got := relative(sampled.Add(after), sampled); got != want {
			t.Errorf("%s: got %q, want %q", after, got, want)
		}
	}
	const want = `<time datetime="2026-11-23T03:01:05Z" title="2026-11-23 03:01:05 UTC">3 min ago</time>`
	if got := when(sampled.Add(-3*time.Minute), sampled); string(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := when(time.Time{}, sampled); got != "never" {
		t.Errorf("got %q for no time", got)
	}
}

func TestBadgesHaveStandardWords(t *testing.T) {
	for want, code := range map[string]any{
		`<span class="badge good">OK</span>`: stateOK, `<span class="badge bad">Down</span>`: stateDown, `<span class="badge good">Issued</span>`: broker.StatusIssued,
		`<span class="badge bad">Denied</span>`: scopes.Deny, `<span class="badge wait" title="waits for approval">Pending</span>`: broker.StatusPending,
		`<span class="badge over">Revoked</span>`: broker.StatusRevoked, `<span class="badge over">&lt;i&gt;</span>`: "<i>", `<span class="badge good">Applied</span>`: broker.CatalogueApplied,
	} {
		if got := badge(code); string(got) != want {
			t.Errorf("%v: got %s, want %s", code, got, want)
		}
	}
}

const (
	sampleID      = "01a20207-f9ef-793c-8ab6-ac213794e0ea"
	sampleSandbox = "spiffe://acme.test/research/agents/triage-1"
	sampleDigest  = "sha256:16d23f58aec0e1a0975e85aab32882f79da528ba8274531b118e6fe15eb88265"
	samplePerson  = "https://login.acme.test#alice"
)

// samples returns pages in their different states. Together they take every branch of every template.
func samples(t *testing.T) []sample {
	t.Helper()
	everywhere := broker.Reach{TrustDomains: []string{"acme.test"}}
	admin := &visitor{Approver: everywhere, Auditor: everywhere, Admin: everywhere}
	approver, auditor, newcomer, ender := &visitor{Approver: everywhere}, &visitor{Auditor: everywhere}, &visitor{}, &visitor{Admin: everywhere}
	var all []sample
	add := func(name string, who *visitor, v view) { all = append(all, sample{name: name, who: who, view: v}) }

	before, ahead := func(d time.Duration) time.Time { return sampled.Add(-d) }, func(d time.Duration) time.Time { return sampled.Add(d) }
	subject := broker.Subject{ID: spiffeid.RequireFromString(sampleSandbox), Kind: "x509-svid"}
	record := broker.View{
		ID: sampleID, Index: 7, Time: before(4 * time.Minute), Subject: subject, RequestContext: scopes.RequestContext{Task: "triage-4711"}, Scope: "github.issues.write", Authority: "write", Resource: "github:repo/acme/api",
		Params: map[string]any{"repo": "acme/api"}, Reason: "The milestone is done\u202e", TTL: 5 * time.Minute, TTLAsked: time.Hour, Clamps: []string{"scope.max"},
		Decision: "allow", DecisionCode: scopes.ReasonApproved, Explanation: "Permitted by agents-may-write.", Policies: []string{"agents-may-write"}, Catalogue: sampleDigest,
		Status: broker.StatusIssued, StatusTime: before(3 * time.Minute), Expires: ahead(2 * time.Minute), CredentialKind: "jwt", Audience: "https://github-gateway.test",
		KeyID: "8oc6sCx46d-82rbWf828hx7x1zJwPZBvoh-u0zvdYrU", ApprovalGroup: "oncall", ApprovalQuorum: 1, Votes: 1, Approves: sampleID, User: &scopes.User{ID: samplePerson}, Parent: sampleID,
	}
	denied := record
	denied.Decision, denied.DecisionCode, denied.Status, denied.CredentialKind, denied.Reason, denied.Explanation = "deny", scopes.ReasonNoPermit, broker.StatusDenied, "", "", ""
	denied.Policies, denied.Authority, denied.Resource, denied.TTL, denied.ApprovalGroup, denied.Approves, denied.User, denied.Parent, denied.Params = nil, "", "", 0, "", "", nil, "", nil
	denied.Expires = time.Time{}
	revoked := record
	revoked.Status, revoked.StatusDetail, revoked.Actor, revoked.Broken, revoked.RedeemedBy, revoked.TTLAsked = broker.StatusRevoked, broker.CauseRevoked, samplePerson, true, sampleID, 0
	revoked.VaultPath, revoked.Minted.Name = "database/creds/report", "v-brevet-report-1"

	request := func(change func(*broker.ApprovalRequest, *ask)) *ask {
		view := record
		view.Status, view.Decision, view.StatusTime, view.Votes = broker.StatusPending, "pending", time.Time{}, 0
		view.Explanation = "1 person of the group oncall must approve within 10m (agents-may-write, writes-need-a-person)."
		a := &ask{
			ApprovalRequest: &broker.ApprovalRequest{View: view}, Title: "Comment on issues of one repository", Owner: "alice", Hash: strings.Repeat("ab", 32), Approve: true, Deny: true,
			Agreed: approval.Shown{
				TrustDomain: "acme.test", SPIFFEID: sampleSandbox, User: samplePerson, Scope: view.Scope, Authority: "write", Resource: view.Resource, Params: map[string]any{"repo": "acme/api", "n": 7},
				TTL: 300, RequestContext: view.RequestContext, Audience: view.Audience, FederatedSubject: "repo:acme/api:task", Repositories: "acme/api", Permissions: "issues=read", Exchange: "aws arn:aws:iam::123456789012:role/site", Catalogue: sampleDigest, Group: "oncall", Quorum: 1, Expires: ahead(6 * time.Minute).Unix(), JKT: record.KeyID,
			},
		}
		a.ID, a.Reason = sampleID, "The milestone is done, so the issue needs a comment."
		a.Canonical = `{"scope":"github.issues.write"}`
		if change != nil {
			change(a.ApprovalRequest, a)
		}
		return a
	}
	plain := request(nil)
	broken := request(func(r *broker.ApprovalRequest, a *ask) {
		r.Broken, r.ID, a.Break, a.Title, a.Agreed.BreakGlass, a.Agreed.Authority = true, "01a20207-f9ef-793c-8ab6-ac213794e0eb", true, "Log in to a host", "admins", "permission"
		a.Alike, a.Agreed.Thumbprint, a.Agreed.User, a.Owner, r.Votes, a.Agreed.Remember, r.Reason = 2, record.KeyID, "", "", 1, scopes.RememberTask, ""
		a.Like = []ask{*plain, *request(func(_ *broker.ApprovalRequest, b *ask) {
			b.Agreed.JKT, b.Agreed.Params, b.Agreed.Key = "", nil, strings.Repeat("cd", 32)
		})}
		r.VotesCast = []approval.Vote{{Voter: approval.Voter{ID: samplePerson, Name: "Alice Archer"}, Verdict: approval.BreakGlass, Time: before(time.Minute), Note: "admins do not answer"}}
	})
	signed := request(func(r *broker.ApprovalRequest, a *ask) {
		r.ID, a.Agreed.Passkey, a.Signing, a.Title = "01a20207-f9ef-793c-8ab6-ac213794e0ec", scopes.PasskeyRequired, &signing{Site: "localhost", Keys: 1}, "Refund one payment"
		a.Break, a.Agreed.BreakGlass, a.Agreed.JKT, a.Agreed.Params, a.Agreed.Audience, a.Agreed.FederatedSubject, a.Agreed.Exchange = true, "admins", "", nil, "", "", ""
		a.Agreed.Repositories, a.Agreed.Permissions = "", ""
		a.Like = []ask{*plain}
	})
	opening := request(func(_ *broker.ApprovalRequest, a *ask) {
		a.Agreed.Opens = "registry.test"
		a.Like = []ask{{ApprovalRequest: a.ApprovalRequest, Agreed: a.Agreed}}
	})
	keyless := request(func(_ *broker.ApprovalRequest, a *ask) {
		a.Agreed.Passkey, a.Signing = scopes.PasskeyRequired, &signing{}
	})
	decided := request(func(r *broker.ApprovalRequest, a *ask) {
		r.Status, r.StatusTime, a.Approve, a.Bar, r.Policies, r.Reused, r.Remembered = broker.StatusApproved, before(time.Minute), false, "This request is already decided.", nil, 2, sampleID
		r.VotesCast = []approval.Vote{
			{Voter: approval.Voter{ID: samplePerson, Name: "Alice Archer"}, Verdict: approval.Approve, Covers: approval.CoverTask, Time: before(2 * time.Minute)},
			{Voter: approval.Voter{ID: samplePerson, Name: "Bob"}, Verdict: approval.Deny, Time: before(time.Minute), Note: "p\u0430ypal"},
		}
	})

	health := systemView{
		Parts: []part{
			{"PostgreSQL", stateOK, []string{"version 17.5", "response time 410µs", "120344 entries, 812.4 MiB on disk"}, ""},
			{"Checkpoint", stateOK, []string{"covers 120344 entries, 1 s ago"}, ""},
			{"Sweeper", stateDegraded, nil, "No replica is running the sweeper. A replica takes over within seconds. Reload the page; if the problem persists, check the logs of the replicas."},
			{"Vault", stateDown, nil, "Brevet cannot issue dynamic credentials or sign JWTs without it. Check Vault and the network. Pending revocations continue when it responds again."},
		},
		Keys: []broker.SigningKey{
			{Key: broker.Key{ID: record.KeyID}, Created: before(60 * 24 * time.Hour), Signs: true, Published: true},
			{Key: broker.Key{ID: "next"}, Created: before(time.Minute), Steady: ahead(10 * time.Minute), Published: true},
			{Key: broker.Key{ID: "old"}, Created: before(400 * 24 * time.Hour)},
		},
		Trouble: 2, Everywhere: true,
	}
	calm := systemView{Parts: []part{{"PostgreSQL", stateOK, []string{"version 17.5"}, ""}, {"Vault", stateOK, []string{"version 1.20.1"}, ""}, {"Sweeper", stateOK, nil, ""}}, Everywhere: false}
	proposal := broker.CatalogueChange{
		ID: sampleID, Digest: sampleDigest, Base: sampleDigest, Version: 4, State: broker.CatalogueProposed, Actor: samplePerson, Reason: "Less waiting", Time: before(3 * time.Hour),
	}
	busy := homePage{
		Approvals: &approvalsSummary{Count: 3, More: true, Oldest: []ask{*broken, *plain, *signed}}, Health: &health, Proposals: []broker.CatalogueChange{proposal},
		Record: &recordSummary{
			Live: broker.Group{Count: 128, Ends: ahead(14 * time.Minute)}, Quarantines: 1, Since: before(24 * time.Hour), Day: broker.Rate{Issued: 2312, Denied: 47, Pending: 19, Ended: 212},
			From: before(3 * time.Hour), Denials: []broker.View{denied, denied, denied},
		},
	}
	add("home-busy", admin, pageHome.view("Dashboard", busy))
	add("home-approver", approver, pageHome.view("Dashboard", homePage{Approvals: &approvalsSummary{Count: 2, Oldest: []ask{*plain, *signed}}}))
	add("home-calm", auditor, pageHome.view("Dashboard", homePage{Approvals: &approvalsSummary{}, Record: &recordSummary{TooBroad: true, Since: before(24 * time.Hour)}, Health: &calm}))
	add("system-trouble", auditor, pageSystem.view("Health", health))
	add("system-calm", auditor, pageSystem.view("Health", calm))
	add("home-newcomer", newcomer, pageHome.view("Dashboard", homePage{}))
	all[0].notice = "Approved: the sandbox can redeem the request now."
	add("you", admin, pageYou.view("Profile", profile{Name: "Alice Archer", ID: samplePerson, Groups: []string{"engineers", "oncall"}, Began: before(4 * time.Minute), Ends: ahead(7 * time.Hour), Idle: 30 * time.Minute, Recent: 15 * time.Minute, Roles: []role{{"Approver", []string{"spiffe://acme.test"}}, {"Auditor", nil}}}))
	add("you-newcomer", newcomer, pageYou.view("Profile", profile{}))
	keys := []broker.Passkey{{ID: sampleID, Name: "work laptop", Time: before(50 * time.Hour), Site: "localhost"}, {ID: sampleID, Name: "phone", Time: before(time.Hour), Site: "other.test"}}
	add("passkeys", approver, pagePasskeys.view("Your passkeys", passkeysPage{keys, true, false, "localhost", 10}))
	add("passkeys-none", approver, pagePasskeys.view("Your passkeys", passkeysPage{nil, true, true, "localhost", 10}))
	add("passkeys-none-old-login", approver, pagePasskeys.view("Your passkeys", passkeysPage{nil, true, false, "localhost", 10}))
	add("passkeys-full", approver, pagePasskeys.view("Your passkeys", passkeysPage{keys, true, false, "localhost", 2}))
	add("passkeys-off", approver, pagePasskeys.view("Your passkeys", passkeysPage{}))

	add("approvals", approver, pageApprovals.view("Approvals", inbox{Asks: []ask{*broken, *plain, *signed}, More: true, State: "x"}))
	add("approvals-none", admin, pageApprovals.view("Approvals", inbox{}))
	add("approval", approver, pageApproval.view(plain.Title, plain))
	add("approval-broken", approver, pageApproval.view(broken.Title, broken))
	add("approval-signed", approver, pageApproval.view(signed.Title, signed))
	add("approval-opening", approver, pageApproval.view(opening.Title, opening))
	add("approval-keyless", approver, pageApproval.view(keyless.Title, keyless))
	add("approval-decided", approver, pageApproval.view(decided.Title, decided))

	group := func(name string, n int64) broker.Group {
		return broker.Group{Name: name, SPIFFEID: sampleSandbox, Count: n, Ends: ahead(4 * time.Minute)}
	}
	live := livePage{
		LiveCounts: broker.LiveCounts{
			Total: group("", 128), ByAuthority: []broker.Group{group("read", 100), group("write", 28)}, ByKind: []broker.Group{group("jwt", 120), group("database", 8)},
			BySandbox: []broker.Group{group(sampleSandbox, 90), group("spiffe://acme.test/research/agents/triage-2", 38)}, ByTask: []broker.Group{group("triage-4711", 90)}, ByScope: []broker.Group{group("github.issues.write", 28)},
		},
		Window: "hour", Rates: []broker.Rate{{Start: sampled.Truncate(time.Minute), Issued: 3, Denied: 1}}, Step: time.Minute,
		Quarantines: []broker.Quarantine{{SPIFFEID: "spiffe://acme.test/research", Since: before(time.Hour), Actor: samplePerson, Reason: "leaked a token"}},
	}
	quiet := livePage{LiveCounts: broker.LiveCounts{Total: broker.Group{Count: 1}}, Window: "day"}
	add("live", admin, pageLive.view("Live credentials", &live))
	add("live-auditor", auditor, pageLive.view("Live credentials", &quiet))
	add("live-none", auditor, pageLive.view("Live credentials", &livePage{}))
	add("live-many", auditor, pageLive.view("Live credentials", &livePage{TooBroad: true}))

	find := func(query map[string][]string) search { return readSearch(query) }
	found := historyPage{search: find(map[string][]string{"status": {"issued"}, "param": {"repo=acme/api"}}), Records: []broker.View{record, denied, revoked}, Query: map[string][]string{"status": {"issued"}}, Next: "/history?cursor=a", Prev: "/history?cursor=b"}
	found.Records[0].Status = broker.StatusIssued
	add("history", auditor, pageHistory.view("Audit log", found))
	add("history-bad", auditor, pageHistory.view("Audit log", historyPage{search: find(map[string][]string{"status": {"nonsense"}, "since": {"soon"}})}))
	add("history-broad", auditor, pageHistory.view("Audit log", historyPage{TooBroad: true}))
	add("history-nothing", auditor, pageHistory.view("Audit log", historyPage{Query: map[string][]string{"task": {"x"}}}))
	add("history-empty", auditor, pageHistory.view("Audit log", historyPage{search: find(nil)}))

	calls := int64(12)
	events := timeline{Next: "/tasks?cursor=x", Events: []broker.TimelineEvent{
		{Time: before(4 * time.Minute), Kind: "request.pending", ID: sampleID, Scope: record.Scope, Resource: record.Resource, Code: scopes.ReasonApprovalRequired, Reason: "The milestone is done"},
		{Time: before(3 * time.Minute), Kind: "approval.vote", ID: sampleID, Actor: samplePerson, ActorName: "Alice Archer", Verdict: "approve", Covers: "task", Note: "fine"},
		{Time: before(2 * time.Minute), Kind: "issuance.reported", ID: sampleID, Calls: &calls},
		{Time: before(2 * time.Minute), Kind: "calls.recorded", ID: sampleID, Actor: sampleSandbox, Calls: &calls, Refused: &calls},
		{Time: before(time.Minute), Kind: broker.CommandTaskEnd, ID: sampleID, Detail: broker.CauseTaskEnded, At: ahead(time.Minute)},
	}}
	receipt := &audit.Receipt{Version: 1, Issuance: sampleID, Checkpoint: "acme.test/ledger\n9\nAAAA\n\n— x y\n"}
	add("issuance", admin, pageIssuance.view("Issuance", issuancePage{View: &record, ParentOpens: true, Digest: strings.Repeat("23", 32), Timeline: events, Proof: proof{Receipt: receipt}}))
	add("issuance-denied", auditor, pageIssuance.view("Request", issuancePage{View: &denied}))
	add("issuance-revoked", auditor, pageIssuance.view("Issuance", issuancePage{View: &revoked, Reported: &events.Events[2], Timeline: events}))
	add("tasks", auditor, pageTasks.view("Task", taskPage{}))
	add("tasks-bad", auditor, pageTasks.view("Task", taskPage{Task: "x"}))
	add("task", admin, pageTask.view("Task", taskPage{SPIFFEID: sampleSandbox, Task: "triage-4711", Alive: []broker.View{record}, Timeline: events, Calls: &broker.TaskCalls{
		Calls: []broker.CallRow{
			{Host: "api.github.com", Method: "GET", Path: "/repos/{repo}/issues", Scope: record.Scope, Count: 42, First: before(time.Hour), Last: before(time.Minute), Statuses: map[string]int64{"2xx": 40, "4xx": 2}},
			{Host: "evil.example", Method: "CONNECT", Refused: "no_rule", Count: 3, First: before(time.Hour), Last: before(time.Minute), Statuses: map[string]int64{"none": 3}},
			{Other: true, Count: 7, First: before(time.Hour), Last: before(time.Minute), Statuses: map[string]int64{"2xx": 7}},
		},
		Sessions: []broker.CallSession{{Session: sampleID, Reports: 2, Since: before(time.Hour), Until: before(time.Minute), Missing: []int64{2}}},
	}}))
	add("task-called", auditor, pageTask.view("Task", taskPage{SPIFFEID: sampleSandbox, Task: "triage-4711", Calls: &broker.TaskCalls{Complete: true}}))
	add("task-calls-broad", auditor, pageTask.view("Task", taskPage{SPIFFEID: sampleSandbox, Task: "triage-4711", CallsTooMany: true}))
	add("task-empty", auditor, pageTask.view("Task", taskPage{SPIFFEID: sampleSandbox, Task: "triage-4711"}))
	add("whose", auditor, pageWhose.view("Find a token's owner", whosePage{}))
	add("whose-bad", auditor, pageWhose.view("Find a token's owner", whosePage{Bad: true}))
	add("whose-unknown", auditor, pageWhose.view("Find a token's owner", whosePage{Digest: strings.Repeat("0", 64)}))
	add("whose-found", admin, pageWhose.view("Find a token's owner", whosePage{Digest: strings.Repeat("2", 64), Owners: []broker.View{record, revoked}}))

	for _, order := range sortedKeys(ordersByName) {
		kind := ordersByName[order]
		add("select-"+order, admin, pageSelect.view(kind.Title, orderPage{kindOfOrder: kind, Order: order}))
		p := orderPage{
			kindOfOrder: kind, Order: order, Selector: broker.Selector{SPIFFEID: sampleSandbox, Task: "triage-4711"}, Name: "triage-4711", ToType: "triage-4711", Fields: map[string][]string{"task": {"triage-4711"}},
			Hit: []broker.LiveCredential{{ID: sampleID, Subject: sampleSandbox, Task: "triage-4711", Scope: record.Scope, Kind: "jwt", Status: broker.StatusIssued, Expires: ahead(4 * time.Minute)}}, Count: 1,
			Existing: &live.Quarantines[0],
		}
		add("order-"+order, admin, pageOrder.view(kind.Title, p))
		add("order-ender-"+order, ender, pageOrder.view(kind.Title, p))
		p.Selector = broker.Selector{ID: sampleID, SPIFFEIDPrefix: "spiffe://acme.test/research", TrustDomain: "acme.test", Scope: record.Scope}
		p.More, p.Count, p.Hit, p.Existing = true, maxHit, nil, &broker.Quarantine{SPIFFEID: "spiffe://acme.test"}
		add("order-many-"+order, ender, pageOrder.view(kind.Title, p))
		p.More, p.Count, p.Existing = false, 0, nil
		add("order-none-"+order, admin, pageOrder.view(kind.Title, p))
	}
	ended := func(status broker.Status, why string, until time.Time) broker.Ended {
		return broker.Ended{ID: sampleID, Subject: sampleSandbox, Task: "triage-4711", Scope: record.Scope, Kind: "jwt", Status: status, Why: why, UsableUntil: until}
	}
	add("receipt", admin, pageReceipt.view("Revocation receipt", receiptPage{About: "End a task: triage-4711", Dead: 1, Open: 2, Offline: 1, Cut: true, Receipt: broker.Receipt{
		Command: sampleID, Time: before(time.Second), Ended: []broker.Ended{
			ended(broker.StatusRevoked, "", time.Time{}), ended(broker.StatusRevoked, "", ahead(4*time.Minute)), ended(broker.StatusRevoking, "vault_unavailable", time.Time{}), ended(broker.StatusIssued, "static", ahead(time.Minute)),
		},
	}}))
	all = append(all, sample{name: "receipt-ender", who: ender, view: all[len(all)-1].view})
	add("receipt-none", admin, pageReceipt.view("Revocation receipt", receiptPage{About: "Quarantine: spiffe://acme.test", Receipt: broker.Receipt{Time: sampled}}))

	return append(all, catalogueSamples(t, admin, auditor, proposal)...)
}

const sampleScopes = `
scopes:
  - name: github.issues.read
    title: Read issues of one repository
    authority: read
    params:
      repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+', max_length: 100}
    resource: github:repo/{repo}
    ttl: {default: 5m, max: 15m}
    limits:
      - {per: sandbox, count: 60, window: 1h}
    credential: {kind: jwt, audience: 'https://github-gateway.test'}
    egress:
      - {hosts: [api.github.test], methods: [GET], paths: ['/**']}
  - name: clock.read
    title: Read the time
    authority: read
    resource: clock:time
    ttl: {default: 5m, max: 15m}
    approval: {group: oncall, quorum: 1, expires: 10m}
    credential: {kind: jwt, audience: 'https://clock.test'}
`

const samplePolicies = `@id("agents-may-read")
permit (principal, action == Action::"github.issues.read", resource);
@id("people")
forbid (principal, action, resource) unless { context.approved };
`

// catalogueSamples returns pages about the catalogue, the ledger, the API and failures.
func catalogueSamples(t *testing.T, admin, auditor *visitor, proposal broker.CatalogueChange) []sample {
	t.Helper()
	var all []sample
	add := func(name string, who *visitor, v view) { all = append(all, sample{name: name, who: who, view: v}) }
	load := func(scopesFile, policies string) *scopes.Catalogue {
		c, err := scopes.Load([]scopes.File{{Name: "scopes.yaml", Data: []byte(scopesFile)}, {Name: "policy.cedar", Data: []byte(policies)}})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	catalogue := load(sampleScopes, samplePolicies)
	head := broker.CatalogueVersion{Version: 3, Digest: sampleDigest, Since: sampled.Add(-80 * time.Hour), Actor: samplePerson, Reason: "Less waiting"}
	v := catalogueView{Head: head, AllPolicies: 2, Open: []broker.CatalogueChange{proposal}}
	v.list(catalogue)
	add("catalogue", admin, pageCatalogue.view("Catalogue", v))
	v.MoreScopes, v.MorePolicies = 2, 3
	add("catalogue-large", auditor, pageCatalogue.view("Catalogue", v))
	add("catalogue-search", auditor, pageCatalogue.view("Catalogue", catalogueView{Words: "nothing"}))
	add("catalogue-empty", auditor, pageCatalogue.view("Catalogue", catalogueView{}))
	scope, _ := catalogue.Scope("github.issues.read")
	about := scopeView{Digest: sampleDigest, Fields: (&shelved{Catalogue: catalogue}).fields("github.issues.read"), Policies: catalogue.PoliciesAbout("github.issues.read"), Scope: scope, More: 2}
	add("scope", auditor, pageScope.view("github.issues.read", about))
	add("scope-denied", auditor, pageScope.view("clock.read", scopeView{Scope: scope}))
	add("scope-hidden", auditor, pageScope.view("clock.read", scopeView{Scope: scope, Policies: []scopes.Policy{{ID: "people", Effect: scopes.EffectForbid, Text: "forb\u200bid"}}}))
	applied := proposal
	applied.State, applied.Decider, applied.DecidedAt, applied.DecidedReason = broker.CatalogueApplied, samplePerson, sampled.Add(-time.Hour), "seen"
	add("versions", auditor, pageVersions.view("Catalogue versions", []broker.CatalogueChange{proposal, applied, {Version: 2, State: broker.CatalogueApplied, Time: sampled.Add(-80 * time.Hour), Forced: true}, {Version: 1, State: broker.CatalogueApplied, Time: sampled.Add(-90 * time.Hour)}}))
	add("versions-none", auditor, pageVersions.view("Catalogue versions", nil))

	other := load(strings.Replace(sampleScopes, "max: 15m", "max: 45m", 1), strings.Replace(samplePolicies, "unless { context.approved }", "unless { context.approved || true }", 1))
	diff := diffView{From: sampleDigest, To: sampleDigest, Files: []fileDiff{{Name: "scopes.yaml", Cut: true, Lines: []diffLine{{"@", "from line 3"}, {" ", "scopes:"}, {"-", "max: 15m"}, {"+", "max: 45m"}}}}}
	diff.plan(catalogue, other)
	diff.Vault = []string{"brevet-report"}
	plain := diff
	plain.plan(catalogue, catalogue)
	unclear := diff
	unclear.Summary.Widened, unclear.Summary.Unclear = 0, 2
	add("diff", auditor, pageDiff.view("Catalogue diff", diff))
	add("diff-layout", auditor, pageDiff.view("Catalogue diff", plain))
	add("diff-unclear", auditor, pageDiff.view("Catalogue diff", unclear))
	many := diff
	many.Summary.Widened = 2
	add("diff-many", auditor, pageDiff.view("Catalogue diff", many))
	add("diff-unread", auditor, pageDiff.view("Catalogue diff", diffView{Unread: true, Files: diff.Files}))
	add("diff-same", auditor, pageDiff.view("Catalogue diff", diffView{}))
	edit := editView{Base: sampleDigest, Names: []string{"policy.cedar", "scopes.yaml"}, Editing: "policy.cedar", Text: samplePolicies}
	add("draft", admin, pageDraft.view("Catalogue draft", edit))
	add("draft-large", admin, pageDraft.view("Catalogue draft", editView{Base: sampleDigest, TooLarge: true}))
	made := draft{Base: sampleDigest, Changed: []draftFile{{"policy.cedar", samplePolicies}, {"more.cedar", ""}}, Gone: []string{"old.cedar"}}
	add("draft-refused", admin, pageDraftRefused.view("Invalid draft", draftView{draft: made, Problems: scopes.Problems{{File: "policy.cedar", Line: 2, What: "unknown action"}, {File: "scopes.yaml", What: "no scopes"}}, More: 3}))
	add("draft-checked", admin, pageDraftChecked.view("Effect of the draft", draftView{draft: made, Digest: sampleDigest, Diff: diff, Vote: true, Open: 3}))
	add("draft-applies", admin, pageDraftChecked.view("Effect of the draft", draftView{draft: made, Digest: sampleDigest, Diff: diff}))
	add("proposal", admin, pageProposal.view("Catalogue proposal", proposalView{Change: proposal, Base: sampleDigest, Decide: true, Diff: diff}))
	add("proposal-own", admin, pageProposal.view("Catalogue proposal", proposalView{Change: proposal, Base: sampleDigest, Decide: true, Own: true, Diff: diff}))

	shift := map[replay.Shift]int64{replay.NewlyAllowed: 2}
	report := replay.Report{Decisions: 40, Counts: map[replay.Shift]int64{replay.NewlyAllowed: 2, replay.Unchanged: 38}, AtLeast: true}
	report.Scopes = []replay.Group{{Scope: "clock.read", Counts: shift, Samples: map[replay.Shift][]string{replay.NewlyAllowed: {sampleID}}}}
	report.Sandboxes = []replay.Group{{SPIFFEID: sampleSandbox, Scope: "clock.read", Counts: shift}}
	report.Unlisted.Scopes, report.Unlisted.Sandboxes = 2, 3
	add("replay", admin, pageReplay.view("Replay", replayView{Digest: sampleDigest, Since: sampled.Add(-24 * time.Hour), Total: 100, Cut: true, Until: sampled.Add(-time.Hour), Report: report, Shifts: shiftsOf(report.Counts)}))
	same := replay.Report{Decisions: 40, Counts: map[replay.Shift]int64{replay.Unchanged: 40}}
	add("replay-same", admin, pageReplay.view("Replay", replayView{Since: sampled.Add(-24 * time.Hour), Report: same, Shifts: shiftsOf(same.Counts)}))
	add("replay-none", admin, pageReplay.view("Replay", replayView{Since: sampled.Add(-24 * time.Hour)}))

	explained := func(change func(*explainView)) explainView {
		e := explainView{SPIFFEID: sampleSandbox, SVID: "jwt", Scope: "github.issues.read", Names: []string{"clock.read", "github.issues.read"}}
		e.Params = paramFields(scope, func(string) string { return "acme/api" })
		change(&e)
		return e
	}
	policy, _ := catalogue.Policy("people")
	add("explain", auditor, pageExplain.view("Explain a decision", explained(func(e *explainView) {
		e.Params = append(e.Params, askedParam{Name: "state", Value: "open", About: "one of the listed values", Values: []string{"open", "closed"}}, askedParam{Name: "n", Number: true})
		e.User, e.Limits, e.Policies = samplePerson, []string{"60 in 1h per sandbox"}, []scopes.Policy{policy}
		e.Decision = &scopes.Decision{
			Outcome: scopes.Pending, Resource: "github:repo/acme/api", TTL: 5 * time.Minute, Clamps: []scopes.Clamp{{Bound: "scope.max", From: time.Hour, To: 15 * time.Minute}}, Reason: scopes.ReasonApprovalRequired,
			Explanation: "1 person of the group oncall must approve.", Approval: &scopes.Approval{Group: "oncall", Quorum: 1, Expires: 10 * time.Minute, BreakGlass: "admins", Passkey: scopes.PasskeyRequired},
			Narrowest: &scopes.Ask{Scope: "github.issues.read", Params: map[string]any{"repo": "acme/api"}, TTL: time.Minute}, Catalogue: sampleDigest,
		}
	})))
	add("explain-denied", auditor, pageExplain.view("Explain a decision", explained(func(e *explainView) {
		e.Names, e.Params, e.Wrong, e.Decision = nil, nil, "The sandbox is missing.", &scopes.Decision{Outcome: scopes.Deny, Reason: scopes.ReasonNoPermit}
	})))

	note := "acme.test/ledger\n9\ndbH9VWGY4pgSkYaed7wAivF41pppJAwzy9FPud5NtRo=\n\n— acme.test/ledger 8oc6sCx46d=\n"
	ledger := ledgerView{
		Status: broker.LedgerStatus{Entries: 12, Checkpoint: broker.Checkpoint{Size: 9, Time: sampled.Add(-2 * time.Second)}, Cosigned: []broker.Cosigned{{Witness: "witness.test", Checkpoint: broker.Checkpoint{Size: 9, Time: sampled.Add(-time.Second)}}}},
		Note:   note, Checkpoint: audit.Checkpoint{Origin: "acme.test/ledger", Tree: tlog.Tree{N: 9}}, Keys: []string{"acme.test/ledger+00000000+AAAA"},
		Entries: []entryView{{11, "issuance.issued", sampled.Add(-time.Second), "dbH9VWGY4pgSkYaed7wAivF41pppJAwzy9FPud5NtRo="}, {10, "issuance.intent", sampled.Add(-time.Second), "3bH9VWGY4pgSkYaed7wAivF41pppJAwzy9FPud5NtRo="}},
	}
	add("ledger", auditor, pageLedger.view("Ledger", ledger))
	add("ledger-hidden", auditor, pageLedger.view("Ledger", ledgerView{Hidden: true}))
	add("ledger-empty", auditor, pageLedger.view("Ledger", ledgerView{}))
	add("system", auditor, pageSystem.view("Health", systemView{Parts: []part{{"PostgreSQL", stateOK, []string{"version 17.5", "response time 410µs"}, ""}}, Everywhere: true}))

	ref, err := newReference()
	if err != nil {
		t.Fatal(err)
	}
	add("reference", auditor, pageReference.view("API", ref))
	for _, tag := range ref.Tags {
		add("reference-"+tag.Name, auditor, pageReferenceTag.view("API: "+tag.Name, tag))
	}
	add("reference-types", auditor, pageReferenceTypes.view("API types", ref.Types))
	add("reference-problems", auditor, pageReferenceProblems.view("API problems", byStatus([]Problem{{"not_found", 404, "Not found", "The resource does not exist."}})))
	for _, tr := range append(slices.Clone(troubles), mishap) {
		add("trouble-"+tr.code, auditor, pageTrouble.view(tr.Title, troublePage{trouble: tr, Back: "/approvals"}))
	}
	for name, form := range map[string]keptForm{"kept": {Sealed: "c2VhbGVk", Person: "cGVyc29u", Action: "/endings/task", Page: "/"}, "secret": {Secret: true, Page: "/"}, "lost": {Page: "/"}} {
		add("trouble-form-"+name, nil, pageTrouble.view("Login required", troublePage{trouble: troubleOf(errNobody), Unsent: &form}))
	}
	add("trouble-details", admin, pageTrouble.view("Vault is not prepared", troublePage{trouble: troubleOf(broker.ErrVaultNotPrepared), Details: []string{"scope notes.read needs the policy brevet-scope.notes.read.bea8ce98"}}))
	add("trouble", nil, pageTrouble.view(mishap.Title, troublePage{trouble: mishap}))
	add("trouble-dashboard", admin, pageTrouble.view(mishap.Title, troublePage{trouble: mishap}))
	add("kept", admin, pageKept.view("Check the kept form", keptForm{
		Sealed: "c2VhbGVk", Action: "/endings/task", Page: "/", Fields: url.Values{"note": {"typed\u202e", ""}},
	}))
	add("signed-out", nil, pageSignedOut.view("Logged out", struct{}{}))
	return all
}
