package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/internal/wait"
)

// HoldConfig says what a Hold asks for, and whom it tells. Its functions may be nil. They are called one at a time, never
// after Close has returned, and must not call Close.
type HoldConfig struct {
	// Ask is made for each credential anew. It takes no idempotency key, since it is made more than once.
	Ask Ask
	// Waiting is told that people have to agree before there is a credential.
	Waiting func(Pending)
	// Obtained gets each credential: the first before Hold returns, and each that takes the place of another. The one
	// before goes on working until it ends.
	Obtained func(*Token)
	// Failed is told why there is no new credential yet. After ErrDenied, ErrInvalid and ErrNotAllowed there will be none;
	// after most other things it is tried again.
	Failed func(error)
}

// Hold keeps a credential that does not end before its holder wants it to: it asks again, for the same task, once about
// two thirds of its life are over, and releases everything at the end.
type Hold struct {
	client   *Client
	cfg      HoldConfig
	calls    context.Context //nolint:containedctx // the Hold is what runs under it, as a server does
	patience context.Context //nolint:containedctx // ends first, so that calls can be finished
	stop     func()
	abort    func()
	ended    chan struct{}

	mu    sync.Mutex
	token *Token
	alive []holding
}

// holding is a credential that has not ended by itself.
type holding struct {
	id   string
	ends time.Time
}

// Hold asks for a credential, waits for people where they have to agree, and keeps it renewed until Close. ctx is for the
// first credential only.
//
// An answer that is lost on its way is not asked for again: its credential ends with the task, or by itself.
func (c *Client) Hold(ctx context.Context, cfg HoldConfig) (*Hold, error) {
	if cfg.Ask.IdempotencyKey != "" {
		return nil, fmt.Errorf("%w: a Hold asks more than once, and takes no idempotency key", ErrInvalid)
	}
	first, err := c.Obtain(ctx, cfg.Ask, cfg.Waiting)
	if err != nil {
		return nil, err
	}
	h := &Hold{client: c, cfg: cfg, ended: make(chan struct{})}
	h.calls, h.abort = context.WithCancel(context.WithoutCancel(ctx))
	h.patience, h.stop = context.WithCancel(h.calls)
	h.take(first)
	go h.keep(first)
	return h, nil
}

// Token is the newest credential. After a failed renewal it may have ended.
func (h *Hold) Token() *Token {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.token
}

// Close stops renewing and releases every credential that is still alive. It may be called again, when it failed.
func (h *Hold) Close(ctx context.Context) error {
	h.stop()
	select {
	case <-h.ended:
	case <-ctx.Done():
		h.abort()
		<-h.ended
	}
	h.abort()
	var errs []error
	for _, one := range h.holdings() {
		if _, err := h.client.Release(ctx, one.id); err != nil && !errors.Is(err, ErrNotFound) {
			errs = append(errs, fmt.Errorf("releasing %s: %w", one.id, err))
		}
	}
	return errors.Join(errs...)
}

func (h *Hold) holdings() []holding {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.alive)
}

// keep renews until it is stopped, or told that there will be no more.
func (h *Hold) keep(token *Token) {
	defer close(h.ended)
	for token != nil {
		if !wait.For(h.patience, renewAfter(token.TTL)) {
			return
		}
		token = h.renew()
	}
}

// renew returns the next credential, or nil when there is none to come.
func (h *Hold) renew() *Token {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		token, err := h.client.obtain(h.calls, h.patience, h.cfg.Ask, h.cfg.Waiting)
		if err == nil {
			h.take(token)
			return token
		}
		if h.patience.Err() != nil {
			return nil
		}
		if h.cfg.Failed != nil {
			h.cfg.Failed(err)
		}
		if !passes(err) && !errors.Is(err, ErrDecided) || !wait.For(h.patience, max(pause, wanted(err))) {
			return nil
		}
	}
}

// take makes token the newest, and forgets those that have ended by themselves.
func (h *Hold) take(token *Token) {
	now := time.Now() //nolint:forbidigo // for what need not be released, not for a decision
	h.mu.Lock()
	h.alive = slices.DeleteFunc(h.alive, func(one holding) bool { return !now.Before(one.ends) })
	h.token, h.alive = token, append(h.alive, holding{token.ID, now.Add(token.TTL)})
	h.mu.Unlock()
	if h.cfg.Obtained != nil {
		h.cfg.Obtained(token)
	}
}

// renewAfter is two thirds of a life, or up to a tenth less, so that holders who began together do not come back together.
func renewAfter(life time.Duration) time.Duration {
	d := life / 3 * 2
	return d - time.Duration(rand.Int64N(int64(d/10)+1)) //nolint:gosec // of no use to anybody who knows it
}
