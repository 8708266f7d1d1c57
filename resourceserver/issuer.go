package resourceserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/internal/token"
	"golang.org/x/sync/singleflight"
)

const (
	// shortest and longest bound how long a response of the issuer is cached, whatever lifetime the issuer gives.
	shortest, longest = 10 * time.Second, time.Hour
	// between is the minimum time between two fetches, however many tokens or failures need a fetch.
	between = 10 * time.Second
	// patience is the timeout of one fetch. most is the maximum number of bytes that it reads.
	patience, most = 3 * time.Second, 64 << 10
)

// told is a response of the issuer. It is not fetched again until fresh, and not used after end.
type told[T any] struct {
	value      T
	fresh, end time.Time
}

// kept caches a response of the issuer, and fetches it on demand.
type kept[T any] struct {
	ask    func(context.Context) (told[T], error)
	now    func() time.Time
	flight singleflight.Group

	mu    sync.RWMutex
	last  told[T]
	tried time.Time // when it was last fetched
	fault error     // the error of that fetch
}

func (k *kept[T]) state() (told[T], error) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.last, k.fault
}

// idle reports whether the value has expired and its last fetch began more than an hour ago (longest).
func (k *kept[T]) idle() bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return !k.tried.IsZero() && k.now().Sub(k.tried) > longest && !k.now().Before(k.last.end)
}

// get returns the cached value, and fetches it again if it is not fresh. It returns ErrUnavailable if there is no usable value.
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
	return none, ErrUnavailable // the caller left before the fetch was done
}

// fetch fetches the value, unless the last fetch began less than ten seconds ago (between). Concurrent callers share one fetch,
// which continues if one of them leaves. It reports whether it fetched a value.
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

func (g *Guard) fetch(ctx context.Context, url string) ([]byte, http.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("fetching %s: %w", url, err)
	}
	resp, err := g.client.Do(req)
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

const (
	// usual is how long keys are cached if the issuer gives no lifetime.
	usual = time.Minute
	// unsure is how much longer keys are used while the issuer can't be reached.
	unsure = 10 * time.Minute
)

// askKeys fetches the issuer's keys. They may be cached as the response says (RFC 9111, section 5.2.2.1), within bounds.
func (g *Guard) askKeys(ctx context.Context) (told[token.KeySet], error) {
	fresh := g.cfg.Now()
	body, header, err := g.fetch(ctx, g.cfg.JWKS)
	if err != nil {
		return told[token.KeySet]{}, err
	}
	age := usual
	for directive := range strings.SplitSeq(header.Get("Cache-Control"), ",") {
		if text, ok := strings.CutPrefix(strings.TrimSpace(directive), "max-age="); ok {
			if n, err := strconv.ParseUint(text, 10, 31); err == nil {
				age = min(max(time.Duration(n)*time.Second, shortest), longest)
				break
			}
		}
	}
	fresh = fresh.Add(age)
	set, err := token.Parse(body)
	return told[token.KeySet]{set, fresh, fresh.Add(unsure)}, err
}

// checkStatus returns nil if the status list that a token names does not say that the token was ended.
func (g *Guard) checkStatus(ctx context.Context, status *token.Status) error {
	if status == nil || status.List == nil {
		return ErrNoList
	}
	if u, err := url.Parse(status.List.URI); err != nil || u.Scheme != "https" || u.Host != g.host {
		return ErrNoList
	}
	list, err := g.list(status.List.URI).get(ctx)
	if err != nil {
		return err
	}
	ended, err := list.Ended(status.List.Index)
	if err == nil && ended {
		err = ErrInactive
	}
	return err
}

// list returns the cached list at a URI. It drops lists that are no longer used.
func (g *Guard) list(uri string) *kept[token.StatusList] {
	g.mu.Lock()
	defer g.mu.Unlock()
	if known, ok := g.lists[uri]; ok {
		return known
	}
	maps.DeleteFunc(g.lists, func(_ string, k *kept[token.StatusList]) bool { return k.idle() })
	g.lists[uri] = &kept[token.StatusList]{now: g.cfg.Now, ask: func(ctx context.Context) (told[token.StatusList], error) {
		now := g.cfg.Now()
		body, _, err := g.fetch(ctx, uri)
		if err != nil {
			return told[token.StatusList]{}, err
		}
		list, err := g.verifier.StatusList(string(body), uri)
		if errors.Is(err, token.ErrKey) && g.keys.fetch(ctx) {
			list, err = g.verifier.StatusList(string(body), uri)
		}
		return told[token.StatusList]{list, now.Add(min(max(list.TTL, shortest), longest)), list.Expires}, err
	}}
	return g.lists[uri]
}
