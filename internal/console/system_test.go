package console_test

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/chromedp/chromedp"
)

func TestBrowserWatchesLedger(t *testing.T) {
	w := newWorld(t)
	agent := w.agent(t, "triage-1")
	waits(t, agent, comment("acme/api", ""))
	b := w.tab(t)
	b.login("dave")
	settled := func(want string) {
		t.Helper()
		b.run(chromedp.Poll[chromedp.Void](`document.getElementById("growth")?.textContent.includes(` + "`" + want + "`" + `)`))
	}
	w.signed(t)
	b.open("/ledger")
	settled("First checkpoint of this log in this browser")
	b.has("brevet.test/ledger", "request.pending", "brevet audit verify", "No witness has cosigned")
	for range 5 {
		waits(t, agent, comment("acme/web", ""))
	}
	w.signed(t)
	b.goTo("/ledger")
	settled("Verified in this browser: the log of ")
	b.goTo("/ledger")
	settled("is unchanged")

	forged := func(change, want string) {
		t.Helper()
		b.goTo("/ledger")
		settled("is unchanged")
		get(b, chromedp.Evaluate[bool](`(() => { const e = document.getElementById("log-note"); const d = JSON.parse(e.textContent); `+change+`; e.textContent = JSON.stringify(d);
			const again = document.createElement("script"); again.src = document.querySelector('script[src$="ledger.js"]').src; document.head.append(again); return true; })()`))
		settled(want)
	}
	forged(`d.note = d.note.replace(/\n\d+\n/, "\n999\n")`, "has no valid signature of the log")
	forged(`d.keys = null`, "was not checked")
	b.goTo("/ledger")
	settled("is unchanged") // an unsigned checkpoint is not remembered

	const place = `"brevet-checkpoint:brevet.test/ledger"`
	remember := func(change string) {
		t.Helper()
		get(b, chromedp.Evaluate[bool](`(() => { const c = JSON.parse(localStorage.getItem(`+place+`)); `+change+`; localStorage.setItem(`+place+`, JSON.stringify(c)); return true; })()`))
	}
	remember("c.root = btoa('x'.repeat(32))")
	b.goTo("/ledger")
	settled("TAMPERING DETECTED")
	b.check("/ledger changed")
	remember("c.size += 100")
	b.goTo("/ledger")
	settled("and now there are")
	remember("c.size = 2")
	b.goTo("/ledger")
	settled("the current log does not contain it")

	alice := w.program(t, "alice")
	for _, path := range []string{"/ledger", "/ledger/growth?from=1&to=2", "/system"} {
		if status, _ := w.ask(t, alice, path, nil); status != http.StatusForbidden {
			t.Errorf("%s: got %d for an approver, want %d", path, status, http.StatusForbidden)
		}
	}
	dave := w.program(t, "dave")
	for _, query := range []string{"", "from=0&to=1", "from=2&to=1", "from=x&to=2"} {
		if status, _ := w.ask(t, dave, "/ledger/growth?"+query, nil); status != http.StatusUnprocessableEntity {
			t.Errorf("growth of %q: got %d, want %d", query, status, http.StatusUnprocessableEntity)
		}
	}
}

// signed waits until a checkpoint covers all entries.
func (w *world) signed(t *testing.T) {
	t.Helper()
	db := testkit.Connect(t, w.DB.AdminURL)
	for behind := true; behind; {
		err := db.QueryRow(t.Context(), `SELECT (SELECT size FROM ledger_head) > (SELECT coalesce(max(size), 0) FROM checkpoints) FROM pg_sleep(0.05)`).Scan(&behind)
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestSystemPageShowsAVaultOutage(t *testing.T) {
	var way *httptest.Server
	w := newWorldWith(t, func(o *testkit.Options) {
		o.VaultVia = func(addr string) string {
			to, err := url.Parse(addr)
			if err != nil {
				t.Fatal(err)
			}
			way = httptest.NewServer(httputil.NewSingleHostReverseProxy(to))
			t.Cleanup(way.Close)
			return way.URL
		}
	})
	b := w.tab(t)
	b.login("dave")
	b.open("/system")
	b.has("PostgreSQL", "Vault", "Signing")
	if strings.Contains(b.page(), "Down") {
		t.Errorf("a dependency is down:\n%s", b.page())
	}
	way.CloseClientConnections()
	way.Close()
	b.open("/system")
	b.has("Down", "Brevet cannot issue dynamic credentials or sign JWTs without it.", "Check Vault and the network.")
}

// I14: an auditor of one path learns nothing about other trust domains, and no totals over all of them.
func TestSystemAndLedgerPagesAreLimitedToReach(t *testing.T) {
	w := newWorldWith(t, func(o *testkit.Options) {
		o.Rules = append(o.Rules, people.Rule{Role: people.RoleAuditor, Group: "engineers", Within: []string{"spiffe://other.test/lab"}})
	})
	w.issue(t, "reader", "triage", "")
	w.signed(t)
	alice, dave := w.program(t, "alice"), w.program(t, "dave")
	for path, some := range map[string][]string{
		"/system": {"Trust bundle of acme.test", "MiB", "Unrevoked"}, "/ledger": {"<dt>Entries</dt>"},
	} {
		mine, all := w.read(t, alice, path), w.read(t, dave, path)
		for _, text := range some {
			if strings.Contains(mine, text) || !strings.Contains(all, text) {
				t.Errorf("%s: %q is in what the auditor of a path is shown: %t, and in what that of everything is: %t", path, text, strings.Contains(mine, text), strings.Contains(all, text))
			}
		}
		if !strings.Contains(mine, "Trust bundle of other.test") && !strings.Contains(mine, "<dt>Checkpoint</dt>") {
			t.Errorf("%s: the auditor of a path is not shown what is theirs:\n%s", path, mine)
		}
	}
}
