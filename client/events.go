package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/brevet-dev/brevet/openapi"
)

const (
	// longestSilence is how long a stream may be silent before the client gives up. The server sends a heartbeat every 15 s.
	longestSilence = 45 * time.Second
	// maxEventLine is the longest line of a stream, in bytes.
	maxEventLine = 1 << 20
)

// ErrCutOff means that a stream of events broke, or was silent for so long that the connection must be lost.
var ErrCutOff = errors.New("the events were cut off")

// stream is a source of server-sent events that resumes where it broke.
type stream struct {
	client  *Client
	carrier *http.Client
	target  string
	last    string // Last-Event-ID
}

func (c *Client) stream(target string) stream {
	carrier := *c.http
	carrier.Timeout = 0 // a stream has no timeout
	return stream{client: c, carrier: &carrier, target: c.base.String() + target}
}

// follow calls take for each event until the stream ends.
func (s *stream) follow(ctx context.Context, take func(ctx context.Context, kind string, data []byte) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(longestSilence, func() { cancel(ErrCutOff) })
	defer silence.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.target, nil)
	if err != nil {
		return because(ctx, fmt.Errorf("making a call: %w", err))
	}
	req.Header.Set("Accept", "text/event-stream, application/problem+json")
	if s.last != "" {
		req.Header.Set("Last-Event-ID", s.last)
	}
	resp, err := s.client.send(s.carrier, req)
	if err != nil {
		return because(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK || mediaType(resp.Header) != "text/event-stream" {
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxEventLine))
		if err != nil {
			return because(ctx, fmt.Errorf("reading the answer: %w", err))
		}
		return because(ctx, problemOf(resp, body))
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxEventLine)
	kind, id := "", s.last
	var data []byte
	for lines.Scan() {
		silence.Reset(longestSilence)
		name, value, _ := bytes.Cut(lines.Bytes(), []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "event":
			kind = string(value)
		case "id":
			id = string(value)
		case "data":
			data = append(data, value...)
		}
		if len(data) > maxEventLine {
			return fmt.Errorf("%w: an event is too large", ErrCutOff)
		}
		if len(lines.Bytes()) > 0 {
			continue
		}
		if err := take(ctx, kind, data); err != nil {
			return because(ctx, err)
		}
		s.last, kind, data = id, "", nil
	}
	if err := lines.Err(); err != nil {
		return because(ctx, fmt.Errorf("%w: %w", ErrCutOff, err))
	}
	return because(ctx, nil)
}

// event decodes the data of an event.
func event[T any](data []byte) (T, error) {
	var one T
	if json.Unmarshal(data, &one) != nil {
		return one, fmt.Errorf("%w: an event is not the JSON of this API", ErrAnswer)
	}
	return one, nil
}

// because returns the cause of the end of ctx if ctx has ended, and err otherwise.
func because(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// IssuanceWatch follows records that are added or change. It is not safe for concurrent use.
type IssuanceWatch struct{ stream }

// WatchIssuances returns a watch of the records that match the filter. It reports changes from the first call of Follow on.
func (c *Client) WatchIssuances(f Filter) *IssuanceWatch {
	f.Limit, f.Cursor = 0, ""
	return &IssuanceWatch{c.stream("/v1/issuances/events?" + f.Values().Encode())}
}

// Follow calls on with each record that is added or changes, in its current state. It returns nil if the server ends the
// stream. It returns an error if the connection is lost (ErrCutOff), if on returns one, or if ctx ends. A later call continues
// from there: it misses nothing, and may report a record again.
func (w *IssuanceWatch) Follow(ctx context.Context, on func(openapi.Issuance) error) error {
	return w.stream.follow(ctx, func(_ context.Context, kind string, data []byte) error {
		if kind != "issuance" {
			return nil // only an id, or a kind for newer clients
		}
		one, err := event[openapi.Issuance](data)
		if err != nil {
			return err
		}
		return on(one)
	})
}
