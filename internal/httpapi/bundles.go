package httpapi

import (
	"fmt"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/prometheus/client_golang/prometheus"
)

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
