package mint_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/mint"
	"github.com/brevet-dev/brevet/scopes"
)

const (
	createPath = "auth/token/create/brevet"
	drawPath   = "database/creds/reporting"
	grantTok   = "hvs.CAESIWrapperTokenThatMustNeverBeSeen"
	accessor   = "wrapperAccessor0000000000"
	leaseID    = "database/creds/reporting/abcdefghijklmnopqrstuvwx"
	password   = "pAss-word-that-must-never-be-seen"
)

// wrapper is a correct answer to the creation of a token.
func wrapper() map[string]any {
	return map[string]any{
		"client_token": grantTok, "accessor": accessor, "policies": []string{"brevet-scope.test.database"},
		"token_policies": []string{"brevet-scope.test.database"}, "orphan": true, "renewable": true,
		"lease_duration": 30, "entity_id": "", "token_type": "service",
	}
}

// grants makes the impostor create database logins as Vault would, and end them.
func (v *impostor) grants() {
	v.lie(createPath, func(w http.ResponseWriter, _ *http.Request) { reply(w, map[string]any{"auth": wrapper()}) })
	v.lie(drawPath, func(w http.ResponseWriter, _ *http.Request) { reply(w, loginAnswer()) })
	v.ends()
}

// ends makes the impostor confirm the end of any token or lease.
func (v *impostor) ends() {
	v.lie("sys/leases/revoke", says(204, ""))
	v.lie("auth/token/revoke-accessor", says(204, ""))
	v.lie("sys/leases/lookup", says(400, `{"errors":["invalid lease"]}`))
	v.lie("auth/token/lookup-accessor", says(400, `{"errors":["1 error occurred:\n\t* invalid accessor\n\n"]}`))
}

func loginAnswer() map[string]any {
	return map[string]any{
		"request_id": "r-1", "lease_id": leaseID, "lease_duration": 30, "renewable": true,
		"data": map[string]any{"username": "v-token-x", "password": password},
	}
}

func databaseIntent(t *testing.T) broker.Intent {
	t.Helper()
	intent := wares(t)["database"].intent(0)
	intent.Expires = epoch.Add(5 * time.Minute)
	return intent
}

// outcome returns what is known after a failed mint.
func outcome(t *testing.T, m *mint.Minter, intent broker.Intent) (*broker.LostMintError, error) {
	t.Helper()
	credential, err := mint.MintGrant(t.Context(), m, intent)
	if err == nil || credential.Minted != nil || credential.Secret.Reveal() != "" {
		t.Errorf("got %+v, %v; want an error and nothing else", credential.Minted, err)
	}
	for _, secret := range []string{grantTok, password, vaultTok} {
		if strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err), secret) {
			t.Errorf("the error holds a secret (I9): %v", err)
		}
	}
	var lost *broker.LostMintError
	errors.As(err, &lost)
	return lost, err
}

// TestUnexpectedVaultTokenIsRevoked is H70 for the token that a credential lives under (I7): it is revoked, and never used to read
// anything.
func TestUnexpectedVaultTokenIsRevoked(t *testing.T) {
	for name, change := range map[string]map[string]any{
		"another policy":    {"policies": []string{"brevet-scope.test.other"}},
		"one policy more":   {"policies": []string{"brevet-scope.test.database", "root"}},
		"the default one":   {"policies": []string{"brevet-scope.test.database", "default"}},
		"none":              {"policies": []string{}},
		"others underneath": {"token_policies": []string{"brevet-scope.test.database", "x"}},
		"an identity's":     {"identity_policies": []string{"x"}},
		"an entity":         {"entity_id": "e-1"},
		"no orphan":         {"orphan": false},
		"for ever":          {"lease_duration": 0},
		"for too long":      {"lease_duration": 31},
		"not renewable":     {"renewable": false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newImpostor(t, p256(t))
			m := open(t, knock(t, v.URL))
			v.grants()
			auth := wrapper()
			maps.Copy(auth, change)
			v.lie(createPath, func(w http.ResponseWriter, _ *http.Request) { reply(w, map[string]any{"auth": auth}) })
			lost, err := outcome(t, m, databaseIntent(t))
			if !errors.Is(err, broker.ErrMintMismatch) || lost != nil {
				t.Errorf("got %v, lost %v; want ErrMintMismatch and nothing lost", err, lost)
			}
			if v.called(drawPath) != 0 || v.called("auth/token/revoke-accessor") != 1 {
				t.Errorf("got %d reads and %d revocations, want 0 and 1", v.called(drawPath), v.called("auth/token/revoke-accessor"))
			}
			v.lie("auth/token/lookup-accessor", says(503, ""))
			if lost, err = outcome(t, m, databaseIntent(t)); lost == nil || lost.VaultLease.Accessor != accessor {
				t.Errorf("with its end unconfirmed: got %v, want it lost with its accessor", err)
			}
		})
	}
}

// TestInvalidGrantResponseIsRevokedOrLost is H69 at both calls of a mint (C3 and C4): what was made is revoked, or reported as lost.
func TestInvalidGrantResponseIsRevokedOrLost(t *testing.T) {
	lies := map[string]http.HandlerFunc{
		"sealed":           says(503, `{"errors":["Vault is sealed"]}`),
		"internal error":   says(500, `{"errors":["boom"]}`),
		"200 and nothing":  says(200, ``),
		"200 and HTML":     says(200, `<html>welcome</html>`),
		"200 and 10 MB":    says(200, `{"data":{"password":"`+strings.Repeat("A", 10<<20)+`"}}`),
		"200 and null":     says(200, `null`),
		"200 and no data":  says(200, `{"data":null,"auth":null}`),
		"204":              says(204, ``),
		"redirect":         says(307, `{"data":{"username":"a","password":"b"},"lease_id":"x"}`),
		"hangs up":         hangsUp(""),
		"speaks no HTTP":   hangsUp("SSH-2.0-OpenSSH_9.9\r\n"),
		"echoes":           echoes(500),
		"echoes in a 200":  echoes(200),
		"an empty token":   says(200, `{"auth":{"client_token":"","accessor":""},"data":{}}`),
		"200 and no id":    says(200, `{"lease_id":"x","data":{"username":"a","password":"b"}}`),
		"members of types": says(200, `{"auth":{"client_token":1},"data":{"username":{}}}`),
	}
	for name, lie := range lies {
		for _, path := range []string{createPath, drawPath} {
			t.Run(name+" at "+path, func(t *testing.T) {
				v := newImpostor(t, p256(t))
				m := open(t, knock(t, v.URL))
				v.grants()
				v.lie(path, lie)
				lost, err := outcome(t, m, databaseIntent(t))
				if !errors.Is(err, broker.ErrVaultUnavailable) || lost == nil {
					t.Fatalf("got %v, want ErrVaultUnavailable, and lost", err)
				}
				if got := v.called(path); got != 1 {
					t.Errorf("got %d calls, want 1: a lost answer must never become a second lease", got)
				}
				want := broker.VaultLease{}
				if path == drawPath {
					want.Accessor = accessor
				}
				if lost.VaultLease != want {
					t.Errorf("got %+v, want %+v", lost.VaultLease, want)
				}
				if got := v.called("auth/token/revoke-accessor") == 1; got != (path == drawPath) {
					t.Errorf("revoked: %t", got)
				}
			})
		}
	}
}

// TestTruncatedGrantResponseIsReportedLost ends the connection after various bytes of a good answer.
func TestTruncatedGrantResponseIsReportedLost(t *testing.T) {
	v := newImpostor(t, p256(t))
	m := open(t, knock(t, v.URL))
	for path, body := range map[string]any{createPath: map[string]any{"auth": wrapper()}, drawPath: loginAnswer()} {
		v.grants()
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		whole := fmt.Sprintf("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
		for i := 0; i < len(whole); i += 7 {
			v.lie(path, hangsUp(whole[:i]))
			if lost, err := outcome(t, m, databaseIntent(t)); !errors.Is(err, broker.ErrVaultUnavailable) || lost == nil {
				t.Fatalf("%s cut at %d: got %v, want ErrVaultUnavailable, and lost", path, i, err)
			}
		}
		v.lie(path, hangsUp(whole))
		if credential, err := mint.MintGrant(t.Context(), m, databaseIntent(t)); err != nil || credential.Minted.Lease != leaseID {
			t.Errorf("%s whole: got %v", path, err)
		}
	}
}

// TestUnexpectedDatabaseLoginIsRevoked is I7 for a database: the lease is revoked before its token.
func TestUnexpectedDatabaseLoginIsRevoked(t *testing.T) {
	for name, change := range map[string]map[string]any{
		"no password": {"data": map[string]any{"username": "x"}},
		"no username": {"data": map[string]any{"password": password}},
		"no lease":    {"lease_id": ""},
		"of another":  {"lease_id": "database/creds/reporting2/abcdefghijklmnopqrstuvwx"},
	} {
		t.Run(name, func(t *testing.T) {
			v := newImpostor(t, p256(t))
			m := open(t, knock(t, v.URL))
			v.grants()
			answer := loginAnswer()
			maps.Copy(answer, change)
			v.lie(drawPath, func(w http.ResponseWriter, _ *http.Request) { reply(w, answer) })
			lost, err := outcome(t, m, databaseIntent(t))
			if !errors.Is(err, broker.ErrMintMismatch) || lost != nil {
				t.Errorf("got %v, want ErrMintMismatch and nothing lost", err)
			}
			want := 1
			if name == "no lease" || name == "of another" {
				want = 0 // only its token is known
			}
			if got := v.called("sys/leases/revoke"); got != want {
				t.Errorf("got %d revocations of the lease, want %d", got, want)
			}
		})
	}
}

// A minted credential is revoked even if the caller has gone.
func TestCancelledMintIsEnded(t *testing.T) {
	v := newImpostor(t, p256(t))
	m := open(t, knock(t, v.URL))
	v.grants()
	ctx, cancel := context.WithCancel(t.Context())
	v.lie(drawPath, func(w http.ResponseWriter, _ *http.Request) {
		cancel()
		reply(w, map[string]any{"request_id": "r-1", "data": map[string]any{}, "lease_id": leaseID})
	})
	if _, err := mint.MintGrant(ctx, m, databaseIntent(t)); err == nil {
		t.Error("got no error")
	}
	if got := v.called("auth/token/revoke-accessor"); got != 1 {
		t.Errorf("got %d revocations, want 1", got)
	}
}

// TestForbiddenBrokerTokenLogsInAgain is about a 403 for the broker's own token, which a new login repairs.
func TestForbiddenBrokerTokenLogsInAgain(t *testing.T) {
	v := newImpostor(t, p256(t))
	m := open(t, knock(t, v.URL))
	run(t, m)
	v.grants()
	v.lie(createPath, says(403, `{"errors":["permission denied"]}`))
	lost, err := outcome(t, m, databaseIntent(t))
	if !errors.Is(err, broker.ErrVaultUnavailable) || errors.Is(err, broker.ErrVaultRefused) || lost != nil {
		t.Errorf("got %v, want ErrVaultUnavailable and nothing lost", err)
	}
	until(t, "another login", func() bool { return v.called("auth/approle/login") == 2 })
}

// TestRevocationNeedsVaultsConfirmation lies about a revocation (I6).
func TestRevocationNeedsVaultsConfirmation(t *testing.T) {
	handle := broker.VaultLease{Accessor: accessor, Lease: leaseID}
	known := func(w http.ResponseWriter, r *http.Request) {
		var ask map[string]any
		_ = json.NewDecoder(r.Body).Decode(&ask)
		reply(w, map[string]any{"data": map[string]any{"accessor": ask["accessor"], "id": ask["lease_id"], "ttl": 30, "renewable": true}})
	}
	paths := []string{"sys/leases/revoke", "auth/token/revoke-accessor", "sys/leases/lookup", "auth/token/lookup-accessor"}
	for name, lie := range map[string]http.HandlerFunc{
		"sealed":                 says(503, `{"errors":["Vault is sealed"]}`),
		"our own login is bad":   says(403, `{"errors":["permission denied"]}`),
		"no such path":           says(404, `{"errors":["no handler for route \"sys/leases/lookup\""]}`),
		"no such path, silently": says(404, `{"errors":[]}`),
		"quota":                  says(429, ``),
		"500 with those words":   says(500, `{"errors":["invalid lease","invalid accessor"]}`),
		"accepted":               says(202, ``),
		"hangs up":               hangsUp(""),
		"HTML":                   says(200, `<html>`),
		"still there":            known,
		"about another":          says(200, `{"data":{"accessor":"x","id":"x"}}`),
	} {
		for _, path := range paths {
			revokes := strings.Contains(path, "revoke")
			if revokes && (name == "still there" || name == "about another" || strings.HasPrefix(name, "no such path")) {
				continue // the answer to the revocation does not count: the lookup does
			}
			t.Run(name+" at "+path, func(t *testing.T) {
				v := newImpostor(t, p256(t))
				m := open(t, knock(t, v.URL))
				v.ends()
				v.lie(path, lie)
				if err := m.Revoke(t.Context(), handle); err == nil {
					t.Error("got no error, and nobody has confirmed the end")
				}
				if revokes {
					return
				}
				alive, err := m.Alive(t.Context(), handle)
				if alive != (name == "still there") || (err == nil) != (name == "still there") {
					t.Errorf("got alive %t, %v", alive, err)
				}
			})
		}
	}
	v := newImpostor(t, p256(t))
	m := open(t, knock(t, v.URL))
	v.ends()
	if err := m.Revoke(t.Context(), handle); err != nil {
		t.Errorf("confirmed: got %v", err)
	}
}

// While its lease cannot be revoked, the token stays: nothing else could end the lease.
func TestTokenOutlivesItsLease(t *testing.T) {
	v := newImpostor(t, p256(t))
	m := open(t, knock(t, v.URL))
	v.ends()
	v.lie("sys/leases/revoke", says(400, `{"errors":["failed to revoke entry: connection refused"]}`))
	if err := m.Revoke(t.Context(), broker.VaultLease{Accessor: accessor, Lease: leaseID}); !errors.Is(err, broker.ErrVaultRefused) {
		t.Errorf("got %v, want ErrVaultRefused", err)
	}
	if got := v.called("auth/token/revoke-accessor"); got != 0 {
		t.Errorf("got %d revocations of the token, want none", got)
	}
}

// TestUnexpectedRenewalIsRefused makes Vault answer a renewal with something else (I3).
func TestUnexpectedRenewalIsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		token, lease int
		short        bool
		want         error
	}{
		"as ordered":                      {300, 300, true, nil},
		"a second less":                   {299, 299, true, nil},
		"a lease that lasts or cannot be": {300, 0, false, nil},
		"the token for too long":          {301, 300, true, broker.ErrMintMismatch},
		"the token for too short":         {290, 300, true, broker.ErrVaultRefused},
		"the lease for too short":         {300, 60, true, broker.ErrVaultRefused},
	} {
		t.Run(name, func(t *testing.T) {
			v := newImpostor(t, p256(t))
			m := open(t, knock(t, v.URL))
			asked := ""
			v.lie("auth/token/renew-accessor", func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				asked = string(body)
				reply(w, map[string]any{"auth": map[string]any{"lease_duration": tc.token}})
			})
			v.lie("sys/leases/renew", func(w http.ResponseWriter, _ *http.Request) {
				reply(w, map[string]any{"lease_id": leaseID, "lease_duration": tc.lease})
			})
			minted := broker.Minted{
				VaultLease: broker.VaultLease{Accessor: accessor, Lease: leaseID}, Until: epoch.Add(5 * time.Minute), ShortLease: tc.short,
			}
			if err := m.Renew(t.Context(), minted); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if want := `"increment":300`; !strings.Contains(asked, want) {
				t.Errorf("asked %s, want %s in it", asked, want)
			}
		})
	}
}

// The transport of the configuration sees every call, before any of our checks.
func TestTransportSeesEveryCall(t *testing.T) {
	v := newImpostor(t, p256(t))
	cfg := knock(t, v.URL)
	seen := map[string]int{}
	cfg.Transport = func(next http.RoundTripper) http.RoundTripper {
		return through(func(r *http.Request) (*http.Response, error) {
			seen[strings.TrimPrefix(r.URL.Path, "/v1/")]++
			return next.RoundTrip(r)
		})
	}
	m := open(t, cfg)
	v.grants()
	if _, err := mint.MintGrant(t.Context(), m, databaseIntent(t)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"auth/approle/login", keyPath, createPath, drawPath} {
		if seen[path] != 1 {
			t.Errorf("got %d calls to %s, want 1", seen[path], path)
		}
	}
	v.lie(drawPath, says(202, `{}`))
	if _, err := outcome(t, m, databaseIntent(t)); !errors.Is(err, broker.ErrVaultUnavailable) {
		t.Errorf("got %v, want ErrVaultUnavailable", err)
	}
}

type through func(*http.Request) (*http.Response, error)

func (f through) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// An intent of an unknown kind, or without a required part, causes no call to Vault.
func TestIncompleteIntentCallsNoVault(t *testing.T) {
	v := newImpostor(t, p256(t))
	m := open(t, knock(t, v.URL))
	v.grants()
	for name, change := range map[string]func(*broker.Intent){
		"no policy":             func(i *broker.Intent) { i.Grant.Policy = "" },
		"no issuance":           func(i *broker.Intent) { i.ID = "" },
		"no path":               func(i *broker.Intent) { i.Grant.Path = "" },
		"a path that climbs":    func(i *broker.Intent) { i.Grant.Path = "database/../sys/seal" },
		"a path with a slash":   func(i *broker.Intent) { i.Grant.Path = "/sys/seal" },
		"a method":              func(i *broker.Intent) { i.Grant.Method = "DELETE" },
		"a path beside a token": func(i *broker.Intent) { i.Kind = scopes.KindVaultToken },
	} {
		intent := databaseIntent(t)
		change(&intent)
		if _, err := outcome(t, m, intent); !errors.Is(err, broker.ErrMintMismatch) {
			t.Errorf("%s: got %v, want ErrMintMismatch", name, err)
		}
	}
	if got := v.called(createPath); got != 0 {
		t.Errorf("got %d calls, want none", got)
	}
	intent := databaseIntent(t)
	intent.Kind = "other"
	if lost, err := outcome(t, m, intent); !errors.Is(err, broker.ErrMintMismatch) || lost != nil {
		t.Errorf("an unknown kind: got %v, want ErrMintMismatch", err)
	}
}
