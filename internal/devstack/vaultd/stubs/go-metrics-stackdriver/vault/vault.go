// Package vault stands in for the names that Vault gives to metrics.
package vault

import "github.com/armon/go-metrics"

// Extractor extracts nothing.
func Extractor([]string, string) ([]string, []metrics.Label, error) { return nil, nil, nil }

// Bucketer knows no buckets.
func Bucketer([]string) []float64 { return nil }
