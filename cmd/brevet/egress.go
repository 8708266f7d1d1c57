package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/egress"
	"github.com/brevet-dev/brevet/internal/secret"
	"golang.org/x/sync/errgroup"
)

// EgressCmd is `brevet egress`.
type EgressCmd struct {
	Serve EgressServeCmd `cmd:"" default:"withargs" help:"Run a gateway that adds credentials to the sandbox's outgoing calls. The default."`
	Env   EgressEnvCmd   `cmd:"" help:"Print the environment variables that route common programs through a gateway."`
}

// OutFlags say which addresses a gateway may call, and how often.
type OutFlags struct {
	HostCA         string   `help:"PEM file with the roots for the certificates of hosts, instead of the system's." name:"host-ca" type:"path"`
	CallsPerSecond int      `help:"Rate limit of calls to one host; bursts may be twice as large." default:"500" name:"calls-per-second"`
	AllowPrivate   []string `help:"Private network that calls may reach, such as 10.1.0.0/16." placeholder:"CIDR" sep:"none"`
}

// EgressServeCmd is `brevet egress serve`.
type EgressServeCmd struct {
	CallerFlags
	OutFlags
	Task   string  `help:"Task of the credentials." required:"" env:"BREVET_TASK"`
	Reason string  `help:"Reason for the record, in one sentence."`
	Scope  inOrder `help:"A scope that may be used; repeatable. Default: all scopes that the sandbox may request. --param applies to the preceding scope." placeholder:"NAME"`
	Param  inOrder `help:"A parameter that no path supplies: name=text, or name:=JSON for numbers and booleans." placeholder:"NAME=VALUE"`
	Listen string  `help:"Loopback address for the sandbox, with a password." default:"127.0.0.1:3128"`
	Socket string  `help:"Unix socket of mode 0600 for the sandbox to call, without a password." type:"path"`
	MTLS   string  `help:"Address (host:port) for sandboxes that authenticate with their SVIDs. The Workload API must also give their identities to this gateway." name:"listen-mtls"`
	Dir    string  `help:"Folder for the gateway's certificate, address and password, which brevet egress env reads." default:".brevet-egress" type:"path"`
}

// releaseWithin bounds the release of a gateway's credentials.
const releaseWithin = 10 * time.Second

// Run serves until ctx ends.
func (c *EgressServeCmd) Run(ctx context.Context, con *console) error {
	if err := closed(); err != nil {
		return err
	}
	defer ballast()()
	scopes, err := scopesInOrder(c.Scope, c.Param)
	if err != nil {
		return err
	}
	if at, err := netip.ParseAddrPort(c.Listen); err != nil || !at.Addr().IsLoopback() {
		return fmt.Errorf("--listen: %s is not a loopback address with a port, which is required because the password is sent without TLS", c.Listen)
	}
	if c.MTLS != "" && c.JWT {
		return errors.New("--listen-mtls: requires X.509-SVIDs, and excludes --jwt")
	}
	format := "text"
	if con.json {
		format = "json"
	}
	log, err := newLogger(LogConfig{Level: "info", Format: format}, con.err)
	if err != nil {
		return err
	}
	gateway, err := c.gateway(log)
	if err != nil {
		return err
	}
	config := egress.SandboxConfig{Task: c.Task, Reason: c.Reason, Scopes: scopes}
	own, done, err := c.sandbox(ctx, gateway, config)
	if err != nil {
		closeGateway(ctx, gateway)
		return err
	}
	defer done()
	tasks, serving := errgroup.WithContext(ctx)
	if err := c.open(serving, tasks, gateway, own); err != nil {
		return err
	}
	if c.MTLS != "" {
		tasks.Go(func() error { return c.serveProven(serving, gateway, config) })
	}
	con.say("serving; brevet egress env --dir " + quote(c.Dir) + " prints the environment variables")
	return ended(ctx, tasks.Wait())
}

// closeGateway releases the gateway's credentials and reports their last uses.
func closeGateway(ctx context.Context, gateway *egress.Gateway) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	defer cancel()
	gateway.Close(ctx)
}

// open starts the listeners for the gateway's own sandbox.
func (c *EgressServeCmd) open(ctx context.Context, tasks *errgroup.Group, gateway *egress.Gateway, own *egress.Sandbox) error {
	proxy, err := openEndpoint(ctx, c.Listen)
	if err != nil {
		return err
	}
	database, err := proxy.describe(c.Dir, gateway.CA())
	if err != nil {
		return errors.Join(err, proxy.Close())
	}
	tasks.Go(func() error { return gateway.Serve(ctx, proxy, egress.WithPassword(own, proxy.password)) })
	tasks.Go(func() error { return gateway.ServePostgres(ctx, database, own) })
	if c.Socket == "" {
		return nil
	}
	socket, err := listenPrivately(c.Socket)
	if err != nil {
		return fmt.Errorf("--socket: %w", err)
	}
	tasks.Go(func() error { return gateway.Serve(ctx, socket, egress.Alone(own)) })
	return nil
}

// endpoint is a loopback listener with a password.
type endpoint struct {
	net.Listener
	password secret.Text
}

func openEndpoint(ctx context.Context, address string) (*endpoint, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", address, err)
	}
	return &endpoint{listener, secret.New(rand.Text())}, nil
}

// The files of a gateway's folder.
const (
	egressCA       = "ca.pem"
	egressAddress  = "address"
	egressPassword = "password"
	egressDatabase = ".s.PGSQL.5432" // where libpq looks for it
)

// describe writes the files with which programs find the gateway, and opens the PostgreSQL socket beside them. The password
// gives access to nothing else, and ends with the gateway.
func (d *endpoint) describe(dir string, ca []byte) (database net.Listener, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating the gateway's folder: %w", err)
	}
	for name, text := range map[string]string{egressCA: string(ca), egressAddress: d.Addr().String(), egressPassword: d.password.Reveal()} {
		if err := replaceFile(filepath.Join(dir, name), text); err != nil {
			return nil, fmt.Errorf("writing the gateway's files: %w", err)
		}
	}
	return listenPrivately(filepath.Join(dir, egressDatabase))
}

// gateway returns a gateway that may call what the flags allow. It first protects the memory of this process, because the
// sandbox must not read the gateway's credentials and often runs as the same user.
func (f OutFlags) gateway(log *slog.Logger) (*egress.Gateway, error) {
	if err := unreadable(); err != nil {
		return nil, fmt.Errorf("protecting the gateway's memory: %w", err)
	}
	reach, err := ReachConfig{CAFile: f.HostCA, AllowPrivateCIDRs: f.AllowPrivate}.target("")
	if err != nil {
		return nil, fmt.Errorf("--host-ca and --allow-private: %w", err)
	}
	return egress.New(egress.Config{Roots: reach.Roots, AllowPrivate: reach.AllowPrivate, CallsPerSecond: f.CallsPerSecond, Log: log, Now: time.Now})
}

// sandbox registers with the gateway the sandbox as which this process runs. The returned function closes the gateway
// before the connection to the broker, because the gateway releases its credentials over that connection.
func (f CallerFlags) sandbox(ctx context.Context, gateway *egress.Gateway, cfg egress.SandboxConfig) (*egress.Sandbox, func(), error) {
	broker, disconnect, err := f.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	cfg.Broker = broker
	if cfg.ID, err = f.self(ctx, broker); err == nil {
		var own *egress.Sandbox
		if own, err = gateway.Sandbox(cfg); err == nil {
			return own, func() { closeGateway(ctx, gateway); disconnect() }, nil
		}
	}
	disconnect()
	return nil, nil, err
}

// self returns the caller's identity according to the broker.
func (f CallerFlags) self(ctx context.Context, broker *client.Client) (string, error) {
	me, err := broker.WhoAmI(ctx)
	if err != nil {
		return "", fmt.Errorf("reading the caller's identity from the broker: %w", f.hint(err))
	}
	return me.ID, nil
}

// scopesInOrder returns each scope with the parameters that follow it, or nil if no scope is named.
func scopesInOrder(names, params inOrder) (map[string]map[string]any, error) {
	if len(names) == 0 && len(params) == 0 {
		return nil, nil //nolint:nilnil // all of them
	}
	given := map[string][]string{}
	for i, name := range names {
		given[name.text] = append(given[name.text], between(name, names[i+1:], params)...)
	}
	if len(names) == 0 || params != nil && params[0].after > names[0].after {
		return nil, errors.New("--param must follow its --scope")
	}
	scopes := make(map[string]map[string]any, len(given))
	for name, texts := range given {
		parsed, err := parseParams(texts)
		if err != nil {
			return nil, err
		}
		scopes[name] = parsed
	}
	return scopes, nil
}

// between returns the parameters after a scope and before the next one.
func between(name placed, next, params inOrder) []string {
	var texts []string
	for _, p := range params {
		if p.after < name.after && (len(next) == 0 || p.after > next[0].after) {
			texts = append(texts, p.text)
		}
	}
	return texts
}
