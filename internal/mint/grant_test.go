package mint_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/mint"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/crypto/ssh"
)

var enginesOnce sync.Once

// estate is a real Vault with engines, as Bootstrap and PrepareEngines leave it, and a minter on it.
type estate struct {
	*admin
	stack  *devstack.Stack
	minter *mint.Minter
	config mint.Config
}

func realLive(t *testing.T) *estate {
	t.Helper()
	realVault(t)
	stack := testkit.Devstack(t)
	enginesOnce.Do(func() {
		if err := stack.PrepareEngines(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	return liveOf(t, stack)
}

func liveOf(t *testing.T, stack *devstack.Stack) *estate {
	t.Helper()
	e := &estate{
		admin: &admin{Vault: stack.Vault, root: clientOf(t, stack.Vault.Addr(), stack.Vault.RootToken())}, stack: stack,
	}
	name := "grant-" + strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-"))
	b := bootstrap(e.Addr(), e.RootToken())
	b.SigningKey, b.Role = name, name
	for _, w := range wares(t) {
		b.Policies = append(b.Policies, w.policy)
	}
	login, err := b.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	e.config = dial(t, e.admin, name, mint.Auth{AppRole: &mint.AppRole{RoleID: login.RoleID, SecretIDFile: file(t, login.SecretID)}})
	e.minter = open(t, e.config)
	return e
}

// ware is one kind of credential, as a catalogue would define it.
type ware struct {
	kind   string
	grant  scopes.Grant
	policy scopes.VaultPolicy
}

const sshKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"

func request(t *testing.T) string {
	t.Helper()
	der, err := x509.CreateCertificateRequest(nil, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "www.acme.test"}, DNSNames: []string{"evil.acme.test"},
	}, p256(t))
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

// wares returns one of each kind, by name.
func wares(t *testing.T) map[string]ware {
	t.Helper()
	out := map[string]ware{}
	add := func(name, kind string, g scopes.Grant) {
		capability := "read"
		if g.Method == scopes.MethodWrite {
			capability = "update"
		}
		path := g.Path
		if path == "" {
			path = "secret/data/agents/researcher"
		}
		g.Policy = "brevet-scope.test." + name
		out[name] = ware{kind, g, scopes.VaultPolicy{
			Name: g.Policy, Text: `path "` + path + `" { capabilities = ["` + capability + `"] }`,
		}}
	}
	add("token", scopes.KindVaultToken, scopes.Grant{Leased: true})
	add("database", scopes.KindDatabase, scopes.Grant{Method: scopes.MethodRead, Path: "database/creds/reporting", Leased: true})
	add("pki", scopes.KindPKI, scopes.Grant{Method: scopes.MethodWrite, Path: "pki/sign/web", Leased: true, Data: map[string]string{
		"csr": request(t), "common_name": "www.acme.test", "alt_names": "api.acme.test,cdn.acme.test",
	}})
	add("pki-key", scopes.KindPKI, scopes.Grant{Method: scopes.MethodWrite, Path: "pki/issue/web", Leased: true, Data: map[string]string{
		"common_name": "www.acme.test",
	}})
	add("ssh", scopes.KindSSH, scopes.Grant{Method: scopes.MethodWrite, Path: "ssh/sign/deploy", Data: map[string]string{
		"public_key": sshKey, "valid_principals": "deploy", "cert_type": "user",
	}})
	add("kv", scopes.KindKV, scopes.Grant{Method: scopes.MethodRead, Path: "secret/data/agents/researcher", Static: true})
	add("vault", scopes.KindVault, scopes.Grant{Method: scopes.MethodRead, Path: "database/creds/reporting", Leased: true})
	add("vault-static", scopes.KindVault, scopes.Grant{Method: scopes.MethodRead, Path: "secret/data/agents/researcher", Static: true})
	return out
}

func (w ware) intent(life time.Duration) broker.Intent {
	g := w.grant
	return broker.Intent{
		ID: uuid.Must(uuid.NewV7()).String(), Expires: time.Now().Add(life).Truncate(time.Second), Kind: w.kind, Grant: &g,
	}
}

// made mints a credential and returns its parts.
func (e *estate) made(t *testing.T, w ware, life time.Duration) (broker.Intent, broker.Minted, map[string]any) {
	t.Helper()
	intent := w.intent(life)
	credential, err := mint.MintGrant(t.Context(), e.minter, intent)
	if err != nil {
		t.Fatal(err)
	}
	if credential.Minted == nil {
		t.Fatal("nothing for the record")
	}
	var out map[string]any
	if err := json.Unmarshal([]byte(credential.Secret.Reveal()), &out); err != nil {
		t.Fatal(err)
	}
	return intent, *credential.Minted, out
}

// connects tries a database login.
func (e *estate) connects(t *testing.T, login map[string]any) (*pgx.Conn, error) {
	t.Helper()
	if inner, ok := login["data"].(map[string]any); ok {
		login = inner
	}
	cfg, err := pgx.ParseConfig(e.stack.Postgres.TargetURL())
	if err != nil {
		t.Fatal(err)
	}
	cfg.User, _ = login["username"].(string)
	cfg.Password, _ = login["password"].(string)
	return pgx.ConnectConfig(t.Context(), cfg)
}

// works reports whether a minted credential can be used.
func (e *estate) works(t *testing.T, w ware, secret map[string]any) bool {
	t.Helper()
	switch w.kind {
	case scopes.KindVaultToken:
		return statusOf(t, e.admin, secret["token"].(string), "GET", "secret/data/agents/researcher", nil) == 200
	case scopes.KindPKI:
		cert, err := e.root.Logical().ReadWithContext(t.Context(), "pki/cert/"+secret["serial_number"].(string))
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode([]byte(cert.Data["certificate"].(string)))
		leaf, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		return cert.Data["revocation_time"].(json.Number).String() == "0" && time.Now().Before(leaf.NotAfter)
	default:
		conn, err := e.connects(t, secret)
		if err != nil {
			return false
		}
		defer func() { _ = conn.Close(t.Context()) }()
		var orders int
		return conn.QueryRow(t.Context(), `SELECT count(*) FROM orders`).Scan(&orders) == nil && orders == 3
	}
}

// leased are the names of the wares that Vault can revoke.
var leased = []string{"token", "database", "pki", "pki-key", "vault"}

// TestLeasedCredentials follows each kind from the mint to its revocation. Without a renewal none lives for long (C5 and C6). A
// revocation can be repeated, by a replica that does not know whether Vault has carried it out (C8).
func TestLeasedCredentials(t *testing.T) {
	e := realLive(t)
	for _, name := range leased {
		t.Run(name, func(t *testing.T) {
			w := wares(t)[name]
			intent, minted, secret := e.made(t, w, time.Minute)
			if minted.Accessor == "" || (minted.Lease == "") != (name == "token") || minted.Digest == [32]byte{} || minted.Name == "" {
				t.Errorf("got %+v, want an accessor, a lease, a name and a digest", minted)
			}
			if !strings.HasPrefix(name, "pki") && !strings.Contains(minted.Name, intent.ID) {
				t.Errorf("got name %s, want one that holds %s", minted.Name, intent.ID)
			}
			e.livesUnder(t, minted.Accessor, intent)
			if !e.works(t, w, secret) {
				t.Error("it cannot be used")
			}
			for range 2 {
				if err := e.minter.Renew(t.Context(), minted); err != nil {
					t.Fatalf("renewing: %v", err)
				}
			}
			if life := e.life(t, minted.Accessor); life > time.Until(intent.Expires)+time.Second || life < time.Until(intent.Expires)-5*time.Second {
				t.Errorf("renewed: it lives for another %v, want until %v", life, intent.Expires)
			}
			if alive, err := e.minter.Alive(t.Context(), minted.VaultLease); err != nil || !alive {
				t.Errorf("got alive %t, %v; want true", alive, err)
			}
			for range 2 {
				if err := e.minter.Revoke(t.Context(), minted.VaultLease); err != nil {
					t.Fatalf("revoking: %v", err)
				}
			}
			if e.works(t, w, secret) {
				t.Error("it works after it was revoked")
			}
			if alive, err := e.minter.Alive(t.Context(), minted.VaultLease); err != nil || alive {
				t.Errorf("got alive %t, %v; want false", alive, err)
			}
			if err := e.minter.Renew(t.Context(), minted); !errors.Is(err, broker.ErrVaultRefused) {
				t.Errorf("renewing what is dead: got %v, want ErrVaultRefused", err)
			}
		})
	}
}

// A credential for at most half a minute lives no longer than an unrenewed one. So it is not renewed, and ends on time.
func TestBriefCredentialsAreNotRenewed(t *testing.T) {
	e := realLive(t)
	for _, name := range leased {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := wares(t)[name]
			intent, minted, secret := e.made(t, w, 6*time.Second)
			if !minted.Whole {
				t.Fatalf("got %+v, want one that lives to its end", minted)
			}
			e.livesUnder(t, minted.Accessor, intent)
			before := e.life(t, minted.Accessor)
			if err := e.minter.Renew(t.Context(), minted); err != nil {
				t.Errorf("renewing: %v", err)
			}
			if after := e.life(t, minted.Accessor); after > before || before > time.Until(intent.Expires)+time.Second {
				t.Errorf("it lives for another %v, and %v before it was renewed, want until %v", after, before, intent.Expires)
			}
			if !e.works(t, w, secret) {
				t.Error("it cannot be used")
			}
			for deadline := intent.Expires.Add(20 * time.Second); ; time.Sleep(200 * time.Millisecond) {
				alive, err := e.minter.Alive(t.Context(), minted.VaultLease)
				if err == nil && !alive && !e.works(t, w, secret) {
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("got alive %t, %v long after its end", alive, err)
				}
			}
		})
	}
}

// livesUnder checks the token of a credential as Vault describes it.
func (e *estate) livesUnder(t *testing.T, accessor string, intent broker.Intent) {
	t.Helper()
	data := e.write(t, "auth/token/lookup-accessor", map[string]any{"accessor": accessor})
	policies, _ := data["policies"].([]any)
	meta, _ := data["meta"].(map[string]any)
	if data["orphan"] != true || data["display_name"] != "token-"+intent.ID || data["type"] != "service" ||
		len(policies) != 1 || policies[0] != intent.Grant.Policy || meta["issuance"] != intent.ID {
		t.Errorf("got token %v", data)
	}
	if life := e.life(t, accessor); life > broker.UnrenewedLife {
		t.Errorf("unrenewed it lives for %v", life)
	}
	longest, _ := data["explicit_max_ttl"].(json.Number).Int64()
	if got := time.Duration(longest) * time.Second; got <= 0 || got > time.Minute {
		t.Errorf("got an explicit max TTL of %v, want a minute at most", got)
	}
}

func (e *estate) life(t *testing.T, accessor string) time.Duration {
	t.Helper()
	data := e.write(t, "auth/token/lookup-accessor", map[string]any{"accessor": accessor})
	left, err := data["ttl"].(json.Number).Int64()
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(left) * time.Second
}

// TestCertificateMatchesTheRequest checks certificates with an X.509 library that had no part in making them, and OpenSSH
// certificates in the same way. Names in the signing request are not part of what was asked for (H56, I7).
func TestCertificateMatchesTheRequest(t *testing.T) {
	e := realLive(t)
	for _, name := range []string{"pki", "pki-key"} {
		intent, minted, secret := e.made(t, wares(t)[name], 2*time.Minute)
		block, _ := pem.Decode([]byte(secret["certificate"].(string)))
		leaf, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM([]byte(secret["issuing_ca"].(string)))
		for _, host := range append(strings.Split(intent.Grant.Data["alt_names"], ","), "www.acme.test") {
			if host == "" {
				continue
			}
			if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host}); err != nil {
				t.Errorf("%s: %s: %v", name, host, err)
			}
		}
		if leaf.VerifyHostname("evil.acme.test") == nil {
			t.Errorf("%s: it is good for a name that was not asked for", name)
		}
		if !leaf.NotAfter.Equal(intent.Expires) || secret["serial_number"] != minted.Name {
			t.Errorf("%s: got end %v and serial %v, want %v and %v", name, leaf.NotAfter, secret["serial_number"], intent.Expires, minted.Name)
		}
		if _, there := secret["private_key"]; there != (name == "pki-key") {
			t.Errorf("%s: got members %v", name, secret)
		}
	}
}

func TestSSHAndStaticCredentialsHaveNoLease(t *testing.T) {
	e := realLive(t)
	for _, name := range []string{"ssh", "kv", "vault-static"} {
		t.Run(name, func(t *testing.T) {
			intent, minted, secret := e.made(t, wares(t)[name], 2*time.Minute)
			if minted.VaultLease != (broker.VaultLease{}) {
				t.Errorf("got %+v, want no handle", minted.VaultLease)
			}
			switch name {
			case "ssh":
				key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(secret["signed_key"].(string)))
				if err != nil {
					t.Fatal(err)
				}
				cert := key.(*ssh.Certificate)
				checker := ssh.CertChecker{IsUserAuthority: func(ssh.PublicKey) bool { return true }}
				if err := checker.CheckCert("deploy", cert); err != nil {
					t.Errorf("for deploy: %v", err)
				}
				if checker.CheckCert("root", cert) == nil {
					t.Error("it is good for root (H55)")
				}
				if end := time.Unix(int64(cert.ValidBefore), 0); end.After(intent.Expires) || end.Before(intent.Expires.Add(-5*time.Second)) {
					t.Errorf("got end %v, want %v", end, intent.Expires)
				}
				if minted.Name != cert.KeyId || !strings.Contains(minted.Name, intent.ID) || minted.Digest == [32]byte{} {
					t.Errorf("got %+v", minted)
				}
			case "kv":
				data, _ := secret["data"].(map[string]any)
				if data["search_api_key"] != "example-0001" || secret["version"] != float64(1) || minted.Name != "version 1" {
					t.Errorf("got %v as %s", secret, minted.Name)
				}
				fallthrough
			default:
				if minted.Digest != [32]byte{} {
					t.Error("a static secret has a digest, from which it could be guessed")
				}
			}
		})
	}
}

// TestRefusedMintLeavesNothing tries everything that Vault would refuse again: nothing stays behind.
func TestRefusedMintLeavesNothing(t *testing.T) {
	e := realLive(t)
	e.write(t, "sys/policies/acl/brevet-scope.test.nowhere", map[string]any{"policy": `path "database/creds/nowhere" { capabilities = ["read"] }`})
	e.write(t, "sys/mounts/plain", map[string]any{"type": "kv"})
	e.write(t, "pki/roles/unleased", map[string]any{"allowed_domains": "acme.test", "allow_subdomains": true, "generate_lease": false, "key_type": "ec", "use_csr_sans": false})
	e.write(t, "pki/roles/greedy", map[string]any{"allowed_domains": "acme.test", "allow_subdomains": true, "generate_lease": true, "key_type": "ec", "use_csr_sans": true})
	e.write(t, "ssh/roles/nameless", map[string]any{"key_type": "ca", "allow_user_certificates": true, "allowed_users": "deploy", "key_id_format": "x"})
	e.write(t, "sys/policies/acl/brevet-scope.test.other", map[string]any{"policy": `
		path "pki/sign/*" { capabilities = ["update"] }
		path "ssh/sign/*" { capabilities = ["update"] }`})
	for _, tc := range []struct {
		name, ware string
		change     func(*broker.Intent)
		want       error
		says       string
	}{
		{"a policy that is not in Vault", "database", func(i *broker.Intent) { i.Grant.Policy = "brevet-scope.test.missing" }, broker.ErrVaultRefused, "403"},
		{"a policy that no scope has", "database", func(i *broker.Intent) { i.Grant.Policy = "root" }, broker.ErrVaultRefused, "400"},
		{"a role that is not there", "database", func(i *broker.Intent) {
			i.Grant.Policy, i.Grant.Path = "brevet-scope.test.nowhere", "database/creds/nowhere"
		}, broker.ErrVaultRefused, "nowhere"},
		{"a secret that is not there", "kv", func(i *broker.Intent) { i.Grant.Path = "secret/data/agents/nobody" }, broker.ErrVaultRefused, "403"},
		{"a name outside the role", "pki", func(i *broker.Intent) { i.Grant.Data["common_name"] = "evil.example" }, broker.ErrVaultRefused, "evil.example"},
		{"a principal outside the role (H55)", "ssh", func(i *broker.Intent) { i.Grant.Data["valid_principals"] = "root" }, broker.ErrVaultRefused, "root"},
		{"a certificate without a lease", "pki", func(i *broker.Intent) {
			i.Grant.Policy, i.Grant.Path = "brevet-scope.test.other", "pki/sign/unleased"
		}, broker.ErrMintMismatch, "generate_lease=true"},
		{"names from the signing request (H56)", "pki", func(i *broker.Intent) {
			i.Grant.Policy, i.Grant.Path = "brevet-scope.test.other", "pki/sign/greedy"
		}, broker.ErrMintMismatch, "DNS names"},
		{"a key id of the role's own", "ssh", func(i *broker.Intent) {
			i.Grant.Policy, i.Grant.Path = "brevet-scope.test.other", "ssh/sign/nameless"
		}, broker.ErrMintMismatch, "key id"},
		{"a lease that was to be none", "vault", func(i *broker.Intent) { i.Grant.Leased, i.Grant.Static = false, true }, broker.ErrMintMismatch, "lease"},
		{"no lease where one was to be", "kv", func(i *broker.Intent) { i.Grant.Leased, i.Grant.Static = true, false }, broker.ErrMintMismatch, "no lease"},
		{"no time left", "database", func(i *broker.Intent) { i.Expires = time.Now().Add(500 * time.Millisecond) }, broker.ErrVaultUnavailable, "no time"},
		{"a path that climbs (H52)", "vault", func(i *broker.Intent) { i.Grant.Path = "database/../sys/seal" }, broker.ErrMintMismatch, "plain"},
		{"the engine that signs tokens", "vault", func(i *broker.Intent) { i.Grant.Path = "transit/sign/x" }, broker.ErrMintMismatch, "signs tokens"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			intent := wares(t)[tc.ware].intent(time.Minute)
			tc.change(&intent)
			credential, err := mint.MintGrant(t.Context(), e.minter, intent)
			var lost *broker.LostMintError
			mayLinger := strings.Contains(tc.name, "lease that was to be none") // Vault ends it asynchronously
			if !errors.Is(err, tc.want) || errors.As(err, &lost) != mayLinger || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want %v that says %q, with nothing lost", err, tc.want, tc.says)
			}
			if credential.Minted != nil || credential.Secret.Reveal() != "" {
				t.Errorf("got a credential besides: %+v", credential.Minted)
			}
			until(t, "no database role left", func() bool { return e.roles(t, intent.ID) == 0 })
			if err := e.minter.Ready(t.Context()); err != nil {
				t.Errorf("one scope that is not set up makes all not ready: %v", err)
			}
		})
	}
}

// The error names the engine, because an admin can only mount an engine that it names.
func TestMissingEngineIsNamed(t *testing.T) {
	e := realLive(t)
	e.write(t, "sys/policies/acl/brevet-scope.test.unmounted", map[string]any{"policy": `
		path "team/reporting-of-the-whole-company/*" { capabilities = ["read", "update"] }`})
	for _, tc := range []struct{ ware, path, mount string }{
		{"database", "team/reporting-of-the-whole-company/creds/reader", "team/reporting-of-the-whole-company"},
		{"pki", "team/reporting-of-the-whole-company/sign/web", "team/reporting-of-the-whole-company"},
		{"pki-key", "team/reporting-of-the-whole-company/issue/web", "team/reporting-of-the-whole-company"},
		{"ssh", "team/reporting-of-the-whole-company/sign/deploy", "team/reporting-of-the-whole-company"},
		{"kv", "team/reporting-of-the-whole-company/data/key", "team/reporting-of-the-whole-company/data/key"},
	} {
		t.Run(tc.ware, func(t *testing.T) {
			intent := wares(t)[tc.ware].intent(time.Minute)
			intent.Grant.Policy, intent.Grant.Path = "brevet-scope.test.unmounted", tc.path
			_, err := mint.MintGrant(t.Context(), e.minter, intent)
			var missing *broker.NotMountedError
			if !errors.As(err, &missing) || missing.Mount != tc.mount || !errors.Is(err, broker.ErrVaultRefused) {
				t.Fatalf("got %v, want an ErrVaultRefused that says that nothing is mounted at %s", err, tc.mount)
			}
			if !strings.Contains(err.Error(), tc.mount) {
				t.Errorf("got %q, want a text that names %s", err, tc.mount)
			}
		})
	}
}

// If the Transit engine is not mounted, the error at startup names it.
func TestMissingTransitEngineIsNamed(t *testing.T) {
	a := realVault(t)
	a.write(t, "sys/policies/acl/unmounted-transit", map[string]any{"policy": mint.Policy("team/transit-of-the-whole-company", "k", "brevet")})
	auth, _ := a.role(t, "unmounted-transit", nil)
	cfg := dial(t, a, "k", auth)
	cfg.Mount = "team/transit-of-the-whole-company"
	if _, err := mint.Open(t.Context(), cfg); !errors.Is(err, broker.ErrVaultUnavailable) ||
		!strings.Contains(err.Error(), `mounted at "team/transit-of-the-whole-company": run brevet bootstrap`) {
		t.Errorf("got %v, want an ErrVaultUnavailable that names the mount and says what to run", err)
	}
}

// roles counts the database roles whose name contains a text and that can still log in.
func (e *estate) roles(t *testing.T, text string) int {
	t.Helper()
	conn := testkit.Connect(t, e.stack.Postgres.TargetURL())
	var n int
	if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_roles WHERE rolname LIKE '%' || $1 || '%' AND rolvaliduntil > now()`, text).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
