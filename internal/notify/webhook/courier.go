// Package webhook notifies other systems that a request waits for approval or has been decided. It sends signed calls as in
// Standard Webhooks (https://www.standardwebhooks.com), or messages for Slack.
//
// It must never send free text of a sandbox or a secret, never call an address that the operator has not allowed, never
// follow a redirect, and never let a response decide anything.
package webhook

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/safehttp"
	"github.com/brevet-dev/brevet/internal/secret"
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

// The formats of a notice.
const (
	FormatJSON  = "json"
	FormatSlack = "slack"
)

// Spec is one webhook in the operator's configuration.
type Spec struct {
	// Name identifies the webhook in the record of deliveries: up to 63 lower-case letters, digits, - and _.
	Name string
	// Target is the endpoint to call. Its URL can be a secret itself.
	safehttp.Target
	// Secret is the signing secret: whsec_ and base64 of 24 to 64 bytes. During a rotation it holds two secrets with a space
	// between them. Slack requires none.
	Secret secret.Text
	// Format is FormatJSON or FormatSlack. The default is FormatJSON.
	Format string
	// Events are the kinds of notices to send.
	Events []broker.NoticeKind
	// Within limits the notices to sandboxes at or below these SPIFFE IDs.
	Within []string
}

// hook is a validated Spec.
type hook struct {
	keys   [][]byte
	format string
	sub    broker.Subscription
	client *safehttp.Client
}

var (
	aName = regexp.MustCompile(`^(?:[a-z0-9][a-z0-9_-]{0,62})$`)
	kinds = []broker.NoticeKind{broker.NoticeWaiting, broker.NoticeDecided, broker.NoticeBroken, broker.NoticeUnrevoked}
)

func newHook(s Spec) (*hook, error) {
	if !aName.MatchString(s.Name) {
		return nil, fmt.Errorf("webhook: the name %q must be lower-case letters, digits, - and _, at most 63", s.Name)
	}
	h := &hook{format: cmp.Or(s.Format, FormatJSON), sub: broker.Subscription{Name: s.Name, Kinds: s.Events, Within: s.Within}}
	var err error
	switch {
	case h.format != FormatJSON && h.format != FormatSlack:
		err = fmt.Errorf("the format is neither %s nor %s", FormatJSON, FormatSlack)
	case len(s.Events) == 0 || slices.ContainsFunc(s.Events, func(k broker.NoticeKind) bool { return !slices.Contains(kinds, k) }):
		err = fmt.Errorf("the events must be one or more of %v", kinds)
	case len(s.Within) == 0:
		err = errors.New("within is empty, so it would receive nothing")
	default:
		h.client, err = safehttp.New(s.Target)
	}
	if err == nil && (h.format == FormatJSON || s.Secret.Reveal() != "") {
		h.keys, err = parseKeys(s.Secret)
	}
	if err != nil {
		return nil, fmt.Errorf("webhook %s: %w", s.Name, err)
	}
	return h, nil
}

var errSecret = errors.New("the secret must be whsec_ followed by 24 to 64 bytes in base64")

// parseKeys parses one or two secrets, as Standard Webhooks writes them.
func parseKeys(text secret.Text) ([][]byte, error) {
	secrets := strings.Fields(text.Reveal())
	if len(secrets) == 0 || len(secrets) > 2 {
		return nil, errSecret
	}
	var keys [][]byte
	for _, one := range secrets {
		encoded, ok := strings.CutPrefix(one, "whsec_")
		key, err := base64.StdEncoding.Strict().DecodeString(encoded)
		if !ok || err != nil || len(key) < 24 || len(key) > 64 {
			return nil, errSecret
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// signature returns the value of the webhook-signature header, with one signature for each key.
func signature(keys [][]byte, id string, at time.Time, body []byte) string {
	var all []string
	for _, key := range keys {
		mac := hmac.New(sha256.New, key)
		_, _ = mac.Write([]byte(id + "." + strconv.FormatInt(at.Unix(), 10) + "."))
		_, _ = mac.Write(body)
		all = append(all, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	return strings.Join(all, " ")
}
