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

// registry creates metrics and registers them. err collects what failed.
type registry struct {
	to  prometheus.Registerer
	err error
}

func (r *registry) add(c prometheus.Collector) {
	if err := r.to.Register(c); err != nil {
		r.err = errors.Join(r.err, fmt.Errorf("registering metrics: %w", err))
	}
}

func (r *registry) counter(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	r.add(c)
	return c
}

func (r *registry) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	r.add(g)
	return g
}

// durations creates a histogram of durations in seconds, from a cached response to a store that hangs.
func (r *registry) durations(name, help string, labels ...string) *prometheus.HistogramVec {
	buckets := []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	r.add(h)
	return h
}

// metrics never uses a person, a SPIFFE ID, a task or a scope as a label: their number is not bounded, and the metrics port
// needs no login.
type metrics struct {
	duration                                                    *prometheus.HistogramVec
	inFlight                                                    prometheus.Gauge
	requests, decisions, refusals, ended, votes, broken, checks *prometheus.CounterVec
}

func newMetrics(to prometheus.Registerer) (*metrics, error) {
	reg := &registry{to: to}
	m := &metrics{
		requests: reg.counter("brevet_http_requests_total", "Answered calls, by route and status.", "route", "status"),
		duration: reg.durations("brevet_http_request_duration_seconds",
			"Time from the first byte of a call to its response, by route.", "route"),
		inFlight: reg.gauge("brevet_http_in_flight", "Calls in progress.").WithLabelValues(),
		decisions: reg.counter("brevet_decisions_total", "Decisions, by outcome and the scope's authority class.",
			"outcome", "authority"),
		refusals: reg.counter("brevet_problems_total", "Calls answered with a problem, by its code.", "code"),
		ended: reg.counter("brevet_ended_total", "Credentials on receipts of early ends, by cause and resulting status.",
			"cause", "status"),
		votes:  reg.counter("brevet_votes_total", "Votes, by verdict and approver group.", "verdict", "group"),
		broken: reg.counter("brevet_break_glass_total", "Break-glass votes and the issuances that they approved, by step.", "step"),
		checks: reg.counter("brevet_checks_total",
			"Calls that gateways checked, by result: allowed, gateway if the gateway itself was refused, or the code of the problem.",
			"outcome"),
	}
	for _, step := range []string{"vote", "issuance"} {
		m.broken.WithLabelValues(step) // so that the first is seen as an increase
	}
	return m, reg.err
}

// Gauges are metrics about the broker, the ledger and the witnesses.
type Gauges struct {
	unrevoked, size, room, full prometheus.Gauge
	cosigned                    *prometheus.GaugeVec   // witness
	failures                    *prometheus.CounterVec // witness, why
	now                         func() time.Time
	sealed                      atomic.Int64 // when the last checkpoint was last verified, in nanoseconds since 1970; zero if never
}

// NewGauges registers brevet_unrevoked, and the metrics of the ledger and witnesses.
func NewGauges(to prometheus.Registerer, now func() time.Time) (*Gauges, error) {
	reg := &registry{to: to}
	g := &Gauges{
		unrevoked: reg.gauge("brevet_unrevoked",
			"Overdue credentials that are not confirmed revoked, seen from the replica that runs the sweeper.").WithLabelValues(),
		size: reg.gauge("brevet_ledger_checkpoint_size", "Entries that the last checkpoint covers.").WithLabelValues(),
		room: reg.gauge("brevet_ledger_room", "Entries that fit into the existing partitions.").WithLabelValues(),
		full: reg.gauge("brevet_ledger_disk_full",
			"1 while the disk of Postgres is full, as far as this replica knows; it then issues nothing.").WithLabelValues(),
		cosigned: reg.gauge("brevet_witness_size",
			"Entries of the last checkpoint that a witness has cosigned, seen from the replica that asks it.", "witness"),
		failures: reg.counter("brevet_witness_failures_total",
			"Checkpoints that a witness did not cosign. The label why is history if it has cosigned another history: alert on that.",
			"witness", "why"),
		now: now,
	}
	reg.add(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "brevet_ledger_checkpoint_age_seconds",
		Help: "Time since this replica last saw a checkpoint that continues the one before and covers the ledger.",
	}, func() float64 {
		sealed := g.sealed.Load()
		if sealed == 0 {
			return math.Inf(1)
		}
		return now().Sub(time.Unix(0, sealed)).Seconds()
	}))
	return g, reg.err
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

// DiskFull sets whether the disk of Postgres is full.
func (g *Gauges) DiskFull(full bool) {
	g.full.Set(0)
	if full {
		g.full.Set(1)
	}
}

// Cosigned sets the size of the checkpoint that a witness has cosigned.
func (g *Gauges) Cosigned(witness string, size int64) {
	g.cosigned.WithLabelValues(witness).Set(float64(size))
}

// NotCosigned counts a checkpoint that a witness has not cosigned.
func (g *Gauges) NotCosigned(witness, why string) { g.failures.WithLabelValues(witness, why).Inc() }

// MeterCertificate registers brevet_certificate_expiry_timestamp_seconds, so that alerts fire before clients can no longer
// connect.
func MeterCertificate(to prometheus.Registerer, expires func() time.Time) error {
	reg := &registry{to: to}
	reg.add(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "brevet_certificate_expiry_timestamp_seconds", Help: "When the server's certificate expires, in seconds since 1970.",
	}, func() float64 { return float64(expires().Unix()) }))
	return reg.err
}

// bundleMeter reads the status of the sources at each scrape, so that it never shows an old state.
type bundleMeter struct {
	status  func() []attest.BundleStatus
	failing *prometheus.Desc
	now     func() time.Time
}

// MeterBundles registers brevet_bundle_failing_seconds. Its labels are the configured trust domains.
func MeterBundles(to prometheus.Registerer, status func() []attest.BundleStatus, now func() time.Time) error {
	reg := &registry{to: to}
	reg.add(&bundleMeter{status: status, now: now, failing: prometheus.NewDesc("brevet_bundle_failing_seconds",
		"Time since the source of a trust domain's bundle began to fail, 0 while it works. The last bundle stays in use for a day.",
		[]string{"trust_domain"}, nil)})
	return reg.err
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

// Stopwatch measures the calls that the broker makes to its stores.
type Stopwatch struct {
	now     func() time.Time
	seconds *prometheus.HistogramVec
}

// NewStopwatch registers the metric brevet_store_duration_seconds, by store, operation and outcome.
func NewStopwatch(to prometheus.Registerer, now func() time.Time) (*Stopwatch, error) {
	reg := &registry{to: to}
	seconds := reg.durations("brevet_store_duration_seconds",
		"Duration of operations of the ledger and the mint, by store, operation and outcome.", "store", "operation", "outcome")
	return &Stopwatch{now: now, seconds: seconds}, reg.err
}

// observe is deferred by the measured call, and reads its error then.
func (s *Stopwatch) observe(store, operation string, start time.Time, err *error) {
	outcome := "ok"
	if *err != nil {
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
	l.watch.observe("ledger", "begin", start, &failure)
	return earlier, err
}

func (l measuredLedger) RecordOutcome(ctx context.Context, out broker.Outcome) (err error) {
	defer l.watch.observe("ledger", "settle", l.watch.now(), &err)
	return l.Ledger.RecordOutcome(ctx, out)
}

func (l measuredLedger) Refuse(ctx context.Context, ref broker.Refusal) (err error) {
	defer l.watch.observe("ledger", "refuse", l.watch.now(), &err)
	return l.Ledger.Refuse(ctx, ref)
}

func (l measuredLedger) List(ctx context.Context, q broker.Query, reach broker.Reach) (_ broker.Page, err error) {
	defer l.watch.observe("ledger", "list", l.watch.now(), &err)
	return l.Ledger.List(ctx, q, reach)
}

type measuredMinter struct {
	broker.Minter
	watch *Stopwatch
}

func (m measuredMinter) Mint(ctx context.Context, order *broker.Order) (_ broker.Credential, err error) {
	defer m.watch.observe("mint", "mint", m.watch.now(), &err)
	return m.Minter.Mint(ctx, order)
}

func (m measuredMinter) Renew(ctx context.Context, minted broker.Minted) (err error) {
	defer m.watch.observe("mint", "renew", m.watch.now(), &err)
	return m.Minter.Renew(ctx, minted)
}

func (m measuredMinter) Revoke(ctx context.Context, h broker.VaultLease) (err error) {
	defer m.watch.observe("mint", "revoke", m.watch.now(), &err)
	return m.Minter.Revoke(ctx, h)
}

type measuredLiveCredentials struct {
	broker.LiveCredentials
	watch *Stopwatch
}

func (e measuredLiveCredentials) Announce(ctx context.Context, cmd broker.Command) (err error) {
	defer e.watch.observe("ledger", "announce", e.watch.now(), &err)
	return e.LiveCredentials.Announce(ctx, cmd)
}

func (e measuredLiveCredentials) Live(
	ctx context.Context, sel broker.Selector, reach broker.Reach, page broker.LivePage,
) (_ []broker.LiveCredential, err error) {
	defer e.watch.observe("ledger", "live", e.watch.now(), &err)
	return e.LiveCredentials.Live(ctx, sel, reach, page)
}
