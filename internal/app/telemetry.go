package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"go.opentelemetry.io/otel/trace/noop"
)

// NewLogger returns a logger that writes to w.
func NewLogger(cfg LogConfig, w io.Writer) (*slog.Logger, error) {
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

// openTraces exports spans to an OTLP/HTTP endpoint, if one is configured. It propagates trace ids only. Baggage from callers
// is not propagated, because it could carry anything.
func (s *service) openTraces(ctx context.Context) error {
	otel.SetTextMapPropagator(propagation.TraceContext{})
	if s.cfg.TracesEndpoint == "" {
		otel.SetTracerProvider(noop.NewTracerProvider())
		return nil
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(s.cfg.TracesEndpoint))
	if err != nil {
		return fmt.Errorf("traces_endpoint: %w", err)
	}
	provider := trace.NewTracerProvider(
		trace.WithBatcher(exporter),
		trace.WithResource(resource.NewSchemaless(semconv.ServiceName("brevet"), semconv.ServiceVersion(s.Version))),
	)
	otel.SetTracerProvider(provider)
	// The error would quote the collector's response.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) {
		s.Log.WarnContext(ctx, "traces not sent: check that the collector at traces_endpoint answers and accepts them")
	}))
	s.onClose(func() {
		flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = provider.Shutdown(flush)
	})
	return nil
}
