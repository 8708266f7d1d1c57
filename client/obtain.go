package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/brevet-dev/brevet/internal/wait"
)

const (
	// givingUp bounds the call that withdraws a request.
	givingUp = 5 * time.Second
	// firstPause and longestPause bound the pauses between retries. The server can ask for a longer pause.
	firstPause   = time.Second
	longestPause = 30 * time.Second
)

// Obtain requests a credential. If people must approve the request, Obtain calls waiting, which may be nil, and waits for their
// decision. If ctx ends during the wait, Obtain withdraws the request.
func (c *Client) Obtain(ctx context.Context, ask Ask, waiting func(Pending)) (*Token, error) {
	return c.obtain(ctx, ctx, ask, waiting)
}

// obtain makes its calls under ctx, and waits for approval only while patience lasts. A request that was sent should not be
// cancelled with patience, since the server may have answered it.
func (c *Client) obtain(ctx, patience context.Context, ask Ask, waiting func(Pending)) (*Token, error) {
	answer, err := c.Request(ctx, ask)
	if err != nil {
		return nil, err
	}
	if answer.Token != nil {
		return answer.Token, nil
	}
	pending := answer.Pending
	if waiting != nil {
		waiting(*pending)
	}
	// The server ends the wait when the request expires. This deadline applies if it does not.
	until, cancel := context.WithDeadline(patience, pending.Expires.Add(longestWait))
	defer cancel()
	if err := c.waitOut(until, pending.ID); err != nil {
		c.takeBack(ctx, pending.ID)
		return nil, err
	}
	if answer, err = c.Redeem(ctx, pending.ID, ask); err != nil {
		return nil, err
	}
	if answer.Token == nil {
		return nil, fmt.Errorf("%w: and people have not agreed", ErrDecided)
	}
	return answer.Token, nil
}

// waitOut is Wait with retries after transient errors.
func (c *Client) waitOut(ctx context.Context, id string) error {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		_, err := c.Wait(ctx, id)
		if err == nil || !passes(err) {
			return err
		}
		if !wait.For(ctx, max(pause, wanted(err))) {
			return fmt.Errorf("waiting for people: %w", ctx.Err())
		}
	}
}

// takeBack withdraws a request that the caller no longer waits for. If that fails, the request expires.
func (c *Client) takeBack(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), givingUp)
	defer cancel()
	_ = c.Withdraw(ctx, id)
}

// passes reports whether a later retry can succeed. It is true for a call that got no response, and false if the server refused
// the request for good.
func passes(err error) bool {
	var problem *Problem
	if errors.As(err, &problem) {
		return errors.Is(err, ErrUnavailable) || errors.Is(err, ErrRateLimited) || errors.Is(err, ErrInternal) ||
			errors.Is(err, ErrVaultRefused) || errors.Is(err, ErrUnauthenticated) || errors.Is(err, ErrRevoked)
	}
	return !errors.Is(err, ErrInvalid)
}

// wanted returns how long the server asks the client to wait, or zero if it did not say.
func wanted(err error) time.Duration {
	var problem *Problem
	if errors.As(err, &problem) {
		return problem.RetryAfter
	}
	return 0
}
