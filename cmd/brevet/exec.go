package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/safetext"
)

// ExecCmd is `brevet exec`.
type ExecCmd struct {
	CallerFlags
	KeyFlags
	Task   string  `help:"Task of the credentials. Default: a generated task, which ends with the program." env:"BREVET_TASK"`
	Reason string  `help:"Reason for the record, in one sentence."`
	Scope  inOrder `help:"Scope to request, such as github.issues.read. The flags below apply to the preceding --scope; repeat it for another credential." placeholder:"NAME"`
	Param  inOrder `help:"A parameter: name=text, or name:=JSON for numbers and booleans." placeholder:"NAME=VALUE"`
	TTL    inOrder `help:"Time to live of each credential. Default: that of the scope, or its maximum with --env." placeholder:"DURATION" name:"ttl"`
	Env    inOrder `help:"Set the credential as this environment variable, which cannot be renewed." placeholder:"NAME[=FIELD]"`
	File   inOrder `help:"Write the credential to this file: a name in the private folder $BREVET_DIR, or a path." placeholder:"PATH[=FIELD]"`
	Socket inOrder `help:"Serve the credential on this Unix socket, named as in --file." placeholder:"PATH[=FIELD]"`
	For    inOrder `help:"Supply the credential in the form that this program expects: psql, curl, kubectl or ssh." placeholder:"PROGRAM"`
	Egress bool    `help:"Run a gateway that adds credentials to the program's outgoing calls, so that the program holds none. The gateway uses each --scope without a destination, or by default all scopes."`
	OutFlags
	Program []string `arg:"" help:"The program and its arguments, after --." passthrough:""`
}

// The exit codes that a shell uses for programs that cannot be started, and the number that it adds to the signal that
// ended a program.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignal        = 128
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

	folder, err := newPrivateFolder()
	if err != nil {
		return err
	}
	defer func() { folder.remove() }()
	parts, err := c.parts(folder)
	if err != nil {
		return err
	}
	broker, done, err := c.open(waiting)
	if err != nil {
		return err
	}
	defer done()
	run := c.newRun(con, broker, parts)
	defer run.end(context.WithoutCancel(ctx))
	if err := run.obtain(waiting); err != nil {
		return explain(con, c.hint(err), run.task)
	}
	out, closeOut, err := c.wayOut(ctx, run, folder, parts)
	if err != nil {
		return explain(con, err, run.task)
	}
	defer closeOut()
	program := exec.Command(path) //nolint:gosec,noctx // the user's own program, which ends when it wants to
	program.Args = c.Program
	program.Stdin, program.Stdout, program.Stderr = os.Stdin, os.Stdout, os.Stderr
	program.Env = append(c.inherited(), "BREVET_TASK="+run.task, "BREVET_DIR="+folder.path)
	program.Env = append(append(program.Env, run.environ()...), out...)
	return runProgram(con, program, signals)
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

// endWithin bounds the release of all credentials after the program has ended.
const endWithin = 15 * time.Second

// execution holds the credentials of one program.
type execution struct {
	con    *console
	broker *client.Client
	task   string
	madeUp bool // the task was generated for this execution
	used   bool // the task may have credentials
	parts  []*part
}

func (c *ExecCmd) newRun(con *console, broker *client.Client, parts []*part) *execution {
	x := &execution{con: con, broker: broker, task: c.Task, used: c.Egress}
	for _, p := range parts {
		if len(p.places) > 0 {
			x.parts = append(x.parts, p)
		}
	}
	if x.task == "" {
		x.task, x.madeUp = newTask("exec"), true
	}
	for _, p := range x.parts {
		p.ask.Task, p.ask.Reason = x.task, c.Reason
	}
	return x
}

// obtain gets each credential and delivers it to its places.
func (x *execution) obtain(ctx context.Context) error {
	for _, p := range x.parts {
		err := p.obtain(ctx, x.con, x.broker)
		// A refused request issued nothing. A call without a response may have issued a credential.
		if problem := new(client.Problem); !errors.As(err, &problem) {
			x.used = true
		}
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (x *execution) environ() []string {
	var all []string
	for _, p := range x.parts {
		for _, place := range p.places {
			all = append(all, place.environ()...)
		}
	}
	return all
}

// end releases all credentials. It says so if some could not be released; these expire.
func (x *execution) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, endWithin)
	defer cancel()
	var errs []error
	for _, p := range x.parts {
		p.remove()
		errs = append(errs, p.release(ctx, x.broker))
	}
	if x.madeUp && x.used {
		// This also ends credentials that were issued but never arrived.
		_, err := x.broker.EndTask(ctx, x.task, client.TaskEnd{Reason: "the program has ended"})
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintf(x.con.err, "brevet: some credentials could not be revoked and will expire: %s\n", safetext.Text(err.Error()))
	}
}
