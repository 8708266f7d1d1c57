package broker

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/internal/passkey"
	"github.com/brevet-dev/brevet/internal/ratelimit"
	"github.com/brevet-dev/brevet/scopes"
	"golang.org/x/time/rate"
)

// Config is what a Broker needs. Every field is required, except where it says otherwise.
type Config struct {
	Ledger    Ledger
	Live      LiveCredentials
	Approvals Approvals
	Minter    Minter
	// Feed lets the record be followed. With nil nothing of it is found.
	Feed EventFeed
	// Usage keeps what holders say of their credentials. With nil there are none to say something of.
	Usage Usage
	// Stats counts what there is. With nil there is nothing.
	Stats Stats
	// Tokens tells where tokens stand. With nil none is in force.
	Tokens Tokens
	// Signer signs status lists. With nil there are none.
	Signer Signer
	// ApprovalPolicy says which people may decide. The zero value lets nobody.
	ApprovalPolicy ApprovalPolicy
	// Passkeys keeps those of people, and RelyingParty is the site that they are for. Without either nobody can say yes to
	// what has to be signed.
	Passkeys     Passkeys
	RelyingParty passkey.RelyingParty
	// Catalogue returns the catalogue to decide by until one is found in force in Catalogues; one call is one snapshot.
	Catalogue func() *scopes.Catalogue
	// Catalogues keeps those that admins apply. With nil the catalogue does not change that way.
	Catalogues Catalogues
	// SecondAdmin has every catalogue wait for the approval of another admin than the one who brings it.
	SecondAdmin bool
	// Issuer is the "iss" of every token: an absolute URL.
	Issuer string
	Now    func() time.Time
	Log    *slog.Logger
	// DPoPReplayCache remembers which DPoP proofs were used. With nil none is accepted.
	DPoPReplayCache DPoPReplayCache
	// OnUnrevoked, unless nil, is told by the sweeper how many credentials should be dead and are not known to be.
	OnUnrevoked func(n int)
}

// Broker answers requests. It is safe for concurrent use.
type Broker struct {
	cfg Config
	// refusals samples the refusals to record. Authenticated callers, gateways and all others each have their own kind: a flood of
	// unauthenticated calls must not hide the other refusals. unsigned samples those of calls that gateways pass on without a token of
	// ours, by the code of the refusal.
	refusals, unsigned *ratelimit.Sampler
	// dpopProofs and dpopProofsPerSandbox bound what the replay cache has to remember.
	dpopProofs           *rate.Limiter
	dpopProofsPerSandbox *ratelimit.Limiter
	// renewals are those that go on after their request.
	renewals sync.WaitGroup
	// waiters wait for people, and watchers look for them.
	waiters  waiters
	watchers sync.WaitGroup
	inForce  catalogueInForce
	// listeners is who is told what waits for them.
	listeners listeners
	// followers are told of the record as it grows.
	followers followers
	// places are those of new tokens in status lists, and lists what the lists said last.
	places places
	lists  lists
}

// New returns a Broker, or an error that names what is missing from cfg.
func New(cfg Config) (*Broker, error) {
	if cfg.Ledger == nil || cfg.Live == nil || cfg.Approvals == nil || cfg.Minter == nil || cfg.Catalogue == nil || cfg.Now == nil || cfg.Log == nil {
		return nil, errors.New("broker: ledger, live credentials, approvals, minter, catalogue, clock and log are all required")
	}
	if cfg.Issuer == "" {
		return nil, errors.New("broker: an issuer is required: it names who made a token")
	}
	cfg.ApprovalPolicy.site = cfg.RelyingParty
	return &Broker{
		cfg:      cfg,
		refusals: ratelimit.NewSampler(refusalsPerSecond), unsigned: ratelimit.NewSampler(unsignedPerSecond),
		dpopProofs:           rate.NewLimiter(dpopProofsPerSecond, dpopProofsPerSecond),
		dpopProofsPerSandbox: ratelimit.New(dpopProofsOfOne, dpopProofsOfOne),
		lists: lists{
			turn: make(chan struct{}, 1), search: make(chan struct{}, 1), unknown: rate.NewLimiter(unknownListsPerSecond, unknownListsPerSecond),
		},
	}, nil
}

// Issuer is the "iss" of every token.
func (b *Broker) Issuer() string { return b.cfg.Issuer }

// Title is what a scope does, in the words of the catalogue with that digest; empty when that is not in force.
func (b *Broker) Title(scope, digest string) string {
	catalogue := b.catalogue()
	if found, ok := catalogue.Scope(scope); ok && catalogue.Digest() == digest {
		return found.Title
	}
	return ""
}

// Offers returns the scopes that a sandbox may ask for, by the catalogue with that digest: the last that this replica has
// seen applied.
func (b *Broker) Offers(who attest.Identity) (offers []scopes.Offer, catalogue string) {
	by := b.catalogue()
	return by.Offers(who.ID()), by.Digest()
}

// Get returns one record within reach, else ErrNotFound.
func (b *Broker) Get(ctx context.Context, id string, reach Reach) (*View, error) {
	return b.cfg.Ledger.Get(ctx, id, reach)
}

// List returns the records within reach that match, newest first.
func (b *Broker) List(ctx context.Context, q Query, reach Reach) (Page, error) {
	return b.cfg.Ledger.List(ctx, q, reach)
}

// Timeline returns what is recorded of a task, or of a request, in order, else ErrNotFound.
func (b *Broker) Timeline(ctx context.Context, of TimelineQuery, reach Reach) ([]Happening, error) {
	if b.cfg.Feed == nil {
		return nil, ErrNotFound
	}
	return b.cfg.Feed.Timeline(ctx, of, reach)
}
