package httpapi

import (
	"cmp"
	"encoding/hex"
	"net/http"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/people"
	. "github.com/brevet-dev/brevet/openapi"
)

// ListApprovals lists the requests that wait for a person.
func (s *Server) ListApprovals(w http.ResponseWriter, r *http.Request, params ListApprovalsParams) {
	serve(s, w, r, "listApprovals", func(who people.Person) error {
		if err := s.rules.check(r, who, nil); err != nil {
			return err
		}
		cases, more, err := s.cfg.Broker.Waiting(r.Context(), who, cmp.Or(params.Limit, defaultLimit))
		if err != nil {
			return err
		}
		out := ApprovalList{Approvals: make([]ApprovalCase, 0, len(cases)), More: more}
		for i := range cases {
			out.Approvals = append(out.Approvals, s.caseOf(&cases[i]))
		}
		writeJSON(w, http.StatusOK, out)
		return nil
	})
}

// GetApproval shows one request and its votes to a person.
func (s *Server) GetApproval(w http.ResponseWriter, r *http.Request, id ID) {
	serve(s, w, r, "getApproval", func(who people.Person) error {
		if err := s.rules.checkID(r, who, id); err != nil {
			return err
		}
		c, err := s.cfg.Broker.ApprovalRequest(r.Context(), who, id)
		if err != nil {
			return notFound(err, "id")
		}
		writeJSON(w, http.StatusOK, s.caseOf(c))
		return nil
	})
}

// CastVote records a person's vote.
func (s *Server) CastVote(w http.ResponseWriter, r *http.Request, id ID) {
	serve(s, w, r, "castVote", func(who people.Person) error {
		if !ourID(id) {
			return unknown("id")
		}
		ask, err := readOrder[VoteRequest](s, w, r, who)
		if err != nil {
			return err
		}
		cast := broker.VoteCast{
			Request: id, Verdict: approval.Verdict(ask.Verdict), Covers: approval.Cover(cmp.Or(ask.Covers, CoverRequest)), Note: ask.Note,
		}
		if n, err := hex.Decode(cast.Hash[:], []byte(ask.Hash)); err != nil || n != len(cast.Hash) {
			return invalid("hash")
		}
		if err := checkText("note", ask.Note); err != nil {
			return err
		}
		c, err := s.cfg.Broker.Vote(r.Context(), who, cast)
		if c != nil && c.Voted {
			s.CountVote(c, cast.Verdict)
		}
		if err != nil {
			return notFound(err, "id")
		}
		writeJSON(w, http.StatusOK, s.caseOf(c))
		return nil
	})
}

// CountVote counts a recorded vote, cast here or in the console.
func (s *Server) CountVote(c *broker.ApprovalRequest, verdict approval.Verdict) {
	s.metrics.votes.WithLabelValues(string(verdict), c.ApprovalGroup).Inc()
	if verdict == approval.BreakGlass {
		s.metrics.broken.WithLabelValues("vote").Inc()
	}
}

// caseOf converts a request for a person. Canonical is the canonical form of what the person is asked to approve.
func (s *Server) caseOf(c *broker.ApprovalRequest) ApprovalCase {
	hash := c.Hash()
	out := ApprovalCase{
		ID: c.ID, Status: Status(c.Status), StatusAt: c.StatusTime, Canonical: c.Canonical, Hash: hex.EncodeToString(hash[:]),
		Like: c.GroupKey(), Time: c.Time, SpiffeID: c.Subject.ID.String(), Scope: c.Scope,
		Title: s.cfg.Broker.Title(c.Scope, c.Catalogue), Authority: c.Authority, Resource: c.Resource, Params: c.Params,
		TTL: seconds(c.TTL), Task: c.Task, Reason: c.Reason, Policies: list(c.Policies),
		Approval: approvalOf(&c.View), Votes: make([]Vote, 0, len(c.VotesCast)),
		VotesCast: c.View.Votes, ExpiresAt: c.Expires, RedeemedBy: c.RedeemedBy, Remembered: c.Remembered, Recalled: c.Reused,
	}
	if c.User != nil {
		out.OnBehalfOf = c.User.ID
	}
	for _, v := range c.VotesCast {
		out.Votes = append(out.Votes, Vote{
			Voter: v.Voter.ID, Name: v.Voter.Name, Verdict: Verdict(v.Verdict), Covers: string(v.Covers), Time: v.Time, Note: v.Note,
		})
	}
	return out
}
