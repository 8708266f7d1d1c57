package httpapi_test

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
	"golang.org/x/sync/errgroup"
)

// withKeys has, besides the scopes of withPeople, one whose tokens are bound to a certificate, and one that certifies a key.
func withKeys() testkit.Options {
	o := delegating()
	o.Catalogue = slices.Clone(o.Catalogue)
	o.Catalogue[0] = scopes.File{Name: "scopes.yaml", Data: []byte(string(o.Catalogue[0].Data) + `  - name: git.tags.write
    title: Write tags
    authority: write
    resource: git:tags
    ttl: {default: 5m, max: 15m}
    approval: {group: oncall, quorum: 1}
    credential: {kind: jwt, audience: https://git.test, bind: mtls}
  - name: git.mirror.push
    title: Push to a mirror
    authority: write
    resource: git:mirror
    ttl: {default: 1m, max: 2m}
    approval: {group: oncall, quorum: 1}
    credential: {kind: pki, mount: pki, role: web, common_name: agent.acme.test}
`)}
	return o
}

// requestsOf returns the ids of the requests that a person could vote on.
func requestsOf(t *testing.T, person *client.Client) []string {
	t.Helper()
	list, err := person.Approvals(t.Context(), 500)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, one := range list.Approvals {
		ids = append(ids, one.ID)
	}
	return ids
}

func approve(t *testing.T, s *testkit.Stack, id string) {
	t.Helper()
	if _, err := vote(t, s.Person(t, "carol"), id, openapi.VerdictApprove); err != nil {
		t.Fatal(err)
	}
}

// tokenFor sends a request that must return a credential.
func tokenFor(t *testing.T, c *client.Client, ask client.Ask) *client.Token {
	t.Helper()
	got, err := c.Request(t.Context(), ask)
	if err != nil || got.Token == nil {
		t.Fatalf("got %+v, %v, want a credential", got, err)
	}
	return got.Token
}

// A script that repeats a request until it returns a credential asks people once, and gets the credential once they have approved.
func TestRepeatedRequestCollectsItsApproval(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	sandbox, carol := s.Client(t, agent), s.Person(t, "carol")
	for _, scope := range []string{"git.issues.write", "vault.notes.write", "git.comments.write"} {
		t.Run(scope, func(t *testing.T) {
			ask := askFor(scope)
			first, err := sandbox.Request(t.Context(), ask)
			if err != nil || first.Pending == nil || first.Pending.Earlier {
				t.Fatalf("got %+v, %v, want a new request", first, err)
			}
			id := first.Pending.ID
			if want := testkit.Site.Origins[0] + "/approvals/" + id; first.Pending.URL != want {
				t.Errorf("got the page %q, want %q", first.Pending.URL, want)
			}
			recorded := len(entriesOf(t, s).requests)
			for i := range 100 { // more than AskingLimit allows to begin
				ask.Reason = fmt.Sprintf("because, said for the %d. time", i)
				again, err := sandbox.Request(t.Context(), ask)
				if err != nil || again.Pending == nil || again.Pending.ID != id || !again.Pending.Earlier || again.Pending.URL != first.Pending.URL {
					t.Fatalf("repeated: got %+v, %v, want request %s", again, err, id)
				}
			}
			if got := len(entriesOf(t, s).requests); got != recorded {
				t.Errorf("got %d more entries, want none", got-recorded)
			}
			if got := requestsOf(t, carol); !slices.Equal(got, []string{id}) {
				t.Errorf("people see %q, want %s alone", got, id)
			}
			shown, err := carol.Approval(t.Context(), id)
			if err != nil || shown.Reason != "because" {
				t.Errorf("people see the reason %q, %v, want the first one", shown.Reason, err)
			}
			approve(t, s, id)
			token := tokenFor(t, sandbox, ask)
			state, err := sandbox.State(t.Context(), id)
			if err != nil || state.Status != openapi.StatusRedeemed || state.RedeemedBy != token.ID {
				t.Errorf("got %+v, %v, want it redeemed by %s", state, err, token.ID)
			}
			if after := pending(t, sandbox, ask); after == id {
				t.Error("a redeemed request is repeated, want a new one")
			}
			if err := sandbox.Withdraw(t.Context(), requestsOf(t, carol)[0]); err != nil {
				t.Fatal(err)
			}
		})
	}
	s.DB.Check(t)
}

// The answer to a repeat is that of the first call, apart from the member earlier.
func TestRepeatOverTheWire(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	send := func() (text string, p openapi.Pending) {
		got := wire{body: `{"scope":"git.issues.write","params":{"repo":"acme/api"},"task":"triage-1"}`}.send(t, s)
		if err := json.Unmarshal([]byte(got.text), &p); err != nil || got.status != 202 || got.header.Get("Location") != "/v1/requests/"+p.ID {
			t.Fatalf("got %d %s", got.status, got.text)
		}
		return got.text, p
	}
	_, first := send()
	text, again := send()
	if first.Earlier || !again.Earlier {
		t.Errorf("got earlier: %t and %t, want it at the second call", first.Earlier, again.Earlier)
	}
	if again.Earlier = false; again != first {
		t.Errorf("repeated: got %s, want %+v", text, first)
	}
	if got := entriesOf(t, s); len(got.requests) != 1 {
		t.Errorf("%d requests were recorded, want 1", len(got.requests))
	}
}

// csrOf returns a signing request for a new key.
func csrOf(t *testing.T) string {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "agent.acme.test"}}, ecKey(t))
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

// T6, I4: only the sandbox that asked collects an approval, for what it asked, with the key that it showed. Everything else is a request
// of its own, and the approval stays for the one that people approved.
func TestOnlyAnEqualRequestCollects(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withKeys())
	sandbox, key := s.Client(t, agent), signer(t)
	base, tags, mirror := askFor("git.issues.write"), client.Ask{Scope: "git.tags.write", Task: "task-1"}, client.Ask{Scope: "git.mirror.push", Task: "task-1"}
	mirror.CSR = csrOf(t)
	alice, bob := given(t, s, "alice"), given(t, s, "bob")
	with := func(ask client.Ask, change func(*client.Ask)) client.Ask {
		change(&ask)
		return ask
	}
	proved := with(base, func(a *client.Ask) { a.Signer = key })
	forAlice := with(base, func(a *client.Ask) { a.OnBehalfOf = alice })
	named := with(base, func(a *client.Ask) { a.IdempotencyKey = "one" })
	type attempt struct {
		who *client.Client
		ask client.Ask
	}
	other, renewed := s.Client(t, twin), s.ClientWith(t, s.X509(t, agent))
	for _, tc := range []struct {
		name   string
		first  attempt
		others map[string]attempt
	}{
		{"a request", attempt{sandbox, base}, map[string]attempt{
			"another sandbox":    {other, base},
			"another scope":      {sandbox, askFor("git.comments.write")},
			"another parameter":  {sandbox, with(base, func(a *client.Ask) { a.Params = map[string]any{"repo": "acme/web"} })},
			"another TTL":        {sandbox, with(base, func(a *client.Ask) { a.TTL = time.Minute })},
			"the default TTL":    {sandbox, with(base, func(a *client.Ask) { a.TTL = 5 * time.Minute })},
			"another task":       {sandbox, with(base, func(a *client.Ask) { a.Task = "task-2" })},
			"a person":           {sandbox, forAlice},
			"a DPoP key":         {sandbox, proved},
			"an idempotency key": {sandbox, named},
		}},
		{"a request with a DPoP key", attempt{sandbox, proved}, map[string]attempt{
			"another DPoP key": {sandbox, with(base, func(a *client.Ask) { a.Signer = signer(t) })},
			"another sandbox":  {other, proved},
		}},
		{"a request for a person", attempt{sandbox, forAlice}, map[string]attempt{
			"another person": {sandbox, with(base, func(a *client.Ask) { a.OnBehalfOf = bob })},
		}},
		{"a request with an idempotency key", attempt{sandbox, named}, map[string]attempt{
			"another idempotency key": {sandbox, with(base, func(a *client.Ask) { a.IdempotencyKey = "two" })},
			"another sandbox":         {other, named},
			"no idempotency key":      {sandbox, base},
		}},
		{"a token that is bound to the certificate", attempt{sandbox, tags}, map[string]attempt{
			"another certificate": {renewed, tags},
		}},
		{"a certified key", attempt{sandbox, mirror}, map[string]attempt{
			"another signing request": {sandbox, with(mirror, func(a *client.Ask) { a.CSR = csrOf(t) })},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			id := pending(t, tc.first.who, tc.first.ask)
			ids := map[string]string{id: tc.name}
			distinct := func(when, name string, got client.Answer, err error) {
				t.Helper()
				if err != nil || got.Pending == nil {
					t.Errorf("%s, %s: got %+v, %v, want it pending", when, name, got, err)
				} else if before, known := ids[got.Pending.ID]; known && before != name {
					t.Errorf("%s, %s: it is the request of %s", when, name, before)
				} else {
					ids[got.Pending.ID] = name
				}
			}
			for name, a := range tc.others {
				got, err := a.who.Request(t.Context(), a.ask)
				distinct("pending", name, got, err)
			}
			approve(t, s, id)
			for name, a := range tc.others {
				got, err := a.who.Request(t.Context(), a.ask)
				distinct("approved", name, got, err)
				if a.who == tc.first.who && a.ask.Signer == tc.first.ask.Signer && a.ask.CSR == tc.first.ask.CSR {
					continue // for these, the id is enough
				}
				if got, err := a.who.Redeem(t.Context(), id, a.ask); code(err) != openapi.CodeStale && code(err) != openapi.CodeNotFound {
					t.Errorf("%s: got %+v, %v by the id of the request, want it refused", name, got, err)
				}
			}
			if tc.first.ask.CSR == "" { // no engine certifies here
				tokenFor(t, tc.first.who, tc.first.ask)
			}
		})
	}
	s.DB.Check(t)
}

// H103, I4: equal requests at once are one request, and count once against the limits. Its approval gives one credential.
func TestEqualRequestsAtOnce(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	replicas, ask := []*testkit.Stack{s, s.Replica(t)}, askFor("git.issues.write")
	atOnce := func() (ids, tokens map[string]bool) {
		var calls errgroup.Group
		var mu sync.Mutex
		ids, tokens = map[string]bool{}, map[string]bool{}
		for i := range broker.AskingLimit.Count + 10 {
			c := replicas[i%2].Client(t, agent)
			calls.Go(func() error {
				got, err := c.Request(context.WithoutCancel(t.Context()), ask)
				if err != nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				if got.Token != nil {
					tokens[got.Token.ID] = true
				} else {
					ids[got.Pending.ID] = true
				}
				return nil
			})
		}
		if err := calls.Wait(); err != nil {
			t.Error(err)
		}
		return ids, tokens
	}
	first, none := atOnce()
	recorded := len(entriesOf(t, s).requests)
	people := requestsOf(t, s.Person(t, "carol"))
	if len(first) != 1 || len(none) != 0 || len(people) != 1 || !first[people[0]] || recorded != 1 {
		t.Fatalf("got the requests %v and the tokens %v, and people see %q, want one request", first, none, people)
	}
	approve(t, s, people[0])
	next, tokens := atOnce()
	later := requestsOf(t, s.Person(t, "carol"))
	if len(tokens) != 1 || len(next) != 1 || next[people[0]] || len(later) != 1 {
		t.Errorf("after the approval: got the tokens %v and the requests %v, and people see %q, want one token and one new request", tokens, next, later)
	}
	s.DB.Check(t)
}

// A request that is closed, in whatever way, is not repeated: an equal one is a new request, or is denied for the same reason.
func TestClosedRequestIsNotRepeated(t *testing.T) {
	t.Parallel()
	o := withPeople
	o.Ledger = func(l broker.Ledger) broker.Ledger { return brief{l} }
	s := testkit.NewStack(t, o)
	sandbox := s.Client(t, agent)
	decide := func(verdict openapi.Verdict) func(t *testing.T, id string) {
		return func(t *testing.T, id string) {
			t.Helper()
			if _, err := vote(t, s.Person(t, "bob"), id, verdict); err != nil {
				t.Fatal(err)
			}
		}
	}
	withdraw := func(t *testing.T, id string) {
		t.Helper()
		if err := sandbox.Withdraw(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		scope string
		close func(t *testing.T, id string)
	}{
		"denied":    {"git.issues.write", decide(openapi.VerdictDeny)},
		"withdrawn": {"vault.notes.write", withdraw},
		"approved, then withdrawn": {"git.comments.write", func(t *testing.T, id string) {
			t.Helper()
			decide(openapi.VerdictApprove)(t, id)
			withdraw(t, id)
		}},
		"expired": {"git.repo.delete", func(t *testing.T, id string) {
			t.Helper()
			if state, err := sandbox.Wait(t.Context(), id); err != nil || state.Status != openapi.StatusExpired {
				t.Fatalf("got %+v, %v, want it expired", state, err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			id := pending(t, sandbox, askFor(tc.scope))
			tc.close(t, id)
			if again := pending(t, sandbox, askFor(tc.scope)); again == id {
				t.Error("the request is repeated, want a new one")
			}
		})
	}
	t.Run("the task has ended", func(t *testing.T) {
		ask := askFor("git.issues.write")
		ask.Task = "task-9"
		approve(t, s, pending(t, sandbox, ask))
		if _, err := sandbox.EndTask(t.Context(), "task-9", client.TaskEnd{}); err != nil {
			t.Fatal(err)
		}
		if got, err := sandbox.Request(t.Context(), ask); !errors.Is(err, client.ErrTaskEnded) {
			t.Errorf("got %+v, %v, want it denied", got, err)
		}
	})
	t.Run("the sandbox is in quarantine", func(t *testing.T) {
		confined := s.Client(t, twin)
		approve(t, s, pending(t, confined, askFor("git.issues.write")))
		pending(t, confined, askFor("vault.notes.write"))
		if _, err := s.Client(t, admin).Quarantine(t.Context(), twin, "test"); err != nil {
			t.Fatal(err)
		}
		for _, scope := range []string{"git.issues.write", "vault.notes.write"} {
			if got, err := confined.Request(t.Context(), askFor(scope)); !errors.Is(err, client.ErrQuarantined) {
				t.Errorf("%s: got %+v, %v, want it denied", scope, got, err)
			}
		}
	})
	s.DB.Check(t)
}

// A person who has approved a request may lose the right to. A repeat is then a new request, and does not fail for good.
func TestApprovalThatNoLongerCountsIsNotRepeated(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	id := pending(t, s.Client(t, agent), askFor("git.issues.write"))
	approve(t, s, id)
	o := withPeople
	o.Rules = o.Rules[1:] // nobody of oncall may approve any more, which the database does not know
	if again := pending(t, s.ReplicaWith(t, o).Client(t, agent), askFor("git.issues.write")); again == id {
		t.Error("the request is repeated, want a new one")
	}
	s.DB.Check(t)
}

// If a credential was lost on its way, a repeat gets one on the same approval.
func TestRepeatAfterAFailedMintCollects(t *testing.T) {
	t.Parallel()
	broken := withPeople
	broken.Minter = func(m broker.Minter) broker.Minter {
		return brokenMinter{m, func() (broker.Credential, error) { return broker.Credential{}, broker.ErrVaultUnavailable }}
	}
	s := testkit.NewStack(t, withPeople)
	failing := s.ReplicaWith(t, broken)
	named := askFor("git.comments.write")
	named.IdempotencyKey = "once"
	for _, ask := range []client.Ask{askFor("git.issues.write"), named} {
		id := pending(t, s.Client(t, agent), ask)
		approve(t, s, id)
		if _, err := failing.Client(t, agent).Request(t.Context(), ask); code(err) != openapi.CodeVaultUnavailable {
			t.Fatalf("got %v, want vault_unavailable", err)
		}
		token := tokenFor(t, s.Client(t, agent), ask)
		if state, err := s.Client(t, agent).State(t.Context(), id); err != nil || state.RedeemedBy != token.ID {
			t.Errorf("got %+v, %v, want it redeemed by %s", state, err, token.ID)
		}
	}
	s.DB.Check(t)
}

// A request with an idempotency key is the same request for good: it returns what became of it.
func TestIdempotencyKeyCollectsItsApproval(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	sandbox, ask := s.Client(t, agent), askFor("git.issues.write")
	ask.IdempotencyKey = "build-42"
	id := pending(t, sandbox, ask)
	if again := pending(t, sandbox, ask); again != id {
		t.Errorf("got request %s, want %s", again, id)
	}
	approve(t, s, id)
	tokenFor(t, sandbox, ask)
	if _, err := sandbox.Request(t.Context(), ask); code(err) != openapi.CodeAlreadyIssued {
		t.Errorf("after the delivery: got %v, want already_issued", err)
	}
	ask.Reason = "another reason"
	if _, err := sandbox.Request(t.Context(), ask); code(err) != openapi.CodeIdempotencyMismatch {
		t.Errorf("another reason: got %v, want idempotency_mismatch", err)
	}
	ask.IdempotencyKey = "build-43"
	id = pending(t, sandbox, ask)
	if _, err := vote(t, s.Person(t, "carol"), id, openapi.VerdictDeny); err != nil {
		t.Fatal(err)
	}
	if _, err := sandbox.Request(t.Context(), ask); !errors.Is(err, client.ErrDenied) {
		t.Errorf("denied: got %v, want ErrDenied", err)
	}
	s.DB.Check(t)
}

// An approval for the task covers a request that is pending already, which leaves the list.
func TestApprovalForTheTaskCoversAPendingRequest(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	sandbox, carol, long, short := s.Client(t, agent), s.Person(t, "carol"), askFor("git.comments.write"), askFor("git.comments.write")
	long.TTL, short.TTL = 10*time.Minute, 5*time.Minute
	covered := pending(t, sandbox, short)
	shown, err := carol.Approval(t.Context(), pending(t, sandbox, long))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := carol.VoteForTask(t.Context(), shown, ""); err != nil {
		t.Fatal(err)
	}
	token := tokenFor(t, sandbox, short)
	if state, err := sandbox.State(t.Context(), covered); err != nil || state.RedeemedBy != token.ID {
		t.Errorf("got %+v, %v, want the pending request redeemed", state, err)
	}
	if got := requestsOf(t, carol); len(got) != 0 {
		t.Errorf("people still see %q", got)
	}
	s.DB.Check(t)
}

// An approval for the task covers also an equal request that some people have already voted on. Its votes stay with it.
func TestApprovalForTheTaskCoversAPendingRequestWithVotes(t *testing.T) {
	t.Parallel()
	o := withPeople
	o.Catalogue = changed(t, o.Catalogue, "quorum: 1, remember: task", "quorum: 2, remember: task")
	s := testkit.NewStack(t, o)
	sandbox, carol, bob := s.Client(t, agent), s.Person(t, "carol"), s.Person(t, "bob")
	for task, early := range map[string]*client.Client{"voted-again": carol, "another-voter": s.Person(t, "alice")} {
		t.Run(task, func(t *testing.T) {
			long, short := askFor("git.comments.write"), askFor("git.comments.write")
			long.TTL, short.TTL, long.Task, short.Task = 10*time.Minute, 5*time.Minute, task, task
			voted := pending(t, sandbox, short)
			if _, err := vote(t, early, voted, openapi.VerdictApprove); err != nil {
				t.Fatal(err)
			}
			id := pending(t, sandbox, long)
			for _, person := range []*client.Client{carol, bob} {
				shown, err := person.Approval(t.Context(), id)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := person.VoteForTask(t.Context(), shown, ""); err != nil {
					t.Fatal(err)
				}
			}
			token := tokenFor(t, sandbox, short)
			if state, err := sandbox.State(t.Context(), voted); err != nil || state.Status != openapi.StatusWithdrawn || state.VotesCast != 1 {
				t.Errorf("got %+v, %v, want the request with the vote withdrawn", state, err)
			}
			if got := requestsOf(t, carol); len(got) != 0 {
				t.Errorf("people still see %q", got)
			}
			if again := tokenFor(t, sandbox, short); again.ID == token.ID {
				t.Error("the repeat returns the first credential, want one of its own")
			}
		})
	}
	s.DB.Check(t)
}

// H66: a request that another catalogue has made void is not repeated, also after the first catalogue is in force again.
func TestVoidRequestIsNotRepeated(t *testing.T) {
	t.Parallel()
	o := withPeople
	o.Applied, o.CatalogueAdmins = true, []string{chief}
	s := testkit.NewStack(t, o)
	sandbox := s.Client(t, agent)
	approved, undecided := pending(t, sandbox, askFor("git.issues.write")), pending(t, sandbox, askFor("git.comments.write"))
	approve(t, s, approved)
	for _, files := range [][]scopes.File{changed(t, o.Catalogue, "title: Write issues", "title: Write the issues"), o.Catalogue} {
		apply(t, s.Client(t, chief), files)
		for scope, before := range map[string]string{"git.issues.write": approved, "git.comments.write": undecided} {
			id := pending(t, sandbox, askFor(scope))
			if id == before || pending(t, sandbox, askFor(scope)) != id {
				t.Errorf("%s: got request %s after %s, want a new one, and then that one again", scope, id, before)
			}
		}
	}
	s.DB.Check(t)
}
