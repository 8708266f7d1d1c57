package canary_test

import (
	"crypto/rand"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/trace"
)

// No secret that a broker makes or takes is in the traces of its work (I9), also none that it has delivered (I16): 0 hits, and the
// planted marker is found.
func TestCanaries(t *testing.T) {
	traces := &testkit.Buffer{}
	flush := export(t, traces)
	w := &world{secrets: map[string]string{}, gate: gate{tokens: map[string]string{}}}
	log.SetOutput(&w.printed)
	t.Cleanup(func() { log.SetOutput(os.Stderr) })
	logAll(t)
	watched := options
	watched.VaultVia = func(addr string) string { return w.gate.open(t, addr) }
	w.Stack = testkit.NewStack(t, watched)
	w.logVault(t)
	w.work(t)
	marker := rand.Text()
	w.plant(t, marker)
	flush()
	for of, secret := range w.secrets {
		if len(secret) < 16 {
			t.Fatalf("the %s is %d bytes: whatever it is, it is none", of, len(secret))
		}
	}
	control, hay := lookFor(map[string]string{"marker": marker}), lookFor(w.secrets)
	for place, files := range w.places(t, traces) {
		t.Run(place, func(t *testing.T) {
			there, found, size := map[needle]bool{}, map[needle]bool{}, 0
			for _, text := range files(t) {
				control.in(text, there)
				hay.in(text, found)
				size += len(text)
			}
			if got, want := len(there), len(spellings(marker)); got != want {
				t.Errorf("of what was put here %d spellings of %d are found: %v", got, want, there)
			}
			for n := range found {
				t.Errorf("the %s is here (%s)", n.of, n.spelling)
			}
			t.Logf("%d hits of %d secrets in %d KiB", len(found), len(w.secrets), size>>10)
		})
	}
}

// export sends traces to a receiver that keeps them, until the test ends.
func export(t *testing.T, to io.Writer) (flush func()) {
	t.Helper()
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(to, r.Body) }))
	t.Cleanup(receiver.Close)
	exporter, err := otlptracehttp.New(t.Context(), otlptracehttp.WithEndpointURL(receiver.URL))
	if err != nil {
		t.Fatal(err)
	}
	provider, before := trace.NewTracerProvider(trace.WithBatcher(exporter)), otel.GetTracerProvider()
	otel.SetTracerProvider(provider)
	t.Cleanup(func() { otel.SetTracerProvider(before) })
	return func() {
		if err := provider.Shutdown(t.Context()); err != nil {
			t.Errorf("sending traces: %v", err)
		}
	}
}

// logAll makes Postgres log all statements with their arguments.
func logAll(t *testing.T) {
	t.Helper()
	conn := testkit.Connect(t, testkit.Devstack(t).Postgres.AdminURL())
	for _, sql := range []string{`ALTER SYSTEM SET log_statement = 'all'`, `ALTER SYSTEM SET log_connections = on`, `SELECT pg_reload_conf()`} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
}

// plant puts the marker, in every spelling, in each place that is searched.
func (w *world) plant(t *testing.T, marker string) {
	t.Helper()
	text := written(marker)
	_, _ = io.WriteString(w.Log, text)
	_, _ = io.WriteString(&w.answers, text)
	_, _ = io.WriteString(&w.told, text)
	log.Print(text)
	appendTo(t, text)
	_, span := otel.Tracer("planted").Start(t.Context(), "planted")
	span.SetAttributes(attribute.String("planted", text))
	span.End()
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: "planted", ConstLabels: prometheus.Labels{"text": text}})
	if err := w.Config.Registry.Register(gauge); err != nil {
		t.Fatal(err)
	}
	admin := testkit.Connect(t, w.DB.AdminURL)
	for _, sql := range []string{
		`CREATE TABLE planted (text text)`, `CREATE INDEX ON planted (text)`, `INSERT INTO planted VALUES ('` + text + `')`, `CHECKPOINT`,
	} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	vault := w.Vault(t)
	if _, err := vault.Logical().WriteWithContext(t.Context(), "sys/config/auditing/request-headers/planted", map[string]any{"hmac": false}); err != nil {
		t.Fatal(err)
	}
	vault.AddHeader("planted", text)
	if _, err := vault.Logical().ReadWithContext(t.Context(), "sys/mounts"); err != nil {
		t.Fatal(err)
	}
}

// places are the places that are searched for secrets, each with a function that reads it.
func (w *world) places(t *testing.T, traces *testkit.Buffer) map[string]func(*testing.T) [][]byte {
	folder := testkit.Folder(t)
	said := func(b *testkit.Buffer, must string) func(*testing.T) [][]byte {
		return func(t *testing.T) [][]byte {
			if !strings.Contains(b.String(), must) {
				t.Errorf("there is no %q: nothing was kept", must)
			}
			return [][]byte{[]byte(b.String())}
		}
	}
	return map[string]func(*testing.T) [][]byte{
		"log of the broker":     said(w.Log, "call answered"),
		"answers with an error": said(&w.answers, "application/problem+json"),
		"webhooks":              said(&w.told, "gated.login"),
		"log of libraries":      said(&w.printed, "-"), // the planted text
		"traces":                said(traces, "POST /v1/tokens"),
		"metrics":               w.metrics,
		"files of Postgres":     tree(filepath.Join(folder, "postgres"), func(path string) bool { return !strings.Contains(path, "pg_wal") }),
		"write-ahead log":       unpaged(tree(filepath.Join(folder, "postgres"), func(path string) bool { return strings.Contains(path, "pg_wal") })),
		"log of Postgres":       tree(folder, func(path string) bool { return strings.HasSuffix(path, "postgres.log") }),
		"log of Vault":          tree(folder, func(path string) bool { return strings.HasSuffix(path, "vault.log") }),
		"audit log of Vault":    tree(w.VaultAccess().AuditFile, func(string) bool { return true }),
	}
}

func (w *world) metrics(t *testing.T) [][]byte {
	t.Helper()
	recorder := httptest.NewRecorder()
	w.Server.Metrics().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	text := recorder.Body.String()
	if !strings.Contains(text, "brevet_") {
		t.Errorf("got %d %.100s, want metrics", recorder.Code, text)
	}
	return [][]byte{[]byte(text)}
}

// unpaged returns the files of the write-ahead log without the page headers of Postgres (access/xlog_internal.h), which would
// split a record that continues on the next page.
func unpaged(files func(*testing.T) [][]byte) func(*testing.T) [][]byte {
	const page, short, long, isLong = 8192, 24, 40, 0x2
	return func(t *testing.T) [][]byte {
		t.Helper()
		var all [][]byte
		for _, file := range files(t) {
			text := make([]byte, 0, len(file))
			for p := range slices.Chunk(file, page) {
				head := short
				if len(p) > 2 && p[2]&isLong != 0 {
					head = long
				}
				text = append(text, p[min(head, len(p)):]...)
			}
			all = append(all, text)
		}
		return all
	}
}

// tree returns the selected files below a folder. It skips files that disappear while it reads.
func tree(root string, meant func(path string) bool) func(*testing.T) [][]byte {
	return func(t *testing.T) [][]byte {
		t.Helper()
		var all [][]byte
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || !meant(path) {
				return nil //nolint:nilerr // it is gone
			}
			if text, err := os.ReadFile(path); err == nil {
				all = append(all, text)
			}
			return nil
		})
		if err != nil {
			t.Errorf("reading %s: %v", root, err)
		}
		return all
	}
}
