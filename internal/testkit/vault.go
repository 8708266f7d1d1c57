package testkit

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/mint"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/hashicorp/vault/api"
)

// VaultAccess is how the broker of a Stack reaches Vault, for one more replica of it.
type VaultAccess struct {
	Addr, SigningKey, TokenRole string
	RoleID, SecretIDFile        string
	// AuditFile is written by an audit device that is the Stack's own, and sees everybody.
	AuditFile string
}

// VaultAccess returns how the stack's broker reaches Vault.
func (s *Stack) VaultAccess() VaultAccess { return s.access }

// stackNumber keeps the keys and audit devices of the stacks of one process apart.
var stackNumber struct {
	sync.Mutex
	last int
}

// engines are mounted once, by the first stack whose catalogue needs them.
var engines struct {
	sync.Once
	err error
}

// openVault makes a signing key, a login and an audit device for this stack alone, and what its catalogue needs.
func (s *Stack) openVault(t testing.TB, catalogue *scopes.Catalogue, log *slog.Logger) {
	t.Helper()
	stackNumber.Lock()
	stackNumber.last++
	n := stackNumber.last
	stackNumber.Unlock()
	s.vault = Devstack(t).Vault
	policies := catalogue.VaultPolicies()
	if len(policies) > 0 {
		engines.Do(func() { engines.err = Devstack(t).PrepareEngines(t.Context()) })
		if engines.err != nil {
			t.Fatalf("preparing Vault's engines: %v", engines.err)
		}
	}
	dir, key := t.TempDir(), fmt.Sprintf("brevet-%d", n)
	s.access = VaultAccess{
		Addr: s.vault.Addr(), SigningKey: key, TokenRole: key,
		SecretIDFile: filepath.Join(dir, "secret-id"), AuditFile: filepath.Join(dir, "audit.log"),
	}
	s.enableAudit(t, fmt.Sprintf("file-%d", n))
	login, err := mint.Bootstrap{
		Addr: s.vault.Addr(), Token: s.vault.RootToken(),
		Mount: "transit", SigningKey: key, KeyType: "ecdsa-p256", Role: key, TokenRole: key, Policies: policies,
	}.Run(t.Context())
	if err != nil {
		t.Fatalf("preparing Vault: %v", err)
	}
	s.access.RoleID = login.RoleID
	if err := os.WriteFile(s.access.SecretIDFile, []byte(login.SecretID), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Minter = s.openMinter(t, log)
	if s.LogKey, err = s.Minter.LogKey(t.Context(), LogName); err != nil {
		t.Fatalf("opening the log's key: %v", err)
	}
}

// openMinter logs in to Vault as the stack's broker does.
func (s *Stack) openMinter(t testing.TB, log *slog.Logger) *mint.Minter {
	t.Helper()
	a := s.access
	addr := a.Addr
	if s.options.VaultVia != nil {
		addr = s.options.VaultVia(addr)
	}
	minter, err := mint.Open(t.Context(), mint.Config{
		Addr: addr, Mount: "transit", SigningKey: a.SigningKey, TokenRole: a.TokenRole, MaxTTL: time.Hour,
		Now: time.Now, Log: log, Auth: mint.Auth{AppRole: &mint.AppRole{RoleID: a.RoleID, SecretIDFile: a.SecretIDFile}},
	})
	if err != nil {
		t.Fatalf("logging in to Vault: %v", err)
	}
	runInBackground(t, minter.Run)
	return minter
}

// Vault returns a client that may do everything in Vault.
func (s *Stack) Vault(t testing.TB) *api.Client {
	t.Helper()
	cfg := api.DefaultConfig()
	cfg.Address = s.vault.Addr()
	admin, err := api.NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	admin.SetToken(s.vault.RootToken())
	return admin
}

// TargetURL leads, as its administrator, to the database that Vault makes logins for.
func (s *Stack) TargetURL(t testing.TB) string {
	t.Helper()
	return Devstack(t).Postgres.TargetURL()
}

func (s *Stack) enableAudit(t testing.TB, name string) {
	t.Helper()
	admin := s.Vault(t)
	err := admin.Sys().EnableAuditWithOptionsWithContext(t.Context(), name, &api.EnableAuditOptions{
		Type: "file", Options: map[string]string{"file_path": s.access.AuditFile},
	})
	if err != nil {
		t.Fatalf("enabling Vault's audit log: %v", err)
	}
	// A device whose file is gone would make Vault refuse everything to the stacks that follow.
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
		defer cancel()
		if err := admin.Sys().DisableAuditWithContext(ctx, name); err != nil {
			t.Errorf("disabling Vault's audit log: %v", err)
		}
	})
}

// Asked counts the calls of anybody to Vault whose path begins so, by Vault's own audit log.
func (s *Stack) Asked(t testing.TB, prefix string) int {
	t.Helper()
	return len(s.calls(t, `"path":"`+prefix))
}

// calls are those lines of Vault's audit log that are about requests, and hold a text.
func (s *Stack) calls(t testing.TB, text string) []string {
	t.Helper()
	log, err := os.ReadFile(s.access.AuditFile)
	if err != nil {
		t.Fatalf("reading Vault's audit log: %v", err)
	}
	var found []string
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, `"type":"request"`) && strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// Signings counts the texts that Vault was asked to sign for this stack: one request can hold several.
func (s *Stack) Signings(t testing.TB) int {
	t.Helper()
	texts := 0
	for _, line := range s.calls(t, `"path":"transit/sign/`+s.access.SigningKey+`"`) {
		texts += strings.Count(line, `"input":`)
	}
	return texts
}
