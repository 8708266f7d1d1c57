package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"text/tabwriter"

	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/ledger/snapshot"
	"github.com/brevet-dev/brevet/internal/safetext"
)

// exitUnsaid is the exit code if the record could not be read, so that its integrity is unknown.
const exitUnsaid = 2

// AuditVerifyCmd is `brevet audit verify`.
type AuditVerifyCmd struct {
	DatabaseURLFile string   `help:"File with the URL of an auditor's read-only connection." type:"path" xor:"from" required:""`
	File            string   `help:"Snapshot to verify, as brevet audit snapshot writes it." type:"path" xor:"from" required:""`
	Receipt         string   `help:"Receipt to verify, as brevet audit receipt prints it. Requires a key." type:"path" xor:"from" required:""`
	Key             []string `help:"Public key of the log, as brevet audit keys prints it; repeatable." sep:"none"`
	KeyFile         string   `help:"File with public keys of the log, one per line." type:"path"`
	Checkpoint      []string `help:"File with a checkpoint that you stored earlier; repeatable." type:"path" sep:"none"`
	Witness         []string `help:"Public key of a witness that must have cosigned each --checkpoint; repeatable." sep:"none"`
}

// Run reports whether the record is intact. It exits with 1 if it is not, and with 2 if that is unknown.
func (c *AuditVerifyCmd) Run(ctx context.Context, con *console) error {
	if c.Receipt != "" {
		return c.verifyReceipt(con)
	}
	report, err := c.verify(ctx, con)
	if err != nil {
		fmt.Fprintf(con.err, "brevet: %v\n", err)
		return exitError{err: err, code: exitUnsaid}
	}
	if !report.Signatures {
		fmt.Fprintln(con.err, "NO SIGNATURE WAS VERIFIED: a consistent change of all records would go undetected. Set --key to the log's public key, from a source other than the database.")
	}
	if con.json {
		err = con.encode(report)
	} else {
		err = printReport(con.out, report)
	}
	if err == nil && !report.Whole() {
		err = exitError{err: errors.New("the record is damaged"), code: 1}
	}
	return err
}

func (c *AuditVerifyCmd) verify(ctx context.Context, con *console) (audit.Report, error) {
	cfg, err := c.config()
	if err != nil {
		return audit.Report{}, err
	}
	items, done, err := c.items(ctx)
	if err != nil {
		return audit.Report{}, err
	}
	defer done()
	var count counter
	cfg.Progress = count.set
	stop := newProgress(con.err).follow(count.report("verified"))
	defer stop()
	return audit.Verify(ctx, items, cfg)
}

// config returns the verification settings from the flags.
func (c *AuditVerifyCmd) config() (cfg audit.Config, err error) {
	texts := c.Key
	if c.KeyFile != "" {
		content, err := os.ReadFile(c.KeyFile)
		if err != nil {
			return cfg, fmt.Errorf("--key-file: %w", err)
		}
		keys := strings.Fields(string(content))
		if len(keys) == 0 { // without a key, no signature would be verified
			return cfg, fmt.Errorf("--key-file: %s has no key; brevet audit keys prints the keys of the log", c.KeyFile)
		}
		texts = append(texts, keys...)
	}
	if len(texts) > 0 {
		if _, cfg.Keys, err = logVerifiers(texts); err != nil {
			return cfg, err
		}
	}
	witnesses, err := c.witnesses()
	if err != nil {
		return cfg, err
	}
	for _, path := range c.Checkpoint {
		signed, err := os.ReadFile(path)
		if err != nil {
			return cfg, fmt.Errorf("--checkpoint: %w", err)
		}
		kept, err := cfg.Open(string(signed))
		if err == nil {
			err = cosignedBy(signed, witnesses)
		}
		if err != nil {
			return cfg, fmt.Errorf("--checkpoint %s: %w", path, err)
		}
		cfg.Trusted = append(cfg.Trusted, kept)
	}
	return cfg, nil
}

func (c *AuditVerifyCmd) witnesses() (keys []*audit.Cosigner, err error) {
	if len(c.Witness) > 0 && len(c.Checkpoint) == 0 {
		return nil, errors.New("--witness: requires a --checkpoint that the witness has cosigned, from brevet audit checkpoint --witnesses 1")
	}
	for _, text := range c.Witness {
		key, err := audit.ParseCosigner(text)
		if err != nil {
			return nil, fmt.Errorf("--witness: %w", err)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// cosignedBy returns an error unless all witnesses have cosigned a checkpoint.
func cosignedBy(signed []byte, witnesses []*audit.Cosigner) error {
	names, _, err := audit.Cosigned(signed, witnesses...)
	for _, w := range witnesses {
		if err == nil && !slices.Contains(names, w.Name()) {
			err = fmt.Errorf("%s has not cosigned it", w.Name())
		}
	}
	return err
}

func (c *AuditVerifyCmd) items(ctx context.Context) (items audit.Items, done func(), err error) {
	if c.File == "" {
		return openLedger(ctx, c.DatabaseURLFile)
	}
	file, err := os.Open(c.File)
	if err != nil {
		return nil, nil, err
	}
	return audit.ReadSnapshot(file), func() { _ = file.Close() }, nil
}

// openLedger opens a snapshot of the ledger whose URL is in urlFile.
func openLedger(ctx context.Context, urlFile string) (items audit.Items, done func(), err error) {
	databaseURL, err := readSecretFile(urlFile)
	if err != nil {
		return nil, nil, fmt.Errorf("--database-url-file: %w", err)
	}
	s, err := snapshot.Open(ctx, databaseURL)
	if err != nil {
		return nil, nil, err
	}
	return s.Items(ctx), func() { s.Close(context.WithoutCancel(ctx)) }, nil
}

// counter is the progress of an operation over entries.
type counter struct{ done, of atomic.Int64 }

func (c *counter) set(done, of int64) {
	c.done.Store(done)
	c.of.Store(of)
}

func (c *counter) report(verb string) func() string {
	return func() string { return fmt.Sprintf("%s %d of %d entries", verb, c.done.Load(), c.of.Load()) }
}

func printReport(out io.Writer, r audit.Report) error {
	if !r.Whole() {
		return printDamage(out, r)
	}
	vouched := "of which the log's key signed"
	if !r.Signatures {
		vouched = "of which checkpoints cover"
	}
	fmt.Fprintf(out, "The record is intact: %d entries, %s %d, in %d checkpoints.\n", r.Entries, vouched, r.Sealed, r.Checkpoints)
	for _, p := range r.Pruned {
		fmt.Fprintf(out, "Of entries %d to %d, %d were dropped on %s by %s because they were older than %s (recorded in entry %d).\n",
			p.First, p.Beyond-1, p.Dropped, safetext.Text(p.Time), safetext.Text(p.By), safetext.Text(p.Before), p.Index)
	}
	if r.Sealed < r.Entries {
		fmt.Fprintf(out, "Entries from %d on are not signed yet: verify again in a minute, and then store a checkpoint.\n", r.Sealed)
	}
	return nil
}

// printDamage prints what is wrong, what that means and what to do.
func printDamage(out io.Writer, r audit.Report) error {
	worst := r.Findings[0]
	fmt.Fprintf(out, "THE RECORD IS DAMAGED, first at %s: %s\n\n", entriesOf(worst), safetext.Text(worst.What))
	table := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "PROBLEM\tENTRIES\tWHERE\tDETAILS")
	var codes []audit.Code
	for _, f := range r.Findings {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", f.Code, entriesOf(f), orDash(safetext.Text(f.Where)), safetext.Text(f.What))
		if len(codes) == 0 || codes[len(codes)-1] != f.Code {
			codes = append(codes, f.Code)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if r.More > 0 {
		fmt.Fprintf(out, "and %d more\n", r.More)
	}
	fmt.Fprintln(out)
	told := map[audit.Code]bool{}
	for _, code := range codes {
		if !told[code] {
			fmt.Fprintf(out, "%s: %s\n", code, audit.Meanings[code])
		}
		told[code] = true
	}
	_, err := fmt.Fprintln(out, "\nDo not change the database or its backups. Take a snapshot (brevet audit snapshot), and see docs/audit.md.")
	return err
}

func entriesOf(f audit.Finding) string {
	switch {
	case f.Index < 0:
		return "no entry"
	case f.Through > f.Index:
		return fmt.Sprintf("%d to %d", f.Index, f.Through)
	}
	return fmt.Sprint(f.Index)
}
