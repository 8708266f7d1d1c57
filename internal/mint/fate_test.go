package mint_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/mint"
	"github.com/brevet-dev/brevet/internal/testkit"
)

// within waits for something that takes Vault up to limit.
func within(t *testing.T, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(limit)
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline:
			t.Fatalf("not within %v: %s", limit, what)
		case <-tick.C:
		}
	}
}

// one is a credential that a test minted, with what is needed to use it.
type one struct {
	name   string
	ware   ware
	intent broker.Intent
	minted broker.Minted
	secret map[string]any
}

// oneEach mints one of each kind that Vault can revoke, so that a test can wait for all of them together.
func (e *estate) oneEach(t *testing.T, life time.Duration) []one {
	t.Helper()
	var all []one
	for _, name := range leased {
		w := wares(t)[name]
		intent, minted, secret := e.made(t, w, life)
		all = append(all, one{name, w, intent, minted, secret})
	}
	return all
}

func (e *estate) dead(t *testing.T, o one) bool {
	t.Helper()
	alive, err := e.minter.Alive(t.Context(), o.minted.VaultLease)
	return err == nil && !alive && !e.works(t, o.ware, o.secret)
}

// TestUnrenewedCredentialsExpire mints two of each kind and renews only one (C3 to C6). What nobody renews, because nobody got it, is
// dead within a minute (I2).
func TestUnrenewedCredentialsExpire(t *testing.T) {
	t.Parallel()
	e := realLive(t)
	forgotten, kept := e.oneEach(t, 5*time.Minute), e.oneEach(t, 5*time.Minute)
	forgotten = append(forgotten, e.oneEach(t, 5*time.Minute)...) // the first database login has a token of its own, and this one has none
	began := time.Now()
	for _, o := range kept {
		if err := e.minter.Renew(t.Context(), o.minted); err != nil {
			t.Fatalf("%s: %v", o.name, err)
		}
	}
	for _, o := range forgotten {
		within(t, broker.UnrenewedLife+30*time.Second, o.name+" is dead", func() bool { return e.dead(t, o) })
		t.Logf("%s: dead after %v", o.name, time.Since(began).Round(time.Second))
	}
	// This also passes the time at which a login would have ended without a renewal.
	within(t, time.Minute, "40 seconds", func() bool { return time.Since(began) > 40*time.Second })
	for _, o := range kept {
		if alive, err := e.minter.Alive(t.Context(), o.minted.VaultLease); err != nil || !alive || !e.works(t, o.ware, o.secret) {
			t.Errorf("%s, renewed: alive %t, %v", o.name, alive, err)
		}
		if err := e.minter.Revoke(t.Context(), o.minted.VaultLease); err != nil || e.works(t, o.ware, o.secret) {
			t.Errorf("%s, renewed, after its revocation: %v", o.name, err)
		}
	}
}

// TestRenewedCredentialsEnd lets each kind expire. No later renewal moves that time (I3).
func TestRenewedCredentialsEnd(t *testing.T) {
	t.Parallel()
	e := realLive(t)
	all := e.oneEach(t, 12*time.Second)
	// The second login of a role is made with a carrier, if it lives for longer than an unrenewed one.
	all = append(all, e.oneEach(t, 32*time.Second)...)
	for _, o := range all {
		for range 2 {
			if err := e.minter.Renew(t.Context(), o.minted); err != nil {
				t.Errorf("%s: %v", o.name, err)
			}
		}
	}
	for _, o := range all {
		within(t, 90*time.Second, o.name+" is dead", func() bool { return e.dead(t, o) })
		if late := time.Since(o.intent.Expires); late > 15*time.Second {
			t.Errorf("%s died %v late", o.name, late)
		}
	}
}

// TestVaultKilledWhileMintingLogins kills Vault while it creates logins, and starts it again. Within a minute there is no login
// left that nothing can end (I2).
func TestVaultKilledWhileMintingLogins(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	stack, err := devstack.Start(t.Context(), devstack.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := stack.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := stack.PrepareEngines(t.Context()); err != nil {
		t.Fatal(err)
	}
	e := liveOf(t, stack)
	made := e.mintUntilKilled(t, filepath.Join(dir, "vault", "pid"))
	left := e.roles(t, "v-token-")
	t.Logf("killed after %d mints, with %d logins that work", made, left)
	if made == 0 || left == 0 {
		t.Fatal("nothing was minted before the kill")
	}
	if err := stack.Vault.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	within(t, time.Minute, "no login works", func() bool { return e.roles(t, "v-token-") == 0 })
}

func (e *estate) mintUntilKilled(t *testing.T, pidFile string) int64 {
	t.Helper()
	text, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var made atomic.Int64
	var minters sync.WaitGroup
	w := wares(t)["database"]
	for range 6 {
		minters.Go(func() {
			for ctx.Err() == nil {
				if _, err := mint.MintGrant(ctx, e.minter, w.intent(5*time.Minute)); err == nil && made.Add(1) == 40 {
					_ = syscall.Kill(pid, syscall.SIGKILL)
					cancel()
				}
			}
		})
	}
	minters.Wait()
	return made.Load()
}

// TestTargetDownAtRevocation takes the database away during the revocation of a login. The revocation is not confirmed, and the
// login stays revocable until it is.
func TestTargetDownAtRevocation(t *testing.T) {
	e := realLive(t)
	w := wares(t)["database"]
	_, minted, secret := e.made(t, w, time.Minute)
	// Take away Vault's login at the target. The target itself must stay, because other tests use it.
	conn := testkit.Connect(t, e.stack.Postgres.TargetURL())
	lock := func(sql string) {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	lock(`ALTER ROLE vault_admin NOLOGIN`)
	lock(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'vault_admin'`)
	defer lock(`ALTER ROLE vault_admin LOGIN`)
	err := e.minter.Revoke(t.Context(), minted.VaultLease)
	if err == nil {
		t.Fatal("revoked, with the target away")
	}
	t.Logf("got %v", err)
	if alive, err := e.minter.Alive(t.Context(), minted.VaultLease); err != nil || !alive {
		t.Errorf("got alive %t, %v; want true", alive, err)
	}
	if !e.works(t, w, secret) {
		t.Error("the test is no good: the login does not work")
	}
	lock(`ALTER ROLE vault_admin LOGIN`)
	until(t, "the revocation", func() bool { return e.minter.Revoke(t.Context(), minted.VaultLease) == nil })
	if e.works(t, w, secret) {
		t.Error("the login works after it was revoked")
	}
}
