// Package faults_test breaks Brevet at every point where a credential could get lost, on real servers. A minute later it checks
// whether anything is alive without a record. `make faults` runs all of it.
//
// It must never count a fault that did not strike as survived.
package faults_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit"
)

var (
	all    = flag.Bool("all", false, "run every case, and not just a few")
	matrix = flag.String("matrix", "", "file to write the matrix to, as Markdown")
)

func TestMain(m *testing.M) {
	if text := os.Getenv(childVariable); text != "" {
		if err := serveChild(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	code := testkit.Main(m)
	if err := results.write(*matrix); err != nil {
		fmt.Fprintln(os.Stderr, "writing the matrix:", err)
		code = 1
	}
	passed, failed := results.count()
	os.Exit(testkit.Ended(code, passed, failed))
}

// results counts the cases of this run.
var results = &board{cells: map[string][]bool{}}

// board counts cases by kind, crash point and action. Faults of other kinds have separate rows.
type board struct {
	mu     sync.Mutex
	cells  map[string][]bool // by "column|row"
	others []string
	failed int
	passed int
}

func (b *board) count() (passed, failed int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.passed, b.failed
}

func (b *board) add(column, row string, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tally(ok)
	key := column + "|" + row
	b.cells[key] = append(b.cells[key], ok)
}

// other adds a case that is not in the matrix, with the observed result.
func (b *board) other(fault, seen string, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tally(ok)
	b.others = append(b.others, fmt.Sprintf("| %s | %s | %s |", fault, seen, verdict(ok)))
}

func (b *board) tally(ok bool) {
	if ok {
		b.passed++
	} else {
		b.failed++
	}
}

func verdict(ok bool) string {
	if ok {
		return "passed"
	}
	return "**failed**"
}

// preface explains the matrix.
const preface = `# Faults

Written by ` + "`make faults`" + `. A cell counts the cases that passed: a replica was killed, panicked, was stalled for five
seconds or got an error at that point, while it made a credential of that kind or ended one. Each case ends with a
comparison of the ledger with Vault's tokens and leases, the users of the target database and the valid certificates.
[credentials.md](credentials.md#broken-on-purpose) says where the points are. A dash means that a kind has no such point.

`

// write writes the matrix: a cell counts the actions that were survived, of those that were tried.
func (b *board) write(file string) error {
	if file == "" {
		return nil
	}
	var out strings.Builder
	out.WriteString(preface)
	out.WriteString("| crash point |")
	for _, k := range kinds {
		out.WriteString(" " + k.name + " |")
	}
	out.WriteString("\n| --- |" + strings.Repeat(" --- |", len(kinds)) + "\n")
	for _, p := range allPoints {
		fmt.Fprintf(&out, "| %s |", p)
		for _, k := range kinds {
			out.WriteString(" " + b.cell(k.name+"|"+string(p)) + " |")
		}
		out.WriteString("\n")
	}
	slices.Sort(b.others)
	out.WriteString("\n| fault | seen | result |\n| --- | --- | --- |\n" + strings.Join(b.others, "\n") + "\n")
	passed, failed := b.count()
	fmt.Fprintf(&out, "\n%d passed, %d failed\n", passed, failed)
	return os.WriteFile(file, []byte(out.String()), 0o644)
}

func (b *board) cell(key string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	tried, survived := len(b.cells[key]), 0
	for _, ok := range b.cells[key] {
		if ok {
			survived++
		}
	}
	if tried == 0 {
		return "–"
	}
	return fmt.Sprintf("%d of %d", survived, tried)
}
