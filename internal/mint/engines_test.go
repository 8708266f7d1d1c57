package mint_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/mint"
	"github.com/brevet-dev/brevet/internal/testkit/clouds"
	"github.com/brevet-dev/brevet/scopes"
)

// farSides are Vault's engines aws and kubernetes, with the systems that they ask.
type farSides struct {
	*estate
	aws, kubernetes string // the mounts
	sts             *clouds.RoleSTS
	cluster         *clouds.Kubernetes
}

func withFarSides(t *testing.T) *farSides {
	t.Helper()
	e := realLive(t)
	engines := clouds.NewEngines(t, e.root, "-"+strings.ToLower(t.Name()))
	f := &farSides{estate: e, aws: engines.AWS, kubernetes: engines.Kubernetes, sts: engines.STS, cluster: engines.Cluster}
	f.write(t, f.aws+"/roles/short", map[string]any{"credential_type": "assumed_role", "role_arns": clouds.RoleARN("site"), "max_sts_ttl": "15m"})
	for name, role := range map[string]map[string]any{
		"rules":   {"generated_role_rules": "rules:\n- apiGroups: [\"\"]\n  resources: [pods]\n  verbs: [list]\n", "name_template": clouds.WholeName},
		"unnamed": {"kubernetes_role_name": "pod-reader"},
	} {
		role["allowed_kubernetes_namespaces"] = []string{"shop"}
		f.write(t, f.kubernetes+"/roles/"+name, role)
	}
	f.write(t, "sys/policies/acl/"+farSidePolicy(t), map[string]any{"policy": fmt.Sprintf(
		`path "%s/creds/*" { capabilities = ["create", "update"] }`+"\n"+`path "%s/creds/*" { capabilities = ["create", "update"] }`, f.aws, f.kubernetes)})
	return f
}

func farSidePolicy(t *testing.T) string {
	t.Helper()
	return "brevet-scope." + strings.ToLower(t.Name())
}

// grant asks an engine for a credential of a role.
func (f *farSides) grant(t *testing.T, path string, g scopes.Grant) ware {
	t.Helper()
	g.Policy, g.Method, g.Path = farSidePolicy(t), scopes.MethodWrite, path
	return ware{kind: scopes.KindVault, grant: g}
}

func dataOf(secret map[string]any) map[string]any {
	data, _ := secret["data"].(map[string]any)
	return data
}

// accepted reports whether AWS accepts the key of a credential.
func (f *farSides) accepted(t *testing.T, data map[string]any) bool {
	t.Helper()
	ok, err := f.sts.Accepts(t.Context(), data["access_key"].(string), data["secret_key"].(string), data["session_token"].(string))
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

// pods lists the pods of the namespace shop with kubectl.
func (f *farSides) pods(t *testing.T, data map[string]any) (string, error) {
	t.Helper()
	dir := t.TempDir()
	authority := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(authority, []byte(f.cluster.CA), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "kubectl", "--cache-dir", dir, "--server", f.cluster.URL,
		"--certificate-authority", authority, "--token", data["service_account_token"].(string), "-n", "shop", "get", "pods", "-o", "name")
	cmd.Env = append(os.Environ(), "HOME="+dir, "KUBECONFIG="+filepath.Join(dir, "none"))
	text, err := cmd.CombinedOutput()
	return string(text), err
}

// A key of AWS STS that somebody has ended lives on at AWS. So Brevet records nothing that could be revoked, and makes the key
// live exactly as long as it was granted.
func TestKeysOfSTSLiveAsLongAsTheyWereGranted(t *testing.T) {
	t.Parallel()
	f := withFarSides(t)
	for _, tc := range []struct {
		name       string
		life, most time.Duration
	}{
		{"longer than the minimum of AWS", 20 * time.Minute, 20 * time.Minute},
		{"the minimum of AWS", 15 * time.Minute, 15*time.Minute + 5*time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := f.grant(t, f.aws+"/creds/site", scopes.Grant{MinTTL: 15 * time.Minute})
			w.grant.Policy = "brevet-scope." + strings.ToLower(strings.Split(t.Name(), "/")[0])
			began := time.Now()
			intent, minted, secret := f.made(t, w, tc.life)
			data := dataOf(secret)
			if minted.VaultLease != (broker.VaultLease{}) || minted.Name != data["access_key"] || minted.Digest != sha256.Sum256([]byte(data["secret_key"].(string))) {
				t.Errorf("got %+v, want the name and the digest of the key, and nothing to revoke", minted)
			}
			if !f.accepted(t, data) {
				t.Error("AWS refuses the key")
			}
			sessions := f.sts.Sessions()
			i := slices.IndexFunc(sessions, func(s clouds.STSSession) bool { return s.KeyID == data["access_key"] })
			if i < 0 {
				t.Fatal("AWS does not know the key")
			}
			if !strings.Contains(sessions[i].Name, intent.ID) {
				t.Errorf("AWS calls the session %s, want a name with %s", sessions[i].Name, intent.ID)
			}
			if life := sessions[i].Expires.Sub(began); life > tc.most || life < tc.life-5*time.Second {
				t.Errorf("AWS accepts it for %v, want %v", life, tc.life)
			}
			data["secret_key"] = "not the key"
			if f.accepted(t, data) {
				t.Error("AWS accepts a wrong key")
			}
		})
	}
}

// TestLeasesThatEndNothingAreNotCounted shows what Vault does: it confirms the end of a lease whose key lives on. So Brevet refuses
// such a lease, unless the scope says that nobody can revoke the credential (I6).
func TestLeasesThatEndNothingAreNotCounted(t *testing.T) {
	t.Parallel()
	f := withFarSides(t)
	made := f.write(t, f.aws+"/creds/site", map[string]any{"ttl": "15m"})
	f.write(t, "sys/leases/revoke-prefix/"+f.aws, map[string]any{"sync": true})
	if !f.accepted(t, made) {
		t.Error("AWS refuses the key after Vault revoked the lease; this engine can revoke keys now")
	}
	fixed := map[string]any{"kubernetes_namespace": "shop", "ttl": "10m"}
	made = f.write(t, f.kubernetes+"/creds/deployer", fixed)
	f.write(t, "sys/leases/revoke-prefix/"+f.kubernetes, map[string]any{"sync": true})
	if text, err := f.pods(t, made); err != nil {
		t.Errorf("the cluster refuses the token after Vault revoked the lease: %s; this engine can revoke it now", text)
	}
	namespace := map[string]string{"kubernetes_namespace": "shop", "ttl": "10m"}
	for _, tc := range []struct {
		name string
		w    ware
		want error
	}{
		{"a key of STS", f.grant(t, f.aws+"/creds/site", scopes.Grant{Leased: true, Data: map[string]string{"ttl": "15m"}}), broker.ErrMintMismatch},
		{"a token of a service account that existed before", f.grant(t, f.kubernetes+"/creds/deployer", scopes.Grant{Leased: true, Data: namespace}), broker.ErrMintMismatch},
		{"a token of a service account without the issuance's name", f.grant(t, f.kubernetes+"/creds/unnamed", scopes.Grant{Leased: true, Data: namespace}), broker.ErrMintMismatch},
	} {
		if _, err := mint.MintGrant(t.Context(), f.minter, tc.w.intent(5*time.Minute)); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", tc.name, err, tc.want)
		}
	}
	if got := f.cluster.Accounts("shop"); !slices.Equal(got, []string{"deployer"}) {
		t.Errorf("the cluster has the service accounts %v", got)
	}
}

// A token of a service account that Vault made for it ends with its lease, and without renewal after half a minute.
func TestTokensOfNewServiceAccountsEndWithTheirLease(t *testing.T) {
	t.Parallel()
	f := withFarSides(t)
	for _, role := range []string{"pods", "rules"} {
		w := f.grant(t, f.kubernetes+"/creds/"+role, scopes.Grant{Leased: true, Data: map[string]string{"kubernetes_namespace": "shop", "ttl": "10m"}})
		intent, minted, secret := f.made(t, w, time.Minute)
		data := dataOf(secret)
		if minted.Lease == "" || !strings.Contains(minted.Name, intent.ID) || minted.Name != data["service_account_name"] ||
			minted.Digest != sha256.Sum256([]byte(data["service_account_token"].(string))) {
			t.Errorf("%s: got %+v", role, minted)
		}
		f.livesUnder(t, minted.Accessor, intent)
		if text, err := f.pods(t, data); err != nil || text != "pod/web-0\n" {
			t.Fatalf("%s: kubectl: %v: %s", role, err, text)
		}
		if err := f.minter.Renew(t.Context(), minted); err != nil {
			t.Errorf("%s: renewing: %v", role, err)
		}
		if err := f.minter.Revoke(t.Context(), minted.VaultLease); err != nil {
			t.Fatalf("%s: revoking: %v", role, err)
		}
		if text, err := f.pods(t, data); err == nil || !strings.Contains(text, "Unauthorized") && !strings.Contains(text, "provide credentials") {
			t.Errorf("%s: kubectl after the end: %v: %s", role, err, text)
		}
	}
	_, minted, secret := f.made(t, f.grant(t, f.kubernetes+"/creds/pods", scopes.Grant{
		Leased: true, Data: map[string]string{"kubernetes_namespace": "shop", "ttl": "10m"},
	}), 5*time.Minute)
	for deadline := time.Now().Add(broker.UnrenewedLife + 20*time.Second); slices.Contains(f.cluster.Accounts("shop"), minted.Name); time.Sleep(time.Second) {
		if time.Now().After(deadline) {
			t.Fatal("nobody renewed it, and its service account still exists")
		}
	}
	if text, err := f.pods(t, dataOf(secret)); err == nil {
		t.Errorf("the token works without its service account: %s", text)
	}
	if got := f.cluster.Bindings("shop"); !slices.Equal(got, []string{"deployer"}) {
		t.Errorf("the cluster has the role bindings %v", got)
	}
}

// A token of an existing service account lives as long as it was granted.
func TestTokensOfExistingServiceAccountsLiveAsLongAsTheyWereGranted(t *testing.T) {
	t.Parallel()
	f := withFarSides(t)
	w := f.grant(t, f.kubernetes+"/creds/deployer", scopes.Grant{MinTTL: 10 * time.Minute, Data: map[string]string{"kubernetes_namespace": "shop"}})
	_, minted, secret := f.made(t, w, 12*time.Minute)
	if minted.VaultLease != (broker.VaultLease{}) || minted.Name != "deployer" {
		t.Errorf("got %+v", minted)
	}
	token := dataOf(secret)["service_account_token"].(string)
	life, ok := mint.LifeOfJWT(token)
	if !ok || life > 12*60 || life < 12*60-5 {
		t.Errorf("the cluster accepts it for %d s", life)
	}
	if text, err := f.pods(t, dataOf(secret)); err != nil {
		t.Errorf("kubectl: %v: %s", err, text)
	}
}

// The other system's word counts: a credential whose life is not the granted one is not delivered. It may live on, so its
// outcome is unknown (I7).
func TestLivesOfTheOtherSystemThatDifferAreRefused(t *testing.T) {
	t.Parallel()
	f := withFarSides(t)
	namespace := map[string]string{"kubernetes_namespace": "shop"}
	for _, tc := range []struct {
		name string
		w    ware
		life time.Duration
		set  func()
		want error
		lost bool
	}{
		{"AWS gives more", f.grant(t, f.aws+"/creds/site", scopes.Grant{MinTTL: 15 * time.Minute}), 20 * time.Minute, func() { f.sts.Stretch(time.Hour) }, broker.ErrMintMismatch, true},
		{"the role of Vault gives less", f.grant(t, f.aws+"/creds/short", scopes.Grant{MinTTL: 15 * time.Minute}), 30 * time.Minute, func() { f.sts.Stretch(0) }, broker.ErrVaultRefused, true},
		{"less than AWS gives", f.grant(t, f.aws+"/creds/site", scopes.Grant{}), 5 * time.Minute, nil, broker.ErrVaultRefused, false},
		{"less than the cluster gives", f.grant(t, f.kubernetes+"/creds/deployer", scopes.Grant{Data: namespace}), 5 * time.Minute, nil, broker.ErrVaultUnavailable, true},
		{"the life that the cluster extends to a year", f.grant(t, f.kubernetes+"/creds/deployer", scopes.Grant{Data: namespace, MinTTL: 3607 * time.Second}), 59 * time.Minute, nil, broker.ErrMintMismatch, true},
		{"the cluster gives less", f.grant(t, f.kubernetes+"/creds/deployer", scopes.Grant{Data: namespace}), 40 * time.Minute, func() { f.cluster.CapTokens(15 * time.Minute) }, broker.ErrVaultRefused, true},
		{"a lease that ends early", f.grant(t, f.kubernetes+"/creds/pods", scopes.Grant{Leased: true, Data: map[string]string{"kubernetes_namespace": "shop", "ttl": "10m"}}), 20 * time.Minute, nil, broker.ErrVaultRefused, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.set != nil {
				tc.set()
			}
			intent := tc.w.intent(tc.life)
			_, err := mint.MintGrant(t.Context(), f.minter, intent)
			_, lost := errors.AsType[*broker.LostMintError](err)
			if !errors.Is(err, tc.want) || lost != tc.lost {
				t.Errorf("got %v (lost: %t), want %v (%t)", err, lost, tc.want, tc.lost)
			}
		})
	}
}

// An answer that Vault did not get may have brought a key that lives. A refusal has brought none.
func TestKeysOfSTSThatVaultHasLostAreUnknown(t *testing.T) {
	t.Parallel()
	f := withFarSides(t)
	w := f.grant(t, f.aws+"/creds/site", scopes.Grant{MinTTL: 15 * time.Minute})
	other := f.grant(t, f.aws+"/creds/other", scopes.Grant{MinTTL: 15 * time.Minute})
	f.write(t, f.aws+"/roles/other", map[string]any{"credential_type": "assumed_role", "role_arns": clouds.RoleARN("other")})
	_, err := mint.MintGrant(t.Context(), f.minter, other.intent(20*time.Minute))
	if _, lost := errors.AsType[*broker.LostMintError](err); lost || !errors.Is(err, broker.ErrVaultRefused) {
		t.Errorf("a role that AWS refuses: got %v, want ErrVaultRefused", err)
	}
	f.sts.LoseAnswers()
	_, err = mint.MintGrant(t.Context(), f.minter, w.intent(20*time.Minute))
	if _, lost := errors.AsType[*broker.LostMintError](err); !lost {
		t.Errorf("an answer that was lost: got %v, want a LostMintError", err)
	}
	if got := len(f.sts.Sessions()); got != 1 {
		t.Errorf("AWS has %d sessions, want the one whose key nobody knows", got)
	}
}
