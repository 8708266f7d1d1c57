package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/app"
	"github.com/brevet-dev/brevet/internal/devstack/local"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
)

// TestFaults takes from one deployment everything that can fail. After each fault, the messages are clear, no token exists
// without its record (I1, I10), no stored data holds a secret (I9, I16), and the deployment recovers.
func TestFaults(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	d.request(t, "t-before").want(t, 0)
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"bad starts", d.badStarts},
		{"sandbox killed while Vault signs", d.sandboxKilledInVault},
		{"sandbox killed while Postgres writes", d.sandboxKilledInPostgres},
		{"Vault sealed", d.vaultSealed},
		{"Postgres stopped", d.postgresStopped},
		{"broker killed", d.brokerKilled},
		{"broker stopped while it answers", d.brokerStopped},
		{"broker leaves before it stops", d.brokerLeaves},
		{"secrets stay secret", d.keepsSecrets},
	} {
		if !t.Run(part.name, part.run) && part.name != "bad starts" {
			return // what is broken now stays broken for the next parts
		}
	}
	d.everyTokenIsRecorded(t)
	if got := len(d.tokens); got < 12 {
		t.Errorf("held %d tokens against the record: too few to show anything", got)
	}
}

// badStarts checks that a server that cannot start says what is missing and what to do.
func (d *deployment) badStarts(t *testing.T) {
	write := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	broken, err := filepath.Abs("testdata/broken")
	if err != nil {
		t.Fatal(err)
	}
	databaseURL, err := secret.ReadFile(d.cfg.Postgres.URLFile)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := strings.Replace(databaseURL, "search_path=brevet", "search_path=nothing_here", 1)
	if elsewhere == databaseURL {
		t.Fatal("the broker's URL names no search_path")
	}
	for _, tc := range []struct {
		name   string
		change func(*app.Config)
		want   []string
	}{
		{"catalogue is broken", func(c *app.Config) { c.Catalogue = broken }, []string{"configured catalogue cannot be loaded and is not the one in force", "has no @id"}},
		{"catalogue is not there", func(c *app.Config) { c.Catalogue = "/nonexistent/catalog" }, []string{"/nonexistent/catalog"}},
		{"Postgres does not answer", func(c *app.Config) {
			c.Postgres.URLFile = write("url", "postgres://brevet:hunter2@127.0.0.1:1/brevet")
		}, []string{"opening the ledger", "connection refused", "postgres.url_file"}},
		{"Postgres refuses the password", func(c *app.Config) {
			c.Postgres.URLFile = write("url", strings.Replace(databaseURL, "brevet:", "brevet:hunter2", 1))
		}, []string{"opening the ledger", "28P01", "postgres.url_file"}},
		{"schema is missing", func(c *app.Config) { c.Postgres.URLFile = write("url", elsewhere) }, []string{"run `brevet migrate`"}},
		{"URL is malformed", func(c *app.Config) { c.Postgres.URLFile = write("url", "postgres://brevet:hunter2@:port/brevet") }, []string{"the database URL is not valid"}},
		{"Postgres is reached without verified TLS", func(c *app.Config) {
			c.Postgres.URLFile = write("url", "postgres://brevet:hunter2@db.example/brevet?sslmode=require")
		}, []string{"postgres.url_file", `"db.example"`, "Set sslmode=verify-full", "postgres.insecure_network"}},
		{"auditors' Postgres is reached without TLS", func(c *app.Config) {
			c.Postgres.AuditURLFile = write("url", "postgres://brevet:hunter2@db.example/brevet")
		}, []string{"postgres.audit_url_file", `"db.example"`, "without TLS", "Set sslmode=verify-full", "postgres.insecure_network"}},
		{"insecure network is accepted", func(c *app.Config) {
			c.Postgres.URLFile = write("url", "postgres://brevet:hunter2@0.0.0.0:1/brevet")
			c.Postgres.InsecureNetwork = true
		}, []string{"postgres.insecure_network is on: others on the network can read and change the record on its way", `"hosts":["0.0.0.0"]`, "opening the ledger", "connection refused"}},
		{"secret is not there", func(c *app.Config) { c.Postgres.URLFile = "/nonexistent/url" }, []string{"postgres.url_file", "/nonexistent/url"}},
		{"secret is empty", func(c *app.Config) { c.Postgres.URLFile = write("url", "\n") }, []string{"postgres.url_file", "is empty"}},
		{"Vault does not answer", func(c *app.Config) { c.Vault.Address = "http://127.0.0.1:1" }, []string{"opening Vault at http://127.0.0.1:1", "connection refused"}},
		{"Vault refuses the login", func(c *app.Config) {
			login := *c.Vault.AppRole
			login.SecretIDFile = write("secret_id", "hunter2")
			c.Vault.AppRole = &login
		}, []string{"opening Vault at", "brevet bootstrap creates"}},
		{"key is not there", func(c *app.Config) { c.Vault.SigningKey = "other" }, []string{`key "other"`, "brevet bootstrap creates"}},
		{"address is taken", func(*app.Config) {}, []string{"listening on " + d.cfg.Listen, "address already in use"}},
		{"lame duck", func(c *app.Config) { c.LameDuck = time.Hour }, []string{"lame_duck: 1h is not between 0s and 5m"}},
		{"level of the log", func(c *app.Config) { c.Log.Level = "loud" }, []string{`log.level: "loud" is invalid: use debug, info, warn or error`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := brevet(t, nil, "serve", "--config", d.configure(t, tc.change))
			got.want(t, 1, tc.want...)
			if strings.Contains(got.err, "hunter2") {
				t.Errorf("the error shows a secret: %s", got.err)
			}
			if strings.Contains(got.err, "goroutine ") {
				t.Errorf("a crash is no answer: %s", got.err)
			}
		})
	}
	t.Run("unknown key", func(t *testing.T) {
		path := d.configure(t, func(*app.Config) {})
		edit(t, path, "catalogue:", "colour: red\ncatalogue:")
		brevet(t, nil, "serve", "--config", path).want(t, 1, path, "colour")
	})
	t.Run("no configuration", func(t *testing.T) {
		brevet(t, nil, "serve", "--config", "/nonexistent/brevet.yaml").want(t, 1, "/nonexistent/brevet.yaml", "--config")
	})
}

func (d *deployment) sandboxKilledInVault(t *testing.T) {
	release := d.vault.shut()
	defer release()
	asking := d.ask(t, "t-killed-1")
	d.vault.await(t)
	asking.kill(t)
	if got := asking.out.String(); got != "" {
		t.Fatalf("got %q before Vault has signed anything", got)
	}
	// The intent was committed before Vault was called, so the record already exists.
	if got := d.records(t, "t-killed-1"); len(got) != 1 {
		t.Errorf("got %d records, want 1", len(got))
	}
	release()
	d.request(t, "t-killed-1-after").want(t, 0)
	d.isReady(t)
}

func (d *deployment) sandboxKilledInPostgres(t *testing.T) {
	conn := testkit.Connect(t, d.adminURL(t))
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	// Every append takes this row's lock, and so waits for this transaction.
	if _, err := tx.Exec(t.Context(), `UPDATE ledger_head SET size = size`); err != nil {
		t.Fatal(err)
	}
	asking := d.ask(t, "t-killed-2")
	watch := testkit.Connect(t, d.adminURL(t))
	within(t, patience, "an append waits for the lock", func() bool {
		var waiting int
		err := watch.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE usename = 'brevet' AND wait_event_type = 'Lock'`).Scan(&waiting)
		return err == nil && waiting > 0
	})
	asking.kill(t)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := asking.out.String(); got != "" {
		t.Errorf("got %q, want no token before its record", got)
	}
	d.request(t, "t-killed-2-after").want(t, 0)
	if got := d.records(t, "t-killed-2"); len(got) > 1 {
		t.Errorf("got %d records of one ask", len(got))
	}
	d.isReady(t)
}

func (d *deployment) vaultSealed(t *testing.T) {
	if err := d.Vault.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.unavailable(t, "t-sealed", "Vault unavailable", "vault_unavailable")
	// Denials do not need Vault.
	brevet(t, d.env("research"), "request", "github.repo.delete", "repo=acme/api", "--task", "t-sealed-denied").want(t, exitDenied)
	another := launch(t, nil, "serve", "--config", d.configure(t, func(cfg *app.Config) {
		cfg.Listen, cfg.MetricsListen, cfg.Console = "127.0.0.1:0", "", nil
	}))
	another.waitFor(t, another.err, `"msg":"waiting for vault to have an active node"`)
	if err := d.Vault.Unseal(t.Context()); err != nil {
		t.Fatal(err)
	}
	another.waitFor(t, another.err, `"msg":"serving"`)
	another.kill(t)
	d.recovers(t, "t-unsealed")
	records := d.records(t, "t-sealed")
	if len(records) == 0 {
		t.Error("the requests that Vault could not serve are not in the record")
	}
	for _, record := range records {
		if record["status"] != "failed" || record["status_detail"] != "vault_unavailable" {
			t.Errorf("got status %v (%v), want failed (vault_unavailable)", record["status"], record["status_detail"])
		}
	}
}

func (d *deployment) postgresStopped(t *testing.T) {
	if err := d.Postgres.Stop(); err != nil {
		t.Fatal(err)
	}
	d.unavailable(t, "t-stopped", "Ledger unavailable", "ledger_unavailable")
	within(t, patience, "not ready", func() bool { return brevet(t, nil, "ready", "--config", d.config).code == 1 })
	brevet(t, nil, "ready", "--config", d.config).want(t, 1, "bundles     ok\ncertificate ok\nledger      failing\nledger_disk ok\nvault       ok")
	list := brevet(t, d.env("auditor"), "audit", "list")
	list.want(t, exitUnavailable, "retry")
	if err := d.Postgres.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.recovers(t, "t-started")
	for _, record := range d.records(t, "t-stopped") {
		t.Errorf("got %v, want no record of what was refused while no record could be kept", record)
	}
}

// unavailable checks a 503 in text and in JSON.
func (d *deployment) unavailable(t *testing.T, task, title, code string) {
	t.Helper()
	got := d.request(t, task)
	got.want(t, exitUnavailable, title, "retry      in 5s")
	if got.out != "" {
		t.Errorf("got %q on standard output, want nothing", got.out)
	}
	got = d.request(t, task, "--output", "json")
	got.want(t, exitUnavailable)
	if problem := object(t, got.out); problem["status"] != 503.0 || problem["code"] != code || problem["retry_after"] != 5.0 {
		t.Errorf("got %s, want 503, %s and when to try again", got.out, code)
	}
}

// recovers checks that requests succeed again.
func (d *deployment) recovers(t *testing.T, task string) {
	t.Helper()
	began := time.Now()
	within(t, patience, "a token again", func() bool {
		got := d.request(t, task)
		if got.code != 0 && got.code != exitUnavailable {
			t.Fatalf("got exit code %d on the way back: %s", got.code, got.err)
		}
		return got.code == 0
	})
	t.Logf("a token again after %s", time.Since(began).Round(10*time.Millisecond))
	d.isReady(t)
}

// isReady waits until the server reports that it is ready. Its report may be a second old.
func (d *deployment) isReady(t *testing.T) {
	t.Helper()
	within(t, patience, "ready", func() bool { return brevet(t, nil, "ready", "--config", d.config).code == 0 })
}

func (d *deployment) brokerKilled(t *testing.T) {
	release := d.vault.shut()
	defer release()
	asking := d.ask(t, "t-broker-killed")
	d.vault.await(t)
	d.broker.kill(t)
	got := asking.finish(t)
	got.want(t, 1, "calling the server")
	if got.out != "" {
		t.Errorf("got %q from a server that is dead", got.out)
	}
	release()
	brevet(t, nil, "ready", "--config", d.config).want(t, 1, "checking the server on "+d.cfg.Listen)
	d.serve(t)
	d.request(t, "t-broker-back").want(t, 0)
	if got := d.records(t, "t-broker-killed"); len(got) != 1 {
		t.Errorf("got %d records, want the one that was committed before the kill", len(got))
	}
}

// brokerStopped checks that a stopping broker finishes requests in progress and accepts no new ones, and that no response
// and no record is lost.
func (d *deployment) brokerStopped(t *testing.T) {
	const n = 8
	release := d.vault.shut()
	defer release()
	var asking []*process
	for i := range n {
		asking = append(asking, d.ask(t, fmt.Sprintf("t-drain-%d", i)))
	}
	// The first request is at Vault. The others wait for Vault's response, and are then signed with one call.
	conn := testkit.Connect(t, d.adminURL(t))
	within(t, patience, "all are recorded", func() bool {
		var recorded int
		err := conn.QueryRow(t.Context(), `SELECT count(*) FROM issuances WHERE task LIKE 't-drain-%'`).Scan(&recorded)
		return err == nil && recorded == n
	})
	d.broker.signal(t, syscall.SIGTERM)
	within(t, patience, "no new connections are taken", func() bool { return !reachable(t.Context(), d.cfg.Listen) })
	d.request(t, "t-too-late").want(t, 1, "connection refused")
	began := time.Now()
	release()
	for _, p := range asking {
		got := d.keep(p.finish(t))
		got.want(t, 0)
		if !aToken.MatchString(got.out) {
			t.Errorf("got %q, want a whole token", got.out)
		}
	}
	d.broker.finish(t).want(t, 0)
	t.Logf("drained %d requests in %s", n, time.Since(began).Round(time.Millisecond))
	d.serve(t)
	if got := d.records(t, "t-too-late"); len(got) != 0 {
		t.Errorf("got %v, want no record of a call that was not taken", got)
	}
}

// brokerLeaves checks that a replica behind a load balancer reports that it is stopping, and continues to serve for the
// configured time.
func (d *deployment) brokerLeaves(t *testing.T) {
	d.broker.signal(t, syscall.SIGTERM)
	d.broker.finish(t).want(t, 0)
	d.cfg.LameDuck = 10 * time.Second // long enough for two checks on a busy machine
	d.serve(t)
	d.isReady(t)
	began := time.Now()
	d.broker.signal(t, syscall.SIGTERM)
	within(t, patience, "it says that it goes", func() bool {
		got := brevet(t, nil, "ready", "--config", d.config)
		return got.code == 1 && strings.Contains(got.out, "running     failing")
	})
	d.request(t, "t-leaving").want(t, 0)
	d.broker.finish(t).want(t, 0)
	if took := time.Since(began); took < d.cfg.LameDuck {
		t.Errorf("it went after %s, want %s at least", took, d.cfg.LameDuck)
	}
	d.cfg.LameDuck = 0
	d.serve(t)
}

// keepsSecrets checks I9: no log, table or file holds anything that authenticates or grants access, whether it was accepted
// or not.
func (d *deployment) keepsSecrets(t *testing.T) {
	canaries := map[string]string{}
	for i, token := range d.tokens {
		canaries[fmt.Sprintf("token %d", i)] = token[strings.LastIndex(token, ".")+1:]
	}
	for name, svid := range map[string]string{
		"JWT-SVID":                    d.svid(t, d.cfg.Issuer),
		"JWT-SVID for somebody else":  d.svid(t, "https://other.example"),
		"JWT-SVID of another issuer":  d.svid(t, d.cfg.Issuer)[:60] + ".x.y",
		"token where an SVID belongs": d.tokens[0],
	} {
		canaries[name] = svid
		if i := strings.LastIndex(svid, "."); len(svid)-i > 40 {
			canaries[name] = svid[i+1:]
		}
		status := d.bearer(t, svid)
		if want := map[bool]int{true: http.StatusCreated, false: http.StatusUnauthorized}[name == "JWT-SVID"]; status != want {
			t.Errorf("%s: got %d, want %d", name, status, want)
		}
	}
	all := d.everythingKept(t)
	for name, secret := range canaries {
		if places := whereabouts(all, secret); len(places) > 0 {
			t.Errorf("%s is in %v", name, places)
		}
	}
	// The broker's own two secrets are only in the files that give them to it.
	for _, path := range []string{d.cfg.Postgres.URLFile, d.cfg.Vault.AppRole.SecretIDFile} {
		secret, err := secret.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if u, err := url.Parse(secret); err == nil && u.User != nil {
			secret, _ = u.User.Password()
		}
		if places := whereabouts(all, secret); !slices.Equal(places, []string{path}) {
			t.Errorf("the secret of %s is in %v", path, places)
		}
	}
	// The search does find texts that exist, in each kind of place.
	for text, places := range map[string][]string{
		"spiffe://acme.example/research/agent-7": {"entry ", "issuance ", "/pg_wal/"},
		`"msg":"catalogue loaded"`:               {"log of the broker"},
	} {
		found := strings.Join(whereabouts(all, text), " ")
		for _, place := range places {
			if !strings.Contains(found, place) {
				t.Errorf("%s is in %s, want it in %s too", text, found, place)
			}
		}
	}
}

// bearer sends a request with a bearer token, as a runtime without the SDK would.
func (d *deployment) bearer(t *testing.T, svid string) int {
	t.Helper()
	body := strings.NewReader(`{"scope":"github.issues.read","params":{"repo":"acme/api"},"task":"t-bearer"}`)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.cfg.Issuer+"/v1/tokens", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+svid)
	transport := &http.Transport{TLSClientConfig: tlsconfig.TLSClientConfig(d.Issuer.Bundle(),
		tlsconfig.AuthorizeID(local.ID("brevet")))}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	return resp.StatusCode
}

func reachable(ctx context.Context, address string) bool {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}
