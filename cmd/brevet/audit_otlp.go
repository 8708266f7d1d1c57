package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/brevet-dev/brevet/internal/export"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp"
	"go.opentelemetry.io/otel/log"
	sdk "go.opentelemetry.io/otel/sdk/log"
	"go.opentelemetry.io/otel/sdk/resource"
)

// otlp sends each entry as a log record (OTLP/HTTP).
type otlp struct {
	exporter *otlploghttp.Exporter
	provider *sdk.LoggerProvider
	records  *collected
}

// collected is a log processor that keeps records until take exports them, so that a batch is accepted or rejected as a
// whole.
type collected struct{ batch []sdk.Record }

func (c *collected) OnEmit(_ context.Context, r *sdk.Record) error {
	c.batch = append(c.batch, r.Clone())
	return nil
}
func (*collected) Enabled(context.Context, sdk.EnabledParameters) bool { return true }
func (*collected) Shutdown(context.Context) error                      { return nil }
func (*collected) ForceFlush(context.Context) error                    { return nil }

func newOTLP(endpoint, headerFile, source string) (sink, error) {
	header, err := readHeader(headerFile)
	if err != nil {
		return nil, err
	}
	options := []otlploghttp.Option{otlploghttp.WithEndpointURL(endpoint), otlploghttp.WithRetry(otlploghttp.RetryConfig{
		Enabled: true, InitialInterval: pollEvery, MaxInterval: 15 * pollEvery, MaxElapsedTime: pushPatience,
	})}
	if header[0] != "" {
		options = append(options, otlploghttp.WithHeaders(map[string]string{header[0]: header[1]}))
	}
	exporter, err := otlploghttp.New(context.Background(), options...)
	if err != nil {
		return nil, fmt.Errorf("--otlp: %w", err)
	}
	records := &collected{}
	named := resource.NewSchemaless(attribute.String("service.name", "brevet"), attribute.String("brevet.log", source))
	return &otlp{exporter, sdk.NewLoggerProvider(sdk.WithProcessor(records), sdk.WithResource(named)), records}, nil
}

func (o *otlp) take(ctx context.Context, batch []export.Event) error {
	o.records.batch = o.records.batch[:0]
	logger := o.provider.Logger("brevet")
	for _, e := range batch {
		logger.Emit(ctx, logRecord(e))
	}
	if err := o.exporter.Export(ctx, o.records.batch); err != nil {
		return fmt.Errorf("sending log records: %w", err)
	}
	return nil
}

// logRecord converts an entry to a log record. Its body is the entry. Its attributes hold the fields that people filter by.
func logRecord(e export.Event) log.Record {
	var r log.Record
	r.SetTimestamp(e.Time)
	r.SetEventName("brevet." + e.Kind)
	r.SetSeverity(log.SeverityInfo)
	r.SetBody(attribute.StringValue(e.Body))
	r.AddAttributes(attribute.String("brevet.index", strconv.FormatInt(e.Index, 10)))
	for _, a := range [][2]string{
		{"id", e.ID},
		{"spiffe_id", e.SPIFFEID},
		{"task", e.Task},
		{"scope", e.Scope},
		{"resource", e.Resource},
		{"decision", e.Decision},
		{"code", e.Code},
		{"status", e.Status},
		{"actor", e.Actor},
	} {
		if a[1] != "" {
			r.AddAttributes(attribute.String("brevet."+a[0], a[1]))
		}
	}
	return r
}

func (o *otlp) close() error { return o.exporter.Shutdown(context.Background()) }
