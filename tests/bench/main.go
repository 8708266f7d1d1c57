package main

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var o options
	flag.StringVar(&o.binary, "brevet", "bin/brevet", "the broker's binary")
	flag.IntVar(&o.rounds, "rounds", 5, "how often each is asked in turn")
	flag.IntVar(&o.connections, "connections", 64, "callers at a time")
	flag.DurationVar(&o.lasts, "lasts", 3*time.Second, "how long each is asked in a round")
	flag.DurationVar(&o.between, "between", 30*time.Second, "how long issue and login are asked for before tokens are compared again")
	flag.StringVar(&o.json, "json", "", "file to write all figures to")
	beside := flag.Bool("peers", false, "compare tokens with those of Vault, and of ZeroID and AgentWrit if they are in the PATH")
	growing := flag.Bool("growth", false, "measure how the cost grows in place of how it compares")
	scaling := flag.Bool("scale", false, "simulate replicas on one primary and on several, from the costs below")
	c := &o.costs
	for _, cost := range []struct {
		name, usage string
		into        *time.Duration
		value       time.Duration
	}{
		{"generator", "processor time of the load generator for each issue", &c.generator, 60 * time.Microsecond},
		{"broker", "processor time of the broker for each issue", &c.broker, 240 * time.Microsecond},
		{"vault", "processor time of Vault for each issue", &c.vault, 100 * time.Microsecond},
		{"signing", "latency of a call to Vault besides that", &c.signing, time.Millisecond},
		{"commit", "processor time of PostgreSQL for each commit", &c.commit, time.Millisecond},
		{"entry", "processor time of PostgreSQL for each entry", &c.entry, 100 * time.Microsecond},
		{"flush", "time until a commit is on disk", &c.flush, 500 * time.Microsecond},
	} {
		flag.DurationVar(cost.into, "cost-"+cost.name, cost.value, "with -scale: "+cost.usage)
	}
	flag.StringVar(&o.plots, "plots", "", "folder to draw what grows into")
	flag.StringVar(&o.part, "part", "", "measure one part alone: logins; with -growth: scopes, rows, use or replicas")
	busy := flag.Int("busy", 0, "how many endless loops run beside it, as other load on the machine")
	o.grown = fully
	flag.Parse()
	measure := run
	switch {
	case *growing:
		measure = grow
	case *beside:
		measure = comparePeers
	case *scaling:
		measure = extrapolate
	}
	idle, err := occupy(ctx, *busy)
	if err == nil {
		err = errors.Join(measure(ctx, o, os.Stdout), idle())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// partLogins names the part of a run that measures only database logins.
const partLogins = "logins"

type options struct {
	binary, json, plots, part string
	rounds, connections       int
	lasts, between            time.Duration
	costs                     costs
	grown
}

// grown holds the sizes at which an issue is measured.
type grown struct {
	scopes, rows, idle, replicas []int64
	overload                     time.Duration
}

var fully = grown{
	scopes: []int64{10, 1000, 10_000}, rows: []int64{10_000, 1_000_000, 10_000_000}, idle: []int64{0, 100, 10_000},
	replicas: []int64{1, 2, 4}, overload: 2 * time.Minute,
}

// run measures the targets and writes the results to out. It shows its progress on standard error. Each part has separate
// servers, so that the other measurements do not run beside the tokens of thousands of logins, which Vault keeps in memory.
func run(ctx context.Context, o options, out io.Writer) error {
	r := report{Connections: o.connections, Between: map[string]int{}, atFirst: map[string][]load{}, loads: map[string][]load{}}
	measures := []func(*deployment, context.Context, options, *report) error{(*deployment).besideLogins, (*deployment).byItself}
	if o.part == partLogins {
		measures = []func(*deployment, context.Context, options, *report) error{(*deployment).onlyLogins}
	}
	for _, measure := range measures {
		err := with(ctx, o, []fs.FS{asBuilt()}, func(all []*deployment) error {
			d := all[0]
			err := measure(d, ctx, o, &r)
			_, most := d.memory()
			r.Memory = max(r.Memory, most)
			return err
		})
		if err != nil {
			return err
		}
	}
	fmt.Fprint(os.Stderr, "\r\033[K")
	if o.part == partLogins {
		r.printLogins(out)
	} else {
		r.print(out)
	}
	return save(o.json, r.all())
}

// besideLogins measures tokens of Brevet and of Vault in turn: on servers that have just started, and again when Brevet has
// many issuances on record and Vault has many live logins.
func (d *deployment) besideLogins(ctx context.Context, o options, r *report) error {
	if err := d.prepareVault(ctx); err != nil {
		return fmt.Errorf("preparing Vault: %w", err)
	}
	if err := d.rounds(ctx, o, tokens, r.atFirst); err != nil {
		return err
	}
	if err := d.age(ctx, o, r); err != nil {
		return err
	}
	return d.rounds(ctx, o, tokens, r.loads)
}

// age sends issues and then logins for a while, so that the next comparison does not run on fresh servers.
func (d *deployment) age(ctx context.Context, o options, r *report) error {
	for _, name := range []string{"issue", "login"} {
		callers, err := d.targets()[name](o.connections)
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "\r\033[K%s for %s", name, o.between)
		l := d.closed(ctx, callers, o.between)
		if err := l.check(); o.between > 0 && err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		r.Between[name] = len(l.took)
	}
	return nil
}

// onlyLogins measures database logins alone.
func (d *deployment) onlyLogins(ctx context.Context, o options, r *report) error {
	return d.rounds(ctx, o, logins, r.loads)
}

// byItself measures the targets that involve no logins at Vault.
func (d *deployment) byItself(ctx context.Context, o options, r *report) error {
	if err := d.halfLoad(ctx, o, r); err != nil {
		return err
	}
	if err := d.rounds(ctx, o, logins, r.loads); err != nil {
		return err
	}
	return d.introspection(ctx, o.connections, o.lasts, r)
}

// callersOf returns the number of callers for a target. It is lower for database logins, because each one creates a role.
func (o options) callersOf(name string) int {
	switch name {
	case "dynamic", "dynamic-long", "creds":
		return min(o.connections, 8)
	default:
		return o.connections
	}
}

// rounds measures each of the named targets in turn.
func (d *deployment) rounds(ctx context.Context, o options, names []string, loads map[string][]load) error {
	callers := map[string][]call{}
	for _, name := range names {
		var err error
		if callers[name], err = d.targets()[name](o.callersOf(name)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for round := range o.rounds + 1 { // the first one warms up
		for _, name := range names {
			l := d.closed(ctx, callers[name], o.lasts)
			if err := errors.Join(l.check(), d.endLogins(ctx)); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if round > 0 {
				loads[name] = append(loads[name], l)
			}
			fmt.Fprintf(os.Stderr, "\r\033[Kround %d of %d: %s %.0f/s", round, o.rounds, name, l.rate())
		}
	}
	return nil
}

// halfLoad compares the latency of an issue at half of the broker's capacity with the latency for a single caller.
func (d *deployment) halfLoad(ctx context.Context, o options, r *report) error {
	callers, err := d.targets()["issue"](o.connections)
	if err != nil {
		return err
	}
	for round := range o.rounds + 1 { // the first one warms up
		full, one := d.closed(ctx, callers, o.lasts), d.closed(ctx, callers[:1], o.lasts)
		some := d.open(ctx, callers, full.rate()/2, o.lasts)
		if err := errors.Join(full.check(), one.check(), some.check()); err != nil {
			return err
		}
		if round > 0 {
			r.loads[alone], r.loads[half] = append(r.loads[alone], one), append(r.loads[half], some)
		}
		fmt.Fprintf(os.Stderr, "\r\033[Kround %d of %d: half of %.0f/s", round, o.rounds, full.rate())
	}
	return nil
}

func pemOf(key crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})), err
}

func save(path string, figures any) error {
	if path == "" {
		return nil
	}
	text, err := json.MarshalIndent(figures, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o600)
}
