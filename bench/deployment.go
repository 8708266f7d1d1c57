package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"embed"
	"errors"
	"fmt"
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

	"github.com/brevet-dev/brevet/devstack"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
)

//go:embed catalog
var catalog embed.FS

const domain = "bench.example"

// deployment is what a platform team would run, on this machine: PostgreSQL, Vault, and the broker's own binary.
type deployment struct {
	servers *devstack.Stack
	issuer  *devstack.Issuer
	socket  *devstack.Endpoint
	broker  *exec.Cmd
	url     string
	dir     string
}

// start brings all of it up. Binary is the broker's.
func start(ctx context.Context, binary string) (_ *deployment, err error) {
	d := &deployment{}
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
	if err = d.configure(ctx); err != nil {
		return nil, err
	}
	if err = d.run(ctx, binary, "bootstrap",
		"--database-url-file", d.path("admin-url"), "--broker-password-file", d.path("password"),
		"--vault-address", d.servers.Vault.Addr(), "--vault-token-file", d.path("root-token"),
		"--vault-approle-dir", d.path("approle"), "--catalogue", d.path("catalog")); err != nil {
		return nil, fmt.Errorf("preparing the deployment: %w", err)
	}
	return d, d.serve(ctx, binary)
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

// configure writes what the broker reads.
func (d *deployment) configure(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	address := listener.Addr().String()
	d.url = "https://" + address
	admin, err := url.Parse(d.servers.Postgres.TCPURL())
	if err = errors.Join(err, listener.Close()); err != nil {
		return err
	}
	password := rand.Text()
	broker := *admin
	broker.User = url.UserPassword("brevet", password)
	files := map[string]string{
		"admin-url": admin.String(), "password": password, "broker-url": broker.String(), "root-token": d.servers.Vault.RootToken(),
		"brevet.yaml": strings.NewReplacer("ADDRESS", address, "SOCKET", d.socket.Addr(), "VAULT", d.servers.Vault.Addr()).Replace(configuration),
	}
	for name, text := range files {
		if err := os.WriteFile(d.path(name), []byte(text+"\n"), 0o600); err != nil {
			return err
		}
	}
	scopes, err := fs.Sub(catalog, "catalog")
	if err != nil {
		return err
	}
	return os.CopyFS(d.path("catalog"), scopes)
}

const configuration = `
listen: ADDRESS
issuer: https://ADDRESS
tls: {workload_api: "SOCKET"}
trust_domains: [{name: bench.example, workload_api: "SOCKET", admins: ["spiffe://bench.example/ops/admin"]}]
catalogue: catalog
postgres: {url_file: broker-url}
vault: {address: "VAULT", approle: {role_id_file: approle/role_id, secret_id_file: approle/secret_id}}
log: {level: warn}
`

func (d *deployment) run(ctx context.Context, binary string, args ...string) error {
	out, err := exec.CommandContext(ctx, binary, args...).CombinedOutput() //nolint:gosec // the broker's own binary
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// serve starts the broker, and returns when it is ready.
func (d *deployment) serve(ctx context.Context, binary string) error {
	d.broker = exec.CommandContext(ctx, binary, "serve", "--config", d.path("brevet.yaml")) //nolint:gosec // the broker's own binary
	d.broker.Stderr = os.Stderr
	d.broker.Cancel = func() error { return d.broker.Process.Signal(syscall.SIGTERM) }
	if err := d.broker.Start(); err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: d.anonymous()}, Timeout: time.Second}
	defer client.CloseIdleConnections()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.url+"/readyz", nil)
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

// anonymous is the TLS of a caller without a certificate.
func (d *deployment) anonymous() *tls.Config {
	return tlsconfig.TLSClientConfig(d.issuer.Bundle(), tlsconfig.AuthorizeID(spiffeid.RequireFromString("spiffe://"+domain+"/brevet")))
}

// proved is the TLS of a sandbox.
func (d *deployment) proved(id spiffeid.ID) (*tls.Config, error) {
	svid, err := d.issuer.X509SVID(id)
	if err != nil {
		return nil, err
	}
	return tlsconfig.MTLSClientConfig(svid, d.issuer.Bundle(), tlsconfig.AuthorizeID(spiffeid.RequireFromString("spiffe://"+domain+"/brevet"))), nil
}

// close ends all that was started, and leaves nothing.
func (d *deployment) close() error {
	var errs []error
	if d.broker != nil && d.broker.Process != nil {
		_ = d.broker.Process.Signal(syscall.SIGTERM)
		_ = d.broker.Wait()
	}
	if d.socket != nil {
		errs = append(errs, d.socket.Close())
	}
	if d.servers != nil {
		errs = append(errs, d.servers.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(d.dir))...)
}
