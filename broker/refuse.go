package broker

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/brevet-dev/brevet/internal/ratelimit"
	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/time/rate"
)

const (
	// refusalsPerSecond is how many refusals of each kind of unauthenticated caller one replica records each second, and
	// refusalsPerDay how many each day. Anybody can cause refusals, and must not be able to fill the ledger.
	refusalsPerSecond, refusalsPerDay = 50, 20_000
	// unsignedPerSecond is the limit each second for calls that a gateway passes on without a token signed by Brevet. It applies to each
	// reason for refusal. A gateway on the internet receives such calls all the time, and one record says as much as fifty.
	unsignedPerSecond = 1
	// countEvery is the time between two records of what was only counted.
	countEvery = time.Minute
)

// AttemptBudget bounds what one replica records of calls that issue nothing: denied and limited requests, and refused calls of
// authenticated callers. The first calls are recorded one by one, up to a burst, and then so many per minute. Brevet counts the others
// exactly, and records the counts each minute. Without the budget, a sandbox that repeats a denied request could fill the disk.
type AttemptBudget struct {
	// SandboxBurst and SandboxPerMinute apply to each sandbox or person. The defaults are 50 and 6.
	SandboxBurst, SandboxPerMinute int
	// DomainBurst and DomainPerMinute apply to each trust domain. The defaults are 500 and 60.
	DomainBurst, DomainPerMinute int
}

func (a AttemptBudget) budget() *ratelimit.Budget {
	perSecond := func(perMinute int) rate.Limit { return rate.Limit(float64(perMinute) / 60) }
	return ratelimit.NewBudget(
		perSecond(cmp.Or(a.SandboxPerMinute, 6)), cmp.Or(a.SandboxBurst, 50),
		perSecond(cmp.Or(a.DomainPerMinute, 60)), cmp.Or(a.DomainBurst, 500))
}

// The kinds of unauthenticated callers, whose refusals are sampled separately.
const (
	refusedUnauthenticated = "unauthenticated"
	refusedRelayed         = "relayed"
)

// codeSuppressed is the code of a refusal that only carries the number of calls that were counted and not recorded.
const codeSuppressed = "suppressed"

// tenantOf returns the trust domain of a SPIFFE ID, and persons for the ID of a person.
func tenantOf(caller string) string {
	id, err := spiffeid.FromString(caller)
	if err != nil {
		return persons
	}
	return id.TrustDomain().Name()
}

// persons is the group of attempts by persons, who belong to no trust domain.
const persons = ""

// mayRecord reports whether a call of a workload that issues nothing is recorded. If not, it is counted.
func (b *Broker) mayRecord(of Subject) bool {
	return b.attempts.Take(of.ID.TrustDomain().Name(), of.ID.String(), b.cfg.Now())
}

// Refuse records a call that never became a request. Above the budget of its caller it only counts the call.
func (b *Broker) Refuse(ctx context.Context, ref Refusal) error {
	ref.Time = b.cfg.Now()
	sampler, kind := b.refusals, refusedUnauthenticated
	switch {
	case ref.Relayed && ref.Unsigned:
		sampler, kind = b.unsigned, ref.Detail
	case ref.Relayed:
		kind = refusedRelayed
	case ref.Subject != nil:
		if !b.mayRecord(*ref.Subject) {
			return nil
		}
		return b.record(ctx, ref, ratelimit.Suppressed{Group: ref.Subject.ID.TrustDomain().Name(), Key: ref.Subject.ID.String()})
	case ref.Person != "":
		if !b.attempts.Take(persons, ref.Person, ref.Time) {
			return nil
		}
		return b.record(ctx, ref, ratelimit.Suppressed{Group: persons, Key: ref.Person})
	}
	suppressed, ok := sampler.Take(kind, ref.Time)
	if !ok {
		return nil
	}
	ref.Suppressed = suppressed
	if err := b.cfg.Ledger.Refuse(ctx, ref); err != nil {
		sampler.PutBack(kind, suppressed+1)
		return fmt.Errorf("recording a refusal: %w", err)
	}
	return nil
}

// record records a refusal, or counts it if the ledger cannot.
func (b *Broker) record(ctx context.Context, ref Refusal, of ratelimit.Suppressed) error {
	if err := b.cfg.Ledger.Refuse(ctx, ref); err != nil {
		b.attempts.PutBack(of, 1)
		return fmt.Errorf("recording a refusal: %w", err)
	}
	return nil
}

// RecordCounts records each minute what was only counted, until ctx ends, and returns the error of ctx.
func (b *Broker) RecordCounts(ctx context.Context) error {
	for wait.For(ctx, countEvery) {
		if err := b.recordAttempts(ctx); err != nil {
			b.cfg.Log.WarnContext(ctx, "counts of refused calls not recorded yet", "error", err)
		}
	}
	return ctx.Err()
}

// recordAttempts records the counts of authenticated callers. It keeps those that it cannot record.
func (b *Broker) recordAttempts(ctx context.Context) error {
	var failed error
	for of, n := range b.attempts.Drain() {
		ref := Refusal{Time: b.cfg.Now(), Code: codeSuppressed, Suppressed: n}
		switch id, err := spiffeid.FromString(of.Key); {
		case err == nil:
			ref.Subject = &Subject{ID: id}
		case of.Key != "":
			ref.Person = of.Key
		default:
			ref.Detail = of.Group
		}
		if failed == nil {
			failed = b.cfg.Ledger.Refuse(ctx, ref)
		}
		if failed != nil {
			b.attempts.PutBack(of, n)
		}
	}
	return failed
}

// Close waits for renewals and watchers, and records the calls that were counted but not recorded.
func (b *Broker) Close(ctx context.Context) error {
	b.renewals.Wait()
	b.watchers.Wait()
	if err := b.recordAttempts(ctx); err != nil {
		return fmt.Errorf("recording counts of refused calls: %w", err)
	}
	for _, n := range b.refusals.Drain() {
		if err := b.recordSuppressed(ctx, n, ""); err != nil {
			return err
		}
	}
	for detail, n := range b.unsigned.Drain() {
		if err := b.recordSuppressed(ctx, n, detail); err != nil {
			return err
		}
	}
	return nil
}

func (b *Broker) recordSuppressed(ctx context.Context, n int, detail string) error {
	ref := Refusal{Time: b.cfg.Now(), Code: codeSuppressed, Detail: detail, Suppressed: n}
	if err := b.cfg.Ledger.Refuse(ctx, ref); err != nil {
		return fmt.Errorf("recording %d suppressed refusals: %w", n, err)
	}
	return nil
}
