package httpapi_test

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/brevet-dev/brevet/scopes/egressrule"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// Host names in deploy/gateways/nginx.conf.
const serviceName, brevetName = "api.git.acme.example", "brevet.acme.example"

// edge is a real nginx with that configuration, in front of a service that records the requests that reach it.
type edge struct {
	addr    string
	stack   *testkit.Stack
	brevet  *http.Server
	service *service
}

type service struct {
	mu   sync.Mutex
	seen []*http.Request
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, r)
	_, _ = io.WriteString(w, "served")
}

// taken returns the requests since the last call of taken.
func (s *service) taken() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.seen
	s.seen = nil
	return seen
}

// webCertificate returns a self-signed certificate.
func webCertificate(t *testing.T, name string) (tls.Certificate, []byte, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	secret := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
	pair, err := tls.X509KeyPair(chain, secret)
	if err != nil {
		t.Fatal(err)
	}
	return pair, chain, secret
}

func newEdge(t *testing.T, s *testkit.Stack) *edge {
	t.Helper()
	e := &edge{stack: s, service: &service{}}
	upstream := httptest.NewServer(e.service)
	t.Cleanup(upstream.Close)
	pair, chain, _ := webCertificate(t, brevetName)
	brevet, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e.brevet = s.Server.HTTP(s.Config.Attestor.TLSConfig(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil }))
	ended := make(chan error, 1)
	go func() { ended <- e.brevet.ServeTLS(brevet, "", "") }()
	t.Cleanup(func() { _ = e.brevet.Close(); <-ended })

	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e.addr = listener.Addr().String()
	site, err := os.ReadFile("../../deploy/gateways/nginx.conf")
	if err != nil {
		t.Fatal(err)
	}
	_, own, ownKey := webCertificate(t, serviceName)
	svid, svidKey, err := s.X509(t, gateway).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close() // nginx takes this port
	testkit.Nginx(t, map[string][]byte{
		"gateway.pem": own, "gateway-key.pem": ownKey, "svid.pem": svid, "svid-key.pem": svidKey, "brevet-ca.pem": chain,
		"site.conf": []byte(strings.NewReplacer(
			"127.0.0.1:8443", brevet.Addr().String(), "127.0.0.1:9000", upstream.Listener.Addr().String(), "127.0.0.1:8444", e.addr,
		).Replace(string(site))),
	})
	return e
}

// through is a call that a sandbox sends to the gateway. Zero fields have the values of a call that passes.
type through struct {
	line   string // the request line
	host   string
	token  string // the value of Authorization
	caller *x509svid.SVID
	more   []string
}

func (c through) send(t *testing.T, e *edge) answer {
	t.Helper()
	cfg := &tls.Config{InsecureSkipVerify: true, ServerName: serviceName, MinVersion: tls.VersionTLS12}
	if c.caller != nil {
		cfg.Certificates = []tls.Certificate{{Certificate: [][]byte{c.caller.Certificates[0].Raw}, PrivateKey: c.caller.PrivateKey}}
	}
	conn, err := (&tls.Dialer{Config: cfg}).DialContext(t.Context(), "tcp", e.addr)
	if err != nil {
		t.Fatalf("connecting to nginx: %v", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	lines := []string{or(c.line, "GET /repos/acme/api/issues HTTP/1.1"), "Host: " + or(c.host, serviceName), "Connection: close"}
	if c.token != "" {
		lines = append(lines, "Authorization: "+c.token)
	}
	if _, err := io.WriteString(conn, strings.Join(append(lines, c.more...), "\r\n")+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	method, _, _ := strings.Cut(lines[0], " ")
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%s: %v", lines[0], err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{status: response.StatusCode, header: response.Header, text: string(body)}
}

// edged returns options with the host of the configuration, and a scope for an audience that the gateway does not serve.
func edged(t *testing.T) testkit.Options {
	o := guarded
	o.Catalogue = changed(t, gated, "api.git.test", serviceName)
	o.Catalogue[0].Data = append(bytes.Clone(o.Catalogue[0].Data), []byte(`  - name: pay.list
    title: List payments
    authority: read
    resource: pay:all
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://pay.test}
    egress: [{hosts: [`+serviceName+`], methods: [GET], paths: [/**]}]
`)...)
	return o
}

func TestNginxAllowsValidCalls(t *testing.T) {
	t.Parallel()
	e := newEdge(t, testkit.NewStack(t, edged(t)))
	own := e.stack.X509(t, agent)
	c := e.stack.ClientWith(t, own)
	tok := token(t, c, readIssues)
	bound := token(t, c, client.Ask{Scope: "git.issues.own", Task: "triage-1"})
	for _, target := range []string{
		"/repos/acme/api/issues", "/repos/acme/api/issues?page=2&q=a/../b%2e%2f#", "/repos/acme/api/issues/1",
		"/repos/acme/api/issues/a%20b", "/repos/acme/api/issues/%C3%BC%40", "/repos/acme/api/issues/a!b@c+d,e=f",
	} {
		got := through{line: "GET " + target + " HTTP/1.1", token: "Bearer " + tok.Secret.Reveal(), more: []string{
			"X-HTTP-Method-Override: DELETE", "X-HTTP-Method: DELETE", "X-Method-Override: DELETE", "X-Original-URL: /admin", "X-Rewrite-URL: /admin",
			"X-Forwarded-Host: evil.example", "X-Forwarded-Prefix: /admin", "Forwarded: host=evil.example", "X-Brevet-Subject: spiffe://acme.test/root", "X-Brevet-Actor: spiffe://acme.test/root", "X-Brevet-Scope: everything", "X-Original-URI: /", "X-Original-Method: HEAD", "X-Forwarded-Uri: /", "X-Client-Cert: x",
		}}.send(t, e)
		reached := e.service.taken()
		if got.status != 200 || got.text != "served" || len(reached) != 1 {
			t.Fatalf("%s: got %d %s, and %d calls reached the service; want 200 and one", target, got.status, got.text, len(reached))
		}
		r := reached[0]
		if want, _, _ := strings.Cut(target, "#"); r.RequestURI != want && r.RequestURI != target || r.Method != "GET" || r.Host != serviceName {
			t.Errorf("%s reached the service as %s %s on %s", target, r.Method, r.RequestURI, r.Host)
		}
		for header, want := range map[string]string{
			"X-Brevet-Subject": agent, "X-Brevet-Actor": agent, "X-Brevet-Task": "triage-1", "X-Brevet-Scope": "git.issues.read", "X-Brevet-Issuance": tok.ID, "Authorization": "", "Dpop": "",
			"X-Http-Method-Override": "", "X-Http-Method": "", "X-Method-Override": "", "X-Original-Url": "", "X-Rewrite-Url": "",
			"X-Forwarded-Host": "", "X-Forwarded-Prefix": "", "Forwarded": "",
		} {
			if got := strings.Join(r.Header.Values(header), ","); got != want {
				t.Errorf("%s: the service got %s %q, want %q", target, header, got, want)
			}
		}
	}
	got := through{line: "POST /issues HTTP/1.1", token: "Bearer " + bound.Secret.Reveal(), caller: own, more: []string{"Content-Length: 2", "", "{}"}}.send(t, e)
	if reached := e.service.taken(); got.status != 200 || len(reached) != 1 || reached[0].Method != "POST" {
		t.Errorf("got %d %s for a bound token, want 200", got.status, got.text)
	}
}

// A call with any one fault does not reach the service. H29: headers that the caller forges are not trusted.
func TestNginxRefusesInvalidCalls(t *testing.T) {
	t.Parallel()
	e := newEdge(t, testkit.NewStack(t, edged(t)))
	own := e.stack.X509(t, agent)
	c := e.stack.ClientWith(t, own)
	ask := func(scope string) string {
		return "Bearer " + token(t, c, client.Ask{Scope: scope, Task: "triage-1"}).Secret.Reveal()
	}
	plain := "Bearer " + token(t, c, readIssues).Secret.Reveal()
	bound, elsewhere := ask("git.issues.own"), ask("pay.list")
	const invalid, narrow = "invalid_token", "insufficient_scope"
	for name, tc := range map[string]struct {
		call  through
		error string // in the challenge
	}{
		"no token":                   {through{}, "Bearer"},
		"no such token":              {through{token: "Bearer x.y.z"}, invalid},
		"another audience":           {through{token: elsewhere}, invalid},
		"another method":             {through{token: plain, line: "DELETE /repos/acme/api/issues HTTP/1.1"}, narrow},
		"a method of its own":        {through{token: plain, line: "BREW /repos/acme/api/issues HTTP/1.1"}, narrow},
		"another path":               {through{token: plain, line: "GET /repos/acme/web/issues HTTP/1.1"}, narrow},
		"the root":                   {through{token: plain, line: "GET / HTTP/1.1"}, narrow},
		"a bound token, and nothing": {through{token: bound, line: "GET /issues HTTP/1.1"}, invalid},
		"another sandbox":            {through{token: bound, line: "GET /issues HTTP/1.1", caller: e.stack.X509(t, twin)}, invalid},
		"the same sandbox's next certificate": {
			through{token: bound, line: "GET /issues HTTP/1.1", caller: e.stack.X509(t, agent)}, invalid,
		},
		"a certificate in a header": {
			through{token: bound, line: "GET /issues HTTP/1.1", more: []string{"X-Client-Cert: " + escapedPEM(own), "X-SSL-Client-Cert: x"}}, invalid,
		},
		"another method in a header": {
			through{token: plain, line: "DELETE /repos/acme/api/issues HTTP/1.1", more: []string{"X-Original-Method: GET", "X-HTTP-Method-Override: GET"}}, narrow,
		},
		"another path in a header": {
			through{token: plain, line: "GET /repos/acme/web/issues HTTP/1.1", more: []string{"X-Original-URI: /repos/acme/api/issues", "X-Rewrite-URL: /repos/acme/api/issues"}}, narrow,
		},
	} {
		got := tc.call.send(t, e)
		want := 401
		if tc.error == narrow {
			want = 403
		}
		if got.status != want || !strings.Contains(got.header.Get("WWW-Authenticate"), tc.error) || len(e.service.taken()) != 0 {
			t.Errorf("%s: got %d %v, want %d and %s", name, got.status, got.header.Get("WWW-Authenticate"), want, tc.error)
		}
	}
}

// H47: the path that nginx parses ($uri) and the path that it forwards ($request_uri) cannot be played off against each other. A
// request that reaches the service is exactly what was sent, and the rules allow it.
func TestNginxForwardsTheCheckedPath(t *testing.T) {
	t.Parallel()
	e := newEdge(t, testkit.NewStack(t, edged(t)))
	plain := "Bearer " + token(t, e.stack.Client(t, agent), readIssues).Secret.Reveal()
	rules := []scopes.Egress{{Hosts: []string{serviceName}, Methods: []string{"GET"}, Paths: []string{"/repos/{repo}/issues", "/repos/{repo}/issues/*"}}}
	reached := 0
	hosts := []string{serviceName, "API.git.acme.example", serviceName + ":443", "evil.example", serviceName + ".", serviceName + "@evil.example", ""}
	for i, target := range []string{
		"/repos/acme/api/issues/../../web/issues", "/repos/acme/web/../api/issues", "/repos/acme/web/%2e%2e/api/issues", "/x/..%2frepos/acme/api/issues",
		"/repos/acme/api/issues/%2e%2e%2f%2e%2e%2fweb", "/repos/acme/api/issues/..%2f..%2fweb", "/repos/acme/api/issues/%252e%252e", "/repos/acme%2fapi/issues",
		"/repos/acme%2Fapi%2Fissues", "/repos//acme/api/issues", "//repos/acme/api/issues", "///repos/acme/api/issues", "/./repos/acme/api/issues",
		"/repos/acme/api/issues/.", "/repos/acme/api/issues/..", "/repos/acme/api/issues/", "/repos/acme/api/issues//", "/repos/acme/api/issues/1/..",
		"/repos/acme/api/issues/%00", "/repos/acme/api/issues/1%00.x", "/repos/acme/api/issues/%0d%0aX-Evil:1", "/repos/acme/api/issues/%5c..%5c..", `/repos/acme/api/issues\..\..`,
		"/repos/acme/api/issues;x", "/repos/acme/api/issues/..;/..;/web", "/repos/acme/api/issues%3fx", "/repos/acme/api/issues%23x", "/repos/acme/api/issues#x", "/%72epos/acme/api/issues",
		"/repos/acme/api/issues/%ff", "/repos/acme/api/issues/%c0%af", "/repos/acme/api/issues/%EF%BC%8F", "/repos/acme/api/issues/" + strings.Repeat("a", 5000),
		"/_brevet", "/x/../_brevet", "/%5fbrevet", "/repos/acme/api/../../../_brevet",
		"http://" + serviceName + "/repos/acme/web/issues", "http://evil.example/repos/acme/api/issues", "https://" + serviceName + "/repos/acme/api/issues", "http://" + serviceName,
		"*", "repos/acme/api/issues", "/repos/acme/api/issues?../../x", "/repos/acme/api/issues/1?x#/../y", "/repos/acme/api/issues/%20", "/repos/acme/api/issues/%E4%B8%AD",
	} {
		on := hosts
		if i%5 != 0 {
			on = hosts[:1] // the other hosts make no difference to the path
		}
		for _, host := range on {
			call := through{line: "GET " + target + " HTTP/1.1", token: plain, host: host}
			if host == "" {
				call.host, call.more = serviceName, []string{"Host: evil.example"}
			}
			got := call.send(t, e)
			for _, r := range e.service.taken() {
				reached++
				sent := strings.TrimPrefix(strings.TrimPrefix(target, "https://"+serviceName), "http://"+serviceName)
				if ok, why := egressrule.Allowed(rules, readIssues.Params, egressrule.Call{Method: r.Method, Host: r.Host, Path: r.RequestURI}); !ok || r.RequestURI != sent || got.status != 200 {
					t.Errorf("%s on %s: %s reached the service on %s: %s", target, host, r.RequestURI, r.Host, why)
				}
			}
		}
	}
	if reached == 0 {
		t.Error("nothing reached the service: nothing was tested")
	}
}

// H106: a token that has ended on one replica, however it ended, is refused by a gateway that asks another replica.
func TestNginxRefusesEndedTokens(t *testing.T) {
	t.Parallel()
	o := edged(t)
	var ahead atomic.Int64
	o.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	s := testkit.NewStack(t, o)
	e := newEdge(t, s.Replica(t))
	ends := map[string]func(string) error{
		"revoked": func(id string) error {
			_, err := s.Client(t, admin).Revoke(t.Context(), client.Selection{ID: id}, "x")
			return err
		},
		"its task ended": func(string) error {
			_, err := s.Client(t, runtime).EndTask(t.Context(), readIssues.Task, client.TaskEnd{SPIFFEID: agent})
			return err
		},
		"expired": func(string) error { ahead.Store(int64(6 * time.Minute)); return nil },
	}
	for _, name := range []string{"revoked", "its task ended", "expired"} {
		ask := readIssues
		if name == "expired" {
			ask.Task = "another"
		}
		tok := token(t, s.Client(t, agent), ask)
		call := through{token: "Bearer " + tok.Secret.Reveal()}
		if got := call.send(t, e); got.status != 200 || len(e.service.taken()) != 1 {
			t.Fatalf("%s: got %d %s before, want 200", name, got.status, got.text)
		}
		if err := ends[name](tok.ID); err != nil {
			t.Fatal(err)
		}
		if got := call.send(t, e); got.status != 401 || len(e.service.taken()) != 0 {
			t.Errorf("%s: got %d %s, want 401", name, got.status, got.text)
		}
	}
}

// A DPoP proof and a one-shot token each let one call pass.
func TestNginxAcceptsAProofOrOneShotTokenOnce(t *testing.T) {
	t.Parallel()
	e := newEdge(t, testkit.NewStack(t, edged(t)))
	key := signer(t)
	bound := provedToken(t, e.stack, key)
	once := token(t, e.stack.Client(t, agent), client.Ask{Scope: "git.issues.once", Task: "t-1"}).Secret.Reveal()
	proof := func(path string) []string {
		return []string{"DPoP: " + proofFor(t, key, dpop.Request{Method: "GET", URL: "https://" + serviceName + path, Token: bound})}
	}
	const line = "GET /issues HTTP/1.1"
	good := through{line: line, token: "DPoP " + bound, more: proof("/issues")}
	for _, tc := range []struct {
		name   string
		call   through
		status int
		told   string
	}{
		{"no proof", through{line: line, token: "DPoP " + bound}, 401, "invalid_dpop_proof"},
		{"as a bearer token", through{line: line, token: "Bearer " + bound, more: proof("/issues")}, 401, "invalid_token"},
		{"a proof for another path", through{line: line, token: "DPoP " + bound, more: proof("/other")}, 401, "invalid_dpop_proof"},
		{"a proof", good, 200, ""},
		{"the same proof", good, 401, "the proof was used before"},
		{"another proof", through{line: line, token: "DPoP " + bound, more: proof("/issues")}, 200, ""},
		{"a one-shot token", through{line: line, token: "Bearer " + once}, 200, ""},
		{"the same token", through{line: line, token: "Bearer " + once}, 401, "no longer valid"},
	} {
		got, reached := tc.call.send(t, e), e.service.taken()
		if got.status != tc.status || !strings.Contains(got.header.Get("WWW-Authenticate"), tc.told) || (len(reached) == 1) != (tc.status == 200) {
			t.Errorf("%s: got %d %s, and %d calls reached the service; want %d", tc.name, got.status, got.header.Get("WWW-Authenticate"), len(reached), tc.status)
		}
	}
}

func TestNginxWithoutBrevet(t *testing.T) {
	t.Parallel()
	e := newEdge(t, testkit.NewStack(t, edged(t)))
	call := through{token: "Bearer " + token(t, e.stack.Client(t, agent), readIssues).Secret.Reveal()}
	if got := call.send(t, e); got.status != 200 || len(e.service.taken()) != 1 {
		t.Fatalf("got %d %s, want 200", got.status, got.text)
	}
	if err := e.brevet.Close(); err != nil {
		t.Fatal(err)
	}
	if got := call.send(t, e); got.status != 500 || len(e.service.taken()) != 0 {
		t.Errorf("got %d %s, want 500", got.status, got.text)
	}
}
