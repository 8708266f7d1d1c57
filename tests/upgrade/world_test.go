package upgrade_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/migrations"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
)

const (
	issuer   = "https://brevet.test"
	audience = "https://git.test"
	admin    = "spiffe://acme.test/ops/admin"
	auditor  = "spiffe://acme.test/ops/auditor"
	gateway  = "spiffe://acme.test/gateways/git"
	person   = "alice"
	clientID = "brevet"
	// stepsWithin is longer than a migration keeps trying.
	stepsWithin = 3 * time.Minute
	// stopsWithin is longer than a replica may take to stop.
	stopsWithin = 40 * time.Second
)

var isBrevet = tlsconfig.AuthorizeID(spiffeid.RequireFromString("spiffe://acme.test/brevet"))

const scopesYAML = `scopes:
  - name: git.issues.read
    title: Read issues
    authority: read
    resource: git:issues
    ttl: {default: 15m, max: 15m}
    credential: {kind: jwt, audience: https://git.test}
    egress: [{hosts: [git.test], methods: [GET], paths: [/issues]}]
  - name: git.issues.write
    title: Write issues
    authority: write
    resource: git:issues
    ttl: {default: 15m, max: 15m}
    approval: {group: oncall, quorum: 1}
    credential: {kind: jwt, audience: https://git.test}
  - name: shop.orders.read
    title: Read orders
    authority: read
    resource: shop:orders
    ttl: {default: 15m, max: 15m}
    credential: {kind: database, mount: database, role: reporting}
`

const policy = `@id("agents") permit (principal in Path::"spiffe://acme.test/agents", action, resource);
@id("people") forbid (principal, action == Action::"git.issues.write", resource) unless { context.approved };
`

const configuration = `
listen: ADDRESS
issuer: https://brevet.test
hosts: [ADDRESS, BALANCER]
tls: {workload_api: "SOCKET"}
trust_domains:
  - name: acme.test
    workload_api: "SOCKET"
    admins: [` + admin + `]
    auditors: [` + auditor + `]
resource_servers: [{id: ` + gateway + `, audiences: [` + audience + `]}]
people: {issuer: "PEOPLE", client_id: ` + clientID + `, roles: [{role: approver, group: oncall}]}
catalogue: catalog
postgres: {url_file: broker-url}
vault: {address: "VAULT", approle: {role_id_file: approle/role_id, secret_id_file: approle/secret_id}}
log: {level: warn}
`

// announced is the configuration key for how long replicas announce their end before they stop.
const announced = "lame_duck: 2s\n"

// version is a build of brevet.
type version struct {
	name, binary string
	announces    bool // its replicas can announce their end
}

// versionAt finds out what a binary supports: it rejects unknown configuration keys by name.
func (w *world) versionAt(t *testing.T, name, binary string) version {
	t.Helper()
	file := w.path("announced.yaml")
	if err := os.WriteFile(file, []byte(announced), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), binary, "serve", "--config", file).CombinedOutput()
	if err == nil {
		t.Fatalf("%s serves by an empty configuration", name)
	}
	return version{name, binary, !strings.Contains(string(out), "lame_duck")}
}

// replica is a process of `brevet serve`.
type replica struct {
	version
	addr  string
	cmd   *exec.Cmd
	log   *testkit.Buffer
	ended chan struct{}
}

// world is a deployment: PostgreSQL, Vault, identities, people, and replicas behind a balancer.
type world struct {
	t        *testing.T // the deployment ends with it
	dir      string
	servers  *devstack.Stack
	issuer   *devstack.Issuer
	people   *devstack.Provider
	socket   *devstack.Endpoint
	balancer *balancer
	tally    *tally
	books    *books
	replicas [2]*replica
	started  int // replicas so far
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), servers: testkit.Devstack(t), tally: newTally(), books: newBooks()}
	if err := w.servers.PrepareEngines(t.Context()); err != nil {
		t.Fatal(err)
	}
	trust := spiffeid.RequireTrustDomainFromString("acme.test")
	var err error
	if w.issuer, err = devstack.NewIssuer(devstack.IssuerConfig{TrustDomain: trust}); err != nil {
		t.Fatal(err)
	}
	if w.socket, err = w.issuer.ServeWorkload(w.path("svid.sock"), spiffeid.RequireFromPath(trust, "/brevet")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.socket.Close() })
	w.people, err = devstack.NewProvider(devstack.ProviderConfig{
		Address: "127.0.0.1:0", ClientID: clientID, People: []devstack.DevPerson{{Username: person, Groups: []string{"oncall"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.people.Close() })
	w.write(t)
	w.balancer = newBalancer(t, tlsconfig.TLSClientConfig(w.issuer.Bundle(), isBrevet))
	return w
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

// write writes the files that brevet reads.
func (w *world) write(t *testing.T) {
	t.Helper()
	broker, err := url.Parse(w.servers.Postgres.TCPURL())
	if err != nil {
		t.Fatal(err)
	}
	password := rand.Text()
	broker.User = url.UserPassword("brevet", password)
	if err := os.Mkdir(w.path("catalog"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"owner-url": w.servers.Postgres.TCPURL(), "password": password, "broker-url": broker.String(),
		"root-token": w.servers.Vault.RootToken(), "catalog/scopes.yaml": scopesYAML, "catalog/policy.cedar": policy,
	} {
		if err := os.WriteFile(w.path(name), []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// owner returns the URL of the owner's connection to the ledger.
func (w *world) owner(t *testing.T) string {
	t.Helper()
	u, err := url.Parse(w.servers.Postgres.TCPURL())
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set("search_path", migrations.Schema)
	u.RawQuery = query.Encode()
	return u.String()
}

// run runs brevet to its end, and returns its output.
func (w *world) run(t *testing.T, v version, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepsWithin)
	defer cancel()
	out, err := exec.CommandContext(ctx, v.binary, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s of %s: %v\n%s", args[0], v.name, err, out)
	}
	return string(out)
}

// bootstrap prepares the database and Vault for a version, as docs/deploy.md says to do before that version starts.
func (w *world) bootstrap(t *testing.T, v version) {
	t.Helper()
	w.run(t, v, "bootstrap", "--database-url-file", w.path("owner-url"), "--broker-password-file", w.path("password"),
		"--vault-address", w.servers.Vault.Addr(), "--vault-token-file", w.path("root-token"),
		"--vault-approle-dir", w.path("approle"), "--catalogue", w.path("catalog"))
}

// serve starts a replica and puts it behind the balancer.
func (w *world) serve(t *testing.T, i int, v version) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.started++
	r := &replica{version: v, addr: listener.Addr().String(), log: &testkit.Buffer{}, ended: make(chan struct{})}
	file := w.path(fmt.Sprintf("brevet-%d.yaml", w.started))
	text := strings.NewReplacer("ADDRESS", r.addr, "BALANCER", w.balancer.listener.Addr().String(), "SOCKET", w.socket.Addr(),
		"PEOPLE", w.people.Issuer(), "VAULT", w.servers.Vault.Addr()).Replace(configuration)
	if v.announces {
		text += announced
	}
	if err := errors.Join(listener.Close(), os.WriteFile(file, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	r.cmd = exec.Command(v.binary, "serve", "--config", file)
	r.cmd.Stderr, r.cmd.SysProcAttr = r.log, mortal()
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = r.cmd.Wait()
		close(r.ended)
	}()
	w.t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		<-r.ended
	})
	w.replicas[i] = r
	w.balancer.put(i, r.addr)
}

// comes blocks until a replica is behind the balancer.
func (w *world) comes(t *testing.T, i int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepsWithin)
	defer cancel()
	arrived := make(chan error, 1)
	go func() { arrived <- w.balancer.await(ctx, i) }()
	select {
	case err := <-arrived:
		if err != nil {
			t.Fatalf("replica %d of %s is not ready: %v\n%s", i+1, w.replicas[i].name, err, w.replicas[i].log)
		}
	case <-w.replicas[i].ended:
		t.Fatalf("replica %d of %s has ended: %s\n%s", i+1, w.replicas[i].name, w.replicas[i].cmd.ProcessState, w.replicas[i].log)
	}
}

// tell signals a replica to stop, as an orchestrator does.
func (w *world) tell(t *testing.T, i int) {
	t.Helper()
	if err := w.replicas[i].cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

// gone checks that a replica that was signalled to stop exits cleanly.
func (w *world) gone(t *testing.T, i int) {
	t.Helper()
	r := w.replicas[i]
	select {
	case <-r.ended:
	case <-time.After(stopsWithin):
		t.Fatalf("replica %d of %s has not gone after %s\n%s", i+1, r.name, stopsWithin, r.log)
	}
	if !r.cmd.ProcessState.Success() {
		t.Errorf("replica %d of %s has ended with %s", i+1, r.name, r.cmd.ProcessState)
	}
	if text := r.log.String(); strings.Contains(text, "level=ERROR") {
		t.Errorf("replica %d of %s has logged errors:\n%s", i+1, r.name, text)
	}
}

// replace stops a replica and starts one of another version in its place.
func (w *world) replace(t *testing.T, i int, v version) {
	t.Helper()
	w.tell(t, i)
	w.gone(t, i)
	w.serve(t, i, v)
	w.comes(t, i)
}

// direct returns the address of one replica.
func (w *world) direct(i int) string { return "https://" + w.replicas[i].addr }

// proved returns a client with a certificate, at the balancer or at one replica.
func (w *world) proved(id, at string) (*client.Client, error) {
	svid, err := w.issuer.X509SVID(spiffeid.RequireFromString(id))
	if err != nil {
		return nil, err
	}
	return client.New(client.Config{BaseURL: at}, client.WithX509(svid, w.issuer.Bundle(), isBrevet))
}

// bearer returns a sandbox's client that authenticates with JWT-SVIDs.
func (w *world) bearer(id, at string) (*client.Client, error) {
	return client.New(client.Config{BaseURL: at}, client.WithServer(w.issuer.Bundle(), isBrevet), client.WithJWT(svids{w.issuer, id}, issuer))
}

// asker returns the gateway, using a version of HTTP.
func (w *world) asker(at string, protocols http.Protocols) (*asker, error) {
	svid, err := w.issuer.X509SVID(spiffeid.RequireFromString(gateway))
	if err != nil {
		return nil, err
	}
	trust := tlsconfig.MTLSClientConfig(svid, w.issuer.Bundle(), isBrevet)
	return &asker{at, &http.Client{Transport: &http.Transport{TLSClientConfig: trust, Protocols: &protocols}, Timeout: patience}}, nil
}

// party returns a sandbox with the other participants of its story, at the balancer or at one replica.
func (w *world) party(t *testing.T, sandbox *client.Client, at string) *party {
	t.Helper()
	officer, err1 := w.proved(admin, at)
	anyone, err2 := client.New(client.Config{BaseURL: at}, client.WithServer(w.issuer.Bundle(), isBrevet))
	var http2 http.Protocols
	http2.SetHTTP2(true)
	asker, err3 := w.asker(at, http2)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	person, err := anyone.AsPerson(w.people.Person(person))
	if err != nil {
		t.Fatal(err)
	}
	p := &party{tally: w.tally, books: w.books, sandbox: sandbox, officer: officer, person: person, asker: asker, database: w.servers.Postgres.TargetURL()}
	t.Cleanup(p.hangUp)
	return p
}
