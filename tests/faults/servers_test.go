package faults_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/jackc/pgx/v5"
)

// patience returns the longest time that an operation may take. Only a full run has the machine to itself and keeps the strict
// limit.
func patience(most time.Duration) time.Duration {
	if *all {
		return most
	}
	return 10 * most
}

// back is how long a replica may need to recover after its servers are back.
const back = 5 * time.Second

// servers takes away the servers that a replica depends on, one after the other.
func (w *world) servers(t *testing.T) {
	for _, tc := range []struct {
		fault string
		run   func(*testing.T) (seen string)
	}{
		{"Vault sealed", w.vaultSealed},
		{"Vault down, and a task ends meanwhile", w.vaultDown},
		{"Vault killed during database mints", w.vaultKilledWhileMinting},
		{"target database refuses Vault at revocation", w.targetDown},
		{"database logins that hold on to each other", w.resistingLogins},
		{"the broker's own Vault token revoked", w.tokenRevoked},
		{"Postgres stopped and started", w.postgresStopped},
		{"Postgres 500 ms away", w.postgresSlow},
		{"quarantine, seen from another replica", w.quarantineElsewhere},
		{"a replica stopped while a token ends", w.replicaStopped},
		{"Vault answers a wrong status", w.wrongStatus},
		{"Vault's answers cut after each byte", w.cutAnswers},
		{"readers keep all connections of a replica busy", w.busyReaders},
	} {
		t.Run(tc.fault, func(t *testing.T) {
			seen := "not all of it"
			t.Cleanup(func() { results.other(tc.fault, seen, !t.Failed()) })
			seen = tc.run(t)
		})
	}
}

// sandbox is a caller of the surviving replica.
type sandbox struct {
	*world
	client *http.Client
	id     string
}

func (w *world) sandbox(t *testing.T) *sandbox {
	t.Helper()
	name := strings.ToLower(strings.NewReplacer(" ", "-", ",", "", "'", "").Replace(t.Name()))
	id := "spiffe://acme.test/" + strings.TrimPrefix(name, "testfaults/")
	return &sandbox{world: w, client: w.client(t, id), id: id}
}

func (s *sandbox) ask(ctx context.Context, k kind) answer {
	body := k.body()
	body["scope"], body["task"] = "test."+k.name, task
	got, err := call(ctx, s.client, s.stack.URL+"/v1/tokens", body)
	if err == nil && got.has() {
		s.inventory.deliver(got.ID)
	}
	return got
}

// must requests a credential that has to be issued.
func (s *sandbox) must(t *testing.T, k kind) answer {
	t.Helper()
	got := s.ask(t.Context(), k)
	if !got.has() {
		t.Fatalf("%s: got status %d %s, want a credential", k.name, got.status, got.Code)
	}
	if k.leased() && !k.opens(t, s.inventory, got) {
		t.Errorf("the %s that was given does not work", k.name)
	}
	return got
}

// cannotTell checks the tests themselves: works must return an error when the server that would accept the credential is down.
func (s *sandbox) cannotTell(t *testing.T, k kind, a answer) {
	t.Helper()
	if works, err := k.works(t.Context(), s.inventory, a); err == nil {
		t.Errorf("the %s is said to work by nobody: %t", k.name, works)
	}
}

func (s *sandbox) endTask(t *testing.T) answer {
	t.Helper()
	got, err := call(t.Context(), s.client, s.stack.URL+"/v1/tasks/"+task+"/end", map[string]any{})
	if err != nil {
		t.Fatalf("ending the task: %v", err)
	}
	return got
}

// refusedOf requests every kind and expects 503 each time.
func (s *sandbox) refusedOf(t *testing.T) {
	t.Helper()
	for _, k := range kinds {
		if got := s.ask(t.Context(), k); got.status != http.StatusServiceUnavailable {
			t.Errorf("%s: got status %d %s, want 503", k.name, got.status, got.Code)
		}
	}
}

// backAfter sends requests until every kind is issued again.
func (s *sandbox) backAfter(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	for _, k := range kinds {
		for !s.ask(t.Context(), k).has() {
			if time.Since(began) > patience(back) {
				t.Fatalf("%s is not issued %s after the servers came back", k.name, time.Since(began))
			}
			pauseFor(t.Context(), 50*time.Millisecond)
		}
	}
	return time.Since(began)
}

func (w *world) vaultSealed(t *testing.T) string {
	s, vault := w.sandbox(t), testkit.Devstack(t).Vault
	token, certificate := s.must(t, kindCalled("vault-token")), s.must(t, kindCalled("pki"))
	if err := vault.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.cannotTell(t, kindCalled("vault-token"), token)
	s.cannotTell(t, kindCalled("pki"), certificate)
	s.refusedOf(t)
	denied, err := call(t.Context(), s.client, s.stack.URL+"/v1/tokens", map[string]any{"scope": "no.such", "task": task})
	if err != nil || denied.status != http.StatusForbidden {
		t.Errorf("a denial while Vault is sealed: status %d, %v", denied.status, err)
	}
	if err := vault.Unseal(t.Context()); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("503 for every kind, denials go on; back after %s", s.backAfter(t).Round(10*time.Millisecond))
}

func (w *world) vaultDown(t *testing.T) string {
	s, vault := w.sandbox(t), testkit.Devstack(t).Vault
	k := kindCalled("database")
	login := s.must(t, k)
	if err := vault.Stop(); err != nil {
		t.Fatal(err)
	}
	s.refusedOf(t)
	if got := s.endTask(t); got.status != http.StatusAccepted || len(got.Ended) == 0 || got.Ended[0].Status != "revoking" {
		t.Errorf("ending the task: got status %d %+v, want revoking", got.status, got.Ended)
	}
	if err := vault.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	w.awaitEnd(t, s.id, began.Add(grace), func(row) bool { return true })
	if k.opens(t, w.inventory, login) {
		t.Error("the record says revoked, and the login works")
	}
	return fmt.Sprintf("503; revoking meanwhile, revoked %s after Vault was back", time.Since(began).Round(100*time.Millisecond))
}

// vaultKilledWhileMinting leaves logins in the target database that Vault has lost. The final check finds any login that still
// works.
func (w *world) vaultKilledWhileMinting(t *testing.T) string {
	s, k := w.sandbox(t), kindCalled("database")
	const rounds = 8
	delivered := 0
	for range rounds {
		var asks sync.WaitGroup
		var mu sync.Mutex
		for range 4 {
			asks.Go(func() {
				if s.ask(t.Context(), k).has() {
					mu.Lock()
					delivered++
					mu.Unlock()
				}
			})
		}
		pauseFor(t.Context(), time.Duration(5+rand.IntN(50))*time.Millisecond)
		w.killVault(t)
		asks.Wait()
	}
	return fmt.Sprintf("%d mints, %d delivered", 4*rounds, delivered)
}

func (w *world) targetDown(t *testing.T) string {
	s, k := w.sandbox(t), kindCalled("database")
	login := s.must(t, k)
	restore := w.lockVaultOut(t)
	if got := s.endTask(t); got.status != http.StatusAccepted || got.Ended[0].Status != "revoking" {
		t.Errorf("ending the task: got status %d %+v, want revoking", got.status, got.Ended)
	}
	for began := time.Now(); w.unrevoked.Load() == 0; pauseFor(t.Context(), 500*time.Millisecond) {
		if time.Since(began) > patience(15*time.Second) {
			t.Fatal("nothing raised an alarm")
		}
	}
	for _, r := range w.inventory.rows(t.Context(), t, s.id) {
		if r.Status != "revoking" {
			t.Errorf("the record says %s while the login works: %t", r.Status, k.opens(t, w.inventory, login))
		}
	}
	restore()
	began := time.Now()
	w.awaitEnd(t, s.id, began.Add(grace), func(row) bool { return true })
	if k.opens(t, w.inventory, login) {
		t.Error("the record says revoked, and the login works")
	}
	return fmt.Sprintf("revoking and an alarm meanwhile, revoked %s after the database was back", time.Since(began).Round(100*time.Millisecond))
}

// resistingLogins makes two logins of one sandbox hard to drop: one owns an object, the other holds a lock that dropping the
// first waits for.
func (w *world) resistingLogins(t *testing.T) string {
	s, k := w.sandbox(t), kindCalled("database")
	first, second := s.must(t, k), s.must(t, k)
	w.as(t, first, `SELECT lo_create(0)`)
	w.as(t, second, `BEGIN`, `CREATE TEMP TABLE held (i int)`, `GRANT SELECT ON held TO "`+first.text("username")+`"`)
	began := time.Now()
	s.endTask(t)
	w.awaitEnd(t, s.id, began.Add(grace), func(row) bool { return true })
	took := time.Since(began)
	for _, login := range []answer{first, second} {
		if k.opens(t, w.inventory, login) {
			t.Errorf("%s works after the end of its task", login.text("username"))
		}
	}
	other := &sandbox{world: w, client: w.client(t, s.id+"/other"), id: s.id + "/other"}
	other.must(t, k)
	return fmt.Sprintf("both dead %s after the end of their task, others get logins", took.Round(10*time.Millisecond))
}

// as runs statements with a login, in a session that stays open until another session ends it.
func (w *world) as(t *testing.T, login answer, statements ...string) {
	t.Helper()
	u, err := url.Parse(w.inventory.target)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(login.text("username"), login.text("password"))
	conn := testkit.Connect(t, u.String())
	for _, statement := range statements {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// lockVaultOut prevents Vault from logging in to the target database, as if the database were down.
func (w *world) lockVaultOut(t *testing.T) (restore func()) {
	t.Helper()
	run := func(statements ...string) {
		conn, err := pgx.Connect(context.WithoutCancel(t.Context()), w.inventory.target)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
		for _, statement := range statements {
			if _, err := conn.Exec(context.WithoutCancel(t.Context()), statement); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
	}
	run(`ALTER ROLE vault_admin NOLOGIN`, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'vault_admin'`)
	restore = sync.OnceFunc(func() { run(`ALTER ROLE vault_admin LOGIN`) })
	t.Cleanup(restore)
	return restore
}

// tokenRevoked revokes the login of every replica.
func (w *world) tokenRevoked(t *testing.T) string {
	s := w.sandbox(t)
	ended := 0
	for _, accessor := range w.inventory.list(t.Context(), t, "auth/token/accessors") {
		if secret := w.inventory.token(t.Context(), t, accessor); secret == nil || secret.Data["path"] != "auth/approle/login" {
			continue
		}
		body := map[string]any{"accessor": accessor}
		if _, err := w.inventory.vault.Logical().WriteWithContext(t.Context(), "auth/token/revoke-accessor", body); err != nil {
			t.Fatal(err)
		}
		ended++
	}
	if ended == 0 {
		t.Fatal("no login was found")
	}
	return fmt.Sprintf("%d logins revoked; every kind issued again after %s", ended, s.backAfter(t).Round(10*time.Millisecond))
}

func (w *world) postgresStopped(t *testing.T) string {
	s, postgres := w.sandbox(t), testkit.Devstack(t).Postgres
	login := s.must(t, kindCalled("database"))
	if err := postgres.Stop(); err != nil {
		t.Fatal(err)
	}
	s.cannotTell(t, kindCalled("database"), login)
	asked := func() int { return w.stack.Asked(t, "auth/token/create/") + w.stack.Asked(t, "database/creds/") }
	before := asked()
	s.refusedOf(t)
	if after := asked(); after != before {
		t.Errorf("Vault was asked %d times without a record", after-before)
	}
	if err := postgres.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("503 for every kind, Vault not asked; back after %s", s.backAfter(t).Round(10*time.Millisecond))
}

// postgresSlow delays every answer of Postgres by half a second.
func (w *world) postgresSlow(t *testing.T) string {
	relay, through := testkit.RelayTo(t, w.stack.DB.BrokerURL)
	relay.Slow(500 * time.Millisecond)
	r := w.startReplica(t, &fault{}, func(s map[string]any) { s["Database"] = through })
	s := w.sandbox(t)
	var slowest time.Duration
	for _, k := range kinds {
		began := time.Now()
		if got := w.ask(t, r, s.id, k); !got.has() {
			t.Errorf("%s: got status %d %s", k.name, got.status, got.Code)
		}
		slowest = max(slowest, time.Since(began))
	}
	r.stop(t)
	return fmt.Sprintf("every kind issued, the slowest in %s", slowest.Round(10*time.Millisecond))
}

func (w *world) quarantineElsewhere(t *testing.T) string {
	s, k := w.sandbox(t), kindCalled("database")
	r := w.startReplica(t, &fault{})
	login := w.ask(t, r, s.id, k)
	if !login.has() {
		t.Fatalf("got status %d %s", login.status, login.Code)
	}
	began := time.Now()
	got, err := call(t.Context(), w.admin, w.stack.URL+"/v1/quarantines", map[string]any{"spiffe_id": s.id, "reason": "test"})
	if err != nil || got.status != http.StatusOK {
		t.Fatalf("quarantine: status %d %s, %v", got.status, got.Code, err)
	}
	if k.opens(t, w.inventory, login) {
		t.Error("the login works in quarantine")
	}
	if got := w.ask(t, r, s.id, k); got.status != http.StatusForbidden {
		t.Errorf("the other replica: got status %d %s, want a denial", got.status, got.Code)
	}
	took := time.Since(began)
	if took > patience(2*time.Second) {
		t.Errorf("it took %s", took)
	}
	r.stop(t)
	again := w.startReplica(t, &fault{})
	if got := w.ask(t, again, s.id, k); got.status != http.StatusForbidden {
		t.Errorf("a replica that started later: got status %d %s, want a denial", got.status, got.Code)
	}
	return fmt.Sprintf("its login dead and its ask denied elsewhere after %s, by a restarted replica too", took.Round(time.Millisecond))
}

func kindCalled(name string) kind {
	for _, k := range kinds {
		if k.name == name {
			return k
		}
	}
	panic("no kind is called " + name)
}
