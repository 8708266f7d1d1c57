package egress_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/egress"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/scopes"
)

// sending is one way to send a credential, as a rule writes it.
type sending struct {
	name, credential string
	as, with         string // with has the other members of send
	carries          func(*http.Request) bool
}

// scope is the name of the scope whose credential is sent in this way.
func (s sending) scope() string { return "host.row-" + s.name + ".use" }

// authorized returns whether a call has an Authorization header that begins with text.
func authorized(text string) func(*http.Request) bool {
	return func(r *http.Request) bool { return strings.HasPrefix(r.Header.Get("Authorization"), text) }
}

const (
	oneMember = "kind: kv, path: secret/data/egress"
	awsMember = "kind: kv, path: secret/data/egress-aws"
)

// sendings are all ways to send a credential. Calls to S3 are signed in another way than calls to other services of AWS.
var sendings = []sending{
	{"default", "kind: jwt, audience: https://example.com", "", "", authorized("Bearer eyJ")},
	{"bearer", oneMember, scopes.SendBearer, ", field: key", authorized("Bearer " + canary)},
	{"basic", oneMember, scopes.SendBasic, ", user: bot, field: key", authorized("Basic " + base64.StdEncoding.EncodeToString([]byte("bot:"+canary)))},
	{"header", oneMember, scopes.SendHeader, ", name: x-key, field: key", func(r *http.Request) bool { return r.Header.Get("X-Key") == canary }},
	{"query", oneMember, scopes.SendQuery, ", name: key, field: key", func(r *http.Request) bool { return r.URL.Query().Get("key") == canary }},
	{"s3", awsMember, scopes.SendAWS, ", service: s3, region: eu-central-1", authorized("AWS4-HMAC-SHA256 Credential=" + awsKey + "/")},
	{"lambda", awsMember, scopes.SendAWS, ", service: lambda, region: eu-central-1", authorized("AWS4-HMAC-SHA256 Credential=" + awsKey + "/")},
	// What another system gives in exchange for a token. FAR stands for the exchange with that system.
	{"exchanged", "FAR:azure", "", "", authorized("Bearer eyJ0.")},
	{"exchanged-google", "FAR:google", scopes.SendBearer, "", authorized("Bearer ya29.d.")},
	{"exchanged-bearer", "FAR:anthropic", scopes.SendBearer, "", authorized("Bearer sk-ant-oat01-")},
	{"exchanged-header", "FAR:openai", scopes.SendHeader, ", name: x-key", func(r *http.Request) bool { return strings.HasPrefix(r.Header.Get("X-Key"), "oai-") }},
	{"exchanged-s3", "FAR:aws", scopes.SendAWS, ", service: s3, region: eu-central-1", authorized("AWS4-HMAC-SHA256 Credential=ASIA")},
	{"exchanged-lambda", "FAR:aws", scopes.SendAWS, ", service: lambda, region: eu-central-1", authorized("AWS4-HMAC-SHA256 Credential=ASIA")},
	{"certificate", "kind: pki, mount: pki, role: web, common_name: row.acme.test", scopes.SendCertificate, "", func(r *http.Request) bool { return serial(r) != "" }},
}

// wantEverySending fails the test if a catalogue can send a credential in a way that sendings do not contain, or can name another
// system that exchanges tokens and is not among them. It reads both from the product's JSON Schema for catalogues.
func wantEverySending(t *testing.T) {
	t.Helper()
	var ways, systems []string
	var walk func(any)
	walk = func(node any) {
		switch node := node.(type) {
		case []any:
			for _, one := range node {
				walk(one)
			}
		case map[string]any:
			if as, ok := node["as"].(map[string]any); ok {
				way, _ := as["const"].(string)
				if node["url"] != nil { // the exchange of a token has this key too
					systems = append(systems, way)
				} else {
					ways = append(ways, way)
				}
			}
			for _, one := range node {
				walk(one)
			}
		}
	}
	var schema any
	if err := json.Unmarshal(scopes.ScopesSchema(), &schema); err != nil {
		t.Fatal(err)
	}
	walk(schema)
	if !slices.Contains(ways, scopes.SendBearer) || !slices.Contains(systems, scopes.ExchangeAWS) {
		t.Fatalf("the schema of catalogues has the ways %q and the systems %q, want bearer and aws among them", ways, systems)
	}
	for _, system := range systems {
		if !slices.ContainsFunc(sendings, func(s sending) bool { return s.credential == "FAR:"+system }) {
			t.Errorf("a scope can have exchange: {as: %s}, and no sending has it: add one", system)
		}
	}
	for _, way := range ways {
		if !slices.ContainsFunc(sendings, func(s sending) bool { return s.as == way }) {
			t.Errorf("a rule can have send: {as: %s}, and no sending has it: add one", way)
		}
	}
}

// rows is a world with a scope for each sending. The calls of a scope go to two hosts.
type rows struct {
	*world
	plain, guarded [2]*host
}

func newRows(t *testing.T) *rows {
	t.Helper()
	wantEverySending(t)
	r := &rows{plain: [2]*host{newHost(t), newHost(t)}}
	far := newFarSide(t)
	first, second := newGuarded(t), newGuarded(t)
	r.guarded = [2]*host{first.host, second.host}
	// Only the second rule names headers, and only for its path and its host.
	const scope = `  - name: %s
    title: Call
    authority: read
    resource: host:all
    ttl: {default: 5m, max: 15m}
    credential: %s
    egress:
      - {hosts: ['%s'], methods: [GET, PUT, POST], paths: [/%[5]s/plain, '/%[5]s/items/*', '/%[5]s/asked/*:get']%[6]s}
      - {hosts: ['%[3]s'], methods: [GET, PUT, POST], paths: [/%[5]s/named], headers: [%[7]s]%[6]s}
      - {hosts: ['%[4]s'], methods: [GET, PUT, POST], paths: [/%[5]s/named]%[6]s}
`
	var text strings.Builder
	for _, s := range sendings {
		send := ""
		if s.as != "" {
			send = ", send: {as: " + s.as + s.with + "}"
		}
		hosts, credential := r.of(s), "{"+s.credential+"}"
		if as, ok := strings.CutPrefix(s.credential, "FAR:"); ok {
			credential = far.credential(as)
		}
		fmt.Fprintf(&text, scope, s.scope(), credential, hosts[0].name(), hosts[1].name(), s.name, send, headersOfRules)
	}
	r.world = newWorld(t, text.String())
	far.trust(t, r.stack)
	authority := r.clientAuthority(t)
	first.authority.Store(authority)
	second.authority.Store(authority)
	r.host = r.plain[0]
	var err error
	if r.sandbox, err = r.gateway.Sandbox(egress.SandboxConfig{ID: agent, Task: "rows-1", Broker: r.broker}); err != nil {
		t.Fatal(err)
	}
	l := listen(t, "tcp", "127.0.0.1:0")
	r.addr = l.Addr().String()
	serve(t, r.gateway, l, egress.WithPassword(r.sandbox, secret.New(password)))
	return r
}

// of returns the two hosts of a sending.
func (r *rows) of(s sending) [2]*host {
	if s.as == scopes.SendCertificate {
		return r.guarded
	}
	return r.plain
}

// at returns the URL of a path of a sending at its first host.
func (r *rows) at(s sending, path string) string {
	return "https://" + r.of(s)[0].name() + "/" + s.name + path
}

// taken returns the calls that reached any host since it last ran.
func (r *rows) taken() []*http.Request {
	var all []*http.Request
	for _, h := range slices.Concat(r.plain[:], r.guarded[:]) {
		all = append(all, h.taken()...)
	}
	return all
}

// wantNoCall fails the test if a call has reached any host.
func (r *rows) wantNoCall(t *testing.T) {
	t.Helper()
	for _, one := range r.taken() {
		t.Errorf("a host got %s %s\n%s", one.Method, one.RequestURI, header(one))
	}
}

// one returns the only call since it last ran. The test fails if there are none or several, or the call has no credential.
func (r *rows) one(t *testing.T, s sending) *http.Request {
	t.Helper()
	calls := r.taken()
	if len(calls) != 1 || !s.carries(calls[0]) {
		t.Fatalf("the hosts got %d calls, want 1 with a credential", len(calls))
	}
	return calls[0]
}

// entrance is a way by which a call arrives at the gateway.
type entrance struct {
	name, proto string
	call        func(t *testing.T, req *http.Request) got
}

// entrances returns all of them. The listener of the gateway speaks HTTP/1.1, and tunnels through it HTTP/1.1 or HTTP/2.
func (w *world) entrances(t *testing.T) []entrance {
	t.Helper()
	newer, older, plain := w.proxied(t), w.proxied(t), &http.Client{Transport: &http.Transport{}}
	older.Transport.(*http.Transport).ForceAttemptHTTP2 = false
	t.Cleanup(plain.CloseIdleConnections)
	through := func(c *http.Client) func(*testing.T, *http.Request) got {
		return func(t *testing.T, req *http.Request) got {
			t.Helper()
			return call(t, c, req)
		}
	}
	return []entrance{
		{"a tunnel", "HTTP/2.0", through(newer)},
		{"a tunnel", "HTTP/1.1", through(older)},
		{"a base URL", "HTTP/1.1", func(t *testing.T, req *http.Request) got {
			t.Helper()
			target, err := url.Parse("http://" + w.addr + "/" + strings.TrimPrefix(req.URL.String(), "https://"))
			if err != nil {
				t.Fatal(err)
			}
			req.URL, req.Host = target, ""
			req.SetBasicAuth("brevet", password)
			return call(t, plain, req)
		}},
		{"the request line", "HTTP/1.1", func(t *testing.T, req *http.Request) got {
			t.Helper()
			req.URL = &url.URL{Scheme: "http", Host: w.addr, Opaque: req.URL.String()}
			req.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(":"+password)))
			return call(t, plain, req)
		}},
	}
}

// try makes a call with fields by the entrance. The names of the fields are sent as they are; HTTP/2 has lower case only.
func (e entrance) try(t *testing.T, target string, fields map[string]string) got {
	t.Helper()
	req := request(t, http.MethodPut, target, strings.NewReader("hello"))
	for name, value := range fields {
		req.Header[name] = []string{value}
	}
	answer := e.call(t, req)
	if answer.proto != e.proto {
		t.Fatalf("got an answer over %s, want %s", answer.proto, e.proto)
	}
	return answer
}
