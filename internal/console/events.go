package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/brevet-dev/brevet/broker"
)

const (
	// tellEvery is the longest pause before a stream sends a keep-alive comment.
	tellEvery = 15 * time.Second
	// tellTimeout bounds one write to a stream. A client that does not read is disconnected.
	tellTimeout = 5 * time.Second
	// afterAll sorts after every request id. The page already contains the pending requests, so the stream does not send them.
	afterAll = "ffffffff-ffff-ffff-ffff-ffffffffffff"
)

// errSlow means that a client requested events and does not read them.
var errSlow = errors.New("client does not read its events")

// tellApprovals streams server-sent events to a page that lists pending requests. An event says only that the list has
// changed; the page then fetches the list.
func (c *Console) tellApprovals(w http.ResponseWriter, r *http.Request) {
	who, err := c.visitor(r)
	switch {
	case errors.Is(err, errNobody):
		toLogin(w, r)
		return
	case err == nil && !who.Approves():
		err = errNotAllowed
	}
	if err != nil {
		c.fail(w, r, who, err)
		return
	}
	listener, err := c.cfg.Broker.Listen(r.Context(), who.Person, afterAll)
	if err != nil {
		c.fail(w, r, who, err)
		return
	}
	defer listener.Close()
	out := &stream{w: w, control: http.NewResponseController(w), now: c.cfg.Now}
	if err := c.tell(r.Context(), who, listener, out); err != nil {
		// The page reconnects, and the first event shows it whether the list has changed.
		c.cfg.Log.DebugContext(r.Context(), "events cut off", "error", err)
	}
}

// tell writes events until the login expires, this replica stops, or the client disconnects.
func (c *Console) tell(ctx context.Context, who *visitor, listener *broker.Listener, out *stream) error {
	if err := out.begin(); err != nil {
		return err
	}
	alive := time.NewTicker(tellEvery)
	defer alive.Stop()
	over := time.NewTimer(who.Expires().Sub(c.cfg.Now()))
	defer over.Stop()
	waits := &waits{broken: map[string]bool{}}
	for {
		select {
		case events, ok := <-listener.Events:
			if !ok {
				return errSlow
			}
			if err := out.write(waits.hear(events)); err != nil {
				return err
			}
		case <-alive.C:
			if err := out.write(": alive\n\n"); err != nil {
				return err
			}
		case <-over.C:
			return out.write(": your login has expired\n\n")
		case <-c.closed:
			return out.write(": this replica is shutting down\n\n")
		case <-ctx.Done():
			return nil
		}
	}
}

// waits tracks the requests that wait for one person. The value is true if the request has a break-glass vote.
type waits struct {
	broken map[string]bool
	told   bool // set after the first event: the page already contains what that event covers
}

// hear applies events and returns the message for the page. The message has only counts and a digest, and no text from the
// requests.
func (w *waits) hear(events []broker.Event) string {
	come, gone := 0, 0
	for _, e := range events {
		switch e.Kind {
		case broker.EventWaiting:
			if broken, known := w.broken[e.Request.ID]; !known || broken != e.Request.Broken {
				come++
			}
			w.broken[e.Request.ID] = e.Request.Broken
		case broker.EventDecided:
			gone++
			delete(w.broken, e.Request.ID)
		case broker.EventCurrent:
			w.keep(e.IDs)
		}
	}
	if !w.told {
		w.told, come, gone = true, 0, 0
	}
	return fmt.Sprintf("event: changed\ndata: {\"state\":%q,\"waiting\":%d,\"come\":%d,\"gone\":%d}\n\n", digestOf(w.broken), len(w.broken), come, gone)
}

// keep replaces the tracked requests with ids, the requests that are pending now.
func (w *waits) keep(ids []string) {
	now := map[string]bool{}
	for _, id := range ids {
		now[id] = w.broken[id]
	}
	w.broken = now
}

// stream is a response of server-sent events.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	now     func() time.Time
}

func (o *stream) begin() error {
	// The request is read completely, and the server's read timeout must not end the stream.
	if err := o.control.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("beginning a stream: %w", err)
	}
	h := o.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	o.w.WriteHeader(http.StatusOK)
	return o.write(": hello\n\n")
}

// write sends text at once. It returns an error if the client does not read it in time.
func (o *stream) write(text string) error {
	if err := o.control.SetWriteDeadline(o.now().Add(tellTimeout)); err != nil {
		return fmt.Errorf("writing an event: %w", err)
	}
	if _, err := o.w.Write([]byte(text)); err != nil {
		return fmt.Errorf("writing an event: %w", err)
	}
	if err := o.control.Flush(); err != nil {
		return fmt.Errorf("writing an event: %w", err)
	}
	// HTTP/2 would end the stream at the deadline even if there is nothing to write.
	if err := o.control.SetWriteDeadline(time.Time{}); err != nil {
		return fmt.Errorf("writing an event: %w", err)
	}
	return nil
}
