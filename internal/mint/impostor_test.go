package mint_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/mint"
)

const (
	roleID   = "f3a1c0de-0000-4000-8000-00000000role"
	secretID = "5ec4e7aa-0000-4000-8000-0000005ec4e7"
	vaultTok = "hvs.CAESIImpostorTokenThatMustNeverBeSeen"
)

// impostor answers as Vault would, until a test makes it lie: real servers do not lie on demand. Other tests check the answers of
// a real Vault.
type impostor struct {
	*httptest.Server
	keys map[int]crypto.Signer // by version
	// edward is the key for EdDSA; nil if there is none.
	edward crypto.Signer

	mu      sync.Mutex
	calls   map[string]int // by method and path
	headers []http.Header
	lies    map[string]http.HandlerFunc // by path
	login   string                      // the token of the next login
	key     map[string]any              // overrides in the key's description
	born    map[int]time.Time
}

func newImpostor(t *testing.T, keys ...crypto.Signer) *impostor {
	t.Helper()
	v := unstarted(t, keys...)
	v.Start()
	return v
}

func unstarted(t *testing.T, keys ...crypto.Signer) *impostor {
	t.Helper()
	v := &impostor{
		keys: map[int]crypto.Signer{}, born: map[int]time.Time{}, login: vaultTok,
		calls: map[string]int{}, lies: map[string]http.HandlerFunc{}, key: map[string]any{},
	}
	for i, key := range keys {
		v.keys[i+1], v.born[i+1] = key, epoch.Add(time.Duration(i)*24*time.Hour)
	}
	v.Server = httptest.NewUnstartedServer(http.HandlerFunc(v.serve))
	v.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	t.Cleanup(v.Close)
	return v
}

func (v *impostor) serve(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/v1/")
	v.mu.Lock()
	v.calls[path]++
	v.headers = append(v.headers, r.Header.Clone())
	lie := v.lies[path]
	v.mu.Unlock()
	switch {
	case lie != nil:
		lie(w, r)
	case path == "auth/approle/login":
		v.mu.Lock()
		defer v.mu.Unlock()
		reply(w, map[string]any{"auth": map[string]any{"client_token": v.login, "lease_duration": 1200, "renewable": true}})
	case path == "transit/keys/brevet":
		described := v.describe(v.keys)
		maps.Copy(described, v.key)
		reply(w, map[string]any{"data": described})
	case path == "transit/sign/brevet":
		v.sign(w, r, v.keys)
	case path == "transit/keys/brevet-eddsa" && v.edward != nil:
		reply(w, map[string]any{"data": v.describe(map[int]crypto.Signer{1: v.edward})})
	case path == "transit/sign/brevet-eddsa" && v.edward != nil:
		v.sign(w, r, map[int]crypto.Signer{1: v.edward})
	case path == "sys/leader":
		reply(w, map[string]any{"ha_enabled": false})
	case path == "auth/token/renew-self":
		reply(w, map[string]any{"auth": map[string]any{"client_token": vaultTok, "lease_duration": 1200, "renewable": true}})
	default:
		http.Error(w, `{"errors":["no handler for route"]}`, http.StatusNotFound)
	}
}

func reply(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body)
}

func (v *impostor) describe(keys map[int]crypto.Signer) map[string]any {
	v.mu.Lock()
	defer v.mu.Unlock()
	versions, kind := map[string]any{}, ""
	for number, key := range keys {
		var public string
		switch p := key.Public().(type) {
		case ed25519.PublicKey:
			kind, public = "ed25519", base64.StdEncoding.EncodeToString(p)
		default:
			kind = "ecdsa-p256"
			der, _ := x509.MarshalPKIXPublicKey(p)
			public = string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
		}
		versions[strconv.Itoa(number)] = map[string]any{"creation_time": v.born[number], "public_key": public}
	}
	return map[string]any{"type": kind, "min_decryption_version": 1, "min_encryption_version": 0, "keys": versions}
}

func (v *impostor) sign(w http.ResponseWriter, r *http.Request, keys map[int]crypto.Signer) {
	inputs, version := asked(r)
	var signatures []string
	for _, input := range inputs {
		signatures = append(signatures, base64.RawURLEncoding.EncodeToString(signSent(keys[version], []byte(input))))
	}
	reply(w, signed(version, signatures...))
}

// asked returns the texts that a request wants signed (digests for ES256), and the key version.
func asked(r *http.Request) (inputs []string, version int) {
	var ask struct {
		Batch []struct {
			Input []byte `json:"input"`
		} `json:"batch_input"`
		Version int `json:"key_version"`
	}
	_ = json.NewDecoder(r.Body).Decode(&ask)
	for _, item := range ask.Batch {
		inputs = append(inputs, string(item.Input))
	}
	return inputs, ask.Version
}

func signed(version int, signatures ...string) map[string]any {
	var results []map[string]any
	for _, signature := range signatures {
		results = append(results, map[string]any{"signature": "vault:v" + strconv.Itoa(version) + ":" + signature, "key_version": version})
	}
	return map[string]any{"data": map[string]any{"batch_results": results}}
}

// signWith returns a JWS signature of a text.
func signWith(key crypto.Signer, text []byte) []byte {
	if _, ok := key.(*ecdsa.PrivateKey); ok {
		text = digestOf(text)
	}
	return signSent(key, text)
}

func digestOf(text []byte) []byte {
	sum := sha256.Sum256(text)
	return sum[:]
}

// signSent returns a JWS signature of the input that Vault receives.
func signSent(key crypto.Signer, input []byte) []byte {
	switch k := key.(type) {
	case *ecdsa.PrivateKey:
		r, s, err := ecdsa.Sign(rand.Reader, k, input)
		if err != nil {
			panic(err)
		}
		return append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	case ed25519.PrivateKey:
		return ed25519.Sign(k, input)
	}
	panic("no such key")
}

// lie replaces the impostor's answer for one path. A nil answer restores it.
func (v *impostor) lie(path string, answer http.HandlerFunc) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lies[path] = answer
}

func (v *impostor) called(path string) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.calls[path]
}

func p256(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func edward(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// clock is a clock that tests set.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Set(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
}

// journal is a log that tests read while it is written.
type journal struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.String()
}

func (j *journal) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(j, &slog.HandlerOptions{Level: slog.LevelDebug, AddSource: true}))
}

// knock returns a configuration for the impostor, with an AppRole login.
func knock(t *testing.T, addr string) mint.Config {
	t.Helper()
	return mint.Config{
		Addr: addr, SigningKey: "brevet", MaxTTL: 15 * time.Minute, Timeout: 5 * time.Second,
		Auth: mint.Auth{AppRole: &mint.AppRole{RoleID: roleID, SecretIDFile: file(t, secretID)}},
		Now:  (&clock{now: epoch}).Now, Log: slog.New(slog.DiscardHandler),
	}
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t *testing.T, cfg mint.Config) *mint.Minter {
	t.Helper()
	m, err := mint.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}
