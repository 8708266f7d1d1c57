package httpapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/httpapi"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/google/go-cmp/cmp"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

const (
	jwtSPIFFE   = "urn:ietf:params:oauth:client-assertion-type:jwt-spiffe"
	approvalURN = "urn:brevet:params:grant-type:approval"
	apiDetails  = `[{"type":"git.issues.read","params":{"repo":"acme/api"}}]`
)

// post is one call to an OAuth endpoint.
type post struct {
	path    string // the token endpoint if empty
	svid    *x509svid.SVID
	form    url.Values
	headers []string // names and values, alternating
}

// granted is the response of an OAuth endpoint.
type granted struct {
	status int
	header http.Header
	text   string
	token  openapi.AccessToken
	failed openapi.OAuthError
}

func (p post) send(t *testing.T, s *testkit.Stack) granted {
	t.Helper()
	path := "/oauth2/token"
	if p.path != "" {
		path = p.path
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+path, strings.NewReader(p.form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for i := 0; i < len(p.headers); i += 2 {
		req.Header.Set(p.headers[i], p.headers[i+1])
	}
	caller := s.HTTP(t, nil)
	if p.svid != nil {
		caller = s.HTTP(t, p.svid)
	}
	resp, err := caller.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	got := granted{status: resp.StatusCode, header: resp.Header, text: string(body)}
	if len(body) > 0 && (json.Unmarshal(body, &got.token) != nil || json.Unmarshal(body, &got.failed) != nil) {
		t.Fatalf("got %s, want JSON", body)
	}
	if got.header.Get("Cache-Control") != "no-store" || resp.Header.Get("Request-Id") == "" {
		t.Errorf("got %v, want no-store", got.header)
	}
	return got
}

// formOf returns base with more names and values, alternating. Later values replace earlier ones.
func formOf(base url.Values, more ...string) url.Values {
	out := url.Values{}
	maps.Copy(out, base)
	for i := 0; i < len(more); i += 2 {
		out.Set(more[i], more[i+1])
	}
	return out
}

// reading returns a token request in the form of RFC 6749 and RFC 9396.
func reading(more ...string) url.Values {
	return formOf(url.Values{"grant_type": {"client_credentials"}, "authorization_details": {apiDetails}}, more...)
}

func asserted(t *testing.T, s *testkit.Stack, who string, more ...string) url.Values {
	t.Helper()
	return reading(append([]string{"client_assertion_type", jwtSPIFFE, "client_assertion", s.JWT(t, who)}, more...)...)
}

const jwtBearer = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"

// forEndpoint returns a JWT-SVID of the agent with the URL of one endpoint as the audience.
func forEndpoint(t *testing.T, s *testkit.Stack, path string) string {
	t.Helper()
	token, err := s.Acme.JWTSVID(spiffeid.RequireFromString(agent), testkit.Audience+path)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestGrantsByEitherSVID(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	for name, call := range map[string]post{
		"X.509":                {svid: s.X509(t, agent), form: reading()},
		"X.509 with client_id": {svid: s.X509(t, agent), form: reading("client_id", agent, "client_secret", "")},
		"JWT":                  {form: asserted(t, s, agent)},
		// Clients that do not know SPIFFE send the assertion type of RFC 7523.
		"JWT bearer": {form: asserted(t, s, agent, "client_assertion_type", jwtBearer)},
		"everything that agrees": {form: asserted(t, s, agent, "client_id", agent, "scope", "git.issues.read",
			"resource", "https://git.test", "audience", "https://git.test", "ttl", "60", "task", "t-1", "reason", "because", "unknown", "x",
			"authorization_details", `[{"type":"git.issues.read","actions":["read"],"locations":["https://git.test"],
				"identifier":"git:repo/acme/api","params":{"repo":"acme/api"}}]`)},
	} {
		t.Run(name, func(t *testing.T) {
			got := call.send(t, s)
			if got.status != 200 || got.token.TokenType != "Bearer" || got.token.Scope != "git.issues.read" || got.token.ExpiresIn < 55 {
				t.Fatalf("got %d %s", got.status, got.text)
			}
			want := []openapi.AuthorizationDetail{{
				Type: "git.issues.read", Actions: []string{"read"}, Locations: []string{"https://git.test"},
				Identifier: "git:repo/acme/api", Params: map[string]any{"repo": "acme/api"},
			}}
			if diff := cmp.Diff(want, got.token.AuthorizationDetails); diff != "" {
				t.Errorf("details (-want +got):\n%s", diff)
			}
			claims := verify(t, s, got.token.AccessToken)
			record, err := s.Client(t, agent).Issuance(t.Context(), claims.ID)
			wantTask := call.form.Get("task")
			if wantTask == "" {
				wantTask = "oauth"
			}
			if err != nil || claims.Subject != agent || record.Status != "issued" || record.Task != wantTask {
				t.Errorf("got the claims %+v and the record %+v, %v", claims, record, err)
			}
		})
	}
	s.DB.Check(t)
}

// A scope without parameters needs only its name.
func TestGrantByScopeAlone(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	form := url.Values{"grant_type": {"client_credentials"}, "scope": {"git.issues.list"}}
	if got := (post{svid: s.X509(t, agent), form: form}).send(t, s); got.status != 200 || got.token.Scope != "git.issues.list" {
		t.Errorf("got %d %s", got.status, got.text)
	}
}

// A refusal has an OAuth error, changes nothing, and leaves one entry.
func TestRefusedGrants(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64 // the ledger records at most 50 refusals each second
	now := func() time.Time { return time.Now().Add(time.Duration(calls.Load()) * 30 * time.Millisecond) }
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue, Now: now})
	svid := s.X509(t, agent)
	with := func(more ...string) post { return post{svid: svid, form: reading(more...)} }
	assert := func(more ...string) post { return post{form: asserted(t, s, agent, more...)} }
	details := func(text string) post { return with("authorization_details", text) }
	scope := func(name string) post {
		form := reading("scope", name)
		form.Del("authorization_details")
		return post{svid: svid, form: form}
	}
	twice := func(name string) post {
		p := with(name, "https://git.test")
		p.form.Add(name, "https://git.test")
		return p
	}
	header := func(p post, headers ...string) post { p.headers = headers; return p }
	basic := []string{"Authorization", "Basic YTpi"}
	for name, tc := range map[string]struct {
		call   post
		status int
		error  openapi.OAuthErrorCode
		detail string
	}{
		"no grant type":                     {with("grant_type", ""), 400, "invalid_request", "grant_type"},
		"another grant type":                {with("grant_type", "password"), 400, "unsupported_grant_type", "grant_type"},
		"twice the grant type":              {twice("grant_type"), 400, "invalid_request", "form_repeated"},
		"twice what is unknown":             {twice("x"), 400, "invalid_request", "form_repeated"},
		"two resources":                     {twice("resource"), 400, "invalid_target", "resource"},
		"two audiences":                     {twice("audience"), 400, "invalid_target", "audience"},
		"not UTF-8":                         {with("x", "\xff"), 400, "invalid_request", "form_encoding"},
		"a NUL":                             {with("x", "\x00"), 400, "invalid_request", "form_encoding"},
		"parameters in the query":           {post{path: "/oauth2/token?scope=x", svid: svid, form: reading()}, 400, "invalid_request", "query_unexpected"},
		"JSON":                              {header(with(), "Content-Type", "application/json"), 400, "invalid_request", "content_type"},
		"a compressed body":                 {header(with(), "Content-Encoding", "gzip"), 400, "invalid_request", "content_encoding"},
		"a body that is too large":          {with("x", strings.Repeat("x", 65<<10)), 413, "invalid_request", "body_size"},
		"nobody":                            {post{form: reading()}, 401, "invalid_client", "no_identity"},
		"Basic":                             {header(post{form: reading()}, basic...), 401, "invalid_client", "client_method"},
		"a bearer token":                    {header(post{form: reading()}, "Authorization", "Bearer "+s.JWT(t, agent)), 401, "invalid_client", "client_method"},
		"a client secret":                   {post{form: reading("client_id", agent, "client_secret", "x")}, 401, "invalid_client", "client_method"},
		"two proofs":                        {post{svid: svid, form: asserted(t, s, agent)}, 400, "invalid_request", "client_twice"},
		"Basic besides":                     {header(with(), basic...), 400, "invalid_request", "client_twice"},
		"Basic besides an assertion":        {header(assert(), basic...), 400, "invalid_request", "client_twice"},
		"a secret besides":                  {with("client_secret", "x"), 400, "invalid_request", "client_twice"},
		"another client id":                 {with("client_id", twin), 401, "invalid_client", "client_id"},
		"another asserted client id":        {assert("client_id", twin), 401, "invalid_client", "client_id"},
		"another assertion type":            {assert("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:saml2-bearer"), 401, "invalid_client", "client_assertion_type"},
		"no assertion type":                 {assert("client_assertion_type", ""), 401, "invalid_client", "client_assertion_type"},
		"an assertion for another endpoint": {assert("client_assertion", forEndpoint(t, s, "/oauth2/introspect")), 401, "invalid_client", "svid_audience"},
		// The metadata of another server may name this endpoint as its own, and make its clients send such an assertion (RFC
		// 7523bis).
		"an assertion for the endpoint":       {assert("client_assertion", forEndpoint(t, s, "/oauth2/token")), 401, "invalid_client", "svid_audience"},
		"a bearer assertion for the endpoint": {assert("client_assertion_type", jwtBearer, "client_assertion", forEndpoint(t, s, "/oauth2/token")), 401, "invalid_client", "svid_audience"},
		"an assertion for another":            {assert("client_assertion", audience(t, s)), 401, "invalid_client", "svid_audience"},
		"a malformed assertion":               {assert("client_assertion", "x"), 401, "invalid_client", "svid_malformed"},
		"no scope":                            {scope(""), 400, "invalid_scope", "scope"},
		"two scopes":                          {scope("git.issues.read git.issues.list"), 400, "invalid_scope", "scope"},
		"a malformed scope":                   {scope("../x"), 400, "invalid_scope", "scope"},
		"another scope than details":          {with("scope", "git.issues.list"), 400, "invalid_authorization_details", "authorization_details"},
		"no params":                           {scope("git.issues.read"), 400, "invalid_authorization_details", "params.repo"},
		"another credential":                  {scope("vault.notes.read"), 400, "invalid_scope", "scope"},
		"another resource":                    {with("resource", "https://db.test"), 400, "invalid_target", "audience"},
		"another audience":                    {with("audience", "https://db.test"), 400, "invalid_target", "audience"},
		"a malformed TTL":                     {with("ttl", "1.5"), 400, "invalid_request", "ttl"},
		"a TTL of nothing":                    {with("ttl", "0"), 400, "invalid_request", "ttl"},
		"a malformed task":                    {with("task", "a b"), 400, "invalid_request", "task"},
		"a secret in the reason":              {with("reason", "ghp_0123456789012345678901234567890123456789"), 400, "invalid_request", "reason_secret"},
		"details that are no JSON":            {details(`[{]`), 400, "invalid_authorization_details", "authorization_details"},
		"details that break out":              {details(`[],"x":1`), 400, "invalid_authorization_details", "authorization_details"},
		"details that are no list":            {details(`{"type":"git.issues.read"}`), 400, "invalid_authorization_details", "authorization_details"},
		"no details":                          {details(`[]`), 400, "invalid_authorization_details", "authorization_details"},
		"two details":                         {details(`[{"type":"git.issues.list"},{"type":"git.issues.list"}]`), 400, "invalid_authorization_details", "authorization_details"},
		"details without a type":              {details(`[{"params":{"repo":"acme/api"}}]`), 400, "invalid_authorization_details", "authorization_details"},
		"an unknown field":                    {details(`[{"type":"git.issues.list","privileges":[]}]`), 400, "invalid_authorization_details", "authorization_details"},
		"a field in other case":               {details(`[{"Type":"git.issues.list"}]`), 400, "invalid_authorization_details", "authorization_details"},
		"a field twice":                       {details(`[{"type":"git.issues.list","type":"git.issues.list"}]`), 400, "invalid_authorization_details", "authorization_details"},
		"params that are a list":              {details(`[{"type":"git.issues.list","params":[]}]`), 400, "invalid_authorization_details", "authorization_details"},
		"another param":                       {details(`[{"type":"git.issues.list","params":{"x":1}}]`), 400, "invalid_authorization_details", "params.x"},
		"another action":                      {details(`[{"type":"git.issues.list","actions":["write"]}]`), 400, "invalid_authorization_details", "authorization_details"},
		"more actions":                        {details(`[{"type":"git.issues.list","actions":["read","write"]}]`), 400, "invalid_authorization_details", "authorization_details"},
		"another location":                    {details(`[{"type":"git.issues.list","locations":["https://db.test"]}]`), 400, "invalid_authorization_details", "authorization_details"},
		"another identifier":                  {details(`[{"type":"git.issues.list","identifier":"git:x"}]`), 400, "invalid_authorization_details", "authorization_details"},
		"locations and resource":              {with("resource", "https://git.test", "authorization_details", `[{"type":"git.issues.list","locations":["https://db.test"]}]`), 400, "invalid_target", "resource"},
		"an approval of nothing":              {with("grant_type", approvalURN), 400, "invalid_request", "auth_req_id"},
		"a malformed approval id":             {with("grant_type", approvalURN, "auth_req_id", "x"), 400, "invalid_grant", "auth_req_id"},
		"an approval of nobody's":             {with("grant_type", approvalURN, "auth_req_id", someID), 400, "invalid_grant", "auth_req_id"},
	} {
		t.Run(name, func(t *testing.T) {
			calls.Add(1)
			before, signings := entriesOf(t, s), s.Signings(t)
			got := tc.call.send(t, s)
			if got.status != tc.status || got.failed.Error != tc.error || got.failed.Problem.Status != tc.status || got.failed.ErrorDescription == "" {
				t.Errorf("got %d %s, want %d %s", got.status, got.text, tc.status, tc.error)
			}
			if strings.ContainsFunc(got.failed.ErrorDescription, func(c rune) bool { return c < ' ' || c > '~' || c == '"' || c == '\\' }) {
				t.Errorf("got the description %q", got.failed.ErrorDescription)
			}
			// RFC 6749, section 5.2: the challenge has the scheme that the client used. A client that did not use the header gets
			// none.
			want := ""
			if tc.status == 401 && len(tc.call.headers) > 0 {
				want, _, _ = strings.Cut(tc.call.headers[1], " ")
			}
			if challenge, _, _ := strings.Cut(got.header.Get("WWW-Authenticate"), " "); challenge != want {
				t.Errorf("got WWW-Authenticate: %q, want the scheme %q", challenge, want)
			}
			if cause := httpapi.Causes[tc.detail]; tc.status == 401 && !strings.HasPrefix(got.failed.ErrorDescription, strings.ReplaceAll(cause, `"`, "")) {
				t.Errorf("got the description %q, want %q", got.failed.ErrorDescription, cause)
			}
			added := entriesOf(t, s)
			added.skip(before)
			if len(added.requests) != 0 || len(added.refusals) != 1 || added.refusals[0].Body["detail"] != tc.detail || s.Signings(t) != signings {
				t.Errorf("got %+v recorded, want one refusal with %s", added, tc.detail)
			}
		})
	}
	s.DB.Check(t)
}

// A denial by policy is access_denied, and says how to proceed, like the rest of the API.
func TestDeniedGrants(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	for scope, want := range map[string]struct{ error, reason string }{
		`{"type":"git.issues.read","params":{"repo":"acme/secret"}}`: {"access_denied", "forbidden"},
		`{"type":"git.issues.raed"}`:                                 {"invalid_scope", "unknown_scope"},
	} {
		got := post{svid: s.X509(t, agent), form: reading("authorization_details", "["+scope+"]")}.send(t, s)
		if got.status != 400 || string(got.failed.Error) != want.error || got.failed.Problem.Reason != want.reason ||
			got.failed.Problem.Code != openapi.CodeDenied || got.failed.Problem.ID == "" {
			t.Errorf("%s: got %d %s", scope, got.status, got.text)
		}
		if state, err := s.Client(t, agent).State(t.Context(), got.failed.Problem.ID); err != nil || state.Status != "denied" {
			t.Errorf("got the state %+v, %v", state, err)
		}
	}
	if all := entriesOf(t, s); len(all.requests) != 2 || len(all.refusals) != 0 {
		t.Errorf("got %+v, want the two decisions", all)
	}
}

func TestLimitedGrants(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: limited})
	call := post{svid: s.X509(t, agent), form: reading()}
	for range 2 {
		if got := call.send(t, s); got.status != 200 {
			t.Fatalf("got %d %s", got.status, got.text)
		}
	}
	got := call.send(t, s)
	if got.status != 429 || got.failed.Error != "temporarily_unavailable" || got.failed.Problem.Code != "rate_limited" ||
		got.header.Get("Retry-After") == "" || got.header.Get("RateLimit-Policy") != `"sandbox";q=2;w=3600` {
		t.Errorf("got %d %s with %v", got.status, got.text, got.header)
	}
}

func TestGrantWithoutBundle(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	form := asserted(t, s, foreign)
	s.DropBundle(s.Other.TrustDomain())
	got := post{form: form}.send(t, s)
	if got.status != 503 || got.failed.Error != "temporarily_unavailable" || got.header.Get("Retry-After") == "" {
		t.Errorf("got %d %s", got.status, got.text)
	}
}

func TestPendingGrantIsIssuedOnceApproved(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	ask := reading("authorization_details", `[{"type":"git.issues.write","params":{"repo":"acme/api"}}]`)
	begin := func() string {
		got := post{svid: s.X509(t, agent), form: ask}.send(t, s)
		if got.status != 400 || got.failed.Error != "authorization_pending" || got.failed.Interval != 5 || got.failed.ExpiresIn < 60 {
			t.Fatalf("got %d %s", got.status, got.text)
		}
		return got.failed.AuthReqID
	}
	look := func(on *testkit.Stack, who, id string) granted {
		return post{svid: s.X509(t, who), form: url.Values{"grant_type": {approvalURN}, "auth_req_id": {id}}}.send(t, on)
	}
	want := func(on *testkit.Stack, who, id string, error openapi.OAuthErrorCode) {
		t.Helper()
		if got := look(on, who, id); got.status != 400 || got.failed.Error != error {
			t.Errorf("got %d %s, want %s", got.status, got.text, error)
		}
	}
	id := begin()
	want(s, agent, id, "authorization_pending")
	want(s, agent, id, "slow_down")
	want(s, twin, id, "invalid_grant") // and others are not slowed down
	if _, err := vote(t, s.Person(t, "bob"), id, openapi.VerdictApprove); err != nil {
		t.Fatal(err)
	}
	got := look(s.Replica(t), agent, id) // the other replica was not polled yet
	if got.status != 200 || verify(t, s, got.token.AccessToken).Subject != agent {
		t.Errorf("got %d %s, want a token", got.status, got.text)
	}
	want(s.Replica(t), agent, id, "invalid_grant")

	id = begin()
	if _, err := vote(t, s.Person(t, "bob"), id, openapi.VerdictDeny); err != nil {
		t.Fatal(err)
	}
	want(s, agent, id, "access_denied")

	other := waiting(t, s.Client(t, agent), client.Ask{Scope: "vault.notes.write", Task: "t-1"})
	if _, err := vote(t, s.Person(t, "alice"), other, openapi.VerdictApprove); err != nil {
		t.Fatal(err)
	}
	want(s, agent, other, "invalid_scope")
	s.DB.Check(t)
}

func TestGrantThatNobodyDecides(t *testing.T) {
	t.Parallel()
	o := withPeople
	o.Ledger = func(l broker.Ledger) broker.Ledger { return brief{l} }
	s := testkit.NewStack(t, o)
	svid := s.X509(t, agent)
	got := post{svid: svid, form: reading("authorization_details", `[{"type":"git.repo.delete","params":{"repo":"acme/api"}}]`)}.send(t, s)
	look := post{svid: svid, form: url.Values{"grant_type": {approvalURN}, "auth_req_id": {got.failed.AuthReqID}}}
	eventually(t, func() error { // some polls get slow_down
		if got := look.send(t, s); got.failed.Error != "expired_token" {
			return errors.New(got.text)
		}
		return nil
	})
}

// A generic OAuth library works without changes.
func TestClientCredentialsLibrary(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	ctx := context.WithValue(t.Context(), oauth2.HTTPClient, s.HTTP(t, s.X509(t, agent)))
	for _, style := range []oauth2.AuthStyle{oauth2.AuthStyleInParams, oauth2.AuthStyleAutoDetect} {
		cfg := clientcredentials.Config{ClientID: agent, TokenURL: s.URL + "/oauth2/token", Scopes: []string{"git.issues.list"}, AuthStyle: style}
		token, err := cfg.Token(ctx)
		if err != nil {
			t.Fatalf("style %d: %v", style, err)
		}
		if verify(t, s, token.AccessToken).Subject != agent || token.Type() != "Bearer" || time.Until(token.Expiry) < 4*time.Minute {
			t.Errorf("style %d: got %+v", style, token)
		}
		cfg.Scopes = []string{"ssh.login.open"}
		var refused *oauth2.RetrieveError
		if _, err := cfg.Token(ctx); !errors.As(err, &refused) || refused.ErrorCode != "invalid_authorization_details" {
			t.Errorf("style %d: got %v", style, err)
		}
	}
}
