// Package auditsink takes the audit log elsewhere: its entries to files and other systems, and the evidence of one task to an
// archive.
//
// It must never skip or reorder entries. A file gets each entry exactly once, and a remote receiver at least once.
package auditsink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/export"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/internal/wait"
)

const (
	// pageSize is the largest number of entries in one batch.
	pageSize = 1000
	// pollEvery is the interval between checks for new entries.
	pollEvery = time.Second
	// patience is how long a receiver may be unavailable before the export fails.
	patience = 5 * time.Minute
	// maxPause is the longest pause between two attempts.
	maxPause = 15 * time.Second
)

// Sink receives batches of events. A batch for which Take has returned nil is delivered for good.
type Sink interface {
	Take(ctx context.Context, batch []export.Event) error
	Close() error
}

// Form is the output format, and the name of the log that the entries come from.
type Form struct {
	Format export.Format
	Source string
}

// Position is how far an export has come.
type Position struct {
	From int64 `json:"from"` // index of the next entry
	Size int64 `json:"size"` // of the file, in bytes
}

// ReadPosition reads the position at which an earlier run stopped. If path is empty or no file, it returns from.
func ReadPosition(path string, from int64) (*Position, error) {
	at := &Position{From: from}
	if path == "" {
		return at, nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return at, nil
	}
	if err == nil && json.Unmarshal(text, at) != nil || at.From < 0 || at.Size < 0 {
		err = fmt.Errorf("%s is not the state of an export", path)
	}
	return at, err
}

// Export copies the entries of a log to a sink.
type Export struct {
	Broker *client.Client
	Sink   Sink
	At     *Position
	// State is the file that keeps the position, or empty.
	State string
	// Progress is called with the index of the next entry after each batch.
	Progress func(next int64)
	// Follow waits for new entries instead of returning when there are none.
	Follow bool
}

// Run copies entries until none are left, or until ctx ends if it follows the log.
func (e Export) Run(ctx context.Context) error {
	for {
		page, err := e.Broker.Entries(ctx, e.At.From, pageSize)
		if err == nil && len(page.Entries) > 0 {
			batch := make([]export.Event, len(page.Entries))
			for i, entry := range page.Entries {
				if batch[i], err = export.Read(entry.Index, entry.Body); err != nil {
					return err
				}
				if entry.Index != e.At.From+int64(i) {
					return fmt.Errorf("entry %d is missing from the log: run brevet audit verify", e.At.From+int64(i))
				}
			}
			if err := e.Sink.Take(ctx, batch); err != nil {
				return err
			}
			e.At.From = page.Next
			e.Progress(page.Next)
			if err := e.keep(); err != nil {
				return fmt.Errorf("storing the state of the export: %w", err)
			}
			continue
		}
		if !e.Follow || err != nil && !errors.Is(err, client.ErrUnavailable) && ctx.Err() == nil {
			return err
		}
		if !wait.For(ctx, pollEvery) {
			return nil
		}
	}
}

func (e Export) keep() error {
	if e.State == "" {
		return nil
	}
	text, err := json.Marshal(e.At)
	if err != nil {
		return err
	}
	return secret.WriteFile(e.State, string(text)+"\n")
}

// stream writes to a stream that somebody else closes.
type stream struct{ export.Writer }

// NewStream returns a sink that writes to w.
func NewStream(w io.Writer, form Form) (Sink, error) {
	writer, err := export.NewWriter(w, form.Format, form.Source)
	return stream{writer}, err
}

func (s stream) Take(_ context.Context, batch []export.Event) error {
	for _, e := range batch {
		if err := s.Write(e); err != nil {
			return err
		}
	}
	return s.Flush()
}

var errOtherColumns = errors.New("--to: the file has the columns of another version: set --to and --state to new files")

type file struct {
	Sink
	out *os.File
	at  *Position
}

// NewFile returns a sink that continues a file and closes it at the end. It syncs each batch, and truncates whatever an
// interrupted run wrote after its last stored batch.
func NewFile(out *os.File, form Form, at *Position) (Sink, error) {
	f := &file{out: out, at: at}
	if err := f.open(form); err != nil {
		return nil, errors.Join(err, out.Close())
	}
	return f, nil
}

func (f *file) open(form Form) error {
	if err := f.out.Truncate(f.at.Size); err != nil {
		return err
	}
	if _, err := f.out.Seek(f.at.Size, io.SeekStart); err != nil {
		return err
	}
	var header bytes.Buffer
	w := struct{ io.Writer }{f.out}
	continued := form.Format == export.CSV && f.at.Size > 0
	if continued {
		w.Writer = &header // the file has it already
	}
	sink, err := NewStream(&w, form)
	if err != nil || !continued {
		f.Sink = sink
		return err
	}
	if err := sink.Take(context.Background(), nil); err != nil {
		return err
	}
	first := make([]byte, header.Len())
	if _, err := f.out.ReadAt(first, 0); err != nil || !bytes.Equal(first, header.Bytes()) {
		return errOtherColumns
	}
	w.Writer, f.Sink = f.out, sink
	return nil
}

func (f *file) Take(ctx context.Context, batch []export.Event) error {
	err := f.Sink.Take(ctx, batch)
	if err == nil {
		err = f.out.Sync()
	}
	if err == nil {
		f.at.Size, err = f.out.Seek(0, io.SeekCurrent)
	}
	return err
}

func (f *file) Close() error { return errors.Join(f.Sink.Close(), f.out.Sync(), f.out.Close()) }
