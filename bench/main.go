package main

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
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
	flag.Parse()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type options struct {
	binary, json        string
	rounds, connections int
	lasts               time.Duration
}

func run(ctx context.Context, o options) (err error) {
	d, err := start(ctx, o.binary)
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
	r := report{Connections: o.connections, loads: map[string][]load{}}
	for round := range o.rounds + 1 { // the first one warms up
		for _, name := range r.order() {
			l, err := d.ask(ctx, name, o)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if round > 0 {
				r.loads[name] = append(r.loads[name], l)
			}
			fmt.Fprintf(os.Stderr, "\r\033[Kround %d of %d: %s %.0f/s", round, o.rounds, name, l.rate())
		}
	}
	fmt.Fprint(os.Stderr, "\r\033[K")
	if err := d.halfLoad(ctx, o, &r); err != nil {
		return err
	}
	_, r.Memory = d.memory()
	r.print(os.Stdout)
	return r.save(o.json)
}

// ask measures one target. What makes logins at a database is asked by fewer: each of them is a role that is made there.
func (d *deployment) ask(ctx context.Context, name string, o options) (load, error) {
	n := o.connections
	if name == "dynamic" || name == "creds" {
		n = min(n, 8)
	}
	callers, err := d.targets()[name].callers(n)
	if err != nil {
		return load{}, err
	}
	l := d.closed(ctx, callers, o.lasts)
	return l, l.check()
}

// halfLoad compares the latency of an issue at half of what the broker can do with that of one alone.
func (d *deployment) halfLoad(ctx context.Context, o options, r *report) error {
	callers, err := d.targets()["issue"].callers(o.connections)
	if err != nil {
		return err
	}
	rates := make([]float64, 0, len(r.loads["issue"]))
	for _, l := range r.loads["issue"] {
		rates = append(rates, l.rate())
	}
	slices.Sort(rates)
	alone := d.closed(ctx, callers[:1], 2*o.lasts)
	half := d.open(ctx, callers, rates[len(rates)/2]/2, 2*o.lasts)
	r.Alone, r.Half = figuresOf(alone), figuresOf(half)
	if err := alone.check(); err != nil {
		return err
	}
	return half.check()
}

func pemOf(key crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})), err
}

func (r *report) save(path string) error {
	if path == "" {
		return nil
	}
	text, err := json.MarshalIndent(r.all(), "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o600)
}
