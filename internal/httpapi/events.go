package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/people"
	. "github.com/brevet-dev/brevet/openapi"
)

const (
	// eventEvery is the interval of keep-alive comments on an event stream.
	eventEvery = 15 * time.Second
	// eventTimeout is the timeout of one write to a stream. A client that does not read is disconnected.
	eventTimeout = 5 * time.Second
)

// WatchApprovals streams to a person which requests begin and stop waiting for them, as server-sent events.
func (s *Server) WatchApprovals(w http.ResponseWriter, r *http.Request, params WatchApprovalsParams) {
	const operation = "watchApprovals"
	serve(s, w, r, operation, func(person people.Person) error {
		if err := s.rules.check(r, person, operation, nil); err != nil {
			return err
		}
		listener, err := s.cfg.Broker.Listen(r.Context(), person, params.LastEventID)
		if err != nil {
			return err
		}
		defer listener.Close()
		out := &stream{w: w, control: http.NewResponseController(w), now: s.cfg.Now, id: params.LastEventID}
		s.cutOff(r, s.tell(r, person, listener, out))
		return nil
	})
}

// cutOff logs why an event stream ended early. The client reconnects, and then gets the events that it missed.
func (s *Server) cutOff(r *http.Request, err error) {
	if err != nil {
		s.cfg.Log.DebugContext(r.Context(), "events cut off", "request_id", callOf(r).id, "error", err)
	}
}

// tell writes events until the person's token expires, this replica shuts down, or the person disconnects.
func (s *Server) tell(r *http.Request, person people.Person, listener *broker.Listener, out *stream) error {
	if err := out.begin(); err != nil {
		return err
	}
	alive := time.NewTicker(eventEvery)
	defer alive.Stop()
	over := time.NewTimer(person.Expires().Sub(s.cfg.Now()))
	defer over.Stop()
	for {
		select {
		case events, ok := <-listener.Events:
			if !ok {
				return errSlow
			}
			for _, e := range events {
				if err := out.event(s, e); err != nil {
					return err
				}
			}
		case <-alive.C:
			if err := out.write(": alive\n\n"); err != nil {
				return err
			}
		case <-over.C:
			return out.write(": your ID token has expired\n\n")
		case <-s.closed:
			return out.write(": this replica is shutting down\n\n")
		case <-r.Context().Done():
			return nil
		}
	}
}

// stream is a response of server-sent events.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	now     func() time.Time
	id      string // the greatest id of a waiting request that was sent; fixed while others are left out
}

func (o *stream) begin() error {
	// The call has been read, and its read timeout must not end the stream.
	if err := supported(o.control.SetReadDeadline(time.Time{})); err != nil {
		return err
	}
	h := o.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	o.w.WriteHeader(http.StatusOK)
	return o.write(": hello\n\n")
}

// event writes one event. JSON contains no line breaks, so its text cannot forge another event.
func (o *stream) event(s *Server, e broker.Event) error {
	var data any
	switch e.Kind {
	case broker.EventWaiting:
		data = s.caseOf(e.Request)
		if !e.More {
			o.id = max(o.id, e.Request.ID)
		}
	case broker.EventDecided:
		data = ApprovalDecided{ID: e.Request.ID, Status: Status(e.Request.Status), StatusAt: e.Request.StatusTime}
	case broker.EventCurrent:
		data = ApprovalsCurrent{Ids: append([]string{}, e.IDs...), More: e.More}
	}
	text, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("encoding an event: %w", err)
	}
	var b strings.Builder
	b.WriteString("event: " + string(e.Kind) + "\n")
	if o.id != "" {
		b.WriteString("id: " + o.id + "\n")
	}
	b.WriteString("data: " + string(text) + "\n\n")
	return o.write(b.String())
}

// write sends a text at once, and returns an error if that fails or exceeds eventTimeout.
func (o *stream) write(text string) error {
	if err := supported(o.control.SetWriteDeadline(o.now().Add(eventTimeout))); err != nil {
		return err
	}
	if _, err := o.w.Write([]byte(text)); err != nil {
		return fmt.Errorf("writing an event: %w", err)
	}
	if err := o.control.Flush(); err != nil {
		return fmt.Errorf("writing an event: %w", err)
	}
	// HTTP/2 would end the stream at its deadline even if nothing is to be written.
	return supported(o.control.SetWriteDeadline(time.Time{}))
}

// supported ignores that a connection has no deadlines, as when a test calls the handler directly.
func supported(err error) error {
	if errors.Is(err, http.ErrNotSupported) {
		return nil
	}
	return err
}
