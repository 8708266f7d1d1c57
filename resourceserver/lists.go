package resourceserver

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"sync"

	"github.com/brevet-dev/brevet/internal/token"
)

// ErrNoList means that a token names no status list that could show whether it was ended.
var ErrNoList = errors.New("token names no status list of its issuer")

// lists caches the issuer's status lists. It fetches a list when a token names it.
type lists struct {
	g      *Guard
	host   string // the issuer's host
	client *http.Client

	mu sync.Mutex
	of map[string]*kept[token.StatusList]
}

// check returns nil if the status list that a token names does not say that the token was ended.
func (l *lists) check(ctx context.Context, status *token.Status) error {
	if status == nil || status.List == nil {
		return ErrNoList
	}
	at := status.List.URI
	if u, err := url.Parse(at); err != nil || u.Scheme != "https" || u.Host != l.host {
		return ErrNoList
	}
	list, err := l.at(at).get(ctx)
	if err != nil {
		return err
	}
	ended, err := list.Ended(status.List.Index)
	if err == nil && ended {
		err = ErrInactive
	}
	return err
}

// at returns the cached list at a URI. It drops lists that are no longer used.
func (l *lists) at(uri string) *kept[token.StatusList] {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, ok := l.of[uri]; ok {
		return known
	}
	maps.DeleteFunc(l.of, func(_ string, k *kept[token.StatusList]) bool { return k.idle() })
	known := &kept[token.StatusList]{now: l.g.cfg.Now, ask: func(ctx context.Context) (told[token.StatusList], error) {
		return l.ask(ctx, uri)
	}}
	l.of[uri] = known
	return known
}

func (l *lists) ask(ctx context.Context, uri string) (told[token.StatusList], error) {
	now := l.g.cfg.Now()
	body, _, err := fetch(ctx, l.client, uri)
	if err != nil {
		return told[token.StatusList]{}, err
	}
	list, err := l.g.verifier.StatusList(string(body), uri)
	if errors.Is(err, token.ErrKey) && l.g.keys.fetch(ctx) {
		list, err = l.g.verifier.StatusList(string(body), uri)
	}
	return told[token.StatusList]{list, now.Add(min(max(list.TTL, shortest), longest)), list.Expires}, err
}
