package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	. "github.com/brevet-dev/brevet/openapi"
)

// followEvery is the interval at which a follower's changes are read.
const followEvery = 700 * time.Millisecond

// WatchIssuances streams new and changed records as server-sent events.
func (s *Server) WatchIssuances(w http.ResponseWriter, r *http.Request, p WatchIssuancesParams) {
	const operation = "watchIssuances"
	serve(s, w, r, operation, func(who caller) error {
		f, err := s.follower(r, who, operation, p)
		if err != nil {
			return err
		}
		leave, err := s.cfg.Broker.Follow(nameOf(who))
		if err != nil {
			return err
		}
		defer leave()
		s.cutOff(r, s.tellFollower(r, f, &stream{w: w, control: http.NewResponseController(w), now: s.cfg.Now}))
		return nil
	})
}

// follower is what a caller follows, and from which position.
type follower struct {
	query   broker.Query
	within  broker.Reach
	listing []byte
	from    int64
	expires time.Time
}

func (s *Server) follower(r *http.Request, who caller, operation string, p WatchIssuancesParams) (*follower, error) {
	within, err := s.readable(r, who)
	if err != nil {
		return nil, err
	}
	if err := s.rules.check(r, who, operation, nil); err != nil {
		return nil, err
	}
	q, err := queryOf(r, ListIssuancesParams{
		SpiffeID: p.SpiffeID, SpiffeIDPrefix: p.SpiffeIDPrefix, TrustDomain: p.TrustDomain, Scope: p.Scope, Task: p.Task,
		Decision: p.Decision, DecisionCode: p.DecisionCode, Status: p.Status, Since: p.Since, Until: p.Until, Q: p.Q,
		Approver: p.Approver, OnBehalfOf: p.OnBehalfOf, Credential: p.Credential, Name: p.Name, KeyID: p.KeyID, Group: p.Group, Authority: p.Authority,
		Resource: p.Resource, Catalogue: p.Catalogue,
	})
	if err != nil {
		return nil, err
	}
	f := &follower{query: q, within: within, from: -1, expires: s.cfg.Now().Add(time.Hour)}
	if lives, ok := who.(interface{ Expires() time.Time }); ok {
		f.expires = lives.Expires()
	}
	if f.listing, err = listingOf("following as "+nameOf(who), q, within); err != nil {
		return nil, err
	}
	if p.LastEventID != "" {
		if f.from, err = s.cursors.open(p.LastEventID, f.listing); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// tellFollower writes events until the caller's credentials expire, this replica shuts down, or the caller disconnects.
func (s *Server) tellFollower(r *http.Request, f *follower, out *stream) error {
	if err := out.begin(); err != nil {
		return err
	}
	look, alive := time.NewTicker(followEvery), time.NewTicker(eventEvery)
	defer look.Stop()
	defer alive.Stop()
	over := time.NewTimer(f.expires.Sub(s.cfg.Now()))
	defer over.Stop()
	for {
		if err := s.tellChanges(r, f, out); err != nil {
			return err
		}
		select {
		case <-look.C:
		case <-alive.C:
			// This sends only the id: a client that reconnects need not read again what came before it.
			if err := out.write(": alive\nid: " + s.cursors.seal(f.from, f.listing) + "\n\n"); err != nil {
				return err
			}
		case <-over.C:
			return out.write(": your credentials have expired\n\n")
		case <-s.closed:
			return out.write(": this replica is shutting down\n\n")
		case <-r.Context().Done():
			return nil
		}
	}
}

// tellChanges writes all pending changes. The id of a position is sent with the last event before it, so that a client that
// reconnects loses no event.
func (s *Server) tellChanges(r *http.Request, f *follower, out *stream) error {
	for {
		began := f.from < 0
		found, err := s.cfg.Broker.Changes(r.Context(), f.query, f.within, f.from)
		if err != nil {
			return fmt.Errorf("following: %w", err)
		}
		f.from = found.Next
		if began {
			return out.write("id: " + s.cursors.seal(f.from, f.listing) + "\n\n")
		}
		for i := range found.Records {
			text, err := json.Marshal(issuanceOf(&found.Records[i], f.within))
			if err != nil {
				return fmt.Errorf("encoding an event: %w", err)
			}
			id := ""
			if i == len(found.Records)-1 {
				id = "id: " + s.cursors.seal(f.from, f.listing) + "\n"
			}
			if err := out.write("event: issuance\n" + id + "data: " + string(text) + "\n\n"); err != nil {
				return err
			}
		}
		if !found.Further {
			return nil
		}
	}
}

const (
	// eventEvery is the interval of keep-alive comments on an event stream.
	eventEvery = 15 * time.Second
	// eventTimeout is the timeout of one write to a stream. A client that does not read is disconnected.
	eventTimeout = 5 * time.Second
)

// cutOff logs why an event stream ended early. The client reconnects, and then gets the events that it missed.
func (s *Server) cutOff(r *http.Request, err error) {
	if err != nil {
		s.cfg.Log.DebugContext(r.Context(), "events cut off", "request_id", callOf(r).id, "error", err)
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
