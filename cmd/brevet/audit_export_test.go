package main

import (
	"archive/zip"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	collector "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	"google.golang.org/protobuf/proto"
)

// TestAuditExportInEveryFormat exports the record in parts and in every format, and proves one of its entries.
func TestAuditExportInEveryFormat(t *testing.T) {
	t.Parallel()
	s := startDev(t, t.TempDir()+"/state")
	id := s.issue(t, "t-export")
	t.Run("file", s.exportsToFile)
	t.Run("forms", s.exportsForms)
	t.Run("push", s.pushes)
	t.Run("otlp", s.pushesLogs)
	t.Run("receipt", func(t *testing.T) { s.proves(t, id) })
	brevet(t, s.env, "audit", "export").want(t, 1, "Permission denied")
	s.stop(t, syscall.SIGTERM)
}

// indexes checks that no index of an export is missing or repeated, and returns the next index.
func indexes(t *testing.T, lines string, from int) int {
	t.Helper()
	n := from
	for line := range strings.Lines(lines) {
		if got := object(t, line)["index"]; got != float64(n) {
			t.Fatalf("got index %v, want %d", got, n)
		}
		n++
	}
	return n
}

func (s *session) exportsToFile(t *testing.T) {
	dir := t.TempDir()
	path, state := filepath.Join(dir, "log.ndjson"), filepath.Join(dir, "state")
	export := func() result { return brevet(t, s.as("auditor"), "audit", "export", "--to", path, "--state", state) }
	export().want(t, 0, "; the next index is")
	before := indexes(t, read(t, path), 0)
	// A run that died after it had written a batch, and before it had stored its position, leaves half a batch.
	broken, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = broken.WriteString(`{"index":` + strconv.Itoa(before) + `,"ent`)
		err = firstError(err, broken.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	s.issue(t, "t-export")
	export().want(t, 0, "exported 1 entry")
	if after := indexes(t, read(t, path), 0); after != before+1 {
		t.Errorf("got %d entries, want %d", after, before+1)
	}
	brevet(t, s.as("auditor"), "audit", "export", "--to", path).want(t, 1, "already exists")
	brevet(t, s.as("auditor"), "audit", "export", "--to", path, "--state", path).want(t, 1, "is not the state of an export")

	table, state := filepath.Join(dir, "log.csv"), filepath.Join(dir, "state-csv")
	for range 2 {
		s.issue(t, "t-export")
		brevet(t, s.as("auditor"), "audit", "export", "--format", "csv", "--to", table, "--state", state).want(t, 0)
	}
	rows, err := csv.NewReader(strings.NewReader(read(t, table))).ReadAll()
	if err != nil || rows[0][0] != "index" {
		t.Fatalf("got %v, %v", rows, err)
	}
	for i, row := range rows[1:] {
		if row[0] != strconv.Itoa(i) {
			t.Errorf("got row %v at place %d", row, i)
		}
	}
	s.refusesOtherColumns(t, dir)
}

// refusesOtherColumns tries to continue a table that an earlier version began.
func (s *session) refusesOtherColumns(t *testing.T, dir string) {
	t.Helper()
	table, state := filepath.Join(dir, "old.csv"), filepath.Join(dir, "state-old")
	old := "index,time\n0,2026-01-01T00:00:00Z\n"
	for path, text := range map[string]string{table: old, state: `{"from":1,"size":` + strconv.Itoa(len(old)) + `}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	brevet(t, s.as("auditor"), "audit", "export", "--format", "csv", "--to", table, "--state", state).want(t, 1, "the file has the columns of another version")
	if got := read(t, table); got != old {
		t.Errorf("got %q, want the file as it was", got)
	}
}

func firstError(all ...error) error {
	for _, err := range all {
		if err != nil {
			return err
		}
	}
	return nil
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func (s *session) exportsForms(t *testing.T) {
	all := indexes(t, brevet(t, s.as("auditor"), "audit", "export").out, 0)
	if got := indexes(t, brevet(t, s.as("auditor"), "audit", "export", "--from", "1").out, 1); got != all {
		t.Errorf("got entries up to %d, want %d", got, all)
	}
	for _, form := range []string{"cloudevents", "ocsf"} {
		got := brevet(t, s.as("auditor"), "audit", "export", "--format", form)
		got.want(t, 0)
		if n := strings.Count(got.out, "\n"); n != all || !strings.Contains(got.out, "brevet.example/ledger") && !strings.Contains(got.out, "acme.example/ledger") {
			t.Errorf("%s: got %d lines, want %d, of the log by its name", form, n, all)
		}
	}
	path := filepath.Join(t.TempDir(), "log.parquet")
	brevet(t, s.as("auditor"), "audit", "export", "--format", "parquet", "--to", path).want(t, 0)
	text := read(t, path)
	file, err := parquet.OpenFile(strings.NewReader(text), int64(len(text)))
	if err != nil || file.NumRows() != int64(all) {
		t.Errorf("got %v, %v; want %d rows", file, err, all)
	}
}

// receiver keeps what it is sent. It can be unavailable.
type receiver struct {
	sync.Mutex
	status []int // of the next responses; 200 after that
	bodies [][]byte
	header http.Header
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.Lock()
	defer r.Unlock()
	body, _ := io.ReadAll(req.Body)
	if len(r.status) > 0 {
		w.WriteHeader(r.status[0])
		r.status = r.status[1:]
		return
	}
	r.bodies, r.header = append(r.bodies, body), req.Header
}

// answers sets the status codes of the next responses.
func (r *receiver) answers(status ...int) {
	r.Lock()
	defer r.Unlock()
	r.status = status
}

// received returns the bodies that arrived, and the header of the last one.
func (r *receiver) received() ([][]byte, http.Header) {
	r.Lock()
	defer r.Unlock()
	return r.bodies, r.header
}

func (s *session) pushes(t *testing.T) {
	to := &receiver{status: []int{503, 429}}
	receiving := httptest.NewServer(to)
	t.Cleanup(receiving.Close)
	header := filepath.Join(t.TempDir(), "header")
	if err := os.WriteFile(header, []byte("Authorization: Bearer sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(t.TempDir(), "state")
	push := []string{"audit", "export", "--format", "cloudevents", "--push", receiving.URL, "--header-file", header, "--state", state}
	brevet(t, s.as("auditor"), push...).want(t, 0, "exported ")
	bodies, sent := to.received()
	var batch []map[string]any
	if len(bodies) != 1 || json.Unmarshal(bodies[0], &batch) != nil || len(batch) < 2 {
		t.Fatalf("got the batches %s, want one of several events", bodies)
	}
	if sent.Get("Content-Type") != "application/cloudevents-batch+json" || sent.Get("Authorization") != "Bearer sesame" {
		t.Errorf("got %v", sent)
	}
	s.issue(t, "t-export")
	to.answers(400)
	brevet(t, s.as("auditor"), push...).want(t, 1, "the receiver rejected the entries: status 400")
	brevet(t, s.as("auditor"), push...).want(t, 0, "exported 1 entry")
	brevet(t, s.as("auditor"), "audit", "export", "--push", "http://siem.example/x").want(t, 1, "is not an https URL")
}

func (s *session) pushesLogs(t *testing.T) {
	to := &receiver{status: []int{503}}
	receiving := httptest.NewServer(to)
	t.Cleanup(receiving.Close)
	got := brevet(t, s.as("auditor"), "audit", "export", "--otlp", receiving.URL+"/v1/logs", "--from", "1")
	got.want(t, 0)
	records := 0
	bodies, _ := to.received()
	for _, body := range bodies {
		var sent collector.ExportLogsServiceRequest
		if err := proto.Unmarshal(body, &sent); err != nil {
			t.Fatal(err)
		}
		for _, r := range sent.GetResourceLogs() {
			for _, scope := range r.GetScopeLogs() {
				for _, record := range scope.GetLogRecords() {
					if !bytes.HasPrefix([]byte(record.GetBody().GetStringValue()), []byte(`{"`)) || time.Unix(0, int64(record.GetTimeUnixNano())).IsZero() {
						t.Errorf("got the record %v", record)
					}
					records++
				}
			}
		}
	}
	if want := indexes(t, brevet(t, s.as("auditor"), "audit", "export", "--from", "1").out, 1) - 1; records != want {
		t.Errorf("got %d records, want %d", records, want)
	}
}

// proves prints the proof of one issuance after a checkpoint covers it.
func (s *session) proves(t *testing.T, id string) {
	brevet(t, s.as("auditor"), "audit", "checkpoint").want(t, 0, "/ledger\n")
	brevet(t, s.as("auditor"), "audit", "keys").want(t, 0, "/ledger+", "compare these")
	receipt := object(t, brevet(t, s.as("auditor"), "audit", "receipt", id, "-o", "json").out)
	if receipt["issuance"] != id {
		t.Errorf("got %v", receipt)
	}
	brevet(t, s.env, "audit", "receipt", id).want(t, 1, "Permission denied")

	path := filepath.Join(t.TempDir(), "evidence.zip")
	collect := []string{"audit", "evidence", "t-export", "--spiffe-id", researcher, "--to", path}
	brevet(t, s.as("auditor"), collect...).want(t, 0, "wrote the evidence to")
	brevet(t, s.as("auditor"), collect...).want(t, 1, "file exists")
	packed, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = packed.Close() })
	dir := t.TempDir()
	if err := os.CopyFS(dir, packed); err != nil {
		t.Fatal(err)
	}
	check := []string{"audit", "verify", "--receipt", filepath.Join(dir, "receipt.json"), "--key-file", filepath.Join(dir, "keys.txt")}
	brevet(t, nil, check...).want(t, 0, "Verified: ", "t-export", "issuance.intent")
	brevet(t, nil, check[:4]...).want(t, 2, "--receipt: requires --key")
	forged := strings.Replace(read(t, check[3]), "acme/api", "acme/apx", 1)
	if err := os.WriteFile(check[3], []byte(forged), 0o600); err != nil {
		t.Fatal(err)
	}
	brevet(t, nil, check...).want(t, 1, "the receipt is not valid")
	var names []string
	for _, f := range packed.File {
		names = append(names, f.Name)
	}
	if got := strings.Join(names, " "); !strings.HasPrefix(got, "README.txt receipt.json keys.txt issuances.ndjson catalogues/sha256-") {
		t.Errorf("got the files %s", got)
	}
}
