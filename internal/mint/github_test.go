package mint_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/mint"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/internal/testkit/githubapi"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/uuid"
)

// hubWorld is a real Vault with the key of a GitHub App, and a strict double of GitHub.
type hubWorld struct {
	*admin
	hub    *testkit.GitHub
	config mint.Config
	minter *mint.Minter
}

const (
	signsWithAcme = `path "brevet-github/sign/acme/sha2-256" { capabilities = ["create", "update"] }`
	hubPolicy     = "brevet-scope.hub.acme"
)

// withHub returns a minter that knows the App acme. spoil, unless nil, sees each request to Vault and to GitHub, and may fail it before or
// after it is carried out.
func withHub(t *testing.T, spoil func(next http.RoundTripper, r *http.Request) (*http.Response, error)) *hubWorld {
	t.Helper()
	a := realVault(t)
	w := &hubWorld{admin: a, hub: testkit.StartGitHub(t)}
	name := "hub-" + strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-"))
	b := bootstrap(a.Addr(), a.RootToken())
	b.SigningKey, b.Role = name, name
	b.Policies = []scopes.VaultPolicy{{Name: hubPolicy, Text: signsWithAcme}}
	b.GitHub = true
	b.GitHubKeys = map[string]secret.Text{testkit.GitHubApp: w.hub.KeyPEM}
	login, err := b.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.config = dial(t, a, name, mint.Auth{AppRole: &mint.AppRole{RoleID: login.RoleID, SecretIDFile: file(t, login.SecretID)}})
	w.config.GitHub = map[string]mint.GitHubApp{testkit.GitHubApp: w.hub.App()}
	if spoil != nil {
		w.config.Transport = func(next http.RoundTripper) http.RoundTripper {
			return tripper(func(r *http.Request) (*http.Response, error) { return spoil(next, r) })
		}
	}
	w.minter = open(t, w.config)
	return w
}

type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func hubIntent(life time.Duration) broker.Intent {
	return broker.Intent{
		ID: uuid.Must(uuid.NewV7()).String(), Expires: time.Now().Add(life).Truncate(time.Second), Kind: scopes.KindGitHub,
		Grant: &scopes.Grant{
			Policy: hubPolicy, Method: scopes.MethodWrite, Path: "brevet-github/sign/acme/sha2-256", Leased: true,
			Data: map[string]string{"app": "acme", "installation": "48872301", "repositories": "acme/api,acme/docs", "permissions": "contents=read,issues=write"},
		},
	}
}

// kept returns what Vault keeps for an issuance.
func (w *hubWorld) kept(t *testing.T, intent broker.Intent) map[string]any {
	t.Helper()
	entry, err := w.root.Logical().ReadWithContext(t.Context(), broker.GitHubLease(intent.ID))
	if err != nil {
		t.Fatal(err)
	}
	if entry == nil {
		return nil
	}
	return entry.Data
}

func TestInstallationTokenIsKeptUntilItIsRevoked(t *testing.T) {
	w := withHub(t, nil)
	intent := hubIntent(10 * time.Minute)
	got, err := mint.MintGrant(t.Context(), w.minter, intent)
	if err != nil {
		t.Fatal(err)
	}
	var parts struct{ Token string }
	if err := json.Unmarshal([]byte(got.Secret.Reveal()), &parts); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(parts.Token))
	want := broker.VaultLease{Accessor: got.Minted.Accessor, Lease: broker.GitHubLease(intent.ID)}
	if want.Accessor == "" || got.Minted.VaultLease != want || got.Minted.Digest != sum || got.Minted.Name != base64.StdEncoding.EncodeToString(sum[:]) {
		t.Errorf("for the record: %+v", got.Minted)
	}
	if kept := w.kept(t, intent); kept["token"] != parts.Token || kept["app"] != "acme" {
		t.Error("Vault does not keep the token")
	}
	if alive, err := w.minter.Alive(t.Context(), want); err != nil || !alive {
		t.Errorf("alive: %t, %v", alive, err)
	}
	if err := w.minter.Renew(t.Context(), *got.Minted); err != nil {
		t.Errorf("renewing: %v", err)
	}
	for range 2 { // the second time there is nothing left to do
		if err := w.minter.Revoke(t.Context(), want); err != nil {
			t.Errorf("revoking: %v", err)
		}
	}
	alive, err := w.minter.Alive(t.Context(), want)
	if len(w.hub.Live()) != 0 || w.kept(t, intent) != nil || alive || err != nil {
		t.Errorf("alive at GitHub: %d, kept: %t, alive: %t, %v", len(w.hub.Live()), w.kept(t, intent) != nil, alive, err)
	}
}

// What GitHub refused, or was never asked, leaves nothing behind. A token that Brevet saw and cannot use is revoked at once (I7).
func TestFailedInstallationTokenLeavesNothing(t *testing.T) {
	other := hubIntent(time.Minute)
	other.Grant.Data["app"] = "other"
	foreign := hubIntent(time.Minute)
	foreign.Grant.Data["installation"] = "1"
	long := hubIntent(90 * time.Minute) // GitHub's tokens live for an hour
	for name, tt := range map[string]struct {
		intent    broker.Intent
		behaviour githubapi.Behaviour
		want      error
	}{
		"unknown App":          {intent: other, want: broker.ErrGitHubRefused},
		"unknown installation": {intent: foreign, want: broker.ErrGitHubRefused},
		"unreachable":          {behaviour: githubapi.Behaviour{Unreachable: true}, want: broker.ErrGitHubUnavailable},
		"limited":              {behaviour: githubapi.Behaviour{Limit: githubapi.Primary, RetryAfter: time.Minute}, want: broker.ErrGitHubLimited},
		"wider":                {behaviour: githubapi.Behaviour{OtherGrant: func(g *githubapi.Grant) { g.Permissions["contents"] = "write" }}, want: broker.ErrMintMismatch},
		"other repository":     {behaviour: githubapi.Behaviour{OtherGrant: func(g *githubapi.Grant) { g.Repositories[0] = "acme/site" }}, want: broker.ErrMintMismatch},
		"too short":            {intent: long, want: broker.ErrMintMismatch},
	} {
		t.Run(name, func(t *testing.T) {
			w := withHub(t, nil)
			intent := tt.intent
			if intent.ID == "" {
				intent = hubIntent(10 * time.Minute)
			}
			w.hub.Behave(tt.behaviour)
			_, err := mint.MintGrant(t.Context(), w.minter, intent)
			w.hub.Behave(githubapi.Behaviour{})
			if _, lost := errors.AsType[*broker.LostMintError](err); !errors.Is(err, tt.want) || lost {
				t.Errorf("got %v, lost: %t; want %v", err, lost, tt.want)
			}
			if w.kept(t, intent) != nil || len(w.hub.Live()) != 0 {
				t.Errorf("kept: %t, alive: %d", w.kept(t, intent) != nil, len(w.hub.Live()))
			}
		})
	}
}

// A token that was lost on its way may be alive, and nobody can revoke it: the error says until when.
func TestLostInstallationTokenIsKnownUntilItIsDead(t *testing.T) {
	w := withHub(t, nil)
	w.hub.Behave(githubapi.Behaviour{LoseAnswer: true, For: githubapi.CreatesToken})
	intent := hubIntent(10 * time.Minute)
	_, err := mint.MintGrant(t.Context(), w.minter, intent)
	w.hub.Behave(githubapi.Behaviour{})
	lost, ok := errors.AsType[*broker.LostMintError](err)
	if !ok || !errors.Is(err, broker.ErrGitHubUnavailable) || time.Until(lost.Until) < time.Hour || time.Until(lost.Until) > time.Hour+2*time.Minute {
		t.Fatalf("got %v, until %v", err, lost)
	}
	lease := broker.VaultLease{Lease: broker.GitHubLease(intent.ID)}
	var mayLive *broker.MayLiveError
	if err := w.minter.Revoke(t.Context(), lease); !errors.As(err, &mayLive) || !mayLive.Until.Equal(lost.Until) {
		t.Errorf("revoking: %v", err)
	}
	later := w.config
	later.Now = func() time.Time { return lost.Until.Add(time.Second) }
	if err := open(t, later).Revoke(t.Context(), lease); err != nil || w.kept(t, intent) != nil {
		t.Errorf("once it is dead: %v, kept: %t", err, w.kept(t, intent) != nil)
	}
}

// If Vault fails between two steps, GitHub either was not asked or has ended the token, or the error says that one may be alive (C5).
func TestVaultFailsWhileATokenIsMade(t *testing.T) {
	stored := func(r *http.Request) bool { return strings.Contains(r.URL.Path, "/"+scopes.GitHubTokens+"/") }
	errInjected := errors.New("injected")
	for name, tt := range map[string]struct {
		fails       func(nth int64, r *http.Request) bool
		asked, lost bool // GitHub was asked; the error says that a token may be alive
	}{
		"before the marker":         {fails: func(n int64, r *http.Request) bool { return stored(r) && n == 1 }},
		"while the App signs":       {fails: func(_ int64, r *http.Request) bool { return strings.Contains(r.URL.Path, "/sign/acme/") }},
		"while the token is stored": {fails: func(n int64, r *http.Request) bool { return stored(r) && n == 2 }, asked: true},
		"from the answer on":        {fails: func(n int64, r *http.Request) bool { return stored(r) && n >= 2 }, asked: true, lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			var armed atomic.Bool
			var n atomic.Int64
			w := withHub(t, func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
				if !armed.Load() {
					return next.RoundTrip(r)
				}
				count := int64(0)
				if stored(r) {
					count = n.Add(1)
				}
				if tt.fails(count, r) {
					return nil, errInjected
				}
				return next.RoundTrip(r)
			})
			armed.Store(true)
			intent := hubIntent(10 * time.Minute)
			_, err := mint.MintGrant(t.Context(), w.minter, intent)
			armed.Store(false)
			_, lost := errors.AsType[*broker.LostMintError](err)
			if err == nil || lost != tt.lost {
				t.Errorf("got %v, lost: %t, want %t", err, lost, tt.lost)
			}
			asked := false
			for _, call := range w.hub.Calls() {
				asked = asked || strings.HasSuffix(call.Path, "/access_tokens")
			}
			if asked != tt.asked || len(w.hub.Live()) != 0 {
				t.Errorf("GitHub was asked: %t, want %t; alive: %d", asked, tt.asked, len(w.hub.Live()))
			}
		})
	}
}

// The policy of a scope lets its token sign with the key of its own App, and do nothing else.
func TestTokenOfAScopeSignsOnlyWithItsOwnApp(t *testing.T) {
	w := withHub(t, nil)
	b := bootstrap(w.Addr(), w.RootToken())
	b.GitHubKeys = map[string]secret.Text{"second": w.hub.KeyPEM}
	if _, err := b.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	token := w.token(t, hubPolicy, "5m")
	input := map[string]any{"input": base64.StdEncoding.EncodeToString([]byte("x"))}
	for path, want := range map[string]int{
		"brevet-github/sign/acme/sha2-256":   http.StatusOK,
		"brevet-github/sign/acme/sha2-512":   http.StatusForbidden,
		"brevet-github/sign/acme":            http.StatusForbidden,
		"brevet-github/sign/second/sha2-256": http.StatusForbidden,
		"brevet-github/keys/acme/rotate":     http.StatusForbidden,
		"brevet-github-tokens/x":             http.StatusForbidden,
	} {
		if got := statusOf(t, w.admin, token, "PUT", path, input); got != want {
			t.Errorf("PUT %s: got %d, want %d", path, got, want)
		}
	}
}

func TestRemovedAppIsNamed(t *testing.T) {
	w := withHub(t, nil)
	intent := hubIntent(10 * time.Minute)
	if _, err := mint.MintGrant(t.Context(), w.minter, intent); err != nil {
		t.Fatal(err)
	}
	without := w.config
	without.GitHub = nil
	lease := broker.VaultLease{Lease: broker.GitHubLease(intent.ID)}
	if err := open(t, without).Revoke(t.Context(), lease); !errors.Is(err, broker.ErrGitHubRefused) || !strings.Contains(err.Error(), `"acme"`) {
		t.Errorf("got %v", err)
	}
	if err := w.minter.Revoke(t.Context(), lease); err != nil || len(w.hub.Live()) != 0 {
		t.Errorf("with the App: %v, alive: %d", err, len(w.hub.Live()))
	}
}

// For some seconds after one replica made a token, another replica does not take GitHub's 401 for its end.
func TestOtherReplicaDoesNotTakeAYoungTokenForADeadOne(t *testing.T) {
	w := withHub(t, nil)
	replica := open(t, w.config)
	w.hub.Behave(githubapi.Behaviour{Settling: 4 * time.Second})
	intent := hubIntent(10 * time.Minute)
	if _, err := mint.MintGrant(t.Context(), w.minter, intent); err != nil {
		t.Fatal(err)
	}
	lease := broker.VaultLease{Lease: broker.GitHubLease(intent.ID)}
	if err := replica.Revoke(t.Context(), lease); !errors.Is(err, broker.ErrGitHubUnavailable) || w.kept(t, intent) == nil {
		t.Errorf("got %v, kept: %t, alive: %d; want an error, as the token is alive", err, w.kept(t, intent) != nil, len(w.hub.Live()))
	}
	w.hub.Behave(githubapi.Behaviour{})
	w.hub.Advance(6 * time.Second)
	if err := replica.Revoke(t.Context(), lease); err != nil || len(w.hub.Live()) != 0 || w.kept(t, intent) != nil {
		t.Errorf("got %v, alive: %d; want none", err, len(w.hub.Live()))
	}
}

// A 404 that is not of Vault, such as that of a load balancer, does not mean that a token is dead.
func TestForeign404IsNotTheEndOfAToken(t *testing.T) {
	for name, body := range map[string]string{"a page": "<html>404 Not Found</html>", "other JSON": "{}", "nothing": ""} {
		t.Run(name, func(t *testing.T) {
			var astray atomic.Bool
			w := withHub(t, func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
				if astray.Load() && r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/"+scopes.GitHubTokens+"/") {
					return &http.Response{StatusCode: http.StatusNotFound, Body: io.NopCloser(strings.NewReader(body)), Header: http.Header{}, Request: r}, nil
				}
				return next.RoundTrip(r)
			})
			intent := hubIntent(10 * time.Minute)
			if _, err := mint.MintGrant(t.Context(), w.minter, intent); err != nil {
				t.Fatal(err)
			}
			astray.Store(true)
			if err := w.minter.Revoke(t.Context(), broker.VaultLease{Lease: broker.GitHubLease(intent.ID)}); err == nil {
				t.Errorf("the token counts as dead, and %d live", len(w.hub.Live()))
			}
		})
	}
}

// After a mint that failed, Brevet does not call a GitHub that limits calls again and again.
func TestLimitedGitHubIsNotCalledAgain(t *testing.T) {
	var deletes atomic.Int64
	w := withHub(t, func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		if !githubapi.DeletesToken(r) {
			return next.RoundTrip(r)
		}
		deletes.Add(1)
		return &http.Response{
			StatusCode: http.StatusTooManyRequests, Body: io.NopCloser(strings.NewReader(`{"message":"slow down"}`)),
			Header: http.Header{"Retry-After": {"60"}}, Request: r,
		}, nil
	})
	w.hub.Behave(githubapi.Behaviour{OtherGrant: func(g *githubapi.Grant) { g.Permissions["contents"] = "write" }})
	_, err := mint.MintGrant(t.Context(), w.minter, hubIntent(10*time.Minute))
	if _, lost := errors.AsType[*broker.LostMintError](err); !lost || deletes.Load() != 1 {
		t.Errorf("got %v after %d calls, want one call and a token that may be alive", err, deletes.Load())
	}
}
