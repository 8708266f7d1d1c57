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
	// tellEvery is how often a stream of events says at least that it is alive.
	tellEvery = 15 * time.Second
	// tellTimeout is how long one write of a stream may take: who does not read is cut off.
	tellTimeout = 5 * time.Second
	// afterAll comes after the id of every request: the page has what waits already.
	afterAll = "ffffffff-ffff-ffff-ffff-ffffffffffff"
)

// errSlow: a browser asked for events and does not read them.
var errSlow = errors.New("client does not read its events")

// tellApprovals tells a page that lists what waits when that changes, as server-sent events, and not what it is: the page asks.
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
		// The page connects again, and learns then that something has changed.
		c.cfg.Log.DebugContext(r.Context(), "events cut off", "error", err)
	}
}

// tell writes events until the login or this replica ends, or the page is left.
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

// waits is what waits for somebody, and whether its glass is broken.
type waits struct {
	broken map[string]bool
	told   bool // what waited at the beginning, which the page has
}

// hear takes events in, and returns what to tell of them: nothing but numbers and a digest, which cannot be taken for more.
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

// keep holds what is known to what is said to wait now.
func (w *waits) keep(ids []string) {
	now := map[string]bool{}
	for _, id := range ids {
		now[id] = w.broken[id]
	}
	w.broken = now
}

// stream is an answer of server-sent events.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	now     func() time.Time
}

func (o *stream) begin() error {
	// There is nothing more to read, and the time for that is not the time that the answer may take.
	if err := o.control.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("beginning a stream: %w", err)
	}
	h := o.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	o.w.WriteHeader(http.StatusOK)
	return o.write(": hello\n\n")
}

// write sends a text at once, or says that it could not be sent in time.
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
	// HTTP/2 would end a stream at its deadline even when nothing is to be written.
	if err := o.control.SetWriteDeadline(time.Time{}); err != nil {
		return fmt.Errorf("writing an event: %w", err)
	}
	return nil
}
