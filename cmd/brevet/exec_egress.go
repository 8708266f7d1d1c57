package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/brevet-dev/brevet/internal/confine"
	"github.com/brevet-dev/brevet/internal/egress"
	"github.com/brevet-dev/brevet/internal/execenv"
	"github.com/brevet-dev/brevet/internal/private"
)

// ConfineFlags confine a program to its gateway.
type ConfineFlags struct {
	Confine     bool     `help:"With --egress, on Linux: run the program in a network of its own, which leads to the gateway and nowhere else."`
	KeepEnv     []string `help:"With --confine: let the program have this variable of yours, although its name or value looks like a credential; repeatable." name:"keep-env" placeholder:"NAME" sep:"none"`
	UnixSockets bool     `help:"With --confine: let the program open Unix sockets. It then reaches each socket of another program whose file it may open." name:"unix-sockets"`

	exitSocket  string // the gateway's, if --socket comes before the first --scope
	workloadAPI string // where this command gets its identity
}

// hidden returns what a confined program must not see of the files of its user: logins, the state of dev stacks, and what leads to
// the identity of the sandbox. Folders of Brevet that do not exist yet are created, so that they are hidden when files come into them.
func (f ConfineFlags) hidden() []string {
	var all []string
	if state, err := stateHome(); err == nil {
		all = append(all, state.Dir)
	}
	if store, err := loginStore(); err == nil {
		all = append(all, filepath.Dir(store.Path))
	}
	// These variables may be others than those with which the user has logged in.
	homes := []string{os.Getenv("HOME")}
	if own, err := user.LookupId(strconv.Itoa(os.Getuid())); err == nil {
		homes = append(homes, own.HomeDir)
	}
	for _, home := range homes {
		if filepath.IsAbs(home) {
			all = append(all, filepath.Join(home, ".config", "brevet"), filepath.Join(home, ".local", "state", "brevet"))
		}
	}
	for _, folder := range all {
		_ = os.MkdirAll(folder, 0o700) //nolint:gosec // by the user, who cannot create later what fails now
	}
	for _, name := range []string{"BREVET_DEV_STATE", "SVID_DIR"} {
		if folder := os.Getenv(name); filepath.IsAbs(folder) {
			all = append(all, folder)
		}
	}
	socket, ok := socketPath(f.workloadAPI)
	if !ok {
		return all
	}
	// The folder of a dev stack's sockets has those of other workloads too, and an agent that starts again makes a new socket.
	folder, home := filepath.Dir(socket), os.Getenv("HOME")
	work, err := os.Getwd()
	info, unknown := os.Stat(folder)
	if err == nil && unknown == nil && (info.Mode().Perm() == 0o700 || hasOnlySockets(folder)) && !isBelow(work, folder) && !isBelow(home, folder) {
		all = append(all, folder)
	}
	return append(all, socket)
}

func hasOnlySockets(folder string) bool {
	entries, err := os.ReadDir(folder)
	return err == nil && !slices.ContainsFunc(entries, func(entry os.DirEntry) bool { return entry.Type() != os.ModeSocket })
}

func isBelow(path, folder string) bool {
	rest, err := filepath.Rel(folder, path)
	return err == nil && filepath.IsLocal(rest)
}

// The loopback ports of a network that has only a gateway: those that proxies and PostgreSQL usually have.
const (
	proxyPort    = 3128
	databasePort = 5432
)

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// errExit means that the program's way out could not be made, and that the program did not start.
var errExit = errors.New("preparing the program's network")

// checkConfined refuses flags that do not fit together.
func (f ConfineFlags) checkConfined(gateway bool) error {
	switch {
	case f.Confine && !gateway:
		return errors.New("--confine requires --egress: without a gateway, the program would reach nothing at all")
	case len(f.KeepEnv) > 0 && !f.Confine:
		return errors.New("--keep-env requires --confine: a program that is not confined gets all variables anyway")
	case f.UnixSockets && !f.Confine:
		return errors.New("--unix-sockets requires --confine: a program that is not confined opens Unix sockets anyway")
	}
	return nil
}

// gatewayExit is a gateway for one program.
type gatewayExit struct {
	gateway *egress.Gateway
	sandbox *egress.Sandbox
	folder  *private.Folder
}

// startBehind starts a program behind its gateway. The gateway serves until it is closed.
func (f ConfineFlags) startBehind(ctx context.Context, exit *gatewayExit, cmd *exec.Cmd) (*execenv.Program, error) {
	var err error
	var local *egress.Local
	switch {
	case f.Confine && f.exitSocket != "":
		return nil, fmt.Errorf("%w: --confine excludes a --socket of the gateway: use one of them", errExit)
	case f.Confine:
		return f.startConfined(ctx, exit, cmd)
	case f.exitSocket != "":
		if local, err = exit.gateway.ListenUnix(f.exitSocket, private.Access{}); err == nil {
			cmd.Env = append(cmd.Env, "BREVET_EGRESS_SOCKET="+f.exitSocket)
		}
	default:
		if local, err = exit.gateway.Listen(ctx, "127.0.0.1:0", exit.folder.Path); err == nil {
			cmd.Env = append(cmd.Env, local.Environ()...)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errExit, err)
	}
	go func() { _ = local.Serve(context.WithoutCancel(ctx), exit.sandbox) }() // until it is closed
	return execenv.Start(cmd)
}

// startConfined starts a program in a network whose ports the gateway serves.
func (f ConfineFlags) startConfined(ctx context.Context, exit *gatewayExit, cmd *exec.Cmd) (*execenv.Program, error) {
	at := egress.Endpoint{Address: loopback(proxyPort), CA: filepath.Join(exit.folder.Path, "ca.pem"), Databases: loopback(databasePort)}
	if err := exit.gateway.WriteCA(at.CA); err != nil {
		return nil, fmt.Errorf("%w: %w", errExit, err)
	}
	cmd.Env = append(cmd.Env, at.Environ()...)
	box, err := confine.Wrap(cmd, confine.Options{Init: "confined", Ports: []int{proxyPort, databasePort}, UnixSockets: f.UnixSockets, Folder: exit.folder.Path, Hidden: f.hidden()})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errExit, err)
	}
	running, err := execenv.Start(cmd)
	if err != nil {
		box.Close()
		return nil, fmt.Errorf("%w: %w", errExit, box.Explain(err))
	}
	listeners, err := box.Listeners()
	if err != nil { // the first process has ended
		box.Close()
		return nil, fmt.Errorf("%w: %w", errExit, err)
	}
	local := exit.gateway.Alone(at, listeners[0], listeners[1])
	go func() { _ = local.Serve(context.WithoutCancel(ctx), exit.sandbox) }() // until it is closed
	running.Between = box
	if err := box.Begin(); err != nil {
		return nil, fmt.Errorf("%w: %w", errExit, err)
	}
	return running, nil
}

// ConfinedCmd is `brevet confined`, the first process of a confined program. People do not run it.
type ConfinedCmd struct {
	Args []string `arg:"" passthrough:"" help:"What brevet exec passes."`
}

// Run starts the program, and ends with its exit code.
func (c *ConfinedCmd) Run(con *console) error {
	code, err := confine.Main(c.Args)
	return supervised(con, code, err)
}

// supervised ends with the exit code of a program.
func supervised(con *console, code int, err error) error {
	if err != nil {
		fmt.Fprintf(con.err, "brevet: %v\n", err)
		return exitError{err: err, code: code}
	}
	if code != 0 {
		return exitError{err: fmt.Errorf("the program exited with %d", code), code: code}
	}
	return nil
}

// EgressRelayCmd is `brevet egress relay`.
type EgressRelayCmd struct {
	Program []string `arg:"" help:"The program that starts a sandbox, and its arguments, after --." passthrough:""`
}

// Run runs the program, and ends with its exit code.
func (c *EgressRelayCmd) Run(con *console) error {
	if len(c.Program) > 0 && c.Program[0] == "--" {
		c.Program = c.Program[1:]
	}
	if len(c.Program) == 0 {
		return errors.New("no program to run: name it after --")
	}
	path, err := findProgram(c.Program[0])
	if err != nil {
		fmt.Fprintf(con.err, "brevet: %v\n", err)
		return err
	}
	outliveReaders()
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, passedOn...)
	defer signal.Stop(signals)
	cmd := exec.Command(path) //nolint:gosec,noctx // the user's own program, which ends when it wants to
	cmd.Args, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Program, os.Stdin, os.Stdout, os.Stderr
	box, err := confine.Separate(cmd, "confined")
	if err != nil {
		return err
	}
	running, err := execenv.Start(cmd)
	if err != nil {
		return fmt.Errorf("starting the first process of %s: %w", quote(path), err)
	}
	running.Between = box
	if err := box.Begin(); err != nil {
		return err
	}
	code, err := running.Wait(signals)
	if err == nil && code != 0 {
		err = exitError{err: fmt.Errorf("the program exited with %d", code), code: code}
	}
	return err
}

// EgressConnectCmd is `brevet egress connect`.
type EgressConnectCmd struct {
	Socket   string   `help:"Unix socket of the gateway. Its folder also has ca.pem and the PostgreSQL socket." required:"" env:"BREVET_EGRESS_SOCKET" type:"path"`
	Listen   string   `help:"Address for calls, which the proxy variables name." default:"127.0.0.1:3128"`
	Postgres string   `help:"Address for PostgreSQL, which PGHOST and PGPORT name." default:"127.0.0.1:5432"`
	Program  []string `arg:"" help:"The program and its arguments, after --." passthrough:""`
}

// Run runs the program, and forwards its connections until it ends. It needs no identity and no configuration.
func (c *EgressConnectCmd) Run(ctx context.Context, con *console) error {
	con = &console{out: con.err, err: con.err}
	if len(c.Program) > 0 && c.Program[0] == "--" {
		c.Program = c.Program[1:]
	}
	if len(c.Program) == 0 {
		return errors.New("no program to run: name it after --")
	}
	path, err := findProgram(c.Program[0])
	if err != nil {
		fmt.Fprintf(con.err, "brevet: %v\n", err)
		return err
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx)) // signals are for the program
	defer stop()
	forwarder, err := egress.NewForwarder(ctx, c.Socket, c.Listen, c.Postgres)
	if err != nil {
		return fmt.Errorf("%w: another program uses the port, or the sandbox's loopback interface is down", err)
	}
	go func() { _ = forwarder.Serve(ctx) }() // until the program ends
	if _, err := os.Stat(forwarder.CA); err != nil {
		return fmt.Errorf("reading the certificate of the gateway: %w: give the sandbox the folder of the socket", err)
	}
	if err := forwarder.Check(ctx); err != nil {
		return fmt.Errorf("%s: %w: start one with brevet egress --socket, and give the sandbox the folder of the socket", c.Socket, err)
	}
	for _, pair := range forwarder.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("setting %s: %w", name, err)
		}
	}
	code, err := confine.Supervise(path, c.Program)
	return supervised(con, code, err)
}

// SocketFlags say who may connect to a gateway's socket.
type SocketFlags struct {
	SocketMode  string `help:"Mode of the --socket and of the PostgreSQL socket beside it. Whoever may write to them acts as the sandbox. Default: 0600." placeholder:"MODE" name:"socket-mode"`
	SocketOwner string `help:"Owner of these sockets, as numbers, for a sandbox of another user. Requires root." placeholder:"UID[:GID]" name:"socket-owner"`
}

// access parses the flags.
func (f SocketFlags) access() (a private.Access, err error) {
	if f.SocketMode != "" {
		mode, err := strconv.ParseUint(f.SocketMode, 8, 32)
		if err != nil || mode == 0 || mode&^0o666 != 0 {
			return a, fmt.Errorf("--socket-mode: %s is not a mode such as 0660", f.SocketMode)
		}
		a.Mode = os.FileMode(mode)
	}
	if f.SocketOwner != "" {
		owner, group, both := strings.Cut(f.SocketOwner, ":")
		a.Owned, a.Owner, a.Group = true, -1, -1
		if a.Owner, err = strconv.Atoi(owner); err == nil && both {
			a.Group, err = strconv.Atoi(group)
		}
		if err != nil || a.Owner < 0 {
			return a, fmt.Errorf("--socket-owner: %s is not UID or UID:GID, as numbers", f.SocketOwner)
		}
	}
	return a, nil
}
