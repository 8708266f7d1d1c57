package people_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/refusal"
	"github.com/go-jose/go-jose/v4"
	"go.uber.org/goleak"
)

const clientID = "brevet"

// A fetch ends even if no caller waits for it any more.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is a clock that the test advances.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// world is a provider on loopback with a key, and a verifier that knows only the provider's issuer.
type world struct {
	*people.Verifier
	clock  *clock
	issuer string
	key    *ecdsa.PrivateKey

	mu          sync.Mutex
	keys        []jose.JSONWebKey
	discoveries int
	downloads   int
	answer      http.HandlerFunc // replaces the default handler
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{clock: &clock{now: time.Now().Truncate(time.Second)}, key: ecKey(t, elliptic.P256())}
	w.keys = []jose.JSONWebKey{{Key: w.key.Public(), KeyID: "k1", Algorithm: "ES256", Use: "sig"}}
	srv := httptest.NewServer(w)
	t.Cleanup(srv.Close)
	w.issuer = srv.URL
	w.Verifier = w.verifier(t, nil)
	return w
}

func (w *world) verifier(t testing.TB, change func(*people.Config)) *people.Verifier {
	t.Helper()
	cfg := people.Config{Issuer: w.issuer, ClientID: clientID, Now: w.clock.Now}
	if change != nil {
		change(&cfg)
	}
	v, err := people.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// ServeHTTP serves the provider.
func (w *world) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	answer, keys := w.answer, jose.JSONWebKeySet{Keys: w.keys}
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		w.discoveries++
	case "/jwks":
		w.downloads++
	}
	w.mu.Unlock()
	rw.Header().Set("Content-Type", "application/json")
	switch {
	case answer != nil:
		answer(rw, r)
	case r.URL.Path == "/jwks":
		_ = json.NewEncoder(rw).Encode(keys)
	default:
		_ = json.NewEncoder(rw).Encode(map[string]any{"issuer": w.issuer, "jwks_uri": w.issuer + "/jwks"})
	}
}

func (w *world) set(answer http.HandlerFunc, keys ...jose.JSONWebKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer = answer
	if keys != nil {
		w.keys = keys
	}
}

// fetches returns how often the provider was asked for its keys.
func (w *world) fetches() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(w.discoveries, w.downloads)
}

func (w *world) claims() map[string]any {
	now := w.clock.Now()
	return map[string]any{
		"iss": w.issuer, "sub": "248289761001", "aud": clientID,
		"iat": now.Unix(), "exp": now.Add(10 * time.Minute).Unix(),
		"name": "Alice Archer", "preferred_username": "alice", "groups": []string{"oncall", "engineers", "oncall"},
	}
}

func header() map[string]any { return map[string]any{"alg": "ES256", "kid": "k1", "typ": "JWT"} }

// token signs claims with the provider's key.
func (w *world) token(t testing.TB, claims map[string]any) string {
	t.Helper()
	return jws(t, w.key, marshal(t, header()), marshal(t, claims))
}

func merged(base, change map[string]any) map[string]any {
	out := maps.Clone(base)
	for name, value := range change {
		if value == nil {
			delete(out, name)
			continue
		}
		out[name] = value
	}
	return out
}

func ecKey(t testing.TB, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func edKey(t testing.TB) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

var rsaKeys sync.Map // generating them is slow

func rsaKey(t testing.TB, bits int) *rsa.PrivateKey {
	t.Helper()
	if key, ok := rsaKeys.Load(bits); ok {
		return key.(*rsa.PrivateKey)
	}
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	rsaKeys.Store(bits, key)
	return key
}

// jws signs with the scheme of the key type: PKCS #1 v1.5 for RSA. The hash is SHA-256, except for Ed25519.
func jws(t testing.TB, key crypto.Signer, header, payload []byte) string {
	t.Helper()
	input := b64(header) + "." + b64(payload)
	sum := crypto.SHA256.New()
	sum.Write([]byte(input))
	digest := sum.Sum(nil)
	var signature []byte
	var err error
	switch key := key.(type) {
	case *ecdsa.PrivateKey:
		signature, err = ecdsaSignature(key, digest)
	case ed25519.PrivateKey:
		signature = ed25519.Sign(key, []byte(input))
	default:
		signature, err = key.Sign(rand.Reader, digest, crypto.SHA256)
	}
	if err != nil {
		t.Fatal(err)
	}
	return input + "." + b64(signature)
}

func ecdsaSignature(key *ecdsa.PrivateKey, digest []byte) ([]byte, error) {
	r, s, err := ecdsa.Sign(rand.Reader, key, digest)
	if err != nil {
		return nil, err
	}
	size := (key.Curve.Params().BitSize + 7) / 8
	out := make([]byte, 2*size)
	r.FillBytes(out[:size])
	s.FillBytes(out[size:])
	return out, nil
}

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// raw fills the placeholders of a payload that a map cannot express.
func (w *world) raw(payload string) []byte {
	now := w.clock.Now().Unix()
	return []byte(strings.NewReplacer("%ISS", w.issuer, "%NOW", fmt.Sprint(now), "%EXP", fmt.Sprint(now+60)).Replace(payload))
}

// wantReason checks that err is a refusal with this reason and that nobody was identified.
func wantReason(t testing.TB, p people.Person, err error, want string) {
	t.Helper()
	if got := refusal.Reason(err); got != want {
		t.Errorf("got reason %q (%v), want %q", got, err, want)
	}
	if !p.IsZero() {
		t.Errorf("got person %q along with an error", p.ID())
	}
}
