package mint_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/mint"
	"github.com/brevet-dev/brevet/internal/testkit"
)

// clustered returns a minter that reaches the real Vault as the active node of a cluster with two standbys that lag.
func (e *estate) clustered(t *testing.T) (*mint.Minter, *testkit.Cluster, *traffic) {
	t.Helper()
	c, tr := testkit.NewCluster(t, e.Addr()), &traffic{}
	cfg := e.config
	cfg.Addr, cfg.Transport = c.URL(), tr.over
	return open(t, cfg), c, tr
}

// TestStandbysConfirmNoEnd ends credentials of each kind right after their mint, when a standby does not know them yet (I6). Each
// renewal takes effect, and a credential that the record calls ended has ended in Vault.
func TestStandbysConfirmNoEnd(t *testing.T) {
	t.Parallel()
	e := realLive(t)
	m, c, _ := e.clustered(t)
	for _, name := range leased {
		w := wares(t)[name]
		t.Run(name, func(t *testing.T) {
			through := *e
			through.minter = m
			var workers sync.WaitGroup
			for range 4 {
				workers.Go(func() {
					for range 10 {
						intent := w.intent(5 * time.Minute)
						credential, err := mint.MintGrant(t.Context(), m, intent)
						if err != nil {
							t.Errorf("minting: %v", err)
							return
						}
						if err := m.Renew(t.Context(), *credential.Minted); err != nil {
							t.Errorf("renewing: %v", err)
						}
						if alive, err := m.Alive(t.Context(), credential.Minted.VaultLease); err != nil || !alive {
							t.Errorf("before the end: got alive %t, %v", alive, err)
						}
						if err := m.Revoke(t.Context(), credential.Minted.VaultLease); err != nil {
							t.Errorf("revoking: %v", err)
							continue
						}
						if alive, err := e.minter.Alive(t.Context(), credential.Minted.VaultLease); err != nil || alive {
							t.Errorf("confirmed as ended, and got alive %t, %v", alive, err)
						}
					}
				})
			}
			workers.Wait()
		})
	}
	t.Logf("%d answers of standbys differed from the active node's", c.Stale())
}

// TestClusterIsLoggedInToOnce opens a minter whose new token is unknown to the standbys, and mints with tokens that are as new.
func TestClusterIsLoggedInToOnce(t *testing.T) {
	t.Parallel()
	e := realLive(t)
	for range 5 {
		c, log, cfg := testkit.NewCluster(t, e.Addr()), &journal{}, e.config
		cfg.Addr, cfg.Log = c.URL(), log.logger()
		m := open(t, cfg)
		run(t, m)
		for _, algorithm := range []string{"ES256", "EdDSA", "RS256"} {
			if _, err := m.Key(algorithm); err != nil {
				t.Errorf("%s: %v", algorithm, err)
			}
		}
		if err := m.Ready(t.Context()); err != nil {
			t.Errorf("ready: %v", err)
		}
		for range 10 {
			if _, err := mint.MintGrant(t.Context(), m, wares(t)["kv"].intent(time.Minute)); err != nil {
				t.Errorf("a stored secret: %v", err)
			}
		}
		if c.Stale() == 0 {
			t.Error("the test is no good: no standby was behind")
		}
		if logins := strings.Count(log.String(), "logged in to vault"); logins != 1 {
			t.Errorf("got %d logins, want 1", logins)
		}
	}
}

// TestBootstrapThroughABalancer prepares Vault through a balancer: other nodes do not have yet what bootstrap has just written.
func TestBootstrapThroughABalancer(t *testing.T) {
	t.Parallel()
	a := realVault(t)
	c := testkit.NewCluster(t, a.Addr())
	b := bootstrap(c.URL(), a.RootToken())
	b.SigningKey, b.Role = "balanced", "balanced"
	for range 5 {
		login, err := b.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !a.logsIn(t, login) {
			t.Error("the login does not work")
		}
		if _, err := b.DestroyEarlier(t.Context(), login); err != nil {
			t.Error(err)
		}
	}
	if c.Unlimited() > 10 {
		t.Errorf("%d calls could be answered by a standby", c.Unlimited())
	}
}

// TestMintsDuringAnElection mints while there is no active node. A mint that may have been carried out is lost, and all others are
// not even sent.
func TestMintsDuringAnElection(t *testing.T) {
	t.Parallel()
	e := realLive(t)
	m, c, tr := e.clustered(t)
	w := wares(t)["token"]
	if _, err := mint.MintGrant(t.Context(), m, w.intent(time.Minute)); err != nil {
		t.Fatal(err)
	}
	c.Elect(3 * time.Second)
	began, lost := time.Now(), 0
	tr.since()
	for time.Since(began) < 2*time.Second {
		_, err := mint.MintGrant(t.Context(), m, w.intent(time.Minute))
		if !errors.Is(err, broker.ErrVaultUnavailable) {
			t.Fatalf("got %v, want ErrVaultUnavailable", err)
		}
		if _, may := errors.AsType[*broker.LostMintError](err); may {
			lost++
		}
	}
	sent := slices.DeleteFunc(tr.since(), func(path string) bool { return path != createPath })
	if lost != 1 || len(sent) != 1 {
		t.Errorf("got %d mints sent and %d lost, want 1 of each", len(sent), lost)
	}
	within(t, 10*time.Second, "mints", func() bool {
		_, err := mint.MintGrant(t.Context(), m, w.intent(time.Minute))
		return err == nil
	})
	if err := e.minter.Ready(t.Context()); err != nil {
		t.Error(err)
	}
}

// silent returns a minter of a Vault that does not answer calls to some paths, until the test ends.
func silent(t *testing.T, timeout time.Duration, paths ...string) (*impostor, *mint.Minter) {
	t.Helper()
	v := newImpostor(t, p256(t))
	cfg := knock(t, v.URL)
	cfg.Timeout = timeout
	m := open(t, cfg)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	for _, path := range paths {
		v.lie(path, func(http.ResponseWriter, *http.Request) { <-release })
	}
	return v, m
}

// revokeAtOnce revokes eight credentials at once.
func revokeAtOnce(ctx context.Context, t *testing.T, m *mint.Minter) {
	t.Helper()
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			if err := m.Revoke(ctx, broker.VaultLease{Accessor: accessor}); !errors.Is(err, broker.ErrVaultUnavailable) {
				t.Errorf("got %v, want ErrVaultUnavailable", err)
			}
		})
	}
	callers.Wait()
}

// While Vault is silent, a call ends with its caller's deadline, whoever else waits for what all of them need.
func TestCallsEndWithTheirCallers(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"sys/leader", "auth/token/create"} {
		v, m := silent(t, time.Minute, path)
		if path != "sys/leader" {
			v.lie("sys/leader", func(w http.ResponseWriter, _ *http.Request) { reply(w, map[string]any{"ha_enabled": true}) })
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		began := time.Now()
		revokeAtOnce(ctx, t, m)
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("%s: took %v", path, took)
		}
		if calls := v.called(path); calls != 1 {
			t.Errorf("%s: got %d calls, want 1 for all callers", path, calls)
		}
	}
}

// Callers without a deadline share the two calls that time out. A silent Vault counts as one with standbys.
func TestCallersWaitForASilentVaultTogether(t *testing.T) {
	t.Parallel()
	v, m := silent(t, time.Second, "sys/leader", "auth/token/create")
	revokeAtOnce(t.Context(), t, m)
	if asked, made := v.called("sys/leader"), v.called("auth/token/create"); asked != 1 || made != 1 {
		t.Errorf("got %d questions and %d tokens, want 1 of each for all callers", asked, made)
	}
}

// A mint that waits for a carrier ends with its caller, and is not lost: no mint was sent.
func TestMintsDoNotOutwaitTheirCallersForACarrier(t *testing.T) {
	t.Parallel()
	v, m := silent(t, time.Minute)
	v.grants()
	v.lie(drawPath, func(w http.ResponseWriter, _ *http.Request) { reply(w, loginAnswer()) })
	intent := databaseIntent(t)
	if _, err := mint.MintGrant(t.Context(), m, intent); err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	defer close(release)
	v.lie(createPath, func(http.ResponseWriter, *http.Request) { <-release })
	before := v.called(createPath)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := mint.MintGrant(ctx, m, intent)
	if _, lost := errors.AsType[*broker.LostMintError](err); lost || !errors.Is(err, broker.ErrVaultUnavailable) || ctx.Err() == nil {
		t.Errorf("got %v, want ErrVaultUnavailable, and nothing lost", err)
	}
	if calls := v.called(createPath) - before; calls != 1 {
		t.Errorf("got %d calls, want that for the carrier only", calls)
	}
}

// TestSlowAnswersAreNotShortLeases makes Vault take long: it answers with the time that is left of a lease, rounded.
func TestSlowAnswersAreNotShortLeases(t *testing.T) {
	v := newImpostor(t, p256(t))
	slow := &clock{now: epoch}
	cfg := knock(t, v.URL)
	cfg.Now = slow.Now
	m := open(t, cfg)
	v.grants()
	first := loginAnswer()
	first["lease_duration"] = 27
	v.lie(drawPath, func(w http.ResponseWriter, _ *http.Request) {
		slow.Set(slow.Now().Add(3 * time.Second))
		reply(w, first)
	})
	intent := databaseIntent(t)
	if _, err := mint.MintGrant(t.Context(), m, intent); err != nil {
		t.Fatal(err)
	}
	v.lie(drawPath, func(w http.ResponseWriter, _ *http.Request) { reply(w, loginAnswer()) })
	v.lie(createPath, func(w http.ResponseWriter, _ *http.Request) {
		carrier := wrapper()
		carrier["renewable"], carrier["lease_duration"] = false, 1197
		reply(w, map[string]any{"auth": carrier})
	})
	credential, err := mint.MintGrant(t.Context(), m, intent)
	if err != nil || credential.Minted.Accessor != "" {
		t.Errorf("the next login: got %+v, %v; want one with a carrier", credential.Minted, err)
	}

	minted := broker.Minted{VaultLease: broker.VaultLease{Accessor: accessor}, Until: slow.Now().Add(5 * time.Minute)}
	v.lie("auth/token/renew-accessor", func(w http.ResponseWriter, _ *http.Request) {
		slow.Set(slow.Now().Add(4 * time.Second))
		reply(w, map[string]any{"auth": map[string]any{"accessor": accessor, "lease_duration": 296}})
	})
	if err := m.Renew(t.Context(), minted); err != nil {
		t.Errorf("a slow renewal: %v", err)
	}
}

// TestMissingRightsAreNamed takes each right away from the broker's policy.
func TestMissingRightsAreNamed(t *testing.T) {
	t.Parallel()
	a := realVault(t)
	a.key(t, "rights", "ecdsa-p256")
	auth, _ := a.role(t, "rights", nil)
	whole := mint.Policy("transit", "rights", "brevet")
	for _, path := range []string{
		"transit/sign/rights", "transit/sign/rights-log", "auth/token/create/brevet", "auth/token/create", "auth/token/renew-accessor",
		"auth/token/revoke-accessor", "auth/token/lookup-accessor", "sys/leases/renew", "sys/leases/revoke", "sys/leases/lookup",
		"auth/token/lookup-self", "auth/token/renew-self", "sys/capabilities-self",
	} {
		a.write(t, "sys/policies/acl/rights", map[string]any{"policy": strings.Replace(whole, `path "`+path+`" {`, `path "none/`+path+`" {`, 1)})
		log := &journal{}
		cfg := dial(t, a, "rights", auth)
		cfg.Log, cfg.Refresh = log.logger(), 50*time.Millisecond
		m := open(t, cfg)
		run(t, m)
		missing, ok := errors.AsType[*broker.MissingRightsError](m.Ready(t.Context()))
		if !ok || len(missing.Rights) != 1 || !strings.HasSuffix(missing.Rights[0], " on "+path) {
			t.Errorf("%s: got %v, want exactly this right named", path, missing)
		}
		if !strings.Contains(log.String(), path) {
			t.Errorf("%s: the log does not name it: %s", path, log)
		}
		a.write(t, "sys/policies/acl/rights", map[string]any{"policy": whole})
		until(t, "ready", func() bool { return m.Ready(t.Context()) == nil })
	}
}
