// Command brevet is the whole of Brevet in one binary: the server, its dev stack, and the tools of
// sandboxes, admins and auditors.
//
// It must never print a credential where it was not asked for one.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
)

// CLI is the command line. Kong reads it; each command has its own file.
type CLI struct {
	Output string `help:"How to print: ${enum}." enum:"text,json" default:"text" short:"o"`

	Serve          ServeCmd          `cmd:"" help:"Serve the broker."`
	Ready          ReadyCmd          `cmd:"" help:"Ask a server on this machine whether it is ready, for health checks."`
	Dev            DevCmd            `cmd:"" help:"Run a complete private stack to develop against, until Ctrl-C."`
	Probe          ProbeCmd          `cmd:"" help:"Try on a running deployment what must not work, and the one thing that must, for cron and alerts."`
	Demo           DemoCmd           `cmd:"" help:"Show the main job from start to finish on a stack of its own."`
	Scopes         ScopesCmd         `cmd:"" help:"List the scopes that the sandbox this runs in may ask for."`
	Request        RequestCmd        `cmd:"" help:"Ask for a credential, as the sandbox this runs in."`
	Exec           ExecCmd           `cmd:"" help:"Run a program with credentials that are renewed while it runs, and die with it."`
	Egress         EgressCmd         `cmd:"" help:"Be the way out of a sandbox, which then holds no credential at all."`
	GitCredential  GitCredentialCmd  `cmd:"" help:"Give git a credential, as its credential helper."`
	KubeCredential KubeCredentialCmd `cmd:"" help:"Give kubectl a credential, as its credential plugin."`
	Mcp            McpCmd            `cmd:"" help:"Let an agent ask for credentials through the Model Context Protocol, without seeing them."`
	Withdraw       WithdrawCmd       `cmd:"" help:"Take back a request of the sandbox this runs in that waits for people."`
	Release        ReleaseCmd        `cmd:"" help:"End a credential of the sandbox this runs in."`
	Task           TaskCmd           `cmd:"" help:"Work on tasks."`
	Login          LoginCmd          `cmd:"" help:"Log in as a person, through your OpenID provider."`
	Logout         LogoutCmd         `cmd:"" help:"Forget the login."`
	Whoami         WhoamiCmd         `cmd:"" help:"Say who you are, and with a broker what you may do there."`
	Approvals      ApprovalsCmd      `cmd:"" help:"Look at what waits for you, and decide."`
	Revoke         RevokeCmd         `cmd:"" help:"End credentials, as an admin."`
	Quarantine     QuarantineCmd     `cmd:"" help:"Stop issuing to sandboxes, as an admin."`
	Audit          AuditCmd          `cmd:"" help:"Read the record."`
	Catalog        CatalogCmd        `cmd:"" help:"Work on scopes and policies."`
	Migrate        MigrateCmd        `cmd:"" help:"Bring the database to this version's schema, or show where it is."`
	Ledger         LedgerCmd         `cmd:"" help:"Keep the ledger from growing for ever."`
	Bootstrap      BootstrapCmd      `cmd:"" help:"Prepare Postgres and Vault for a deployment: least privilege, once."`
	Version        VersionCmd        `cmd:"" help:"Print the version."`
}

// console is where a command writes: results to out, progress and news to err.
type console struct {
	out, err io.Writer
	json     bool
}

// exitError ends the program with a failure that has been explained already.
type exitError struct {
	err  error
	code int
}

func (e exitError) Error() string { return e.err.Error() }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program: it returns the exit code.
func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	var cli CLI
	command, err := newParser(ctx, &cli, out, errOut).Parse(args)
	if err != nil {
		fmt.Fprintf(errOut, "brevet: %v\n%sTry: brevet --help\n", err, missingVariables(err))
		return 2
	}
	err = command.Run(&console{out: out, err: errOut, json: cli.Output == "json"})
	var explained exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &explained):
		return explained.code
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		fmt.Fprintln(errOut, "brevet: interrupted")
		return 1
	default:
		fmt.Fprintf(errOut, "brevet: %v\n", err)
		return 1
	}
}

// missingVariables names the environment variables that stand in for the flags that are missing.
func missingVariables(err error) string {
	var parse *kong.ParseError
	if !strings.Contains(err.Error(), "missing flags") || !errors.As(err, &parse) {
		return ""
	}
	var hints strings.Builder
	for _, group := range parse.Context.Flags() {
		for _, env := range group.Envs {
			if group.Required && strings.Contains(err.Error(), "--"+group.Name+"=") {
				fmt.Fprintf(&hints, "  --%s may come from the variable %s\n", group.Name, env)
			}
		}
	}
	return hints.String()
}

func newParser(ctx context.Context, cli *CLI, out, errOut io.Writer) *kong.Kong {
	parser, err := kong.New(cli,
		kong.Name("brevet"),
		kong.Description("Short-lived, action-scoped credentials for sandboxed agents, after policy has said yes."),
		kong.Writers(out, errOut),
		kong.BindTo(ctx, (*context.Context)(nil)),
	)
	if err != nil {
		panic(err) // the CLI struct itself is wrong: a defect, seen at the first run
	}
	return parser
}
