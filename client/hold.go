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

// HoldConfig says what a Hold requests, and which functions it calls. Each function may be nil. Hold calls one function at a
// time, and none after Close has returned. A function must not call Close.
type HoldConfig struct {
	// Ask is the request for each credential. It must have no idempotency key, since it is sent more than once.
	Ask Ask
	// Waiting is called if people must approve the request before there is a credential.
	Waiting func(Pending)
	// Obtained is called with each credential: with the first before Hold returns, and with each later one when it replaces the
	// previous one. The previous credential stays valid until it expires.
	Obtained func(*Token)
	// Failed is called with the reason why there is no new credential yet. After ErrDenied, ErrInvalid or ErrNotAllowed the Hold
	// gives up. After most other errors it tries again.
	Failed func(error)
}

// Hold keeps a credential alive until its holder closes it. It requests a new one, for the same task, after about two thirds of
// its lifetime, and releases every credential at the end.
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

// holding is a credential that has not expired yet.
type holding struct {
	id   string
	ends time.Time
}

// Hold requests a credential, waits for approval if it needs one, and renews it until Close. ctx is for the first credential
// only.
//
// If a response is lost on the way, Hold does not repeat the request. The lost credential ends with the task, or expires.
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

// Token returns the newest credential. After a failed renewal it may have expired.
func (h *Hold) Token() *Token {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.token
}

// Close stops renewing, and releases every credential that is still alive. It may be called again if it failed.
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
	h.mu.Lock()
	alive := slices.Clone(h.alive)
	h.mu.Unlock()
	for _, one := range alive {
		if _, err := h.client.Release(ctx, one.id); err != nil && !errors.Is(err, ErrNotFound) {
			errs = append(errs, fmt.Errorf("releasing %s: %w", one.id, err))
		}
	}
	return errors.Join(errs...)
}

// keep renews the credential until the Hold is closed or renewal fails for good.
func (h *Hold) keep(token *Token) {
	defer close(h.ended)
	for token != nil {
		// Wait for two thirds of its life, minus a random part of up to a tenth: holders that start together renew at different times.
		life := token.TTL / 3 * 2
		life -= time.Duration(rand.Int64N(int64(life/10) + 1)) //nolint:gosec // of no use to anybody who knows it
		if !wait.For(h.patience, life) {
			return
		}
		token = h.renew()
	}
}

// renew returns the next credential, or nil if there will be none.
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
		if !passes(err) && !errors.Is(err, ErrDecided) && !errors.Is(err, ErrStale) || !wait.For(h.patience, max(pause, wanted(err))) {
			return nil
		}
	}
}

// take makes token the newest credential, and drops those that have expired.
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
