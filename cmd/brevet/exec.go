package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/app"
	"github.com/brevet-dev/brevet/internal/egress"
	"github.com/brevet-dev/brevet/internal/execenv"
	"github.com/brevet-dev/brevet/internal/private"
	"github.com/brevet-dev/brevet/internal/safetext"
)

// ExecCmd is `brevet exec`.
type ExecCmd struct {
	CallerFlags
	KeyFlags
	Task   string  `help:"Task of the credentials. Default: a generated task, which ends with the program." env:"BREVET_TASK"`
	Reason string  `help:"Reason for the record, in one sentence."`
	Scope  inOrder `help:"Scope to request, such as github.issues.read. The flags below apply to the preceding --scope; repeat it for another credential." placeholder:"NAME"`
	Param  inOrder `help:"A parameter. The scope says whether the value is a text, a number or a boolean." placeholder:"NAME=VALUE"`
	TTL    inOrder `help:"Time to live of each credential. Default: that of the scope, or its maximum with --env." placeholder:"DURATION" name:"ttl"`
	Env    inOrder `help:"Set the credential as this environment variable, which cannot be renewed." placeholder:"NAME[=FIELD]"`
	File   inOrder `help:"Write the credential to this file: a name in the private folder $BREVET_DIR, or a path." placeholder:"PATH[=FIELD]"`
	Socket inOrder `help:"Serve the credential on this Unix socket, named as in --file. Before the first --scope, with --egress: serve the gateway there, and not on a port, for a program that starts a sandbox without a network." placeholder:"PATH[=FIELD]"`
	For    inOrder `help:"Supply the credential in the form that this program expects: psql, curl, kubectl, ssh, aws, google, azure, anthropic, openai, gh[=HOST], docker=[USER@]HOST or npm=HOST[/PATH]. For the last five, =FIELD at the end selects a field. A key for openai or anthropic is a variable, as with --env; a JWT for anthropic is a file." placeholder:"PROGRAM"`
	Egress bool    `help:"Run a gateway that adds credentials to the program's outgoing calls, so that the program holds none. The gateway uses each --scope without a destination, or by default all scopes."`
	ConfineFlags
	OutFlags
	Program []string `arg:"" help:"The program and its arguments, after --." passthrough:""`
}

// The exit codes that a shell uses for programs that cannot be started.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

// passedOn are the signals that brevet forwards to the program.
var passedOn = []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2}

// Run runs the program with its credentials, and ends them with the program. Only the program writes to standard output.
func (c *ExecCmd) Run(ctx context.Context, con *console) error {
	con = &console{out: con.err, err: con.err}
	if len(c.Program) > 0 && c.Program[0] == "--" {
		c.Program = c.Program[1:]
	}
	if len(c.Program) == 0 {
		return errors.New("no program to run: name it after --")
	}
	if len(c.Scope) == 0 && !c.Egress {
		return errors.New("no credentials for the program: set --scope or --egress")
	}
	if err := c.checkConfined(c.Egress); err != nil {
		return err
	}
	c.workloadAPI = c.WorkloadAPI
	path, err := findProgram(c.Program[0])
	if err != nil {
		fmt.Fprintf(con.err, "brevet: %v\n", err)
		return err
	}
	outliveReaders()
	// Signals are for the program from now on. Until the program runs, they end the wait for its credentials.
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, passedOn...)
	defer signal.Stop(signals)
	waiting, stop := signal.NotifyContext(ctx, passedOn...)
	defer stop()

	folder, err := private.NewFolder(time.Now())
	if err != nil {
		return err
	}
	defer folder.Remove()
	credentials, scopes, err := c.credentials(folder)
	if err != nil {
		return err
	}
	environ := c.environ(con)
	broker, done, err := c.open(waiting)
	if err != nil {
		return err
	}
	defer done()
	if err := settleParams(waiting, broker, allParams(credentials, scopes)...); err != nil {
		return refused(ctx, con, c.CallerFlags, err)
	}
	env := &execenv.Environment{Broker: broker, Task: c.Task, Used: c.Egress, Credentials: credentials}
	if env.Task == "" {
		env.Task, env.MadeUp = newTask("exec"), true
	}
	defer func() {
		if err := env.End(context.WithoutCancel(ctx)); err != nil {
			fmt.Fprintf(con.err, "brevet: some credentials could not be revoked and will expire: %s\n", safetext.Text(err.Error()))
		}
	}()
	for _, credential := range credentials {
		credential.Ask.Task, credential.Ask.Reason = env.Task, c.Reason
		news := newNews(con, credential.Ask.Scope)
		err := env.Obtain(waiting, credential, news.say, news.waits)
		news.settle()
		if err != nil {
			return refused(ctx, con, c.CallerFlags, err)
		}
	}
	if waiting.Err() != nil {
		return waiting.Err()
	}
	environ = env.Environ(append(environ, "BREVET_TASK="+env.Task, "BREVET_DIR="+folder.Path))
	program := exec.Command(path) //nolint:gosec,noctx // the user's own program, which ends when it wants to
	program.Args, program.Env = c.Program, environ
	program.Stdin, program.Stdout, program.Stderr = os.Stdin, os.Stdout, os.Stderr
	start := execenv.Start
	if c.Egress { // a gateway for the program alone
		log, err := app.NewLogger(app.LogConfig{Level: "error", Format: "text"}, con.err) // calls that could not be recorded
		if err != nil {
			return err
		}
		gateway, err := c.gateway(log)
		if err != nil {
			return err
		}
		defer closeGateway(ctx, gateway) // before the task ends
		own, err := c.sandbox(ctx, gateway, egress.SandboxConfig{Task: env.Task, Reason: c.Reason, Broker: broker, Scopes: scopes})
		if err != nil {
			return explain(con, err)
		}
		exit := &gatewayExit{gateway: gateway, sandbox: own, folder: folder}
		start = func(cmd *exec.Cmd) (*execenv.Program, error) { return c.startBehind(ctx, exit, cmd) }
	}
	running, err := start(program)
	switch {
	case errors.Is(err, errExit):
		return err
	case err != nil:
		fmt.Fprintf(con.err, "brevet: starting %s: %v\n", quote(path), err)
		return exitError{err: err, code: exitNotExecutable}
	}
	code, err := running.Wait(signals)
	if err == nil && code != 0 {
		err = exitError{err: fmt.Errorf("the program exited with %d", code), code: code}
	}
	return err
}

// allParams returns the parameters of the program's credentials and of its gateway.
func allParams(credentials []*execenv.Credential, gateway map[string]map[string]any) []scopeParams {
	all := inScopes(gateway)
	for _, credential := range credentials {
		all = append(all, scopeParams{credential.Ask.Scope, credential.Ask.Params})
	}
	return all
}

// environ returns what the program gets of this command's environment.
func (c *ExecCmd) environ(con *console) []string {
	environ := os.Environ()
	if c.Egress {
		environ = execenv.WithoutIdentity(environ)
	}
	if !c.Confine {
		return environ
	}
	environ, removed := execenv.WithoutCredentials(environ, c.KeepEnv)
	if len(removed) > 0 {
		fmt.Fprintf(con.err, "brevet: the program does not get your %s; --keep-env NAME lets it have one\n", safetext.Text(strings.Join(removed, ", ")))
	}
	return environ
}

// findProgram finds a program as a shell does, before any credential is requested.
func findProgram(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
		return path, nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		return "", exitError{err: fmt.Errorf("program not found: %s", quote(name)), code: exitNotFound}
	default:
		return "", exitError{err: fmt.Errorf("%s cannot be run: %w", quote(name), err), code: exitNotExecutable}
	}
}

// outliveReaders makes writes to a closed pipe fail. Otherwise SIGPIPE would end this process before its credentials.
func outliveReaders() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// newTask generates the name of a task. It begins with the command that generated it, to inform readers of the record.
func newTask(by string) string { return by + "-" + strings.ToLower(rand.Text()) }

// inOrder is a repeatable flag. Its position among other flags says what it applies to.
type inOrder []placed

// placed is one value of a flag, and the number of words after it on the command line.
type placed struct {
	after      int
	flag, text string
}

// Decode reads one value.
func (f *inOrder) Decode(ctx *kong.DecodeContext) error {
	value := placed{after: ctx.Scan.Len(), flag: ctx.Value.Name}
	err := ctx.Scan.PopValueInto("value", &value.text)
	*f = append(*f, value)
	return err
}

// sorted returns the values of all flags in command-line order.
func sorted(flags ...inOrder) inOrder {
	all := slices.Concat(flags...)
	slices.SortFunc(all, func(a, b placed) int { return cmp.Compare(b.after, a.after) })
	return all
}

// credentials reads the flags in command-line order. It returns the credentials that the program gets, and the parameters of the
// scopes for the gateway. If it returns no scopes, the gateway may use all.
func (c *ExecCmd) credentials(folder *private.Folder) ([]*execenv.Credential, map[string]map[string]any, error) {
	signer, err := c.signer()
	if err != nil {
		return nil, nil, err
	}
	var all, delivered []*execenv.Credential
	var scopes map[string]map[string]any
	params := map[*execenv.Credential][]string{}
	for _, w := range sorted(c.Scope, c.Param, c.TTL, c.Env, c.File, c.Socket, c.For) {
		if w.flag == "scope" {
			all = append(all, &execenv.Credential{Ask: client.Ask{Scope: w.text, Signer: signer}})
			continue
		}
		if len(all) == 0 && c.Egress && w.flag == "socket" {
			if c.exitSocket, err = folder.Resolve(w.text); err != nil {
				return nil, nil, fmt.Errorf("--socket: %w", err)
			}
			continue
		}
		if len(all) == 0 {
			return nil, nil, fmt.Errorf("--%s %s must follow its --scope", w.flag, w.text)
		}
		last := all[len(all)-1]
		switch w.flag {
		case "param":
			params[last] = append(params[last], w.text)
		case "ttl":
			last.Ask.TTL, err = time.ParseDuration(w.text)
		default:
			err = last.Deliver(w.flag, w.text, folder, os.Getenv)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("--%s: %w", w.flag, err)
		}
	}
	for _, one := range all {
		if one.Ask.Params, err = parseParams(params[one]); err != nil {
			return nil, nil, err
		}
		switch err := one.Check(); {
		case err != nil:
			return nil, nil, fmt.Errorf("--scope %s: %w", one.Ask.Scope, err)
		case one.Delivered():
			delivered = append(delivered, one)
		case !c.Egress:
			return nil, nil, fmt.Errorf("--scope %s: requires --env, --file, --socket or --for", one.Ask.Scope)
		case scopes == nil:
			scopes = map[string]map[string]any{one.Ask.Scope: one.Ask.Params}
		default:
			scopes[one.Ask.Scope] = one.Ask.Params
		}
	}
	return delivered, scopes, nil
}

// news reports the state of one credential on standard error. Before the program runs, it may show a line that changes.
// Afterwards the terminal belongs to the program, and each message is a separate line.
type news struct {
	con   *console
	scope string

	mu      sync.Mutex
	stop    func() // ends the line that changes
	settled bool
}

func newNews(con *console, scope string) *news {
	return &news{con: &console{out: con.err, err: con.err}, scope: safetext.Text(scope)}
}

func (n *news) say(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.clear()
	fmt.Fprintf(n.con.err, "brevet: %s %s\n", n.scope, safetext.Text(text))
}

// waits says who must approve the request.
func (n *news) waits(p client.Pending) {
	how := approveCommand(p.ID)
	if p.URL != "" {
		how += ", or " + p.URL
	}
	n.say(fmt.Sprintf("is pending approval: %d of %s%s, until %s; request %s; to approve: %s",
		p.Quorum, p.Group, standIn(p.BreakGlass), p.Expires.Local().Format(time.TimeOnly), p.ID, how))
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.settled && colourful(n.con.err) {
		n.stop = showWaiting(n.con, "waiting for "+safetext.Text(p.Group), p.Expires)
	}
}

// settle removes the changing line, and leaves the terminal to the program.
func (n *news) settle() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.clear()
	n.settled = true
}

func (n *news) clear() {
	if n.stop != nil {
		n.stop()
		n.stop = nil
	}
}
