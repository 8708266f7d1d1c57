package httpapi_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/go-cmp/cmp"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

const (
	gateway  = "spiffe://acme.test/gateways/git"
	otherWay = "spiffe://other.test/gateways/pay"
)

// gated is a catalogue whose tokens are for services behind a gateway.
var gated = []scopes.File{{Name: "scopes.yaml", Data: []byte(`scopes:
  - name: git.issues.read
    title: Read issues
    authority: read
    params:
      repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+', max_length: 100}
    resource: git:repo/{repo}
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://git.test}
    egress: [{hosts: [api.git.test], methods: [GET], paths: ['/repos/{repo}/issues', '/repos/{repo}/issues/*']}]
  - name: git.issues.own
    title: Read issues with the key that asked
    authority: read
    resource: git:issues
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://git.test, bind: mtls}
    egress: [{hosts: [api.git.test], methods: [GET, POST], paths: [/issues]}]
  - name: git.issues.proved
    title: Read issues with proofs by one key
    authority: read
    resource: git:issues
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://git.test, algorithm: EdDSA, bind: dpop}
    egress: [{hosts: [api.git.test], methods: [GET], paths: [/issues, /other]}]
  - name: git.issues.once
    title: Read issues once
    authority: read
    resource: git:issues
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://git.test, algorithm: EdDSA, uses: 1}
    egress: [{hosts: [api.git.test], methods: [GET], paths: [/issues]}]
  - name: git.issues.inside
    title: Read issues, but behind no gateway
    authority: read
    resource: git:issues
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://git.test}
`)}, {Name: "policies.cedar", Data: []byte(`@id("all") permit (principal, action, resource);`)}}

var guarded = testkit.Options{
	Catalogue: gated, Applied: true, Admins: []string{admin}, Orchestrators: []string{runtime}, CatalogueAdmins: []string{chief},
	ResourceServers: map[string][]string{gateway: {"https://git.test"}, otherWay: {"https://pay.test"}},
}

var readIssues = client.Ask{Scope: "git.issues.read", Params: map[string]any{"repo": "acme/api"}, Task: "triage-1"}

// held is a call that a gateway asks about. Zero fields have the values of a call that may pass.
type held struct {
	method, host, target string
	token                string
	caller               *x509svid.SVID // whose certificate the gateway has seen
	by                   *x509svid.SVID // the gateway
	more                 []string       // further headers
}

func or(v, otherwise string) string {
	if v == "" {
		return otherwise
	}
	return v
}

// filled returns the call with defaults for its zero fields.
func (h held) filled(t *testing.T, s *testkit.Stack) held {
	t.Helper()
	h.method, h.host, h.target = or(h.method, "GET"), or(h.host, "api.git.test"), or(h.target, "/repos/acme/api/issues?page=2")
	if h.token == "" {
		h.token = "Bearer " + token(t, s.Client(t, agent), readIssues).Secret.Reveal()
	}
	if h.by == nil {
		h.by = s.X509(t, gateway)
	}
	return h
}

// asNginx returns the check that nginx sends with the configuration in deploy.
func (h held) asNginx(t *testing.T, s *testkit.Stack) wire {
	h = h.filled(t, s)
	headers := []string{"X-Original-Method: " + h.method, "X-Original-URI: " + h.target, "X-Original-Host: " + h.host}
	if h.caller != nil {
		headers = append(headers, "X-Client-Cert: "+escapedPEM(h.caller))
	}
	return wire{method: "GET", target: "/v1/check", auth: h.token, svid: h.by, headers: append(headers, h.more...)}
}

func escapedPEM(svid *x509svid.SVID) string {
	return url.PathEscape(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: svid.Certificates[0].Raw})))
}

// asTraefik returns the check that Traefik's forwardAuth sends: the headers of the call, and Traefik's own about it.
func (h held) asTraefik(t *testing.T, s *testkit.Stack) wire {
	h = h.filled(t, s)
	headers := []string{
		"User-Agent: curl/8", "Accept-Encoding: gzip", "X-Forwarded-For: 203.0.113.7", "X-Forwarded-Host: " + h.host,
		"X-Forwarded-Method: " + h.method, "X-Forwarded-Port: 443", "X-Forwarded-Proto: https", "X-Forwarded-Server: edge-1",
		"X-Forwarded-Uri: " + h.target, "X-Real-Ip: 203.0.113.7",
	}
	if h.caller != nil {
		der := base64.StdEncoding.EncodeToString(h.caller.Certificates[0].Raw)
		headers = append(headers, "X-Forwarded-Tls-Client-Cert: "+der+","+base64.StdEncoding.EncodeToString([]byte("an intermediate")))
	}
	return wire{method: "GET", target: "/v1/check", auth: h.token, svid: h.by, headers: append(headers, h.more...)}
}

// asEnvoy returns the check that Envoy's HTTP ext_authz sends: the call itself without its body, below a prefix.
func (h held) asEnvoy(t *testing.T, s *testkit.Stack) wire {
	h = h.filled(t, s)
	var headers []string
	if h.method == "POST" {
		headers = []string{"Content-Type: application/json"}
	}
	if h.caller != nil {
		sum := sha256.Sum256(h.caller.Certificates[0].Raw)
		headers = append(headers, "x-forwarded-client-cert: By="+gateway+";Hash="+hex.EncodeToString(sum[:]))
	}
	return wire{
		method: h.method, target: "/v1/check" + h.target, host: h.host, auth: h.token, svid: h.by, body: nothing,
		headers: append(headers, h.more...),
	}
}

var shapes = map[string]func(held, *testing.T, *testkit.Stack) wire{
	"nginx": held.asNginx, "Traefik": held.asTraefik, "Envoy": held.asEnvoy,
}

func TestCheckAcceptsEveryGatewayFormat(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, guarded)
	own := s.X509(t, agent)
	c := s.ClientWith(t, own)
	plain := token(t, c, readIssues)
	bound := token(t, c, client.Ask{Scope: "git.issues.own", Task: "triage-1"})
	before := entriesOf(t, s)
	for name, shape := range shapes {
		got := shape(held{token: "Bearer " + plain.Secret.Reveal()}, t, s).send(t, s)
		want := map[string]string{
			"X-Brevet-Subject": agent, "X-Brevet-Actor": agent, "X-Brevet-Task": "triage-1", "X-Brevet-Scope": "git.issues.read", "X-Brevet-Issuance": plain.ID, "Cache-Control": "no-store",
		}
		for header, value := range want {
			if got.status != 200 || got.text != "" || got.header.Get(header) != value {
				t.Errorf("%s: got %d %q and %s %q, want 200 and %q", name, got.status, got.text, header, got.header.Get(header), value)
			}
		}
		for _, call := range []held{
			{token: "bearer " + bound.Secret.Reveal(), target: "/issues", caller: own},
			{token: "Bearer " + bound.Secret.Reveal(), target: "/issues", caller: own, method: "POST"},
		} {
			if got := shape(call, t, s).send(t, s); got.status != 200 {
				t.Errorf("%s: got %d %s for a bound token, want 200", name, got.status, got.text)
			}
		}
	}
	added := entriesOf(t, s)
	added.skip(before)
	if len(added.requests)+len(added.refusals) != 0 {
		t.Errorf("got %+v recorded of calls that passed", added)
	}
	metrics := httptest.NewRecorder()
	s.Server.Metrics().ServeHTTP(metrics, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if text := metrics.Body.String(); !strings.Contains(text, `brevet_checks_total{outcome="allowed"} 9`) {
		t.Error("the metric does not count 9 calls allowed")
	}
}

// seconds is how far the clock is ahead. Each second, one call of each kind without a token of the issuer is recorded.
type seconds struct{ n atomic.Int64 }

func (s *seconds) after(t time.Time) time.Time { return t.Add(time.Duration(s.n.Load()) * time.Second) }

func TestCheckRefusesInvalidCalls(t *testing.T) {
	t.Parallel()
	ahead, o := new(seconds), guarded
	o.Now = func() time.Time { return ahead.after(time.Now()) }
	s := testkit.NewStack(t, o)
	own, stranger := s.X509(t, agent), s.X509(t, twin)
	c := s.ClientWith(t, own)
	bound := "Bearer " + token(t, c, client.Ask{Scope: "git.issues.own", Task: "triage-1"}).Secret.Reveal()
	inside := "Bearer " + token(t, c, client.Ask{Scope: "git.issues.inside", Task: "triage-1"}).Secret.Reveal()
	plain := "Bearer " + token(t, c, readIssues).Secret.Reveal()
	spoiled := plain[:len(plain)-6] + "AAAAAA"
	const paths = "no egress rule for this host and method matches this path with the parameters of the token; the rules allow /repos/{repo}/issues, /repos/{repo}/issues/*"
	for _, tc := range []struct {
		name         string
		call         held
		status       int
		code, detail string
		why          string // in the challenge, if there is one
	}{
		{"no token", held{token: "none"}, 401, "invalid_token", "token_missing", ""},
		{"a password", held{token: "Basic YTpi"}, 401, "invalid_token", "authorization_malformed", "The Authorization header must be Bearer or DPoP, followed by one token."},
		{"an SVID", held{token: "Bearer " + s.JWT(t, agent)}, 401, "invalid_token", "token_malformed", "The token is not an access token of this issuer."},
		{"another signature", held{token: spoiled}, 401, "invalid_token", "token_signature", "The token is not an access token of this issuer."},
		{"two tokens", held{token: plain, more: []string{"Authorization: " + plain}}, 401, "invalid_token", "authorization_malformed", "The Authorization header must be Bearer or DPoP, followed by one token."},
		{"another method", held{token: plain, method: "DELETE"}, 403, "insufficient_scope", "egress", "no egress rule for this host allows this method; the rules allow GET"},
		{"another host", held{token: plain, host: "git.test"}, 403, "insufficient_scope", "egress", "no egress rule covers this host; the rules cover api.git.test"},
		{"another repository", held{token: plain, target: "/repos/acme/web/issues"}, 403, "insufficient_scope", "egress", paths},
		{"a way up", held{token: plain, target: "/repos/acme/api/issues/.."}, 403, "insufficient_scope", "egress", "the path has a . or .. segment"},
		{"an escaped slash", held{token: plain, target: "/repos/acme%2fapi/issues"}, 403, "insufficient_scope", "egress", "the path has an escaped control character, slash, backslash, percent sign, question mark, hash or semicolon"},
		{"two slashes", held{token: plain, target: "//repos/acme/api/issues"}, 403, "insufficient_scope", "egress", "the path has an empty segment"},
		{"no rules", held{token: inside}, 403, "insufficient_scope", "egress", "the scope has no egress rules, so no gateway accepts its tokens"},
		{"a bound token without a certificate", held{token: bound, target: "/issues"}, 401, "invalid_token", "token_binding", "The token is bound to a key that the caller did not prove."},
		{"a bound token with another's certificate", held{token: bound, target: "/issues", caller: stranger}, 401, "invalid_token", "token_binding", "The token is bound to a key that the caller did not prove."},
		{"a bound token with the gateway's certificate", held{token: bound, target: "/issues", caller: s.X509(t, gateway)}, 401, "invalid_token", "token_binding", "The token is bound to a key that the caller did not prove."},
		{"a gateway for others", held{token: plain, by: s.X509(t, otherWay)}, 401, "invalid_token", "token_audience", "The token is for another audience."},
		{"a sandbox that asks", held{token: plain, by: own}, 403, "not_allowed", "role", ""},
	} {
		for name, shape := range shapes {
			ahead.n.Add(1)
			before := entriesOf(t, s)
			got := shape(tc.call, t, s).send(t, s)
			if got.status != tc.status || got.code != tc.code {
				t.Errorf("%s by %s: got %d %s, want %d %s", tc.name, name, got.status, got.text, tc.status, tc.code)
			}
			want := ""
			switch {
			case tc.why != "":
				want = fmt.Sprintf(`Bearer error=%q, error_description=%q`, tc.code, tc.why)
			case tc.status == 401:
				want = "Bearer"
			}
			if tc.status == 401 {
				want += `, DPoP algs="ES256 ES384 EdDSA Ed25519"`
			}
			if challenge := got.header.Get("WWW-Authenticate"); challenge != want {
				t.Errorf("%s by %s: got the challenge %s, want %s", tc.name, name, challenge, want)
			}
			added := entriesOf(t, s)
			added.skip(before)
			if len(added.refusals) != 1 || len(added.requests) != 0 || added.refusals[0].Body["detail"] != tc.detail || added.refusals[0].Body["operation"] != "checkCall" {
				t.Errorf("%s by %s: got %+v recorded, want one refusal for %s", tc.name, name, added, tc.detail)
			}
		}
	}
	s.DB.Check(t)
}

// I12: calls without a valid token leave one entry a second of each kind, with an exact count, and never hide a call with a token.
func TestCheckSamplesCallsWithoutAToken(t *testing.T) {
	t.Parallel()
	var stopped atomic.Int64 // when the clock stopped; zero while certificates are made
	ahead, o := new(seconds), guarded
	o.Now = func() time.Time {
		if at := stopped.Load(); at != 0 {
			return ahead.after(time.Unix(0, at))
		}
		return time.Now()
	}
	s := testkit.NewStack(t, o)
	plain := "Bearer " + token(t, s.Client(t, agent), readIssues).Secret.Reveal()
	asking := s.X509(t, gateway)
	before := entriesOf(t, s)
	stopped.Store(time.Now().UnixNano())
	for range 20 {
		for _, token := range []string{"none", "Bearer x", plain[:len(plain)-6] + "AAAAAA"} {
			checks(t, token, s, held{token: token, by: asking}, 401, "invalid_token")
		}
		checks(t, "elsewhere", s, held{token: plain, target: "/", by: asking}, 403, "insufficient_scope")
	}
	ahead.n.Add(1)
	checks(t, "later", s, held{token: "Bearer x", by: asking}, 401, "invalid_token")
	added := entriesOf(t, s)
	added.skip(before)
	got := map[any]int{}
	for _, refusal := range added.refusals {
		got[refusal.Body["detail"]] += 1 + int(refusal.Body["suppressed"].(float64))
	}
	want := map[any]int{"token_missing": 1, "token_malformed": 21, "token_signature": 1, "egress": 20}
	if diff := cmp.Diff(want, got); diff != "" || len(added.refusals) != 24 {
		t.Errorf("got %d entries, want 24 (-want +got):\n%s", len(added.refusals), diff)
	}
	metrics := httptest.NewRecorder()
	s.Server.Metrics().ServeHTTP(metrics, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if !strings.Contains(metrics.Body.String(), `brevet_checks_total{outcome="invalid_token"} 61`) {
		t.Error("the metric does not count 61 calls without a token")
	}
}

// H29: a forwarded call is checked only for a gateway that proves itself by its certificate, and only if the description has one
// meaning.
func TestCheckRefusesAmbiguousCalls(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, guarded)
	plain := "Bearer " + token(t, s.Client(t, agent), readIssues).Secret.Reveal()
	good := held{token: plain}
	with := func(w wire, headers ...string) wire {
		w.headers = append(slices.Clone(w.headers), headers...)
		return w
	}
	without := func(w wire, prefix string) wire {
		w.headers = slices.DeleteFunc(slices.Clone(w.headers), func(h string) bool { return strings.HasPrefix(h, prefix) })
		return w
	}
	nginx, traefik, envoy := good.asNginx(t, s), good.asTraefik(t, s), good.asEnvoy(t, s)
	query := nginx
	query.target = "/v1/check?x=1"
	for name, call := range map[string]wire{
		"in no way":                     {method: "GET", target: "/v1/check", auth: plain, svid: nginx.svid},
		"with a host alone":             {method: "GET", target: "/v1/check", auth: plain, svid: nginx.svid, headers: []string{"X-Forwarded-Host: api.git.test"}},
		"nginx's and Traefik's":         with(traefik, nginx.headers...),
		"Traefik's, and a bit of nginx": with(traefik, "X-Original-URI: /repos/acme/api/issues"),
		"Envoy's and nginx's":           with(envoy, nginx.headers...),
		"Envoy's and Traefik's":         with(envoy, "X-Forwarded-Method: GET"),
		"no method":                     without(nginx, "X-Original-Method"),
		"no host":                       without(nginx, "X-Original-Host"),
		"no forwarded host":             without(traefik, "X-Forwarded-Host"),
		"an empty target":               with(without(nginx, "X-Original-URI"), "X-Original-URI: "),
		"two targets":                   with(nginx, "X-Original-URI: /repos/acme/web/issues"),
		"two methods alike":             with(nginx, "X-Original-Method: GET"),
		"two forwarded hosts":           with(traefik, "X-Forwarded-Host: api.git.test"),
		"a query":                       query,
		"no certificate that is one":    with(nginx, "X-Client-Cert: x"),
		"two certificates":              with(nginx, "X-Client-Cert: "+escapedPEM(nginx.svid), "X-Client-Cert: "+escapedPEM(nginx.svid)),
		"two certificates in one":       with(nginx, "X-Client-Cert: "+escapedPEM(nginx.svid)+escapedPEM(nginx.svid)),
		"an empty certificate":          with(traefik, "X-Forwarded-Tls-Client-Cert: "),
		"two hashes":                    with(envoy, "X-Forwarded-Client-Cert: Hash="+strings.Repeat("0", 64)+";Hash="+strings.Repeat("1", 64)),
		"two elements":                  with(envoy, "X-Forwarded-Client-Cert: By=a;Hash="+strings.Repeat("0", 64)+",By=b"),
		"a hash in a subject":           with(envoy, `X-Forwarded-Client-Cert: Subject="a;Hash=`+strings.Repeat("0", 64)+`"`),
		"no hash":                       with(envoy, "X-Forwarded-Client-Cert: By=a"),
	} {
		if got := call.send(t, s); got.status != 403 || got.code != "not_allowed" {
			t.Errorf("%s: got %d %s, want 403", name, got.status, got.text)
		}
	}
	// A gateway that forwards all headers also forwards headers that the caller forged. They change nothing.
	bound := "Bearer " + token(t, s.Client(t, agent), client.Ask{Scope: "git.issues.own", Task: "t"}).Secret.Reveal()
	for name, call := range map[string]wire{
		"nginx's field by Traefik": with(held{token: bound, target: "/issues"}.asTraefik(t, s), "X-Client-Cert: "+escapedPEM(s.X509(t, agent))),
		"Envoy's field by Traefik": with(held{token: bound, target: "/issues"}.asTraefik(t, s), "X-Forwarded-Client-Cert: Hash="+strings.Repeat("0", 64)),
	} {
		if got := call.send(t, s); got.status != 401 {
			t.Errorf("%s: got %d %s, want 401", name, got.status, got.text)
		}
	}
	for name, call := range map[string]wire{"nobody": nginx, "Envoy's nobody": envoy} {
		call.svid = nil
		if got := call.send(t, s); got.status != 403 || got.code != "not_allowed" {
			t.Errorf("%s: got %d %s, want 403", name, got.status, got.text)
		}
		call.auth = "Bearer " + s.JWT(t, gateway)
		if got := call.send(t, s); got.status != 403 || got.code != "not_allowed" {
			t.Errorf("%s with a JWT-SVID: got %d %s, want 403", name, got.status, got.text)
		}
	}
}

// H106: however a token ends, every replica refuses it at once.
func TestCheckRefusesEndedTokens(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, guarded)
	replica := s.Replica(t)
	for name, end := range map[string]func(*client.Token) error{
		"released": func(tok *client.Token) error {
			_, err := s.Client(t, agent).Release(t.Context(), tok.ID)
			return err
		},
		"revoked": func(tok *client.Token) error {
			_, err := s.Client(t, admin).Revoke(t.Context(), client.Selection{ID: tok.ID}, "x")
			return err
		},
		"task-ended": func(*client.Token) error {
			_, err := s.Client(t, runtime).EndTask(t.Context(), "task-ended", client.TaskEnd{SPIFFEID: agent})
			return err
		},
		"quarantined": func(*client.Token) error {
			_, err := s.Client(t, admin).Quarantine(t.Context(), "spiffe://acme.test/agents", "x")
			return errors.Join(err, s.Client(t, admin).Unquarantine(t.Context(), "spiffe://acme.test/agents", "x"))
		},
	} {
		ask := readIssues
		ask.Task = name
		tok := token(t, s.Client(t, agent), ask)
		call := held{token: "Bearer " + tok.Secret.Reveal()}
		checks(t, name+", before", replica, call, 200, "")
		if err := end(tok); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		checks(t, name, replica, call, 401, "invalid_token")
		checks(t, name, s, call, 401, "invalid_token")
	}
}

// H105: a replica that has not noticed a catalogue change still checks by the new catalogue.
func TestCheckByTheCatalogueInForce(t *testing.T) {
	t.Parallel()
	o := guarded
	o.Applied = false
	s := testkit.NewStack(t, o)
	if _, err := broker.OpenCatalogue(t.Context(), s.DB.Ledger(t), gated, time.Now(), slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	lagging := s.Replica(t)
	call := held{token: "Bearer " + token(t, s.Client(t, agent), readIssues).Secret.Reveal()}
	checks(t, "before", lagging, call, 200, "")
	apply(t, s.Client(t, chief), changed(t, gated, "'/repos/{repo}/issues', ", ""))
	checks(t, "narrowed", lagging, call, 403, "insufficient_scope")
	call.target = "/repos/acme/api/issues/1"
	checks(t, "narrowed, elsewhere", lagging, call, 200, "")
	apply(t, s.Client(t, chief), changed(t, gated, "git.issues.read", "git.issues.look"))
	checks(t, "scope gone", lagging, call, 403, "insufficient_scope")
}

func checks(t *testing.T, name string, s *testkit.Stack, call held, status int, code string) {
	t.Helper()
	if got := call.asNginx(t, s).send(t, s); got.status != status || got.code != code {
		t.Errorf("%s: got %d %s, want %d %s", name, got.status, got.text, status, code)
	}
}

func TestCheckRefusesExpiredTokens(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	o := guarded
	o.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	s := testkit.NewStack(t, o)
	call := held{token: "Bearer " + token(t, s.Client(t, agent), readIssues).Secret.Reveal()}
	if got := call.asNginx(t, s).send(t, s); got.status != 200 {
		t.Fatalf("got %d %s, want 200", got.status, got.text)
	}
	ahead.Store(int64(5*time.Minute + time.Second))
	if got := call.asNginx(t, s).send(t, s); got.status != 401 || !strings.Contains(got.header.Get("WWW-Authenticate"), "The token has expired.") {
		t.Errorf("got %d %s, want 401", got.status, got.text)
	}
}

// Without its store, a check lets no call pass.
func TestCheckWithoutTheStore(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, guarded)
	call := held{token: "Bearer " + token(t, s.Client(t, agent), readIssues).Secret.Reveal()}.asNginx(t, s)
	exec(t, s, "REVOKE SELECT ON task_ends FROM brevet_broker")
	if got := call.send(t, s); got.status != 503 || got.code != "ledger_unavailable" || got.header.Get("Retry-After") == "" {
		t.Errorf("got %d %s, want 503", got.status, got.text)
	}
}

// provedToken returns a token that requires proofs by the key.
func provedToken(t *testing.T, s *testkit.Stack, key *dpop.Signer) string {
	t.Helper()
	return token(t, s.Client(t, agent), client.Ask{Scope: "git.issues.proved", Task: "t-1", Signer: key}).Secret.Reveal()
}

// H17: a proof is for one call, one token, and the key that the token is bound to. It lets one call pass, on any replica.
func TestCheckAcceptsEachDPoPProofOnce(t *testing.T) {
	t.Parallel()
	ahead, o := new(seconds), guarded
	o.Now = func() time.Time { return ahead.after(time.Now()) }
	s := testkit.NewStack(t, o)
	replica := s.Replica(t)
	key, stranger := signer(t), signer(t)
	bound, other := provedToken(t, s, key), provedToken(t, s, key)
	unbound := token(t, s.Client(t, agent), client.Ask{Scope: "git.issues.once", Task: "t-1"}).Secret.Reveal()
	const here = "https://api.git.test/issues"
	proof := func(r dpop.Request) string { return "DPoP: " + proofFor(t, key, r) }
	good := dpop.Request{Method: "GET", URL: here, Token: bound}
	for name, tc := range map[string]struct {
		scheme, token string
		proofs        []string
		code, detail  string
	}{
		"as a bearer token":      {"Bearer", bound, []string{proof(good)}, "invalid_token", "token_binding"},
		"no proof":               {"DPoP", bound, nil, "invalid_dpop_proof", "proof_missing"},
		"two proofs":             {"DPoP", bound, []string{proof(good), proof(good)}, "invalid_dpop_proof", "proof_malformed"},
		"another method":         {"DPoP", bound, []string{proof(dpop.Request{Method: "POST", URL: here, Token: bound})}, "invalid_dpop_proof", "proof_method"},
		"another path":           {"DPoP", bound, []string{proof(dpop.Request{Method: "GET", URL: "https://api.git.test/other", Token: bound})}, "invalid_dpop_proof", "proof_url"},
		"another host":           {"DPoP", bound, []string{proof(dpop.Request{Method: "GET", URL: "https://git.test/issues", Token: bound})}, "invalid_dpop_proof", "proof_url"},
		"without TLS":            {"DPoP", bound, []string{proof(dpop.Request{Method: "GET", URL: "http://api.git.test/issues", Token: bound})}, "invalid_dpop_proof", "proof_url"},
		"for Brevet":             {"DPoP", bound, []string{proof(dpop.Request{Method: "GET", URL: s.URL + "/v1/check", Token: bound})}, "invalid_dpop_proof", "proof_url"},
		"with another token":     {"DPoP", bound, []string{proof(dpop.Request{Method: "GET", URL: here, Token: other})}, "invalid_dpop_proof", "proof_token"},
		"without a token":        {"DPoP", bound, []string{proof(dpop.Request{Method: "GET", URL: here})}, "invalid_dpop_proof", "proof_token"},
		"by another key":         {"DPoP", bound, []string{"DPoP: " + proofFor(t, stranger, good)}, "invalid_token", "token_binding"},
		"for a token of no key":  {"DPoP", unbound, []string{proof(dpop.Request{Method: "GET", URL: here, Token: unbound})}, "invalid_token", "token_binding"},
		"of a token that is not": {"DPoP", "x", []string{proof(good)}, "invalid_token", "token_malformed"},
	} {
		for manner, shape := range shapes {
			ahead.n.Add(1)
			before := entriesOf(t, s)
			got := shape(held{token: tc.scheme + " " + tc.token, target: "/issues", more: tc.proofs}, t, s).send(t, s)
			if got.status != 401 || got.code != tc.code || !strings.HasPrefix(got.header.Get("WWW-Authenticate"), tc.scheme+` error="`+tc.code+`"`) {
				t.Errorf("%s by %s: got %d %s %s, want 401 %s", name, manner, got.status, got.text, got.header.Get("WWW-Authenticate"), tc.code)
			}
			added := entriesOf(t, s)
			added.skip(before)
			if len(added.refusals) != 1 || added.refusals[0].Body["detail"] != tc.detail {
				t.Errorf("%s by %s: got %+v recorded, want a refusal for %s", name, manner, added, tc.detail)
			}
		}
	}
	for manner, shape := range shapes {
		call := held{token: "DPoP " + bound, target: "/issues?page=2", more: []string{proof(good)}}
		wrong := call
		wrong.target = "/issues/1"
		wrong.more = []string{proof(dpop.Request{Method: "GET", URL: here + "/1", Token: bound})}
		if got := shape(wrong, t, s).send(t, s); got.status != 403 || !strings.HasPrefix(got.header.Get("WWW-Authenticate"), `DPoP error="insufficient_scope"`) {
			t.Errorf("by %s: got %d %s elsewhere, want 403", manner, got.status, got.text)
		}
		if got := shape(call, t, s).send(t, s); got.status != 200 {
			t.Errorf("by %s: got %d %s, want 200", manner, got.status, got.text)
		}
		for _, at := range []*testkit.Stack{s, replica} {
			if got := shape(call, t, at).send(t, at); got.status != 401 || !strings.Contains(got.header.Get("WWW-Authenticate"), "the proof was used before") {
				t.Errorf("by %s: got %d %s for the same proof, want 401", manner, got.status, got.text)
			}
		}
	}
	if got := (held{token: "Bearer " + unbound, target: "/issues"}).asNginx(t, s).send(t, s); got.status != 200 {
		t.Errorf("got %d %s for the token that proofs were shown for, want 200: nothing has used it", got.status, got.text)
	}
	s.DB.Check(t)
}

// H17: a one-shot token lets one call pass, and a refused call does not use it up.
func TestCheckSpendsOneShotTokens(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, guarded)
	replicas := []*testkit.Stack{s, s.Replica(t)}
	call := held{token: "Bearer " + token(t, s.Client(t, agent), client.Ask{Scope: "git.issues.once", Task: "t-1"}).Secret.Reveal(), target: "/elsewhere"}
	checks(t, "elsewhere", s, call, 403, "insufficient_scope")
	call.target = "/issues"
	var passed atomic.Int64
	var wg sync.WaitGroup
	for n := range 8 {
		at := replicas[n%2]
		shaped := call.asNginx(t, at)
		wg.Go(func() {
			switch got := shaped.send(t, at); got.status {
			case 200:
				passed.Add(1)
			case 401:
			default:
				t.Errorf("got %d %s", got.status, got.text)
			}
		})
	}
	wg.Wait()
	if passed.Load() != 1 {
		t.Errorf("%d calls passed, want 1", passed.Load())
	}
	s.DB.Check(t)
}
