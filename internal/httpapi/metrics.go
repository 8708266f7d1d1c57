package httpapi

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics never uses a SPIFFE ID, a task or a scope as a label, because their number is not bounded. People are few, and
// operators must see how many requests each of them decides on.
type metrics struct {
	requests  *prometheus.CounterVec   // route, status
	duration  *prometheus.HistogramVec // route
	inFlight  prometheus.Gauge
	decisions *prometheus.CounterVec // outcome, authority
	refusals  *prometheus.CounterVec // code
	ended     *prometheus.CounterVec // cause, status
	votes     *prometheus.CounterVec // verdict, group, approver
	broken    *prometheus.CounterVec // step
	checks    *prometheus.CounterVec // outcome
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "brevet_http_requests_total", Help: "Answered calls, by route and status.",
		}, []string{"route", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "brevet_http_request_duration_seconds", Help: "Time from the first byte of a call to its response, by route.",
			Buckets: durationBuckets,
		}, []string{"route"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "brevet_http_in_flight", Help: "Calls in progress.",
		}),
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "brevet_decisions_total", Help: "Decisions, by outcome and the scope's authority class.",
		}, []string{"outcome", "authority"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "brevet_problems_total", Help: "Calls answered with a problem, by its code.",
		}, []string{"code"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "brevet_ended_total", Help: "Credentials on receipts of early ends, by cause and resulting status.",
		}, []string{"cause", "status"}),
		votes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "brevet_votes_total", Help: "Votes, by verdict, approver group and the voter's subject at the provider.",
		}, []string{"verdict", "group", "approver"}),
		broken: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "brevet_break_glass_total", Help: "Break-glass votes and the issuances that they approved, by step.",
		}, []string{"step"}),
		checks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "brevet_checks_total", Help: "Calls that gateways checked, by result: allowed, gateway if the gateway itself was refused, or the code of the problem.",
		}, []string{"outcome"}),
	}
	for _, step := range []string{"vote", "issuance"} {
		m.broken.WithLabelValues(step) // so that the first is seen as an increase
	}
	for _, c := range []prometheus.Collector{m.requests, m.duration, m.inFlight, m.decisions, m.refusals, m.ended, m.votes, m.broken, m.checks} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("registering metrics: %w", err)
		}
	}
	return m, nil
}

// Gauges are metrics about the broker, the ledger and the witnesses.
type Gauges struct {
	unrevoked prometheus.Gauge
	size      prometheus.Gauge
	room      prometheus.Gauge
	cosigned  *prometheus.GaugeVec   // witness
	failures  *prometheus.CounterVec // witness, why
	now       func() time.Time
	sealed    atomic.Int64 // when the last checkpoint was last verified, in nanoseconds since 1970; zero if never
}

// NewGauges registers brevet_unrevoked, and the metrics of the ledger and witnesses.
func NewGauges(reg prometheus.Registerer, now func() time.Time) (*Gauges, error) {
	g := &Gauges{
		unrevoked: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "brevet_unrevoked", Help: "Overdue credentials that are not confirmed revoked, seen from the replica that runs the sweeper.",
		}),
		size: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "brevet_ledger_checkpoint_size", Help: "Entries that the last checkpoint covers.",
		}),
		room: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "brevet_ledger_room", Help: "Entries that fit into the existing partitions.",
		}),
		cosigned: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "brevet_witness_size", Help: "Entries of the last checkpoint that a witness has cosigned, seen from the replica that asks it.",
		}, []string{"witness"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "brevet_witness_failures_total", Help: "Checkpoints that a witness did not cosign. The label why is history if it has cosigned another history: alert on that.",
		}, []string{"witness", "why"}),
		now: now,
	}
	age := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "brevet_ledger_checkpoint_age_seconds",
		Help: "Time since this replica last saw a checkpoint that continues the one before and covers the ledger.",
	}, g.age)
	for _, c := range []prometheus.Collector{g.unrevoked, g.size, g.room, g.cosigned, g.failures, age} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("registering metrics: %w", err)
		}
	}
	return g, nil
}

// Unrevoked is for broker.Config.OnUnrevoked.
func (g *Gauges) Unrevoked(n int) { g.unrevoked.Set(float64(n)) }

// Sealed sets the size of a checkpoint that was verified.
func (g *Gauges) Sealed(size int64) {
	g.size.Set(float64(size))
	g.sealed.Store(g.now().UnixNano())
}

// Room sets how many entries still fit into the ledger.
func (g *Gauges) Room(entries int64) { g.room.Set(float64(entries)) }

func (g *Gauges) age() float64 {
	sealed := g.sealed.Load()
	if sealed == 0 {
		return math.Inf(1)
	}
	return g.now().Sub(time.Unix(0, sealed)).Seconds()
}

// Cosigned sets the size of the checkpoint that a witness has cosigned.
func (g *Gauges) Cosigned(witness string, size int64) {
	g.cosigned.WithLabelValues(witness).Set(float64(size))
}

// NotCosigned counts a checkpoint that a witness has not cosigned.
func (g *Gauges) NotCosigned(witness, why string) { g.failures.WithLabelValues(witness, why).Inc() }

// durationBuckets are in seconds, from a cached response to a store that hangs.
var durationBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

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

// bundleMeter reads the status of the sources at each scrape, so that it never shows an old state.
type bundleMeter struct {
	status  func() []attest.BundleStatus
	failing *prometheus.Desc
	now     func() time.Time
}

// MeterBundles registers brevet_bundle_failing_seconds. Its labels are the configured trust domains.
func MeterBundles(reg prometheus.Registerer, status func() []attest.BundleStatus, now func() time.Time) error {
	m := &bundleMeter{status: status, now: now, failing: prometheus.NewDesc("brevet_bundle_failing_seconds",
		"Time since the source of a trust domain's bundle began to fail, 0 while it works. The last bundle stays in use for a day.",
		[]string{"trust_domain"}, nil)}
	if err := reg.Register(m); err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	return nil
}

// MeterCertificate registers brevet_certificate_expiry_timestamp_seconds, so that alerts fire before clients can no longer
// connect.
func MeterCertificate(reg prometheus.Registerer, expires func() time.Time) error {
	err := reg.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "brevet_certificate_expiry_timestamp_seconds", Help: "When the server's certificate expires, in seconds since 1970.",
	}, func() float64 { return float64(expires().Unix()) }))
	if err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	return nil
}

// Describe implements prometheus.Collector.
func (m *bundleMeter) Describe(to chan<- *prometheus.Desc) { to <- m.failing }

// Collect implements prometheus.Collector.
func (m *bundleMeter) Collect(to chan<- prometheus.Metric) {
	for _, s := range m.status() {
		failing := 0.0
		if !s.Since.IsZero() {
			failing = m.now().Sub(s.Since).Seconds()
		}
		to <- prometheus.MustNewConstMetric(m.failing, prometheus.GaugeValue, failing, s.TrustDomain.Name())
	}
}
