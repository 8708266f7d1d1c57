package mint_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/mint"
)

const (
	input    = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhIn0"
	signPath = "transit/sign/brevet"
	keyPath  = "transit/keys/brevet"
)

// says answers with a fixed status and body.
func says(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// hangsUp writes raw bytes and closes the connection.
func hangsUp(raw string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, buf, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		_, _ = buf.WriteString(raw)
		_ = buf.Flush()
		_ = conn.Close()
	}
}

// echoes sends back the secrets of the request, in every place that an error text could come from.
func echoes(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		token := r.Header.Get("X-Vault-Token")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]any{"errors": []string{token, string(body), "got " + token}, "x": 1})
	}
}

// TestInvalidSignResponsesAreRefused is H69 and the cases of an unavailable Vault: each request is sent once, and the error holds
// nothing but the sentinel's meaning.
func TestInvalidSignResponsesAreRefused(t *testing.T) {
	rawEcho := func(w http.ResponseWriter, r *http.Request) {
		hangsUp("HTTP/1.1 "+r.Header.Get("X-Vault-Token")+"\r\n"+r.Header.Get("X-Vault-Token")+"\r\n\r\n")(w, r)
	}
	for name, lie := range map[string]http.HandlerFunc{
		"sealed":                     says(503, `{"errors":["Vault is sealed"]}`),
		"standby":                    says(429, `{"errors":[]}`),
		"performance standby":        says(473, ``),
		"quota":                      says(429, `{"errors":["request path: rate limit quota exceeded"]}`),
		"precondition":               says(412, `{"errors":["required index state not present"]}`),
		"internal error":             says(500, `{"errors":["1 error occurred:\n\t* boom\n\n"]}`),
		"bad gateway, HTML":          says(502, `<html>gateway</html>`),
		"denied":                     says(403, `{"errors":["permission denied"]}`),
		"bad request":                says(400, `{"errors":["version is too old"]}`),
		"not found":                  says(404, `{"errors":[]}`),
		"not found, with data":       says(404, `{"data":{"batch_results":[{"signature":"vault:v1:AAAA"}]}}`),
		"no content":                 says(204, ``),
		"accepted":                   says(202, `{"data":{"batch_results":[{"signature":"vault:v1:AAAA"}]}}`),
		"200 and nothing (H69)":      says(200, ``),
		"200 and HTML (H69)":         says(200, `<html>welcome</html>`),
		"200 and 10 MB (H69)":        says(200, `{"data":{"batch_results":[{"signature":"`+strings.Repeat("A", 10<<20)+`"}]}}`),
		"200 and 10 MB of space":     says(200, strings.Repeat(" ", 10<<20)+`{}`),
		"200 and null":               says(200, `null`),
		"200 and a list":             says(200, `[]`),
		"200 and no data":            says(200, `{"data":null}`),
		"200 and no signature":       says(200, `{"data":{"key_version":1}}`),
		"200 and a signature number": says(200, `{"data":{"batch_results":[{"signature":1}]}}`),
		"200 and errors":             says(200, `{"errors":["permission denied"]}`),
		"200 and a signature alone":  says(200, `{"data":{"signature":"vault:v1:AAAA"}}`),
		"200 and two signatures":     says(200, `{"data":{"batch_results":[{"signature":"vault:v1:AAAA"},{"signature":"vault:v1:AAAA"}]}}`),
		"200 and no results":         says(200, `{"data":{"batch_results":[]}}`),
		"200 and a result of null":   says(200, `{"data":{"batch_results":[null]}}`),
		"503 and 10 MB":              says(503, strings.Repeat(`{"errors":["`, 1<<20)),
		"hangs up":                   hangsUp(""),
		"speaks no HTTP":             hangsUp("SSH-2.0-OpenSSH_9.9\r\n"),
		"huge header":                hangsUp("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("A", 1<<20) + "\r\n\r\n"),
		"echoes in a refusal":        echoes(403),
		"echoes in a fault":          echoes(500),
		"echoes in a 200":            echoes(200),
		"echoes in its status line":  rawEcho,
	} {
		t.Run(name, func(t *testing.T) {
			v := newImpostor(t, p256(t))
			log := &journal{}
			cfg := knock(t, v.URL)
			cfg.Log = log.logger()
			m := open(t, cfg)
			key, err := m.Key("ES256")
			if err != nil {
				t.Fatal(err)
			}
			v.lie(signPath, lie)
			signature, err := m.Sign(t.Context(), key, input)
			if !errors.Is(err, broker.ErrVaultUnavailable) || errors.Is(err, broker.ErrMintMismatch) || signature != "" {
				t.Errorf("got %q, %v; want nothing and ErrVaultUnavailable", signature, err)
			}
			if got := v.called(signPath); got != 1 {
				t.Errorf("got %d calls to sign, want 1", got)
			}
			if ready := m.Ready(t.Context()); !errors.Is(ready, broker.ErrVaultUnavailable) {
				t.Errorf("ready after a fault: got %v, want ErrVaultUnavailable", ready)
			}
			holdsNoSecret(t, fmt.Sprintf("%v %+v %#v", err, err, err))
			holdsNoSecret(t, log.String())
			if len(err.Error()) > 1000 {
				t.Errorf("the error is %d bytes long", len(err.Error()))
			}
		})
	}
}

func holdsNoSecret(t *testing.T, text string) {
	t.Helper()
	encoded := base64.StdEncoding.EncodeToString([]byte(input))
	for _, secret := range []string{vaultTok, secretID, roleID, input, encoded} {
		if strings.Contains(text, secret) {
			t.Errorf("%q holds the secret %q (I9)", text, secret)
		}
	}
}

// TestUnexpectedSignaturesAreRefused is H70: an answer with a signature that is not exactly the one ordered.
func TestUnexpectedSignaturesAreRefused(t *testing.T) {
	first, second := p256(t), p256(t)
	good := base64.RawURLEncoding.EncodeToString(signWith(first, []byte(input)))
	sum := sha256.Sum256([]byte(input))
	der, err := ecdsa.SignASN1(rand.Reader, first, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	raw := func(signature string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			reply(w, map[string]any{"data": map[string]any{"batch_results": []any{map[string]any{"signature": signature, "key_version": 1}}}})
		}
	}
	lies := map[string]http.HandlerFunc{
		"version 2 says so":         raw("vault:v2:" + base64.RawURLEncoding.EncodeToString(signWith(second, []byte(input)))),
		"version 2 says 1":          raw("vault:v1:" + base64.RawURLEncoding.EncodeToString(signWith(second, []byte(input)))),
		"version 1 says 2":          raw("vault:v2:" + good),
		"version 1 says 11":         raw("vault:v11:" + good),
		"no prefix":                 raw(good),
		"another prefix":            raw("bao:v1:" + good),
		"prefix twice":              raw("vault:v1:vault:v1:" + good),
		"only the prefix":           raw("vault:v1:"),
		"DER in standard base64":    raw("vault:v1:" + base64.StdEncoding.EncodeToString(der)),
		"DER in base64url":          raw("vault:v1:" + base64.RawURLEncoding.EncodeToString(der)),
		"of another input":          raw("vault:v1:" + base64.RawURLEncoding.EncodeToString(signWith(first, []byte(input+"A")))),
		"padded":                    raw("vault:v1:" + good + "=="),
		"with a line break":         raw("vault:v1:" + good[:40] + "\n" + good[40:]),
		"with a trailing newline":   raw("vault:v1:" + good + "\n"),
		"with a second dot":         raw("vault:v1:" + good + "." + good),
		"all zero":                  raw("vault:v1:" + base64.RawURLEncoding.EncodeToString(make([]byte, 64))),
		"non-canonical base64":      raw("vault:v1:" + good[:85] + nonCanonical(good[85])),
		"one byte more":             raw("vault:v1:" + good + "AA"),
		"one bit flipped":           raw("vault:v1:" + flip(good)),
		"a control byte at the end": raw("vault:v1:" + good + "\x00"),
	}
	for i := range good {
		lies[fmt.Sprintf("cut at %d", i)] = raw("vault:v1:" + good[:i])
	}
	v := newImpostor(t, first, second)
	m := open(t, knock(t, v.URL))
	key, err := m.Key("ES256")
	if err != nil || key.Version != 1 {
		t.Fatalf("got key %v, %v; want version 1", key, err)
	}
	for name, lie := range lies {
		t.Run(name, func(t *testing.T) {
			before := v.called(signPath)
			v.lie(signPath, lie)
			signature, err := m.Sign(t.Context(), key, input)
			if !errors.Is(err, broker.ErrMintMismatch) || signature != "" {
				t.Errorf("got %q, %v; want nothing and ErrMintMismatch", signature, err)
			}
			if got := v.called(signPath) - before; got != 1 {
				t.Errorf("got %d calls to sign, want 1", got)
			}
		})
	}
	v.lie(signPath, raw("vault:v1:"+good))
	if _, err := m.Sign(t.Context(), key, input); err != nil {
		t.Errorf("the good signature: got %v", err)
	}
}

// nonCanonical returns a base64url digit that decodes to the same bytes at the end of 64 bytes, where four bits of the last digit
// are unused.
func nonCanonical(last byte) string {
	const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	return string(digits[strings.IndexByte(digits, last)|1])
}

func flip(signature string) string {
	raw, err := base64.RawURLEncoding.DecodeString(signature)
	if err != nil {
		panic(err)
	}
	raw[10] ^= 4
	return base64.RawURLEncoding.EncodeToString(raw)
}

// TestTruncatedSignResponseIsRefused ends the connection after every possible byte of a good answer.
func TestTruncatedSignResponseIsRefused(t *testing.T) {
	key := p256(t)
	v := newImpostor(t, key)
	m := open(t, knock(t, v.URL))
	named, err := m.Key("ES256")
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(signed(1, base64.RawURLEncoding.EncodeToString(signWith(key, []byte(input)))))
	if err != nil {
		t.Fatal(err)
	}
	whole := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	for i := range whole {
		before := v.called(signPath)
		v.lie(signPath, hangsUp(whole[:i]))
		signature, err := m.Sign(t.Context(), named, input)
		if !errors.Is(err, broker.ErrVaultUnavailable) || signature != "" {
			t.Fatalf("cut at %d: got %q, %v; want nothing and ErrVaultUnavailable", i, signature, err)
		}
		if got := v.called(signPath) - before; got != 1 {
			t.Fatalf("cut at %d: got %d calls to sign, want 1", i, got)
		}
	}
	v.lie(signPath, hangsUp(whole))
	if _, err := m.Sign(t.Context(), named, input); err != nil {
		t.Errorf("whole: got %v", err)
	}
}

// TestRedirectsAreNotFollowed is H68, at every call that carries a secret (T5).
func TestRedirectsAreNotFollowed(t *testing.T) {
	for _, status := range []int{301, 302, 303, 307, 308} {
		for _, path := range []string{signPath, keyPath, "auth/approle/login"} {
			t.Run(fmt.Sprintf("%d at %s", status, path), func(t *testing.T) {
				reached := make(chan string, 8)
				elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					reached <- r.Method + " " + r.URL.Path
				}))
				defer elsewhere.Close()
				v := newImpostor(t, p256(t))
				redirect := func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Location", elsewhere.URL+r.URL.Path)
					// The body would pass if the status were not checked.
					says(status, `{"auth":{"client_token":"hvs.other","lease_duration":60},"data":{"batch_results":[{"signature":"vault:v1:AAAA"}]}}`)(w, r)
				}
				var err error
				if path == signPath {
					m := open(t, knock(t, v.URL))
					key, keyErr := m.Key("ES256")
					if keyErr != nil {
						t.Fatal(keyErr)
					}
					v.lie(path, redirect)
					_, err = m.Sign(t.Context(), key, input)
				} else {
					v.lie(path, redirect)
					_, err = mint.Open(t.Context(), knock(t, v.URL))
				}
				if !errors.Is(err, broker.ErrVaultUnavailable) {
					t.Errorf("got %v, want ErrVaultUnavailable", err)
				}
				if len(reached) != 0 {
					t.Errorf("followed the redirect: %s", <-reached)
				}
				if got := v.called(path); got != 1 {
					t.Errorf("got %d calls, want 1", got)
				}
			})
		}
	}
}

func TestUnknownKeyVersionSignsNothing(t *testing.T) {
	v := newImpostor(t, p256(t))
	m := open(t, knock(t, v.URL))
	key, err := m.Key("ES256")
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*broker.Key){
		"another version": func(k *broker.Key) { k.Version = 2 },
		"version zero":    func(k *broker.Key) { k.Version = 0 },
		"another kid":     func(k *broker.Key) { k.ID = "other" },
		"EdDSA":           func(k *broker.Key) { k.Algorithm = "EdDSA" },
		"RS256":           func(k *broker.Key) { k.Algorithm = "RS256" },
		"no algorithm":    func(k *broker.Key) { k.Algorithm = "" },
		"alg none":        func(k *broker.Key) { k.Algorithm = "none" },
		"nothing":         func(k *broker.Key) { *k = broker.Key{} },
	} {
		other := key
		change(&other)
		if _, err := m.Sign(t.Context(), other, input); !errors.Is(err, broker.ErrVaultUnavailable) {
			t.Errorf("%s: got %v, want ErrVaultUnavailable", name, err)
		}
	}
	if got := v.called(signPath); got != 0 {
		t.Errorf("got %d calls to sign, want none", got)
	}
}

// Only broker can fill an order, so this one is empty: it must mint nothing, and must be spent afterwards.
func TestEmptyOrderMintsNothing(t *testing.T) {
	v := newImpostor(t, p256(t))
	m := open(t, knock(t, v.URL))
	order := &broker.Order{}
	if _, err := m.Mint(t.Context(), order); !errors.Is(err, broker.ErrMintMismatch) {
		t.Errorf("got %v, want ErrMintMismatch", err)
	}
	if _, err := m.Mint(t.Context(), order); !errors.Is(err, broker.ErrOrderSpent) {
		t.Errorf("again: got %v, want ErrOrderSpent", err)
	}
	if got := v.called(signPath); got != 0 {
		t.Errorf("got %d calls to sign, want none", got)
	}
}

func TestUnsuitableKeysDoNotSign(t *testing.T) {
	type change = map[string]any
	for name, tc := range map[string]struct {
		change change
		want   error
	}{
		"rsa":               {change{"type": "rsa-2048"}, mint.ErrKeyUnfit},
		"p-384":             {change{"type": "ecdsa-p384"}, mint.ErrKeyUnfit},
		"aes":               {change{"type": "aes256-gcm96", "keys": map[string]any{"1": 1442851412}}, mint.ErrKeyUnfit},
		"no type":           {change{"type": ""}, mint.ErrKeyUnfit},
		"exportable (T4)":   {change{"exportable": true}, mint.ErrKeyUnfit},
		"in backups (T4)":   {change{"allow_plaintext_backup": true}, mint.ErrKeyUnfit},
		"derived":           {change{"derived": true}, mint.ErrKeyUnfit},
		"no versions":       {change{"keys": map[string]any{}}, mint.ErrKeyUnfit},
		"version x":         {change{"keys": map[string]any{"x": map[string]any{}}}, mint.ErrKeyUnfit},
		"version 01":        {change{"keys": map[string]any{"01": map[string]any{}}}, mint.ErrKeyUnfit},
		"version 0":         {change{"keys": map[string]any{"0": map[string]any{}}}, mint.ErrKeyUnfit},
		"no public key":     {change{"keys": version1(time.Now(), "")}, mint.ErrKeyUnfit},
		"PEM of garbage":    {change{"keys": version1(time.Now(), pemOf("garbage"))}, mint.ErrKeyUnfit},
		"no creation time":  {change{"keys": version1(time.Time{}, "x")}, mint.ErrKeyUnfit},
		"ed25519":           {change{"type": "ed25519"}, mint.ErrKeyUnfit},
		"keys are a string": {change{"keys": "none"}, broker.ErrVaultUnavailable},
		"versions are text": {change{"min_decryption_version": "one"}, broker.ErrVaultUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			v := newImpostor(t, p256(t))
			v.key = tc.change
			_, err := mint.Open(t.Context(), knock(t, v.URL))
			if !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if wantOther := !errors.Is(tc.want, broker.ErrVaultUnavailable); wantOther == errors.Is(err, broker.ErrVaultUnavailable) {
				t.Errorf("got %v: trying again must help exactly when Vault was not understood", err)
			}
		})
	}
}

// An unfit key for EdDSA signs nothing, and the key for ES256 goes on.
func TestUnsuitableEdDSAKeysDoNotSign(t *testing.T) {
	type change = map[string]any
	for name, tc := range map[string]struct {
		change change
		want   error
	}{
		"p-256":           {change{"type": "ecdsa-p256"}, mint.ErrKeyUnfit},
		"with PEM":        {change{"keys": version1(time.Now(), pemOf("garbage"))}, mint.ErrKeyUnfit},
		"too short":       {change{"keys": version1(time.Now(), "AAAA")}, mint.ErrKeyUnfit},
		"derived":         {change{"derived": true}, mint.ErrKeyUnfit},
		"exportable (T4)": {change{"exportable": true}, mint.ErrKeyUnfit},
		"as it should be": {change{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			v := newImpostor(t, p256(t))
			v.edward = edward(t)
			v.lie(keyPath+"-eddsa", func(w http.ResponseWriter, _ *http.Request) {
				described := v.describe(map[int]crypto.Signer{1: v.edward})
				maps.Copy(described, tc.change)
				reply(w, map[string]any{"data": described})
			})
			m := open(t, knock(t, v.URL))
			if key, err := m.Key("EdDSA"); !errors.Is(err, tc.want) || tc.want != nil && key != (broker.Key{}) {
				t.Errorf("got %v, %v; want %v", key, err, tc.want)
			}
			if _, err := m.Key("ES256"); err != nil {
				t.Errorf("ES256: got %v", err)
			}
		})
	}
}

// Vault answers for one key with the signature of another. No signature is released for a key that did not make it.
func TestSignatureOfAnotherKeyIsNotReleased(t *testing.T) {
	private, ed := p256(t), edward(t)
	other := edward(t)
	v := newImpostor(t, private)
	v.edward = ed
	m := open(t, knock(t, v.URL))
	as := func(sign func(text string) []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			inputs, _ := asked(r)
			reply(w, signed(1, base64.RawURLEncoding.EncodeToString(sign(inputs[0]))))
		}
	}
	for name, tc := range map[string]struct {
		algorithm string
		sign      func(text string) []byte
		want      error
	}{
		"ES256 for EdDSA":                 {"EdDSA", func(text string) []byte { return signWith(private, []byte(text)) }, broker.ErrMintMismatch},
		"EdDSA for ES256":                 {"ES256", func(digest string) []byte { return signWith(ed, []byte(digest)) }, broker.ErrMintMismatch},
		"EdDSA of another key":            {"EdDSA", func(text string) []byte { return signWith(other, []byte(text)) }, broker.ErrMintMismatch},
		"EdDSA of the digest (Ed25519ph)": {"EdDSA", func(text string) []byte { return signWith(ed, digestOf([]byte(text))) }, broker.ErrMintMismatch},
		"EdDSA":                           {"EdDSA", func(text string) []byte { return signWith(ed, []byte(text)) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			path := map[string]string{"ES256": signPath, "EdDSA": signPath + "-eddsa"}[tc.algorithm]
			v.lie(path, as(tc.sign))
			key, err := m.Key(tc.algorithm)
			if err != nil {
				t.Fatal(err)
			}
			if signature, err := m.Sign(t.Context(), key, input); !errors.Is(err, tc.want) || (signature == "") != (tc.want != nil) {
				t.Errorf("got %q, %v; want %v", signature, err, tc.want)
			}
		})
	}
}

func version1(born time.Time, public string) map[string]any {
	return map[string]any{"1": map[string]any{"creation_time": born, "public_key": public}}
}

func pemOf(text string) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte(text)}))
}

// No call waits for Vault's answer longer than the timeout.
func TestSilenceEndsAtTheTimeout(t *testing.T) {
	v := newImpostor(t, p256(t))
	cfg := knock(t, v.URL)
	cfg.Timeout = 100 * time.Millisecond
	m := open(t, cfg)
	key, err := m.Key("ES256")
	if err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	defer close(release)
	for name, lie := range map[string]http.HandlerFunc{
		"no answer": func(http.ResponseWriter, *http.Request) { <-release },
		"half an answer": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"data":`)
			_ = http.NewResponseController(w).Flush()
			<-release
		},
	} {
		v.lie(signPath, lie)
		began := time.Now()
		_, err := m.Sign(t.Context(), key, input)
		if !errors.Is(err, broker.ErrVaultUnavailable) {
			t.Errorf("%s: got %v, want ErrVaultUnavailable", name, err)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("%s: took %v", name, took)
		}
	}
}
