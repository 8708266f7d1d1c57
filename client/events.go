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

// ApprovalEvent is a change in the list of requests that wait for a person's vote. One of the three fields is set.
type ApprovalEvent struct {
	Waiting *openapi.ApprovalCase    // began to wait, or became break-glass; checked against its hash
	Decided *openapi.ApprovalDecided // no longer waits
	More    bool                     // more requests wait than are listed, and may be older
}

// ApprovalWatch follows the requests that wait for the calling person's vote. It is not safe for concurrent use.
type ApprovalWatch struct {
	stream
	knows map[string]bool // waiting requests, and whether each was reported as break-glass
	more  bool            // more requests wait than are listed
}

// WatchApprovals returns a watch that has not reported any request yet.
func (c *Client) WatchApprovals() *ApprovalWatch {
	return &ApprovalWatch{stream: c.stream("/v1/approvals/events"), knows: map[string]bool{}}
}

// Follow calls on for each request that waits, and then for each change. It returns nil if the server ends the stream, which it
// does when the person's ID token expires. It returns an error if the connection is lost (ErrCutOff), if on returns one, or if
// ctx ends. A later call continues from there. A request is reported as waiting twice only if it was decided in between, or
// became break-glass.
func (w *ApprovalWatch) Follow(ctx context.Context, on func(ApprovalEvent) error) error {
	return w.stream.follow(ctx, func(ctx context.Context, kind string, data []byte) error { return w.take(ctx, kind, data, on) })
}

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
	resp, err := s.open(ctx)
	if err != nil {
		return because(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
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

// because returns the cause of the end of ctx if ctx has ended, and err otherwise.
func because(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (s *stream) open(ctx context.Context) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.target, nil)
	if err != nil {
		return nil, fmt.Errorf("making a call: %w", err)
	}
	req.Header.Set("Accept", "text/event-stream, application/problem+json")
	if s.last != "" {
		req.Header.Set("Last-Event-ID", s.last)
	}
	resp, err := s.client.send(s.carrier, req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK && mediaType(resp.Header) == "text/event-stream" {
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxEventLine))
	if err != nil {
		return nil, fmt.Errorf("reading the answer: %w", err)
	}
	return nil, problemOf(resp, body)
}

// take reports one event. It ignores unknown kinds, which are for newer clients.
func (w *ApprovalWatch) take(ctx context.Context, kind string, data []byte, on func(ApprovalEvent) error) error {
	switch kind {
	case "waiting":
		var one openapi.ApprovalCase
		if json.Unmarshal(data, &one) != nil {
			return fmt.Errorf("%w: an event is not the JSON of this API", ErrAnswer)
		}
		return w.waits(one, on)
	case "decided":
		var one openapi.ApprovalDecided
		if json.Unmarshal(data, &one) != nil {
			return fmt.Errorf("%w: an event is not the JSON of this API", ErrAnswer)
		}
		return w.decided(one, on)
	case "current":
		var now openapi.ApprovalsCurrent
		if json.Unmarshal(data, &now) != nil {
			return fmt.Errorf("%w: an event is not the JSON of this API", ErrAnswer)
		}
		return w.catchUp(ctx, now, on)
	}
	return nil
}

func (w *ApprovalWatch) waits(one openapi.ApprovalCase, on func(ApprovalEvent) error) error {
	if err := checkHash(one); err != nil {
		return err
	}
	if broken, known := w.knows[one.ID]; known && (broken || !one.Approval.Broken) {
		return nil
	}
	w.knows[one.ID] = one.Approval.Broken
	return on(ApprovalEvent{Waiting: &one})
}

func (w *ApprovalWatch) decided(one openapi.ApprovalDecided, on func(ApprovalEvent) error) error {
	if _, known := w.knows[one.ID]; !known {
		return nil
	}
	delete(w.knows, one.ID)
	return on(ApprovalEvent{Decided: &one})
}

// catchUp reports the changes that happened while there was no connection.
func (w *ApprovalWatch) catchUp(ctx context.Context, now openapi.ApprovalsCurrent, on func(ApprovalEvent) error) error {
	waits := map[string]bool{}
	for _, id := range now.Ids {
		waits[id] = true
	}
	for id := range w.knows {
		if waits[id] {
			continue
		}
		one, err := w.client.Approval(ctx, id)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		if now.More && one.Status == openapi.StatusPending {
			continue // it may still wait
		}
		// A person who may no longer see the request learns only that it no longer waits.
		if err := w.decided(openapi.ApprovalDecided{ID: id, Status: one.Status, StatusAt: one.StatusAt}, on); err != nil {
			return err
		}
	}
	for _, id := range now.Ids {
		if _, known := w.knows[id]; known {
			continue
		}
		one, err := w.client.Approval(ctx, id)
		if err != nil {
			return err
		}
		if err := w.waits(one, on); err != nil {
			return err
		}
	}
	before := w.more
	if w.more = now.More; w.more && !before {
		return on(ApprovalEvent{More: true})
	}
	return nil
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
		var one openapi.Issuance
		if json.Unmarshal(data, &one) != nil {
			return fmt.Errorf("%w: an event is not the JSON of this API", ErrAnswer)
		}
		return on(one)
	})
}
