package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/auditsink"
	"github.com/brevet-dev/brevet/internal/export"
	"github.com/brevet-dev/brevet/internal/secret"
)

// AuditCheckpointCmd is `brevet audit checkpoint`.
type AuditCheckpointCmd struct {
	OfficialFlags
	Witnesses int `help:"Print the latest checkpoint that at least this many witnesses have cosigned."`
}

// Run prints the latest signed checkpoint unchanged, so that it can be stored elsewhere.
func (c *AuditCheckpointCmd) Run(ctx context.Context, con *console) error {
	return call(ctx, con, c.OfficialFlags, func(broker *client.Client) error {
		signed, err := broker.CosignedCheckpoint(ctx, c.Witnesses)
		if err != nil {
			return err
		}
		return con.print(map[string]string{"checkpoint": signed}, "%s", signed)
	})
}

// AuditKeysCmd is `brevet audit keys`.
type AuditKeysCmd struct{ OfficialFlags }

// Run prints the public keys of the log.
func (c *AuditKeysCmd) Run(ctx context.Context, con *console) error {
	return call(ctx, con, c.OfficialFlags, func(broker *client.Client) error {
		keys, err := broker.LogKeys(ctx)
		if err != nil {
			return err
		}
		if !con.json {
			con.say("compare these keys with an independent copy: a compromised broker could return others")
		}
		return con.print(map[string][]string{"keys": keys}, "%s\n", strings.Join(keys, "\n"))
	})
}

// AuditReceiptCmd is `brevet audit receipt`.
type AuditReceiptCmd struct {
	OfficialFlags
	ID string `arg:"" help:"ID of the issuance."`
}

// Run prints the proof that an issuance is in the log. The output is always JSON, because it usually goes to a file.
func (c *AuditReceiptCmd) Run(ctx context.Context, con *console) error {
	return call(ctx, con, c.OfficialFlags, func(broker *client.Client) error {
		receipt, err := broker.LogReceipt(ctx, c.ID)
		if err != nil {
			return err
		}
		out := json.NewEncoder(con.out)
		out.SetEscapeHTML(false)
		if !con.json {
			out.SetIndent("", "  ")
		}
		return out.Encode(receipt)
	})
}

// AuditEvidenceCmd is `brevet audit evidence`.
type AuditEvidenceCmd struct {
	OfficialFlags
	Task     string `arg:"" help:"Task whose evidence to export."`
	SPIFFEID string `help:"SPIFFE ID of the sandbox that owns the task." name:"spiffe-id" required:""`
	To       string `help:"ZIP file to write." type:"path" required:""`
}

// Run writes the evidence of one task to a self-contained file. It fails if the file exists.
func (c *AuditEvidenceCmd) Run(ctx context.Context, con *console) error {
	return call(ctx, con, c.OfficialFlags, func(broker *client.Client) error {
		packed, err := auditsink.Evidence{SPIFFEID: c.SPIFFEID, Task: c.Task, Now: time.Now(), Omitted: func(digest string) {
			con.say("the catalogue " + digest + " is omitted: you may not read it, or it was not applied through the API")
		}}.Collect(ctx, broker)
		if err != nil {
			return err
		}
		out, err := os.OpenFile(c.To, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = out.Write(packed)
		if err = errors.Join(err, out.Close()); err == nil {
			con.say("wrote the evidence to " + c.To + "; its README.txt explains how to verify it")
		}
		return err
	})
}

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

// Run exports entries in order, starting where an earlier run stopped.
func (c *AuditExportCmd) Run(ctx context.Context, con *console) error {
	return call(ctx, con, c.OfficialFlags, func(broker *client.Client) error {
		at, err := auditsink.ReadPosition(c.State, c.From)
		if err != nil {
			return fmt.Errorf("--state: %w", err)
		}
		keys, err := broker.LogKeys(ctx)
		if err != nil {
			return err
		}
		source, _, err := audit.ParseKeys(keys)
		if err != nil {
			return err
		}
		sink, err := c.sink(con, auditsink.Form{Format: c.Format, Source: source}, at)
		if err != nil {
			return err
		}
		began := at.From
		var done atomic.Int64
		stop := newProgress(con.err).follow(func() string { return "exported " + plural(done.Load(), "entry", "entries") })
		err = auditsink.Export{
			Broker: broker, Sink: sink, At: at, State: c.State, Follow: c.Follow, Progress: func(next int64) { done.Store(next - began) },
		}.Run(ctx)
		stop()
		if err = errors.Join(err, sink.Close()); err == nil {
			con.say(fmt.Sprintf("exported %s; the next index is %d", plural(at.From-began, "entry", "entries"), at.From))
		}
		return err
	})
}

func (c *AuditExportCmd) sink(con *console, form auditsink.Form, at *auditsink.Position) (auditsink.Sink, error) {
	remote := c.Push != "" || c.OTLP != ""
	if c.Header != "" && !remote {
		return nil, errors.New("--header-file: requires --push or --otlp")
	}
	header, err := c.header()
	if err != nil {
		return nil, fmt.Errorf("--header-file: %w", err)
	}
	switch {
	case c.Push != "" && c.Format == export.Parquet:
		return nil, errors.New("--push: Parquet requires a file; choose another --format")
	case c.Push != "":
		sink, err := auditsink.NewPush(c.Push, header, form)
		if err != nil {
			return nil, fmt.Errorf("--push: %w", err)
		}
		return sink, nil
	case c.OTLP != "":
		sink, err := auditsink.NewOTLP(c.OTLP, header, form.Source)
		if err != nil {
			return nil, fmt.Errorf("--otlp: %w", err)
		}
		return sink, nil
	case c.To == "" && c.State != "":
		return nil, errors.New("--state: requires --to, --push or --otlp")
	case c.To == "":
		return auditsink.NewStream(con.out, form)
	}
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
	return auditsink.NewFile(file, form, at)
}

// header reads the HTTP header to send with each request. It may hold a secret.
func (c *AuditExportCmd) header() (auditsink.Header, error) {
	if c.Header == "" {
		return auditsink.Header{}, nil
	}
	text, err := secret.ReadFile(c.Header)
	if err != nil {
		return auditsink.Header{}, err
	}
	name, value, found := strings.Cut(text, ":")
	if !found || strings.ContainsAny(text, "\r\n") {
		return auditsink.Header{}, errors.New("must contain one header of the form Name: value")
	}
	return auditsink.Header{Name: strings.TrimSpace(name), Value: strings.TrimSpace(value)}, nil
}
