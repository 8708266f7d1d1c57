package webhook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/wait"
)

const (
	// lookEvery is how often each webhook polls the outbox.
	lookEvery = 500 * time.Millisecond
	// firstRetry and longestRetry bound the delay between two attempts. Deliveries older than giveUp are dropped.
	firstRetry, longestRetry, giveUp = time.Second, 15 * time.Minute, 24 * time.Hour
	// storeTimeout bounds the write that records the result of a call during shutdown.
	storeTimeout = 5 * time.Second
)

// errAnswer means that the receiver did not accept a notice.
var errAnswer = errors.New("the receiver did not return a 2xx status")

// Config configures a Courier. Every field is required, except Link.
type Config struct {
	Webhooks []Spec
	Outbox   broker.Outbox
	// Link is the URL of the page of a request. {id} stands for the request's id.
	Link string
	Now  func() time.Time
	Log  *slog.Logger
}

// Courier delivers notices to each webhook in order. It normally delivers a notice once, and retries until the receiver
// accepts it or a day has passed. Only one replica at a time delivers to a webhook.
type Courier struct {
	cfg   Config
	hooks []*hook
}

// New checks cfg and returns a Courier. It makes no calls yet.
func New(cfg Config) (*Courier, error) {
	if cfg.Outbox == nil || cfg.Now == nil || cfg.Log == nil {
		return nil, errors.New("webhook: outbox, clock and log are all required")
	}
	c := &Courier{cfg: cfg}
	names := map[string]bool{}
	for _, s := range cfg.Webhooks {
		h, err := newHook(s)
		if err != nil {
			return nil, err
		}
		if names[s.Name] {
			return nil, fmt.Errorf("webhook %s: the name is used twice", s.Name)
		}
		names[s.Name] = true
		c.hooks = append(c.hooks, h)
	}
	return c, nil
}

// Run delivers notices until ctx ends. A webhook that hangs does not delay the others.
func (c *Courier) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, h := range c.hooks {
		all.Go(func() { c.serve(ctx, h) })
	}
	all.Wait()
	return ctx.Err()
}

func (c *Courier) serve(ctx context.Context, h *hook) {
	name := h.sub.Name
	for subscribed := false; ctx.Err() == nil; {
		var err error
		if !subscribed {
			err = c.cfg.Outbox.Subscribe(ctx, name)
			subscribed = err == nil
		}
		more := false
		if err == nil {
			more, err = c.one(ctx, h)
		}
		if err != nil && ctx.Err() == nil {
			c.cfg.Log.WarnContext(ctx, "webhook delivery interrupted", "webhook", name, "error", err)
		}
		if !more {
			wait.For(ctx, lookEvery)
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	if err := c.cfg.Outbox.Release(ctx, name); err != nil {
		c.cfg.Log.DebugContext(ctx, "webhook outbox not released", "webhook", name, "error", err)
	}
}

// one delivers the next notice, and reports whether there may be more to deliver immediately.
func (c *Courier) one(ctx context.Context, h *hook) (bool, error) {
	n, err := c.cfg.Outbox.Next(ctx, h.sub)
	if err != nil || n == nil {
		return false, err
	}
	failure := c.send(ctx, h, *n)
	if failure != nil && ctx.Err() != nil {
		return false, nil // the replica is stopping; the notice becomes due again soon
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	log := c.cfg.Log.With("webhook", h.sub.Name, "notice", n.ID, "attempts", n.Attempts)
	switch {
	case failure == nil:
		return true, c.cfg.Outbox.MarkDelivered(ctx, h.sub.Name, *n)
	case c.cfg.Now().Sub(n.Time) > giveUp:
		log.ErrorContext(ctx, "webhook notice dropped", "error", failure)
		return false, c.cfg.Outbox.MarkDelivered(ctx, h.sub.Name, *n)
	}
	log.WarnContext(ctx, "webhook delivery failed", "error", failure)
	return false, c.cfg.Outbox.PutOff(ctx, h.sub.Name, *n, retryAfter(n.Attempts))
}

// retryAfter returns a delay that doubles with each attempt. It subtracts up to a fifth at random, so that retries do not
// coincide.
func retryAfter(attempts int) time.Duration {
	d := min(firstRetry<<min(max(attempts, 1)-1, 20), longestRetry)
	return d - time.Duration(rand.Int64N(int64(d/5))) //nolint:gosec // of no use to anybody who knows it
}

func (c *Courier) send(ctx context.Context, h *hook, n broker.Notice) error {
	body, err := h.body(n, c.cfg.Link)
	if err != nil {
		return err
	}
	header := http.Header{"Content-Type": {"application/json"}}
	if len(h.keys) > 0 {
		now := c.cfg.Now()
		header.Set("Webhook-Id", n.ID)
		header.Set("Webhook-Timestamp", strconv.FormatInt(now.Unix(), 10))
		header.Set("Webhook-Signature", signature(h.keys, n.ID, now, body))
	}
	answer, err := h.client.Post(ctx, header, body)
	if err == nil && !answer.OK() {
		err = fmt.Errorf("%w: %d", errAnswer, answer.Status)
	}
	return err
}
