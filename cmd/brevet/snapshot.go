package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/brevet-dev/brevet/internal/audit"
)

// AuditSnapshotCmd is `brevet audit snapshot`.
type AuditSnapshotCmd struct {
	File            string `arg:"" help:"File to write, such as record.ndjson.gz." type:"path"`
	DatabaseURLFile string `help:"File with the URL of an auditor's read-only connection." required:"" type:"path"`
}

// Run writes everything that verification needs. The file appears when it is complete.
func (c *AuditSnapshotCmd) Run(ctx context.Context, con *console) error {
	items, done, err := openLedger(ctx, c.DatabaseURLFile)
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
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(file.Name(), c.File)
	}
	if err != nil {
		return fmt.Errorf("writing a snapshot: %w", err)
	}
	con.say("wrote " + c.File)
	return nil
}
