package export_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/export"
	"github.com/google/go-cmp/cmp"
	"github.com/parquet-go/parquet-go"
)

const (
	source = "brevet.test/ledger"
	denied = `{"decision":{"approval":null,"authority":"delete","catalogue":"sha256:c0","clamps":[],"code":"no_permit","explanation":"x","outcome":"deny","params":{"repo":"acme/api"},"policies":["a","b"],"resource":"github:repo/acme/api","ttl":0},"id":"019a9f4e-6a34-7cc1-8a4f-3a1b7c0d9e21","kind":"request.denied","request":{"digest":"00","params":{"repo":"acme/api"},"reason":"=HYPERLINK(\"https://evil\")","scope":"github.repo.delete","task":"t-1","ttl":0},"status":"denied","subject":{"spiffe_id":"spiffe://acme.test/a","svid":"x509-svid","thumbprint":"x","trust_domain":"acme.test"},"time":"2026-11-21T10:00:00.000001Z","version":1}`
	voted  = `{"actor":{"id":"https://idp.test#alice","name":"Alice"},"covers":"request","hash":"00","id":"019a9f4e-6a34-7cc1-8a4f-3a1b7c0d9e22","kind":"approval.vote","note":"fine","status":"approved","time":"2026-11-21T10:00:01Z","verdict":"approve","version":1,"votes":0,"was":"pending"}`
	ended  = `{"actor":{"spiffe_id":"spiffe://acme.test/admin","svid":"x509-svid","thumbprint":"x","trust_domain":"acme.test"},"id":"019a9f4e-6a34-7cc1-8a4f-3a1b7c0d9e23","kind":"quarantine.add","reason":"odd","target":{"spiffe_id":"spiffe://acme.test/a"},"time":"2026-11-21T10:00:02Z","version":1}`
	moved  = `{"actor":"spiffe://acme.test/admin","detail":"revoked","id":"019a9f4e-6a34-7cc1-8a4f-3a1b7c0d9e24","kind":"issuance.revoked","status":"revoked","time":"2026-11-21T10:00:03Z","version":1}`
)

var (
	given = `{"approves":{"hash":"00","request":"r-1"},"decision":{"authority":"write","catalogue":"sha256:c0","clamps":[{"bound":"scope.max","from":900,"to":300},{"bound":"parent.expires","from":300,"to":60}],"code":"approved","outcome":"allow","params":{},"policies":["a"],"resource":"mail:x","ttl":60},"expires":"2026-11-21T10:01:04Z","id":"i-2","intent":{"audience":"https://mail.test","claims_digest":"0d","kind":"jwt"},"kind":"issuance.intent","parent":"i-1","request":{"digest":"00","jkt":"k3y","params":{},"reason":"","scope":"mail.send","task":"t-1","ttl":900},"status":"issued","subject":{"spiffe_id":"spiffe://acme.test/a","svid":"x509-svid","thumbprint":"x","trust_domain":"acme.test"},"time":"2026-11-21T10:00:04Z","version":1}`
	asked = `{"decision":{"approval":{"group":"oncall","quorum":1},"outcome":"pending"},"id":"r-1","intent":{"grant":{"path":"database/creds/ro"},"kind":"database"},"kind":"request.pending","time":"2026-11-21T10:00:05Z"}`
	made  = `{"id":"i-3","kind":"issuance.issued","minted":{"accessor":"acc","digest":"5e","lease":"database/creds/ro/1","name":"v-ro-1"},"status":"issued","time":"2026-11-21T10:00:06Z"}`
	off   = `{"code":"invalid_token","detail":"token_missing","id":"c-1","kind":"call.refused","operation":"checkCall","remote":"192.0.2.7","suppressed":1234,"time":"2026-11-21T10:00:07Z"}`
)

var entries = []string{denied, voted, ended, moved, given, asked, made, off}

func written(t *testing.T, format export.Format) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := export.NewWriter(&out, format, source)
	if err != nil {
		t.Fatal(err)
	}
	for i, text := range entries {
		e, err := export.Read(int64(i), text)
		if err == nil {
			err = w.Write(e)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func objects(t *testing.T, text []byte) []map[string]any {
	t.Helper()
	var all []map[string]any
	for line := range strings.Lines(string(text)) {
		var one map[string]any
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		all = append(all, one)
	}
	if len(all) != len(entries) {
		t.Fatalf("got %d lines, want %d", len(all), len(entries))
	}
	return all
}

func TestCSV(t *testing.T) {
	rows, err := csv.NewReader(bytes.NewReader(written(t, export.CSV))).ReadAll()
	if err != nil || len(rows) != len(entries)+1 {
		t.Fatalf("got %d rows, %v; want a header and %d", len(rows), err, len(entries))
	}
	row := func(n int) map[string]string {
		named := map[string]string{}
		for i, name := range rows[0] {
			if value := rows[n+1][i]; value != "" && value != "0" {
				named[name] = value
			}
		}
		return named
	}
	for n, want := range []map[string]string{
		{
			"time": "2026-11-21T10:00:00.000001Z", "kind": "request.denied", "id": "019a9f4e-6a34-7cc1-8a4f-3a1b7c0d9e21",
			"spiffe_id": "spiffe://acme.test/a", "trust_domain": "acme.test", "task": "t-1", "scope": "github.repo.delete",
			"authority": "delete", "resource": "github:repo/acme/api", "params": `{"repo":"acme/api"}`, "decision": "deny",
			"code": "no_permit", "policies": "a b", "catalogue": "sha256:c0", "status": "denied",
			"reason": `'=HYPERLINK("https://evil")`, "svid": "x509-svid", "thumbprint": "x",
		},
		{
			"index": "1", "time": "2026-11-21T10:00:01Z", "kind": "approval.vote", "id": "019a9f4e-6a34-7cc1-8a4f-3a1b7c0d9e22",
			"status": "approved", "verdict": "approve", "actor": "https://idp.test#alice", "reason": "fine",
		},
		{
			"index": "2", "time": "2026-11-21T10:00:02Z", "kind": "quarantine.add", "id": "019a9f4e-6a34-7cc1-8a4f-3a1b7c0d9e23",
			"spiffe_id": "spiffe://acme.test/a", "trust_domain": "acme.test", "actor": "spiffe://acme.test/admin", "reason": "odd",
		},
		{
			"index": "3", "time": "2026-11-21T10:00:03Z", "kind": "issuance.revoked", "id": "019a9f4e-6a34-7cc1-8a4f-3a1b7c0d9e24",
			"status": "revoked", "detail": "revoked", "actor": "spiffe://acme.test/admin",
		},
		{
			"index": "4", "time": "2026-11-21T10:00:04Z", "kind": "issuance.intent", "id": "i-2", "spiffe_id": "spiffe://acme.test/a",
			"trust_domain": "acme.test", "task": "t-1", "scope": "mail.send", "authority": "write", "resource": "mail:x", "params": "{}",
			"decision": "allow", "code": "approved", "policies": "a", "catalogue": "sha256:c0", "ttl": "60", "status": "issued",
			"expires": "2026-11-21T10:01:04Z", "approves": "r-1", "credential": "jwt", "digest": "0d", "svid": "x509-svid", "thumbprint": "x",
			"jkt": "k3y", "parent": "i-1", "ttl_asked": "900", "clamps": "scope.max parent.expires", "audience": "https://mail.test",
		},
		{
			"index": "5", "time": "2026-11-21T10:00:05Z", "kind": "request.pending", "id": "r-1", "decision": "pending",
			"credential": "database", "group": "oncall", "vault_path": "database/creds/ro",
		},
		{
			"index": "6", "time": "2026-11-21T10:00:06Z", "kind": "issuance.issued", "id": "i-3", "status": "issued", "digest": "5e",
			"name": "v-ro-1", "accessor": "acc", "lease": "database/creds/ro/1",
		},
		{
			"index": "7", "time": "2026-11-21T10:00:07Z", "kind": "call.refused", "id": "c-1", "code": "invalid_token",
			"detail": "token_missing", "remote": "192.0.2.7", "operation": "checkCall", "suppressed": "1234",
		},
	} {
		if diff := cmp.Diff(want, row(n)); diff != "" {
			t.Errorf("row %d (-want +got):\n%s", n, diff)
		}
	}
}

// H78: text that a spreadsheet would treat as a formula.
func TestCSVHasNoFormulas(t *testing.T) {
	for _, reason := range []string{
		"=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", "\"=1", "'=1", "|cmd", "%x", "\u00a0=1", "\ufeff=1",
		"\uff1d1", "\uff0b1", "\uff0d1", "\uff201", "\tx",
	} {
		text, err := json.Marshal(map[string]any{"kind": "request.denied", "request": map[string]string{"reason": reason}})
		if err != nil {
			t.Fatal(err)
		}
		e, err := export.Read(0, string(text))
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		w, err := export.NewWriter(&out, export.CSV, source)
		if err == nil {
			err = w.Write(e)
		}
		if err == nil {
			err = w.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		rows, err := csv.NewReader(&out).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		// RFC 4180 readers convert line ends.
		got := rows[1][slices.Index(rows[0], "reason")]
		if got[0] != '\'' || strings.TrimLeft(got, "'\r\n") != strings.TrimLeft(reason, "'\r\n") {
			t.Errorf("%q is written as %q, want an apostrophe and the same text", reason, got)
		}
	}
}

func TestNDJSON(t *testing.T) {
	for i, line := range objects(t, written(t, export.NDJSON)) {
		var want any
		if err := json.Unmarshal([]byte(entries[i]), &want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]any{"index": float64(i), "entry": want}, line); diff != "" {
			t.Errorf("line %d (-want +got):\n%s", i, diff)
		}
	}
}

// The attributes that CloudEvents 1.0 requires, in the required form.
func TestCloudEvents(t *testing.T) {
	got := objects(t, written(t, export.CloudEvents))
	delete(got[0], "data")
	want := map[string]any{
		"specversion": "1.0", "id": "0", "source": "//brevet.test/ledger", "type": "dev.brevet.request.denied",
		"subject": "spiffe://acme.test/a", "time": "2026-11-21T10:00:00.000001Z", "datacontenttype": "application/json",
	}
	if diff := cmp.Diff(want, got[0]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The fields that OCSF requires of the class Authorize Session, with consistent numbers.
func TestOCSF(t *testing.T) {
	for i, got := range objects(t, written(t, export.OCSF)) {
		for _, required := range []string{"activity_id", "category_uid", "class_uid", "metadata", "severity_id", "time", "type_uid", "user"} {
			if got[required] == nil {
				t.Errorf("event %d has no %s", i, required)
			}
		}
		activity, _ := got["activity_id"].(float64)
		if got["class_uid"] != 3003.0 || got["category_uid"] != 3.0 || got["type_uid"] != 300300+activity {
			t.Errorf("event %d: got class %v, category %v, type %v and activity %v", i, got["class_uid"], got["category_uid"], got["type_uid"], activity)
		}
		if got["time"] != float64(time.Date(2026, 11, 21, 10, 0, i, 0, time.UTC).UnixMilli()) {
			t.Errorf("event %d: got time %v", i, got["time"])
		}
		if i == 4 {
			want := map[string]any{
				"task": "t-1", "authority": "write", "resource": "mail:x", "params": "{}", "decision": "allow", "code": "approved",
				"policies": "a", "catalogue": "sha256:c0", "ttl": "60", "approves": "r-1", "credential": "jwt", "digest": "0d",
				"svid": "x509-svid", "thumbprint": "x", "jkt": "k3y", "parent": "i-1", "ttl_asked": "900",
				"clamps": "scope.max parent.expires", "audience": "https://mail.test",
			}
			if diff := cmp.Diff(want, got["unmapped"]); diff != "" {
				t.Errorf("what has no place (-want +got):\n%s", diff)
			}
		}
	}
}

func TestParquet(t *testing.T) {
	text := written(t, export.Parquet)
	file, err := parquet.OpenFile(bytes.NewReader(text), int64(len(text)))
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		Index    int64    `parquet:"index"`
		Kind     string   `parquet:"kind"`
		Policies []string `parquet:"policies,list"`
		Reason   string   `parquet:"reason"`
		Body     string   `parquet:"body"`
		JKT      string   `parquet:"jkt"`
		Parent   string   `parquet:"parent"`
		Clamps   []string `parquet:"clamps,list"`
	}
	rows, err := parquet.Read[row](bytes.NewReader(text), int64(len(text)))
	if err != nil || file.NumRows() != int64(len(entries)) || len(rows) != len(entries) {
		t.Fatalf("got %d rows, %v; want %d", len(rows), err, len(entries))
	}
	for i, r := range rows {
		if r.Index != int64(i) || r.Body != entries[i] {
			t.Errorf("row %d: got %+v", i, r)
		}
	}
	if rows[0].Reason != `=HYPERLINK("https://evil")` || len(rows[0].Policies) != 2 {
		t.Errorf("got %+v", rows[0])
	}
	if r := rows[4]; r.JKT != "k3y" || r.Parent != "i-1" || len(r.Clamps) != 2 {
		t.Errorf("got %+v", r)
	}
}

func TestInvalidEntriesAreRefused(t *testing.T) {
	for _, text := range []string{"", "[]", "{", `"x"`, `{"time":"yesterday"}`, `{"actor":7}`} {
		if e, err := export.Read(0, text); err == nil {
			t.Errorf("%q: got %+v, want an error", text, e)
		}
	}
	if _, err := export.NewWriter(nil, "xml", source); err == nil {
		t.Error("got a writer of xml, want an error")
	}
}
