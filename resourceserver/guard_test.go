package resourceserver_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/token"
	"github.com/brevet-dev/brevet/resourceserver"
	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"
)

const issuer, audience, origin = "https://brevet.test", "https://mail.test", "https://mail.test"

// world is an issuer that publishes keys, with a clock that the test controls.
type world struct {
	t       testing.TB
	mu      sync.Mutex
	now     time.Time
	keys    map[string]*ecdsa.PrivateKey
	maxAge  string
	down    bool
	lists   map[string]string // published lists by path
	fetched atomic.Int64
	jwks    *httptest.Server
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, now: time.Date(2026, 9, 21, 10, 0, 0, 0, time.UTC), keys: map[string]*ecdsa.PrivateKey{}, maxAge: "public, max-age=60"}
	w.rotate("one")
	w.jwks = httptest.NewTLSServer(http.HandlerFunc(w.publish))
	t.Cleanup(w.jwks.Close)
	return w
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (w *world) rotate(kid string) {
	key := newKey(w.t)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keys[kid] = key
}

func (w *world) publish(out http.ResponseWriter, r *http.Request) {
	w.fetched.Add(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down {
		out.WriteHeader(http.StatusBadGateway)
		return
	}
	if list, ok := w.lists[r.URL.Path]; ok {
		_, _ = io.WriteString(out, list)
		return
	}
	var set jose.JSONWebKeySet
	for kid, key := range w.keys {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: key.Public(), KeyID: kid, Algorithm: "ES256", Use: "sig"})
	}
	out.Header().Set("Cache-Control", w.maxAge)
	_ = json.NewEncoder(out).Encode(set)
}

func (w *world) later(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

func (w *world) outage(down bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = down
}

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

// token returns a token that the issuer signed, with some claims changed.
func (w *world) token(kid string, change func(*token.Claims)) string {
	w.t.Helper()
	now := w.clock().Unix()
	c := token.Claims{
		Issuer: issuer, Subject: "spiffe://acme.test/a", ClientID: "spiffe://acme.test/a", Audience: audience, IssuedAt: now,
		Expires: now + 600, ID: "id", Scope: "mail.read", Task: "t-1",
	}
	if change != nil {
		change(&c)
	}
	payload, err := json.Marshal(c)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.sign(kid, token.Type, payload)
}

func (w *world) sign(kid, typ string, payload []byte) string {
	w.t.Helper()
	input := b64([]byte(`{"alg":"ES256","kid":"`+kid+`","typ":"`+typ+`"}`)) + "." + b64(payload)
	w.mu.Lock()
	defer w.mu.Unlock()
	signature, err := jwt.SigningMethodES256.Sign(input, w.keys[kid])
	if err != nil {
		w.t.Fatal(err)
	}
	return input + "." + b64(signature)
}

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

func (w *world) guard(change func(*resourceserver.Config)) *resourceserver.Guard {
	w.t.Helper()
	cfg := resourceserver.Config{
		Issuer: issuer, Audience: audience, Origin: origin, JWKS: w.jwks.URL, HTTPClient: w.jwks.Client(), Now: w.clock,
	}
	if change != nil {
		change(&cfg)
	}
	g, err := resourceserver.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	return g
}

// call is one request to the resource server.
type call struct {
	authorization []string
	proofs        []string
	certificate   *x509.Certificate
}

func (c call) request(t testing.TB) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/inbox/1?unread=1", nil)
	r.Header["Authorization"] = c.authorization
	r.Header[http.CanonicalHeaderKey(dpop.Header)] = c.proofs
	r.TLS = &tls.ConnectionState{}
	if c.certificate != nil {
		r.TLS.PeerCertificates = []*x509.Certificate{c.certificate}
	}
	return r
}

type answer struct {
	status     int
	body       string
	challenges []string
}

func (c call) at(t testing.TB, g *resourceserver.Guard) answer {
	t.Helper()
	out := httptest.NewRecorder()
	g.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		claims, ok := resourceserver.FromContext(r.Context())
		if !ok {
			t.Error("the claims are not in the context")
		}
		_, _ = io.WriteString(w, claims.Subject)
	})).ServeHTTP(out, c.request(t))
	return answer{out.Code, out.Body.String(), out.Header().Values("WWW-Authenticate")}
}

func bearer(raw string) call { return call{authorization: []string{"Bearer " + raw}} }

func certificate(t testing.TB) (*x509.Certificate, string) {
	t.Helper()
	key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1)}, &x509.Certificate{}, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(der)
	return parsed, b64(sum[:])
}

func (w *world) signer() *dpop.Signer {
	w.t.Helper()
	s, err := dpop.NewSigner(newKey(w.t), w.clock)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func proofOf(t testing.TB, s *dpop.Signer, raw, url string) string {
	t.Helper()
	proof, err := s.Proof(dpop.Request{Method: http.MethodGet, URL: url, Token: raw})
	if err != nil {
		t.Fatal(err)
	}
	return proof
}

const anyBearer, anyProof = "Bearer", `DPoP algs="ES256 ES384 EdDSA Ed25519"`

// H17: a token or a proof is useful only to the client that it is bound to.
func TestTokenIsUselessToOtherClients(t *testing.T) {
	w := newWorld(t)
	g := w.guard(nil)
	ours, thumbprint := certificate(t)
	theirs, _ := certificate(t)
	key, other := w.signer(), w.signer()
	plain := w.token("one", nil)
	certified := w.token("one", func(c *token.Claims) { c.Confirm = &token.Confirm{X5T: thumbprint} })
	proved := w.token("one", func(c *token.Claims) { c.Confirm = &token.Confirm{JKT: key.Thumbprint()} })
	both := w.token("one", func(c *token.Claims) { c.Confirm = &token.Confirm{JKT: key.Thumbprint(), X5T: thumbprint} })
	const here = origin + "/inbox/1"
	with := func(raw string, proofs ...string) call {
		return call{authorization: []string{"DPoP " + raw}, proofs: proofs}
	}
	on := func(c call, cert *x509.Certificate) call { c.certificate = cert; return c }
	refused := func(scheme, name string) string { return scheme + ` error="` + name + `"` }
	used := proofOf(t, key, proved, here)
	for _, tc := range []struct {
		name   string
		call   call
		status int
		says   string // how the first challenge begins
	}{
		{"a bearer token", bearer(plain), 200, ""},
		{"a bearer token over mTLS", on(bearer(plain), ours), 200, ""},
		{"bound to a certificate", on(bearer(certified), ours), 200, ""},
		{"bound to a key", with(proved, used), 200, ""},
		{"bound to both", on(with(both, proofOf(t, key, both, here)), ours), 200, ""},
		{"nothing", call{}, 401, anyBearer},
		{"another scheme", call{authorization: []string{"Basic YTpi"}}, 401, anyBearer},
		{"no token", call{authorization: []string{"Bearer "}}, 400, refused("Bearer", "invalid_request")},
		{"two tokens", call{authorization: []string{"Bearer " + plain, "DPoP " + plain}}, 400, refused("Bearer", "invalid_request")},
		{"no token at all", bearer("x"), 401, refused("Bearer", "invalid_token")},
		{"expired", bearer(w.token("one", func(c *token.Claims) { c.IssuedAt -= 60; c.Expires = c.IssuedAt + 60 })), 401, refused("Bearer", "invalid_token")},
		{"for another", bearer(w.token("one", func(c *token.Claims) { c.Audience = "https://git.test" })), 401, refused("Bearer", "invalid_token")},
		{"of another issuer", bearer(w.token("one", func(c *token.Claims) { c.Issuer = "https://evil.test" })), 401, refused("Bearer", "invalid_token")},
		{"without its certificate", bearer(certified), 401, refused("Bearer", "invalid_token")},
		{"with another certificate", on(bearer(certified), theirs), 401, refused("Bearer", "invalid_token")},
		{"a proof for a certificate", with(certified, proofOf(t, key, certified, here)), 401, `DPoP algs="ES256 ES384 EdDSA Ed25519", error="invalid_token"`},
		{"a proof for nothing", with(plain, proofOf(t, key, plain, here)), 401, `DPoP algs="ES256 ES384 EdDSA Ed25519", error="invalid_token"`},
		{"a bound token as bearer", bearer(proved), 401, refused("Bearer", "invalid_token")},
		{"a bound token as bearer, with a proof", call{authorization: []string{"Bearer " + proved}, proofs: []string{proofOf(t, key, proved, here)}}, 401, refused("Bearer", "invalid_token")},
		{"both, without the certificate", with(both, proofOf(t, key, both, here)), 401, `DPoP algs="ES256 ES384 EdDSA Ed25519", error="invalid_token"`},
		{"replayed", with(proved, used), 401, `DPoP algs="ES256 ES384 EdDSA Ed25519", error="invalid_dpop_proof"`},
		{"no proof", with(proved), 401, `DPoP algs="ES256 ES384 EdDSA Ed25519", error="invalid_dpop_proof"`},
		{"two proofs", with(proved, proofOf(t, key, proved, here), proofOf(t, key, proved, here)), 401, `DPoP algs="ES256 ES384 EdDSA Ed25519", error="invalid_dpop_proof"`},
		{"another's proof", with(proved, proofOf(t, other, proved, here)), 401, `DPoP algs="ES256 ES384 EdDSA Ed25519", error="invalid_dpop_proof"`},
		{"a proof for another token", with(proved, proofOf(t, key, both, here)), 401, `DPoP algs="ES256 ES384 EdDSA Ed25519", error="invalid_dpop_proof"`},
		{"a proof for another path", with(proved, proofOf(t, key, proved, origin+"/inbox/2")), 401, `DPoP algs="ES256 ES384 EdDSA Ed25519", error="invalid_dpop_proof"`},
		{"a proof for the Host header", with(proved, proofOf(t, key, proved, "https://example.com/inbox/1")), 401, `DPoP algs="ES256 ES384 EdDSA Ed25519", error="invalid_dpop_proof"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := tc.call.at(t, g)
			if got.status != tc.status {
				t.Fatalf("got %d %s, want %d", got.status, got.body, tc.status)
			}
			if tc.status == 200 {
				if got.body != "spiffe://acme.test/a" || got.challenges != nil {
					t.Errorf("got %q and %q", got.body, got.challenges)
				}
				return
			}
			if !strings.HasPrefix(got.challenges[0], tc.says) || tc.says == anyBearer && (got.challenges[0] != anyBearer || got.challenges[1] != anyProof) {
				t.Errorf("got the challenges %q, want %q", got.challenges, tc.says)
			}
		})
	}
	if n := w.fetched.Load(); n != 1 {
		t.Errorf("the keys were fetched %d times, want 1", n)
	}
}

func TestKeysAreKeptAndRenewed(t *testing.T) {
	w := newWorld(t)
	g := w.guard(nil)
	wants := func(step, kid string, status int, fetched int64) {
		t.Helper()
		if got := bearer(w.token(kid, nil)).at(t, g); got.status != status {
			t.Errorf("%s: got %d %s, want %d", step, got.status, got.body, status)
		}
		if n := w.fetched.Load(); n != fetched {
			t.Errorf("%s: the keys were fetched %d times, want %d", step, n, fetched)
		}
	}
	wants("first", "one", 200, 1)
	wants("again", "one", 200, 1)
	w.rotate("two")
	wants("a new kid too soon", "two", 401, 1)
	w.later(10 * time.Second)
	wants("a new kid", "two", 200, 2)
	w.rotate("three")
	wants("another at once", "three", 401, 2)
	w.later(61 * time.Second)
	wants("past max-age", "one", 200, 3)
	wants("with what came then", "three", 200, 3)
	w.outage(true)
	w.later(61 * time.Second)
	wants("an outage", "one", 200, 4)
	w.later(5 * time.Second)
	wants("still", "one", 200, 4)
	w.later(10 * time.Minute)
	wants("for too long", "one", 503, 5)
	w.outage(false)
	wants("over, but too soon", "one", 503, 5)
	w.later(10 * time.Second)
	wants("over", "one", 200, 6)
}

func TestNothingPassesWithoutKeys(t *testing.T) {
	w := newWorld(t)
	w.outage(true)
	g := w.guard(nil)
	if got := bearer(w.token("one", nil)).at(t, g); got.status != 503 || !strings.Contains(got.body, "temporarily_unavailable") {
		t.Errorf("got %d %s, want 503", got.status, got.body)
	}
	if got := (call{}).at(t, g); got.status != 401 {
		t.Errorf("without a token: got %d, want 401", got.status)
	}
	if n := w.fetched.Load(); n != 1 {
		t.Errorf("the keys were fetched %d times, want 1", n)
	}
}

// A hundred concurrent requests cause one fetch of the keys.
func TestKeysAreFetchedOnceForAll(t *testing.T) {
	w := newWorld(t)
	g, raw := w.guard(nil), w.token("one", nil)
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if got := bearer(raw).at(t, g); got.status != 200 {
				t.Errorf("got %d %s, want 200", got.status, got.body)
			}
		})
	}
	wg.Wait()
	if n := w.fetched.Load(); n != 1 {
		t.Errorf("the keys were fetched %d times, want 1", n)
	}
}

func TestConfirm(t *testing.T) {
	w := newWorld(t)
	raw := w.token("one", nil)
	for name, tc := range map[string]struct {
		says   error
		status int
	}{
		"in force":        {nil, 200},
		"not any more":    {fmt.Errorf("introspecting: %w", resourceserver.ErrInactive), 401},
		"nobody can tell": {errors.New("connection refused"), 503},
	} {
		t.Run(name, func(t *testing.T) {
			g := w.guard(func(c *resourceserver.Config) {
				c.Confirm = func(_ context.Context, shown string, claims token.Claims) error {
					if shown != raw || claims.ID != "id" {
						t.Errorf("got %q and %+v", shown, claims)
					}
					return tc.says
				}
			})
			if got := bearer(raw).at(t, g); got.status != tc.status {
				t.Errorf("got %d %s, want %d", got.status, got.body, tc.status)
			}
		})
	}
}

// A one-shot token passes only if Confirm accepts its use.
func TestOneShotTokensNeedConfirmation(t *testing.T) {
	w := newWorld(t)
	raw := w.token("one", func(c *token.Claims) { c.OneShot = true })
	if got := bearer(raw).at(t, w.guard(nil)); got.status != 401 {
		t.Errorf("got %d where nobody is asked, want 401", got.status)
	}
	asked := 0
	g := w.guard(func(c *resourceserver.Config) {
		c.Confirm = func(context.Context, string, token.Claims) error {
			if asked++; asked > 1 {
				return resourceserver.ErrInactive
			}
			return nil
		}
	})
	for i, want := range []int{200, 401} {
		if got := bearer(raw).at(t, g); got.status != want {
			t.Errorf("call %d: got %d, want %d", i+1, got.status, want)
		}
	}
}

func TestPermissiveConfigIsRefused(t *testing.T) {
	for name, cfg := range map[string]resourceserver.Config{
		"no issuer":          {Audience: audience},
		"no audience":        {Issuer: issuer},
		"keys over http":     {Issuer: issuer, Audience: audience, JWKS: "http://brevet.test/jwks.json"},
		"an origin's path":   {Issuer: issuer, Audience: audience, Origin: origin + "/inbox"},
		"an origin in plain": {Issuer: issuer, Audience: audience, Origin: "http://mail.test"},
		"no origin's host":   {Issuer: issuer, Audience: audience, Origin: "mail.test"},
		"an issuer's shape":  {Issuer: "brevet", Audience: audience},
	} {
		if _, err := resourceserver.New(cfg); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
	w := newWorld(t)
	key := w.signer()
	g := w.guard(func(c *resourceserver.Config) { c.Origin = "" })
	proved := w.token("one", func(c *token.Claims) { c.Confirm = &token.Confirm{JKT: key.Thumbprint()} })
	c := call{authorization: []string{"DPoP " + proved}, proofs: []string{proofOf(t, key, proved, origin+"/inbox/1")}}
	if got := c.at(t, g); got.status != 401 {
		t.Errorf("without an origin: got %d, want no bound token to pass", got.status)
	}
}
