package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/brevet-dev/brevet/internal/devstack"
)

// DevCmd is `brevet dev`.
type DevCmd struct {
	State   string `help:"Folder that holds everything; remove it to start over." default:".brevet" type:"path"`
	Prepare bool   `help:"Only build what the stack needs, and stop."`
	Verbose bool   `help:"Show the broker's log." short:"v"`
}

// Run keeps a stack up until ctx ends.
func (c *DevCmd) Run(ctx context.Context, con *console) (err error) {
	if c.Prepare {
		return devstack.Prepare(ctx, con.say)
	}
	began := time.Now()
	local, err := startLocal(ctx, c.State, con.say)
	if err != nil {
		return ended(ctx, err)
	}
	defer func() {
		closeErr := local.close()
		con.say("stopped; " + c.State + " keeps the state")
		if err == nil {
			err = closeErr
		}
	}()
	cfg, err := loadConfig(local.config)
	if err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	if c.Verbose {
		if log, err = newLogger(cfg.Log, con.err); err != nil {
			return err
		}
	}
	return serve(ctx, cfg, log, func(string) { printDev(con, local, cfg, time.Since(began)) })
}

// notOnPath is the folder of this program when its name alone would not start it, as after `make dev`.
func notOnPath() string {
	self, err := os.Executable()
	if err != nil {
		return ""
	}
	if found, err := exec.LookPath("brevet"); err == nil && found == self {
		return ""
	}
	return filepath.Dir(self)
}

func printDev(con *console, local *localStack, cfg Config, took time.Duration) {
	fmt.Fprintf(con.out, `
Brevet serves on %s, after %s. Ctrl-C stops all of it; the state stays in %s.

Be a sandbox, in another terminal:

`, cfg.Issuer, took.Round(100*time.Millisecond), local.dir)
	if folder := notOnPath(); folder != "" {
		fmt.Fprintf(con.out, "  export PATH=%s:$PATH\n", quote(folder))
	}
	for _, pair := range local.environment(cfg, "research") {
		fmt.Fprintf(con.out, "  export %s=%s\n", pair[0], pair[1])
	}
	fmt.Fprintf(con.out, `
  brevet request github.issues.read repo=acme/api --task try-1
  brevet request github.issues.write repo=acme/api --task try-1
  brevet request github.repo.delete repo=acme/api --task try-1

The second of them waits for a person. Ask with --wait, be one of those who decide (alice or bob) in a third terminal
with the same variables, and agree:

  brevet login
  brevet approvals list

or do it in the console, as alice, bob, carol (an auditor too) or dave, without a password:

  %s

Be the auditor:

  SPIFFE_ENDPOINT_SOCKET=%s brevet audit list

Change scopes and policies in %s, check them with
  brevet catalog check %s
and have an admin (bob) apply them:
  brevet login && brevet catalog apply %s --person --reason "try it"
`, cfg.Console.URL, local.socket("auditor"), local.path("catalog"), local.path("catalog"), local.path("catalog"))
}
