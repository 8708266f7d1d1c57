package broker

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/internal/ratelimit"
	"github.com/brevet-dev/brevet/internal/token"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/uuid"
)

const (
	// listPlaces is how many tokens a status list has room for. A list accepts new tokens for listOpen.
	listPlaces, listOpen = 1 << 13, time.Hour
	// StatusListTTL is how long a verifier uses a list before it fetches a newer one. The broker may serve a signed list for
	// another StatusListTTL, and caches may keep it for a third StatusListTTL. listLife is the sum of the three.
	StatusListTTL, listLife = 20 * time.Second, 3 * StatusListTTL
	// listPause is how long a list is served without reading it again.
	listPause = time.Second
	// listPatience is how long a caller waits for a list.
	listPatience = 5 * time.Second
	// unknownListsPerSecond limits how many lists a replica looks up that are not in its cache: anybody can ask for any list. Trust
	// domains and their callers have equal shares, strangers together that of a trust domain, and unknownListsOfOne is the most for
	// one caller. Of the callers that wait for such a lookup, the next is the one that was served least recently.
	unknownListsPerSecond, unknownListsOfOne = 500, 100
	maxSearching, maxSearchingEach           = 500, 50
)

// place is a token's position in a status list. The zero place is in no list.
type place struct {
	list  string
	index int
}

// status returns the status claim of a token.
func (p place) status(issuer string) *token.Status {
	if p.list == "" {
		return nil
	}
	return &token.Status{List: &token.Listed{Index: int64(p.index), URI: statusListURI(issuer, p.list)}}
}

// statusListURI returns the API's URL of a list, on the issuer's host.
func statusListURI(issuer, list string) string {
	u, err := url.Parse(issuer)
	if err != nil {
		return "" // cannot happen: the configuration was checked
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: "/v1/status-lists/" + list}).String()
}

// places assigns each place of a list once. A list belongs to this process and to one trust domain, so no other domain learns
// how many tokens end there. Its name and the order of its places are random, so they reveal nothing about other tokens.
type places struct {
	mu   sync.Mutex
	open map[string]*openList // by trust domain
}

// openList is a list that takes new tokens.
type openList struct {
	id     string
	opened time.Time
	free   []uint16
}

func (p *places) take(trustDomain string, now time.Time) (place, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.open[trustDomain]
	if list == nil || len(list.free) == 0 || now.Sub(list.opened) >= listOpen {
		list = &openList{id: uuid.NewString(), opened: now, free: make([]uint16, listPlaces)}
		for i := range list.free {
			list.free[i] = uint16(i)
		}
		if p.open == nil {
			p.open = map[string]*openList{}
		}
		p.open[trustDomain] = list
	}
	n, err := rand.Int(rand.Reader, big.NewInt(int64(len(list.free))))
	if err != nil {
		return place{}, fmt.Errorf("choosing a place in a status list: %w", err)
	}
	last := len(list.free) - 1
	chosen := list.free[n.Int64()]
	list.free[n.Int64()] = list.free[last]
	list.free = list.free[:last]
	return place{list.id, int(chosen)}, nil
}

// StatusList is a status list for a verifier.
type StatusList struct {
	Token string // a signed JWT
	Tag   string // differs for different Tokens
}

// lists caches the lists that this replica has served. It reads at most two lists at a time: one that is cached and one that is
// not. So the store stays free for lookups of tokens, and requests with made-up IDs cannot delay the cached lists.
type lists struct {
	turn    chan struct{}
	search  *ratelimit.FairQueue
	mu      sync.Mutex
	of      map[string]cachedStatusList
	unknown *ratelimit.FairLimiter
}

type cachedStatusList struct {
	StatusList
	ended        []int
	read, signed time.Time
}

func (l *lists) get(id string) (cachedStatusList, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	held, ok := l.of[id]
	return held, ok
}

func (l *lists) drop(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.of, id)
}

// keep stores a list, and drops the lists that were last read so long ago that all their copies have expired.
func (l *lists) keep(id string, held cachedStatusList) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for other, h := range l.of {
		if held.read.Sub(h.read) >= listLife {
			delete(l.of, other)
		}
	}
	l.of[id] = held
}

// enter waits until a caller may read a list: a cached one, or one that has to be looked for.
func (l *lists) enter(ctx context.Context, now time.Time, caller string, cached bool) (leave func(), err error) {
	if cached {
		select {
		case l.turn <- struct{}{}:
			return func() { <-l.turn }, nil
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: waiting for a status list: %w", ErrLedgerUnavailable, ctx.Err())
		}
	}
	group := tenantOf(caller)
	if !l.unknown.Allow(group, caller, now) {
		return nil, ErrListsCrowded
	}
	leave, err = l.search.Enter(ctx, group, caller)
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%w: waiting for a status list: %w", ErrLedgerUnavailable, ctx.Err())
	case err != nil:
		return nil, ErrListsCrowded
	}
	return leave, nil
}

// StatusList returns a list that says which of its tokens have ended. The list is at most a second old. caller is the SPIFFE ID of the
// caller, or the network of a stranger. StatusList returns ErrNotFound if there is no such list or its last token expired more than a
// minute ago. It returns ErrLedgerUnavailable or ErrVaultUnavailable if the list cannot be read or signed, and ErrListsCrowded if the
// caller looks for too many lists that are not cached.
func (b *Broker) StatusList(ctx context.Context, id, caller string) (StatusList, error) {
	held, known := b.lists.get(id)
	if known && b.cfg.Now().Sub(held.read) < listPause {
		return held.StatusList, nil
	}
	waiting, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	leave, err := b.lists.enter(waiting, b.cfg.Now(), caller, known)
	if err != nil {
		return StatusList{}, err
	}
	defer leave()
	// The work continues if the caller disconnects: others wait for the result, and otherwise a caller could repeat reads and
	// signatures without limit.
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), listPatience)
	defer cancel()
	held, _ = b.lists.get(id)
	now := b.cfg.Now()
	if !held.read.IsZero() && now.Sub(held.read) < listPause {
		return held.StatusList, nil // another caller has just read it
	}
	return b.readList(ctx, id, held, now)
}

// readList reads a list. It signs the list again if its content has changed or its signature is too old.
func (b *Broker) readList(ctx context.Context, id string, held cachedStatusList, now time.Time) (StatusList, error) {
	ended, err := b.cfg.Tokens.EndedIn(ctx, id)
	if errors.Is(err, ErrNotFound) {
		b.lists.drop(id)
	}
	if err != nil {
		return StatusList{}, fmt.Errorf("reading a status list: %w", err)
	}
	held.read = now
	if held.Token == "" || !slices.Equal(held.ended, ended) || now.Sub(held.signed) >= StatusListTTL {
		if held.Token, err = b.signList(ctx, id, ended, now); err != nil {
			return StatusList{}, fmt.Errorf("signing a status list: %w", err)
		}
		sum := sha256.Sum256([]byte(held.Token))
		held.ended, held.signed, held.Tag = ended, now, hex.EncodeToString(sum[:])
	}
	b.lists.keep(id, held)
	return held.StatusList, nil
}

func (b *Broker) signList(ctx context.Context, id string, ended []int, now time.Time) (string, error) {
	list := token.NewStatusList(listPlaces, ended)
	list.TTL, list.Expires = StatusListTTL, now.Add(listLife)
	payload, err := list.Payload(statusListURI(b.cfg.Issuer, id), now)
	if err != nil {
		return "", err
	}
	// A list is for tokens of many scopes, so it has the default algorithm, whatever their algorithms are.
	key, err := b.cfg.Minter.Key(scopes.AlgorithmES256)
	if err != nil {
		return "", err
	}
	head := fmt.Sprintf(`{"alg":%q,"kid":%q,"typ":%q}`, key.Algorithm, key.ID, token.StatusListType)
	input := base64.RawURLEncoding.EncodeToString([]byte(head)) + "." + base64.RawURLEncoding.EncodeToString(payload)
	signature, err := b.cfg.Signer.Sign(ctx, key, input)
	if err != nil {
		return "", err
	}
	return input + "." + signature, nil
}
