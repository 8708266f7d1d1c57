package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/app"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/devstack/local"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"go.yaml.in/yaml/v4"
)

// federation is a deployment with four trust domains. Its own and that of a partner come from a Workload API, which also
// gives the broker its certificate. Those of a vendor and a shop come from bundle endpoints, one of each profile.
type federation struct {
	*plan              // with the issuer of the deployment's own trust domain
	t       *testing.T // the deployment ends with it
	cfg     app.Config
	broker  *process
	sockets string // folder of the sockets
	agent   *devstack.Endpoint
	partner *devstack.Issuer
	vendor  *bundleEndpoint // https_spiffe
	shop    *bundleEndpoint // https_web
	// steady are the agents that call all the time, by trust domain.
	steady map[*devstack.Issuer]*steady
	// old is a proof by the first authority of the deployment's own trust domain, and oldOpen are the callers that used it.
	// fresh is a proof by the next authority.
	old, fresh proof
	oldOpen    []*caller
}

// bundleEndpoint publishes the bundle of an issuer. While it is down, it closes every connection.
type bundleEndpoint struct {
	*devstack.Issuer
	net.Listener
	down, revoked atomic.Bool
	certificate   atomic.Pointer[tls.Certificate]
}

// Accept accepts connections, and closes them at once while the endpoint is down.
func (e *bundleEndpoint) Accept() (net.Conn, error) {
	for {
		conn, err := e.Listener.Accept()
		if err != nil || !e.down.Load() {
			return conn, err
		}
		_ = conn.Close()
	}
}

func (e *bundleEndpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !e.revoked.Load() {
		e.BundleHandler().ServeHTTP(w, r)
		return
	}
	sequence, _ := e.Bundle().SequenceNumber()
	_, _ = fmt.Fprintf(w, `{"keys":[],"spiffe_sequence":%d,"spiffe_refresh_hint":1}`, sequence)
}

// renew gives the endpoint a certificate by the current authority of its trust domain.
func (e *bundleEndpoint) renew(t *testing.T) {
	t.Helper()
	svid, err := e.X509SVID(spiffeid.RequireFromPath(e.TrustDomain(), "/bundles"))
	if err != nil {
		t.Fatal(err)
	}
	e.certificate.Store(&tls.Certificate{Certificate: [][]byte{svid.Certificates[0].Raw}, PrivateKey: svid.PrivateKey})
}

// publish starts an endpoint, which stops with the test.
func publish(t *testing.T, name string) *bundleEndpoint {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &bundleEndpoint{Issuer: testkit.NewIssuer(t, name), Listener: listener}
	e.renew(t)
	server := &http.Server{
		Handler: e, ReadHeaderTimeout: 5 * time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		TLSConfig: &tls.Config{
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return e.certificate.Load(), nil },
			MinVersion:     tls.VersionTLS12,
		},
	}
	ended := make(chan error, 1)
	go func() { ended <- server.ServeTLS(e, "", "") }()
	t.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
	return e
}

// federate starts the whole deployment, and agents of each trust domain that call from now on.
func federate(t *testing.T) *federation {
	t.Helper()
	f := &federation{plan: newPlan(t), t: t, sockets: testkit.SocketFolder(t), partner: testkit.NewIssuer(t, "partner.example")}
	f.vendor, f.shop = publish(t, "vendor.example"), publish(t, "shop.example")
	f.issuer = testkit.NewIssuer(t, local.Domain)
	f.issuer.Federate(f.partner.Bundle())
	f.serveAgent(t)
	t.Cleanup(func() { _ = f.agent.Close() })
	f.bootstrap(t).want(t, 0)
	f.configure(t)
	f.broker = launch(t, nil, "serve", "--config", f.config)
	f.broker.waitFor(t, f.broker.err, "msg=serving")
	f.steady = map[*devstack.Issuer]*steady{}
	for _, issuer := range []*devstack.Issuer{f.issuer, f.partner, f.vendor.Issuer, f.shop.Issuer} {
		f.steady[issuer] = f.keepCalling(t, f.prove(t, issuer))
	}
	f.unbroken(t)
	return f
}

// serveAgent starts the Workload API of the broker.
func (f *federation) serveAgent(t *testing.T) {
	t.Helper()
	var err error
	if f.agent, err = f.issuer.ServeWorkload(filepath.Join(f.sockets, "agent.sock"), spiffeid.RequireFromPath(f.issuer.TrustDomain(), "/brevet")); err != nil {
		t.Fatal(err)
	}
	f.socket = f.agent.Addr()
}

// configure writes what an operator who federates with three trust domains would.
func (f *federation) configure(t *testing.T) {
	t.Helper()
	f.webCertificate(t)
	pair, err := tls.LoadX509KeyPair(f.path("server.pem"), f.path("server-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	f.shop.certificate.Store(&pair)
	bundle, err := f.vendor.Bundle().Marshal()
	if err != nil {
		t.Fatal(err)
	}
	f.write(t, "vendor.json", string(bundle))
	f.write(t, "broker-url", f.login(t, "_broker", "password"))
	f.catalogue(t)
	_, shopPort, _ := net.SplitHostPort(f.shop.Addr().String())
	address, metrics := free(t), free(t)
	admins := []app.WorkloadRoleConfig{{ID: "spiffe://" + local.Domain + "/ops/admin"}}
	f.cfg = app.Config{
		Listen: address, Issuer: "https://" + address, MetricsListen: metrics,
		TLS: app.TLSConfig{WorkloadAPI: f.socket},
		TrustDomains: []app.TrustDomainConfig{
			{Name: local.Domain, WorkloadAPI: f.socket, Admins: admins},
			{Name: f.partner.TrustDomain().Name(), WorkloadAPI: f.socket, Admins: admins},
			{Name: f.vendor.TrustDomain().Name(), BundleEndpoint: &app.BundleEndpointConfig{
				URL: "https://" + f.vendor.Addr().String(), Profile: "https_spiffe", SPIFFEID: "spiffe://vendor.example/bundles", TrustFile: "vendor.json",
			}},
			{Name: f.shop.TrustDomain().Name(), BundleEndpoint: &app.BundleEndpointConfig{
				URL: "https://localhost:" + shopPort, Profile: "https_web", TrustFile: "ca.pem",
			}},
		},
		ResourceServers: []app.ResourceServerConfig{{ID: "spiffe://" + local.Domain + "/gateway", Audiences: []string{"https://gateway.acme.example"}}},
		Catalogue:       "catalog",
		Postgres:        app.PostgresConfig{URLFile: "broker-url"},
		Vault: app.VaultConfig{
			Address: f.vault, TransitMount: "transit-" + strings.ReplaceAll(f.schema, "_", "-"), SigningKey: "tokens", TokenRole: f.schema,
			AppRole: &app.AppRoleConfig{RoleIDFile: "approle/role_id", SecretIDFile: "approle/secret_id"},
		},
	}
	data, err := yaml.Dump(f.cfg)
	if err != nil {
		t.Fatal(err)
	}
	f.config = f.write(t, "brevet.yaml", string(data))
}

func (f *federation) catalogue(t *testing.T) {
	t.Helper()
	if err := os.Mkdir(f.path("catalog"), 0o700); err != nil {
		t.Fatal(err)
	}
	f.write(t, "catalog/scopes.yaml", `scopes:
  - name: probe.read
    title: Read
    authority: read
    resource: probe:all
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://gateway.acme.example}`)
	f.write(t, "catalog/policies.cedar", `@id("agents-read") permit (principal, action == Action::"probe.read", resource);`)
}

// free returns a free address.
func free(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// unbroken requires that no call of the steady agents has failed.
func (f *federation) unbroken(t *testing.T) {
	t.Helper()
	for _, s := range f.steady {
		s.unbroken(t)
	}
}

// ready requires the broker to be ready: a problem with one trust domain must not affect the others.
func (f *federation) ready(t *testing.T) {
	t.Helper()
	brevet(t, nil, "ready", "--config", f.config).want(t, 0, "bundles     ok")
}

// logged requires a line to be in the log this many times.
func (f *federation) logged(t *testing.T, line string, times int) {
	t.Helper()
	within(t, soon, line, func() bool { return strings.Count(f.broker.err.String(), line) == times })
}

func (f *federation) metrics(t *testing.T) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+f.cfg.MetricsListen, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
