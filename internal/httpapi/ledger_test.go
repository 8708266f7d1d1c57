package httpapi_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/httpapi"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// signedUpTo returns a checkpoint of at least size entries, as an auditor gets it, and the keys that verify it.
func signedUpTo(t *testing.T, s *testkit.Stack, size int64) (audit.Checkpoint, note.Verifiers) {
	t.Helper()
	c := s.Client(t, auditor)
	keys, err := c.LogKeys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var all []note.Verifier
	for _, key := range keys {
		v, err := note.NewVerifier(key)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
	}
	for began := time.Now(); ; {
		signed, err := c.Checkpoint(t.Context())
		if err == nil {
			got, err := audit.OpenCheckpoint([]byte(signed), testkit.LogName, note.VerifierList(all...))
			if err != nil {
				t.Fatal(err)
			}
			if got.N >= size {
				return got, note.VerifierList(all...)
			}
		}
		if time.Since(began) > patience {
			t.Fatalf("waited %s for a checkpoint of %d entries: %v", patience, size, err)
		}
	}
}

// proofs calls path as the auditor, and decodes the response.
func proofs[T any](t *testing.T, s *testkit.Stack, path string) T {
	t.Helper()
	got := wire{method: "GET", target: path, auth: "none", svid: s.X509(t, auditor)}.send(t, s)
	var read T
	if err := json.Unmarshal([]byte(got.text), &read); got.status != 200 || err != nil {
		t.Fatalf("%s: got %d %s", path, got.status, got.text)
	}
	return read
}

func hashes(t *testing.T, texts []openapi.Hash) []tlog.Hash {
	t.Helper()
	var all []tlog.Hash
	for _, text := range texts {
		h, err := tlog.ParseHash(text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, h)
	}
	return all
}

func TestAuditorVerifiesTheLog(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue, Auditors: []string{auditor}})
	issue(t, s, agent, 3)
	early, _ := signedUpTo(t, s, 3)
	ids := issue(t, s, agent, 4)
	late, keys := signedUpTo(t, s, 7)

	growth := proofs[openapi.ConsistencyProof](t, s, fmt.Sprintf("/v1/ledger/proof/consistency?from=%d&to=%d", early.N, late.N))
	if err := tlog.CheckTree(hashes(t, growth.Hashes), late.N, late.Hash, early.N, early.Hash); err != nil {
		t.Errorf("the log of %d entries is not the beginning of that of %d: %v", early.N, late.N, err)
	}
	for index := range late.N {
		p := proofs[openapi.InclusionProof](t, s, fmt.Sprintf("/v1/ledger/proof/inclusion?index=%d&size=%d", index, late.N))
		if err := tlog.CheckRecord(hashes(t, p.Hashes), late.N, late.Hash, index, hashes(t, []openapi.Hash{p.LeafHash})[0]); err != nil {
			t.Errorf("entry %d is not in the log: %v", index, err)
		}
	}
	tile := wire{method: "GET", target: fmt.Sprintf("/v1/ledger/tiles/0/0?width=%d", late.N), auth: "none", svid: s.X509(t, auditor)}.send(t, s)
	if tile.status != 200 || len(tile.text) != int(late.N)*tlog.HashSize {
		t.Errorf("got %d with %d bytes of the tile, want %d hashes", tile.status, len(tile.text), late.N)
	}

	got, err := s.Client(t, auditor).LogReceipt(t.Context(), ids[0])
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	var receipt audit.Receipt
	if err := json.Unmarshal(text, &receipt); err != nil {
		t.Fatal(err)
	}
	if c, err := receipt.Verify(keys); err != nil || c.N < late.N || !strings.Contains(receipt.Entries[0].Body, ids[0]) {
		t.Errorf("got %+v, %v from the receipt of %s", c, err, ids[0])
	}
	whole := proofs[audit.Receipt](t, s, "/v1/tasks/"+read.Task+"/receipt?spiffe_id="+agent)
	if _, err := whole.Verify(keys); err != nil || len(whole.Entries) != 7 {
		t.Errorf("got a receipt of %d entries of the task, %v; want 7", len(whole.Entries), err)
	}
	whole.Task = "another"
	if _, err := whole.Verify(keys); !errors.Is(err, audit.ErrReceipt) {
		t.Errorf("got %v from a receipt of another task, want %v", err, audit.ErrReceipt)
	}
	receipt.Entries[0].Body = strings.Replace(receipt.Entries[0].Body, `"task"`, `"tusk"`, 1)
	if _, err := receipt.Verify(keys); !errors.Is(err, audit.ErrReceipt) {
		t.Errorf("got %v from a receipt that was changed, want %v", err, audit.ErrReceipt)
	}
}

func TestACheckpointComesWithItsCosignatures(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue, Auditors: []string{auditor}})
	issue(t, s, agent, 1)
	first, keys := signedUpTo(t, s, 1)
	l := s.DB.Ledger(t)
	line := "— witness.example/w " + strings.Repeat("A", 102) + "==\n"
	if err := l.Cosign(t.Context(), "w", first.N, line); err != nil {
		t.Fatal(err)
	}
	issue(t, s, agent, 1)
	if last, _ := signedUpTo(t, s, first.N+1); last.N <= first.N {
		t.Errorf("got the checkpoint %d after %d, want the last one, whoever has cosigned it", last.N, first.N)
	}
	got, err := s.Client(t, auditor).CosignedCheckpoint(t.Context(), 1)
	if err != nil || !strings.HasSuffix(got, line) {
		t.Fatalf("got %q, %v, want a checkpoint with %q", got, err, line)
	}
	if c, err := audit.OpenCheckpoint([]byte(got), testkit.LogName, keys); err != nil || c != first {
		t.Errorf("got %+v, %v, want %+v", c, err, first)
	}
}

// The metrics of checkpoints and witnesses show the reported values.
func TestMetricsOfCheckpoints(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	registry := prometheus.NewRegistry()
	gauges, err := httpapi.NewGauges(registry, func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	const never = "brevet_ledger_checkpoint_age_seconds +Inf"
	if text := exposed(t, registry); !strings.Contains(text, never) {
		t.Errorf("%q is missing in %s", never, text)
	}
	gauges.Sealed(7)
	gauges.Room(4000)
	gauges.DiskFull(true)
	gauges.Cosigned("w", 5)
	gauges.NotCosigned("w", "history")
	now = now.Add(3 * time.Second)
	text := exposed(t, registry)
	for _, want := range []string{
		"brevet_ledger_room 4000", "brevet_ledger_disk_full 1", "brevet_ledger_checkpoint_size 7", "brevet_ledger_checkpoint_age_seconds 3", `brevet_witness_size{witness="w"} 5`,
		`brevet_witness_failures_total{why="history",witness="w"} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("%q is missing in %s", want, text)
		}
	}
}

func exposed(t *testing.T, registry *prometheus.Registry) string {
	t.Helper()
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
	return w.Body.String()
}

func TestOnlyAuditorsReadTheLog(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue, Auditors: []string{auditor}})
	mine, others := issue(t, s, agent, 1), issue(t, s, foreign, 1)
	signedUpTo(t, s, 2)
	for _, path := range []string{
		"/v1/ledger/checkpoint", "/v1/ledger/keys", "/v1/ledger/proof/inclusion?index=0", "/v1/ledger/proof/consistency?from=1",
		"/v1/ledger/tiles/0/0?width=1", "/v1/issuances/" + mine[0] + "/receipt",
	} {
		for who, want := range map[string]int{agent: 403, auditor: 200} {
			got := wire{method: "GET", target: path, auth: "none", svid: s.X509(t, who)}.send(t, s)
			if got.status != want || got.header.Get("Cache-Control") != "no-store" {
				t.Errorf("%s asks for %s: got %d %q, want %d no-store", who, path, got.status, got.header.Get("Cache-Control"), want)
			}
		}
	}
	for path, want := range map[string]int{
		"/v1/issuances/" + others[0] + "/receipt":                  404,
		"/v1/issuances/x/receipt":                                  404,
		"/v1/tasks/" + read.Task + "/receipt":                      400,
		"/v1/tasks/unknown/receipt?spiffe_id=" + agent:             404,
		"/v1/tasks/" + read.Task + "/receipt?spiffe_id=" + foreign: 404,
		"/v1/tasks/" + read.Task + "/receipt?spiffe_id=x%00":       400,
		"/v1/ledger/proof/inclusion":                               400,
		"/v1/ledger/proof/inclusion?index=-1":                      400,
		"/v1/ledger/proof/inclusion?index=1&size=1":                404,
		"/v1/ledger/proof/inclusion?index=1000000":                 503,
		"/v1/ledger/proof/inclusion?index=0&size=1000000":          503,
		"/v1/ledger/proof/consistency?from=2&to=1":                 404,
		"/v1/ledger/proof/consistency?from=1&to=1000000":           503,
		"/v1/ledger/proof/consistency?from=99999999999999":         503,
		"/v1/ledger/tiles/0/0?width=256":                           404,
		"/v1/ledger/tiles/0/0":                                     404,
		"/v1/ledger/tiles/8/0?width=1":                             400,
		"/v1/ledger/tiles/0/36028797018963968?width=1":             404,
		"/v1/ledger/tiles/0/9223372036854775807?width=1":           404,
		"/v1/ledger/tiles/0/99999999999999999999999?width=1":       400,
	} {
		got := wire{method: "GET", target: path, auth: "none", svid: s.X509(t, auditor)}.send(t, s)
		if got.status != want {
			t.Errorf("%s: got %d %s, want %d", path, got.status, got.text, want)
		}
	}
	var p *client.Problem
	if _, err := s.Client(t, agent).LogReceipt(t.Context(), mine[0]); !errors.As(err, &p) || !errors.Is(err, client.ErrNotAllowed) {
		t.Errorf("got %v for a sandbox, want %v", err, client.ErrNotAllowed)
	}
}

// I14: an auditor of one trust domain or path does not read the entries of all.
func TestOnlyGlobalAuditorsReadEntries(t *testing.T) {
	t.Parallel()
	const overall = "spiffe://acme.test/audit-all"
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue, Auditors: []string{auditor}, CatalogueAuditors: []string{overall}})
	issue(t, s, agent, 3)
	issue(t, s, foreign, 2)
	c := s.Client(t, overall)
	want := s.DB.Entries(t)
	for from := int64(0); ; {
		page, err := c.Entries(t.Context(), from, 2)
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Entries) == 0 {
			if from != int64(len(want)) || page.Next != from {
				t.Errorf("got the end at %d (next %d), want %d", from, page.Next, len(want))
			}
			break
		}
		for i, e := range page.Entries {
			if e.Index != from+int64(i) || !strings.Contains(e.Body, want[e.Index].ID) {
				t.Errorf("got entry %d %s at place %d", e.Index, e.Body, from+int64(i))
			}
		}
		from = page.Next
	}
	for who, code := range map[string]error{auditor: client.ErrNotAllowed, agent: client.ErrNotAllowed} {
		if _, err := s.Client(t, who).Entries(t.Context(), 0, 1); !errors.Is(err, code) {
			t.Errorf("%s: got %v, want %v", who, err, code)
		}
	}
	for _, limit := range []int{0, -1, 1001} { // H99
		if _, err := c.Entries(t.Context(), 0, limit); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("limit %d: got %v, want %v", limit, err, client.ErrInvalid)
		}
	}
}
