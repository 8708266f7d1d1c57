// Package broker turns a sandbox's request into a credential: it decides, commits a record and mints, in that order. It also
// defines the types and the interfaces that the other packages implement.
//
// It must never release a credential before its record is durable, never mint what policy did not permit, and never treat an
// error or an unknown result as an approval.
package broker

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/passkey"
	"github.com/brevet-dev/brevet/internal/ratelimit"
	"github.com/brevet-dev/brevet/scopes"
	"golang.org/x/sync/singleflight"
)

// Config is what a Broker needs. Every field is required unless its comment says otherwise.
type Config struct {
	Ledger    Ledger
	Live      LiveCredentials
	Approvals Approvals
	Minter    Minter
	Feed      EventFeed
	Usage     Usage
	Stats     Stats
	Tokens    Tokens
	// Signer signs status lists.
	Signer          Signer
	DPoPReplayCache DPoPReplayCache
	Catalogues      Catalogues
	Passkeys        Passkeys
	// RelyingParty is the site that passkeys are registered for. With the zero value, nobody can approve a request that requires
	// a signature.
	RelyingParty passkey.RelyingParty
	// ApprovalPolicy determines who may approve. With the zero value, nobody may.
	ApprovalPolicy approval.Policy
	// Catalogue returns the catalogue by which the broker decides until it has loaded one from Catalogues. Each call returns a
	// consistent snapshot.
	Catalogue func() *scopes.Catalogue
	// Prepare sets up in Vault what a catalogue needs, before the catalogue is in force. It may run for a catalogue that then is not
	// applied, and more than once. Nil means that an operator does this with brevet bootstrap: then a catalogue is refused while
	// policies are missing.
	Prepare func(context.Context, *scopes.Catalogue) error
	// SecondAdmin means that an admin other than the author must approve each catalogue.
	SecondAdmin bool
	// Issuer is the "iss" of every token: an absolute URL.
	Issuer string
	Now    func() time.Time
	Log    *slog.Logger
	// Attempts bounds what the record keeps of calls that issue nothing. Zero fields have the default.
	Attempts AttemptBudget
	// OnUnrevoked, if not nil, receives from the sweeper the number of credentials that should be dead but may not be.
	OnUnrevoked func(n int)
}

// Broker answers requests. It is safe for concurrent use.
type Broker struct {
	cfg Config
	// attempts bounds what is recorded of calls by authenticated callers that issue nothing. refusals samples refusals of other
	// callers: gateways and strangers separately. unsigned samples calls that gateways pass on without a token signed by Brevet,
	// separately for each Detail.
	attempts           *ratelimit.Budget
	refusals, unsigned *ratelimit.Sampler
	// dpopProofs bounds what the replay cache has to remember.
	dpopProofs *ratelimit.FairLimiter
	// taskEnds merges equal calls of EndTask, and useReports the reports on one credential.
	taskEnds, useReports singleflight.Group
	// renewals are the renewals that outlive their requests.
	renewals sync.WaitGroup
	// waiters wait for decisions by people. watchers are the goroutines that poll the store for decisions and for waiting requests.
	waiters  waiters
	watchers sync.WaitGroup
	inForce  catalogueInForce
	// listeners are notified of requests that wait for approval.
	listeners listeners
	// followers are sandboxes that follow their own records, and auditors are auditors that follow the record.
	followers, auditors *ratelimit.FairSemaphore
	// lookUps are the sandboxes that look for earlier requests. Callers bound how many of them wait.
	lookUps *ratelimit.FairQueue
	// places assigns places in status lists to new tokens. lists caches the signed lists.
	places places
	lists  lists
}

// New returns a Broker, or an error that names what is missing from cfg.
func New(cfg Config) (*Broker, error) {
	ports := []any{
		cfg.Ledger, cfg.Live, cfg.Approvals, cfg.Minter, cfg.Feed, cfg.Usage, cfg.Stats, cfg.Tokens, cfg.Signer, cfg.DPoPReplayCache,
		cfg.Catalogues, cfg.Passkeys,
	}
	if slices.Contains(ports, nil) || cfg.Catalogue == nil || cfg.Now == nil || cfg.Log == nil {
		return nil, errors.New("broker: every port, the catalogue, the clock and the log are required")
	}
	if cfg.Issuer == "" {
		return nil, errors.New("broker: an issuer is required: it names who made a token")
	}
	cfg.ApprovalPolicy.Site = cfg.RelyingParty
	return &Broker{
		cfg:      cfg,
		attempts: cfg.Attempts.budget(),
		refusals: ratelimit.NewSampler(refusalsPerSecond, refusalsPerDay), unsigned: ratelimit.NewSampler(unsignedPerSecond, refusalsPerDay),
		dpopProofs: ratelimit.NewFairLimiter(dpopProofsPerSecond, dpopProofsOfOne),
		waiters:    waiters{places: ratelimit.NewFairSemaphore(maxWaiting, maxWaitingEach), byRequest: map[string]*waiter{}},
		followers:  ratelimit.NewFairSemaphore(maxFollowing, maxListeningEach),
		auditors:   ratelimit.NewFairSemaphore(maxAuditing, maxListeningEach),
		lookUps:    ratelimit.NewFairQueue(lookUpsAtOnce, math.MaxInt, math.MaxInt),
		listeners: listeners{
			places: ratelimit.NewSemaphore(maxListening, maxListeningEach), present: map[*Listener]bool{}, joined: make(chan struct{}, 1),
		},
		lists: lists{
			of:   map[string]cachedStatusList{},
			turn: make(chan struct{}, 1), search: ratelimit.NewFairQueue(1, maxSearching, maxSearchingEach),
			unknown: ratelimit.NewFairLimiter(unknownListsPerSecond, unknownListsOfOne),
		},
	}, nil
}

// Issuer is the "iss" of every token.
func (b *Broker) Issuer() string { return b.cfg.Issuer }

// Title returns the title of a scope in the catalogue with that digest. It returns "" if this catalogue is not in force.
func (b *Broker) Title(scope, digest string) string {
	catalogue := b.catalogue()
	if found, ok := catalogue.Scope(scope); ok && catalogue.Digest() == digest {
		return found.Title
	}
	return ""
}

// Offers returns the scopes that a sandbox may ask for, and the digest of the catalogue that defines them. This is the latest
// catalogue that this replica knows to be applied.
func (b *Broker) Offers(who attest.Identity) (offers []scopes.Offer, catalogue string) {
	by := b.catalogue()
	return by.Offers(who.ID()), by.Digest()
}

// Get returns one record within reach. It returns ErrNotFound if there is none.
func (b *Broker) Get(ctx context.Context, id string, reach Reach) (*View, error) {
	return b.cfg.Ledger.Get(ctx, id, reach)
}

// List returns the matching records within reach, newest first.
func (b *Broker) List(ctx context.Context, q Query, reach Reach) (Page, error) {
	return b.cfg.Ledger.List(ctx, q, reach)
}

// Timeline returns the entries about a task or a request, in order. It returns ErrNotFound if there are none within reach.
func (b *Broker) Timeline(ctx context.Context, of TimelineQuery, reach Reach) ([]TimelineEvent, error) {
	return b.cfg.Feed.Timeline(ctx, of, reach)
}
