// Package stackdriver stands in for the sink of metrics of the same name. The development core sends metrics to nobody.
package stackdriver

import (
	"cloud.google.com/go/monitoring/apiv3"
	"github.com/armon/go-metrics"
)

// Config has no effect.
type Config struct {
	LabelExtractor                 func([]string, string) ([]string, []metrics.Label, error)
	Bucketer                       func([]string) []float64
	ProjectID, Location, Namespace string
	DebugLogs                      bool
}

// NewSink returns a sink that keeps nothing.
func NewSink(*monitoring.MetricClient, *Config) *metrics.BlackholeSink {
	return &metrics.BlackholeSink{}
}
