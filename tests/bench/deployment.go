package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
)

//go:embed catalog
var catalog embed.FS

const domain = "bench.example"

// deployment is what a platform team would run: PostgreSQL, Vault, and the broker's binary as separate processes, all on
// this machine.
type deployment struct {
	servers *devstack.Stack
	issuer  *devstack.Issuer
	socket  *devstack.Endpoint
	brokers []*replica
	peers   []*exec.Cmd // servers that are compared with it
	// url is the first broker's URL.
	url    string
	dir    string
	binary string
	// password is the broker's password for PostgreSQL.
	password string
	log      io.Writer // receives the brokers' logs
}

// replica is one broker process and its addresses.
type replica struct {
	process *exec.Cmd
	url     string
	metrics string // host:port
	config  string // path of its configuration file
}

// start starts a deployment with one broker. Binary is the broker's binary, and files are its catalogue.
func start(ctx context.Context, binary string, files fs.FS) (*deployment, error) {
	d, err := prepare(ctx, binary, files)
	if err != nil {
		return nil, err
	}
	if d.url, err = d.serve(ctx); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// prepare starts everything but the broker.
func prepare(ctx context.Context, binary string, files fs.FS) (_ *deployment, err error) {
	d := &deployment{binary: binary, log: os.Stderr}
	if d.dir, err = os.MkdirTemp("", "bench-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if d.servers, err = devstack.Start(ctx, devstack.Config{Dir: d.path("state")}); err != nil {
		return nil, err
	}
	if err = d.servers.PrepareEngines(ctx); err != nil {
		return nil, err
	}
	if err = d.serveIdentity(); err != nil {
		return nil, err
	}
	if err = d.configure(files); err != nil {
		return nil, err
	}
	if err = d.run(ctx, "bootstrap",
		"--database-url-file", d.path("admin-url"), "--broker-password-file", d.path("password"),
		"--vault-address", d.servers.Vault.Addr(), "--vault-token-file", d.path("root-token"),
		"--vault-approle-dir", d.path("approle"), "--catalogue", d.path("catalog")); err != nil {
		return nil, fmt.Errorf("preparing the deployment: %w", err)
	}
	return d, nil
}

func (d *deployment) path(name string) string { return filepath.Join(d.dir, name) }

func (d *deployment) serveIdentity() (err error) {
	trust := spiffeid.RequireTrustDomainFromString(domain)
	if d.issuer, err = devstack.NewIssuer(devstack.IssuerConfig{TrustDomain: trust, X509TTL: 24 * time.Hour}); err != nil {
		return err
	}
	d.socket, err = d.issuer.ServeWorkload(d.path("svid.sock"), spiffeid.RequireFromPath(trust, "/brevet"))
	return err
}

// configure writes the files that bootstrap reads.
func (d *deployment) configure(files fs.FS) error {
	d.password = rand.Text()
	for name, text := range map[string]string{
		"admin-url": d.servers.Postgres.TCPURL(), "password": d.password, "root-token": d.servers.Vault.RootToken(),
	} {
		if err := os.WriteFile(d.path(name), []byte(text+"\n"), 0o600); err != nil {
			return err
		}
	}
	return os.CopyFS(d.path("catalog"), files)
}

// asBuilt returns the catalogue that most measurements use.
func asBuilt() fs.FS {
	files, _ := fs.Sub(catalog, "catalog") // the compiler ensures that the folder is embedded
	return files
}

const configuration = `
listen: ADDRESS
metrics_listen: METRICS
issuer: https://bench.example
hosts: [ADDRESS]
tls: {workload_api: "SOCKET"}
trust_domains: [{name: bench.example, workload_api: "SOCKET", admins: ["spiffe://bench.example/ops/admin"]}]
catalogue: catalog
resource_servers: [{id: "spiffe://bench.example/gateway", audiences: ["https://gateway.bench.example"]}]
postgres: {url_file: DATABASE}
vault: {address: "VAULT", approle: {role_id_file: approle/role_id, secret_id_file: approle/secret_id}}
log: {level: warn}
`

func (d *deployment) run(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, d.binary, args...).CombinedOutput() //nolint:gosec // the broker's own binary
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// serve starts another broker, waits until it is ready, and returns its URL.
func (d *deployment) serve(ctx context.Context) (string, error) {
	r, err := d.serveFrom(ctx, d.servers.Postgres.TCPURL())
	if err != nil {
		return "", err
	}
	return r.url, nil
}

// serveFrom starts another broker, which reaches PostgreSQL at the given URL, and waits until it is ready.
func (d *deployment) serveFrom(ctx context.Context, database string) (*replica, error) {
	u, err := url.Parse(database)
	if err != nil {
		return nil, err
	}
	u.User = url.UserPassword("brevet", d.password)
	address, err := freeAddress(ctx)
	if err != nil {
		return nil, err
	}
	metrics, err := freeAddress(ctx)
	if err != nil {
		return nil, err
	}
	r := &replica{url: "https://" + address, metrics: metrics, config: d.path(fmt.Sprintf("brevet-%d.yaml", len(d.brokers)))}
	text := strings.NewReplacer(
		"ADDRESS", address, "METRICS", metrics, "SOCKET", d.socket.Addr(), "VAULT", d.servers.Vault.Addr(), "DATABASE", r.config+".url",
	).Replace(configuration)
	if err := errors.Join(os.WriteFile(r.config+".url", []byte(u.String()), 0o600), os.WriteFile(r.config, []byte(text), 0o600)); err != nil {
		return nil, err
	}
	d.brokers = append(d.brokers, r)
	return r, d.launch(ctx, r)
}

// launch starts the process of a replica and waits until it is ready. The replica's earlier process, if any, has ended.
func (d *deployment) launch(ctx context.Context, r *replica) error {
	r.process = exec.CommandContext(ctx, d.binary, "serve", "--config", r.config) //nolint:gosec // the broker's own binary
	r.process.Stderr = d.log
	r.process.Cancel = func() error { return r.process.Process.Signal(syscall.SIGTERM) }
	if err := r.process.Start(); err != nil {
		return err
	}
	return d.ready(ctx, r.url)
}

// freeAddress returns a loopback address, as host:port, on which no program listens now.
func freeAddress(ctx context.Context) (string, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}

// end sends a replica SIGTERM, so that it drains, and waits until it has ended.
func (r *replica) end() {
	_ = r.process.Process.Signal(syscall.SIGTERM)
	_ = r.process.Wait()
}

// stop ends all brokers.
func (d *deployment) stop() {
	for _, r := range d.brokers {
		if r.process.Process != nil {
			r.end()
		}
	}
	d.brokers = nil
}

// ready waits until a broker is ready, for at most a minute.
func (d *deployment) ready(ctx context.Context, at string) error {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: d.anonymous()}, Timeout: time.Second}
	defer client.CloseIdleConnections()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, at+"/readyz", nil)
		if err != nil {
			return err
		}
		if resp, err := client.Do(req); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
	}
	return errors.New("the broker is not ready after a minute")
}

// anonymous returns the TLS configuration of a caller without a certificate.
func (d *deployment) anonymous() *tls.Config {
	return tlsconfig.TLSClientConfig(d.issuer.Bundle(), tlsconfig.AuthorizeID(spiffeid.RequireFromString("spiffe://"+domain+"/brevet")))
}

// proved returns the TLS configuration of a workload with an X.509-SVID for id.
func (d *deployment) proved(id spiffeid.ID) (*tls.Config, error) {
	svid, err := d.issuer.X509SVID(id)
	if err != nil {
		return nil, err
	}
	return tlsconfig.MTLSClientConfig(svid, d.issuer.Bundle(), tlsconfig.AuthorizeID(spiffeid.RequireFromString("spiffe://"+domain+"/brevet"))), nil
}

// close stops everything that was started and removes all files.
func (d *deployment) close() error {
	var errs []error
	d.stop()
	for _, peer := range d.peers {
		_ = peer.Process.Signal(syscall.SIGTERM)
		_ = peer.Wait()
	}
	if d.socket != nil {
		errs = append(errs, d.socket.Close())
	}
	if d.servers != nil {
		errs = append(errs, d.servers.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(d.dir))...)
}
