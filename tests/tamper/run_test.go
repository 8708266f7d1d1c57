package tamper_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/ledger/snapshot"
	"github.com/jackc/pgx/v5"
	"golang.org/x/mod/sumdb/note"
)

// tampering is one attack, with the expected finding.
type tampering struct {
	name string
	do   func(w *world, tx pgx.Tx) error
	want func(w *world, r audit.Report) (problem string)
	// cases is the number of separately found changes that it makes at once; 0 stands for one.
	cases int
	// keeps returns the checkpoints that the auditor has kept.
	keeps func(w *world) []audit.Checkpoint
}

// TestTampering is I8 and T3: it applies every attack to a world. It spreads them over as many copies of the world as there are
// processors.
func TestTampering(t *testing.T) {
	worlds := []*world{newWorld(t)}
	for len(worlds) < runtime.GOMAXPROCS(0) {
		worlds = append(worlds, worlds[0].copy())
	}
	untouched := tampering{name: "nothing", do: func(*world, pgx.Tx) error { return nil }, want: whole, keeps: kept}
	todo := slices.Concat([]tampering{untouched}, ofEntries(worlds[0]), ofTables(worlds[0]), ofTree(worlds[0]), ofHistory(worlds[0]))
	queue := make(chan tampering)
	var group sync.WaitGroup
	for _, w := range worlds {
		group.Go(func() {
			for one := range queue {
				count(t, one, w.try(t.Context(), one))
			}
		})
	}
	next := time.Now().Add(5 * time.Second)
	for n, one := range todo {
		if now := time.Now(); now.After(next) {
			fmt.Fprintf(os.Stderr, "%d of %d: %s\n", n, len(todo), one.name)
			next = now.Add(5 * time.Second)
		}
		queue <- one
	}
	close(queue)
	group.Wait()
	broughtBack(t, worlds[0])
	shownTwice(t, worlds[0])
}

func count(t *testing.T, one tampering, problem string) {
	t.Helper()
	cases := int64(max(one.cases, 1))
	if problem != "" {
		failed.Add(cases)
		t.Errorf("%s: %s", one.name, problem)
		return
	}
	passed.Add(cases)
}

// try applies one attack in a transaction that is rolled back.
func (w *world) try(ctx context.Context, one tampering) (problem string) {
	tx, err := w.conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return err.Error()
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if _, err := tx.Exec(ctx, `SET LOCAL session_replication_role = replica`); err != nil {
		return err.Error()
	}
	if err := one.do(w, tx); err != nil {
		return err.Error()
	}
	cfg := audit.Config{Keys: note.VerifierList(w.log.verifier)}
	if one.keeps != nil {
		cfg.Trusted = one.keeps(w)
	}
	report, err := audit.Verify(ctx, snapshot.Of(tx).Items(ctx), cfg)
	if err != nil {
		return err.Error()
	}
	return one.want(w, report)
}

func kept(w *world) []audit.Checkpoint { return []audit.Checkpoint{w.kept} }

// statement is SQL that must change at least one row.
func statement(sql string, args ...any) func(*world, pgx.Tx) error {
	return func(w *world, tx pgx.Tx) error {
		done, err := tx.Exec(w.t.Context(), sql, args...)
		if err == nil && done.RowsAffected() == 0 {
			err = fmt.Errorf("%s changes nothing", sql)
		}
		return err
	}
}

func statements(all ...func(*world, pgx.Tx) error) func(*world, pgx.Tx) error {
	return func(w *world, tx pgx.Tx) error {
		for _, one := range all {
			if err := one(w, tx); err != nil {
				return err
			}
		}
		return nil
	}
}

func whole(_ *world, r audit.Report) string {
	if !r.Whole() {
		return "got " + told(r.Findings) + ", want nothing"
	}
	return ""
}

// first wants a finding before all others.
func first(code audit.Code, index int64) func(*world, audit.Report) string {
	return func(_ *world, r audit.Report) string {
		if r.Whole() || r.Findings[0].Code != code || r.Findings[0].Index != index {
			return fmt.Sprintf("got %s, want %s at %d first", told(r.Findings), code, index)
		}
		return ""
	}
}

// ranged wants a finding before all others that names few entries, including this index.
func ranged(code audit.Code, index int64) func(*world, audit.Report) string {
	return func(_ *world, r audit.Report) string {
		if r.Whole() || r.Findings[0].Code != code || r.Findings[0].Index > index || r.Findings[0].Through < index ||
			r.Findings[0].Through-r.Findings[0].Index > 2*sealEvery {
			return fmt.Sprintf("got %s, want %s around %d first", told(r.Findings), code, index)
		}
		return ""
	}
}

func told(all []audit.Finding) string {
	if len(all) == 0 {
		return "nothing"
	}
	var lines []string
	for _, f := range all[:min(len(all), 4)] {
		lines = append(lines, fmt.Sprintf("%s at %d to %d (%s: %s)", f.Code, f.Index, f.Through, f.Where, f.What))
	}
	return fmt.Sprintf("%d: %s", len(all), strings.Join(lines, "; "))
}
