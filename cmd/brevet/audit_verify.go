package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

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
	NetworkFlag
}

// Run reports whether the record is intact. It exits with 1 if it is not, and with 2 if that is unknown.
func (c *AuditVerifyCmd) Run(ctx context.Context, con *console) error {
	cfg, err := c.config()
	if err != nil {
		return unproven(con, err)
	}
	if c.Receipt != "" {
		return c.verifyReceipt(con, cfg)
	}
	report, err := c.verify(ctx, con, cfg)
	if err != nil {
		return unproven(con, err)
	}
	if !report.Signatures {
		con.say("NO SIGNATURE WAS VERIFIED: a consistent change of all records would go undetected. Set --key to the log's public key, from a source other than the database.")
	}
	switch {
	case con.json:
		err = con.encode(report)
	case report.Whole():
		printWhole(con.out, report)
	default:
		err = printDamage(con.out, report)
	}
	if err == nil && !report.Whole() {
		err = exitError{err: errors.New("the record is damaged"), code: 1}
	}
	return err
}

// unproven prints an error. Unless it has another exit code, the integrity of the record is unknown.
func unproven(con *console, err error) error {
	fmt.Fprintf(con.err, "brevet: %v\n", err)
	explained, ok := errors.AsType[exitError](err)
	if !ok {
		explained = exitError{err: err, code: exitUnsaid}
	}
	return explained
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
		if _, cfg.Keys, err = audit.ParseKeys(texts); err != nil {
			return cfg, err
		}
	}
	if len(c.Witness) > 0 && len(c.Checkpoint) == 0 {
		return cfg, errors.New("--witness: requires a --checkpoint that the witness has cosigned, from brevet audit checkpoint --witnesses 1")
	}
	var witnesses []*audit.Cosigner
	for _, text := range c.Witness {
		key, err := audit.ParseCosigner(text)
		if err != nil {
			return cfg, fmt.Errorf("--witness: %w", err)
		}
		witnesses = append(witnesses, key)
	}
	for _, path := range c.Checkpoint {
		signed, err := os.ReadFile(path)
		if err != nil {
			return cfg, fmt.Errorf("--checkpoint: %w", err)
		}
		kept, err := cfg.Open(string(signed))
		var names []string
		if err == nil {
			names, _, err = audit.Cosigned(signed, witnesses...)
		}
		for _, w := range witnesses {
			if err == nil && !slices.Contains(names, w.Name()) {
				err = fmt.Errorf("%s has not cosigned it", w.Name())
			}
		}
		if err != nil {
			return cfg, fmt.Errorf("--checkpoint %s: %w", path, err)
		}
		cfg.Trusted = append(cfg.Trusted, kept)
	}
	return cfg, nil
}

func (c *AuditVerifyCmd) verify(ctx context.Context, con *console, cfg audit.Config) (report audit.Report, err error) {
	var items audit.Items
	if c.File == "" {
		var done func()
		db, err := c.read(con, c.DatabaseURLFile)
		if err != nil {
			return report, err
		}
		if items, done, err = readLedger(ctx, db); err != nil {
			return report, err
		}
		defer done()
	} else {
		file, err := os.Open(c.File)
		if err != nil {
			return report, err
		}
		defer func() { _ = file.Close() }()
		items = audit.ReadSnapshot(file)
	}
	var count counter
	cfg.Progress = count.set
	defer newProgress(con.err).follow(count.report("verified"))()
	return audit.Verify(ctx, items, cfg)
}

// readLedger opens a snapshot of a ledger.
func readLedger(ctx context.Context, db database) (items audit.Items, done func(), err error) {
	s, err := snapshot.Open(ctx, db.url, db.options...)
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

func printWhole(out io.Writer, r audit.Report) {
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
}

// printDamage prints what is wrong, what that means and what to do.
func printDamage(out io.Writer, r audit.Report) error {
	worst := r.Findings[0]
	fmt.Fprintf(out, "THE RECORD IS DAMAGED, first at %s: %s\n\n", entriesOf(worst), safetext.Text(worst.What))
	t := newTable(out, "PROBLEM\tENTRIES\tWHERE\tDETAILS")
	var codes []audit.Code
	for _, f := range r.Findings {
		t.row(f.Code, entriesOf(f), orDash(f.Where), f.What)
		if !slices.Contains(codes, f.Code) {
			codes = append(codes, f.Code)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if r.More > 0 {
		fmt.Fprintf(out, "and %d more\n", r.More)
	}
	fmt.Fprintln(out)
	for _, code := range codes {
		fmt.Fprintf(out, "%s: %s\n", code, audit.Meanings[code])
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

// verifyReceipt verifies a receipt. If the receipt is valid, verifyReceipt prints its entries, because they are what it
// proves.
func (c *AuditVerifyCmd) verifyReceipt(con *console, cfg audit.Config) error {
	if cfg.Keys == nil || len(c.Checkpoint) > 0 {
		return unproven(con, errors.New("--receipt: requires --key or --key-file with the log's public key from an independent source, and excludes --checkpoint"))
	}
	text, err := os.ReadFile(c.Receipt)
	if err != nil {
		return unproven(con, err)
	}
	var receipt audit.Receipt
	if json.Unmarshal(text, &receipt) != nil {
		return unproven(con, fmt.Errorf("--receipt: %s is not a receipt: use the output of brevet audit receipt", c.Receipt))
	}
	signed, err := receipt.Verify(cfg.Keys)
	if err != nil {
		return unproven(con, exitError{err: err, code: 1})
	}
	if con.json {
		return con.encode(struct {
			Log     string               `json:"log"`
			Size    int64                `json:"size"`
			Entries []audit.ReceiptEntry `json:"entries"`
		}{signed.Origin, signed.N, receipt.Entries})
	}
	of := "issuance " + receipt.Issuance
	if receipt.Task != "" {
		of = "task " + receipt.Task + " of " + receipt.SPIFFEID
	}
	fmt.Fprintf(con.out, "Verified: %s of %s in the log %s at size %d.\n\n", plural(len(receipt.Entries), "entry", "entries"), safetext.Text(of),
		safetext.Text(signed.Origin), signed.N)
	for _, e := range receipt.Entries {
		if _, err := fmt.Fprintf(con.out, "%d  %s\n", e.Index, safetext.Text(e.Body)); err != nil {
			return err
		}
	}
	return nil
}

// AuditSnapshotCmd is `brevet audit snapshot`.
type AuditSnapshotCmd struct {
	File            string `arg:"" help:"File to write, such as record.ndjson.gz." type:"path"`
	DatabaseURLFile string `help:"File with the URL of an auditor's read-only connection." required:"" type:"path"`
	NetworkFlag
}

// Run writes everything that verification needs. The file appears when it is complete.
func (c *AuditSnapshotCmd) Run(ctx context.Context, con *console) error {
	db, err := c.read(con, c.DatabaseURLFile)
	if err != nil {
		return err
	}
	items, done, err := readLedger(ctx, db)
	if err != nil {
		return err
	}
	defer done()
	file, err := os.CreateTemp(filepath.Dir(c.File), ".snapshot-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(file.Name()) }() // removes nothing after the rename
	var count counter
	stop := newProgress(con.err).follow(count.report("wrote"))
	err = audit.WriteSnapshot(file, items, count.set)
	stop()
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), c.File)
	}
	if err != nil {
		return fmt.Errorf("writing a snapshot: %w", err)
	}
	con.say("wrote " + c.File)
	return nil
}
