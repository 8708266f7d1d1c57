package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/openapi"
)

// proceedsWithin bounds how long a sandbox may wait for its credential after the vote.
const proceedsWithin = time.Second

// approved shows a write that needs approval, and continues after Alice has approved it.
func (s *story) approved(ctx context.Context, c *chapter) error {
	ask := demoAsk("github.issues.write", 0)
	answer, err := s.ask(ctx, c, ask)
	if err != nil {
		return err
	}
	if answer.Pending == nil {
		return errors.New("got a token, want a pending approval")
	}
	p := answer.Pending
	c.fact("pending", "%d of %s must approve within %s; no token exists yet", p.Quorum, p.Group, timeLeft(p.Expires))
	if err := s.onlyPeople(ctx, p.ID); err != nil {
		return err
	}
	c.fact("sandbox", "cannot approve its own request: only people vote")
	type got struct {
		token *client.Token
		err   error
	}
	redeemed := make(chan got, 1)
	go func() {
		token, err := s.redeem(ctx, p.ID, ask)
		redeemed <- got{token, err}
	}()
	voted, err := s.vote(ctx, c, p.ID)
	if err != nil {
		return err
	}
	after := <-redeemed
	if after.err != nil {
		return after.err
	}
	took := time.Since(voted)
	if took > proceedsWithin {
		return fmt.Errorf("the sandbox got its token %s after the vote, want at most %s", took, proceedsWithin)
	}
	c.fact("gets", "a JWT for %s on %s, %s after the vote", after.token.Scope, after.token.Resource, took.Round(time.Millisecond))
	if _, err := s.cast.research.Redeem(ctx, p.ID, ask); !errors.Is(err, client.ErrDecided) {
		return fmt.Errorf("redeeming again: got %w, want a refusal", err)
	}
	c.fact("again", "refused: one approval gives one credential")
	return nil
}

// onlyPeople shows that a sandbox cannot approve its own request.
func (s *story) onlyPeople(ctx context.Context, id string) error {
	_, err := s.cast.research.Vote(ctx, openapi.ApprovalCase{ID: id, Hash: fmt.Sprintf("%064d", 0)}, openapi.VerdictApprove, "")
	if !errors.Is(err, client.ErrNotAllowed) {
		return fmt.Errorf("voting as the sandbox: got %w, want a refusal", err)
	}
	return nil
}

// redeem does what `brevet request --wait` does.
func (s *story) redeem(ctx context.Context, id string, ask client.Ask) (*client.Token, error) {
	state, err := s.cast.research.Wait(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("waiting for the vote: %w", err)
	}
	answer, err := s.cast.research.Redeem(ctx, id, ask)
	if err != nil {
		return nil, fmt.Errorf("redeeming the %s request: %w", state.Status, err)
	}
	if answer.Token == nil {
		return nil, fmt.Errorf("got no credential for the %s request", state.Status)
	}
	return answer.Token, nil
}

// vote approves the request as Alice, and returns the time of her vote.
func (s *story) vote(ctx context.Context, c *chapter, id string) (time.Time, error) {
	shown, err := s.cast.alice.Approval(ctx, id)
	if err != nil {
		return time.Time{}, err
	}
	c.fact("Alice", "sees %s, requested by %s; the sandbox's reason %q is shown apart from it", shown.Resource, shown.SpiffeID, shown.Reason)
	after, err := s.cast.alice.Vote(ctx, shown, openapi.VerdictApprove, "go ahead")
	if err != nil {
		return time.Time{}, err
	}
	voted := time.Now()
	if after.Status != openapi.StatusApproved {
		return voted, fmt.Errorf("the request is %s after her vote", after.Status)
	}
	c.fact("Alice", "approves exactly this request, identified by its SHA-256 %.16s…", shown.Hash)
	return voted, nil
}
