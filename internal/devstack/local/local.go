// Package local runs a whole deployment in one folder: PostgreSQL, Vault, a SPIFFE issuer, an OpenID provider, and the
// configuration of a broker. It is for `brevet dev`, the demo and tests.
//
// It must never serve anything but this machine: its user can act as any of its workloads and people. On systems other than Linux,
// every user of the machine can act as its people.
package local

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/examples"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/mint"
	"github.com/brevet-dev/brevet/internal/private"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/migrations"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"go.yaml.in/yaml/v4"
)

// Domain is the trust domain of a stack. The example catalogue names it.
const Domain = "acme.example"

// Workloads are the paths of the SPIFFE IDs of a stack, by the name of their socket.
var Workloads = map[string]string{
	"brevet":   "/brevet",
	"research": "/research/agent-7",
	"support":  "/support/agent-1",
	"auditor":  "/ops/auditor",
	"admin":    "/ops/admin",
	"subagent": "/research/agent-7/summarizer",
	"gateway":  "/gateways/github",
	"coding":   "/coding/agent-1",
}

// ID returns the SPIFFE ID of a workload.
func ID(workload string) spiffeid.ID {
	return spiffeid.RequireFromString("spiffe://" + Domain + Workloads[workload])
}

const (
	delegation  = "agents" // audience of ID tokens with which a sandbox requests on behalf of a person
	loginClient = "brevet" // OAuth client through which people log in
)

// people are those whom the stack's provider knows. The user of the stack can log in as any of them.
var people = []devstack.DevPerson{
	{Username: "alice", Name: "Alice Adams", Groups: []string{"oncall", "finance"}},
	{Username: "bob", Name: "Bob Baker", Groups: []string{"oncall", "platform"}},
	{Username: "carol", Name: "Carol Clark", Groups: []string{"finance", "security"}},
	{Username: "dave", Name: "Dave Dean", Groups: []string{"security"}},
	{Username: "erin", Name: "Erin Evans", Groups: []string{"platform", "security"}},
}

// configuration is for `brevet serve`. The default of ledger_name would contain the port, which may change.
const configuration = `listen: %[1]q
issuer: %[2]q
hosts: [%[1]q]
ledger_name: acme.example/ledger
tls:
  workload_api: %[3]q
trust_domains:
  - name: acme.example
    workload_api: %[3]q
    auditors: [spiffe://acme.example/ops/auditor]
    admins: [spiffe://acme.example/ops/admin]
resource_servers:
  - id: spiffe://acme.example/gateways/github
    audiences: [%[4]q]
people:
  issuer: %[5]q
  client_id: brevet
  delegation_audiences: [agents]
  roles:
    - {role: approver, group: oncall}
    - {role: approver, group: finance}
    - {role: approver, group: security}
    - {role: admin, group: platform}
    - {role: auditor, group: security}
console:
  listen: %[6]q
  url: %[7]q
catalogue: catalog
postgres:
  url_file: database-url
vault:
  address: %[8]q
  approle: {role_id_file: approle/role_id, secret_id_file: approle/secret_id}
`

// Config says what Start starts.
type Config struct {
	// Dir is the state folder. A stack that is there resumes.
	Dir string
	// SVIDTTL is the lifetime of SVIDs. Zero means one hour.
	SVIDTTL  time.Duration
	Progress func(string)
	// Catalogue is the folder whose catalogue a new stack gets. Empty means the example catalogue.
	Catalogue string
	// GitHub are Apps to add to those of earlier runs, by name. GitHubKeys are their private keys in PEM, to import into Vault.
	GitHub     map[string]GitHubApp
	GitHubKeys map[string]secret.Text
}

// GitHubApp is a GitHub App in the configuration of `brevet serve`.
type GitHubApp struct {
	ClientID string `yaml:"client_id"`
	URL      string `yaml:"url,omitempty"`
	CAFile   string `yaml:"ca_file,omitempty"`
}

// ErrCatalogue says that a stack already has another catalogue than the given one.
var ErrCatalogue = errors.New("the stack already has a catalogue")

// Stack is a deployment without its broker.
type Stack struct {
	*devstack.Stack
	Issuer     *devstack.Issuer
	People     *devstack.Provider
	Dir        string
	ConfigFile string
	URL        string // of the broker, which is also its issuer
	Console    string // URL of the console

	earlier struct { // what the configuration of an earlier run says
		Listen  string
		People  struct{ Issuer string }
		Console struct{ Listen string }
		GitHub  map[string]GitHubApp
	}
	wanted  Config
	sockets string // the folder of the sockets
	api     string // address of the stack's API
	closers []func() error
}

// Start starts a stack, or resumes the one that is in the folder.
func Start(ctx context.Context, c Config) (_ *Stack, err error) {
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return nil, fmt.Errorf("resolving the state folder: %w", err)
	}
	servers, err := devstack.Start(ctx, devstack.Config{Dir: dir, Progress: c.Progress})
	if err != nil {
		return nil, err
	}
	s := &Stack{Stack: servers, Dir: dir, ConfigFile: filepath.Join(dir, "brevet.yaml"), wanted: c, closers: []func() error{servers.Close}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if text, err := os.ReadFile(s.ConfigFile); err == nil {
		_ = yaml.Unmarshal(text, &s.earlier) // without an earlier address, any will do
	}
	for _, step := range []struct {
		doing string
		do    func(context.Context) error
	}{
		{"preparing the database", s.prepareDatabase},
		{"choosing the API's address", s.chooseAPI},
		{"seeding the catalogue", s.seedCatalogue},
		{"preparing Vault", s.prepareVault},
		{"issuing identities", func(context.Context) error { return s.serveWorkloads(c.SVIDTTL) }},
		{"starting the OpenID provider", s.servePeople},
		{"writing the configuration", s.writeConfig},
	} {
		if err := step.do(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", step.doing, err)
		}
	}
	return s, nil
}

// Close stops the servers.
func (s *Stack) Close() error {
	var errs []error
	for _, stop := range slices.Backward(s.closers) {
		errs = append(errs, stop())
	}
	return errors.Join(errs...)
}

// Path returns the path of a file of the stack.
func (s *Stack) Path(name string) string { return filepath.Join(s.Dir, name) }

// prepareDatabase migrates the database, and creates a user for the broker, which may append, and one for auditors, who may read.
func (s *Stack) prepareDatabase(ctx context.Context) error {
	admin, err := url.Parse(s.Postgres.AdminURL())
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
		if err := secret.WriteFile(s.Path(login.file), as.String()+"\n"); err != nil {
			return err
		}
	}
	return secret.WriteFile(s.Path("owner-url"), admin.String()+"\n")
}

// seedCatalogue copies a catalogue once, for the developer to change. With the examples, gateways may also call the stack's own
// API.
func (s *Stack) seedCatalogue(context.Context) error {
	_, err := os.Stat(s.Path("catalog"))
	switch {
	case err == nil && s.wanted.Catalogue == "":
		return nil
	case err == nil:
		return s.sameCatalogue()
	case s.wanted.Catalogue != "":
		if _, err := scopes.LoadFS(os.DirFS(s.wanted.Catalogue)); err != nil {
			return fmt.Errorf("loading the catalogue in %s: %w", s.wanted.Catalogue, err)
		}
		return os.CopyFS(s.Path("catalog"), os.DirFS(s.wanted.Catalogue))
	}
	catalog, err := fs.Sub(examples.Catalog, "catalog")
	if err != nil {
		return err
	}
	if err := os.CopyFS(s.Path("catalog"), catalog); err != nil {
		return err
	}
	github := s.Path("catalog/github.yaml")
	text, err := os.ReadFile(github)
	if err != nil {
		return err
	}
	hosts := "hosts: [github-gateway.acme.example, '" + localhost(s.api) + "']"
	return secret.WriteFile(github, strings.ReplaceAll(string(text), "hosts: [github-gateway.acme.example]", hosts))
}

// sameCatalogue refuses a catalogue that a stack would ignore because it has one.
func (s *Stack) sameCatalogue() error {
	given, err := scopes.LoadFS(os.DirFS(s.wanted.Catalogue))
	if err != nil {
		return fmt.Errorf("loading the catalogue in %s: %w", s.wanted.Catalogue, err)
	}
	if had, err := scopes.LoadFS(os.DirFS(s.Path("catalog"))); err != nil || had.Digest() != given.Digest() {
		return fmt.Errorf("%w: it is in %s. Apply a new one with brevet catalog apply, or delete %s to start over", ErrCatalogue, s.Path("catalog"), s.Dir)
	}
	return nil
}

// prepareVault mounts engines for the example catalogue, and gives the broker what it needs for the one in the state folder.
func (s *Stack) prepareVault(ctx context.Context) error {
	catalogue, err := scopes.LoadFS(os.DirFS(s.Path("catalog")))
	if err != nil {
		return fmt.Errorf("loading the catalogue in %s: %w", s.Path("catalog"), err)
	}
	if err := s.PrepareEngines(ctx); err != nil {
		return err
	}
	return s.BootstrapVault(ctx, catalogue)
}

// BootstrapVault does what `brevet bootstrap` does for a catalogue. A broker may run meanwhile: it keeps its token, and reads the new
// login when the token ends.
func (s *Stack) BootstrapVault(ctx context.Context, catalogue *scopes.Catalogue) error {
	bootstrap := mint.Bootstrap{
		Addr: s.Vault.Addr(), Token: s.Vault.RootToken(),
		Mount: "transit", SigningKey: "brevet", Role: "brevet",
		TokenRole: "brevet", Policies: catalogue.VaultPolicies(),
		GitHub: catalogue.NeedsGitHub(), GitHubKeys: s.wanted.GitHubKeys,
	}
	for _, scope := range catalogue.Scopes() {
		bootstrap.MaxTTL = max(bootstrap.MaxTTL, scope.TTL.Max)
	}
	login, err := bootstrap.Run(ctx)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.Path("approle"), 0o700); err != nil {
		return err
	}
	if err := errors.Join(
		secret.WriteFile(s.Path("approle/role_id"), login.RoleID+"\n"),
		secret.WriteFile(s.Path("approle/secret_id"), login.SecretID+"\n"),
	); err != nil {
		return err
	}
	_, err = bootstrap.DestroyEarlier(ctx, login)
	return err
}

// serveWorkloads opens a Workload API socket for each workload. The socket that a process can open determines its identity.
func (s *Stack) serveWorkloads(svidTTL time.Duration) (err error) {
	hosts := []string{"localhost", "127.0.0.1", "::1"} // curl and browsers call these two workloads by host names
	s.Issuer, err = devstack.NewIssuer(devstack.IssuerConfig{
		TrustDomain: ID("brevet").TrustDomain(), Dir: s.Path("spiffe"), Now: time.Now,
		X509TTL: svidTTL, JWTTTL: min(svidTTL, 5*time.Minute), Hosts: map[spiffeid.ID][]string{ID("brevet"): hosts, ID("gateway"): hosts},
	})
	if err != nil {
		return err
	}
	s.sockets = s.Path("svid")
	if len(s.socketPath("research")) > private.LongestSocketPath {
		if s.sockets, err = os.MkdirTemp("", "brevet-"); err != nil {
			return err
		}
		s.closers = append(s.closers, func() error { return os.RemoveAll(s.sockets) })
	}
	if err := os.MkdirAll(s.sockets, 0o700); err != nil {
		return err
	}
	for name := range Workloads {
		endpoint, err := s.Issuer.ServeWorkload(s.socketPath(name), ID(name))
		if err != nil {
			return fmt.Errorf("serving %s: %w", ID(name), err)
		}
		s.closers = append(s.closers, endpoint.Close)
	}
	return nil
}

func (s *Stack) socketPath(name string) string { return filepath.Join(s.sockets, name+".sock") }

// Socket returns the address of a workload's Workload API.
func (s *Stack) Socket(name string) string { return "unix://" + s.socketPath(name) }

// servePeople starts the OpenID provider. With the address of an earlier run, logins stay valid.
func (s *Stack) servePeople(ctx context.Context) error {
	address, err := freeAddress(ctx, strings.TrimPrefix(s.earlier.People.Issuer, "http://"))
	if err != nil {
		return err
	}
	s.People, err = devstack.NewProvider(devstack.ProviderConfig{
		Address: address, ClientID: loginClient, People: people, Now: time.Now, StateDir: s.Path("people"),
	})
	if err != nil {
		return err
	}
	s.closers = append(s.closers, s.People.Close)
	return nil
}

// writeConfig writes the file that `brevet serve` reads. With the addresses of an earlier run, clients find the broker again.
func (s *Stack) writeConfig(ctx context.Context) error {
	broker, err := freeAddress(ctx, s.earlier.Listen)
	if err != nil {
		return err
	}
	console, err := freeAddress(ctx, s.earlier.Console.Listen)
	if err != nil {
		return err
	}
	s.URL, s.Console = "https://"+localhost(broker), "http://"+localhost(console)
	text := fmt.Appendf(nil, configuration,
		broker, s.URL, s.Socket("brevet"), Audience, s.People.Issuer(), console, s.Console, s.Vault.Addr())
	apps := map[string]GitHubApp{}
	maps.Copy(apps, s.earlier.GitHub)
	maps.Copy(apps, s.wanted.GitHub)
	if len(apps) > 0 {
		github, err := yaml.Marshal(map[string]any{"github": apps})
		if err != nil {
			return err
		}
		text = append(text, github...)
	}
	return secret.WriteFile(s.ConfigFile, string(text))
}

// localhost returns an address with the host name localhost, for which certificates are issued.
func localhost(address string) string {
	_, port, _ := net.SplitHostPort(address) // freeAddress returns host:port
	return "localhost:" + port
}

// freeAddress returns an address of this machine alone, with the port of wanted if that is free, and with another one otherwise.
func freeAddress(ctx context.Context, wanted string) (string, error) {
	_, port, _ := net.SplitHostPort(wanted) // the address of an earlier run, or none
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", cmp.Or(port, "0")))
	switch {
	case err != nil && wanted != "":
		return freeAddress(ctx, "")
	case err != nil:
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}
