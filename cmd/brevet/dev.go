package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/internal/app"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/devstack/local"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/scopes"
	"golang.org/x/oauth2"
)

// DevCmd is `brevet dev`.
type DevCmd struct {
	Serve DevServeCmd `cmd:"" default:"withargs" help:"Run a complete private stack to develop against, until Ctrl-C. The default."`
	Env   DevEnvCmd   `cmd:"" help:"Print the environment variables with which a shell acts as a workload of a running stack."`
	Login DevLoginCmd `cmd:"" help:"Log in as a person of a running stack, without a browser."`
}

// DevState names the state folder of a stack.
type DevState struct {
	State string `help:"State folder; delete it to start over. Default: a folder in ~/.local/state/brevet/dev, named after the working folder." type:"path" env:"BREVET_DEV_STATE"`
}

// stateHome returns the folder in which this user keeps the state of stacks.
func stateHome() (devstack.Home, error) {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return devstack.Home{Dir: filepath.Join(dir, "brevet")}, nil
	}
	home := os.Getenv("HOME")
	if !filepath.IsAbs(home) {
		return devstack.Home{}, errors.New("there is no folder for the state of a stack: set HOME, or XDG_STATE_HOME, to an absolute path")
	}
	return devstack.Home{Dir: filepath.Join(home, ".local", "state", "brevet")}, nil
}

// ownStateHome is stateHome, but refuses a folder in the working folder: a repository with variables for a shell could otherwise
// bring the key that proves who made a state folder.
func ownStateHome() (devstack.Home, error) {
	home, err := stateHome()
	if err != nil {
		return home, err
	}
	work, err := workTree()
	if err != nil {
		return home, fmt.Errorf("finding the working folder: %w", err)
	}
	// The user database names the home folder of a user who works in it. The variable HOME could name a repository.
	if who, err := user.Current(); contains(work, home.Dir) && (err != nil || !contains(work, who.HomeDir)) {
		return home, fmt.Errorf("the state of stacks would be in %s, in the working folder %s: files that came with that folder could run commands as you. Set XDG_STATE_HOME to a folder elsewhere",
			quote(home.Dir), quote(work))
	}
	return home, nil
}

// workTree returns the working folder, or the root of the Git repository in which it is.
func workTree() (string, error) {
	work, err := os.Getwd()
	if err == nil {
		work, err = filepath.EvalSymlinks(work)
	}
	for at := work; err == nil && at != filepath.Dir(at); at = filepath.Dir(at) {
		if _, err := os.Lstat(filepath.Join(at, ".git")); err == nil {
			return at, nil
		}
	}
	return work, err
}

// contains reports whether a path, which need not exist, is a folder or in it. It follows the links of the path.
func contains(folder, path string) bool {
	in, err := os.Stat(folder) //nolint:gosec // the working folder of the user
	if err != nil {
		return false
	}
	for at := filepath.Clean(path); ; at = filepath.Dir(at) {
		if resolved, err := filepath.EvalSymlinks(at); err == nil {
			at = resolved
		}
		if info, err := os.Stat(at); err == nil && os.SameFile(in, info) { //nolint:gosec // it only compares
			return true
		}
		if at == filepath.Dir(at) {
			return false
		}
	}
}

// folder returns the state folder, which need not exist.
func (s DevState) folder() (devstack.Home, string, error) {
	home, err := ownStateHome()
	if err != nil || s.State != "" {
		return home, s.State, err
	}
	work, err := os.Getwd()
	if err != nil {
		return home, "", fmt.Errorf("finding the working folder: %w", err)
	}
	dir, err := home.Folder(work)
	return home, dir, err
}

// claim returns the state folder of a stack that is about to start. It creates the folder if there is none.
func (s DevState) claim(con *console) (string, error) {
	home, dir, err := s.folder()
	if err == nil {
		dir, err = home.Claim(dir)
	}
	if err != nil {
		return "", err
	}
	if _, err := os.Lstat(".brevet"); err == nil && s.State == "" {
		con.say("the folder .brevet here is not used: the state of the stack is in " + dir +
			". If an earlier version of Brevet made the folder, it still holds keys, such as those of GitHub Apps: delete it")
	}
	return dir, nil
}

// DevServeCmd is `brevet dev serve`.
type DevServeCmd struct {
	DevState
	Prepare      bool          `help:"Build the dependencies of the stack and exit."`
	SVIDTTL      time.Duration `help:"Lifetime of SVIDs. A workload gets a new SVID after half of the lifetime." name:"svid-ttl" default:"1h"`
	AuthorityTTL time.Duration `help:"Time before signing authorities rotate, as with SPIRE. Default: never." name:"authority-ttl"`
	Catalogue    string        `help:"Folder with the catalogue of a new stack. Default: the example catalogue." type:"path"`
	GitHubApp    []string      `name:"github-app" help:"GitHub App to issue tokens with, as NAME=CLIENT_ID:KEY_FILE. The key is imported into the stack's Vault. Later runs need neither the flag nor the file." placeholder:"NAME=CLIENT_ID:FILE" sep:"none"`
	GitHubURL    string        `name:"github-url" help:"URL of the REST API of these Apps. Default: https://api.github.com. GitHub Enterprise Server has it at https://HOST/api/v3." placeholder:"URL"`
	GitHubCA     string        `name:"github-ca" help:"PEM file with the roots for the certificate of a GitHub Enterprise Server." type:"path"`
	Verbose      bool          `help:"Show the broker's log." short:"v"`
}

// Run keeps a stack up until ctx ends.
func (c *DevServeCmd) Run(ctx context.Context, con *console) (err error) {
	if c.Prepare {
		return devstack.Prepare(ctx, con.say)
	}
	began := time.Now()
	wanted := local.Config{SVIDTTL: c.SVIDTTL, Progress: con.say, Catalogue: c.Catalogue}
	if err := c.gitHub(&wanted); err != nil {
		return err
	}
	if wanted.Dir, err = c.claim(con); err != nil {
		return err
	}
	stack, err := local.Start(ctx, wanted)
	if err != nil {
		return ended(ctx, err)
	}
	stack.RemoveEnvironments() // left by a run that was killed
	defer func() {
		stack.RemoveEnvironments()
		err = errors.Join(err, stack.Close())
		con.say("stopped; the state stays in " + wanted.Dir)
	}()
	cfg, err := app.Load(stack.ConfigFile)
	if err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	if c.Verbose {
		if log, err = app.NewLogger(cfg.Log, con.err); err != nil {
			return err
		}
	}
	if err := stack.WriteIdentities(ctx, con.say); err != nil {
		return fmt.Errorf("writing identities: %w", err)
	}
	if err := stack.ServeAPI(ctx); err != nil {
		return fmt.Errorf("serving the stack's API: %w", err)
	}
	serving, stop := context.WithCancel(ctx)
	defer stop()
	if c.AuthorityTTL > 0 {
		go func() { _ = stack.Issuer.RotateEvery(serving, c.AuthorityTTL) }() // fails only with the state folder, as all else does
	}
	var announced error
	err = serve(serving, cfg, app.Process{Log: log, Prepare: stack.BootstrapVault}, func(string) {
		if announced = stack.WriteEnvironments(); announced != nil {
			stop()
			return
		}
		printDev(con, stack, time.Since(began))
	})
	return errors.Join(err, announced)
}

// gitHub reads the flags that describe GitHub Apps.
func (c *DevServeCmd) gitHub(wanted *local.Config) error {
	if len(c.GitHubApp) == 0 && (c.GitHubURL != "" || c.GitHubCA != "") {
		return errors.New("--github-url and --github-ca need --github-app")
	}
	wanted.GitHub, wanted.GitHubKeys = map[string]local.GitHubApp{}, map[string]secret.Text{}
	for _, value := range c.GitHubApp {
		name, rest, named := strings.Cut(value, "=")
		id, file, ok := strings.Cut(rest, ":")
		if !named || !ok || !scopes.IsApp(name) || id == "" || file == "" {
			return fmt.Errorf("--github-app %s: write NAME=CLIENT_ID:KEY_FILE, with a name of lower-case letters, digits and inner dashes", quote(value))
		}
		key, err := secret.ReadFile(file)
		if err != nil {
			return fmt.Errorf("--github-app: %w", err)
		}
		wanted.GitHub[name] = local.GitHubApp{ClientID: id, URL: c.GitHubURL, CAFile: c.GitHubCA}
		wanted.GitHubKeys[name] = secret.New(key)
	}
	return nil
}

// notOnPath returns the folder of this program, or an empty string if its name alone would start it.
func notOnPath() string {
	self, err := os.Executable()
	if found, lookErr := exec.LookPath("brevet"); err != nil || lookErr == nil && found == self {
		return ""
	}
	return filepath.Dir(self)
}

func printDev(con *console, stack *local.Stack, took time.Duration) {
	self := "brevet"
	if folder := notOnPath(); folder != "" {
		self = quote(filepath.Join(folder, self))
	}
	examples := `  brevet request github.issues.read repo=acme/api --task try-1
  brevet request github.issues.write repo=acme/api --task try-1
  brevet request github.repo.delete repo=acme/api --task try-1

The second request requires approval. Log in as an approver, alice or bob, and approve it:
`
	if _, err := os.Stat(stack.Path("catalog/github.yaml")); err != nil { // a catalogue of the developer
		examples = `  brevet scopes
  brevet request SCOPE name=value --task try-1

If a request requires approval, log in as an approver, alice or bob, and approve it:
`
	}
	fmt.Fprintf(con.out, `
Brevet serves on %[1]s, after %[2]s. Ctrl-C stops the stack; its state stays in %[3]s.

In another terminal, act as a sandbox:

  eval "$(%[4]s dev env --state %[5]s)"
%[8]s
  brevet dev login alice
  brevet approvals list

or use the console without a password, as alice, bob (also an admin), carol or dave (also auditors), or erin (admin and auditor):

  %[6]s

In a third terminal, act as the auditor:

  eval "$(%[4]s dev env auditor --state %[5]s)"
  brevet audit list

Edit scopes and policies in %[7]s, check them with
  brevet catalog check %[7]s
and apply them as an admin (bob):
  brevet dev login bob && brevet catalog apply %[7]s --person --reason "try it"
`, stack.URL, took.Round(100*time.Millisecond), stack.Dir, self, quote(stack.Dir), stack.Console, quote(stack.Path("catalog")), examples)
}

// workload returns the variables with which to act as a workload of the stack that runs in the folder.
func (s DevState) workload(ctx context.Context, name string) (local.Variables, error) {
	home, dir, err := s.folder()
	if err != nil {
		return nil, err
	}
	notRunning := fmt.Errorf("no stack runs in %s: start one with brevet dev in this working folder, or set --state to the folder of a running one", dir)
	all, err := local.ReadEnvironments(home, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, notRunning
	}
	if err != nil {
		return nil, err
	}
	found, ok := all[name]
	if !ok {
		return nil, fmt.Errorf("unknown workload %s: use one of %s", quote(name), strings.Join(slices.Sorted(maps.Keys(all)), ", "))
	}
	// A killed stack leaves the file behind.
	socket, _ := socketPath(found.Get("SPIFFE_ENDPOINT_SOCKET"))
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, notRunning
	}
	return found, conn.Close()
}

// DevEnvCmd is `brevet dev env`.
type DevEnvCmd struct {
	DevState
	Workload string `arg:"" optional:"" help:"Workload to act as: research, coding or support (sandboxes), subagent, auditor, admin, or gateway (a resource server)." default:"research"`
}

// Run prints lines for a shell, or one JSON object.
func (c *DevEnvCmd) Run(ctx context.Context, con *console) error {
	all, err := c.workload(ctx, c.Workload)
	if err != nil {
		return err
	}
	if folder := notOnPath(); folder != "" && !con.json {
		fmt.Fprintf(con.out, "export PATH=%s:$PATH\n", quote(folder))
	}
	return printVariables(con, all)
}

// printVariables prints lines for a shell, or one JSON object.
func printVariables(con *console, all [][2]string) error {
	object := map[string]string{}
	for _, pair := range all {
		object[pair[0]] = pair[1]
		if !con.json {
			fmt.Fprintf(con.out, "export %s=%s\n", pair[0], quote(pair[1]))
		}
	}
	if con.json {
		return con.encode(object)
	}
	return nil
}

// DevLoginCmd is `brevet dev login`.
type DevLoginCmd struct {
	DevState
	Person string `arg:"" help:"Person to log in as: alice, bob, carol, dave or erin."`
}

// Run uses the same device flow as `brevet login`, and approves the login on the provider's page by itself. That only works
// with the provider of a dev stack, where anybody can log in as anybody.
func (c *DevLoginCmd) Run(ctx context.Context, con *console) error {
	env, err := c.workload(ctx, "research")
	if err != nil {
		return err
	}
	flow := LoginCmd{
		Issuer: env.Get("BREVET_OIDC_ISSUER"), ClientID: env.Get("BREVET_OIDC_CLIENT_ID"),
		PersonFlags: PersonFlags{Server: env.Get("BREVET_SERVER"), ServerID: env.Get("BREVET_SERVER_ID"), WorkloadAPI: env.Get("SPIFFE_ENDPOINT_SOCKET")},
	}
	return flow.logIn(ctx, con, func(ctx context.Context, d *oauth2.DeviceAuthResponse) error {
		return devstack.AgreeToDevice(ctx, d.VerificationURI, d.UserCode, c.Person)
	})
}
