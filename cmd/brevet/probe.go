package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

// ProbeCmd is `brevet probe`.
type ProbeCmd struct {
	Server      string   `help:"URL of the broker." required:"" env:"BREVET_SERVER"`
	ServerID    string   `help:"SPIFFE ID of the broker's SVID. Without it, the system's roots must verify the broker's certificate." env:"BREVET_SERVER_ID"`
	WorkloadAPI string   `help:"Workload API socket to get the SVIDs of the prober from." name:"workload-api" required:"" env:"SPIFFE_ENDPOINT_SOCKET"`
	Audience    string   `help:"The broker's issuer. Default: the URL of the broker." env:"BREVET_AUDIENCE"`
	Scope       string   `help:"A scope with a JWT credential that the prober may request." required:""`
	Param       []string `help:"A scope parameter: name=text, or name:=JSON for numbers and booleans." placeholder:"NAME=VALUE" sep:"none"`
	Foreign     string   `help:"ID of an issuance in another trust domain, to check that it is not visible." name:"foreign-issuance"`
	Console     string   `help:"URL of the console, to check it too."`
	ConsoleCA   string   `help:"PEM file with the roots for the console's certificate, instead of the system's." name:"console-ca" type:"existingfile"`
}

const (
	// probeWithin bounds a pass, and probeCleanUp the cleanup after it: together ten seconds.
	probeWithin  = 8 * time.Second
	probeCleanUp = 2 * time.Second
	// probeCall bounds one call.
	probeCall = 3 * time.Second
	// probeTask and probeReason mark the prober's requests in the record.
	probeTask   = "brevet-probe"
	probeReason = "brevet probe"
	// probeLife is the lifetime of the prober's credential if nobody releases it.
	probeLife = time.Minute
)

// exitUntold is the exit code of an inconclusive probe.
const exitUntold = 3

// outcome is the result of a check.
type outcome string

const (
	held   outcome = "held"
	broken outcome = "broken"
	untold outcome = "untold" // no response, or one that says nothing about the check
)

// sight is what a check observed.
type sight struct {
	outcome outcome
	saw     string
}

// probeCheck is one property that must hold.
type probeCheck struct {
	name  string // for alerts; it does not change
	holds string
	means string // what it means if the property does not hold
	try   func(context.Context, *prober) sight
}

// Run makes one pass. It fails if something that must fail works, or if something that must work fails.
func (c *ProbeCmd) Run(ctx context.Context, con *console) error {
	params, err := parseParams(c.Param)
	if err != nil {
		return err
	}
	pass, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	p, done, err := c.open(pass)
	if err != nil {
		return c.unreached(con, err)
	}
	defer done()
	p.params = params
	defer p.cleanUp(ctx)
	if err := p.reach(pass); err != nil {
		return c.unreached(con, c.caller().hint(err))
	}
	var report probeReport
	for _, check := range c.checks() {
		got := sight{untold, "no time left to run this check"}
		if pass.Err() == nil {
			got = check.try(pass, p)
		}
		report.add(check, got)
	}
	return report.print(con)
}

func (c *ProbeCmd) caller() CallerFlags {
	return CallerFlags{Server: c.Server, ServerID: c.ServerID, WorkloadAPI: c.WorkloadAPI, Audience: c.Audience}
}

// unreached reports why no check could run.
func (c *ProbeCmd) unreached(con *console, err error) error {
	explained := exitError{err: err, code: exitUntold}
	if con.json {
		if err := con.encode(probeReport{Result: untold, Checks: []probeResult{}, Error: explained.Error()}); err != nil {
			return err
		}
		return explained
	}
	fmt.Fprintf(con.err, "brevet: the checks could not run: %s\n", safetext.Text(err.Error()))
	return explained
}

// open reads the flags and gets the prober's SVID.
func (c *ProbeCmd) open(ctx context.Context) (*prober, func(), error) {
	base, err := url.Parse(c.Server)
	if err != nil || base.Scheme != "https" || base.Host == "" {
		return nil, nil, errors.New("--server: must be https://host[:port]")
	}
	if err := checkSocket(c.WorkloadAPI); err != nil {
		return nil, nil, err
	}
	waiting, cancel := context.WithTimeout(ctx, probeCall)
	defer cancel()
	source, err := workloadapi.NewX509Source(waiting, workloadapi.WithClientOptions(workloadapi.WithAddr(c.WorkloadAPI)))
	if err != nil {
		return nil, nil, fmt.Errorf("no SVID from the Workload API at %s: %w", c.WorkloadAPI, err)
	}
	p, err := c.prober(base, source)
	if err != nil {
		_ = source.Close()
		return nil, nil, err
	}
	return p, func() {
		p.broker.Close()
		_ = source.Close()
	}, nil
}

func (c *ProbeCmd) prober(base *url.URL, source *workloadapi.X509Source) (*prober, error) {
	svid, err := source.GetX509SVID()
	if err != nil {
		return nil, err
	}
	p := &prober{cmd: *c, base: base, id: svid.ID, own: tlsPair(svid)}
	setDefault(&p.cmd.Audience, c.Server)
	if p.broker, err = c.caller().clientAs(source, source); err != nil {
		return nil, err
	}
	p.trust = &tls.Config{MinVersion: tls.VersionTLS13}
	if c.ServerID != "" {
		id, err := c.caller().serverID()
		if err != nil {
			return nil, err
		}
		p.trust = tlsconfig.TLSClientConfig(source, tlsconfig.AuthorizeID(id))
	}
	if c.Console == "" {
		return p, nil
	}
	p.console, err = openPages(c.Console, c.ConsoleCA)
	return p, err
}

// cleanUp releases the credentials of a pass that was cut short.
func (p *prober) cleanUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeCleanUp)
	defer cancel()
	for _, token := range []*client.Token{p.token, p.brief} {
		if token != nil {
			_, _ = p.broker.Release(ctx, token.ID) // otherwise it expires within a minute
		}
	}
}

// probeReport is the result of a pass.
type probeReport struct {
	Result outcome       `json:"result"`
	Checks []probeResult `json:"checks"`
	Error  string        `json:"error,omitempty"`
}

type probeResult struct {
	Name   string  `json:"name"`
	Holds  string  `json:"holds"`
	Result outcome `json:"result"`
	Saw    string  `json:"saw"`
	Means  string  `json:"means,omitempty"`
}

func (r *probeReport) add(check probeCheck, got sight) {
	result := probeResult{Name: check.name, Holds: check.holds, Result: got.outcome, Saw: safetext.Text(got.saw)}
	if got.outcome == broken {
		result.Means = check.means
	}
	r.Checks = append(r.Checks, result)
}

func (r *probeReport) count(o outcome) int {
	n := 0
	for _, check := range r.Checks {
		if check.Result == o {
			n++
		}
	}
	return n
}

var ticks = map[outcome]string{held: "✓", broken: "✗", untold: "?"}

// print prints a line for each check, and what it means if the check does not hold.
func (r *probeReport) print(con *console) error {
	wrong, open, all := r.count(broken), r.count(untold), len(r.Checks)
	var failed error
	r.Result = held
	switch {
	case wrong > 0:
		r.Result, failed = broken, exitError{err: fmt.Errorf("%d of %d checks failed", wrong, all), code: 1}
	case open > 0:
		r.Result, failed = untold, exitError{err: fmt.Errorf("%d of %d checks were inconclusive", open, all), code: exitUntold}
	}
	if con.json {
		return errors.Join(con.encode(r), failed)
	}
	for _, check := range r.Checks {
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
