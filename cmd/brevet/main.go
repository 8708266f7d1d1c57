// Command brevet is Brevet in one binary: the server, the development stack, and the tools for sandboxes, approvers,
// admins, auditors and operators.
//
// It must never print a credential that the user did not request.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
)

// CLI is the command line, grouped by role. Kong reads it; each command has its own file.
type CLI struct {
	Output       string           `help:"Output format: ${enum}." enum:"text,json" default:"text" short:"o"`
	PrintVersion kong.VersionFlag `help:"Print the version." name:"version"`

	Request        RequestCmd        `cmd:"" group:"sandbox" help:"Request a credential for this sandbox."`
	Exec           ExecCmd           `cmd:"" group:"sandbox" help:"Run a program with credentials that are renewed while it runs and revoked when it exits."`
	Confined       ConfinedCmd       `cmd:"" hidden:"" group:"sandbox" help:"Start a confined program: the first process of brevet exec --confine."`
	Scopes         ScopesCmd         `cmd:"" group:"sandbox" help:"List the scopes that this sandbox may request."`
	Release        ReleaseCmd        `cmd:"" group:"sandbox" help:"Release a credential of this sandbox."`
	Withdraw       WithdrawCmd       `cmd:"" group:"sandbox" help:"Withdraw a pending request of this sandbox."`
	Task           TaskCmd           `cmd:"" group:"sandbox" help:"Manage tasks."`
	Egress         EgressCmd         `cmd:"" group:"sandbox" help:"Run a gateway that adds credentials to outgoing calls, so that the sandbox holds none."`
	GitCredential  GitCredentialCmd  `cmd:"" group:"sandbox" help:"Credential helper for git."`
	KubeCredential KubeCredentialCmd `cmd:"" group:"sandbox" help:"Credential plugin for kubectl."`
	Mcp            McpCmd            `cmd:"" group:"sandbox" help:"Serve credentials to an agent over the Model Context Protocol, hidden from its model."`

	Login     LoginCmd     `cmd:"" group:"person" help:"Log in through your OpenID provider."`
	Logout    LogoutCmd    `cmd:"" group:"person" help:"Delete the stored login."`
	Whoami    WhoamiCmd    `cmd:"" group:"person" help:"Show your identity and, with a broker, your roles."`
	Approvals ApprovalsCmd `cmd:"" group:"person" help:"Review and decide pending approvals."`

	Revoke     RevokeCmd     `cmd:"" group:"admin" help:"Revoke credentials."`
	Quarantine QuarantineCmd `cmd:"" group:"admin" help:"Manage quarantined sandboxes."`
	Catalog    CatalogCmd    `cmd:"" group:"admin" help:"Check, plan and apply scopes and policies."`

	Audit AuditCmd `cmd:"" group:"auditor" help:"Search, export and verify the record."`

	Serve     ServeCmd     `cmd:"" group:"operator" help:"Run the broker."`
	Ready     ReadyCmd     `cmd:"" group:"operator" help:"Check whether the broker on this machine is ready, for health checks."`
	Probe     ProbeCmd     `cmd:"" group:"operator" help:"Check that a running deployment refuses what it must refuse and issues what it must issue, for cron and alerts."`
	Bootstrap BootstrapCmd `cmd:"" group:"operator" help:"Prepare PostgreSQL and Vault for a deployment, with least privilege."`
	Migrate   MigrateCmd   `cmd:"" group:"operator" help:"Migrate the database schema, or show its version."`
	Ledger    LedgerCmd    `cmd:"" group:"operator" help:"Maintain the ledger."`
	Dev       DevCmd       `cmd:"" group:"operator" help:"Run a complete private stack for development, until Ctrl-C."`
	Demo      DemoCmd      `cmd:"" group:"operator" help:"Run a demo of the main features on a private stack."`

	Help       HelpCmd       `cmd:"" group:"other" help:"Show the help of a command."`
	Completion CompletionCmd `cmd:"" group:"other" help:"Print a script with which a shell completes commands, flags and values."`
	Complete   CompleteCmd   `cmd:"" hidden:"" group:"other" help:"Print what may stand at the end of a command line, for the scripts of brevet completion."`
	Version    VersionCmd    `cmd:"" group:"other" help:"Print the version."`
}

// groups are the roles that commands belong to, in the order of the help text, each with an example.
var groups = []kong.Group{
	{Key: "sandbox", Title: "Sandbox commands:", Description: "Example: brevet request github.issues.read repo=acme/api --task triage-4711"},
	{Key: "person", Title: "Approver commands:", Description: "Example: brevet login && brevet approvals list"},
	{Key: "admin", Title: "Admin commands:", Description: "Example: brevet revoke --task triage-4711 --reason 'token leaked'"},
	{Key: "auditor", Title: "Auditor commands:", Description: "Example: brevet audit list --task triage-4711"},
	{Key: "operator", Title: "Operator commands:", Description: "Example: brevet serve --config brevet.yaml"},
	{Key: "other", Title: "Other commands:", Description: "Example: brevet help catalog apply"},
}

// console is where a command writes: results to out, progress and messages to err.
type console struct {
	out, err io.Writer
	json     bool
}

// exitError ends the program with an exit code. The failure has already been explained to the user.
type exitError struct {
	err  error
	code int
}

func (e exitError) Error() string { return e.err.Error() }

func main() {
	hideLibraries(os.Stderr)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run runs the program and returns its exit code.
func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	if len(args) == 0 {
		args = []string{"--help"}
	}
	var cli CLI
	command, err := newParser(ctx, &cli, out, errOut).Parse(args)
	if err != nil {
		fmt.Fprintf(errOut, "brevet: %v\n%sTry: %s --help\n", err, missingVariables(err), namedCommand(err))
		return 2
	}
	err = command.Run(&console{out: out, err: errOut, json: cli.Output == "json"})
	explained, ok := errors.AsType[exitError](err)
	switch {
	case err == nil:
		return 0
	case ok:
		return explained.code
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		fmt.Fprintln(errOut, "brevet: interrupted")
		return 1
	default:
		fmt.Fprintf(errOut, "brevet: %v\n", err)
		return 1
	}
}

// namedCommand returns the command that an invalid command line names, as far as it names one.
func namedCommand(err error) string {
	parse, ok := errors.AsType[*kong.ParseError](err)
	if !ok || parse.Context.Selected() == nil {
		return "brevet"
	}
	return parse.Context.Selected().FullPath()
}

// missingVariables names the environment variables that can supply the missing flags.
func missingVariables(err error) string {
	var parse *kong.ParseError
	if !strings.Contains(err.Error(), "missing flags") || !errors.As(err, &parse) {
		return ""
	}
	var hints strings.Builder
	for _, group := range parse.Context.Flags() {
		for _, env := range group.Envs {
			if group.Required && strings.Contains(err.Error(), "--"+group.Name+"=") {
				fmt.Fprintf(&hints, "  --%s can also be set by the variable %s\n", group.Name, env)
			}
		}
	}
	return hints.String()
}

func newParser(ctx context.Context, cli *CLI, out, errOut io.Writer) *kong.Kong {
	parser, err := kong.New(cli,
		kong.Name("brevet"),
		kong.Description("Short-lived, action-scoped credentials for sandboxed agents, issued by policy and recorded first."),
		kong.ExplicitGroups(groups),
		kong.ConfigureHelp(kong.HelpOptions{NoExpandSubcommands: true, Compact: true}),
		kong.Vars{"version": versionLine()},
		kong.Writers(out, errOut),
		kong.BindTo(ctx, (*context.Context)(nil)),
	)
	if err != nil {
		panic(err) // the CLI struct is invalid, which is a bug that the first run shows
	}
	return parser
}

// HelpCmd is `brevet help`.
type HelpCmd struct {
	Command []string `arg:"" optional:"" help:"The command, such as catalog apply. Default: all commands."`
}

// Run prints what --help after the command prints. An unknown command is an invalid command line.
func (c *HelpCmd) Run(ctx context.Context, con *console) error {
	if code := run(ctx, append(c.Command, "--help"), con.out, con.err); code != 0 {
		return exitError{err: errors.New("no such command"), code: code}
	}
	return nil
}

// VersionCmd is `brevet version`.
type VersionCmd struct{}

// Run prints the versions of this binary and of Go.
func (*VersionCmd) Run(con *console) error {
	return con.print(map[string]string{"version": version(), "go": runtime.Version()}, "%s\n", versionLine())
}

func versionLine() string { return fmt.Sprintf("brevet %s (%s)", version(), runtime.Version()) }

// version returns the module's version, or the commit of a build from a checkout.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return info.Main.Version
}
