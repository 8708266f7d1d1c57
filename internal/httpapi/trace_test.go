package httpapi_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace/noop"
)

// baggageWatch records the baggage with which spans are started.
type baggageWatch struct {
	trace.SpanProcessor
	seen *[]string
}

func (b baggageWatch) OnStart(ctx context.Context, span trace.ReadWriteSpan) {
	if text := baggage.FromContext(ctx).String(); text != "" {
		*b.seen = append(*b.seen, text)
	}
	b.SpanProcessor.OnStart(ctx, span)
}

// TestUntraced checks that without a tracer provider, calls have no span and the same response.
func TestUntraced(t *testing.T) {
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(noop.NewTracerProvider())
	t.Cleanup(func() { otel.SetTracerProvider(before) })
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	if got := (wire{}).send(t, s); got.status != http.StatusCreated || got.header.Get("Request-Id") == "" {
		t.Errorf("got %d and %v, want a token and the call's id", got.status, got.header)
	}
}

// A span is named after its route. The caller's trace is a link and not the parent, its baggage is dropped, and the attributes
// contain nothing of the call.
func TestTraces(t *testing.T) {
	exporter, before := tracetest.NewInMemoryExporter(), otel.GetTracerProvider()
	var seen []string
	provider := trace.NewTracerProvider(trace.WithSpanProcessor(baggageWatch{trace.NewSimpleSpanProcessor(exporter), &seen}))
	otel.SetTracerProvider(provider)
	t.Cleanup(func() { otel.SetTracerProvider(before) })
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	const theirs = "0af7651916cd43dd8448eb211c80319c"
	wire{headers: []string{"Traceparent: 00-" + theirs + "-b7ad6b7169203331-01", "Baggage: user=" + canary, "X-Forwarded-For: 198.51.100.7"}}.send(t, s)
	wire{method: "GET", target: "/v1/issuances?spiffe_id=" + twin}.send(t, s)
	wire{method: "GET", target: "/v1/" + canary + "?" + canary}.send(t, s)
	if err := provider.ForceFlush(t.Context()); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, span := range exporter.GetSpans() {
		if !strings.Contains(span.InstrumentationScope.Name, "otelhttp") {
			continue
		}
		names = append(names, span.Name)
		if span.SpanContext.TraceID().String() == theirs || span.Parent.IsValid() {
			t.Errorf("%s continues the caller's trace", span.Name)
		}
		attributes := fmt.Sprint(span.Attributes)
		for _, never := range []string{"Bearer", "eyJ", "agents/ab", canary, "198.51.100.7"} {
			if strings.Contains(attributes, never) {
				t.Errorf("%s: %s is in %s", span.Name, never, attributes)
			}
		}
	}
	if got := fmt.Sprint(names); got != "[POST /v1/tokens GET /v1/issuances GET]" {
		t.Errorf("got the spans %s", got)
	}
	if len(seen) != 0 {
		t.Errorf("got the baggage %v, want it dropped", seen)
	}
}
