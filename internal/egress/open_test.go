package egress_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/google/go-cmp/cmp"
)

// openScope returns a scope without a credential.
func openScope(name, params, resource, host, path string) string {
	return fmt.Sprintf(`  - name: %s
    title: Read public files
    authority: read
    params: {%s}
    resource: %s
    ttl: {default: 5m, max: 15m}
    credential: {kind: none}
    egress: [{hosts: ['%s'], methods: [GET, HEAD], paths: ['%s']}]
`, name, params, resource, host, path)
}

func newOpenWorld(t *testing.T, change ...func(*testkit.Options)) *world {
	t.Helper()
	w := newWorldWith(t, func(host string) string {
		return openScope("host.also.use", "", "host:also", host, "/token") + openScope("host.open.use", "", "host:open", host, "/open/**") +
			openScope("host.package.use", "name: {type: string, pattern: '[a-z]+'}", "host:{name}", host, "/packages/{name}")
	}, change...)
	w.host.mux.HandleFunc("/open/events", func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprint(rw, "one\n")
		_ = http.NewResponseController(rw).Flush()
		<-r.Context().Done()
	})
	return w
}

// All calls of a scope without a credential share one record, and reach the host without any credential, the sandbox's own included.
func TestOpenHostsNeedOneRecord(t *testing.T) {
	w := newOpenWorld(t)
	c := w.proxied(t)
	var calls sync.WaitGroup
	for range 20 {
		calls.Go(func() {
			for range 10 {
				req := request(t, "GET", w.url("/open/file?v=1"), nil)
				for _, name := range []string{"Authorization", "Cookie", "Proxy-Authorization", "X-Api-Key", "Npm-Otp", "X-Jfrog-Art-Api", "X-Forwarded-For"} {
					req.Header.Set(name, "mine")
				}
				resp, err := c.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.Body.Close() != nil || resp.StatusCode != http.StatusOK {
					t.Errorf("got %d, %v", resp.StatusCode, err)
				}
			}
		})
	}
	calls.Wait()
	seen := w.host.taken()
	if len(seen) != 200 {
		t.Errorf("the host got %d calls, want 200", len(seen))
	}
	for _, r := range seen {
		if r.Header.Get("Authorization") != "" || strings.Contains(header(r), "mine") || r.URL.RawQuery != "v=1" {
			t.Fatalf("the host got %s\n%s\nwant no credential", r.URL, header(r))
		}
	}
	page, err := w.broker.Page(t.Context(), filterOf("host.open.use"))
	if err != nil || len(page.Issuances) != 1 {
		t.Fatalf("got %d records, %v, want 1", len(page.Issuances), err)
	}
	if one := page.Issuances[0]; one.Status != openapi.StatusIssued || one.Task != task || one.Credential.Kind != client.KindNone {
		t.Errorf("got %+v", one)
	}
	w.gateway.Close(t.Context())
	want := openapi.ScopeUsage{Scope: "host.open.use", Asked: 1, Granted: 1, Reported: openapi.ReportedUsage{Credentials: 1, Used: 1, Calls: 200}}
	if diff := cmp.Diff(want, w.usage(t, "host.open.use")); diff != "" {
		t.Errorf("the reported use (-want +got):\n%s", diff)
	}
}

// Each set of parameters is a permit of its own, and rules hold as for every scope.
func TestOpenHostsFollowTheirRules(t *testing.T) {
	w := newOpenWorld(t)
	for _, path := range []string{"/packages/left", "/packages/right", "/packages/left"} {
		if answer := w.get(t, path); answer.status != http.StatusOK {
			t.Fatalf("%s: got %d %s", path, answer.status, answer.text)
		}
	}
	if n := w.issued(t, "host.package.use"); n != 2 {
		t.Errorf("got %d records, want 2", n)
	}
	w.host.taken()
	// A scope with a credential comes first, although its name does not.
	if answer := w.get(t, "/token"); answer.status != http.StatusOK || w.issued(t, "host.also.use") != 0 {
		t.Errorf("got %d %s and a permit", answer.status, answer.text)
	}
	if seen := w.host.taken(); len(seen) != 1 || !strings.HasPrefix(seen[0].Header.Get("Authorization"), "Bearer ") {
		t.Errorf("got %d calls, want one with a credential", len(seen))
	}
	for name, req := range map[string]*http.Request{
		"another method": request(t, "POST", w.url("/open/file"), strings.NewReader("secret")),
		"another path":   request(t, "GET", w.url("/packages/left/secret"), nil),
		"another host":   request(t, "GET", "https://elsewhere.test/open/file", nil),
	} {
		answer := call(t, w.proxied(t), req)
		if code, _ := answer.problem(); answer.status != http.StatusForbidden || code != "egress_no_rule" {
			t.Errorf("%s: got %d %s", name, answer.status, answer.text)
		}
	}
	if len(w.host.taken()) != 0 {
		t.Error("a call that no rule allows has reached the host")
	}
}

// The end of a permit breaks off calls in progress within a second, and the gateway asks for another one unless the task has ended.
func TestEndOfPermitStopsCalls(t *testing.T) {
	w := newOpenWorld(t)
	follow := func() <-chan error {
		resp, err := w.proxied(t).Do(request(t, "GET", w.url("/open/events"), nil))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		one := make([]byte, 4)
		if _, err := io.ReadFull(resp.Body, one); err != nil || string(one) != "one\n" {
			t.Fatalf("got %q, %v", one, err)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := io.Copy(io.Discard, resp.Body)
			ended <- err
		}()
		return ended
	}
	ended := follow()
	if _, err := w.stack.Client(t, admin).Revoke(t.Context(), client.Selection{Scope: "host.open.use", SPIFFEID: agent}, "closed"); err != nil {
		t.Fatal(err)
	}
	stop := w.stopwatch(t)
	within(t, "the end of a call whose permit was revoked", ended)
	stop("the end of a call whose permit was revoked")
	ended = follow()
	if n := w.issued(t, "host.open.use"); n != 2 {
		t.Errorf("got %d records, want a second one after the revocation", n)
	}
	w.endTask(t)
	stop = w.stopwatch(t)
	within(t, "the end of a call whose task ended", ended)
	answer := w.get(t, "/open/file")
	stop("the end of a call whose task ended, and a refusal")
	if code, _ := answer.problem(); answer.status != http.StatusForbidden || code != "denied" {
		t.Errorf("got %d %s, want it refused", answer.status, answer.text)
	}
}

// When a permit expires, the gateway asks for the next one.
func TestExpiredPermitIsReplaced(t *testing.T) {
	w := newOpenWorld(t)
	w.gateway.Close(t.Context())
	var passed atomic.Int64
	w.now = func() time.Time { return time.Now().Add(time.Duration(passed.Load())) }
	w.open(t)
	c := w.proxied(t)
	for _, wait := range []time.Duration{0, 4 * time.Minute, 6 * time.Minute, 7 * time.Minute} {
		passed.Store(int64(wait))
		if answer := call(t, c, request(t, "GET", w.url("/open/file"), nil)); answer.status != http.StatusOK {
			t.Fatalf("after %s: got %d %s", wait, answer.status, answer.text)
		}
	}
	if n := w.issued(t, "host.open.use"); n != 2 {
		t.Errorf("got %d records, want 2", n)
	}
}

// If the catalogue has just changed, a call goes neither without the credential that its scope now has, nor with one that its rule
// does not know.
func TestScopeThatBecomesAnotherKindIsNotUsed(t *testing.T) {
	w := newOpenWorld(t, func(o *testkit.Options) { o.Applied = true })
	for _, kinds := range [][2]string{
		{"{kind: none}", "{kind: jwt, audience: https://example.com }"}, {"{kind: jwt, audience: https://example.com }", "{kind: none}"},
	} {
		w.gateway.Close(t.Context())
		w.open(t)
		c := w.proxied(t)
		if answer := call(t, c, request(t, "GET", w.url("/key/echo"), nil)); answer.status != http.StatusOK { // the gateway knows the rules now
			t.Fatalf("got %d %s", answer.status, answer.text)
		}
		w.host.taken()
		head, files, err := w.stack.Broker.CatalogueInForce(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i := range files {
			files[i].Data = []byte(strings.ReplaceAll(string(files[i].Data), kinds[0], kinds[1]))
		}
		order := broker.CatalogueOrder{Actor: admin, Base: head.Digest, Files: files, Reason: "another kind"}
		if change, err := w.stack.Broker.ApplyCatalogue(t.Context(), order); err != nil || change.State != broker.CatalogueApplied {
			t.Fatalf("got %+v, %v", change, err)
		}
		answer := call(t, c, request(t, "GET", w.url("/open/file"), nil))
		if code, why := answer.problem(); code != "egress_unavailable" || why != "the scope has just changed" {
			t.Errorf("from %s: got %d %s", kinds[0], answer.status, answer.text)
		}
		if len(w.host.taken()) != 0 {
			t.Errorf("from %s: the call has reached the host", kinds[0])
		}
	}
}
