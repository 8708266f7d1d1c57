package server

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics never carries a SPIFFE ID, a task or a scope as label: there is no end of those.
type metrics struct {
	requests  *prometheus.CounterVec   // route, status
	duration  *prometheus.HistogramVec // route
	inFlight  prometheus.Gauge
	decisions *prometheus.CounterVec // outcome, authority
	refusals  *prometheus.CounterVec // code
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
	}
	for _, c := range []prometheus.Collector{m.requests, m.duration, m.inFlight, m.decisions, m.refusals} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("registering metrics: %w", err)
		}
	}
	return m, nil
}

// durationBuckets are in seconds, from a cached answer to a store that hangs.
var durationBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
