package hostile_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

var approvalRows = []row{
	{h: "H83", sent: "a vote on one's own sandbox", then: "403", tries: []try{{"yes", ownVote(openapi.VerdictApprove)}, {"no", ownVote(openapi.VerdictDeny)}}},
	{h: "H84", sent: "two votes of one person", then: "counts once", tries: []try{{"on both replicas", twice}}},
	{h: "H85", sent: "an approver who has left the group", then: "the approval is void: 409", tries: []try{{"left", left}}},
	{h: "H86", sent: "a vote for a different hash", then: "409", tries: []try{{"of another request", stale}}},
	{h: "H87", sent: "a vote after the deadline, a denial or a withdrawal", then: "409", tries: []try{
		{"a no", afterwards(func(t *testing.T, w *world, id string, _ *client.Client) {
			if _, err := vote(t, w.s[1].Person(t, "carol"), id, openapi.VerdictDeny); err != nil {
				t.Fatal(err)
			}
		})},
		{"a withdrawal", afterwards(func(t *testing.T, _ *world, id string, sandbox *client.Client) {
			if err := sandbox.Withdraw(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		})},
		{"its time", afterItsTime},
	}},
	{h: "H88", sent: "a denial after the issuance", then: "409, and the credential is revoked", tries: []try{{"a no", lateNo}}},
	{h: "H89", sent: "a webhook that is old, has a time in the future, was changed, signed with another secret, or repeated", then: "401 from a receiver that uses `client.VerifyWebhook`", apart: true, tries: []try{{"of a real one", replayedWebhook}}},
	{h: "H90", sent: "a link that is prefetched", then: "no vote is cast", tries: []try{{"over the API", prefetched}, {"in the console", prefetchedPage}}},
	{h: "H91", sent: "a call from a page of another site, for a frame, or with an ID token in a cookie", then: "403; 401", tries: crossings()},
	{h: "H92", sent: "the id of somebody else's request", then: "404, the same as for an unknown id", tries: []try{{"to read and to vote", foreignID}}},
	{h: "H93", sent: "a hundred votes at once", then: "one issuance", apart: true, tries: []try{{"over both replicas", hundredVotes}}},
	{h: "H94", sent: "a vote with an SVID", then: "403", tries: []try{{"of any kind", voteBySVID}}},
	{h: "H95", sent: "a flood of requests, and of calls by a person", then: "429", apart: true, tries: []try{{"over both replicas", flood}}},
}

// writing is a request that one person of oncall has to approve.
func writing(task string) client.Ask {
	return client.Ask{Scope: "git.issues.write", Params: map[string]any{"repo": "acme/api"}, Task: task, Reason: "because"}
}

// waiting sends a new request that needs approval, and returns its ID. Its idempotency key keeps it from repeating another one.
func waiting(t *testing.T, c *client.Client, ask client.Ask) string {
	t.Helper()
	ask.IdempotencyKey = rand.Text()
	got, err := c.Request(t.Context(), ask)
	if err != nil || got.Pending == nil {
		t.Fatalf("asking for %s: got %+v, %v, want it pending", ask.Scope, got, err)
	}
	return got.Pending.ID
}

// vote fetches a request and votes on what it shows.
func vote(t *testing.T, c *client.Client, id string, verdict openapi.Verdict) (openapi.ApprovalCase, error) {
	t.Helper()
	shown, err := c.Approval(t.Context(), id)
	if err != nil {
		return shown, err
	}
	return c.Vote(t.Context(), shown, verdict, "")
}

// wants checks that err is a problem with that status and code. The client accepts a problem only if its type matches its code
// and its status matches the HTTP status.
func wants(t *testing.T, what string, err error, status int, code openapi.ProblemCode) *client.Problem {
	t.Helper()
	var p *client.Problem
	if !errors.As(err, &p) || p.Status != status || p.Code != code {
		t.Errorf("%s: got %v, want %d %s", what, err, status, code)
		return &client.Problem{}
	}
	return p
}

// changedFiles returns a copy of the catalogue with one text replaced by another.
func changedFiles(t *testing.T, files []scopes.File, from, to string) []scopes.File {
	t.Helper()
	out, found := slices.Clone(files), false
	for i, f := range out {
		text := strings.ReplaceAll(string(f.Data), from, to)
		found = found || text != string(f.Data)
		out[i].Data = []byte(text)
	}
	if !found {
		t.Fatalf("%q is not in the catalogue", from)
	}
	return out
}

// sandbox returns an ID that no test has used yet, below a path that may write.
func (w *world) sandbox(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("spiffe://acme.test/agents/a/%d", w.tried.Add(2))
}

// pending sends, as a new sandbox, a request that needs one approval.
func (w *world) pending(t *testing.T) (id string, sandbox *client.Client) {
	t.Helper()
	sandbox = w.s[0].Client(t, w.sandbox(t))
	return waiting(t, sandbox, writing("t-1")), sandbox
}

// meet makes the replicas record their first sight of a person, before the test counts entries.
func (w *world) meet(t *testing.T, username string) {
	t.Helper()
	if _, err := w.s[0].Person(t, username).Approvals(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
}

// fruitless checks that do fails with that problem, that Vault gets no call, and that the ledger gets one entry for the refusal.
func (w *world) fruitless(t *testing.T, status int, code openapi.ProblemCode, do func() error) {
	t.Helper()
	w.added(t)
	asked := len(w.vault.since(0))
	wants(t, "what is in vain", do(), status, code)
	if calls := w.vault.since(asked); len(calls) != 0 {
		t.Errorf("Vault was asked for %v, want nothing", calls)
	}
	entries := w.added(t)
	if len(entries) != 1 || entries[0].Kind != "call.refused" || entries[0].Body["code"] != string(code) {
		t.Errorf("got %+v, want one entry of %s", entries, code)
	}
}

func ownVote(verdict openapi.Verdict) func(*testing.T, *world) {
	return func(t *testing.T, w *world) {
		id := waiting(t, w.s[0].Client(t, aliceBot), writing("t-1"))
		alice := w.s[1].Person(t, "alice")
		shown, err := alice.Approval(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		w.fruitless(t, http.StatusForbidden, openapi.CodeOwnRequest, func() error {
			_, err := alice.Vote(t.Context(), shown, verdict, "")
			return err
		})
	}
}

func twice(t *testing.T, w *world) {
	sandbox := w.s[0].Client(t, w.sandbox(t))
	ask := writing("t-1")
	ask.Scope = "git.repo.delete"
	id := waiting(t, sandbox, ask)
	for _, s := range []*testkit.Stack{w.s[0], w.s[1], w.s[0]} {
		after, err := vote(t, s.Person(t, "bob"), id, openapi.VerdictApprove)
		if err != nil || after.Status != openapi.StatusPending || len(after.Votes) != 1 {
			t.Errorf("got %+v, %v, want it pending with one vote", after, err)
		}
	}
	if got, err := sandbox.Redeem(t.Context(), id, ask); err != nil || got.Token != nil || got.Pending == nil {
		t.Errorf("redeeming: got %+v, %v, want it pending", got, err)
	}
}

func left(t *testing.T, w *world) {
	id, sandbox := w.pending(t)
	if _, err := vote(t, w.s[0].Person(t, "bob"), id, openapi.VerdictApprove); err != nil {
		t.Fatal(err)
	}
	bob := devstack.DevPerson{Username: "bob", Name: "Bob"}
	w.s[0].Know(bob)
	w.later() // ID tokens have a resolution of one second
	t.Cleanup(func() {
		bob.Groups = []string{"oncall"}
		w.s[0].Know(bob)
		w.later()
		_, _ = w.s[0].Person(t, "bob").Approvals(t.Context(), 1)
	})
	if _, err := w.s[1].Person(t, "bob").Approvals(t.Context(), 1); err != nil { // lists the pending requests, and no longer has a role
		t.Fatal(err)
	}
	for range w.s {
		w.fruitless(t, http.StatusConflict, openapi.CodeNotApproved, func() error {
			_, err := sandbox.Redeem(t.Context(), id, writing("t-1"))
			return err
		})
	}
}

func stale(t *testing.T, w *world) {
	one, _ := w.pending(t)
	other, _ := w.pending(t)
	carol := w.s[1].Person(t, "carol")
	shown, err := carol.Approval(t.Context(), one)
	if err != nil {
		t.Fatal(err)
	}
	another, err := carol.Approval(t.Context(), other)
	if err != nil {
		t.Fatal(err)
	}
	shown.Hash = another.Hash
	w.fruitless(t, http.StatusConflict, openapi.CodeStale, func() error {
		_, err := carol.Vote(t.Context(), shown, openapi.VerdictApprove, "")
		return err
	})
}

// afterwards votes on a request that is already decided.
func afterwards(decide func(t *testing.T, w *world, id string, sandbox *client.Client)) func(*testing.T, *world) {
	return func(t *testing.T, w *world) {
		id, sandbox := w.pending(t)
		bob := w.s[0].Person(t, "bob")
		shown, err := bob.Approval(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		decide(t, w, id, sandbox)
		w.fruitless(t, http.StatusConflict, openapi.CodeDecided, func() error {
			_, err := bob.Vote(t.Context(), shown, openapi.VerdictApprove, "")
			return err
		})
		if got, err := sandbox.Redeem(t.Context(), id, writing("t-1")); err == nil && got.Token != nil {
			t.Errorf("redeeming: got %+v, want nothing", got)
		}
	}
}

// afterItsTime moves the clock, so it needs its own replicas.
func afterItsTime(t *testing.T, _ *world) {
	w := newWorld(t, staffed)
	afterwards(func(*testing.T, *world, string, *client.Client) { w.ahead.Store(int64(11 * time.Minute)) })(t, w)
}

func lateNo(t *testing.T, w *world) {
	id, sandbox := w.pending(t)
	carol := w.s[0].Person(t, "carol")
	shown, err := vote(t, carol, id, openapi.VerdictApprove)
	if err != nil {
		t.Fatal(err)
	}
	got, err := sandbox.Redeem(t.Context(), id, writing("t-1"))
	if err != nil || got.Token == nil {
		t.Fatalf("got %+v, %v, want a credential", got, err)
	}
	if seen := w.introspect(t, 1, got.Token.Secret.Reveal()); !strings.Contains(seen, `"active":true`) {
		t.Fatalf("before: got %s", seen)
	}
	_, err = w.s[1].Person(t, "alice").Vote(t.Context(), shown, openapi.VerdictDeny, "")
	wants(t, "a no afterwards", err, http.StatusConflict, openapi.CodeDecided)
	for n := range w.s {
		if seen := w.introspect(t, n, got.Token.Secret.Reveal()); seen != inactive {
			t.Errorf("replica %d: got %s, want it inactive", n, seen)
		}
	}
	if state, err := sandbox.State(t.Context(), got.Token.ID); err != nil || state.Status != openapi.StatusRevoked {
		t.Errorf("got %+v, %v, want it revoked", state, err)
	}
}

// prefetched does what mail programs and chats do with a link.
func prefetched(t *testing.T, w *world) {
	w.meet(t, "bob")
	id, _ := w.pending(t)
	w.added(t)
	before := len(w.vault.since(0))
	page := "/v1/approvals/" + id
	for _, target := range []string{page, page + "/votes", page + "/votes?verdict=approve"} {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions} {
			s := w.next()
			c := call{method: method, target: target, auth: "Bearer " + s.IDToken(t, "bob")}
			switch {
			case method == http.MethodHead: // an answer to HEAD has no body
				got := c.send(t, s)
				givesNothingAway(t, fmt.Sprint(got.header))
				if got.status != http.StatusMethodNotAllowed || got.text != "" {
					t.Errorf("%s %s: got %d %q, want 405 and nothing", method, target, got.status, got.text)
				}
				refusal{405, "method_not_allowed", "method"}.recorded(t, w.added(t))
			case method == http.MethodGet && target == page: // the one allowed call
				got := c.send(t, s)
				givesNothingAway(t, got.text)
				if entries := w.added(t); got.status != http.StatusOK || len(entries) != 0 {
					t.Errorf("%s %s: got %d and the entries %+v, want 200 and none", method, target, got.status, entries)
				}
			default:
				refusal{405, "method_not_allowed", "method"}.of(t, w, c, s)
			}
		}
	}
	shown, err := w.s[0].Person(t, "bob").Approval(t.Context(), id)
	if err != nil || shown.Status != openapi.StatusPending || shown.VotesCast != 0 {
		t.Errorf("got %+v, %v, want no vote", shown, err)
	}
	if entries := w.added(t); len(entries) != 0 {
		t.Errorf("got the entries %+v, want none but of the methods", entries)
	}
	if asked := w.vault.since(before); len(asked) != 0 {
		t.Errorf("Vault was asked for %v", asked)
	}
}

// crossings are votes that a browser sends for a page of another origin.
func crossings() []try {
	crossing := refusal{403, "not_allowed", "cross_origin"}
	voting := func(name string, want refusal, headers ...string) try {
		return refusedBy(name, func(t *testing.T, w *world, s *testkit.Stack) call {
			id, _ := w.pending(t)
			shown, err := s.Person(t, "bob").Approval(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			c := call{
				target: "/v1/approvals/" + id + "/votes", auth: "Bearer " + s.IDToken(t, "bob"), headers: slices.Clone(headers),
				body: `{"verdict":"approve","hash":"` + shown.Hash + `"}`,
			}
			if want.status == http.StatusUnauthorized {
				c.auth, c.headers = "none", append(c.headers, "Cookie: id_token="+s.IDToken(t, "bob")+"; Authorization=Bearer%20"+s.IDToken(t, "bob"))
			}
			return c
		}, want)
	}
	return []try{
		voting("another site", crossing, "Origin: https://"+marker+".example", "Sec-Fetch-Site: cross-site"),
		voting("a site beside", crossing, "Origin: https://"+marker+".brevet.test", "Sec-Fetch-Site: same-site"),
		voting("an old browser", crossing, "Origin: https://"+marker+".example"),
		voting("no origin", crossing, "Origin: null"),
		voting("a frame", crossing, "Sec-Fetch-Dest: iframe"),
		voting("an object", crossing, "Sec-Fetch-Dest: object"),
		voting("a cookie", refusal{401, "unauthenticated", "no_identity"}),
		{"forms of the console", crossingForms},
		{"answers cannot be framed", func(t *testing.T, w *world) {
			got := call{method: "GET", target: "/v1/whoami"}.send(t, w.next())
			if !strings.Contains(got.header.Get("Content-Security-Policy"), "frame-ancestors 'none'") || got.header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("got %v", got.header)
			}
		}},
	}
}

func foreignID(t *testing.T, w *world) {
	w.meet(t, "bob")
	theirs := waiting(t, w.s[0].Client(t, foreign), writing("t-1"))
	const nowhere = "019a9f4e-6a34-7cc1-8a4f-3a1b7c0d9e21"
	for _, target := range []string{"", "/votes"} {
		var answers []string
		for _, id := range []string{theirs, nowhere} {
			s := w.next()
			c := call{method: "GET", target: "/v1/approvals/" + id + target, auth: "Bearer " + s.IDToken(t, "bob")}
			if target != "" {
				c.method, c.body = "POST", `{"verdict":"approve","hash":"`+strings.Repeat("0", 64)+`"}`
			}
			got := refusal{404, "not_found", "id"}.of(t, w, c, s)
			answers = append(answers, got.code+got.detail)
		}
		if answers[0] != answers[1] {
			t.Errorf("got %q and %q, want the same for what is somebody else's and what is nowhere", answers[0], answers[1])
		}
	}
}

// hundredVotes lets a hundred people vote at once, while the sandbox redeems as often.
func hundredVotes(t *testing.T, _ *world) {
	o := staffed
	o.People = nil
	for i := range 100 {
		name := fmt.Sprintf("voter-%02d", i)
		o.People = append(o.People, devstack.DevPerson{Username: name, Name: name, Groups: []string{"oncall"}})
	}
	w := newWorld(t, o)
	ask := writing("t-1")
	ask.Scope = "git.repo.delete"
	id := waiting(t, w.s[0].Client(t, agent), ask)
	shown, err := w.s[0].Person(t, o.People[0].Username).Approval(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	issued, counted := votesAtOnce(t, w, o.People, shown, ask)
	if len(issued) != 1 || counted != 2 {
		t.Errorf("got %d issuances by %d votes, want 1 by 2", len(issued), counted)
	}
	if asked := w.vault.since(0); len(asked) != 1 {
		t.Errorf("Vault was asked for %v, want one signature", asked)
	}
	w.check(t)
}

// votesAtOnce lets each person vote on one replica while the sandbox redeems on the other. It returns what was issued, and how
// many votes counted.
func votesAtOnce(t *testing.T, w *world, voters []devstack.DevPerson, shown openapi.ApprovalCase, ask client.Ask) (issued map[string]bool, counted int) {
	t.Helper()
	issued = map[string]bool{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i, p := range voters {
		voter, sandbox := w.s[i%2].Person(t, p.Username), w.s[(i+1)%2].Client(t, agent)
		wg.Go(func() {
			_, err := voter.Vote(t.Context(), shown, openapi.VerdictApprove, "")
			got, redeemErr := sandbox.Redeem(t.Context(), shown.ID, ask)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				counted++
			} else {
				wants(t, "voting", err, http.StatusConflict, openapi.CodeDecided)
			}
			if redeemErr == nil && got.Token != nil {
				issued[got.Token.ID] = true
			} else if redeemErr != nil {
				wants(t, "redeeming", redeemErr, http.StatusConflict, openapi.CodeNotApproved)
			}
		})
	}
	wg.Wait()
	return issued, counted
}

func voteBySVID(t *testing.T, w *world) {
	id, sandbox := w.pending(t)
	shown, err := w.s[0].Person(t, "bob").Approval(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*client.Client{
		sandbox, w.s[0].JWTClient(t, agent), w.s[1].Client(t, admin), w.s[1].JWTClient(t, chief), w.s[0].Client(t, auditor),
	} {
		w.fruitless(t, http.StatusForbidden, openapi.CodeNotAllowed, func() error {
			_, err := c.Vote(t.Context(), shown, openapi.VerdictApprove, "")
			return err
		})
	}
	if after, err := w.s[1].Person(t, "bob").Approval(t.Context(), id); err != nil || after.VotesCast != 0 {
		t.Errorf("got %+v, %v, want no vote", after, err)
	}
}

// flood sends people more requests than they can read, and more calls than people make.
func flood(t *testing.T, _ *world) {
	w := newWorld(t, staffed)
	for i := range 20 {
		waiting(t, w.s[i%2].Client(t, agent), writing("t-1"))
	}
	w.added(t)
	_, err := w.s[1].Client(t, agent).Request(t.Context(), writing("t-2"))
	if p := wants(t, "the 21st", err, http.StatusTooManyRequests, openapi.CodeRateLimited); p.RetryAfter == 0 {
		t.Errorf("the 21st: got %v, want Retry-After", err)
	}
	decided(t, w.added(t), agent, "deny", "limited")
	waiting(t, w.s[0].Client(t, "spiffe://acme.test/agents/a/b"), writing("t-1"))
	w.stop() // stop the clock: on a busy machine the calls are too slow to be a flood
	for n, s := range w.s {
		bob := s.Person(t, "bob")
		_, err := bob.Approvals(t.Context(), 1) // records the first sight of bob, once
		w.added(t)
		for n := 1; n < 400 && err == nil; n++ {
			_, err = bob.Approvals(t.Context(), 1)
		}
		wants(t, fmt.Sprintf("one of 400 calls of one person to replica %d", n), err, http.StatusTooManyRequests, openapi.CodeRateLimited)
		refusal{429, "rate_limited", "pace"}.recorded(t, w.added(t))
		if _, err := s.Person(t, "carol").Approvals(t.Context(), 1); err != nil {
			t.Errorf("another person: %v", err)
		}
	}
	if asked := w.vault.since(0); len(asked) != 0 {
		t.Errorf("Vault was asked for %v", asked)
	}
	w.check(t)
}
