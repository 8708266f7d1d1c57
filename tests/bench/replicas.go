package main

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// byReplicas compares the rate of one broker with the rate of several on the same PostgreSQL, Vault and processors. It then
// checks that every issued credential is on record.
func (d *deployment) byReplicas(ctx context.Context, o options, g *growth) error {
	conn, err := pgx.Connect(ctx, d.database())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var before, after int64
	const recorded = `SELECT count(*) FROM issuances WHERE status = 'issued'`
	if err := conn.QueryRow(ctx, recorded).Scan(&before); err != nil {
		return err
	}
	urls := []string{d.url}
	for int64(len(urls)) < slices.Max(o.replicas) {
		url, err := d.serve(ctx)
		if err != nil {
			return err
		}
		urls = append(urls, url)
	}
	var issued atomic.Int64
	for _, of := range []struct {
		name    string
		callers int
	}{{"replicas", o.connections}, {"replicas for twice the callers", 2 * o.connections}} {
		var variants []variant
		for _, n := range o.replicas {
			callers, err := d.sandboxes(of.callers, urls[:n]...)
			if err != nil {
				return err
			}
			variants = append(variants, variant{size: n, d: d, callers: counting(callers, &issued)})
		}
		s, err := compare(ctx, o, of.name, variants)
		if err != nil {
			return err
		}
		g.Series = append(g.Series, s)
	}
	if err := conn.QueryRow(ctx, recorded).Scan(&after); err != nil {
		return err
	}
	if g.Lost = issued.Load() - (after - before); g.Lost != 0 {
		return fmt.Errorf("of %d issued by replicas, %d are on record", issued.Load(), after-before)
	}
	return nil
}

// counting makes each caller count its successes in given.
func counting(callers []call, given *atomic.Int64) []call {
	counted := make([]call, len(callers))
	for i, ask := range callers {
		counted[i] = func(ctx context.Context) error {
			err := ask(ctx)
			if err == nil {
				given.Add(1)
			}
			return err
		}
	}
	return counted
}
