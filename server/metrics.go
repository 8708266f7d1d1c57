package server

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics never carries a SPIFFE ID, a task or a scope as label: there is no end of those. People are few, and how much
// is asked of each of them has to be seen.
type metrics struct {
	requests  *prometheus.CounterVec   // route, status
	duration  *prometheus.HistogramVec // route
	inFlight  prometheus.Gauge
	decisions *prometheus.CounterVec // outcome, authority
	refusals  *prometheus.CounterVec // code
	ended     *prometheus.CounterVec // cause, status
	votes     *prometheus.CounterVec // verdict, group, approver
	broken    *prometheus.CounterVec // step
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "brevet_http_requests_total", Help: "Calls answered, by route and status.",
		}, []string{"route", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "brevet_http_request_duration_seconds", Help: "Time from the first byte of a call to its answer, by route.",
			Buckets: durationBuckets,
		}, []string{"route"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "brevet_http_in_flight", Help: "Calls being answered.",
		}),
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "brevet_decisions_total", Help: "Decisions, by outcome and the scope's authority class.",
		}, []string{"outcome", "authority"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "brevet_problems_total", Help: "Calls answered with a problem, by its code.",
		}, []string{"code"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "brevet_ended_total", Help: "Credentials on receipts of early ends, by cause and the status they were left in.",
		}, []string{"cause", "status"}),
		votes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "brevet_votes_total", Help: "Votes, by verdict, by the group that was asked and by the voter's subject at the provider.",
		}, []string{"verdict", "group", "approver"}),
		broken: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "brevet_break_glass_total", Help: "Votes in place of the group that was asked, and what was issued on them, by which of the two it is.",
		}, []string{"step"}),
	}
	for _, step := range []string{"vote", "issuance"} {
		m.broken.WithLabelValues(step) // so that the first is seen as an increase
	}
	for _, c := range []prometheus.Collector{m.requests, m.duration, m.inFlight, m.decisions, m.refusals, m.ended, m.votes, m.broken} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("registering metrics: %w", err)
		}
	}
	return m, nil
}

// Gauges shows what only the broker knows.
type Gauges struct{ unrevoked prometheus.Gauge }

// NewGauges registers the metric brevet_unrevoked.
func NewGauges(reg prometheus.Registerer) (*Gauges, error) {
	g := &Gauges{prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "brevet_unrevoked", Help: "Credentials that should be dead and are not known to be, as the replica that sweeps sees it.",
	})}
	if err := reg.Register(g.unrevoked); err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	return g, nil
}

// Unrevoked is for broker.Config.OnUnrevoked.
func (g *Gauges) Unrevoked(n int) { g.unrevoked.Set(float64(n)) }

// durationBuckets are in seconds, from a cached answer to a store that hangs.
var durationBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
