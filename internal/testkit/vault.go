package testkit

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/mint"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/hashicorp/vault/api"
)

// VaultAccess describes how the broker of a Stack reaches Vault, so that a test can start another replica of it.
type VaultAccess struct {
	Addr, SigningKey, TokenRole string
	RoleID, SecretIDFile        string
	// AuditFile is the file of the audit device of this test process. It records all callers' requests to this Vault.
	AuditFile string
}

// VaultAccess returns how the stack's broker reaches Vault.
func (s *Stack) VaultAccess() VaultAccess { return s.access }

// engines are mounted once, by the first stack with a catalogue that needs them.
var engines struct {
	sync.Once
	err error
}

// openVault creates a signing key and a login for this stack alone, and the engines and policies that its catalogue needs.
func (s *Stack) openVault(t testing.TB, catalogue *scopes.Catalogue, log *slog.Logger) {
	t.Helper()
	s.vault = Devstack(t).Vault
	policies := catalogue.VaultPolicies()
	if len(policies) > 0 {
		engines.Do(func() { engines.err = Devstack(t).PrepareEngines(t.Context()) })
		if engines.err != nil {
			t.Fatalf("preparing Vault's engines: %v", engines.err)
		}
	}
	key := newName()
	s.access = VaultAccess{
		Addr: s.vault.Addr(), SigningKey: key, TokenRole: key, SecretIDFile: filepath.Join(t.TempDir(), "secret-id"), AuditFile: s.vault.AuditFile(),
	}
	apps, keys := s.options.GitHub.apps()
	s.gitHub = apps
	login, err := mint.Bootstrap{
		GitHub: catalogue.NeedsGitHub(), GitHubKeys: keys,
		Addr: s.vault.Addr(), Token: s.vault.RootToken(),
		Mount: "transit", SigningKey: key, Role: key, TokenRole: key, Policies: policies,
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
		GitHub: s.gitHub,
		Addr:   addr, Mount: "transit", SigningKey: a.SigningKey, TokenRole: a.TokenRole, MaxTTL: time.Hour,
		Now: time.Now, Log: log, Auth: mint.Auth{AppRole: &mint.AppRole{RoleID: a.RoleID, SecretIDFile: a.SecretIDFile}},
	})
	if err != nil {
		t.Fatalf("logging in to Vault: %v", err)
	}
	runInBackground(t, minter.Run)
	return minter
}

// Vault returns a client that has all rights in Vault.
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

// TargetURL returns the administrator's URL of the database that Vault creates logins for.
func (s *Stack) TargetURL(t testing.TB) string {
	t.Helper()
	return Devstack(t).Postgres.TargetURL()
}

// auditLog holds the parts of this test process's Vault audit log that were read so far: requests by path. All stacks
// share it, because each stack recognises its calls by its key.
var auditLog = struct {
	sync.Mutex
	read  int64
	lines map[string][]string
}{lines: map[string][]string{}}

// Asked counts the requests of all callers to Vault whose path begins with prefix, by Vault's own audit log.
func (s *Stack) Asked(t testing.TB, prefix string) int {
	t.Helper()
	calls := 0
	readAudit(t, func(requests map[string][]string) {
		for path, lines := range requests {
			if strings.HasPrefix(path, prefix) {
				calls += len(lines)
			}
		}
	})
	return calls
}

// Signings counts the texts that this stack asked Vault to sign. One request can hold several texts.
func (s *Stack) Signings(t testing.TB) int {
	t.Helper()
	texts := 0
	readAudit(t, func(requests map[string][]string) {
		for _, line := range requests["transit/sign/"+s.access.SigningKey] {
			texts += strings.Count(line, `"input":`)
		}
	})
	return texts
}

var requestPath = regexp.MustCompile(`"path":"([^"]*)"`)

// readAudit passes the request lines of Vault's audit log to show, by path. Vault writes a request's line before it answers.
func readAudit(t testing.TB, show func(requests map[string][]string)) {
	t.Helper()
	auditLog.Lock()
	defer auditLog.Unlock()
	file, err := os.Open(Devstack(t).Vault.AuditFile())
	if err != nil {
		t.Fatalf("reading Vault's audit log: %v", err)
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Seek(auditLog.read, io.SeekStart); err != nil {
		t.Fatalf("reading Vault's audit log: %v", err)
	}
	added, err := io.ReadAll(file)
	if err != nil {
		t.Fatalf("reading Vault's audit log: %v", err)
	}
	added = added[:bytes.LastIndexByte(added, '\n')+1] // the last line may be incomplete
	auditLog.read += int64(len(added))
	for line := range strings.Lines(string(added)) {
		if path := requestPath.FindStringSubmatch(line); path != nil && strings.Contains(line, `"type":"request"`) {
			auditLog.lines[path[1]] = append(auditLog.lines[path[1]], line)
		}
	}
	show(auditLog.lines)
}
