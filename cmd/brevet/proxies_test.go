package main

import (
	"crypto/tls"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/jackc/pgx/v5"
)

// TestServeBehindTrustedProxies checks that trusted_proxies applies to the API and to the console.
func TestServeBehindTrustedProxies(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	t.Cleanup(client.CloseIdleConnections)
	refused := func(url string, want int, headers ...string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: got %d, want %d", url, resp.StatusCode, want)
		}
	}
	both := func(name, value string) {
		t.Helper()
		refused(d.URL+"/v1/tokens", http.StatusUnauthorized, name, value, "Content-Type", "application/json")
		refused(d.Console+"/logout", http.StatusForbidden, name, value, "Sec-Fetch-Site", "cross-site")
	}
	both("X-Forwarded-For", "203.0.113.1")
	d.cfg.TrustedProxies = []string{"192.0.2.0/24", "127.0.0.1"}
	d.broker.signal(t, syscall.SIGTERM)
	d.broker.finish(t).want(t, 0)
	d.serve(t)
	both("X-Forwarded-For", "203.0.113.2")
	both("Forwarded", "for=203.0.113.3")

	rows, _ := testkit.Connect(t, d.adminURL(t)).Query(t.Context(),
		`SELECT convert_from(body, 'UTF8')::json ->> 'remote' FROM entries WHERE kind = 'call.refused' ORDER BY index`)
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	want := "127.0.0.1 127.0.0.1 203.0.113.2 203.0.113.2 203.0.113.3 203.0.113.3"
	if err != nil || strings.Join(got, " ") != want {
		t.Errorf("got %v, %v of refused calls, want %s", got, err, want)
	}
}
