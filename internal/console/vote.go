package console

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/secret"
)

// maxText is the largest size of a free text, in bytes, as at the API.
const maxText = 1000

var errSecretText = errors.New("text appears to contain a secret")

// checkText checks the length of a free text and keeps secrets out of the record (H82).
func checkText(text string) error {
	switch {
	case len(text) > maxText:
		return errForm
	case secret.Shaped(text):
		return errSecretText
	}
	return nil
}

// vote records a vote on a request and on the similar requests that the voter has ticked.
func (c *Console) vote(r *http.Request, who *visitor) (done, error) {
	if !who.Approves() {
		return done{}, errNotAllowed
	}
	id, err := caseID(r)
	if err != nil {
		return done{}, err
	}
	ballots, err := votesOf(r, id)
	if err != nil {
		return done{}, &returning{err, "/approvals/" + id}
	}
	after, err := c.cast(r, who, ballots[0])
	if err != nil {
		return done{}, &returning{err, "/approvals/" + id}
	}
	return done{"/approvals", c.said(after, ballots[0]) + c.castAlso(r, who, ballots[1:])}, nil
}

// cast records one vote. A denial after the decision still takes effect, so cast returns no error for it.
func (c *Console) cast(r *http.Request, who *visitor, b broker.VoteCast) (*broker.ApprovalRequest, error) {
	after, err := c.cfg.Broker.Vote(r.Context(), who.Person, b)
	if after != nil && after.Voted && c.cfg.Voted != nil {
		c.cfg.Voted(after, b.Verdict, who.Person)
	}
	if errors.Is(err, broker.ErrDecided) && after != nil && after.Voted {
		return after, nil
	}
	return after, err
}

// castAlso casts the votes on the similar requests and returns the result as text. Each vote contains the hash that the
// voter saw, so a request that has changed gets no vote. A vote without permission is recorded as a refusal, as if it had
// been cast alone.
func (c *Console) castAlso(r *http.Request, who *visitor, ballots []broker.VoteCast) string {
	if len(ballots) == 0 {
		return ""
	}
	n := 0
	for _, b := range ballots {
		if _, err := c.cast(r, who, b); err != nil {
			if t := troubleOf(err); t.status == http.StatusForbidden {
				c.refuse(r, who, t, err)
			}
			c.cfg.Log.WarnContext(r.Context(), "one of several votes was not recorded", "request", b.Request, "error", err)
			continue
		}
		n++
	}
	also := fmt.Sprintf(" The vote also applies to %d similar requests", n)
	if n == 1 {
		also = " The vote also applies to 1 similar request"
	}
	if n == len(ballots) {
		return also + "."
	}
	return also + fmt.Sprintf("; %d had changed or were already decided.", len(ballots)-n)
}

// votesOf parses the votes in a form: first the one on the request itself, then those on similar requests.
func votesOf(r *http.Request, id string) ([]broker.VoteCast, error) {
	b := broker.VoteCast{
		Request: id, Verdict: approval.Verdict(r.PostForm.Get("verdict")), Note: strings.TrimSpace(r.PostForm.Get("note")),
		Covers: approval.Cover(cmp.Or(r.PostForm.Get("covers"), string(approval.CoverRequest))), Assertion: []byte(r.PostForm.Get("assertion")),
	}
	switch b.Verdict {
	case approval.Approve, approval.Deny, approval.BreakGlass:
	default:
		return nil, errForm
	}
	if b.Covers != approval.CoverRequest && (b.Covers != approval.CoverTask || b.Verdict != approval.Approve) {
		return nil, errForm
	}
	if err := checkText(b.Note); err != nil {
		return nil, err
	}
	var err error
	if b.Hash, err = hashOf(r.PostForm.Get("hash")); err != nil {
		return nil, err
	}
	also := r.PostForm["also"]
	if len(also) > mostAsks || b.Verdict == approval.BreakGlass && len(also) > 0 {
		return nil, errForm
	}
	ballots := []broker.VoteCast{b}
	for _, text := range also {
		other := b
		other.Assertion = nil // an assertion signs one request only
		var hash string
		other.Request, hash, _ = strings.Cut(text, ".")
		if other.Hash, err = hashOf(hash); err != nil {
			return nil, err
		}
		ballots = append(ballots, other)
	}
	return ballots, nil
}

func hashOf(text string) (hash [32]byte, err error) {
	if n, err := hex.Decode(hash[:], []byte(short(text, 2*len(hash)))); err != nil || n != len(hash) {
		return hash, errForm
	}
	return hash, nil
}

// said describes the effect of a vote, and what is still required.
func (c *Console) said(after *broker.ApprovalRequest, b broker.VoteCast) string {
	a := ask{ApprovalRequest: after}
	what := c.cfg.Broker.Title(after.Scope, after.Catalogue)
	if what = cmp.Or(what, after.Scope); after.Resource != "" {
		what += ", " + short(after.Resource, 80)
	}
	switch {
	case !after.Voted:
		return "You had already voted this way; nothing has changed. (" + what + ")"
	case b.Verdict == approval.Deny && after.Status == broker.StatusRedeemed:
		return "Denied: the issued credential is revoked. (" + what + ")"
	case b.Verdict == approval.Deny:
		return "Denied: no credential is issued. (" + what + ")"
	case after.Status == broker.StatusApproved && b.Verdict == approval.BreakGlass:
		return "Approved by break-glass: the sandbox can redeem the request now. (" + what + ")"
	case after.Status == broker.StatusApproved:
		return "Approved: the sandbox can redeem the request now. (" + what + ")"
	case b.Verdict == approval.BreakGlass:
		return fmt.Sprintf("Break-glass vote recorded, and everybody is notified: %d of %d of %s have approved, %d more required. (%s)",
			a.Broke(), a.StandIns(), after.BreakGlass, a.StandIns()-a.Broke(), what)
	default:
		return fmt.Sprintf("Approval recorded: %d of %d. %d more of %s required. (%s)",
			a.Yes(), after.ApprovalQuorum, after.ApprovalQuorum-a.Yes(), after.ApprovalGroup, what)
	}
}
