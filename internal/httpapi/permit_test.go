package httpapi_test

import (
	"encoding/json"
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/go-cmp/cmp"
)

const openings = `scopes:
  - name: files.public.open
    title: Read public files
    authority: read
    resource: files:public
    ttl: {default: 5m, max: 15m}
    credential: {kind: none}
    egress: [{hosts: [files.test], methods: [GET], paths: ['/**']}]
  - name: files.few.open
    title: Read public files, two at a time
    authority: read
    params: {name: {type: string, pattern: '[a-z]+'}}
    resource: files:{name}
    ttl: {default: 5m, max: 15m}
    limits: [{per: sandbox, live: 2}]
    credential: {kind: none}
    egress: [{hosts: [files.test], methods: [GET], paths: ['/few/{name}']}]
  - name: files.asked.open
    title: Read public files, once people agree
    authority: write
    resource: files:asked
    ttl: {default: 5m, max: 15m}
    approval: {group: oncall, quorum: 1}
    credential: {kind: none}
    egress: [{hosts: [files.test], methods: [GET], paths: ['/asked/**']}]
`

// withOpenings is a catalogue of scopes without a credential.
func withOpenings() testkit.Options {
	o := withServers
	o.Catalogue = []scopes.File{
		{Name: "scopes.yaml", Data: []byte(openings)},
		{Name: "policy.cedar", Data: []byte(`@id("agents") permit (principal in TrustDomain::"acme.test", action, resource);
@id("people") forbid (principal, action in Action::"authority:write", resource) unless { context.approved };`)},
	}
	o.Admins, o.Auditors, o.People, o.Rules = []string{admin}, []string{auditor}, withPeople.People, withPeople.Rules
	return o
}

var open = client.Ask{Scope: "files.public.open", Task: "t-1"}

// inForce reports which of the ids are in force for the agent.
func inForce(t *testing.T, c *client.Client, ids ...string) []string {
	t.Helper()
	alive, err := c.InForce(t.Context(), ids)
	if err != nil {
		t.Fatal(err)
	}
	return alive
}

// A permit is a record without a credential: nothing is minted, the answer has no secret, and nothing takes it for a token.
func TestPermitHasNoCredential(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withOpenings())
	c := s.Client(t, agent)
	got := wire{body: `{"scope":"files.public.open","task":"t-1","ttl":3600}`}.send(t, s)
	var answer map[string]json.RawMessage
	var permit openapi.Token
	if err := errors.Join(json.Unmarshal([]byte(got.text), &answer), json.Unmarshal([]byte(got.text), &permit)); err != nil || got.status != 201 {
		t.Fatalf("got %d %s, %v", got.status, got.text, err)
	}
	for _, secret := range []string{"token", "token_type", "credential", "name", "static", "exchange"} {
		if answer[secret] != nil {
			t.Errorf("the answer has %s: %s", secret, answer[secret])
		}
	}
	if permit.Kind != "none" || permit.TTL != 900 || permit.ExpiresIn < 890 || permit.Resource != "files:public" || len(permit.Clamped) != 1 || len(permit.Policies) != 1 {
		t.Errorf("got %s", got.text)
	}
	token := token(t, c, open)
	if token.Kind != client.KindNone || token.Secret.Reveal() != "" || len(token.Fields()) != 0 {
		t.Errorf("the client has %+v", token)
	}
	if n := s.Signings(t); n != 0 {
		t.Errorf("Vault signed %d times, want never", n)
	}
	record, err := s.Client(t, auditor).Issuance(t.Context(), permit.ID)
	want := openapi.CredentialFacts{Kind: "none"}
	if err != nil || record.Status != "issued" || record.Decision != "allow" || cmp.Diff(want, record.Credential) != "" {
		t.Errorf("got the record %+v, %v", record, err)
	}
	if alive := inForce(t, c, permit.ID, token.ID); len(alive) != 2 {
		t.Errorf("got %v in force, want both", alive)
	}
	if alive := inForce(t, s.Client(t, twin), permit.ID); len(alive) != 0 {
		t.Errorf("another sandbox sees %v in force", alive)
	}
	for _, raw := range []string{permit.ID, got.text} {
		if text := introspected(t, s, gitServer, raw); text != inactive {
			t.Errorf("introspection of a permit: got %s", text)
		}
		if got := exchangeToken(t, s, agent, raw, helper); got.status != 400 {
			t.Errorf("a token exchange of a permit: got %d %s", got.status, got.text)
		}
	}
	form := url.Values{"grant_type": {"client_credentials"}, "scope": {"files.public.open"}}
	if got := (post{svid: s.X509(t, agent), form: form}).send(t, s); got.status != 400 || got.failed.Error != "invalid_scope" {
		t.Errorf("as an OAuth client: got %d %s", got.status, got.text)
	}
	if _, err := c.Obtain(t.Context(), open, nil); !errors.Is(err, client.ErrNoCredential) {
		t.Errorf("obtaining a credential: got %v, want ErrNoCredential", err)
	}
	withKey := open
	withKey.CSR = "x"
	if _, err := c.Request(t.Context(), withKey); !errors.Is(err, client.ErrInvalid) {
		t.Errorf("with a key to certify: got %v, want it invalid", err)
	}
	withKey = open
	withKey.Signer = signer(t)
	if got, err := c.Request(t.Context(), withKey); err != nil || got.Token.Type != "" {
		t.Errorf("with a proved key: got %+v, %v, want a permit that is bound to nothing", got, err)
	}
	offered, err := c.Scopes(t.Context())
	if err != nil || len(offered.Scopes) != 3 {
		t.Fatalf("got %+v, %v", offered, err)
	}
	rule := openapi.EgressRule{Hosts: []string{"files.test"}, Methods: []string{"GET"}, Paths: []string{"/**"}}
	i := slices.IndexFunc(offered.Scopes, func(o openapi.OfferedScope) bool { return o.Name == open.Scope })
	if one := offered.Scopes[i]; one.Credential != "none" || cmp.Diff([]openapi.EgressRule{rule}, one.Egress) != "" {
		t.Errorf("got the offer %+v, want rules that send nothing", one)
	}
	s.DB.Check(t)
}

// A repeated request with one key makes one permit.
func TestPermitIsIdempotent(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withOpenings())
	c := s.Client(t, agent)
	ask := open
	ask.IdempotencyKey = "build-42"
	first := token(t, c, ask)
	if _, err := c.Request(t.Context(), ask); code(err) != openapi.CodeAlreadyIssued {
		t.Errorf("got %v, want already_issued", err)
	}
	other := ask
	other.Task = "t-2"
	if _, err := c.Request(t.Context(), other); code(err) != openapi.CodeIdempotencyMismatch {
		t.Errorf("for another task: got %v, want idempotency_mismatch", err)
	}
	page, err := c.Page(t.Context(), client.Filter{Scope: open.Scope})
	if err != nil || len(page.Issuances) != 1 || page.Issuances[0].ID != first.ID {
		t.Errorf("got %+v, %v, want one record", page.Issuances, err)
	}
	s.DB.Check(t)
}

// Limits count permits as they count credentials.
func TestPermitsAreLimited(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withOpenings())
	c := s.Client(t, agent)
	few := func(name string) client.Ask {
		return client.Ask{Scope: "files.few.open", Params: map[string]any{"name": name}, Task: "t-1"}
	}
	first := token(t, c, few("a"))
	token(t, c, few("b"))
	if _, err := c.Request(t.Context(), few("c")); !errors.Is(err, client.ErrRateLimited) {
		t.Errorf("a third one: got %v, want ErrRateLimited", err)
	}
	if _, err := c.Release(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	token(t, c, few("c"))
	s.DB.Check(t)
}

// People approve a permit as they approve a credential, and redeeming it gives the permit.
func TestApprovedPermitIsIssued(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withOpenings())
	c := s.Client(t, agent)
	ask := client.Ask{Scope: "files.asked.open", Task: "t-1"}
	id := waiting(t, c, ask)
	if alive := inForce(t, c, id); len(alive) != 0 {
		t.Errorf("a pending request is in force: %v", alive)
	}
	if after, err := vote(t, s.Person(t, "bob"), id, openapi.VerdictApprove); err != nil || after.Status != "approved" ||
		!strings.Contains(after.Canonical, `"opens":"files.test"`) {
		t.Fatalf("got %+v, %v, want it approved with the host that it opens", after, err)
	}
	form := url.Values{"grant_type": {approvalURN}, "auth_req_id": {id}}
	if got := (post{svid: s.X509(t, agent), form: form}).send(t, s); got.status != 400 {
		t.Errorf("redeeming it as an OAuth client: got %d %s", got.status, got.text)
	}
	got, err := c.Redeem(t.Context(), id, ask)
	if err != nil || got.Token == nil || got.Token.Kind != client.KindNone {
		t.Fatalf("got %+v, %v, want a permit", got, err)
	}
	if alive := inForce(t, c, got.Token.ID); len(alive) != 1 {
		t.Error("the permit is not in force")
	}
	// A denial after that ends it (H88).
	if _, err := vote(t, s.Person(t, "carol"), id, openapi.VerdictDeny); code(err) != openapi.CodeDecided {
		t.Errorf("denying what was redeemed: got %v, want decided", err)
	}
	if alive := inForce(t, c, got.Token.ID); len(alive) != 0 {
		t.Error("the permit is in force although a person has denied the request")
	}
	s.DB.Check(t)
}

// Whatever ends credentials ends permits, at once and for good: nobody can use an ended permit until it expires.
func TestPermitsEnd(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withOpenings())
	c, boss := s.Client(t, agent), s.Client(t, admin)
	for _, tc := range []struct {
		name, status, cause string
		end                 func(ask client.Ask, id string) (openapi.Receipt, error)
	}{
		{"release", "released", "released", func(_ client.Ask, id string) (openapi.Receipt, error) { return c.Release(t.Context(), id) }},
		{"task", "revoked", "task_ended", func(ask client.Ask, _ string) (openapi.Receipt, error) {
			return c.EndTask(t.Context(), ask.Task, client.TaskEnd{})
		}},
		{"revoke", "revoked", "revoked", func(ask client.Ask, _ string) (openapi.Receipt, error) {
			return boss.Revoke(t.Context(), client.Selection{SPIFFEID: agent, Scope: ask.Scope}, "closed")
		}},
		{"quarantine", "revoked", "quarantined", func(client.Ask, string) (openapi.Receipt, error) {
			return boss.Quarantine(t.Context(), agent, "odd")
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ask := open
			ask.Task = "t-" + tc.name
			id := token(t, c, ask).ID
			receipt, err := tc.end(ask, id)
			if err != nil || len(receipt.Ended) != 1 {
				t.Fatalf("got %+v, %v", receipt, err)
			}
			one := receipt.Ended[0]
			if one.ID != id || string(one.Status) != tc.status || one.Cause != tc.cause || one.Kind != "none" || !one.UsableUntil.IsZero() || one.Why != "" {
				t.Errorf("got %+v, want it %s", one, tc.status)
			}
			if alive := inForce(t, c, id); len(alive) != 0 {
				t.Error("it is still in force")
			}
			if state, err := c.State(t.Context(), id); err != nil || string(state.Status) != tc.status || state.StatusDetail != tc.cause || state.InForce {
				t.Errorf("got the state %+v, %v", state, err)
			}
		})
	}
	for name, ask := range map[string]client.Ask{"a quarantine": {Scope: open.Scope, Task: "t-new"}, "an ended task": {Scope: open.Scope, Task: "t-task"}} {
		if _, err := c.Request(t.Context(), ask); !errors.Is(err, client.ErrDenied) {
			t.Errorf("after %s: got %v, want it denied", name, err)
		}
	}
	s.DB.Check(t)
}

// A permit is over when its time has passed, and the sweeper has nothing to finish about it.
func TestPermitExpires(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withOpenings())
	sweep(t, s)
	c := s.Client(t, agent)
	ask := open
	ask.TTL = 2 * time.Second
	id := token(t, c, ask).ID
	for deadline := time.Now().Add(time.Minute); len(inForce(t, c, id)) > 0; {
		if time.Now().After(deadline) {
			t.Fatal("waited a minute for a permit of two seconds to expire")
		}
	}
	state, err := c.State(t.Context(), id)
	if err != nil || state.Status != openapi.StatusExpired || state.InForce {
		t.Errorf("got %+v, %v, want it expired", state, err)
	}
	if r, err := c.Release(t.Context(), id); err != nil || len(r.Ended) != 1 || !r.Ended[0].UsableUntil.IsZero() {
		t.Errorf("releasing it: got %+v, %v", r, err)
	}
	var entries []string
	for _, e := range s.DB.Entries(t) {
		if e.ID == id {
			entries = append(entries, e.Kind)
		}
	}
	if !slices.Equal(entries, []string{"issuance.intent"}) {
		t.Errorf("got the entries %v, want only the one that begins it", entries)
	}
	s.DB.Check(t)
}
