package auditsink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/brevet-dev/brevet/internal/export"
	"github.com/brevet-dev/brevet/internal/quiet"
	"github.com/cenkalti/backoff/v5"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp"
	"go.opentelemetry.io/otel/log"
	sdk "go.opentelemetry.io/otel/sdk/log"
	"go.opentelemetry.io/otel/sdk/resource"
)

// Header is an HTTP header that is sent with each request, if it has a name. Its value may be a secret.
type Header struct{ Name, Value string }

// push POSTs each batch.
type push struct {
	url    string
	header Header
	form   Form
	client *http.Client
}

// errRejected means that the receiver rejected a batch and that a retry would not help.
var errRejected = errors.New("the receiver rejected the entries")

// NewPush returns a sink that POSTs each batch to a URL, and retries for five minutes until the receiver accepts the batch.
// Parquet has no such form.
func NewPush(target string, header Header, form Form) (Sink, error) {
	if err := checkURL(target); err != nil {
		return nil, err
	}
	if form.Format == export.Parquet {
		return nil, errors.New("a receiver takes lines, and a Parquet file has none: choose another format")
	}
	return &push{target, header, form, newClient()}, nil
}

// checkURL returns an error unless entries and a secret header may be sent to a URL: over TLS, or within this machine.
func checkURL(target string) error {
	u, err := url.Parse(target)
	if err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || !loopback(u.Hostname())) {
		return fmt.Errorf("%q is not an https URL", target)
	}
	return nil
}

// newClient returns a client that follows no redirect, because Go would send the header to the other host too.
func newClient() *http.Client {
	return &http.Client{
		Transport: quiet.NewUsual(), Timeout: 30 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func loopback(host string) bool { return host == "127.0.0.1" || host == "localhost" || host == "::1" }

func (p *push) Take(ctx context.Context, batch []export.Event) error {
	var text bytes.Buffer
	lines, err := NewStream(&text, p.form)
	if err == nil {
		err = lines.Take(ctx, batch)
	}
	if err != nil {
		return err
	}
	body, mediaType := text.Bytes(), "application/x-ndjson"
	switch p.form.Format {
	case export.CSV:
		mediaType = "text/csv; charset=utf-8"
	case export.CloudEvents: // as a JSON array (JSON Event Format 1.0, section 4)
		joined := bytes.ReplaceAll(bytes.TrimSuffix(body, []byte("\n")), []byte("\n"), []byte(",\n"))
		body, mediaType = append(append([]byte("["), joined...), ']'), "application/cloudevents-batch+json"
	case export.NDJSON, export.OCSF, export.Parquet:
	}
	pause := backoff.NewExponentialBackOff()
	pause.MaxInterval = maxPause
	_, err = backoff.Retry(ctx, func() (struct{}, error) { return struct{}{}, p.post(ctx, mediaType, body) },
		backoff.WithBackOff(pause), backoff.WithMaxElapsedTime(patience))
	return err
}

func (p *push) post(ctx context.Context, mediaType string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(body))
	if err != nil {
		return backoff.Permanent(err)
	}
	req.Header.Set("Content-Type", mediaType)
	if p.header.Name != "" {
		req.Header.Set(p.header.Name, p.header.Value)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return fmt.Errorf("pushing entries: %w", err)
	}
	_ = resp.Body.Close()
	switch code := resp.StatusCode; {
	case code/100 == 2:
		return nil
	case code >= 500 || code == http.StatusTooManyRequests || code == http.StatusRequestTimeout:
		return fmt.Errorf("pushing entries: status %d", code)
	default:
		return backoff.Permanent(fmt.Errorf("%w: status %d", errRejected, code))
	}
}

func (p *push) Close() error { return nil }

// otlp sends each entry as a log record.
type otlp struct {
	exporter *otlploghttp.Exporter
	provider *sdk.LoggerProvider
	records  *collected
}

// collected is a log processor that keeps records until Take exports them, so that a batch is accepted or rejected as a
// whole.
type collected struct{ batch []sdk.Record }

func (c *collected) OnEmit(_ context.Context, r *sdk.Record) error {
	c.batch = append(c.batch, r.Clone())
	return nil
}
func (*collected) Enabled(context.Context, sdk.EnabledParameters) bool { return true }
func (*collected) Shutdown(context.Context) error                      { return nil }
func (*collected) ForceFlush(context.Context) error                    { return nil }

// NewOTLP returns a sink that sends each entry as a log record (OTLP/HTTP). source names the log.
func NewOTLP(endpoint string, header Header, source string) (Sink, error) {
	if err := checkURL(endpoint); err != nil {
		return nil, err
	}
	options := []otlploghttp.Option{otlploghttp.WithEndpointURL(endpoint), otlploghttp.WithHTTPClient(newClient()), otlploghttp.WithRetry(otlploghttp.RetryConfig{
		Enabled: true, InitialInterval: time.Second, MaxInterval: maxPause, MaxElapsedTime: patience,
	})}
	if header.Name != "" {
		options = append(options, otlploghttp.WithHeaders(map[string]string{header.Name: header.Value}))
	}
	exporter, err := otlploghttp.New(context.Background(), options...)
	if err != nil {
		return nil, err
	}
	records := &collected{}
	named := resource.NewSchemaless(attribute.String("service.name", "brevet"), attribute.String("brevet.log", source))
	return &otlp{exporter, sdk.NewLoggerProvider(sdk.WithProcessor(records), sdk.WithResource(named)), records}, nil
}

func (o *otlp) Take(ctx context.Context, batch []export.Event) error {
	o.records.batch = o.records.batch[:0]
	logger := o.provider.Logger("brevet")
	for _, e := range batch {
		var r log.Record
		r.SetTimestamp(e.Time)
		r.SetEventName("brevet." + e.Kind)
		r.SetSeverity(log.SeverityInfo)
		r.SetBody(attribute.StringValue(e.Body))
		r.AddAttributes(attribute.String("brevet.index", strconv.FormatInt(e.Index, 10)))
		for _, a := range [][2]string{ // what people filter by
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
		logger.Emit(ctx, r)
	}
	if err := o.exporter.Export(ctx, o.records.batch); err != nil {
		return fmt.Errorf("sending log records: %w", err)
	}
	return nil
}

func (o *otlp) Close() error { return o.exporter.Shutdown(context.Background()) }
