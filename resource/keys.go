package resource

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/token"
	"golang.org/x/sync/singleflight"
)

const (
	// shortest and longest bound how long keys are kept that the issuer says how long to keep; usual is when it does not.
	shortest, usual, longest = 10 * time.Second, time.Minute, time.Hour
	// unsure is how much longer they are kept while the issuer cannot be reached.
	unsure = 10 * time.Minute
	// between is the time between two fetches, whatever tokens or failures ask for one.
	between = 10 * time.Second
	// patience is how long one fetch may take, and maxJWKS how many bytes it may bring.
	patience, maxJWKS = 3 * time.Second, 64 << 10
)

// keys are the issuer's, fetched when they are needed.
type keys struct {
	url    string
	client http.Client
	now    func() time.Time
	flight singleflight.Group

	mu    sync.RWMutex
	set   token.KeySet
	fresh time.Time // until when they are
	tried time.Time // when they were last asked for
	fault error     // of that
}

func newKeys(cfg Config) *keys {
	k := &keys{url: cfg.JWKS, now: cfg.Now}
	if cfg.HTTPClient != nil {
		k.client = *cfg.HTTPClient
	}
	// Who answers with another place is not the issuer.
	k.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return k
}

func (k *keys) known() token.KeySet {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.set
}

// refresh fetches keys that are not fresh any more. ErrUnavailable when there are none to go by.
func (k *keys) refresh(ctx context.Context) error {
	if fresh, _ := k.state(); k.now().Before(fresh) {
		return nil
	}
	k.fetch(ctx)
	fresh, fault := k.state()
	switch {
	case k.now().Before(fresh.Add(unsure)):
		return nil
	case fault != nil:
		return fmt.Errorf("%w: %w", ErrUnavailable, fault)
	}
	return ErrUnavailable // the caller went away before there were any
}

// rotated fetches the keys since a token names another, and tells whether that was done: whoever sends kids at will must
// not have us do so at will.
func (k *keys) rotated(ctx context.Context) bool { return k.fetch(ctx) }

func (k *keys) state() (fresh time.Time, fault error) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.fresh, k.fault
}

// fetch asks for the keys, once for all who want them at a time, and no sooner than between since the last time. It goes on
// for the others when one who waits goes away.
func (k *keys) fetch(ctx context.Context) bool {
	done := k.flight.DoChan("", func() (any, error) {
		k.mu.Lock()
		now := k.now()
		if early := now.Sub(k.tried) < between && !k.tried.IsZero(); early {
			k.mu.Unlock()
			return false, nil
		}
		k.tried = now
		k.mu.Unlock()
		set, age, err := k.ask(context.WithoutCancel(ctx))
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.fault = err; err == nil {
			k.set, k.fresh = set, now.Add(age)
		}
		return err == nil, nil
	})
	select {
	case <-ctx.Done():
		return false
	case result := <-done:
		fetched, _ := result.Val.(bool)
		return fetched
	}
}

func (k *keys) ask(ctx context.Context) (token.KeySet, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, k.url, nil)
	if err != nil {
		return token.KeySet{}, 0, fmt.Errorf("fetching the keys: %w", err)
	}
	resp, err := k.client.Do(req)
	if err != nil {
		return token.KeySet{}, 0, fmt.Errorf("fetching the keys: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return token.KeySet{}, 0, fmt.Errorf("fetching the keys: status %d", resp.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxJWKS+1))
	if err != nil {
		return token.KeySet{}, 0, fmt.Errorf("fetching the keys: %w", err)
	}
	set, err := token.Parse(body)
	return set, ageOf(resp.Header), err
}

// ageOf is how long an answer may be kept (RFC 9111, section 5.2.2.1), within bounds.
func ageOf(h http.Header) time.Duration {
	for directive := range strings.SplitSeq(h.Get("Cache-Control"), ",") {
		if text, ok := strings.CutPrefix(strings.TrimSpace(directive), "max-age="); ok {
			if n, err := strconv.ParseUint(text, 10, 31); err == nil {
				return min(max(time.Duration(n)*time.Second, shortest), longest)
			}
		}
	}
	return usual
}
