package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/uuid"
)

// settleTimeout bounds the write of an outcome, which goes on when the caller has gone.
const settleTimeout = 5 * time.Second

// Config is what a Broker needs. Every field is required.
type Config struct {
	Ledger Ledger
	Estate Estate
	Minter Minter
	// Catalogue returns the catalogue in force; one call is one snapshot.
	Catalogue func() *scopes.Catalogue
	// Issuer is the "iss" of every token: an absolute URL.
	Issuer string
	Now    func() time.Time
	Log    *slog.Logger
}

// Broker answers requests. It is safe for concurrent use.
type Broker struct {
	cfg Config
	// Callers who proved who they are have a budget of their own: a flood without identities must not hide theirs.
	proven, unproven *sampler
}

// New returns a Broker, or an error that names what is missing from cfg.
func New(cfg Config) (*Broker, error) {
	if cfg.Ledger == nil || cfg.Minter == nil || cfg.Catalogue == nil || cfg.Now == nil || cfg.Log == nil {
		return nil, errors.New("broker: ledger, minter, catalogue, clock and log are all required")
	}
	if cfg.Issuer == "" {
		return nil, errors.New("broker: an issuer is required: it names who made a token")
	}
	return &Broker{
		cfg:    cfg,
		proven: newSampler(refusalsPerSecond, cfg.Now()), unproven: newSampler(refusalsPerSecond, cfg.Now()),
	}, nil
}

// Result is what became of a request.
type Result struct {
	// Record is as the ledger keeps it. Its ID is zero when Earlier answers instead.
	Record Record
	// Credential is set only when the record's status is issued.
	Credential *Credential
	// Earlier is the record that this idempotency key already stands for, when it was denied or is pending.
	Earlier *View
}

// Issue decides, records, and only then mints. An error means that no credential left: *scopes.InvalidAsk for
// an ask that makes no sense, else one of this package's sentinels. A denial is not an error.
func (b *Broker) Issue(ctx context.Context, who attest.Identity, req Request) (Result, error) {
	now := b.cfg.Now()
	decision, err := b.cfg.Catalogue().Decide(subjectOf(who), askOf(req), now)
	if err != nil {
		return Result{}, err
	}
	rec, key, err := b.prepare(who, req, decision, now)
	if err != nil {
		return Result{}, err
	}
	earlier, err := b.cfg.Ledger.Begin(ctx, rec)
	var limited *Limited
	if errors.As(err, &limited) {
		return Result{}, b.limit(ctx, who, rec, limited)
	}
	if err != nil {
		return Result{}, fmt.Errorf("recording the decision: %w", err)
	}
	if earlier != nil {
		return again(rec, earlier)
	}
	if rec.Intent == nil {
		return Result{Record: rec}, nil
	}
	credential, err := b.cfg.Minter.Mint(ctx, &Order{intent: *rec.Intent, key: key})
	if err != nil {
		b.fail(ctx, rec.ID, err)
		return Result{}, fmt.Errorf("minting %s: %w", rec.ID, err)
	}
	return Result{Record: rec, Credential: &credential}, nil
}

// prepare turns a decision into the record to commit and, when it allows, the key that the intent names.
func (b *Broker) prepare(who attest.Identity, req Request, d scopes.Decision, now time.Time) (Record, Key, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return Record{}, Key{}, fmt.Errorf("making an id: %w", err)
	}
	rec, err := newRecord(id.String(), who, req, d, now)
	if err != nil || d.Outcome != scopes.Allow {
		return rec, Key{}, err
	}
	key, err := b.cfg.Minter.Key()
	if err != nil {
		return Record{}, Key{}, fmt.Errorf("choosing a signing key: %w", err)
	}
	rec.Intent, err = jwtIntent(b.cfg.Issuer, rec, key)
	return rec, key, err
}

// limit records that rec was over a limit, and returns the *Limited only when that is durable.
func (b *Broker) limit(ctx context.Context, who attest.Identity, rec Record, limited *Limited) error {
	denial, err := limitedRecord(who, rec, limited)
	if err != nil {
		return err
	}
	if _, err := b.cfg.Ledger.Begin(ctx, denial); err != nil {
		return fmt.Errorf("recording that a limit is reached: %w", err)
	}
	return &Limited{Limit: limited.Limit, RetryAfter: limited.RetryAfter, Record: denial}
}

// again answers a request whose idempotency key was used before.
func again(rec Record, earlier *View) (Result, error) {
	switch {
	case earlier.RequestDigest != rec.Digest:
		return Result{}, ErrIdempotencyMismatch
	case earlier.Status == StatusDenied, earlier.Status == StatusPending:
		return Result{Earlier: earlier}, nil
	default:
		return Result{}, ErrAlreadyIssued
	}
}

// fail moves a record whose mint did not succeed. The caller may be gone and the store may be down: then the
// record goes on saying issued, which claims too much and never too little.
func (b *Broker) fail(ctx context.Context, id string, cause error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	out := Outcome{ID: id, Time: b.cfg.Now(), Status: StatusFailed, Detail: failureCode(cause)}
	if err := b.cfg.Ledger.Settle(ctx, out); err != nil {
		b.cfg.Log.ErrorContext(ctx, "outcome not recorded", "issuance", id, "status", string(out.Status), "error", err)
	}
}

func failureCode(cause error) string {
	switch {
	case errors.Is(cause, ErrMintMismatch):
		return "mint_mismatch"
	case errors.Is(cause, ErrVaultUnavailable):
		return "vault_unavailable"
	default:
		return "internal"
	}
}

// Refuse records a call that never became a request. Above refusalsPerSecond it only counts; the next
// recorded one carries the exact number left out.
func (b *Broker) Refuse(ctx context.Context, ref Refusal) error {
	ref.Time = b.cfg.Now()
	budget := b.unproven
	if ref.Subject != nil {
		budget = b.proven
	}
	suppressed, ok := budget.take(ref.Time)
	if !ok {
		return nil
	}
	ref.Suppressed = suppressed
	if err := b.cfg.Ledger.Refuse(ctx, ref); err != nil {
		budget.putBack(suppressed + 1)
		return fmt.Errorf("recording a refusal: %w", err)
	}
	return nil
}

// Close records the refusals that were counted and have had no later one to be carried by.
func (b *Broker) Close(ctx context.Context) error {
	for _, budget := range []*sampler{b.proven, b.unproven} {
		n := budget.drain()
		if n == 0 {
			continue
		}
		ref := Refusal{Time: b.cfg.Now(), Code: codeSuppressed, Suppressed: n}
		if err := b.cfg.Ledger.Refuse(ctx, ref); err != nil {
			return fmt.Errorf("recording %d suppressed refusals: %w", n, err)
		}
	}
	return nil
}

// Get returns one record within reach, else ErrNotFound.
func (b *Broker) Get(ctx context.Context, id string, reach Reach) (*View, error) {
	return b.cfg.Ledger.Get(ctx, id, reach)
}

// List returns the records within reach that match, newest first.
func (b *Broker) List(ctx context.Context, q Query, reach Reach) (Page, error) {
	return b.cfg.Ledger.List(ctx, q, reach)
}
