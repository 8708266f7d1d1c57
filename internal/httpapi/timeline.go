package httpapi

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/brevet-dev/brevet/broker"
	. "github.com/brevet-dev/brevet/openapi"
)

// GetTaskTimeline returns the recorded events of one task.
func (s *Server) GetTaskTimeline(w http.ResponseWriter, r *http.Request, task Task, params GetTaskTimelineParams) {
	s.timeline(w, r, "getTaskTimeline", func(by reading) (broker.TimelineQuery, string, error) {
		id := cmp.Or(params.SpiffeID, by.within.Subject)
		bad := &requestError{kind: errParameter, field: "spiffe_id", detail: "parameter_query"}
		if id == "" {
			bad.why = "spiffe_id is required unless a sandbox calls: name the owner of the task, as in ?spiffe_id=spiffe://acme.example/research/a"
			return broker.TimelineQuery{}, "", bad
		}
		if badIdentity(id, "", "") != "" {
			bad.why = "spiffe_id must be the SPIFFE ID of a sandbox, such as spiffe://acme.example/research/a"
			return broker.TimelineQuery{}, "", bad
		}
		return broker.TimelineQuery{SPIFFEID: id, Task: task, Limit: cmp.Or(params.Limit, defaultLimit)}, params.Cursor, nil
	})
}

// GetIssuanceTimeline returns the recorded events of one request.
func (s *Server) GetIssuanceTimeline(w http.ResponseWriter, r *http.Request, id ID, params GetIssuanceTimelineParams) {
	s.timeline(w, r, "getIssuanceTimeline", func(reading) (broker.TimelineQuery, string, error) {
		if !ourID(id) {
			return broker.TimelineQuery{}, "", &requestError{kind: broker.ErrNotFound, detail: "id"}
		}
		return broker.TimelineQuery{ID: id, Limit: cmp.Or(params.Limit, defaultLimit)}, params.Cursor, nil
	})
}

func (s *Server) timeline(
	w http.ResponseWriter, r *http.Request, operation string, ask func(reading) (broker.TimelineQuery, string, error),
) {
	serve(s, w, r, operation, func(who caller) error {
		within, err := s.readable(r, who)
		if err != nil {
			return err
		}
		if err := s.rules.check(r, who, operation, nil); err != nil {
			return err
		}
		by := reading{nameOf(who), within}
		q, cursor, err := ask(by)
		if err != nil {
			return err
		}
		out, err := s.readTimeline(r, by, q, cursor)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, out)
		return nil
	})
}

func (s *Server) readTimeline(r *http.Request, by reading, q broker.TimelineQuery, cursor string) (Timeline, error) {
	limit := q.Limit
	q.Limit = 0
	listing, err := json.Marshal(struct {
		Reader   string
		Timeline broker.TimelineQuery
		Reach    broker.Reach
	}{by.reader, q, by.within})
	if err != nil {
		return Timeline{}, fmt.Errorf("naming a timeline: %w", err)
	}
	q.Limit = limit
	if cursor != "" {
		if q.From, err = s.cursors.open(cursor, listing); err != nil {
			return Timeline{}, err
		}
	}
	found, err := s.cfg.Broker.Timeline(r.Context(), q, by.within)
	if err != nil {
		return Timeline{}, notFound(err, "timeline")
	}
	out := Timeline{Events: make([]TimelineEvent, 0, len(found))}
	for i := range found {
		out.Events = append(out.Events, eventOf(&found[i], by.within))
	}
	if len(found) == q.Limit {
		out.Next = s.cursors.seal(found[len(found)-1].Index+1, listing)
	}
	return out, nil
}

func eventOf(h *broker.Happening, within broker.Reach) TimelineEvent {
	out := TimelineEvent{
		Time: h.Time, Kind: h.Kind, ID: h.ID, Status: string(h.Status), Detail: h.Detail, Scope: h.Scope, Resource: h.Resource,
		DecisionCode: h.Code, Explanation: h.Explanation, By: h.Actor, Verdict: h.Verdict, Covers: h.Covers, Reason: h.Reason,
		At: h.At, Calls: h.Calls,
	}
	// A sandbox learns that people decided, but not who voted or what they wrote.
	if within.Subject == "" {
		out.Index, out.ByName, out.Note = &h.Index, h.ActorName, h.Note
	} else if h.Verdict != "" {
		out.By = ""
	}
	return out
}
