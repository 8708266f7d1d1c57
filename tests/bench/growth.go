package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"testing/fstest"
	"time"

	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/jackc/pgx/v5"
)

// growth shows how the cost of an issue changes with several sizes.
type growth struct {
	Series   []series `json:"series"`
	Overload overload `json:"overload"`
	// Lost is the number of credentials that replicas issued but that are not on record.
	Lost int64 `json:"lost"`
	// Idle is the broker's memory for an unused connection, in bytes.
	Idle int64 `json:"idle_connection_bytes"`
}

// series holds the measurements of an issue at several sizes of one thing.
type series struct {
	Name   string  `json:"name"`
	Points []point `json:"points"`
}

// point is one size: the medians over its rounds of one caller's latency, of many callers' latency (both in microseconds),
// of the rate of many, and of the servers' processor time for each of their requests (in microseconds).
type point struct {
	Size      int64            `json:"size"`
	P50       int64            `json:"p50_us"`
	Busy      int64            `json:"busy_p50_us"`
	Rate      float64          `json:"rate"`
	Processor map[string]int64 `json:"processor_us"`
}

// variant is one size in a comparison, ready to be measured.
type variant struct {
	size    int64
	d       *deployment
	callers []call
	// before and after, unless nil, run before and after each of its turns.
	before, after func() error
}

// compare measures all variants in turn, so that changes in the machine's load affect all of them alike.
func compare(ctx context.Context, o options, name string, variants []variant) (series, error) {
	alone, busy := make([][]load, len(variants)), make([][]load, len(variants))
	for round := range o.rounds + 1 { // the first one warms up
		for i, v := range variants {
			if v.before != nil {
				if err := v.before(); err != nil {
					return series{}, err
				}
			}
			one, all := v.d.closed(ctx, v.callers[:1], o.lasts), v.d.closed(ctx, v.callers, o.lasts)
			if err := errors.Join(one.check(), all.check()); err != nil {
				return series{}, fmt.Errorf("%s, %d: %w", name, v.size, err)
			}
			if v.after != nil {
				if err := v.after(); err != nil {
					return series{}, err
				}
			}
			if round > 0 {
				alone[i], busy[i] = append(alone[i], one), append(busy[i], all)
			}
			fmt.Fprintf(os.Stderr, "\r\033[K%s, round %d of %d: %d", name, round, o.rounds, v.size)
		}
	}
	s := series{Name: name}
	for i, v := range variants {
		p := point{
			Size: v.size, P50: middle(alone[i], p50), Busy: middle(busy[i], p50), Rate: middle(busy[i], load.rate), Processor: map[string]int64{},
		}
		for _, part := range parts {
			p.Processor[part] = middle(busy[i], func(l load) int64 { return l.each(part).Microseconds() })
		}
		s.Points = append(s.Points, p)
	}
	return s, nil
}

func p50(l load) int64 { return l.at(0.5).Microseconds() }

func middle[T int64 | float64](loads []load, of func(load) T) T {
	var all []T
	for _, l := range loads {
		all = append(all, of(l))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// grow measures all parts, or the one that o.part names.
func grow(ctx context.Context, o options, out io.Writer) (err error) {
	// Replicas are measured with twice as many callers. 128 is the number of calls that one replica takes in parallel on two
	// processors.
	if o.connections > 64 {
		return fmt.Errorf("%d callers at a time are too many for -growth: 64 at most", o.connections)
	}
	var g growth
	for _, part := range []struct {
		name    string
		measure func(context.Context, options, *growth) error
	}{{"scopes", byScopes}, {"rows", byRows}, {"use", byUse}, {"replicas", byReplicas}} {
		if o.part != "" && o.part != part.name {
			continue
		}
		if err := part.measure(ctx, o, &g); err != nil {
			return err
		}
	}
	fmt.Fprint(os.Stderr, "\r\033[K")
	g.print(out)
	return errors.Join(save(o.json, g), g.plot(o.plots))
}

// with starts a deployment for each of several catalogues, calls then, and stops them.
func with(ctx context.Context, o options, catalogues []fs.FS, then func([]*deployment) error) (err error) {
	var all []*deployment
	defer func() {
		for _, d := range all {
			err = errors.Join(err, d.close())
		}
	}()
	for _, files := range catalogues {
		d, err := start(ctx, o.binary, files)
		if err != nil {
			return err
		}
		all = append(all, d)
	}
	return then(all)
}

// byScopes compares catalogues with growing numbers of scopes, each with a policy.
func byScopes(ctx context.Context, o options, g *growth) error {
	var catalogues []fs.FS
	for _, n := range o.scopes {
		catalogues = append(catalogues, scopesAnd(n))
	}
	return with(ctx, o, catalogues, func(all []*deployment) error {
		var variants []variant
		for i, d := range all {
			callers, err := d.sandboxes(o.connections, d.url)
			if err != nil {
				return err
			}
			variants = append(variants, variant{size: o.scopes[i], d: d, callers: callers})
		}
		s, err := compare(ctx, o, "scopes", variants)
		g.Series = append(g.Series, s)
		return err
	})
}

// scopesAnd returns a catalogue of n scopes, each with a policy. One of them is the scope that callers request.
func scopesAnd(n int64) fs.FS {
	const each = 100 // in a file
	files := fstest.MapFS{}
	var scopes, policies strings.Builder
	for i := range n - 1 {
		if i%each == 0 {
			scopes.Reset()
			scopes.WriteString("scopes:\n")
		}
		fmt.Fprintf(&scopes, "  - name: app%d.verb%d\n    title: Do it\n    authority: read\n    resource: app:%d\n", i/each, i, i)
		scopes.WriteString("    ttl: {default: 1m, max: 5m}\n    credential: {kind: jwt, audience: https://gateway.bench.example}\n")
		fmt.Fprintf(&policies, "@id(\"may-%d\")\npermit (principal in Path::\"spiffe://bench.example/agents\", action == Action::\"app%d.verb%d\", resource);\n", i, i/each, i)
		if i%each == each-1 || i == n-2 {
			files[fmt.Sprintf("scopes-%05d.yaml", i)] = &fstest.MapFile{Data: []byte(scopes.String()), Mode: 0o600}
			files[fmt.Sprintf("policies-%05d.cedar", i)] = &fstest.MapFile{Data: []byte(policies.String()), Mode: 0o600}
			policies.Reset()
		}
	}
	own, _ := fs.ReadFile(asBuilt(), "scopes.yaml") // the compiler ensures that the files are embedded
	policy, _ := fs.ReadFile(asBuilt(), "policy.cedar")
	asked, _, _ := strings.Cut(string(own), "  - name: bench.database")
	files["scopes.yaml"] = &fstest.MapFile{Data: []byte(asked), Mode: 0o600}
	files["policy.cedar"] = &fstest.MapFile{Data: policy, Mode: 0o600}
	return files
}

// byRows compares ledgers with growing numbers of issuances.
func byRows(ctx context.Context, o options, g *growth) error {
	return with(ctx, o, slices.Repeat([]fs.FS{asBuilt()}, len(o.rows)), func(all []*deployment) error {
		var variants []variant
		for i, d := range all {
			if err := d.fill(ctx, o.rows[i]); err != nil {
				return err
			}
			callers, err := d.sandboxes(o.connections, d.url)
			if err != nil {
				return err
			}
			variants = append(variants, variant{size: o.rows[i], d: d, callers: callers})
		}
		s, err := compare(ctx, o, "issuances on record", variants)
		g.Series = append(g.Series, s)
		return err
	})
}

// fill adds issuances after the existing ones, and returns when the broker has signed a checkpoint over all of them.
func (d *deployment) fill(ctx context.Context, rows int64) error {
	d.stop()
	url := d.database()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var first int64
	if err := conn.QueryRow(ctx, `SELECT size FROM ledger_head`).Scan(&first); err != nil {
		return err
	}
	show := func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "\r\033[K%d issuances: "+format, append([]any{rows}, args...)...)
	}
	if err := errors.Join(
		devstack.Fill(ctx, url, first, first+rows, show),
		devstack.FillEntries(ctx, url, first, first+rows, show)); err != nil {
		return err
	}
	if d.url, err = d.serve(ctx); err != nil {
		return err
	}
	for sealed := int64(0); sealed < first+rows; time.Sleep(time.Second) {
		if err := conn.QueryRow(ctx, `SELECT max(size) FROM checkpoints`).Scan(&sealed); err != nil {
			return err
		}
		show("%d signed for", sealed)
	}
	return nil
}

// byUse compares numbers of idle connections, and overloads one replica.
func byUse(ctx context.Context, o options, g *growth) error {
	return with(ctx, o, []fs.FS{asBuilt()}, func(all []*deployment) error {
		d := all[0]
		if err := d.byConnections(ctx, o, g); err != nil {
			return err
		}
		out, err := d.overloaded(ctx, o.connections, o.overload)
		g.Overload = out
		return err
	})
}

// byReplicas compares numbers of replicas.
func byReplicas(ctx context.Context, o options, g *growth) error {
	return with(ctx, o, []fs.FS{asBuilt()}, func(all []*deployment) error { return all[0].byReplicas(ctx, o, g) })
}

// database returns the owner's URL of the broker's schema.
func (d *deployment) database() string { return d.servers.Postgres.TCPURL() + "&search_path=brevet" }

// byConnections compares an issue without and with many unused connections open.
func (d *deployment) byConnections(ctx context.Context, o options, g *growth) error {
	callers, err := d.sandboxes(o.connections, d.url)
	if err != nil {
		return err
	}
	var variants []variant
	for _, n := range o.idle {
		var open []io.Closer
		variants = append(variants, variant{
			size: n, d: d, callers: callers,
			before: func() (err error) {
				before, _ := d.memory()
				if open, err = d.idle(ctx, n); err != nil || n == 0 {
					return err
				}
				after, _ := d.memory()
				g.Idle = (after - before) / n
				return nil
			},
			after: func() (err error) {
				for _, c := range open {
					err = errors.Join(err, c.Close())
				}
				return err
			},
		})
	}
	s, err := compare(ctx, o, "idle connections", variants)
	g.Series = append(g.Series, s)
	return err
}

// idle opens connections over mutual TLS. Each has sent one request.
func (d *deployment) idle(ctx context.Context, n int64) ([]io.Closer, error) {
	const dialers = 16
	trust, err := d.proved(agent(0))
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var all []io.Closer
	var errs []error
	var workers sync.WaitGroup
	for worker := range int64(dialers) {
		workers.Go(func() {
			for i := worker; i < n && ctx.Err() == nil; i += dialers {
				conn, err := ask(ctx, strings.TrimPrefix(d.url, "https://"), trust)
				mu.Lock()
				if err != nil {
					errs = append(errs, err)
				} else {
					all = append(all, conn)
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	return all, errors.Join(errs...)
}

// ask opens a connection, requests /livez, and leaves it open.
func ask(ctx context.Context, address string, trust *tls.Config) (io.Closer, error) {
	conn, err := (&tls.Dialer{Config: trust}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(conn, "GET /livez HTTP/1.1\r\nHost: %s\r\n\r\n", address); err != nil {
		return nil, err
	}
	answer := make([]byte, 1024)
	n, err := conn.Read(answer)
	if err != nil || !strings.Contains(string(answer[:n]), " 200 ") {
		return nil, fmt.Errorf("an idle connection: %w: %s", err, answer[:n])
	}
	return conn, nil
}

// print prints each size, and its ratio to the first.
func (g *growth) print(out io.Writer) {
	for _, s := range g.Series {
		first := s.Points[0]
		for _, p := range s.Points {
			fmt.Fprintf(out, "%s %d: p50 %s alone (%.2f), %s busy (%.2f); %.0f/s (%.2f); µs each: broker %d, Vault %d, PostgreSQL %d\n", s.Name, p.Size,
				shown(p.P50), float64(p.P50)/float64(first.P50), shown(p.Busy), float64(p.Busy)/float64(first.Busy), p.Rate, p.Rate/first.Rate,
				p.Processor["broker"], p.Processor["vault"], p.Processor["postgres"])
		}
	}
	if g.Idle > 0 {
		fmt.Fprintf(out, "an idle connection takes %d KiB\n", g.Idle>>10)
	}
	if g.Overload != (overload{}) {
		g.Overload.print(out)
	}
}
