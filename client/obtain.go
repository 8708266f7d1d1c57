package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/brevet-dev/brevet/internal/wait"
)

const (
	// givingUp bounds the call that takes a request back.
	givingUp = 5 * time.Second
	// firstPause and longestPause are between tries of what failed for now, unless the server says how long to wait.
	firstPause   = time.Second
	longestPause = 30 * time.Second
)

// Obtain asks for a credential and, when people have to agree first, waits until they have. waiting, which may be nil, is
// told that it waits. When ctx ends meanwhile, the request is withdrawn.
func (c *Client) Obtain(ctx context.Context, ask Ask, waiting func(Pending)) (*Token, error) {
	return c.obtain(ctx, ctx, ask, waiting)
}

// obtain makes its calls under ctx, and waits for people only while patience lasts: an ask that has been sent is better
// waited for than broken off, since it may have been answered.
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
	// The server says when time is up. Should it not, there is an end all the same.
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

// waitOut is Wait, through what passes by itself.
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

// takeBack withdraws a request that nobody waits for any more. It lapses by itself when that fails.
func (c *Client) takeBack(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), givingUp)
	defer cancel()
	_ = c.Withdraw(ctx, id)
}

// passes tells whether asking again later can help. A call that got no answer counts too; a server's no does not.
func passes(err error) bool {
	var problem *Problem
	if errors.As(err, &problem) {
		return errors.Is(err, ErrUnavailable) || errors.Is(err, ErrRateLimited) || errors.Is(err, ErrInternal) ||
			errors.Is(err, ErrVaultRefused) || errors.Is(err, ErrUnauthenticated) || errors.Is(err, ErrRevoked)
	}
	return !errors.Is(err, ErrInvalid)
}

// wanted is how long the server wants to be left alone, zero when it did not say.
func wanted(err error) time.Duration {
	var problem *Problem
	if errors.As(err, &problem) {
		return problem.RetryAfter
	}
	return 0
}
