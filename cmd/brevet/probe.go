package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/brevet-dev/brevet/internal/probe"
	"github.com/brevet-dev/brevet/internal/safehttp"
	"github.com/brevet-dev/brevet/internal/safetext"
)

// ProbeCmd is `brevet probe`.
type ProbeCmd struct {
	Server      string   `help:"URL of the broker." required:"" env:"BREVET_SERVER"`
	ServerID    string   `help:"SPIFFE ID of the broker's SVID. Without it, the system's roots must verify the broker's certificate." env:"BREVET_SERVER_ID"`
	WorkloadAPI string   `help:"Workload API socket to get the SVIDs of the prober from." name:"workload-api" required:"" env:"SPIFFE_ENDPOINT_SOCKET"`
	Audience    string   `help:"The broker's issuer. Default: the URL of the broker." env:"BREVET_AUDIENCE"`
	Scope       string   `help:"A scope with a JWT credential that the prober may request." required:""`
	Param       []string `help:"A scope parameter. The scope says whether the value is a text, a number or a boolean." placeholder:"NAME=VALUE" sep:"none"`
	Foreign     string   `help:"ID of an issuance in another trust domain, to check that it is not visible." name:"foreign-issuance"`
	Console     string   `help:"URL of the console, to check it too."`
	ConsoleCA   string   `help:"PEM file with the roots for the console's certificate, instead of the system's." name:"console-ca" type:"existingfile"`
}

// exitUntold is the exit code of an inconclusive probe.
const exitUntold = 3

// Run makes one pass. It fails if something that must fail works, or if something that must work fails.
func (c *ProbeCmd) Run(ctx context.Context, con *console) error {
	params, err := parseParams(c.Param)
	if err != nil {
		return err
	}
	var report probe.Report
	cfg, err := c.config()
	if err == nil {
		cfg.Params = params
		err = c.settle(ctx, params)
	}
	if err == nil {
		report, err = probe.Run(ctx, cfg)
	}
	if err != nil {
		report = probe.Report{Result: probe.Untold, Checks: []probe.Check{}, Error: c.caller().hint(err).Error()}
	}
	return printProbe(con, report)
}

func (c *ProbeCmd) caller() CallerFlags {
	return CallerFlags{Server: c.Server, ServerID: c.ServerID, WorkloadAPI: c.WorkloadAPI}
}

// settle gives the parameters the types that the scope declares.
func (c *ProbeCmd) settle(ctx context.Context, params map[string]any) error {
	wanted := scopeParams{c.Scope, params}
	if !wanted.isLoose() {
		return nil
	}
	broker, done, err := c.caller().open(ctx)
	if err != nil {
		return err
	}
	defer done()
	return settleParams(ctx, broker, wanted)
}

// config reads the flags.
func (c *ProbeCmd) config() (cfg probe.Config, err error) {
	cfg = probe.Config{
		WorkloadAPI: c.WorkloadAPI, Audience: cmp.Or(c.Audience, c.Server), Scope: c.Scope, Foreign: c.Foreign, Console: c.Console, Now: time.Now,
	}
	cfg.Server, err = url.Parse(c.Server)
	if err != nil || cfg.Server.Scheme != "https" || cfg.Server.Host == "" {
		return cfg, errors.New("--server: must be https://host[:port]")
	}
	if err := checkSocket(c.WorkloadAPI); err != nil {
		return cfg, err
	}
	if c.ServerID != "" {
		if cfg.ServerID, err = c.caller().serverID(); err != nil {
			return cfg, err
		}
	}
	if c.Console != "" {
		u, err := url.Parse(c.Console)
		if err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || u.Hostname() != "localhost") {
			return cfg, errors.New("--console: must be https://host[:port], or http://localhost[:port]")
		}
	}
	if c.Console != "" && c.ConsoleCA != "" {
		if cfg.ConsoleRoots, err = safehttp.ReadRoots(c.ConsoleCA); err != nil {
			err = fmt.Errorf("--console-ca: %w", err)
		}
	}
	return cfg, err
}

var ticks = map[probe.Outcome]string{probe.Held: "✓", probe.Broken: "✗", probe.Untold: "?"}

// printProbe prints a line for each check, and what it means if the check does not hold.
func printProbe(con *console, report probe.Report) error {
	wrong, open, all := report.Count(probe.Broken), report.Count(probe.Untold), len(report.Checks)
	var failed error
	switch {
	case report.Error != "":
		failed = exitError{err: errors.New(report.Error), code: exitUntold}
	case report.Result == probe.Broken:
		failed = exitError{err: fmt.Errorf("%d of %d checks failed", wrong, all), code: 1}
	case report.Result == probe.Untold:
		failed = exitError{err: fmt.Errorf("%d of %d checks were inconclusive", open, all), code: exitUntold}
	}
	if con.json {
		return errors.Join(con.encode(report), failed)
	}
	if report.Error != "" {
		fmt.Fprintf(con.err, "brevet: the checks could not run: %s\n", safetext.Text(report.Error))
		return failed
	}
	for _, check := range report.Checks {
		if _, err := fmt.Fprintf(con.out, "%s  %-62s %s\n", ticks[check.Result], check.Holds, check.Saw); err != nil {
			return err
		}
		if check.Means != "" {
			fmt.Fprintf(con.out, "   %s (%s)\n", check.Means, check.Name)
		}
	}
	fmt.Fprintf(con.out, "%d passed, %d failed, %d inconclusive\n", all-wrong-open, wrong, open)
	return failed
}
