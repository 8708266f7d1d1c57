package httpapi_test

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/testkit"
	access "github.com/brevet-dev/brevet/internal/token"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/go-cmp/cmp"
)

const idTokenURN = "urn:ietf:params:oauth:token-type:id_token"

// delegating allows requests on behalf of people. Scopes that only read are for people of oncall.
func delegating() testkit.Options {
	o := withPeople
	o.Catalogue = []scopes.File{
		{Name: "scopes.yaml", Data: []byte(strings.Replace(approvable, "default: 1m, max: 5m", "default: 1m, max: 15m", 1) + `  - name: git.issues.list
    title: List issues
    authority: read
    resource: git:issues
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://git.test}
`)},
		{Name: "policy.cedar", Data: []byte(`@id("agents") permit (principal in TrustDomain::"acme.test", action, resource);
@id("people") forbid (principal, action in Action::"authority:write", resource) unless { context.approved };
@id("oncall") forbid (principal, action in Action::"authority:read", resource)
unless { context has user && context.user.groups.contains("oncall") };`)},
	}
	o.Delegations = []string{testkit.DelegationAudience}
	o.ResourceServers = map[string][]string{gitServer: {"https://git.test"}}
	return o
}

// presented is an ID token that a person gave to a sandbox.
type presented string

func (p presented) IDToken(context.Context) (string, error) { return string(p), nil }

// given returns an ID token with which a sandbox can request on behalf of a person.
func given(t *testing.T, s *testkit.Stack, username string) presented {
	t.Helper()
	return presented(s.IDTokenFor(t, testkit.DelegationAudience, username))
}

// onBehalf requests a token by token exchange.
func onBehalf(t *testing.T, s *testkit.Stack, idToken presented, more ...string) granted {
	t.Helper()
	form := formOf(url.Values{
		"grant_type": {exchangeURN}, "subject_token": {string(idToken)}, "subject_token_type": {idTokenURN},
		"scope": {"git.issues.list"}, "task": {"triage-1"}, "ttl": {"900"}, "reason": {"because"},
	}, more...)
	return post{svid: s.X509(t, agent), form: form}.send(t, s)
}

// keptNowhere fails the test if any part of an ID token is in the record or the log.
func keptNowhere(t *testing.T, s *testkit.Stack, idToken presented) {
	t.Helper()
	conn := testkit.Connect(t, s.DB.AdminURL)
	for part := range strings.SplitSeq(string(idToken), ".") {
		var found int
		err := conn.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM entries WHERE position(convert_to($1::text, 'UTF8') IN body) > 0)
			+ (SELECT count(*) FROM issuances AS i WHERE position($1::text IN i::text) > 0)`, part).Scan(&found)
		if err != nil || found > 0 {
			t.Errorf("got %d rows with a part of the ID token, %v, want none", found, err)
		}
		if strings.Contains(s.Log.String(), part) {
			t.Error("a part of the ID token is in the log")
		}
	}
}

func TestOnBehalfOfAPerson(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, delegating())
	alice, idToken := s.Issuer()+"#alice", given(t, s, "alice")
	ask := list
	ask.TTL, ask.OnBehalfOf = 15*time.Minute, idToken
	plain := token(t, s.Client(t, agent), ask)
	if plain.OnBehalfOf != alice || len(plain.Clamped) != 1 || plain.Clamped[0].Bound != scopes.BoundUser {
		t.Errorf("got %+v, want it to be on behalf of Alice, and cut to her ID token", plain)
	}
	byOAuth := onBehalf(t, s, idToken, "requested_token_type", accessTokenURN)
	person := openapi.TokenPerson{Iss: s.Issuer(), Sub: "alice"}
	if byOAuth.status != 200 || byOAuth.token.IssuedTokenType != accessTokenURN || byOAuth.token.OnBehalfOf != person {
		t.Fatalf("got %d %s", byOAuth.status, byOAuth.text)
	}
	var ids []string
	for _, raw := range []string{plain.Secret.Reveal(), byOAuth.token.AccessToken} {
		claims, in := tokenOf(t, s, raw, "https://git.test"), seen(t, s, raw)
		if claims.Subject != agent || claims.Actor != nil || claims.OnBehalfOf == nil || *claims.OnBehalfOf != (access.Person{Issuer: s.Issuer(), Subject: "alice"}) {
			t.Errorf("got %+v, want the sandbox's token, on behalf of Alice", claims)
		}
		if in.Sub != agent || in.OnBehalfOf != person {
			t.Errorf("got %+v from introspection, want Alice", in)
		}
		if claims.ExpiresAt().After(time.Now().Add(10 * time.Minute)) {
			t.Errorf("it ends at %s, after the ID token", claims.ExpiresAt())
		}
		record, err := s.Client(t, auditor).Issuance(t.Context(), claims.ID)
		if err != nil || record.OnBehalfOf != alice || record.SpiffeID != agent {
			t.Errorf("got %+v, %v, want the record to name Alice", record, err)
		}
		ids = append(ids, claims.ID)
	}
	ofBob := ask
	ofBob.OnBehalfOf = given(t, s, "bob")
	token(t, s.Client(t, agent), ofBob)
	var found []string
	for one, err := range s.Client(t, auditor).Issuances(t.Context(), client.Filter{OnBehalfOf: alice}) {
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, one.ID)
	}
	slices.Reverse(found)
	if diff := cmp.Diff(ids, found); diff != "" {
		t.Errorf("found by Alice's id (-want +got):\n%s", diff)
	}
	keptNowhere(t, s, idToken)
	s.DB.Check(t)
}

// A rule of policy about a person applies to no other person, and not to a sandbox by itself.
func TestPolicyAppliesToThePerson(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, delegating())
	for name, source := range map[string]client.PersonSource{"nobody": nil, "somebody else": given(t, s, "mallory")} {
		ask := list
		ask.OnBehalfOf = source
		if got, err := s.Client(t, agent).Request(t.Context(), ask); code(err) != openapi.CodeDenied {
			t.Errorf("on behalf of %s: got %+v, %v, want it denied", name, got, err)
		}
	}
	if got := onBehalf(t, s, given(t, s, "mallory")); got.failed.Error != "access_denied" {
		t.Errorf("got %d %s, want it denied", got.status, got.text)
	}
	s.Know(devstack.DevPerson{Username: "mallory", Groups: []string{"oncall"}})
	if got := onBehalf(t, s, given(t, s, "mallory")); got.status != 200 {
		t.Errorf("once in the group: got %d %s", got.status, got.text)
	}
	s.DB.Check(t)
}

// H97 and others: a token that does not prove, now and to this server, that a person allows sandboxes to act for them is refused
// and recorded. Vault is not asked for anything.
func TestInvalidDelegationIsRefused(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	o := delegating()
	o.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	s := testkit.NewStack(t, o)
	elsewhere := testkit.NewStack(t, o)
	none := testkit.NewStack(t, withPeople)
	good := string(given(t, s, "alice"))
	tampered := strings.Split(good, ".")
	tampered[2] = strings.Split(string(given(t, s, "bob")), ".")[2]
	for name, tc := range map[string]struct {
		s      *testkit.Stack
		token  string
		detail string
		ahead  time.Duration
	}{
		"her login":          {s, s.IDToken(t, "alice"), "id_token_audience", 0},
		"for somebody else":  {s, s.IDTokenFor(t, "https://mail.test", "alice"), "id_token_audience", 0},
		"of another issuer":  {s, string(given(t, elsewhere, "alice")), "id_token_issuer", 0},
		"tampered with":      {s, strings.Join(tampered, "."), "id_token_signature", 0},
		"no token":           {s, "alice", "id_token_malformed", 0},
		"an SVID":            {s, s.JWT(t, agent), "id_token_issuer", 0},
		"expired":            {s, good, "id_token_expired", 10*time.Minute + 6*time.Second},
		"where nobody may":   {none, string(given(t, none, "alice")), "delegation_off", 0},
		"a login, elsewhere": {none, none.IDToken(t, "alice"), "delegation_off", 0},
	} {
		t.Run(name, func(t *testing.T) {
			ahead.Store(int64(tc.ahead))
			defer ahead.Store(0)
			before, signings := entriesOf(t, tc.s), tc.s.Signings(t)
			ask := list
			ask.OnBehalfOf = presented(tc.token)
			if _, err := tc.s.Client(t, agent).Request(t.Context(), ask); code(err) != openapi.CodeInvalidRequest {
				t.Errorf("got %v, want invalid_request", err)
			}
			if got := onBehalf(t, tc.s, presented(tc.token)); got.status != 400 || got.failed.Error != "invalid_request" {
				t.Errorf("by OAuth: got %d %s, want invalid_request", got.status, got.text)
			}
			added := entriesOf(t, tc.s)
			added.skip(before)
			if len(added.requests) != 0 || len(added.refusals) != 2 || tc.s.Signings(t) != signings {
				t.Fatalf("got %+v recorded, want two refusals", added)
			}
			for _, r := range added.refusals {
				if r.Body["detail"] != tc.detail {
					t.Errorf("got the detail %v, want %s", r.Body["detail"], tc.detail)
				}
			}
			keptNowhere(t, tc.s, presented(tc.token))
		})
	}
	for name, more := range map[string][]string{
		"an actor":               {"actor_token", actorToken(t, s, helper), "actor_token_type", jwtURN},
		"no subject token":       {"subject_token", ""},
		"another type of token":  {"requested_token_type", idTokenURN},
		"it as an access token":  {"subject_token_type", accessTokenURN},
		"it of no type":          {"subject_token_type", ""},
		"an ID token as a grant": {"grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion", good},
	} {
		if got := onBehalf(t, s, presented(good), more...); got.status != 400 || got.token.AccessToken != "" {
			t.Errorf("%s: got %d %s, want it refused", name, got.status, got.text)
		}
	}
	s.DB.Check(t)
}

// An ID token next to client_credentials has no effect: the request is on behalf of no person.
func TestClientCredentialsIgnoreAnIDToken(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, delegating())
	if got := onBehalf(t, s, given(t, s, "alice"), "grant_type", "client_credentials"); got.failed.Error != "access_denied" {
		t.Errorf("got %d %s, want it denied", got.status, got.text)
	}
}

// I4 and I5: approvers see on whose behalf the request is, that person cannot vote on it, and the ID token may expire while the
// request waits.
func TestPersonCannotVoteOnTheirOwnRequest(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	o := delegating()
	o.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	s := testkit.NewStack(t, o)
	alice, sandbox := s.Issuer()+"#alice", s.Client(t, agent)
	ask := askFor("vault.notes.write")
	ask.TTL, ask.OnBehalfOf = 15*time.Minute, given(t, s, "alice")
	id := waiting(t, sandbox, ask)
	shown, err := s.Person(t, "alice").Approval(t.Context(), id)
	if err != nil || shown.OnBehalfOf != alice || !strings.Contains(shown.Canonical, `"on_behalf_of":"`+alice+`"`) {
		t.Fatalf("got %+v, %v, want Alice in what is shown", shown, err)
	}
	for _, verdict := range []openapi.Verdict{openapi.VerdictApprove, openapi.VerdictDeny} {
		if _, err := vote(t, s.Person(t, "alice"), id, verdict); code(err) != openapi.CodeOwnRequest {
			t.Errorf("Alice says %s: got %v, want own_request", verdict, err)
		}
	}
	if _, err := vote(t, s.Person(t, "carol"), id, openapi.VerdictApprove); err != nil {
		t.Fatal(err)
	}
	ahead.Store(int64(10*time.Minute + 20*time.Second))
	ask.OnBehalfOf = nil
	got, err := sandbox.Redeem(t.Context(), id, ask)
	if err != nil || got.Token == nil || got.Token.OnBehalfOf != alice || got.Token.TTL > time.Duration(shown.TTL)*time.Second || shown.TTL > 600 {
		t.Fatalf("got %+v, %v, want a token for at most the %d s that were shown", got.Token, err, shown.TTL)
	}
	record, err := sandbox.Issuance(t.Context(), got.Token.ID)
	if err != nil || record.OnBehalfOf != alice || record.Approves != id {
		t.Errorf("got %+v, %v, want it recorded as Alice's", record, err)
	}
	s.DB.Check(t)
}

// An approval and an idempotency key apply only to the person for whom they were used.
func TestApprovalIsNotSharedBetweenPeople(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, delegating())
	sandbox, bob := s.Client(t, agent), s.Person(t, "bob")
	of := func(username string) client.Ask {
		ask := askFor("git.comments.write")
		if username != "" {
			ask.OnBehalfOf = given(t, s, username)
		}
		return ask
	}
	shown, err := bob.Approval(t.Context(), waiting(t, sandbox, of("alice")))
	if err == nil {
		_, err = bob.VoteForTask(t.Context(), shown, "")
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := token(t, sandbox, of("alice")); got.OnBehalfOf != s.Issuer()+"#alice" {
		t.Errorf("got %+v, want the yes to stand for Alice", got)
	}
	waiting(t, sandbox, of("carol"))
	waiting(t, sandbox, of(""))

	ask := list
	ask.OnBehalfOf, ask.IdempotencyKey = given(t, s, "alice"), "key-1"
	token(t, sandbox, ask)
	ask.OnBehalfOf = given(t, s, "alice") // another token of the same person
	if _, err := sandbox.Request(t.Context(), ask); code(err) != openapi.CodeAlreadyIssued {
		t.Errorf("the same person: got %v, want already_issued", err)
	}
	ask.OnBehalfOf = given(t, s, "bob")
	if _, err := sandbox.Request(t.Context(), ask); code(err) != openapi.CodeIdempotencyMismatch {
		t.Errorf("another person: got %v, want idempotency_mismatch", err)
	}
	s.DB.Check(t)
}

// An exchanged token is on behalf of the same person, and policy checks that person again.
func TestExchangedTokenKeepsItsPerson(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, delegating())
	first := onBehalf(t, s, given(t, s, "alice"))
	down := exchangeToken(t, s, agent, first.token.AccessToken, helper)
	if down.status != 200 || down.token.OnBehalfOf.Sub != "alice" {
		t.Fatalf("got %d %s", down.status, down.text)
	}
	claims := tokenOf(t, s, down.token.AccessToken, "https://git.test")
	record, err := s.Client(t, helper).Issuance(t.Context(), claims.ID)
	if err != nil || claims.OnBehalfOf == nil || claims.OnBehalfOf.Subject != "alice" || record.OnBehalfOf != s.Issuer()+"#alice" {
		t.Errorf("got %+v and %+v, %v, want both on behalf of Alice", claims, record, err)
	}
	s.DB.Check(t)
}
