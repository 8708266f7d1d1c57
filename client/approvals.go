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

// longestWait is how long one call waits for people at most: below the time that a call may take.
const longestWait = 20 * time.Second

// Wait returns the state of one of the caller's own requests once it is not pending any more, or the state that it has
// when ctx ends. It asks again as often as it has to.
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
		// A server on which too many wait answers at once.
		if pause := time.Second - time.Since(began); pause > 0 {
			select {
			case <-ctx.Done():
				return state, fmt.Errorf("waiting for people: %w", ctx.Err())
			case <-time.After(pause):
			}
		}
	}
}

// Redeem gets the credential of a request that people have approved. ask is as the request was made: of it the keys are
// sent again. While people have not agreed the answer is pending; a person's no is ErrDenied.
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

// Withdraw takes back one of the caller's own requests. It may be called again.
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

// Approvals lists what waits for the person who calls: of each trust domain, and in it of each sandbox, in turn the
// oldest. Each has been held to its hash.
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

// Approval reads one request that waits for people, or has, with the votes on it.
func (c *Client) Approval(ctx context.Context, id string) (openapi.ApprovalCase, error) {
	var one openapi.ApprovalCase
	if err := c.get(ctx, "/v1/approvals/", id, &one); err != nil {
		return one, err
	}
	return one, checkHash(one)
}

// Vote says yes or no to a request as the person who calls was shown it, or breaks the glass, for which it takes a note.
func (c *Client) Vote(ctx context.Context, shown openapi.ApprovalCase, verdict openapi.Verdict, note string) (openapi.ApprovalCase, error) {
	return c.vote(ctx, shown.ID, openapi.VoteRequest{Verdict: verdict, Hash: shown.Hash, Note: note})
}

// VoteForTask says yes to a request, and to the same ask again while the task goes on. The scope has to let it.
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

// checkHash holds what a person is shown to what the vote will name.
func checkHash(one openapi.ApprovalCase) error {
	hash := sha256.Sum256([]byte(one.Canonical))
	if hex.EncodeToString(hash[:]) != one.Hash {
		return fmt.Errorf("%w: the hash of request %q is not that of what it shows", ErrAnswer, one.ID)
	}
	return nil
}
