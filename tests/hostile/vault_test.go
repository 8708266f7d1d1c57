package hostile_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/jackc/pgx/v5"
)

const (
	signatures = "transit/sign/"
	wrapping   = "auth/token/create"
	logins     = "database/creds/"
)

var vaultRows = []row{
	{h: "H68", sent: "a redirect elsewhere, as Vault's answer", then: "503; the redirect is not followed, and no secret is sent there", apart: true, tries: []try{{"every path", redirected}}},
	{h: "H69", sent: "200 with an empty body, HTML or 10 MB, as Vault's answer", then: "503; whatever Vault made is revoked or ends within half a minute", apart: true, tries: []try{{"each", nonsense}}},
	{h: "H70", sent: "a result that differs from the order, as Vault's answer", then: "503; the result is revoked and not delivered", apart: true, tries: []try{{"each", disordered}}},
}

const (
	jwtBody   = `{"scope":"git.issues.read","params":{"repo":"acme/api"},"task":"` + marker + `"}`
	loginBody = `{"scope":"db.login.read","task":"` + marker + `"}`
)

// withoutVault sends a sandbox's request while Vault lies. It checks that the answer holds no credential and that the failure is
// recorded.
func withoutVault(t *testing.T, w *world, name, prefix, body string, lie http.HandlerFunc, codes ...string) {
	t.Helper()
	w.vault.lie(prefix, lie)
	defer w.vault.lie("", nil)
	w.added(t)
	s, before, made, start := w.next(), len(w.vault.since(0)), len(w.vault.grants(0)), time.Now()
	got := call{body: body}.send(t, s)
	if got.status != http.StatusServiceUnavailable || !slices.Contains(codes, got.code) || got.header.Get("Retry-After") == "" {
		t.Errorf("%s: got %d %s, want 503 and one of %v with Retry-After\n%s", name, got.status, got.code, codes, got.text)
	}
	got.isProblem(t)
	givesNothingAway(t, got.text+fmt.Sprint(got.header))
	asked := 0
	for _, path := range w.vault.since(before) {
		if _, path, _ := strings.Cut(path, " "); strings.HasPrefix(path, prefix) {
			asked++
		}
	}
	if asked != 1 {
		t.Errorf("%s: Vault was asked %d times, want once", name, asked)
	}
	withheld(t, name, got.code, w.added(t))
	want := 0
	switch {
	case prefix == logins:
		want = 2 // the token, and a lease under it
	case prefix == wrapping && got.code == string(openapi.CodeMintMismatch):
		want = 1
	}
	grants := w.vault.grants(made)
	if len(grants) != want {
		t.Errorf("%s: Vault has made %d tokens and leases, want %d", name, len(grants), want)
	}
	w.revoked(t, name, grants, start)
	if log := s.Log.String(); strings.Contains(log, "hvs.") || strings.Contains(log, marker) {
		t.Errorf("%s: the log holds a token, or the sandbox's words", name)
	}
}

// withheld checks that a request left its intent and the reason for its failure in the ledger. In the same period the sweeper
// continues with what was lost before.
func withheld(t *testing.T, name, code string, entries []testkit.Entry) {
	t.Helper()
	begun := slices.IndexFunc(entries, func(e testkit.Entry) bool { return e.Kind == "issuance.intent" })
	if begun < 0 {
		t.Fatalf("%s: got %+v, want an intent", name, entries)
	}
	entries = slices.DeleteFunc(entries, func(e testkit.Entry) bool { return e.ID != entries[begun].ID })
	if len(entries) != 2 || entries[1].Kind != "issuance.failed" && entries[1].Kind != "issuance.unknown" || entries[1].Body["detail"] != code {
		t.Errorf("%s: got %+v, want an intent, and that it failed or was lost for %s", name, entries, code)
	}
}

// unassisted is well below the half minute after which Vault itself ends a token that is not renewed.
const unassisted = 20 * time.Second

// revoked checks that Vault no longer holds the grants. It checks so soon after start that only a revocation can explain it.
func (w *world) revoked(t *testing.T, name string, grants []grant, start time.Time) {
	t.Helper()
	vault := w.s[0].Vault(t)
	for _, g := range grants {
		eventuallyWithin(t, unassisted-time.Since(start), fmt.Sprintf("%s: the end of %+v", name, g), func() bool {
			path, body, gone := "auth/token/lookup-accessor", map[string]any{"accessor": g.accessor}, "invalid accessor"
			if g.lease != "" {
				path, body, gone = "sys/leases/lookup", map[string]any{"lease_id": g.lease}, "invalid lease"
			}
			_, err := vault.Logical().WriteWithContext(t.Context(), path, body)
			return err != nil && strings.Contains(err.Error(), gone)
		})
	}
}

// nothingLives checks that the ledger and the database show everything ended, once the sweeper has run. A token that may exist
// without a known accessor ends only after its own half minute.
func nothingLives(t *testing.T, w *world) {
	t.Helper()
	eventuallyWithin(t, 80*time.Second, "the end of what was made", func() bool {
		var open []string
		rows, err := w.conn.Query(t.Context(), `SELECT id::text FROM issuances WHERE credential_kind <> 'jwt' AND status NOT IN ('compensated', 'failed')`)
		if err == nil {
			open, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		return err == nil && len(open) == 0
	})
	target := testkit.Connect(t, w.s[0].TargetURL(t))
	rows, err := w.conn.Query(t.Context(), `SELECT id::text FROM issuances WHERE credential_kind = 'database'`)
	if err != nil {
		t.Fatal(err)
	}
	made, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(made) == 0 {
		t.Fatalf("got %v, %v, want the logins that were ordered", made, err)
	}
	eventuallyWithin(t, 80*time.Second, "the end of the logins", func() bool {
		var logins int
		err := target.QueryRow(t.Context(), `SELECT count(*) FROM pg_roles WHERE EXISTS (
			SELECT FROM unnest($1::text[]) AS id WHERE rolname LIKE '%' || id || '%')`, made).Scan(&logins)
		return err == nil && logins == 0
	})
	if n := w.lives(t); n != 0 {
		t.Errorf("%d of what was withheld are recorded as issued", n)
	}
	w.check(t)
}

// swept returns a world whose sweeper runs.
func swept(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, staffed)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	book := w.s[0].DB.Ledger(t)
	go func() {
		defer close(done)
		_ = w.s[0].Broker.Sweep(ctx, book)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

func redirected(t *testing.T, _ *world) {
	w := swept(t)
	trap := unvisited(t)
	for _, status := range []int{301, 302, 303, 307, 308} {
		lie := func(rw http.ResponseWriter, r *http.Request) { http.Redirect(rw, r, trap+r.URL.Path, status) }
		withoutVault(t, w, fmt.Sprint(status, " of a signature"), signatures, jwtBody, lie, "vault_unavailable")
		withoutVault(t, w, fmt.Sprint(status, " of a token"), wrapping, loginBody, lie, "vault_unavailable")
	}
	w.vault.lie("", nil)
	nothingLives(t, w)
}

func says(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func nonsense(t *testing.T, _ *world) {
	w := swept(t)
	for name, lie := range map[string]http.HandlerFunc{
		"nothing": says(200, ""), "HTML": says(200, "<html>welcome</html>"), "null": says(200, "null"), "a list": says(200, "[]"),
		"10 MB": says(200, `{"data":{"x":"`+strings.Repeat("A", 10<<20)+`"}}`), "10 MB of space": says(200, strings.Repeat(" ", 10<<20)+"{}"),
		"no content": says(204, ""), "errors": says(200, `{"errors":["hvs.CAESIJ0123456789abcdefghij"]}`),
	} {
		withoutVault(t, w, name+" for a signature", signatures, jwtBody, lie, "vault_unavailable")
		// The real Vault creates it, and its answer is lost.
		withoutVault(t, w, name+" for a login", logins, loginBody, func(rw http.ResponseWriter, r *http.Request) {
			w.vault.proxy.ServeHTTP(httptest.NewRecorder(), r)
			lie(rw, r)
		}, "vault_unavailable")
	}
	nothingLives(t, w)
}

// twisted passes a call on, and changes the answer.
func twisted(w *world, change func(answer map[string]any)) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		rec := httptest.NewRecorder()
		w.vault.proxy.ServeHTTP(rec, r)
		var answer map[string]any
		decoder := json.NewDecoder(bytes.NewReader(rec.Body.Bytes()))
		decoder.UseNumber()
		if decoder.Decode(&answer) == nil {
			change(answer)
		}
		rw.Header().Set("Content-Type", "application/json")
		rw.WriteHeader(rec.Code)
		_ = json.NewEncoder(rw).Encode(answer)
	}
}

// member follows names down into an answer.
func member(answer map[string]any, names ...string) map[string]any {
	for _, name := range names {
		answer, _ = answer[name].(map[string]any)
	}
	if answer == nil {
		answer = map[string]any{}
	}
	return answer
}

func disordered(t *testing.T, _ *world) {
	w := swept(t)
	signature := func(change func(string) string) func(map[string]any) {
		return func(a map[string]any) {
			results, _ := member(a, "data")["batch_results"].([]any)
			for _, one := range results {
				result := one.(map[string]any)
				result["signature"] = change(result["signature"].(string))
			}
		}
	}
	for name, change := range map[string]func(map[string]any){
		"of zeros":        signature(func(string) string { return "vault:v1:" + b64(make([]byte, 64)) }),
		"another version": signature(func(s string) string { return strings.Replace(s, "vault:v1:", "vault:v2:", 1) }),
		"cut":             signature(func(s string) string { return s[:len(s)-8] }),
		"a bit flipped":   signature(func(s string) string { return s[:len(s)-10] + flipped(s[len(s)-10:]) }),
	} {
		withoutVault(t, w, "a signature "+name, signatures, jwtBody, twisted(w, change), "mint_mismatch")
	}
	for name, change := range map[string]func(map[string]any){
		"with another policy": func(a map[string]any) { member(a, "auth")["policies"] = []string{"root"} },
		"for ever":            func(a map[string]any) { member(a, "auth")["lease_duration"] = 0 },
		"of an entity":        func(a map[string]any) { member(a, "auth")["entity_id"] = "e-1" },
	} {
		withoutVault(t, w, "a token "+name, wrapping, loginBody, twisted(w, change), "mint_mismatch")
	}
	for name, change := range map[string]func(map[string]any){
		"of another role":    func(a map[string]any) { a["lease_id"] = "database/creds/admin/abcdefghijklmnopqrstuvwx" },
		"that has no lease":  func(a map[string]any) { a["lease_id"] = "" },
		"that has no secret": func(a map[string]any) { a["data"] = map[string]any{} },
	} {
		withoutVault(t, w, "a login "+name, logins, loginBody, twisted(w, change), "mint_mismatch", "vault_unavailable")
	}
	nothingLives(t, w)
}

// lives counts the issuances recorded as issued and not ended.
func (w *world) lives(t *testing.T) (n int) {
	t.Helper()
	err := w.conn.QueryRow(t.Context(), `SELECT count(*) FROM issuances WHERE status = $1`, openapi.StatusIssued).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// flipped changes the first character of a base64url text.
func flipped(s string) string {
	if s[0] == 'A' {
		return "B" + s[1:]
	}
	return "A" + s[1:]
}
