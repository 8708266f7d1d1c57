package egress_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/egress"
	"github.com/brevet-dev/brevet/openapi"
)

// guarded is a host that requires a client certificate from an authority.
type guarded struct {
	*host
	authority atomic.Pointer[x509.CertPool]
	open      atomic.Int64 // open connections
	unasked   string       // name of a host that requires no client certificate
}

func newGuarded(t testing.TB) *guarded {
	t.Helper()
	g := &guarded{host: prepareHost()}
	g.TLS = &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{
			Certificates: g.TLS.Certificates, NextProtos: g.TLS.NextProtos, MinVersion: tls.VersionTLS12,
			ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: g.authority.Load(),
		}, nil
	}}
	g.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			g.open.Add(1)
		case http.StateClosed, http.StateHijacked:
			g.open.Add(-1)
		default:
		}
	}
	g.start(t)
	beside := prepareHost()
	beside.mux.HandleFunc("/unasked/", func(http.ResponseWriter, *http.Request) { t.Error("a call without a certificate has reached a host") })
	beside.start(t)
	g.unasked = beside.name()
	return g
}

// newGuardedWorld returns a world with scopes whose credential is a certificate from Vault.
func newGuardedWorld(t testing.TB) (*world, *guarded) {
	t.Helper()
	g := newGuarded(t)
	w := newWorld(t, guardedScopes(g))
	g.authority.Store(w.clientAuthority(t))
	return w, g
}

// guardedScopes returns the scopes for a guarded host.
func guardedScopes(g *guarded) string {
	const pki = "kind: pki, mount: pki, role: web, common_name: "
	scope := func(name, authority, credential, at string) string {
		return fmt.Sprintf(`  - name: host.%[1]s.use
    title: Call
    authority: %[2]s
    resource: host:all
    ttl: {default: 5m, max: 15m}
    credential: {%[3]s}
    egress: [{hosts: ['%[4]s'], methods: [GET], paths: ['/%[1]s/**'], send: {as: certificate}}]
`, name, authority, credential, at)
	}
	return scope("client", "read", pki+"client.acme.test", g.name()) +
		scope("server", "read", pki+"server.acme.test, key: server", g.name()) +
		scope("stored", "read", "kind: kv, path: secret/data/egress-cert", g.name()) +
		scope("unasked", "read", pki+"unasked.acme.test", g.unasked) +
		scope("agreed", "write", pki+"agreed.acme.test}\n    approval: {group: oncall", g.name())
}

// clientAuthority returns the authority in Vault that signs client certificates.
func (w *world) clientAuthority(t testing.TB) *x509.CertPool {
	t.Helper()
	ca, err := w.stack.Vault(t).Logical().ReadWithContext(t.Context(), "pki/cert/ca")
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(ca.Data["certificate"].(string))) {
		t.Fatal("Vault has no authority")
	}
	return pool
}

// at returns a URL of the guarded host.
func (g *guarded) at(path string) string { return "https://" + g.name() + path }

// one returns the only call since it last ran. The test fails if there are none or several.
func (g *guarded) one(t testing.TB) *http.Request {
	t.Helper()
	calls := g.taken()
	if len(calls) != 1 {
		t.Fatalf("the host got %d calls, want 1", len(calls))
	}
	return calls[0]
}

// direct makes a call by the gateway's base URL. The gateway forwards it over HTTP/1.1.
func (w *world) direct(t testing.TB, g *guarded, path string) got {
	t.Helper()
	req := request(t, "GET", "http://"+w.addr+"/"+g.name()+path, nil)
	req.SetBasicAuth("brevet", password)
	return call(t, &http.Client{}, req)
}

// storeCertificate stores a certificate with its private key in Vault, and returns the key.
func (w *world) storeCertificate(t testing.TB) (key string) {
	t.Helper()
	issued, err := w.stack.Vault(t).Logical().WriteWithContext(t.Context(), "pki/issue/web", map[string]any{"common_name": "stored.acme.test", "ttl": "1h"})
	if err != nil {
		t.Fatal(err)
	}
	w.store(t, "egress-cert", issued.Data)
	return issued.Data["private_key"].(string)
}

// selfSigned returns a certificate that a sandbox made itself.
func selfSigned(t testing.TB) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"mine.test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func serial(r *http.Request) string {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return ""
	}
	var parts []string
	for _, b := range r.TLS.PeerCertificates[0].SerialNumber.Bytes() {
		parts = append(parts, fmt.Sprintf("%02x", b))
	}
	return strings.Join(parts, ":")
}

// A host sees the certificate that Vault made for the sandbox, even if the sandbox presents its own. The gateway reuses its
// connections.
func TestClientCertificates(t *testing.T) {
	w, g := newGuardedWorld(t)
	w.storeCertificate(t)
	sandbox := w.proxied(t)
	mine := selfSigned(t)
	sandbox.Transport.(*http.Transport).TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		t.Error("the gateway asks the sandbox for a certificate")
		return &mine, nil
	}
	for name, scope := range map[string]string{"client": "host.client.use", "server": "host.server.use", "stored": "host.stored.use"} {
		req := request(t, "GET", g.at("/"+name+"/x"), nil)
		for _, field := range []string{"Authorization", "Client-Cert", "X-Client-Cert", "X-SSL-Client-Verify", "Ssl-Client-Cert", "X-Forwarded-Client-Cert", "X-Amzn-Mtls-Clientcert"} {
			req.Header.Set(field, "mine")
		}
		var from [4]string
		for i := range from {
			var answer got
			if i < 2 {
				answer = call(t, sandbox, req)
			} else {
				answer = w.direct(t, g, "/"+name+"/x")
			}
			if answer.status != 200 || answer.text != "served" {
				t.Fatalf("%s: got %d %s", name, answer.status, answer.text)
			}
			seen := g.one(t)
			from[i] = seen.RemoteAddr
			if want := map[bool]string{true: "HTTP/2.0", false: "HTTP/1.1"}[i < 2]; seen.Proto != want {
				t.Errorf("%s: got %s, want %s", name, seen.Proto, want)
			}
			page, err := w.broker.Page(t.Context(), filterOf(scope))
			if err != nil || len(page.Issuances) != 1 {
				t.Fatalf("%s: got %+v, %v, want one issuance", name, page.Issuances, err)
			}
			if cert := seen.TLS.PeerCertificates[0]; cert.Subject.CommonName != name+".acme.test" || name != "stored" && serial(seen) != page.Issuances[0].Credential.Name {
				t.Errorf("%s: the host saw %s of %s, want %s", name, serial(seen), cert.Subject.CommonName, page.Issuances[0].Credential.Name)
			}
			if strings.Contains(header(seen), "mine") || seen.Header.Get("Authorization") != "" {
				t.Errorf("%s: the host got\n%s", name, header(seen))
			}
		}
		if from[0] != from[1] || from[2] != from[3] || from[0] == from[2] {
			t.Errorf("%s: the host saw connections from %v, want one for each version of HTTP", name, from)
		}
	}
}

// A request that waits for approval is made and redeemed with the same key.
func TestApprovedCertificateUsesTheRequestedKey(t *testing.T) {
	w, g := newGuardedWorld(t)
	var told struct{ Waiting struct{ ID string } }
	for range 2 {
		answer := w.direct(t, g, "/agreed/x")
		if err := json.Unmarshal([]byte(answer.text), &told); err != nil || answer.status != 403 || told.Waiting.ID == "" {
			t.Fatalf("got %d %s, want it to wait", answer.status, answer.text)
		}
	}
	bob := w.stack.Person(t, "bob")
	shown, err := bob.Approval(t.Context(), told.Waiting.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bob.Vote(t.Context(), shown, openapi.VerdictApprove, ""); err != nil {
		t.Fatal(err)
	}
	if answer := w.direct(t, g, "/agreed/x"); answer.status != 200 || serial(g.one(t)) == "" {
		t.Errorf("got %d %s after the yes", answer.status, answer.text)
	}
}

// A host that requests no certificate gets no call. If a host rejects the certificate, the sandbox gets the host's TLS alert.
func TestHostThatRequestsNoCertificateGetsNoCall(t *testing.T) {
	w, g := newGuardedWorld(t)
	direct := request(t, "GET", "http://"+w.addr+"/"+g.unasked+"/unasked/x", nil)
	direct.SetBasicAuth("brevet", password)
	for _, answer := range []got{call(t, w.proxied(t), request(t, "GET", "https://"+g.unasked+"/unasked/x", nil)), call(t, &http.Client{}, direct)} {
		code, explanation := answer.problem()
		if answer.status != 502 || code != "egress_unfit" || !strings.Contains(explanation, "requests no client certificate") {
			t.Errorf("got %d %s, want it refused", answer.status, answer.text)
		}
	}
	g.authority.Store(x509.NewCertPool())
	answer := w.direct(t, g, "/client/x")
	code, explanation := answer.problem()
	if answer.status != 502 || code != "egress_upstream" || !strings.Contains(explanation, "tls: ") {
		t.Errorf("got %d %s, want what the host says of the certificate", answer.status, answer.text)
	}
	if calls := g.taken(); len(calls) != 0 {
		t.Errorf("the host got %d calls", len(calls))
	}
	w.store(t, "egress-cert", map[string]any{"certificate": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: selfSigned(t).Certificate[0]})), "private_key": canary})
	answer = w.direct(t, g, "/stored/x")
	if code, _ := answer.problem(); answer.status != 502 || code != "egress_unfit" {
		t.Errorf("got %d %s for a certificate without its key", answer.status, answer.text)
	}
}

// wantClosed waits until no connection to the host is open.
func (g *guarded) wantClosed(t *testing.T) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); g.open.Load() > 0; <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for the end of all connections, %d are open", patience, g.open.Load())
		}
	}
}

// idle is long enough for the gateway to stop asking Brevet about an unused credential.
const idle = 600 * time.Millisecond

// When the task ends, no connection with its certificate is open a second later, in use or not.
func TestCertificateConnectionsCloseWhenTheTaskEnds(t *testing.T) {
	w, g := newGuardedWorld(t)
	g.mux.HandleFunc("/client/events", func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(rw, "data: one\n\n")
		_ = http.NewResponseController(rw).Flush()
		<-r.Context().Done()
	})
	ended := make(chan error, 1)
	events, err := w.proxied(t).Do(request(t, "GET", g.at("/client/events"), nil))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = events.Body.Close() }()
	if _, err := io.ReadFull(events.Body, make([]byte, len("data: one\n\n"))); err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := io.Copy(io.Discard, events.Body)
		ended <- err
	}()
	w.direct(t, g, "/client/x")
	w.direct(t, g, "/server/x")
	if n := g.open.Load(); n != 3 {
		t.Fatalf("%d connections are open, want 3", n)
	}
	<-time.After(idle)
	w.endTask(t)
	stop := w.stopwatch(t)
	g.wantClosed(t)
	within(t, "the end of what was under way", ended)
	stop("the end of all connections")
	answer := w.direct(t, g, "/client/x")
	if code, _ := answer.problem(); answer.status != 403 || code != "denied" {
		t.Errorf("got %d %s after the end of the task", answer.status, answer.text)
	}
}

// A revoked certificate is not presented a second later, and its connections are closed.
func TestRevokedCertificates(t *testing.T) {
	w, g := newGuardedWorld(t)
	w.direct(t, g, "/client/x")
	first := g.one(t)
	<-time.After(idle)
	if _, err := w.stack.Client(t, admin).Revoke(t.Context(), client.Selection{SPIFFEID: agent}, "leaked"); err != nil {
		t.Fatal(err)
	}
	stop := w.stopwatch(t)
	g.wantClosed(t)
	stop("the end of its connections")
	if answer := w.direct(t, g, "/client/x"); answer.status != 200 {
		t.Fatalf("got %d %s", answer.status, answer.text)
	}
	if second := g.one(t); serial(second) == serial(first) || serial(second) == "" || second.RemoteAddr == first.RemoteAddr {
		t.Errorf("got %s from %s once more", serial(second), second.RemoteAddr)
	}
}

// Two sandboxes of one gateway share neither a certificate nor a connection.
func TestSandboxesShareNoCertificate(t *testing.T) {
	w, g := newGuardedWorld(t)
	const other = "spiffe://acme.test/agents/b"
	second, err := w.gateway.Sandbox(egress.SandboxConfig{ID: other, Task: "other-1", Broker: w.stack.Client(t, other)})
	if err != nil {
		t.Fatal(err)
	}
	l := listen(t, "tcp", "127.0.0.1:0")
	serve(t, w.gateway, l, egress.Alone(second))
	seen := map[string]bool{}
	for range 2 {
		w.direct(t, g, "/client/x")
		first := g.one(t)
		call(t, &http.Client{}, request(t, "GET", "http://"+l.Addr().String()+"/"+g.name()+"/client/x", nil))
		theirs := g.one(t)
		for _, one := range []string{serial(first), first.RemoteAddr, serial(theirs), theirs.RemoteAddr} {
			seen[one] = true
		}
	}
	if len(seen) != 4 || seen[""] {
		t.Errorf("got %v, want two certificates on two connections", seen)
	}
	w.gateway.Drop(context.WithoutCancel(t.Context()), second)
	if answer := w.direct(t, g, "/client/x"); answer.status != 200 || !seen[g.one(t).RemoteAddr] {
		t.Errorf("got %d %s on another connection after the end of another's", answer.status, answer.text)
	}
}
