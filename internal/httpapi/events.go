package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
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
	// followEvery is the pause between two readings of a follower's changes.
	followEvery = 700 * time.Millisecond
)

// WatchApprovals streams to a person which requests begin and stop waiting for them, as server-sent events.
func (s *Server) WatchApprovals(w http.ResponseWriter, r *http.Request, params WatchApprovalsParams) {
	serve(s, w, r, "watchApprovals", func(person people.Person) error {
		if err := s.rules.check(r, person, nil); err != nil {
			return err
		}
		listener, err := s.cfg.Broker.Listen(r.Context(), person, params.LastEventID)
		if err != nil {
			return err
		}
		defer listener.Close()
		last := params.LastEventID // the greatest id of a waiting request that was sent; fixed while others are left out
		out := &stream{w: w, now: s.cfg.Now, until: person.Expires(), expired: "your ID token has expired"}
		tell(s, r, out, listener.Events, func(events []broker.Event) error {
			for _, e := range events {
				var data any
				switch e.Kind {
				case broker.EventWaiting:
					data = s.caseOf(e.Request)
					if !e.More {
						last = max(last, e.Request.ID)
					}
				case broker.EventDecided:
					data = ApprovalDecided{ID: e.Request.ID, Status: Status(e.Request.Status), StatusAt: e.Request.StatusTime}
				case broker.EventCurrent:
					data = ApprovalsCurrent{Ids: append([]string{}, e.IDs...), More: e.More}
				}
				id := ""
				if last != "" {
					id = "id: " + last + "\n"
				}
				if err := out.event(string(e.Kind), id, data); err != nil {
					return err
				}
			}
			return nil
		})
		return nil
	})
}

// WatchIssuances streams new and changed records as server-sent events. The id of a position is sent with the last event before
// it, so that a client that reconnects loses no event.
func (s *Server) WatchIssuances(w http.ResponseWriter, r *http.Request, p WatchIssuancesParams) {
	s.forReaders(w, r, "watchIssuances", func(by reader) error {
		q, err := queryOf(r, ListIssuancesParams{
			SpiffeID: p.SpiffeID, SpiffeIDPrefix: p.SpiffeIDPrefix, TrustDomain: p.TrustDomain, Scope: p.Scope, Task: p.Task,
			Decision: p.Decision, DecisionCode: p.DecisionCode, Status: p.Status, Since: p.Since, Until: p.Until, Q: p.Q,
			Approver: p.Approver, OnBehalfOf: p.OnBehalfOf, Credential: p.Credential, Name: p.Name, KeyID: p.KeyID,
			Group: p.Group, Authority: p.Authority, Resource: p.Resource, Catalogue: p.Catalogue,
		})
		if err != nil {
			return err
		}
		listing, err := listingOf("following as "+nameOf(by.who), q, by.within)
		if err != nil {
			return err
		}
		from := int64(-1) // before the first reading
		if p.LastEventID != "" {
			if from, err = s.cursors.open(p.LastEventID, listing); err != nil {
				return err
			}
		}
		leave, err := s.cfg.Broker.Follow(nameOf(by.who), by.within)
		if err != nil {
			return err
		}
		defer leave()
		position := func() string { return "id: " + s.cursors.seal(from, listing) + "\n" }
		out := &stream{w: w, now: s.cfg.Now, until: by.who.Expires(), expired: "your credentials have expired", position: position}
		look := time.NewTimer(0)
		defer look.Stop()
		tell(s, r, out, look.C, func(time.Time) error {
			defer look.Reset(followEvery)
			for {
				began := from < 0
				leave, err := s.await(r, by)
				if err != nil {
					return err
				}
				found, err := s.cfg.Broker.Changes(r.Context(), q, by.within, from)
				leave()
				if err != nil {
					return fmt.Errorf("following: %w", err)
				}
				from = found.Next
				if began {
					return out.write(position() + "\n")
				}
				for i := range found.Records {
					id := ""
					if i == len(found.Records)-1 {
						id = position()
					}
					if err := out.event("issuance", id, issuanceOf(&found.Records[i], by.within)); err != nil {
						return err
					}
				}
				if !found.Further {
					return nil
				}
			}
		})
		return nil
	})
}

// stream is a response of server-sent events.
type stream struct {
	w        http.ResponseWriter
	now      func() time.Time
	until    time.Time     // when the caller's credentials expire
	expired  string        // what the stream says then
	position func() string // the id line of a keep-alive, or nil: a client that reconnects need not read again what came before it
}

// tell answers with a stream of what send writes for each of events, until the caller's credentials expire, this replica shuts
// down, or the caller disconnects. If a stream ends early, the client reconnects, and then gets the events that it missed.
func tell[T any](s *Server, r *http.Request, out *stream, events <-chan T, send func(T) error) {
	alive, over := time.NewTicker(eventEvery), time.NewTimer(out.until.Sub(s.cfg.Now()))
	defer alive.Stop()
	defer over.Stop()
	err, ended := out.begin(), false
	for err == nil && !ended {
		select {
		case e, ok := <-events:
			if err = errSlow; ok {
				err = send(e)
			}
		case <-alive.C:
			id := ""
			if out.position != nil {
				id = out.position()
			}
			err = out.write(": alive\n" + id + "\n")
		case <-over.C:
			err, ended = out.write(": "+out.expired+"\n\n"), true
		case <-s.closed:
			err, ended = out.write(": this replica is shutting down\n\n"), true
		case <-r.Context().Done():
			ended = true
		}
	}
	if err != nil {
		s.cfg.Log.DebugContext(r.Context(), "events cut off", "request_id", callOf(r).id, "error", err)
	}
}

func (o *stream) begin() error {
	// The call has been read, and its read timeout must not end the stream.
	if err := supported(http.NewResponseController(o.w).SetReadDeadline(time.Time{})); err != nil {
		return err
	}
	h := o.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	o.w.WriteHeader(http.StatusOK)
	return o.write(": hello\n\n")
}

// event writes one event, with an id line or "". JSON contains no line breaks, so its text cannot forge another event.
func (o *stream) event(name, id string, data any) error {
	text, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("encoding an event: %w", err)
	}
	return o.write("event: " + name + "\n" + id + "data: " + string(text) + "\n\n")
}

// write sends a text at once, and returns an error if that fails or exceeds eventTimeout.
func (o *stream) write(text string) error {
	control := http.NewResponseController(o.w)
	if err := supported(control.SetWriteDeadline(o.now().Add(eventTimeout))); err != nil {
		return err
	}
	_, err := o.w.Write([]byte(text))
	if err == nil {
		err = control.Flush()
	}
	if err != nil {
		return fmt.Errorf("writing an event: %w", err)
	}
	// HTTP/2 would end the stream at its deadline even if nothing is to be written.
	return supported(control.SetWriteDeadline(time.Time{}))
}

// supported ignores that a connection has no deadlines, as when a test calls the handler directly.
func supported(err error) error {
	if errors.Is(err, http.ErrNotSupported) {
		return nil
	}
	return err
}
