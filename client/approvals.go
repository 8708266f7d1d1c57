package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/brevet-dev/brevet/openapi"
)

// longestWait is how long one call waits for a decision. It is shorter than the timeout of a call.
const longestWait = 20 * time.Second

// Wait returns the state of one of the caller's own requests once it is no longer pending. If ctx ends first, it returns the
// last state with an error. It calls the server as often as it needs to.
func (c *Client) Wait(ctx context.Context, id string) (openapi.RequestState, error) {
	if err := segment(id); err != nil {
		return openapi.RequestState{}, err
	}
	for {
		var state openapi.RequestState
		query := "?wait=" + strconv.Itoa(int(longestWait/time.Second)) + "s"
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base.String()+"/v1/requests/"+url.PathEscape(id)+query, nil)
		if err != nil {
			return state, fmt.Errorf("making a call: %w", err)
		}
		began := time.Now() //nolint:forbidigo // for a pause, not for a decision
		if err := c.read(req, &state); err != nil || state.Status != openapi.StatusPending {
			return state, err
		}
		// An overloaded server responds at once instead of waiting.
		if pause := time.Second - time.Since(began); pause > 0 {
			select {
			case <-ctx.Done():
				return state, fmt.Errorf("waiting for people: %w", ctx.Err())
			case <-time.After(pause):
			}
		}
	}
}

// Redeem gets the credential of an approved request. ask is the ask that the request was made with; only its keys are sent
// again. The answer is pending while the request still waits for approval. If a person rejected it, the error is ErrDenied.
func (c *Client) Redeem(ctx context.Context, id string, ask Ask) (Answer, error) {
	if err := segment(id); err != nil {
		return Answer{}, err
	}
	req, err := c.post(ctx, "/v1/requests/"+url.PathEscape(id)+"/token", openapi.Redemption{Csr: ask.CSR, PublicKey: ask.PublicKey})
	if err != nil {
		return Answer{}, err
	}
	return c.answer(req, ask.Signer)
}

// Withdraw withdraws one of the caller's own requests. It is idempotent.
func (c *Client) Withdraw(ctx context.Context, id string) error {
	if err := segment(id); err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, c.base.String()+"/v1/requests/"+url.PathEscape(id), nil)
	if err != nil {
		return fmt.Errorf("making a call: %w", err)
	}
	_, err = c.do(req)
	return err
}

// Approvals lists the requests that wait for the calling person's vote. It takes one request from each trust domain in turn,
// and within a trust domain one from each sandbox in turn, oldest first. It checks every request against its hash.
func (c *Client) Approvals(ctx context.Context, limit int) (openapi.ApprovalList, error) {
	var list openapi.ApprovalList
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base.String()+"/v1/approvals?limit="+strconv.Itoa(limit), nil)
	if err != nil {
		return list, fmt.Errorf("making a call: %w", err)
	}
	if err := c.read(req, &list); err != nil {
		return list, err
	}
	for _, one := range list.Approvals {
		if err := checkHash(one); err != nil {
			return openapi.ApprovalList{}, err
		}
	}
	return list, nil
}

// Approval reads one request that waits for approval or did, with its votes. It checks the request against its hash.
func (c *Client) Approval(ctx context.Context, id string) (openapi.ApprovalCase, error) {
	var one openapi.ApprovalCase
	if err := c.get(ctx, "/v1/approvals/", id, &one); err != nil {
		return one, err
	}
	return one, checkHash(one)
}

// Vote votes on a request in the form that the calling person was shown: it approves, rejects, or breaks the glass. Break-glass
// requires a note.
func (c *Client) Vote(ctx context.Context, shown openapi.ApprovalCase, verdict openapi.Verdict, note string) (openapi.ApprovalCase, error) {
	return c.vote(ctx, shown.ID, openapi.VoteRequest{Verdict: verdict, Hash: shown.Hash, Note: note})
}

// VoteForTask approves a request, and equal requests of the same task until the task ends. The scope must allow this.
func (c *Client) VoteForTask(ctx context.Context, shown openapi.ApprovalCase, note string) (openapi.ApprovalCase, error) {
	return c.vote(ctx, shown.ID, openapi.VoteRequest{
		Verdict: openapi.VerdictApprove, Covers: openapi.CoverTask, Hash: shown.Hash, Note: note,
	})
}

func (c *Client) vote(ctx context.Context, id string, vote openapi.VoteRequest) (openapi.ApprovalCase, error) {
	var after openapi.ApprovalCase
	if err := segment(id); err != nil {
		return after, err
	}
	req, err := c.post(ctx, "/v1/approvals/"+url.PathEscape(id)+"/votes", vote)
	if err != nil {
		return after, err
	}
	return after, c.read(req, &after)
}

// checkHash checks that the hash that a vote names is the hash of what the person is shown.
func checkHash(one openapi.ApprovalCase) error {
	hash := sha256.Sum256([]byte(one.Canonical))
	if hex.EncodeToString(hash[:]) != one.Hash {
		return fmt.Errorf("%w: the hash of request %q is not that of what it shows", ErrAnswer, one.ID)
	}
	return nil
}
