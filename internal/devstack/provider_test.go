package devstack_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/refusal"
	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

// movable is a clock that a test can set.
type movable struct {
	mu  sync.Mutex
	now time.Time
}

func (m *movable) Now() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

func (m *movable) advance(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = m.now.Add(d)
}

func newProvider(t *testing.T, change func(*devstack.ProviderConfig)) *devstack.Provider {
	t.Helper()
	cfg := devstack.ProviderConfig{
		Address: "127.0.0.1:0", ClientID: "brevet",
		People: []devstack.DevPerson{
			{Username: "alice", Name: "Alice Archer", Groups: []string{"oncall", "engineers"}}, {Username: "erin"},
		},
	}
	if change != nil {
		change(&cfg)
	}
	provider, err := devstack.NewProvider(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := provider.Close(); err != nil {
			t.Error(err)
		}
	})
	return provider
}

// identify verifies a token as the broker does.
func identify(t *testing.T, provider *devstack.Provider, token string) people.Person {
	t.Helper()
	verifier, err := people.New(people.Config{Issuer: provider.Issuer(), ClientID: "brevet", Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	person, err := verifier.Identify(t.Context(), token)
	if err != nil {
		t.Fatalf("got %v (%s), want a person", err, refusal.Reason(err))
	}
	return person
}

// flows returns the client configuration that a client gets by discovery.
func flows(t *testing.T, provider *devstack.Provider) *oauth2.Config {
	t.Helper()
	found, err := oidc.NewProvider(t.Context(), provider.Issuer())
	if err != nil {
		t.Fatal(err)
	}
	return &oauth2.Config{
		ClientID: "brevet", Endpoint: found.Endpoint(), RedirectURL: "http://127.0.0.1:1/callback", Scopes: []string{"openid", "profile"},
	}
}

func post(t *testing.T, address string, form url.Values) (*http.Response, map[string]any) {
	t.Helper()
	browser := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer browser.CloseIdleConnections()
	resp, err := browser.PostForm(address, form)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var body map[string]any
	_ = json.NewDecoder(resp.Body).Decode(&body) // a page is not JSON
	return resp, body
}

func TestProviderIssuesToItsPeople(t *testing.T) {
	provider := newProvider(t, nil)
	token, err := provider.IDToken("alice")
	if err != nil {
		t.Fatal(err)
	}
	person := identify(t, provider, token)
	if person.ID() != provider.Issuer()+"#alice" || person.Name() != "Alice Archer" || person.Handle() != "alice" ||
		!slices.Equal(person.Groups(), []string{"engineers", "oncall"}) || person.Expires().Sub(person.Issued()) != 10*time.Minute {
		t.Errorf("got %+v, want alice with her groups for ten minutes", person)
	}
	if token, err := provider.IDToken("mallory"); err == nil {
		t.Errorf("got %q for somebody who is not there", token)
	}
}

func TestProviderWalksTheCodeFlow(t *testing.T) {
	provider := newProvider(t, nil)
	cfg, verifier := flows(t, provider), oauth2.GenerateVerifier()
	form, err := url.Parse(cfg.AuthCodeURL("the-state", oauth2.S256ChallengeOption(verifier), oidc.Nonce("n-1")))
	if err != nil {
		t.Fatal(err)
	}
	fields := form.Query()
	fields.Set("username", "alice")
	resp, _ := post(t, cfg.Endpoint.AuthURL, fields)
	back, err := resp.Location()
	if err != nil {
		t.Fatalf("status %d: %v", resp.StatusCode, err)
	}
	if got := back.Query().Get("state"); got != "the-state" || !strings.HasPrefix(back.String(), cfg.RedirectURL) {
		t.Errorf("got redirected to %s", back)
	}
	code := back.Query().Get("code")
	tokens, err := cfg.Exchange(t.Context(), code, oauth2.VerifierOption(verifier))
	if err != nil {
		t.Fatal(err)
	}
	raw, _ := tokens.Extra("id_token").(string)
	if got := identify(t, provider, raw).Subject(); got != "alice" {
		t.Errorf("got %q, want alice", got)
	}
	if !strings.Contains(claimsOf(t, raw), `"nonce":"n-1"`) {
		t.Error("the nonce is missing")
	}
	if _, err := cfg.Exchange(t.Context(), code, oauth2.VerifierOption(verifier)); !isOAuth(err, "invalid_grant") {
		t.Errorf("got %v for a code that was used, want invalid_grant", err)
	}
}

func TestProviderRefusesCodes(t *testing.T) {
	clock := &movable{now: time.Now()}
	provider := newProvider(t, func(cfg *devstack.ProviderConfig) { cfg.Now = clock.Now })
	cfg, verifier := flows(t, provider), oauth2.GenerateVerifier()
	for name, tc := range map[string]struct {
		ask, redeem url.Values // the parameters that differ
		later       time.Duration
		asked, want string
	}{
		"plain PKCE":        {ask: url.Values{"code_challenge_method": {"plain"}}, asked: "invalid_request"},
		"no PKCE":           {ask: url.Values{"code_challenge": {""}}, asked: "invalid_request"},
		"implicit":          {ask: url.Values{"response_type": {"id_token"}}, asked: "invalid_request"},
		"no openid":         {ask: url.Values{"scope": {"profile"}}, asked: "invalid_request"},
		"declined":          {ask: url.Values{"deny": {"yes"}}, asked: "access_denied"},
		"nobody there":      {ask: url.Values{"username": {"mallory"}}, asked: "access_denied"},
		"another verifier":  {redeem: url.Values{"code_verifier": {oauth2.GenerateVerifier()}}, want: "invalid_grant"},
		"no verifier":       {redeem: url.Values{"code_verifier": {""}}, want: "invalid_grant"},
		"another redirect":  {redeem: url.Values{"redirect_uri": {"http://127.0.0.1:2/"}}, want: "invalid_grant"},
		"another client":    {redeem: url.Values{"client_id": {"other"}}, want: "invalid_client"},
		"another grant":     {redeem: url.Values{"grant_type": {"password"}}, want: "unsupported_grant_type"},
		"a code that ended": {later: 61 * time.Second, want: "invalid_grant"},
	} {
		t.Run(name, func(t *testing.T) {
			form, err := url.Parse(cfg.AuthCodeURL("s", oauth2.S256ChallengeOption(verifier)))
			if err != nil {
				t.Fatal(err)
			}
			ask := form.Query()
			ask.Set("username", "alice")
			resp, _ := post(t, cfg.Endpoint.AuthURL, changed(ask, tc.ask))
			back, err := resp.Location()
			if err != nil {
				t.Fatalf("status %d: %v", resp.StatusCode, err)
			}
			if got := back.Query().Get("error"); got != tc.asked {
				t.Fatalf("got error %q, want %q", got, tc.asked)
			}
			if tc.asked != "" {
				return
			}
			clock.advance(tc.later)
			_, got := post(t, cfg.Endpoint.TokenURL, changed(url.Values{
				"client_id": {"brevet"}, "grant_type": {"authorization_code"}, "redirect_uri": {cfg.RedirectURL},
				"code": {back.Query().Get("code")}, "code_verifier": {verifier},
			}, tc.redeem))
			if got["error"] != tc.want || got["id_token"] != nil {
				t.Errorf("got %v, want %s", got, tc.want)
			}
		})
	}
	for name, ask := range map[string]url.Values{
		"elsewhere":      {"client_id": {"brevet"}, "redirect_uri": {"https://evil.test/"}},
		"unknown client": {"client_id": {"other"}, "redirect_uri": {cfg.RedirectURL}},
	} {
		if resp, _ := post(t, cfg.Endpoint.AuthURL, ask); resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: got %d, want 400 and no redirect", name, resp.StatusCode)
		}
	}
}

func changed(base, change url.Values) url.Values {
	maps.Copy(base, change)
	return base
}

// The test covers the device flow with every response that a client has to handle.
func TestProviderWalksTheDeviceFlow(t *testing.T) {
	clock := &movable{now: time.Now().Add(-6 * time.Second)} // the clock shows the current time when the login succeeds
	provider := newProvider(t, func(cfg *devstack.ProviderConfig) { cfg.Now = clock.Now })
	cfg := flows(t, provider)
	poll := func(code string) any {
		_, body := post(t, cfg.Endpoint.TokenURL, url.Values{
			"client_id": {"brevet"}, "grant_type": {"urn:ietf:params:oauth:grant-type:device_code"}, "device_code": {code},
		})
		if raw, ok := body["id_token"].(string); ok {
			return identify(t, provider, raw).Subject()
		}
		return body["error"]
	}
	begin := func() *oauth2.DeviceAuthResponse {
		device, err := cfg.DeviceAuth(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return device
	}
	device := begin()
	for i, want := range []string{"authorization_pending", "slow_down"} {
		if got := poll(device.DeviceCode); got != want {
			t.Errorf("poll %d: got %v, want %s", i, got, want)
		}
	}
	clock.advance(6 * time.Second)
	if got := poll(device.DeviceCode); got != "authorization_pending" {
		t.Errorf("got %v after the longer interval, want authorization_pending", got)
	}
	if resp, _ := post(t, device.VerificationURI, url.Values{"user_code": {"AAAA-AAAA"}, "username": {"alice"}}); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("got %d for a code of nobody, want 400", resp.StatusCode)
	}
	agree := url.Values{"user_code": {strings.ToLower(device.UserCode)}, "username": {"alice"}}
	if resp, _ := post(t, device.VerificationURI, agree); resp.StatusCode != http.StatusOK {
		t.Fatalf("got %d, want 200", resp.StatusCode)
	}
	if resp, _ := post(t, device.VerificationURI, url.Values{"user_code": {device.UserCode}, "username": {"erin"}}); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("got %d for a second answer, want 400", resp.StatusCode)
	}
	if got := poll(device.DeviceCode); got != "alice" {
		t.Errorf("got %v, want alice", got)
	}
	if got := poll(device.DeviceCode); got != "invalid_grant" {
		t.Errorf("got %v for a code that was used, want invalid_grant", got)
	}
	device = begin()
	if _, _ = post(t, device.VerificationURI, url.Values{"user_code": {device.UserCode}, "deny": {"yes"}}); poll(device.DeviceCode) != "access_denied" {
		t.Error("a login that was declined went on")
	}
	device = begin()
	clock.advance(10*time.Minute + time.Second)
	if got := poll(device.DeviceCode); got != "expired_token" {
		t.Errorf("got %v, want expired_token", got)
	}
}

// The page opens at the address that holds the code, and nothing happens until a person chooses.
func TestProviderPageNeedsConfirmation(t *testing.T) {
	provider := newProvider(t, func(cfg *devstack.ProviderConfig) { cfg.People[0].Name = `<script>alert(1)</script>` })
	device, err := flows(t, provider).DeviceAuth(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get(device.VerificationURIComplete + "&username=alice")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	page := new(strings.Builder)
	if err := resp.Write(page); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{device.UserCode, `value="erin"`, "development only", "frame-ancestors 'none'"} {
		if !strings.Contains(page.String(), part) {
			t.Errorf("%q is missing in the page", part)
		}
	}
	if strings.Contains(page.String(), "<script>") {
		t.Error("a name is markup")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	if tokens, err := flows(t, provider).DeviceAccessToken(ctx, device); err == nil {
		t.Errorf("got %v from a page that was only looked at", tokens)
	}
}

// Other sites cannot log anybody in, neither with a form of theirs nor with a host name that resolves here.
func TestProviderRefusesCrossSiteLogins(t *testing.T) {
	provider := newProvider(t, nil)
	for name, tc := range map[string]struct {
		header, value string
		want          int
	}{
		"a form of another site": {"Sec-Fetch-Site", "cross-site", http.StatusForbidden},
		"a name that leads here": {"Host", "evil.test", http.StatusMisdirectedRequest},
	} {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, provider.Issuer()+"/device", strings.NewReader("user_code=A"))
			if err != nil {
				t.Fatal(err)
			}
			if req.Header.Set(tc.header, tc.value); tc.header == "Host" {
				req.Host = tc.value
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != tc.want {
				t.Errorf("got %d, want %d", resp.StatusCode, tc.want)
			}
		})
	}
}

func TestProviderResumes(t *testing.T) {
	dir := t.TempDir() + "/provider"
	first := newProvider(t, func(cfg *devstack.ProviderConfig) { cfg.StateDir = dir })
	token, err := first.IDToken("alice")
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}
	address := strings.TrimPrefix(first.Issuer(), "http://")
	if conn, err := net.Dial("tcp", address); err == nil {
		_ = conn.Close()
		t.Error("something listens after Close")
	}
	second := newProvider(t, func(cfg *devstack.ProviderConfig) { cfg.StateDir, cfg.Address = dir, address })
	if got := identify(t, second, token).Subject(); got != "alice" {
		t.Errorf("got %q, want alice", got)
	}
}

func TestProviderRefusesUnsafeConfiguration(t *testing.T) {
	for name, change := range map[string]func(*devstack.ProviderConfig){
		"all addresses": func(cfg *devstack.ProviderConfig) { cfg.Address = "0.0.0.0:0" },
		"no host":       func(cfg *devstack.ProviderConfig) { cfg.Address = ":0" },
		"a name":        func(cfg *devstack.ProviderConfig) { cfg.Address = "example.test:0" },
		"no client":     func(cfg *devstack.ProviderConfig) { cfg.ClientID = "" },
		"nobody":        func(cfg *devstack.ProviderConfig) { cfg.People = nil },
		"no username":   func(cfg *devstack.ProviderConfig) { cfg.People = []devstack.DevPerson{{Name: "x"}} },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := devstack.ProviderConfig{Address: "127.0.0.1:0", ClientID: "brevet", People: []devstack.DevPerson{{Username: "alice"}}}
			change(&cfg)
			if provider, err := devstack.NewProvider(cfg); err == nil {
				t.Errorf("got a provider at %s", provider.Issuer())
				_ = provider.Close()
			}
		})
	}
}

func isOAuth(err error, code string) bool {
	var refused *oauth2.RetrieveError
	return errors.As(err, &refused) && refused.ErrorCode == code
}

func claimsOf(t *testing.T, token string) string {
	t.Helper()
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	if err != nil {
		t.Fatal(err)
	}
	return string(payload)
}
