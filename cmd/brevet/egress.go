package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/app"
	"github.com/brevet-dev/brevet/internal/egress"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"golang.org/x/sync/errgroup"
)

// EgressCmd is `brevet egress`.
type EgressCmd struct {
	Serve   EgressServeCmd   `cmd:"" default:"withargs" help:"Run a gateway that adds credentials to the sandbox's outgoing calls. The default."`
	Env     EgressEnvCmd     `cmd:"" help:"Print the environment variables that route common programs through a gateway."`
	Relay   EgressRelayCmd   `cmd:"" help:"Run a program that starts a sandbox, and copy its standard input, output and error: the sandbox gets no file and no terminal of yours (Linux)."`
	Connect EgressConnectCmd `cmd:"" help:"Run a program in a sandbox without a network, and forward its calls to the Unix socket of a gateway outside."`
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
	Param  inOrder `help:"A parameter that no path supplies. The scope says whether the value is a text, a number or a boolean." placeholder:"NAME=VALUE"`
	Listen string  `help:"Loopback address for the sandbox, with a password. none: only the other listeners." default:"127.0.0.1:3128"`
	Socket string  `help:"Unix socket for the sandbox to call, without a password. Its folder gets the PostgreSQL socket and ca.pem too: give the sandbox the folder." type:"path"`
	SocketFlags
	MTLS string `help:"Address (host:port) for sandboxes that authenticate with their SVIDs. The Workload API must also give their identities to this gateway." name:"listen-mtls"`
	Dir  string `help:"Folder for the gateway's certificate, address and password, which brevet egress env reads. Default: brevet/egress in your cache folder." type:"path"`
}

// releaseWithin bounds the release of a gateway's credentials.
const releaseWithin = 10 * time.Second

// gatewayFolder returns the folder that --dir names, or else the one of the current user. It is never a folder of the working
// directory by default: a cloned repository could name there a proxy and a CA for the shell of whoever works in it.
func gatewayFolder(dir string) (string, error) {
	if dir != "" {
		return dir, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding your cache folder: %w: set --dir", err)
	}
	return filepath.Join(cache, "brevet", "egress"), nil
}

// Run serves until ctx ends.
func (c *EgressServeCmd) Run(ctx context.Context, con *console) (err error) {
	if err := closed(); err != nil {
		return err
	}
	collectLess(ctx)
	if c.Dir, err = gatewayFolder(c.Dir); err != nil {
		return err
	}
	scopes, err := scopesInOrder(c.Scope, c.Param)
	if err != nil {
		return err
	}
	if err := c.checkListeners(); err != nil {
		return err
	}
	access, err := c.access()
	if err != nil {
		return err
	}
	format := "text"
	if con.json {
		format = "json"
	}
	log, err := app.NewLogger(app.LogConfig{Level: "info", Format: format}, con.err)
	if err != nil {
		return err
	}
	gateway, err := c.gateway(log)
	if err != nil {
		return err
	}
	broker, disconnect, err := c.open(ctx)
	if err != nil {
		closeGateway(ctx, gateway)
		return err
	}
	defer disconnect()
	defer closeGateway(ctx, gateway) // before disconnect, because it releases its credentials over that connection
	if err := settleParams(ctx, broker, inScopes(scopes)...); err != nil {
		return refused(ctx, con, c.CallerFlags, err)
	}
	config := egress.SandboxConfig{Task: c.Task, Reason: c.Reason, Scopes: scopes, Broker: broker}
	own, err := c.sandbox(ctx, gateway, config)
	if err != nil {
		return err
	}
	tasks, serving := errgroup.WithContext(ctx)
	news := "serving; brevet egress env --dir " + quote(c.Dir) + " prints the environment variables"
	if c.Listen == noListener {
		news = "serving"
		err = gateway.WriteCA(filepath.Join(c.Dir, "ca.pem"))
	} else {
		err = serveLocal(tasks, serving, own, func() (*egress.Local, error) { return gateway.Listen(serving, c.Listen, c.Dir) })
	}
	if err != nil {
		return err
	}
	if c.Socket != "" {
		err := serveLocal(tasks, serving, own, func() (*egress.Local, error) { return gateway.ListenUnix(c.Socket, access) })
		if err != nil {
			return fmt.Errorf("--socket: %w", err)
		}
	}
	if c.MTLS != "" {
		tasks.Go(func() error { return c.serveWorkloads(serving, gateway, config) })
	}
	con.say(news)
	return ended(ctx, tasks.Wait())
}

// noListener is the value of --listen for no loopback port.
const noListener = "none"

// checkListeners refuses combinations of listeners that cannot work.
func (c *EgressServeCmd) checkListeners() error {
	switch at, err := netip.ParseAddrPort(c.Listen); {
	case c.MTLS != "" && c.JWT:
		return errors.New("--listen-mtls: requires X.509-SVIDs, and excludes --jwt")
	case c.Listen == noListener && c.Socket == "" && c.MTLS == "":
		return errors.New("--listen none: requires --socket or --listen-mtls, because nobody can reach the gateway otherwise")
	case c.Listen != noListener && (err != nil || !at.Addr().IsLoopback()):
		return fmt.Errorf("--listen: %s is not a loopback address with a port, which is required because the password is sent without TLS", c.Listen)
	case c.Socket == "" && c.SocketFlags != (SocketFlags{}):
		return errors.New("--socket-mode and --socket-owner require --socket")
	}
	return nil
}

// serveLocal serves what open opens, as one of the tasks.
func serveLocal(tasks *errgroup.Group, ctx context.Context, own *egress.Sandbox, open func() (*egress.Local, error)) error { //nolint:revive // the group's own context
	local, err := open()
	if err != nil {
		return err
	}
	tasks.Go(func() error { return local.Serve(ctx, own) })
	return nil
}

// closeGateway releases the gateway's credentials, and reports their last uses and the last calls.
func closeGateway(ctx context.Context, gateway *egress.Gateway) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	defer cancel()
	gateway.Close(ctx)
}

// serveWorkloads serves sandboxes by their SVIDs, if the Workload API also gives these to the gateway.
func (c *EgressServeCmd) serveWorkloads(ctx context.Context, gateway *egress.Gateway, cfg egress.SandboxConfig) error {
	identity := client.NewIdentity(c.SVID)
	source, err := workloadapi.NewX509Source(ctx, workloadapi.WithClientOptions(app.WorkloadAPI(c.WorkloadAPI)...), workloadapi.WithDefaultX509SVIDPicker(identity.Pick))
	if err != nil {
		return c.noSVID(err)
	}
	defer func() { _ = source.Close() }()
	if err := identity.Err(); err != nil { // the sandboxes' identities come too, and none of them is the gateway's
		return withOption(err, "--svid or BREVET_SVID")
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.MTLS)
	if err != nil {
		return fmt.Errorf("listening on %s: %w", c.MTLS, err)
	}
	secured := tlsconfig.MTLSServerConfig(source, source, tlsconfig.AuthorizeAny())
	// The certificate of a client that resumes a session would not be verified.
	secured.SessionTicketsDisabled, secured.MinVersion = true, tls.VersionTLS12
	workloads := gateway.NewWorkloads(cfg, func(svids x509svid.Source) (*client.Client, error) { return c.clientAs(svids, source) })
	defer workloads.Close()
	watched := make(chan error, 1)
	go func() { watched <- workloadapi.WatchX509Context(ctx, workloads, app.WorkloadAPI(c.WorkloadAPI)...) }()
	err = gateway.Serve(ctx, tls.NewListener(listener, secured), egress.Proven(source, time.Now, workloads.Lookup))
	return errors.Join(err, ended(ctx, <-watched))
}

// gateway returns a gateway that may call what the flags allow. It first protects the memory of this process, because the
// sandbox must not read the gateway's credentials and often runs as the same user.
func (f OutFlags) gateway(log *slog.Logger) (*egress.Gateway, error) {
	if err := unreadable(); err != nil {
		return nil, fmt.Errorf("protecting the gateway's memory: %w", err)
	}
	reach, err := app.ReachConfig{CAFile: f.HostCA, AllowPrivateCIDRs: f.AllowPrivate}.Target("")
	if err != nil {
		return nil, fmt.Errorf("--host-ca and --allow-private: %w", err)
	}
	return egress.New(egress.Config{Roots: reach.Roots, AllowPrivate: reach.AllowPrivate, CallsPerSecond: f.CallsPerSecond, Log: log, Now: time.Now})
}

// sandbox registers with the gateway the sandbox as which this process runs.
func (f CallerFlags) sandbox(ctx context.Context, gateway *egress.Gateway, cfg egress.SandboxConfig) (*egress.Sandbox, error) {
	me, err := cfg.Broker.WhoAmI(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the caller's identity from the broker: %w", f.hint(err))
	}
	cfg.ID = me.ID
	return gateway.Sandbox(cfg)
}

// scopesInOrder returns each scope with the parameters that follow it, or nil if no scope is named, which allows all.
func scopesInOrder(names, params inOrder) (scopes map[string]map[string]any, err error) {
	given, last := map[string][]string{}, ""
	for _, word := range sorted(names, params) {
		switch {
		case word.flag == "scope":
			last = word.text
			given[last] = append([]string{}, given[last]...) // perhaps without any
		case last == "":
			return nil, errors.New("--param must follow its --scope")
		default:
			given[last] = append(given[last], word.text)
		}
	}
	if len(given) > 0 {
		scopes = map[string]map[string]any{}
	}
	for name, texts := range given {
		if scopes[name], err = parseParams(texts); err != nil {
			return nil, err
		}
	}
	return scopes, nil
}

// inScopes returns the parameters that scopesInOrder read.
func inScopes(scopes map[string]map[string]any) (all []scopeParams) {
	for scope, params := range scopes {
		all = append(all, scopeParams{scope, params})
	}
	return all
}

// EgressEnvCmd is `brevet egress env`.
type EgressEnvCmd struct {
	Dir string `help:"The gateway's folder. Default: brevet/egress in your cache folder." type:"path"`
}

// Run prints lines for a shell, or one JSON object, for a gateway that responds.
func (c *EgressEnvCmd) Run(ctx context.Context, con *console) (err error) {
	if c.Dir, err = gatewayFolder(c.Dir); err != nil {
		return err
	}
	start := "brevet egress --task TASK --dir " + quote(c.Dir)
	endpoint, err := egress.ReadEndpoint(c.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("no gateway was started with the folder %s: start one with %s, or set --dir to the folder of a running gateway",
			c.Dir, start)
	case errors.Is(err, egress.ErrNotPrivate):
		return fmt.Errorf("%w: start a gateway with a folder of your own with mode 0700: %s", err, start)
	case errors.Is(err, egress.ErrNoAddress):
		return fmt.Errorf("%w: restart the gateway with %s", err, start)
	case err != nil:
		return err
	}
	switch err := endpoint.Check(ctx); {
	case errors.Is(err, egress.ErrNoGateway):
		return fmt.Errorf("%s: %w; the gateway of this folder has stopped or hangs: restart it with %s", endpoint.Address, err, start)
	case errors.Is(err, egress.ErrOtherGateway):
		return fmt.Errorf(
			"%s: %w; the gateway of this folder has stopped, and another program or gateway uses its port: restart it with %s and a free port in --listen",
			endpoint.Address, err, start,
		)
	case err != nil:
		return err
	}
	var all [][2]string
	for _, pair := range endpoint.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		all = append(all, [2]string{name, value})
	}
	return printVariables(con, all)
}
