package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/export"
	"github.com/brevet-dev/brevet/openapi"
)

// AuditExportCmd is `brevet audit export`.
type AuditExportCmd struct {
	OfficialFlags
	Format export.Format `help:"Output format: ${enum}." enum:"ndjson,csv,parquet,cloudevents,ocsf" default:"ndjson"`
	To     string        `help:"File to write to." type:"path" xor:"to"`
	Push   string        `help:"https URL to POST each batch to." xor:"to"`
	OTLP   string        `help:"OTLP/HTTP endpoint to send each entry to as a log record, as a URL." name:"otlp" xor:"to"`
	Header string        `help:"With --push and --otlp: file that holds an HTTP header to send, such as Authorization: Bearer …" name:"header-file" type:"path"`
	State  string        `help:"File that stores the position of the export, so that a later run resumes there. A file gets each entry exactly once; a push may repeat entries." type:"path"`
	From   int64         `help:"Index of the first entry, if --state does not exist yet."`
	Follow bool          `help:"Continue with new entries until Ctrl-C."`
}

// exportPage is the largest number of entries in one batch.
const exportPage = 1000

// pollEvery is the interval between checks for new entries.
const pollEvery = time.Second

// sink receives batches of events. A batch for which take has returned nil is delivered for good.
type sink interface {
	take(ctx context.Context, batch []export.Event) error
	close() error
}

// Run exports entries in order, starting where an earlier run stopped.
func (c *AuditExportCmd) Run(ctx context.Context, con *console) error {
	broker, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	at, err := c.resume()
	if err != nil {
		return err
	}
	keys, err := broker.LogKeys(ctx)
	if err != nil {
		return explain(con, c.hint(err), "")
	}
	source, _, err := logVerifiers(keys)
	if err != nil {
		return err
	}
	out, err := c.sink(con, exportForm{c.Format, source}, at)
	if err != nil {
		return err
	}
	began := at.From
	stop := newProgress(con.err).follow(func() string { return "exported " + plural(at.next.Load()-began, "entry", "entries") })
	err = c.pass(ctx, broker, out, at)
	stop()
	if err = errors.Join(err, out.close()); err != nil {
		return explain(con, c.hint(err), "")
	}
	con.say(fmt.Sprintf("exported %s; the next index is %d", plural(at.From-began, "entry", "entries"), at.From))
	return nil
}

// pass exports entries until none are left. With --follow it waits for new ones until ctx ends.
func (c *AuditExportCmd) pass(ctx context.Context, broker *client.Client, out sink, at *exported) error {
	for {
		page, err := broker.Entries(ctx, at.From, exportPage)
		if err == nil && len(page.Entries) > 0 {
			if err := c.hand(ctx, page, out, at); err != nil {
				return err
			}
			continue
		}
		if !c.Follow || err != nil && !errors.Is(err, client.ErrUnavailable) && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pollEvery):
		}
	}
}

// hand gives one page to the sink, and then stores the new position of the export.
func (c *AuditExportCmd) hand(ctx context.Context, page openapi.EntryPage, out sink, at *exported) error {
	batch := make([]export.Event, len(page.Entries))
	for i, entry := range page.Entries {
		var err error
		if batch[i], err = export.Read(entry.Index, entry.Body); err != nil {
			return err
		}
		if entry.Index != at.From+int64(i) {
			return fmt.Errorf("entry %d is missing from the log: run brevet audit verify", at.From+int64(i))
		}
	}
	if err := out.take(ctx, batch); err != nil {
		return err
	}
	at.advance(page.Next)
	return at.keep(c.State)
}

func (c *AuditExportCmd) sink(con *console, form exportForm, at *exported) (sink, error) {
	if c.Header != "" && c.Push == "" && c.OTLP == "" {
		return nil, errors.New("--header-file: requires --push or --otlp")
	}
	switch {
	case c.Push != "":
		return newPush(c.Push, c.Header, form)
	case c.OTLP != "":
		return newOTLP(c.OTLP, c.Header, form.source)
	case c.To != "":
		return c.openFile(form, at)
	case c.State != "":
		return nil, errors.New("--state: requires --to, --push or --otlp")
	}
	return newExportStream(con.out, form)
}

// openFile opens the file of an earlier run to append to it, or creates a new file.
func (c *AuditExportCmd) openFile(form exportForm, at *exported) (sink, error) {
	flags := os.O_RDWR | os.O_CREATE
	if at.Size == 0 {
		flags |= os.O_EXCL
	} else if c.Format == export.Parquet {
		return nil, errors.New("--to: a Parquet file cannot be extended: set --to to a new file, and keep --state")
	}
	file, err := os.OpenFile(c.To, flags, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("--to: %s already exists: choose another file, or set --state to resume", c.To)
	}
	if err != nil {
		return nil, err
	}
	return newExportFile(file, form, at)
}
