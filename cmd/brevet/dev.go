package main

import (
	"context"
	"errors"
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
	Serve DevServeCmd `cmd:"" default:"withargs" help:"Run a complete private stack to develop against, until Ctrl-C. The default."`
	Env   DevEnvCmd   `cmd:"" help:"Print the environment variables with which a shell acts as a workload of a running stack."`
	Login DevLoginCmd `cmd:"" help:"Log in as a person of a running stack, without a browser."`
}

// DevState names the state folder of a stack.
type DevState struct {
	State string `help:"State folder; delete it to start over." default:".brevet" type:"path" env:"BREVET_DEV_STATE"`
}

// DevServeCmd is `brevet dev serve`.
type DevServeCmd struct {
	DevState
	Prepare      bool          `help:"Build the dependencies of the stack and exit."`
	SVIDTTL      time.Duration `help:"Lifetime of SVIDs. A workload gets a new SVID after half of the lifetime." name:"svid-ttl" default:"1h"`
	AuthorityTTL time.Duration `help:"Time before signing authorities rotate, as with SPIRE. Default: never." name:"authority-ttl"`
	Verbose      bool          `help:"Show the broker's log." short:"v"`
}

// Run keeps a stack up until ctx ends.
func (c *DevServeCmd) Run(ctx context.Context, con *console) (err error) {
	if c.Prepare {
		return devstack.Prepare(ctx, con.say)
	}
	began := time.Now()
	local, err := startLocalWith(ctx, c.State, c.SVIDTTL, con.say)
	if err != nil {
		return ended(ctx, err)
	}
	local.removeEnvironments() // left by a run that was killed
	defer func() {
		local.removeEnvironments()
		closeErr := local.close()
		con.say("stopped; the state stays in " + c.State)
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
	if err := local.writeIdentities(ctx, cfg, con.say); err != nil {
		return fmt.Errorf("writing identities: %w", err)
	}
	if err := local.serveAPI(ctx, cfg); err != nil {
		return fmt.Errorf("serving the stack's API: %w", err)
	}
	serving, stop := context.WithCancel(ctx)
	defer stop()
	if c.AuthorityTTL > 0 {
		go func() { _ = local.issuer.RotateEvery(serving, c.AuthorityTTL) }() // it fails only with the state folder, like everything else
	}
	var announced error
	err = serve(serving, cfg, log, func(string) {
		if announced = local.writeEnvironments(cfg); announced != nil {
			stop()
			return
		}
		printDev(con, local, cfg, time.Since(began))
	})
	return errors.Join(err, announced)
}

// notOnPath returns the folder of this program if its name alone would not start it, as after `make dev`. Otherwise it
// returns an empty string.
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
	self := "brevet"
	if folder := notOnPath(); folder != "" {
		self = quote(filepath.Join(folder, self))
	}
	fmt.Fprintf(con.out, `
Brevet serves on %[1]s, after %[2]s. Ctrl-C stops the stack; its state stays in %[3]s.

In another terminal, act as a sandbox:

  eval "$(%[4]s dev env --state %[5]s)"
  brevet request github.issues.read repo=acme/api --task try-1
  brevet request github.issues.write repo=acme/api --task try-1
  brevet request github.repo.delete repo=acme/api --task try-1

The second request requires approval. Log in as an approver, alice or bob, and approve it:

  brevet dev login alice
  brevet approvals list

or use the console, as alice, bob, carol (also an auditor) or dave, without a password:

  %[6]s

In a third terminal, act as the auditor:

  eval "$(%[4]s dev env auditor --state %[5]s)"
  brevet audit list

Edit scopes and policies in %[7]s, check them with
  brevet catalog check %[7]s
and apply them as an admin (bob):
  brevet dev login bob && brevet catalog apply %[7]s --person --reason "try it"
`, cfg.Issuer, took.Round(100*time.Millisecond), local.dir, self, quote(local.dir), cfg.Console.URL, quote(local.path("catalog")))
}
