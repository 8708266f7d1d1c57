package resourceserver

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

const (
	// shortest and longest bound how long what the issuer says is kept, whatever it says of that.
	shortest, longest = 10 * time.Second, time.Hour
	// between is the time between two fetches, whatever tokens or failures ask for one.
	between = 10 * time.Second
	// patience is how long one fetch may take, and most how many bytes it may bring.
	patience, most = 3 * time.Second, 64 << 10
)

// told is what the issuer says: until fresh nobody asks again, and after end nobody goes by it.
type told[T any] struct {
	value      T
	fresh, end time.Time
}

// kept is something that the issuer says, fetched when it is needed.
type kept[T any] struct {
	ask    func(context.Context) (told[T], error)
	now    func() time.Time
	flight singleflight.Group

	mu    sync.RWMutex
	last  told[T]
	tried time.Time // when it was last asked for
	fault error     // of that
}

func (k *kept[T]) state() (told[T], error) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.last, k.fault
}

// idle tells that nobody has asked for it for so long that whatever was said is over.
func (k *kept[T]) idle() bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return !k.tried.IsZero() && k.now().Sub(k.tried) > longest && !k.now().Before(k.last.end)
}

// get fetches what is not fresh any more. ErrUnavailable when there is nothing to go by.
func (k *kept[T]) get(ctx context.Context) (T, error) {
	last, _ := k.state()
	if now := k.now(); now.Before(last.fresh) && now.Before(last.end) {
		return last.value, nil
	}
	k.fetch(ctx)
	last, fault := k.state()
	var none T
	switch {
	case k.now().Before(last.end):
		return last.value, nil
	case fault != nil:
		return none, fmt.Errorf("%w: %w", ErrUnavailable, fault)
	}
	return none, ErrUnavailable // the caller went away before there was any
}

// fetch asks, once for all who want it at a time, and no sooner than between since the last time. It goes on for the others
// when one who waits goes away.
func (k *kept[T]) fetch(ctx context.Context) bool {
	done := k.flight.DoChan("", func() (any, error) {
		k.mu.Lock()
		now := k.now()
		if early := now.Sub(k.tried) < between && !k.tried.IsZero(); early {
			k.mu.Unlock()
			return false, nil
		}
		k.tried = now
		k.mu.Unlock()
		last, err := k.ask(context.WithoutCancel(ctx))
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.fault = err; err == nil {
			k.last = last
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

// clientOf fetches for a Guard.
func clientOf(cfg Config) *http.Client {
	var c http.Client
	if cfg.HTTPClient != nil {
		c = *cfg.HTTPClient
	}
	// Who answers with another place is not the issuer.
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &c
}

func fetch(ctx context.Context, client *http.Client, url string) ([]byte, http.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("fetching %s: %w", url, err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, nil, fmt.Errorf("fetching %s: %w", url, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, nil, fmt.Errorf("fetching %s: status %d", url, resp.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	if err != nil {
		return nil, nil, fmt.Errorf("fetching %s: %w", url, err)
	}
	return body, resp.Header, nil
}
