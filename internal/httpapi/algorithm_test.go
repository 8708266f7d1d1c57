package httpapi_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/resourceserver"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/go-jose/go-jose/v4"
)

// withAlgorithms has a scope for each signature algorithm of access tokens.
var withAlgorithms = testkit.Options{
	Catalogue: []scopes.File{{Name: "scopes.yaml", Data: []byte(`scopes:
  - name: git.es256
    title: Read
    authority: read
    resource: git:all
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://git.test, status_list: true}
  - name: git.eddsa
    title: Read
    authority: read
    resource: git:all
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://git.test, status_list: true, algorithm: EdDSA}
`)}, {Name: "policies.cedar", Data: []byte(`@id("all") permit (principal, action, resource);`)}},
	Applied: true, Admins: []string{admin}, ResourceServers: map[string][]string{gitServer: {"https://git.test"}},
}

// signedBy is the scope whose tokens have an algorithm.
var signedBy = map[string]client.Ask{"ES256": {Scope: "git.es256", Task: "t-1"}, "EdDSA": {Scope: "git.eddsa", Task: "t-1"}}

// atServer returns the status with which a resource server answers a call with a token.
func atServer(t *testing.T, s *testkit.Stack, cfg resourceserver.Config, raw string) int {
	t.Helper()
	cfg.Issuer, cfg.HTTPClient = testkit.Audience, reaches(t, s)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	guard, err := resourceserver.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, cfg.Audience+"/", nil)
	r.Header.Set("Authorization", "Bearer "+raw)
	guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })).ServeHTTP(w, r)
	return w.Code
}

// headOf returns the header of a JWS.
func headOf(t *testing.T, raw string) map[string]string {
	t.Helper()
	text, err := base64.RawURLEncoding.DecodeString(strings.Split(raw, ".")[0])
	if err != nil {
		t.Fatal(err)
	}
	var head map[string]string
	if err := json.Unmarshal(text, &head); err != nil {
		t.Fatal(err)
	}
	return head
}

// The scope chooses the algorithm. All that reads tokens accepts both, and sees that a token was ended.
func TestScopeChoosesTheAlgorithm(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withAlgorithms)
	c := s.Client(t, agent)
	git := resourceserver.Config{Audience: "https://git.test", StatusLists: true}
	for algorithm, ask := range signedBy {
		issued := token(t, c, ask)
		raw := issued.Secret.Reveal()
		key, err := s.Minter.Key(algorithm)
		if err != nil {
			t.Fatal(err)
		}
		if head := headOf(t, raw); len(head) != 3 || head["alg"] != algorithm || head["kid"] != key.ID || head["typ"] != "at+jwt" {
			t.Errorf("%s: got the header %v for the key %v", algorithm, head, key)
		}
		if got := atServer(t, s, git, raw); got != http.StatusOK {
			t.Errorf("%s: the resource server answers %d", algorithm, got)
		}
		if got := seen(t, s, raw); !got.Active || got.Jti != issued.ID {
			t.Errorf("%s: introspection says %+v", algorithm, got)
		}
		handed := exchangeToken(t, s, agent, raw, twin)
		if handed.status != 200 || headOf(t, handed.token.AccessToken)["alg"] != algorithm || !seen(t, s, handed.token.AccessToken).Active {
			t.Errorf("%s: the exchange answers %d %s", algorithm, handed.status, handed.text)
		}
		if _, err := c.Release(t.Context(), issued.ID); err != nil {
			t.Fatal(err)
		}
		if got := introspected(t, s, gitServer, raw); !strings.Contains(got, `"active":false`) {
			t.Errorf("%s, released: introspection says %s", algorithm, got)
		}
		if got := exchangeToken(t, s, agent, raw, twin); got.status != 400 {
			t.Errorf("%s, released: the exchange answers %d", algorithm, got.status)
		}
		within(t, 30*time.Second, "the status list to show it", func() bool { return atServer(t, s, git, raw) == http.StatusUnauthorized })
	}
	var algorithms []any
	for _, e := range s.DB.Entries(t) {
		if intent, ok := e.Body["intent"].(map[string]any); ok && !slices.Contains(algorithms, intent["algorithm"]) {
			algorithms = append(algorithms, intent["algorithm"])
		}
	}
	if len(algorithms) != 2 {
		t.Errorf("the ledger has intents of the algorithms %v, want both", algorithms)
	}
	s.DB.Check(t)
}

// A verifier accepts an algorithm only for a key that has it (RFC 8725, section 3.1), whoever made the signature.
func TestTokenWithTheAlgorithmOfAnotherKeyIsRefused(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withAlgorithms)
	ids := map[string]string{}
	public := map[string]jose.JSONWebKey{}
	for _, algorithm := range []string{"ES256", "EdDSA", "RS256"} {
		key, err := s.Minter.Key(algorithm)
		if err != nil {
			t.Fatal(err)
		}
		ids[algorithm] = key.ID
	}
	document, err := s.Minter.JWKS()
	if err != nil {
		t.Fatal(err)
	}
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(document, &set); err != nil {
		t.Fatal(err)
	}
	for _, key := range set.Keys {
		public[key.Algorithm] = key
	}
	raws := map[string]string{}
	for algorithm, ask := range signedBy {
		raws[algorithm] = token(t, s.Client(t, agent), ask).Secret.Reveal()
	}
	// forged has the claims of a token that was issued with an algorithm, under another header.
	forged := func(claims, header, signer string) string {
		parts := strings.Split(raws[claims], ".")
		input := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + parts[1]
		switch signer {
		case "none":
			return input + "."
		case "as issued":
			return input + "." + parts[2]
		case "HMAC": // with the public key, as a verifier that takes HS256 for granted would check it
			text, err := public[claims].MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			mac := hmac.New(sha256.New, text)
			mac.Write([]byte(input))
			return input + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
		}
		key, err := s.Minter.Key(signer)
		if err != nil {
			t.Fatal(err)
		}
		signature, err := s.Minter.Sign(t.Context(), key, input)
		if err != nil {
			t.Fatal(err)
		}
		return input + "." + signature
	}
	head := func(alg, kid string) string { return `{"alg":"` + alg + `","kid":"` + kid + `","typ":"at+jwt"}` }
	for name, tc := range map[string]struct {
		raw    string
		active bool
	}{
		"EdDSA as issued":                      {raws["EdDSA"], true},
		"ES256 as issued":                      {raws["ES256"], true},
		"EdDSA signed again":                   {forged("EdDSA", head("EdDSA", ids["EdDSA"]), "EdDSA"), true},
		"alg ES256, kid of EdDSA, by ES256":    {forged("EdDSA", head("ES256", ids["EdDSA"]), "ES256"), false},
		"alg ES256, kid of EdDSA, by EdDSA":    {forged("EdDSA", head("ES256", ids["EdDSA"]), "EdDSA"), false},
		"alg EdDSA, kid of ES256, by EdDSA":    {forged("ES256", head("EdDSA", ids["ES256"]), "EdDSA"), false},
		"alg EdDSA, kid of ES256, by ES256":    {forged("ES256", head("EdDSA", ids["ES256"]), "ES256"), false},
		"alg EdDSA, kid of ES256, as issued":   {forged("EdDSA", head("EdDSA", ids["ES256"]), "as issued"), false},
		"alg ES256, kid of ES256, by EdDSA":    {forged("EdDSA", head("ES256", ids["ES256"]), "EdDSA"), false},
		"alg EdDSA, kid of EdDSA, by ES256":    {forged("ES256", head("EdDSA", ids["EdDSA"]), "ES256"), false},
		"alg EdDSA, kid of EdDSA, by RS256":    {forged("EdDSA", head("EdDSA", ids["EdDSA"]), "RS256"), false},
		"alg EdDSA, kid of RS256, by EdDSA":    {forged("EdDSA", head("EdDSA", ids["RS256"]), "EdDSA"), false},
		"alg RS256, kid of EdDSA, by RS256":    {forged("EdDSA", head("RS256", ids["EdDSA"]), "RS256"), false},
		"alg RS256, kid of RS256, by RS256":    {forged("EdDSA", head("RS256", ids["RS256"]), "RS256"), false},
		"alg Ed25519 (RFC 9864), by EdDSA":     {forged("EdDSA", head("Ed25519", ids["EdDSA"]), "EdDSA"), false},
		"alg eddsa, by EdDSA":                  {forged("EdDSA", head("eddsa", ids["EdDSA"]), "EdDSA"), false},
		"alg none, kid of EdDSA":               {forged("EdDSA", head("none", ids["EdDSA"]), "none"), false},
		"alg EdDSA without a signature":        {forged("EdDSA", head("EdDSA", ids["EdDSA"]), "none"), false},
		"alg HS256 with the public EdDSA key":  {forged("EdDSA", head("HS256", ids["EdDSA"]), "HMAC"), false},
		"alg HS256 with the public ES256 key":  {forged("ES256", head("HS256", ids["ES256"]), "HMAC"), false},
		"alg EdDSA twice":                      {forged("EdDSA", `{"alg":"ES256","alg":"EdDSA","kid":"`+ids["EdDSA"]+`","typ":"at+jwt"}`, "EdDSA"), false},
		"no alg, by EdDSA":                     {forged("EdDSA", `{"kid":"`+ids["EdDSA"]+`","typ":"at+jwt"}`, "EdDSA"), false},
		"no kid, by EdDSA":                     {forged("EdDSA", `{"alg":"EdDSA","typ":"at+jwt"}`, "EdDSA"), false},
		"a list of kids, by EdDSA":             {forged("EdDSA", `{"alg":"EdDSA","kid":["`+ids["EdDSA"]+`"],"typ":"at+jwt"}`, "EdDSA"), false},
		"claims of ES256 under kid of another": {forged("ES256", head("ES256", ids["EdDSA"]), "as issued"), false},
	} {
		t.Run(name, func(t *testing.T) {
			want := map[bool]int{true: http.StatusOK, false: http.StatusUnauthorized}[tc.active]
			if got := atServer(t, s, resourceserver.Config{Audience: "https://git.test"}, tc.raw); got != want {
				t.Errorf("the resource server answers %d, want %d", got, want)
			}
			if got := strings.Contains(introspected(t, s, gitServer, tc.raw), `"active":true`); got != tc.active {
				t.Errorf("introspection says that it is active: %t", got)
			}
			if got := exchangeToken(t, s, agent, tc.raw, twin); (got.status == http.StatusOK) != tc.active {
				t.Errorf("the exchange answers %d %s", got.status, got.text)
			}
		})
	}
}

// After a rotation of the EdDSA key, a replica publishes both versions, until an admin forbids the old one.
func TestRotatedEdDSAKeyIsPublishedBeforeItSigns(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withAlgorithms)
	name := "transit/keys/" + s.VaultAccess().SigningKey + "-eddsa"
	vault := s.Vault(t).Logical()
	keys := func(s *testkit.Stack) (all []jose.JSONWebKey) {
		_, _, text := get(t, s, "/.well-known/jwks.json")
		var set jose.JSONWebKeySet
		if err := json.Unmarshal([]byte(text), &set); err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(set.Keys, func(k jose.JSONWebKey) bool { return k.Algorithm != "EdDSA" })
	}
	before := token(t, s.Client(t, agent), signedBy["EdDSA"]).Secret.Reveal()
	if _, err := vault.WriteWithContext(t.Context(), name+"/rotate", nil); err != nil {
		t.Fatal(err)
	}
	other := s.FreshReplica(t) // reads the key now
	if got := keys(other); len(got) != 2 || len(keys(s)) != 1 {
		t.Fatalf("got %d EdDSA keys of a new replica and %d of the other, want 2 and 1", len(got), len(keys(s)))
	}
	after := token(t, other.Client(t, agent), signedBy["EdDSA"]).Secret.Reveal()
	if headOf(t, before)["kid"] != headOf(t, after)["kid"] {
		t.Error("the new version signs before every verifier has it")
	}
	for _, at := range []*testkit.Stack{s, other} {
		for _, raw := range []string{before, after} {
			if got := atServer(t, at, resourceserver.Config{Audience: "https://git.test"}, raw); got != http.StatusOK || !seen(t, at, raw).Active {
				t.Errorf("got %d of the resource server", got)
			}
		}
	}
	if _, err := vault.WriteWithContext(t.Context(), name+"/config", map[string]any{"min_decryption_version": 2}); err != nil {
		t.Fatal(err)
	}
	last := s.FreshReplica(t)
	if got := atServer(t, last, resourceserver.Config{Audience: "https://git.test"}, before); got != http.StatusUnauthorized || len(keys(last)) != 1 {
		t.Errorf("a token of a version that is gone: got %d of the resource server", got)
	}
	if got := introspected(t, last, gitServer, before); !strings.Contains(got, `"active":false`) {
		t.Errorf("a token of a version that is gone: introspection says %s", got)
	}
	raw := token(t, last.Client(t, agent), signedBy["EdDSA"]).Secret.Reveal()
	if got := atServer(t, last, resourceserver.Config{Audience: "https://git.test"}, raw); got != http.StatusOK || headOf(t, raw)["kid"] == headOf(t, before)["kid"] {
		t.Errorf("a token of the new version: got %d of the resource server", got)
	}
}

// A Vault that an earlier version prepared serves all scopes that need no other key. A scope that does says what to run, when the
// catalogue is loaded and to its callers.
func TestMissingKeyNamesBootstrap(t *testing.T) {
	t.Parallel()
	clouds := withClouds
	clouds.Applied = true
	for suffix, tc := range map[string]struct {
		options        testkit.Options
		refused, works client.Ask
	}{
		"-rs256": {clouds, deploy("aws.deploy"), deploy("gcp.deploy")},
		"-eddsa": {withAlgorithms, signedBy["EdDSA"], signedBy["ES256"]},
	} {
		t.Run(suffix, func(t *testing.T) {
			t.Parallel()
			s := testkit.NewStack(t, tc.options)
			vault, name := s.Vault(t), "transit/keys/"+s.VaultAccess().SigningKey+suffix
			if _, err := vault.Logical().WriteWithContext(t.Context(), name+"/config", map[string]any{"deletion_allowed": true}); err != nil {
				t.Fatal(err)
			}
			if _, err := vault.Logical().DeleteWithContext(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(s.Log.String(), "no key signs") {
				t.Error("the log warns about a key that is there")
			}
			s = s.FreshReplica(t)
			within(t, 30*time.Second, "the warning", func() bool {
				text := s.Log.String()
				return strings.Contains(text, "no key signs the tokens of some scopes") && strings.Contains(text, suffix) && strings.Contains(text, "run brevet bootstrap")
			})
			c := s.Client(t, agent)
			_, err := c.Request(t.Context(), tc.refused)
			var p *client.Problem
			if !errors.As(err, &p) || p.Code != openapi.CodeVaultRefused || !strings.Contains(p.Detail, "brevet bootstrap") {
				t.Errorf("got %v", err)
			}
			token(t, c, tc.works)
			if status, _, text := get(t, s, "/readyz"); status != http.StatusOK {
				t.Errorf("ready: got %d %s", status, text)
			}
			if got := metadata[openapi.OpenIDConfiguration](t, s, "/.well-known/openid-configuration"); slices.Contains(got.IDTokenSigningAlgValuesSupported, "RS256") != (suffix != "-rs256") {
				t.Errorf("got the algorithms %q", got.IDTokenSigningAlgValuesSupported)
			}
			for _, e := range s.DB.Entries(t) {
				if intent, ok := e.Body["intent"].(map[string]any); ok && intent["algorithm"] != "ES256" {
					t.Errorf("a request was recorded as allowed, and no key could sign it: %v", intent)
				}
			}
			s.DB.Check(t)
		})
	}
}
