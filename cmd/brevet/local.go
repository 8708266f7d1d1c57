package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/examples"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/mint"
	"github.com/brevet-dev/brevet/migrations"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"go.yaml.in/yaml/v4"
)

// localDomain is the trust domain of the dev stack. The example catalogue names it.
const localDomain = "acme.example"

// The workloads of the dev stack, by the name of their socket.
var localWorkloads = map[string]string{
	"brevet":   "/brevet",
	"research": "/research/agent-7",
	"support":  "/support/agent-1",
	"auditor":  "/ops/auditor",
	"admin":    "/ops/admin",
	"subagent": "/research/agent-7/summarizer",
	"gateway":  "/gateways/github",
}

// localDelegation is the audience of ID tokens with which a sandbox of the dev stack requests on behalf of a person.
const localDelegation = "agents"

// localClient is the OAuth client through which people log in.
const localClient = "brevet"

// localPeople are the people whom the dev stack's provider knows. Anybody on this machine can log in as any of them.
var localPeople = []devstack.DevPerson{
	{Username: "alice", Name: "Alice Adams", Groups: []string{"oncall", "finance"}},
	{Username: "bob", Name: "Bob Baker", Groups: []string{"oncall", "platform"}},
	{Username: "carol", Name: "Carol Clark", Groups: []string{"finance", "security"}},
	{Username: "dave", Name: "Dave Dean", Groups: []string{"security"}},
}

// localRoles are the roles of their groups.
var localRoles = []PeopleRoleConfig{
	{Role: "approver", Group: "oncall"},
	{Role: "approver", Group: "finance"},
	{Role: "approver", Group: "security"},
	{Role: "admin", Group: "platform"},
	{Role: "auditor", Group: "security"},
}

// localStack is a whole deployment in one folder: PostgreSQL, Vault, a SPIFFE issuer, an OpenID provider, and the
// configuration for `brevet serve`.
type localStack struct {
	*devstack.Stack
	issuer  *devstack.Issuer
	people  *devstack.Provider
	dir     string
	sockets string
	config  string
	api     string // address of the dev stack's API
	closers []func() error
	svidTTL time.Duration // how long SVIDs live; zero is the issuer's default
}

// startLocal starts a stack in dir, or resumes the one that is there.
func startLocal(ctx context.Context, dir string, progress func(string)) (*localStack, error) {
	return startLocalWith(ctx, dir, 0, progress)
}

// startLocalWith is startLocal with SVIDs that live for svidTTL. Zero means the default of one hour.
func startLocalWith(ctx context.Context, dir string, svidTTL time.Duration, progress func(string)) (_ *localStack, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("resolving the state folder: %w", err)
	}
	servers, err := devstack.Start(ctx, devstack.Config{Dir: dir, Progress: progress})
	if err != nil {
		return nil, err
	}
	l := &localStack{
		Stack: servers, dir: dir, svidTTL: svidTTL, config: filepath.Join(dir, "brevet.yaml"), closers: []func() error{servers.Close},
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	for _, step := range []struct {
		doing string
		do    func(context.Context) error
	}{
		{"preparing the database", l.prepareDatabase},
		{"choosing the API's address", l.chooseAPI},
		{"seeding the catalogue", l.seedCatalogue},
		{"preparing Vault", l.prepareVault},
		{"issuing identities", l.serveWorkloads},
		{"starting the OpenID provider", l.servePeople},
		{"writing the configuration", l.writeConfig},
	} {
		if err := step.do(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", step.doing, err)
		}
	}
	return l, nil
}

func (l *localStack) close() error {
	var errs []error
	for i := len(l.closers) - 1; i >= 0; i-- {
		errs = append(errs, l.closers[i]())
	}
	return errors.Join(errs...)
}

func (l *localStack) path(name string) string { return filepath.Join(l.dir, name) }

// prepareDatabase migrates the database. It creates a user for the broker that may only append, and one for auditors that
// may only read.
func (l *localStack) prepareDatabase(ctx context.Context) error {
	admin, err := url.Parse(l.Postgres.AdminURL())
	if err != nil {
		return fmt.Errorf("reading the database's URL: %w", err)
	}
	query := admin.Query()
	query.Set("search_path", migrations.Schema)
	admin.RawQuery = query.Encode()
	if err := migrations.Up(ctx, admin.String(), func(string) {}); err != nil {
		return err
	}
	for _, login := range []struct{ user, group, file string }{
		{"brevet", migrations.BrokerRole, "database-url"},
		{"auditor", migrations.AuditorRole, "auditor-url"},
	} {
		password := rand.Text()
		if err := migrations.EnsureLogin(ctx, admin.String(), login.user, login.group, password); err != nil {
			return err
		}
		as := *admin
		as.User = url.UserPassword(login.user, password)
		if err := replaceFile(l.path(login.file), as.String()+"\n"); err != nil {
			return err
		}
	}
	return replaceFile(l.path("owner-url"), admin.String()+"\n")
}

// prepareVault mounts the engines that the example catalogue needs, and gives the broker what it needs for the catalogue in
// the state folder.
func (l *localStack) prepareVault(ctx context.Context) error {
	catalogue, err := scopes.LoadFS(os.DirFS(l.path("catalog")))
	if err != nil {
		return fmt.Errorf("loading the catalogue in %s: %w", l.path("catalog"), err)
	}
	if err := l.PrepareEngines(ctx); err != nil {
		return err
	}
	return writeAppRole(ctx, l.path("approle"), mint.Bootstrap{
		Addr: l.Vault.Addr(), Token: l.Vault.RootToken(),
		Mount: "transit", SigningKey: "brevet", KeyType: "ecdsa-p256", Role: "brevet",
		TokenRole: "brevet", Policies: catalogue.VaultPolicies(), MaxTTL: longestTTL(catalogue),
	})
}

// serveWorkloads opens one Workload API socket for each workload. The socket that a process can open determines its
// identity.
func (l *localStack) serveWorkloads(context.Context) error {
	domain := spiffeid.RequireTrustDomainFromString(localDomain)
	// curl and browsers call these two workloads by host names.
	hosts := map[spiffeid.ID][]string{}
	for _, name := range []string{"brevet", "gateway"} {
		id, err := spiffeid.FromPath(domain, localWorkloads[name])
		if err != nil {
			return err
		}
		hosts[id] = []string{"localhost", "127.0.0.1", "::1"}
	}
	var err error
	l.issuer, err = devstack.NewIssuer(devstack.IssuerConfig{
		TrustDomain: domain, Dir: l.path("spiffe"), Now: time.Now, Hosts: hosts, X509TTL: l.svidTTL, JWTTTL: min(l.svidTTL, 5*time.Minute),
	})
	if err != nil {
		return err
	}
	if l.sockets, err = l.socketFolder(); err != nil {
		return err
	}
	for name, path := range localWorkloads {
		id, err := spiffeid.FromPath(domain, path)
		if err != nil {
			return err
		}
		endpoint, err := l.issuer.ServeWorkload(l.socketPath(name), id)
		if err != nil {
			return fmt.Errorf("serving %s: %w", id, err)
		}
		l.closers = append(l.closers, endpoint.Close)
	}
	return nil
}

// servePeople starts the OpenID provider. It reuses the address of an earlier run if that is free, so that logins stay
// valid.
func (l *localStack) servePeople(ctx context.Context) error {
	wanted := ""
	if earlier := l.earlier().People; earlier != nil {
		wanted = strings.TrimPrefix(earlier.Issuer, "http://")
	}
	address, err := freeAddress(ctx, wanted)
	if err != nil {
		return err
	}
	l.people, err = devstack.NewProvider(devstack.ProviderConfig{
		Address: address, ClientID: localClient, People: localPeople, Now: time.Now, StateDir: l.path("people"),
	})
	if err != nil {
		return err
	}
	l.closers = append(l.closers, l.people.Close)
	return nil
}

// longestSocketPath is the length in bytes that fits into the address of a Unix socket on every system.
const longestSocketPath = 100

// socketFolder returns a folder for sockets. It is in the state folder, or a short one elsewhere if paths there are too
// long for sockets.
func (l *localStack) socketFolder() (string, error) {
	inside := l.path("svid")
	if len(inside)+len("/research.sock") <= longestSocketPath {
		return inside, os.MkdirAll(inside, 0o700)
	}
	short, err := os.MkdirTemp("", "brevet-")
	if err == nil {
		l.closers = append(l.closers, func() error { return os.RemoveAll(short) })
	}
	return short, err
}

func (l *localStack) socketPath(name string) string { return filepath.Join(l.sockets, name+".sock") }

// socket returns the address of a workload's Workload API.
func (l *localStack) socket(name string) string { return "unix://" + l.socketPath(name) }

// seedCatalogue copies the example catalogue once. Afterwards the developer may change it. It also allows gateways to call
// the stack's own API.
func (l *localStack) seedCatalogue(context.Context) error {
	if _, err := os.Stat(l.path("catalog")); err == nil {
		return nil
	}
	catalog, err := fs.Sub(examples.Catalog, "catalog")
	if err != nil {
		return err
	}
	if err := os.CopyFS(l.path("catalog"), catalog); err != nil {
		return err
	}
	github := filepath.Join(l.path("catalog"), "github.yaml")
	text, err := os.ReadFile(github)
	if err != nil {
		return err
	}
	return replaceFile(github, strings.ReplaceAll(string(text), "hosts: [api.github.com]", "hosts: [api.github.com, '"+l.apiHost()+"']"))
}

// writeConfig writes the file that `brevet serve` and the dev stack's own server read. It keeps the addresses of an earlier
// run if they are free, so that clients find the broker again.
func (l *localStack) writeConfig(ctx context.Context) error {
	address, err := freeAddress(ctx, l.earlier().Listen)
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	pagesAddress, err := freeAddress(ctx, l.earlierConsole())
	if err != nil {
		return err
	}
	_, pagesPort, err := net.SplitHostPort(pagesAddress)
	if err != nil {
		return err
	}
	cfg := Config{
		Listen: address,
		Issuer: "https://localhost:" + port,
		Hosts:  []string{address},
		// The default contains the port, which may change with the next run.
		LedgerName: localDomain + "/ledger",
		TLS:        TLSConfig{WorkloadAPI: l.socket("brevet")},
		TrustDomains: []TrustDomainConfig{{
			Name: localDomain, WorkloadAPI: l.socket("brevet"),
			Auditors: []WorkloadRoleConfig{{ID: "spiffe://" + localDomain + localWorkloads["auditor"]}},
			Admins:   []WorkloadRoleConfig{{ID: "spiffe://" + localDomain + localWorkloads["admin"]}},
		}},
		ResourceServers: []ResourceServerConfig{{
			ID: "spiffe://" + localDomain + localWorkloads["gateway"], Audiences: []string{localAudience},
		}},
		People: &PeopleConfig{
			Issuer: l.people.Issuer(), ClientID: localClient, DelegationAudiences: []string{localDelegation}, Roles: localRoles,
		},
		Console:   &ConsoleConfig{Listen: pagesAddress, URL: "http://localhost:" + pagesPort},
		Catalogue: "catalog",
		Postgres:  PostgresConfig{URLFile: "database-url"},
		Vault: VaultConfig{
			Address: l.Vault.Addr(),
			AppRole: &AppRoleConfig{RoleIDFile: "approle/role_id", SecretIDFile: "approle/secret_id"},
		},
	}
	data, err := yaml.Dump(cfg)
	if err != nil {
		return err
	}
	return os.WriteFile(l.config, data, 0o600)
}

// earlier returns the configuration of an earlier run, or the zero value if there was none.
func (l *localStack) earlier() Config {
	cfg, err := loadConfig(l.config)
	if err != nil {
		return Config{}
	}
	return cfg
}

func (l *localStack) earlierConsole() string {
	if earlier := l.earlier().Console; earlier != nil {
		return earlier.Listen
	}
	return ""
}

// freeAddress returns wanted if it is free, and another free address otherwise.
func freeAddress(ctx context.Context, wanted string) (string, error) {
	candidates := []string{"127.0.0.1:0"}
	if wanted != "" {
		candidates = append([]string{wanted}, candidates...)
	}
	var errs []error
	for _, candidate := range candidates {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", candidate)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		return listener.Addr().String(), listener.Close()
	}
	return "", errors.Join(errs...)
}
