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
	flag.StringVar(&o.json, "json", "", "file to write all figures to")
	growing := flag.Bool("growth", false, "measure how the cost grows in place of how it compares")
	flag.StringVar(&o.plots, "plots", "", "folder to draw what grows into")
	flag.StringVar(&o.part, "part", "", "measure one part of -growth alone: scopes, rows or use")
	o.grown = fully
	flag.Parse()
	measure := run
	if *growing {
		measure = grow
	}
	if err := measure(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type options struct {
	binary, json, plots, part string
	rounds, connections       int
	lasts                     time.Duration
	grown
}

// grown are the sizes that an issue is measured at.
type grown struct {
	scopes, rows, idle, replicas []int64
	overload                     time.Duration
}

var fully = grown{
	scopes: []int64{10, 1000, 10_000}, rows: []int64{10_000, 1_000_000, 10_000_000}, idle: []int64{0, 100, 10_000},
	replicas: []int64{1, 2, 4}, overload: 2 * time.Minute,
}

// run measures, and writes what it found to out; how far it is goes to standard error.
func run(ctx context.Context, o options, out io.Writer) (err error) {
	d, err := start(ctx, o.binary, asBuilt())
	if err != nil {
		return err
	}
	defer func() {
		if closed := d.close(); err == nil {
			err = closed
		}
	}()
	if err := d.prepareVault(ctx); err != nil {
		return fmt.Errorf("preparing Vault: %w", err)
	}
	callers := map[string][]call{}
	for name, make := range d.targets() {
		if callers[name], err = make(o.callersOf(name)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	r := report{Connections: o.connections, loads: map[string][]load{}}
	if err := d.rounds(ctx, o, tokens, callers, &r); err != nil {
		return err
	}
	if err := d.halfLoad(ctx, callers["issue"], o, &r); err != nil {
		return err
	}
	if err := d.rounds(ctx, o, logins, callers, &r); err != nil {
		return err
	}
	fmt.Fprint(os.Stderr, "\r\033[K")
	if err := d.introspection(ctx, o.connections, o.lasts, &r); err != nil {
		return err
	}
	_, r.Memory = d.memory()
	r.print(out)
	return save(o.json, r.all())
}

// callersOf are fewer for what makes logins at a database: each of them is a role that is made there.
func (o options) callersOf(name string) int {
	switch name {
	case "dynamic", "dynamic-long", "creds":
		return min(o.connections, 8)
	default:
		return o.connections
	}
}

// rounds asks for each of these targets in turn.
func (d *deployment) rounds(ctx context.Context, o options, names []string, callers map[string][]call, r *report) error {
	for round := range o.rounds + 1 { // the first one warms up
		for _, name := range names {
			l := d.closed(ctx, callers[name], o.lasts)
			if err := errors.Join(l.check(), d.endLogins(ctx)); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if round > 0 {
				r.loads[name] = append(r.loads[name], l)
			}
			fmt.Fprintf(os.Stderr, "\r\033[Kround %d of %d: %s %.0f/s", round, o.rounds, name, l.rate())
		}
	}
	return nil
}

// halfLoad compares the latency of an issue at half of what the broker can do with that of one alone.
func (d *deployment) halfLoad(ctx context.Context, callers []call, o options, r *report) error {
	rate := r.median("issue").rate() / 2
	for range o.rounds {
		one, some := d.closed(ctx, callers[:1], o.lasts), d.open(ctx, callers, rate, o.lasts)
		if err := errors.Join(one.check(), some.check()); err != nil {
			return err
		}
		r.loads[alone], r.loads[half] = append(r.loads[alone], one), append(r.loads[half], some)
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
