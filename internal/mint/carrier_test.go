package mint_test

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/mint"
)

// traffic sees the calls to Vault, and the tokens that Vault makes.
type traffic struct {
	http.RoundTripper

	mu     sync.Mutex
	calls  []string
	tokens []string
	named  string // the X-Correlation-Id of the last call
}

func (tr *traffic) over(next http.RoundTripper) http.RoundTripper {
	tr.RoundTripper = next
	return tr
}

func (tr *traffic) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := tr.RoundTripper.RoundTrip(req)
	path := strings.TrimPrefix(req.URL.Path, "/v1/")
	if err != nil || strings.HasPrefix(path, "transit/") || strings.HasPrefix(path, "auth/approle/") {
		return resp, err
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.calls, tr.named = append(tr.calls, path), req.Header.Get("X-Correlation-Id")
	if path == createPath {
		text, readErr := io.ReadAll(resp.Body)
		resp.Body = io.NopCloser(strings.NewReader(string(text)))
		var answer struct {
			Auth struct {
				Token string `json:"client_token"`
			}
		}
		if readErr == nil && json.Unmarshal(text, &answer) == nil {
			tr.tokens = append(tr.tokens, answer.Auth.Token)
		}
	}
	return resp, err
}

// since returns the calls after the last use of since.
func (tr *traffic) since() []string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	calls := tr.calls
	tr.calls = nil
	return calls
}

// TestDatabaseLoginTakesOneCall follows logins that share a carrier, on a real Vault. Only the first login of a role has a token of its
// own, and each of the others ends alone.
func TestDatabaseLoginTakesOneCall(t *testing.T) {
	e, tr := realLive(t), &traffic{}
	e.config.Transport = tr.over
	e.minter = open(t, e.config)
	tr.since()
	w := wares(t)["database"]
	minted, secrets := []broker.Minted{}, []map[string]any{}
	for i, want := range [][]string{{createPath, drawPath}, {createPath, drawPath}, {drawPath}, {drawPath}} {
		intent, m, secret := e.made(t, w, time.Minute)
		if tr.named != intent.ID {
			t.Errorf("login %d: the call names %q, want the issuance", i, tr.named)
		}
		if got := tr.since(); !slices.Equal(got, want) {
			t.Errorf("login %d: got calls %v, want %v", i, got, want)
		}
		if (m.Accessor == "") != (i > 0) || m.Lease == "" || m.Name == "" || m.Digest == [32]byte{} || m.Whole {
			t.Errorf("login %d: got %+v", i, m)
		}
		minted, secrets = append(minted, m), append(secrets, secret)
	}
	for range 2 {
		if err := e.minter.Renew(t.Context(), minted[2]); err != nil {
			t.Fatalf("renewing: %v", err)
		}
	}
	tr.since()
	for range 2 {
		if err := e.minter.Revoke(t.Context(), minted[3].VaultLease); err != nil {
			t.Fatalf("revoking: %v", err)
		}
	}
	if got, want := tr.since(), []string{"sys/leases/revoke", "sys/leases/lookup"}; !slices.Equal(got[:2], want) {
		t.Errorf("revoking: got calls %v, want %v", got, want)
	}
	for i, secret := range secrets {
		alive, err := e.minter.Alive(t.Context(), minted[i].VaultLease)
		if works := e.works(t, w, secret); works != (i != 3) || alive != works || err != nil {
			t.Errorf("login %d works: %t, alive: %t, %v", i, works, alive, err)
		}
	}
	if err := e.minter.Renew(t.Context(), minted[3]); !errors.Is(err, broker.ErrVaultRefused) {
		t.Errorf("renewing what is dead: got %v, want ErrVaultRefused", err)
	}
	if _, brief, _ := e.made(t, w, 30*time.Second); !brief.Whole || brief.Accessor != "" {
		t.Errorf("for half a minute: got %+v, want one that needs no renewal", brief)
	}
	if got, want := tr.since(), drawPath; got[len(got)-1] != want {
		t.Errorf("for half a minute: got calls %v", got)
	}
	if _, short, _ := e.made(t, w, 10*time.Second); short.Accessor == "" {
		t.Error("a login for ten seconds would outlive its grant with a carrier")
	}
}

// TestCarrierAllowsNothingElse is T4 for a carrier: whoever steals one may make logins of its scope that end after half a minute.
func TestCarrierAllowsNothingElse(t *testing.T) {
	e, tr := realLive(t), &traffic{}
	e.config.Transport = tr.over
	e.minter = open(t, e.config)
	w := wares(t)["database"]
	e.made(t, w, time.Minute)
	e.made(t, w, time.Minute)
	_, minted, _ := e.made(t, w, time.Minute)
	if len(tr.tokens) != 2 || minted.Accessor != "" {
		t.Fatalf("got %d tokens, want a wrapper and a carrier", len(tr.tokens))
	}
	carrier := tr.tokens[1]
	data := e.write(t, "auth/token/lookup", map[string]any{"token": carrier})
	policies, _ := data["policies"].([]any)
	most := time.Minute + 15*time.Minute
	longest, _ := data["explicit_max_ttl"].(json.Number).Int64()
	if !slices.Equal(policies, []any{any(w.grant.Policy)}) || data["orphan"] != true || data["renewable"] != false || data["type"] != "service" ||
		longest == 0 || time.Duration(longest)*time.Second > most {
		t.Errorf("got carrier %v", data)
	}
	known := map[string]any{"lease_id": minted.Lease}
	for _, tc := range []struct {
		method, path string
		body         map[string]any
	}{
		{"PUT", "sys/leases/renew", known},
		{"PUT", "sys/leases/renew/" + minted.Lease, nil},
		{"PUT", "sys/leases/revoke", known},
		{"PUT", "sys/leases/lookup", known},
		{"LIST", "sys/leases/lookup/database", nil},
		{"GET", "auth/token/lookup-self", nil},
		{"PUT", "auth/token/renew-self", nil},
		{"PUT", "auth/token/revoke-self", nil},
		{"PUT", "auth/token/create", nil},
		{"PUT", "auth/token/create-orphan", nil},
		{"PUT", createPath, map[string]any{"policies": []string{w.grant.Policy}}},
		{"PUT", drawPath, nil},
		{"GET", drawPath + "2", nil},
		{"GET", drawPath + "/more", nil},
		{"LIST", "database/creds", nil},
		{"GET", "database/roles/reporting", nil},
		{"GET", "database/config/target", nil},
		{"PUT", "database/rotate-root/target", nil},
		{"GET", "secret/data/agents/researcher", nil},
		{"PUT", "pki/sign/web", nil},
		{"PUT", "ssh/sign/deploy", nil},
		{"PUT", "transit/sign/brevet", nil},
		{"GET", "brevet-github-tokens/x", nil},
		{"GET", "sys/mounts", nil},
		{"PUT", "sys/seal", nil},
		{"GET", "sys/policies/acl/" + w.grant.Policy, nil},
		{"PUT", "sys/capabilities-self", map[string]any{"paths": []string{drawPath}}},
		{"PUT", "cubbyhole/mine", map[string]any{"a": "b"}},
	} {
		if got := statusOf(t, e.admin, carrier, tc.method, tc.path, tc.body); got != http.StatusForbidden {
			t.Errorf("%s %s: got %d, want 403", tc.method, tc.path, got)
		}
	}
	if got := statusOf(t, e.admin, carrier, "GET", drawPath, nil); got != http.StatusOK {
		t.Errorf("GET %s: got %d, want 200", drawPath, got)
	}
}

// TestRevokedCarrierIsReplaced takes a carrier away. Vault ends what hangs on it, and the next login is made all the same.
func TestRevokedCarrierIsReplaced(t *testing.T) {
	e, tr := realLive(t), &traffic{}
	e.config.Transport = tr.over
	e.minter = open(t, e.config)
	w := wares(t)["database"]
	e.made(t, w, time.Minute)
	_, lost, secret := e.made(t, w, time.Minute)
	e.write(t, "auth/token/revoke", map[string]any{"token": tr.tokens[1]})
	if alive, err := e.minter.Alive(t.Context(), lost.VaultLease); err != nil { // the minter has learned that Vault has no standbys
		t.Fatal(alive, err)
	}
	tr.since()
	if _, _, login := e.made(t, w, time.Minute); !e.works(t, w, login) {
		t.Error("the next login does not work")
	}
	if got, want := tr.since(), []string{drawPath, createPath, drawPath}; !slices.Equal(got, want) {
		t.Errorf("got calls %v, want %v", got, want)
	}
	if _, m, _ := e.made(t, w, time.Minute); m.Accessor != "" {
		t.Error("no other carrier was made")
	}
	within(t, 20*time.Second, "what hung on the lost carrier is dead", func() bool {
		alive, err := e.minter.Alive(t.Context(), lost.VaultLease)
		return err == nil && !alive && !e.works(t, w, secret)
	})
}

// carrying returns a minter that has a carrier at an impostor, which answers the creation of any token.
func carrying(t *testing.T, cfg func(*mint.Config)) (*impostor, *mint.Minter) {
	t.Helper()
	v := newImpostor(t, p256(t))
	config := knock(t, v.URL)
	if cfg != nil {
		cfg(&config)
	}
	m := open(t, config)
	v.grants()
	v.lie(createPath, func(w http.ResponseWriter, r *http.Request) {
		var ask struct {
			TTL       string
			Renewable bool
		}
		_ = json.NewDecoder(r.Body).Decode(&ask)
		ttl, _ := time.ParseDuration(ask.TTL)
		auth := wrapper()
		maps.Copy(auth, map[string]any{"renewable": ask.Renewable, "lease_duration": int(ttl / time.Second)})
		reply(w, map[string]any{"auth": auth})
	})
	for _, wrapped := range []bool{true, false} {
		credential, err := mint.MintGrant(t.Context(), m, databaseIntent(t))
		if err != nil || (credential.Minted.Accessor != "") != wrapped {
			t.Fatalf("got %+v, %v", credential.Minted, err)
		}
	}
	if got := v.called(createPath); got != 2 {
		t.Fatalf("got %d tokens, want a wrapper and a carrier", got)
	}
	return v, m
}

// TestLostCarriedLoginIsNotMadeAgain is C4 without a token that could be revoked: the login ends by itself, and the order is spent.
func TestLostCarriedLoginIsNotMadeAgain(t *testing.T) {
	for name, lie := range map[string]http.HandlerFunc{
		"sealed":             says(503, `{"errors":["Vault is sealed"]}`),
		"internal error":     says(500, `{"errors":["boom"]}`),
		"200 and nothing":    says(200, ``),
		"200 and HTML":       says(200, `<html>welcome</html>`),
		"200 and 10 MB":      says(200, `{"data":{"password":"`+strings.Repeat("A", 10<<20)+`"}}`),
		"redirect":           says(307, `{"data":{"username":"a","password":"b"},"lease_id":"x"}`),
		"hangs up":           hangsUp(""),
		"200 and no id":      says(200, `{"lease_id":"x","data":{"username":"a","password":"b"}}`),
		"no lease":           says(200, `{"request_id":"r","data":{"username":"a","password":"b"}}`),
		"a lease of another": says(200, `{"request_id":"r","lease_id":"database/creds/x/y","data":{"username":"a","password":"b"}}`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, m := carrying(t, nil)
			before := v.called(drawPath)
			v.lie(drawPath, lie)
			lost, err := outcome(t, m, databaseIntent(t))
			if lost == nil || lost.VaultLease != (broker.VaultLease{}) {
				t.Errorf("got %v, want it lost, with nothing known of it", err)
			}
			if got := v.called(drawPath) - before; got != 1 {
				t.Errorf("got %d calls, want 1: a lost answer must never become a second lease", got)
			}
			if got := v.called("auth/token/revoke-accessor"); got != 0 {
				t.Errorf("got %d revocations of tokens: others hang on the carrier", got)
			}
		})
	}
}

// A call that found no connection has made nothing, so nothing is lost.
func TestUnsentCarriedLoginIsNotLost(t *testing.T) {
	v, m := carrying(t, nil)
	v.Close()
	until(t, "a call without a connection", func() bool { // an earlier connection may still look open
		lost, err := outcome(t, m, databaseIntent(t))
		return lost == nil && errors.Is(err, broker.ErrVaultUnavailable)
	})
}

// TestUnexpectedCarriedLoginIsRevoked is I7 for a login without a token of its own: its lease is revoked.
func TestUnexpectedCarriedLoginIsRevoked(t *testing.T) {
	for name, tc := range map[string]struct {
		change map[string]any
		want   error
	}{
		"no password":    {map[string]any{"data": map[string]any{"username": "x"}}, broker.ErrMintMismatch},
		"lasts longer":   {map[string]any{"lease_duration": 31}, broker.ErrVaultRefused},
		"lasts for ever": {map[string]any{"lease_duration": 0}, broker.ErrVaultRefused},
		"not renewable":  {map[string]any{"renewable": false}, broker.ErrVaultRefused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer := loginAnswer()
			maps.Copy(answer, tc.change)
			for _, confirmed := range []bool{true, false} {
				v, m := carrying(t, nil)
				v.lie(drawPath, func(w http.ResponseWriter, _ *http.Request) { reply(w, answer) })
				if !confirmed {
					v.lie("sys/leases/lookup", says(503, ""))
				}
				lost, err := outcome(t, m, databaseIntent(t))
				if !errors.Is(err, tc.want) || (lost == nil) != confirmed {
					t.Errorf("end confirmed %t: got %v, want %v", confirmed, err, tc.want)
				}
				if lost != nil && lost.VaultLease != (broker.VaultLease{Lease: leaseID}) {
					t.Errorf("got %+v lost, want its lease", lost.VaultLease)
				}
				if got := v.called("sys/leases/revoke"); confirmed && got != 1 {
					t.Errorf("got %d revocations of the lease, want 1", got)
				}
			}
		})
	}
}

// TestRefusedCarrierIsReplacedOnce makes Vault refuse a carrier. Only a refusal of the token itself leads to another call.
func TestRefusedCarrierIsReplacedOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		status  int
		message string
		again   int
	}{
		"its token":     {403, "permission denied", 1},
		"another 403":   {403, "of a gateway", 0},
		"the role":      {400, "unknown role", 0},
		"after the 403": {403, "permission denied", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, m := carrying(t, nil)
			before, tokens := v.called(drawPath), v.called(createPath)
			refusals := 1
			if name == "after the 403" {
				refusals = 2
			}
			v.lie(drawPath, func(w http.ResponseWriter, r *http.Request) {
				if v.called(drawPath)-before <= refusals {
					says(tc.status, `{"errors":["`+tc.message+`"]}`)(w, r)
					return
				}
				reply(w, loginAnswer())
			})
			credential, err := mint.MintGrant(t.Context(), m, databaseIntent(t))
			if made := tc.again == 1 && refusals == 1; (err == nil) != made || made && credential.Minted.Accessor == "" {
				t.Errorf("got %+v, %v", credential.Minted, err)
			}
			if calls, made := v.called(drawPath)-before, v.called(createPath)-tokens; calls != 1+tc.again || made != tc.again {
				t.Errorf("got %d calls and %d tokens, want %d and %d", calls, made, 1+tc.again, tc.again)
			}
		})
	}
}

// TestCarrierOutlivesItsLogins moves the clock (I3): a carrier is replaced before it could end a login, and never revoked.
func TestCarrierOutlivesItsLogins(t *testing.T) {
	now := &clock{now: epoch}
	v, m := carrying(t, func(c *mint.Config) { c.Now = now.Now })
	tokens := v.called(createPath)
	for _, step := range []struct {
		at, life time.Duration
		made     int // tokens so far
	}{
		{time.Minute, 5 * time.Minute, 0},
		{13 * time.Minute, 5 * time.Minute, 0},
		{15 * time.Minute, time.Minute, 0},
		{15 * time.Minute, 5 * time.Minute, 1}, // it would end a minute before its carrier, or later
		{16 * time.Minute, 5 * time.Minute, 1},
		{16 * time.Minute, 30 * time.Minute, 2}, // for longer than any before
		{17 * time.Minute, 30 * time.Minute, 2},
		{17 * time.Minute, 5 * time.Minute, 2},
	} {
		now.Set(epoch.Add(step.at))
		intent := databaseIntent(t)
		intent.Expires = now.Now().Add(step.life)
		credential, err := mint.MintGrant(t.Context(), m, intent)
		if err != nil || credential.Minted.Accessor != "" {
			t.Fatalf("%v: got %+v, %v", step, credential.Minted, err)
		}
		if got := v.called(createPath) - tokens; got != step.made {
			t.Errorf("%v: got %d tokens, want %d", step, got, step.made)
		}
	}
	if got := v.called("auth/token/revoke-accessor"); got != 0 {
		t.Errorf("got %d revocations of tokens", got)
	}
}

// TestUnfitCarrierIsNotUsed makes Vault give another carrier than ordered, or none. Each login then has a token of its own.
func TestUnfitCarrierIsNotUsed(t *testing.T) {
	for name, lie := range map[string]func(auth map[string]any) http.HandlerFunc{
		"too short": func(auth map[string]any) http.HandlerFunc {
			auth["lease_duration"] = 300 // as a token role of an earlier bootstrap would
			return func(w http.ResponseWriter, _ *http.Request) { reply(w, map[string]any{"auth": auth}) }
		},
		"another policy": func(auth map[string]any) http.HandlerFunc {
			auth["policies"] = []string{"root"}
			return func(w http.ResponseWriter, _ *http.Request) { reply(w, map[string]any{"auth": auth}) }
		},
		"no orphan": func(auth map[string]any) http.HandlerFunc {
			auth["orphan"] = false
			return func(w http.ResponseWriter, _ *http.Request) { reply(w, map[string]any{"auth": auth}) }
		},
		"lost":    func(map[string]any) http.HandlerFunc { return hangsUp("") },
		"nothing": func(map[string]any) http.HandlerFunc { return says(200, `{"auth":null}`) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newImpostor(t, p256(t))
			m := open(t, knock(t, v.URL))
			v.grants()
			carriers := 0
			v.lie(createPath, func(w http.ResponseWriter, r *http.Request) {
				var ask struct{ Renewable bool }
				_ = json.NewDecoder(r.Body).Decode(&ask)
				auth := wrapper()
				if ask.Renewable {
					reply(w, map[string]any{"auth": auth})
					return
				}
				carriers++
				auth["renewable"], auth["lease_duration"] = false, 1200
				lie(auth)(w, r)
			})
			for range 3 {
				credential, err := mint.MintGrant(t.Context(), m, databaseIntent(t))
				if err != nil || credential.Minted.Accessor != accessor {
					t.Errorf("got %+v, %v", credential.Minted, err)
				}
			}
			want := 1
			if name == "lost" || name == "nothing" {
				want = 0 // nothing is known of it
			}
			if revoked := v.called("auth/token/revoke-accessor"); carriers != 1 || revoked != want {
				t.Errorf("got %d carriers and %d revocations, want 1 and %d", carriers, revoked, want)
			}
		})
	}
}

// TestUnexpectedRenewalOfACarriedLoginIsRefused is I3 where no token bounds the lease.
func TestUnexpectedRenewalOfACarriedLoginIsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		got  int
		want error
	}{
		"as ordered": {300, nil}, "a second less": {299, nil},
		"for too long": {301, broker.ErrMintMismatch}, "for too short": {290, broker.ErrVaultRefused},
	} {
		v := newImpostor(t, p256(t))
		m := open(t, knock(t, v.URL))
		v.lie("sys/leases/renew", func(w http.ResponseWriter, _ *http.Request) {
			reply(w, map[string]any{"lease_id": leaseID, "lease_duration": tc.got})
		})
		minted := broker.Minted{VaultLease: broker.VaultLease{Lease: leaseID}, Until: epoch.Add(5 * time.Minute)}
		if err := m.Renew(t.Context(), minted); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", name, err, tc.want)
		}
	}
}
