package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/exaring/otelpgx"
	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"go.opentelemetry.io/otel/trace/noop"
)

func newLogger(cfg LogConfig, w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.Level)); err != nil {
		return nil, fmt.Errorf("log.level: %q is invalid: use debug, info, warn or error", cfg.Level)
	}
	options := &slog.HandlerOptions{Level: level}
	switch cfg.Format {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	default:
		return nil, fmt.Errorf("log.format: %q is invalid: use text or json", cfg.Format)
	}
}

// startTraces exports spans to an OTLP/HTTP endpoint, if one is configured. It propagates trace ids only. Baggage from
// callers is not propagated, because it could carry anything.
func startTraces(ctx context.Context, endpoint string) (shutdown func(), err error) {
	otel.SetTextMapPropagator(propagation.TraceContext{})
	if endpoint == "" {
		otel.SetTracerProvider(noop.NewTracerProvider())
		return func() {}, nil
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(endpoint))
	if err != nil {
		return nil, fmt.Errorf("traces_endpoint: %w", err)
	}
	provider := trace.NewTracerProvider(
		trace.WithBatcher(exporter),
		trace.WithResource(resource.NewSchemaless(semconv.ServiceName("brevet"), semconv.ServiceVersion(version()))),
	)
	otel.SetTracerProvider(provider)
	return func() {
		flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = provider.Shutdown(flush)
	}, nil
}

// queryTracer makes spans of queries by name, never with their arguments.
func queryTracer() pgx.QueryTracer {
	return otelpgx.NewTracer()
}
