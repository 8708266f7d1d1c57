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

// ErrNoList means that a token does not tell where it can be seen whether it was ended.
var ErrNoList = errors.New("token names no status list of its issuer")

// lists are the issuer's status lists, fetched when a token names one.
type lists struct {
	g      *Guard
	host   string // of the issuer
	client *http.Client

	mu sync.Mutex
	of map[string]*kept[token.StatusList]
}

// check is nil when the list that a token names does not say that it was ended.
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

// at is the list at a URI. Those that nobody goes by any more make room.
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
