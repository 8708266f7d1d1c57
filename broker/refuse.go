package broker

import (
	"context"
	"fmt"
)

const (
	// refusalsPerSecond is how many refusals of each kind of caller one replica records each second. Anybody can cause refusals,
	// and must not be able to fill the ledger.
	refusalsPerSecond = 50
	// unsignedPerSecond is the same limit for calls that a gateway passes on without a token signed by Brevet. It applies to each
	// reason for refusal. A gateway on the internet receives such calls all the time, and one record says as much as fifty.
	unsignedPerSecond = 1
)

// The kinds of callers whose refusals are sampled separately.
const (
	refusedAuthenticated   = "authenticated"
	refusedUnauthenticated = "unauthenticated"
	refusedRelayed         = "relayed"
)

// codeSuppressed is the code of a refusal that only carries the number of refusals that were not recorded.
const codeSuppressed = "suppressed"

// Refuse records a call that never became a request. Above refusalsPerSecond it only counts. The next recorded refusal of the
// same kind carries the exact number that was left out.
func (b *Broker) Refuse(ctx context.Context, ref Refusal) error {
	ref.Time = b.cfg.Now()
	sampler, kind := b.refusals, refusedUnauthenticated
	switch {
	case ref.Relayed && ref.Unsigned:
		sampler, kind = b.unsigned, ref.Detail
	case ref.Relayed:
		kind = refusedRelayed
	case ref.Subject != nil || ref.Person != "":
		kind = refusedAuthenticated
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

// Close waits for renewals and watchers, and records the refusals that were counted but not recorded.
func (b *Broker) Close(ctx context.Context) error {
	b.renewals.Wait()
	b.watchers.Wait()
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
