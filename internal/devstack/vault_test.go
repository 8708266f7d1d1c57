package devstack_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/hashicorp/vault/api"
	"github.com/jackc/pgx/v5"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

func client(t *testing.T, v *devstack.Vault) *api.Client {
	t.Helper()
	cfg := api.DefaultConfig()
	cfg.Address, cfg.MaxRetries = v.Addr(), 0
	c, err := api.NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.SetToken(v.RootToken())
	return c
}

func write(t *testing.T, v *devstack.Vault, path string, data map[string]any) map[string]any {
	t.Helper()
	secret, err := client(t, v).Logical().WriteWithContext(t.Context(), path, data)
	if err != nil {
		t.Fatal(err)
	}
	if secret == nil {
		return nil
	}
	return secret.Data
}

func read(t *testing.T, v *devstack.Vault, path string) map[string]any {
	t.Helper()
	secret, err := client(t, v).Logical().ReadWithContext(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if secret == nil {
		t.Fatalf("%s: got nothing", path)
	}
	return secret.Data
}

func base64Of(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

// signature makes Vault sign a message as JWS does and returns the signature in Vault's form.
func signature(t *testing.T, v *devstack.Vault, key, message string) string {
	t.Helper()
	answer := write(t, v, "transit/sign/"+key, map[string]any{
		"input": base64Of(message), "hash_algorithm": "sha2-256", "marshaling_algorithm": "jws",
	})
	text, _ := answer["signature"].(string)
	return text
}

func TestVaultSignsES256(t *testing.T) {
	t.Parallel()
	vault := shared(t).Vault
	write(t, vault, "sys/mounts/transit", map[string]any{"type": "transit"})
	write(t, vault, "transit/keys/es256", map[string]any{"type": "ecdsa-p256"})
	keys, _ := read(t, vault, "transit/keys/es256")["keys"].(map[string]any)
	version, _ := keys["1"].(map[string]any)
	text, _ := version["public_key"].(string)
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		t.Fatalf("public key: got %q, want PEM", text)
	}
	public, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(signature(t, vault, "es256", "message"), "vault:v1:"))
	if err != nil || len(raw) != 64 {
		t.Fatalf("signature: got %d bytes, %v, want 64", len(raw), err)
	}
	sum := sha256.Sum256([]byte("message"))
	r, s := new(big.Int).SetBytes(raw[:32]), new(big.Int).SetBytes(raw[32:])
	if !ecdsa.Verify(public.(*ecdsa.PublicKey), sum[:], r, s) {
		t.Error("the signature does not verify")
	}
}

// Vault reuses the files of deleted entries. The test checks that no remaining entry is in one of them, and reads them from
// the files after a restart.
func TestDeletionKeepsOtherVaultEntries(t *testing.T) {
	t.Parallel()
	vault := start(t, t.TempDir()).Vault
	write(t, vault, "sys/mounts/kept", map[string]any{"type": "kv"})
	kept := map[string]string{}
	const names, rounds = 40, 300
	random := rand.New(rand.NewPCG(1, 2)) // the same on each run
	for i := range rounds {
		path := fmt.Sprintf("kept/%d/%d", i%3, random.IntN(names))
		if random.IntN(3) == 0 {
			if _, err := client(t, vault).Logical().DeleteWithContext(t.Context(), path); err != nil {
				t.Fatal(err)
			}
			delete(kept, path)
			continue
		}
		kept[path] = strings.Repeat(path, 1+random.IntN(200)) // shorter and longer than the file's earlier content
		write(t, vault, path, map[string]any{"value": kept[path]})
	}
	if err := errors.Join(vault.Stop(), vault.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	for folder := range 3 {
		for name := range names {
			path := fmt.Sprintf("kept/%d/%d", folder, name)
			secret, err := client(t, vault).Logical().ReadWithContext(t.Context(), path)
			if err != nil {
				t.Fatal(err)
			}
			want, there := kept[path]
			switch {
			case (secret != nil) != there:
				t.Errorf("%s: is there: %t, want %t", path, secret != nil, there)
			case there && secret.Data["value"] != want:
				t.Errorf("%s: got another value than was written", path)
			}
		}
	}
}

func TestVaultMakesDatabaseLogins(t *testing.T) {
	t.Parallel()
	stack := shared(t)
	vault, pg := stack.Vault, stack.Postgres
	admin, err := url.Parse(pg.TCPURL())
	if err != nil {
		t.Fatal(err)
	}
	password, _ := admin.User.Password()
	write(t, vault, "sys/mounts/logins", map[string]any{"type": "database"})
	write(t, vault, "logins/config/brevet", map[string]any{
		"plugin_name":    "postgresql-database-plugin",
		"connection_url": "postgresql://{{username}}:{{password}}@" + pg.Addr() + "/brevet?sslmode=disable",
		"username":       admin.User.Username(), "password": password, "allowed_roles": "reader",
	})
	write(t, vault, "logins/roles/reader", map[string]any{
		"db_name": "brevet", "default_ttl": "1m",
		"creation_statements": `CREATE ROLE "{{name}}" LOGIN PASSWORD '{{password}}' VALID UNTIL '{{expiration}}'`,
	})
	secret, err := client(t, vault).Logical().ReadWithContext(t.Context(), "logins/creds/reader")
	if err != nil {
		t.Fatal(err)
	}
	login, _ := secret.Data["username"].(string)
	word, _ := secret.Data["password"].(string)
	admin.User = url.UserPassword(login, word)
	if got := query(t, admin.String(), `SELECT current_user::text`); got != login || login == "" {
		t.Errorf("login: got %q, want %q", got, login)
	}
	write(t, vault, "sys/leases/revoke", map[string]any{"lease_id": secret.LeaseID, "sync": true})
	if got := query(t, pg.AdminURL(), `SELECT rolname::text FROM pg_roles WHERE rolname = `+"'"+login+"'"); got != "" {
		t.Errorf("role after revocation: got %q, want none", got)
	}
	if conn, err := pgx.Connect(t.Context(), admin.String()); err == nil {
		_ = conn.Close(t.Context())
		t.Error("the login works after its revocation")
	}
}

func TestVaultAcceptsJWTSVIDs(t *testing.T) {
	t.Parallel()
	vault := shared(t).Vault
	td := spiffeid.RequireTrustDomainFromString("acme.example")
	issuer, stranger := issuerOf(t, td), issuerOf(t, td)
	_, key := issuer.JWTKey()
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	write(t, vault, "sys/auth/jwt", map[string]any{"type": "jwt"})
	write(t, vault, "auth/jwt/config", map[string]any{
		"jwt_validation_pubkeys": []string{string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))},
	})
	id := spiffeid.RequireFromPath(td, "/broker")
	write(t, vault, "auth/jwt/role/broker", map[string]any{
		"role_type": "jwt", "user_claim": "sub", "bound_audiences": "vault", "bound_subject": id.String(),
	})
	for _, test := range []struct {
		name   string
		issuer *devstack.Issuer
		id     spiffeid.ID
		aud    string
		want   bool
	}{
		{"ours", issuer, id, "vault", true},
		{"another workload", issuer, spiffeid.RequireFromPath(td, "/other"), "vault", false},
		{"another audience", issuer, id, "elsewhere", false},
		{"another issuer's key", stranger, id, "vault", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			token, err := test.issuer.JWTSVID(test.id, test.aud)
			if err != nil {
				t.Fatal(err)
			}
			c := client(t, vault)
			c.ClearToken()
			secret, err := c.Logical().WriteWithContext(t.Context(), "auth/jwt/login",
				map[string]any{"role": "broker", "jwt": token})
			if got := err == nil && secret.Auth.ClientToken != ""; got != test.want {
				t.Errorf("login: got %v (%v), want %v", got, err, test.want)
			}
		})
	}
}

func TestVaultHasTheEnginesWeUse(t *testing.T) {
	t.Parallel()
	vault := shared(t).Vault
	for _, engine := range []string{"pki", "ssh", "kv", "kv-v2"} {
		write(t, vault, "sys/mounts/try-"+engine, map[string]any{"type": engine})
	}
	write(t, vault, "sys/auth/approle", map[string]any{"type": "approle"})
	write(t, vault, "try-kv/a", map[string]any{"word": "kept"})
	if got := read(t, vault, "try-kv/a")["word"]; got != "kept" {
		t.Errorf("kv: got %v, want kept", got)
	}
}

// The audit device is present from the first request on, and again after a restart: OpenBao does not allow adding one later.
func TestVaultAuditsEveryRequest(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 2 {
		stack, err := devstack.Start(t.Context(), devstack.Config{Dir: dir, VaultAudit: true})
		if err != nil {
			t.Fatal(err)
		}
		path := fmt.Sprintf("sys/policies/acl/audited-%d", i)
		write(t, stack.Vault, path, map[string]any{"policy": `path "a" {}`})
		log, err := os.ReadFile(stack.Vault.AuditFile())
		if err != nil {
			t.Fatal(err)
		}
		if got := bytes.Count(log, []byte(`"path":"`+path+`"`)); got != 2 {
			t.Errorf("start %d: got %d entries about one call in the audit log, want its request and its response", i, got)
		}
		stop(t, stack)
	}
}

// standIn returns a program that reports OpenBao's version and exits when it is run as a server.
func standIn(t *testing.T) string {
	t.Helper()
	script := filepath.Join(t.TempDir(), "bao")
	text := "#!/bin/sh\n[ \"$1\" = version ] && echo 'OpenBao v2.6.2 (0123abc), built 2026-08-13T00:00:00Z' && exit\necho no server here\nexit 3\n"
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return script
}

// OpenBao has dropped disable_mlock, drops file storage in 2.7, and does not let its API enable an audit device.
//
// TestOpenBaoGetsAConfigurationOfItsOwn may not run in parallel with other tests: it changes the environment.
func TestOpenBaoGetsAConfigurationOfItsOwn(t *testing.T) {
	t.Setenv("BREVET_VAULT_BIN", standIn(t))
	dir := t.TempDir()
	if _, err := devstack.Start(t.Context(), devstack.Config{Dir: dir, VaultAudit: true}); err == nil || !strings.Contains(err.Error(), "no server here") {
		t.Fatalf("got %v, want the end of the stand-in", err)
	}
	config, err := os.ReadFile(filepath.Join(dir, "vault", "config.hcl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, refused := range []string{"disable_mlock", `storage "file"`, "unsafe_"} {
		if bytes.Contains(config, []byte(refused)) {
			t.Errorf("the configuration has %s:\n%s", refused, config)
		}
	}
	for _, needed := range []string{`storage "raft"`, "cluster_addr ", `audit "file" "devstack"`} {
		if !bytes.Contains(config, []byte(needed)) {
			t.Errorf("the configuration lacks %s:\n%s", needed, config)
		}
	}
}

// TestDataOfAnotherServerIsNotOpened may not run in parallel with other tests: it changes the environment.
func TestDataOfAnotherServerIsNotOpened(t *testing.T) {
	dir := t.TempDir()
	stack, err := devstack.Start(t.Context(), devstack.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	write(t, stack.Vault, "sys/policies/acl/kept", map[string]any{"policy": `path "a" {}`})
	stop(t, stack)
	t.Run("by OpenBao", func(t *testing.T) {
		t.Setenv("BREVET_VAULT_BIN", standIn(t))
		_, err := devstack.Start(t.Context(), devstack.Config{Dir: dir})
		if err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "BREVET_VAULT_BIN") || strings.Contains(err.Error(), "no server here") {
			t.Errorf("got %v, want an error that names the folder and says what to do, before the server starts", err)
		}
	})
	if got := read(t, start(t, dir).Vault, "sys/policies/acl/kept")["policy"]; got != `path "a" {}` {
		t.Errorf("got %v, want what was there before", got)
	}
}
