package auditsink_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/auditsink"
	"github.com/brevet-dev/brevet/internal/export"
)

// A file that is continued has one header and each entry once, whatever an interrupted run left at its end.
func TestInterruptedExportResumes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log.csv")
	var at auditsink.Position
	for _, id := range []string{"first", "second"} {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		sink, err := auditsink.NewFile(file, auditsink.Form{Format: export.CSV, Source: "acme.example/ledger"}, &at)
		if err != nil {
			t.Fatal(err)
		}
		if err := sink.Take(t.Context(), []export.Event{{ID: id}}); err != nil {
			t.Fatal(err)
		}
		if err := sink.Close(); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil || at.Size != int64(len(text)) {
			t.Fatalf("got size %d, %v, want %d", at.Size, err, len(text))
		}
		if err := os.WriteFile(path, append(text, "0,half a ro"...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	whole := string(text[:at.Size])
	if strings.Count(whole, "\n") != 3 || strings.Count(whole, "index,") != 1 || !strings.Contains(whole, "first") || !strings.Contains(whole, "second") {
		t.Errorf("got %s, want a header and two rows", whole)
	}
}

func TestReceiversNeedHTTPS(t *testing.T) {
	for target, ok := range map[string]bool{
		"https://siem.example/x": true, "http://127.0.0.1:8080/": true, "http://localhost/": true, "http://[::1]/": true,
		"http://siem.example/x": false, "http://127.0.0.1.siem.example/": false, "https:///x": false, "ftp://127.0.0.1/": false, "siem": false,
	} {
		if _, err := auditsink.NewPush(target, auditsink.Header{}, auditsink.Form{Format: export.NDJSON}); (err == nil) != ok {
			t.Errorf("%s: got %v", target, err)
		}
		if _, err := auditsink.NewOTLP(target, auditsink.Header{}, "log"); (err == nil) != ok {
			t.Errorf("%s, by OTLP: got %v", target, err)
		}
	}
}

// A secret header goes to the receiver that was named, and not to another host to which that one redirects.
func TestReceiversCannotRedirect(t *testing.T) {
	header := auditsink.Header{Name: "Api-Key", Value: "CANARY"}
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("another host got the header %q", r.Header.Get(header.Name))
	}))
	defer other.Close()
	named := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	}))
	defer named.Close()
	push, err := auditsink.NewPush(named.URL, header, auditsink.Form{Format: export.NDJSON})
	if err != nil {
		t.Fatal(err)
	}
	otlp, err := auditsink.NewOTLP(named.URL, header, "log")
	if err != nil {
		t.Fatal(err)
	}
	for _, sink := range []auditsink.Sink{push, otlp} {
		if err := sink.Take(t.Context(), []export.Event{{Body: "{}"}}); err == nil {
			t.Error("a redirect counts as accepted")
		}
	}
}
