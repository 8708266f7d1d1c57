package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/internal/export"
	"github.com/cenkalti/backoff/v5"
)

// exported is the position of an export.
type exported struct {
	From int64 `json:"from"` // index of the next entry
	Size int64 `json:"size"` // of the file, in bytes

	next atomic.Int64 // copy of From for the progress line, which reads it concurrently
}

func (at *exported) advance(to int64) { at.From = to; at.next.Store(to) }

// resume reads the position at which an earlier run stopped.
func (c *AuditExportCmd) resume() (at *exported, err error) {
	at = &exported{From: c.From}
	defer func() { at.next.Store(at.From) }()
	if c.State == "" {
		return at, nil
	}
	text, err := os.ReadFile(c.State)
	if errors.Is(err, os.ErrNotExist) {
		return at, nil
	}
	if err == nil && json.Unmarshal(text, at) != nil || at.From < 0 || at.Size < 0 {
		err = fmt.Errorf("--state: %s is not the state of an export", c.State)
	}
	return at, err
}

func (at *exported) keep(path string) error {
	if path == "" {
		return nil
	}
	text, err := json.Marshal(at)
	if err == nil {
		err = replaceFile(path, string(text)+"\n")
	}
	if err != nil {
		return fmt.Errorf("storing the state of the export: %w", err)
	}
	return nil
}

// exportForm is the output format, and the name of the log that the entries come from.
type exportForm struct {
	format export.Format
	source string
}

// exportStream writes to standard output.
type exportStream struct{ export.Writer }

func newExportStream(w io.Writer, form exportForm) (sink, error) {
	writer, err := export.NewWriter(w, form.format, form.source)
	return exportStream{writer}, err
}

func (s exportStream) take(_ context.Context, batch []export.Event) error {
	for _, e := range batch {
		if err := s.Write(e); err != nil {
			return err
		}
	}
	return s.Flush()
}

func (s exportStream) close() error { return s.Close() }

// exportFile writes to a file and syncs each batch. It truncates whatever an interrupted run wrote after its last stored
// batch.
type exportFile struct {
	exportStream
	out *os.File
	at  *exported
}

func newExportFile(out *os.File, form exportForm, at *exported) (sink, error) {
	if err := out.Truncate(at.Size); err != nil {
		return nil, errors.Join(err, out.Close())
	}
	var w io.Writer = out
	if form.format == export.CSV && at.Size > 0 {
		header, err := headerOf(out)
		if err != nil {
			return nil, errors.Join(err, out.Close())
		}
		w = &headless{w: out, header: header}
	}
	if _, err := out.Seek(at.Size, io.SeekStart); err != nil {
		return nil, errors.Join(err, out.Close())
	}
	writer, err := export.NewWriter(w, form.format, form.source)
	if err != nil {
		return nil, errors.Join(err, out.Close())
	}
	return &exportFile{exportStream{writer}, out, at}, nil
}

func (f *exportFile) take(ctx context.Context, batch []export.Event) error {
	err := f.exportStream.take(ctx, batch)
	if err == nil {
		err = f.out.Sync()
	}
	if err == nil {
		f.at.Size, err = f.out.Seek(0, io.SeekCurrent)
	}
	return err
}

func (f *exportFile) close() error {
	return errors.Join(f.exportStream.close(), f.out.Sync(), f.out.Close())
}

// headerOf reads the first line of a file.
func headerOf(file *os.File) ([]byte, error) {
	return bufio.NewReader(io.NewSectionReader(file, 0, 1<<16)).ReadBytes('\n')
}

// headless drops the first line, because the file already has a header. It returns errOtherColumns if the two headers
// differ.
type headless struct {
	w      io.Writer
	header []byte
	past   bool
}

var errOtherColumns = errors.New("--to: the file has the columns of another version: set --to and --state to new files")

func (h *headless) Write(p []byte) (int, error) {
	rest := p
	if !h.past {
		after, found := bytes.CutPrefix(p, h.header)
		if !found {
			return 0, errOtherColumns
		}
		h.past, rest = true, after
	}
	if _, err := h.w.Write(rest); err != nil {
		return 0, err
	}
	return len(p), nil
}

// push POSTs each batch. It retries for up to pushPatience until the receiver accepts the batch.
type push struct {
	url    string
	header [2]string
	form   exportForm
	client *http.Client
}

// errNotTaken means that the receiver rejected a batch and that a retry would not help.
var errNotTaken = errors.New("the receiver rejected the entries")

func newPush(target, headerFile string, form exportForm) (sink, error) {
	header, err := readHeader(headerFile)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(target)
	if err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || !loopback(u)) {
		return nil, fmt.Errorf("--push: %q is not an https URL", target)
	}
	if form.format == export.Parquet {
		return nil, errors.New("--push: Parquet requires a file; choose another --format")
	}
	client := &http.Client{Timeout: 30 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return &push{target, header, form, client}, nil
}

func loopback(u *url.URL) bool {
	return u.Hostname() == "127.0.0.1" || u.Hostname() == "localhost" || u.Hostname() == "::1"
}

// readHeader reads from a file an HTTP header to send with each request. The header may hold a secret.
func readHeader(path string) (header [2]string, err error) {
	if path == "" {
		return header, nil
	}
	text, err := readSecretFile(path)
	if err != nil {
		return header, fmt.Errorf("--header-file: %w", err)
	}
	name, value, found := strings.Cut(text, ":")
	if !found || strings.ContainsAny(text, "\r\n") {
		return header, errors.New("--header-file: must contain one header of the form Name: value")
	}
	return [2]string{strings.TrimSpace(name), strings.TrimSpace(value)}, nil
}

func (p *push) take(ctx context.Context, batch []export.Event) error {
	var body bytes.Buffer
	writer, err := export.NewWriter(&body, p.form.format, p.form.source)
	if err != nil {
		return err
	}
	if err := (exportStream{writer}).take(ctx, batch); err != nil {
		return err
	}
	mediaType, text := p.packed(body.Bytes())
	return again(ctx, func() error { return p.post(ctx, mediaType, text) })
}

// packed returns a batch in the form that the receiver expects. CloudEvents are sent as a JSON array (JSON Event Format
// 1.0, section 4).
func (p *push) packed(lines []byte) (mediaType string, text []byte) {
	switch p.form.format {
	case export.CSV:
		return "text/csv; charset=utf-8", lines
	case export.CloudEvents:
		joined := bytes.ReplaceAll(bytes.TrimSuffix(lines, []byte("\n")), []byte("\n"), []byte(",\n"))
		return "application/cloudevents-batch+json", append(append([]byte("["), joined...), ']')
	default:
		return "application/x-ndjson", lines
	}
}

func (p *push) post(ctx context.Context, mediaType string, text []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(text))
	if err != nil {
		return backoff.Permanent(err)
	}
	req.Header.Set("Content-Type", mediaType)
	if p.header[0] != "" {
		req.Header.Set(p.header[0], p.header[1])
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return fmt.Errorf("pushing entries: %w", err)
	}
	_ = resp.Body.Close()
	switch code := resp.StatusCode; {
	case code/100 == 2:
		return nil
	case code >= 500 || code == http.StatusTooManyRequests || code == http.StatusRequestTimeout:
		return fmt.Errorf("pushing entries: status %d", code)
	default:
		return backoff.Permanent(fmt.Errorf("%w: status %d", errNotTaken, code))
	}
}

func (p *push) close() error { return nil }

// pushPatience is how long a receiver may be unavailable before the export fails.
const pushPatience = 5 * time.Minute

// again retries do until it succeeds, fails permanently, or pushPatience has passed.
func again(ctx context.Context, do func() error) error {
	pause := backoff.NewExponentialBackOff()
	pause.MaxInterval = 15 * time.Second
	_, err := backoff.Retry(ctx, func() (struct{}, error) { return struct{}{}, do() },
		backoff.WithBackOff(pause), backoff.WithMaxElapsedTime(pushPatience))
	return err
}
