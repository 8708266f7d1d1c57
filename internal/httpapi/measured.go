package httpapi

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/prometheus/client_golang/prometheus"
)

// Stopwatch measures the calls that the broker makes to its stores.
type Stopwatch struct {
	now     func() time.Time
	seconds *prometheus.HistogramVec
}

// NewStopwatch registers the metric brevet_store_duration_seconds, by store, operation and outcome.
func NewStopwatch(reg prometheus.Registerer, now func() time.Time) (*Stopwatch, error) {
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "brevet_store_duration_seconds", Help: "Duration of operations of the ledger and the mint, by store, operation and outcome.",
		Buckets: durationBuckets,
	}, []string{"store", "operation", "outcome"})
	if err := reg.Register(seconds); err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	return &Stopwatch{now: now, seconds: seconds}, nil
}

func (s *Stopwatch) observe(store, operation string, start time.Time, err error) {
	outcome := "ok"
	if err != nil {
		outcome = "error"
	}
	s.seconds.WithLabelValues(store, operation, outcome).Observe(s.now().Sub(start).Seconds())
}

// Ledger returns l with measured writes and reads.
func (s *Stopwatch) Ledger(l broker.Ledger) broker.Ledger { return measuredLedger{l, s} }

// LiveCredentials returns e with measured commands and searches for live credentials.
func (s *Stopwatch) LiveCredentials(e broker.LiveCredentials) broker.LiveCredentials {
	return measuredLiveCredentials{e, s}
}

// Minter returns m with measured mints, renewals and revocations.
func (s *Stopwatch) Minter(m broker.Minter) broker.Minter { return measuredMinter{m, s} }

type measuredLedger struct {
	broker.Ledger
	watch *Stopwatch
}

func (l measuredLedger) Begin(ctx context.Context, rec broker.Record) (*broker.View, error) {
	start := l.watch.now()
	earlier, err := l.Ledger.Begin(ctx, rec)
	failure := err
	if errors.Is(err, broker.ErrLimited) || errors.Is(err, broker.ErrQuarantined) || errors.Is(err, broker.ErrTaskEnded) ||
		errors.Is(err, broker.ErrSuperseded) {
		failure = nil // the ledger works: this is its answer
	}
	l.watch.observe("ledger", "begin", start, failure)
	return earlier, err
}

func (l measuredLedger) RecordOutcome(ctx context.Context, out broker.Outcome) error {
	start := l.watch.now()
	err := l.Ledger.RecordOutcome(ctx, out)
	l.watch.observe("ledger", "settle", start, err)
	return err
}

func (l measuredLedger) Refuse(ctx context.Context, ref broker.Refusal) error {
	start := l.watch.now()
	err := l.Ledger.Refuse(ctx, ref)
	l.watch.observe("ledger", "refuse", start, err)
	return err
}

func (l measuredLedger) List(ctx context.Context, q broker.Query, reach broker.Reach) (broker.Page, error) {
	start := l.watch.now()
	page, err := l.Ledger.List(ctx, q, reach)
	l.watch.observe("ledger", "list", start, err)
	return page, err
}

type measuredMinter struct {
	broker.Minter
	watch *Stopwatch
}

func (m measuredMinter) Mint(ctx context.Context, order *broker.Order) (broker.Credential, error) {
	start := m.watch.now()
	credential, err := m.Minter.Mint(ctx, order)
	m.watch.observe("mint", "mint", start, err)
	return credential, err
}

func (m measuredMinter) Renew(ctx context.Context, minted broker.Minted) error {
	start := m.watch.now()
	err := m.Minter.Renew(ctx, minted)
	m.watch.observe("mint", "renew", start, err)
	return err
}

func (m measuredMinter) Revoke(ctx context.Context, h broker.VaultLease) error {
	start := m.watch.now()
	err := m.Minter.Revoke(ctx, h)
	m.watch.observe("mint", "revoke", start, err)
	return err
}

type measuredLiveCredentials struct {
	broker.LiveCredentials
	watch *Stopwatch
}

func (e measuredLiveCredentials) Announce(ctx context.Context, cmd broker.Command) error {
	start := e.watch.now()
	err := e.LiveCredentials.Announce(ctx, cmd)
	e.watch.observe("ledger", "announce", start, err)
	return err
}

func (e measuredLiveCredentials) Live(
	ctx context.Context, sel broker.Selector, reach broker.Reach, page broker.LivePage,
) ([]broker.LiveCredential, error) {
	start := e.watch.now()
	held, err := e.LiveCredentials.Live(ctx, sel, reach, page)
	e.watch.observe("ledger", "live", start, err)
	return held, err
}
