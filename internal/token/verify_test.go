package token_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/jws"
	"github.com/brevet-dev/brevet/internal/refusal"
	"github.com/brevet-dev/brevet/internal/token"
	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"
)

const issuer, gateway = "https://brevet.acme.example", "https://gateway.acme.example"

var now = time.Date(2026, 9, 21, 10, 0, 0, 0, time.UTC)

// authority signs tokens, both as an issuer does and as it never would.
type authority struct {
	t      testing.TB
	ec     *ecdsa.PrivateKey
	ed     ed25519.PrivateKey
	keys   token.KeySet
	public []jose.JSONWebKey
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{t: t, ec: ec, ed: ed, public: []jose.JSONWebKey{
		{Key: ec.Public(), KeyID: "ec", Algorithm: "ES256", Use: "sig"}, {Key: ed.Public(), KeyID: "ed", Algorithm: "EdDSA"},
	}}
	if a.keys, err = token.Parse(jwks(t, a.public...)); err != nil {
		t.Fatal(err)
	}
	return a
}

func jwks(t testing.TB, keys ...jose.JSONWebKey) []byte {
	t.Helper()
	return marshal(t, jose.JSONWebKeySet{Keys: keys})
}

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func (a *authority) verifier(audiences ...string) *token.Verifier {
	a.t.Helper()
	v, err := token.NewVerifier(token.Config{
		Issuer: issuer, Audiences: audiences, Keys: func() token.KeySet { return a.keys }, Now: func() time.Time { return now },
	})
	if err != nil {
		a.t.Fatal(err)
	}
	return v
}

// sign makes a JWS of any bytes with the key for the algorithm.
func (a *authority) sign(algorithm, header, payload string) string {
	a.t.Helper()
	input := b64(header) + "." + b64(payload)
	var key any = a.ec
	switch algorithm {
	case "EdDSA":
		key = a.ed
	case "HS256":
		key = marshal(a.t, a.public[0])
	case "none":
		return input + "." + b64("x")
	}
	signature, err := jwt.GetSigningMethod(algorithm).Sign(input, key)
	if err != nil {
		a.t.Fatal(err)
	}
	return input + "." + b64(string(signature))
}

func b64(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

const goodHeader = `{"alg":"ES256","kid":"ec","typ":"at+jwt"}`

func goodClaims() token.Claims {
	return token.Claims{
		Issuer: issuer, Subject: "spiffe://acme.example/agents/a", ClientID: "spiffe://acme.example/agents/a", Audience: gateway,
		IssuedAt: now.Unix() - 60, Expires: now.Unix() + 60, ID: "0190", Scope: "github.issues.read", Task: "t-1",
		Details: []token.Detail{{
			Type: "github.issues.read", Actions: []string{"read"}, Locations: []string{gateway}, Identifier: "github:repo/acme/api",
			Params: map[string]any{"repo": "acme/api", "n": json.Number("9007199254740993")},
		}},
		Confirm: &token.Confirm{X5T: "cert", JKT: "key"},
	}
}

func (a *authority) good() string {
	return a.sign("ES256", goodHeader, string(marshal(a.t, goodClaims())))
}

// with returns a signed token of good claims with some changed; a nil value removes one.
func (a *authority) with(change map[string]any) string {
	var claims map[string]any
	if err := json.Unmarshal(marshal(a.t, goodClaims()), &claims); err != nil {
		a.t.Fatal(err)
	}
	maps.Copy(claims, change)
	maps.DeleteFunc(claims, func(_ string, v any) bool { return v == nil })
	return a.sign("ES256", goodHeader, string(marshal(a.t, claims)))
}

// raw returns a signed token of good claims with some of their text replaced.
func (a *authority) raw(was, is string) string {
	text := string(marshal(a.t, goodClaims()))
	if !strings.Contains(text, was) {
		a.t.Fatalf("%s is not in %s", was, text)
	}
	return a.sign("ES256", goodHeader, strings.Replace(text, was, is, 1))
}

func (a *authority) header(text string) string {
	return a.sign("ES256", text, string(marshal(a.t, goodClaims())))
}

func TestVerify(t *testing.T) {
	a := newAuthority(t)
	for name, raw := range map[string]string{
		"ES256":            a.good(),
		"EdDSA":            a.sign("EdDSA", `{"alg":"EdDSA","kid":"ed","typ":"at+jwt"}`, string(marshal(t, goodClaims()))),
		"an unknown claim": a.with(map[string]any{"may_act": map[string]any{"sub": "x"}}),
		"nbf":              a.with(map[string]any{"nbf": now.Unix()}),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := a.verifier("https://other.example", gateway).Verify(raw)
			if err != nil {
				t.Fatal(err)
			}
			want := goodClaims()
			if strings.HasPrefix(name, "a") || name == "nbf" { // these went through a float64
				want.Details[0].Params["n"], got.Details[0].Params["n"] = nil, nil
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("claims (-want +got):\n%s", diff)
			}
		})
	}
	if _, err := a.verifier(gateway).Verify(a.with(map[string]any{"iat": now.Unix() + 5})); err != nil {
		t.Errorf("issued in 5 s: got %v, want it accepted", err)
	}
}

// H1 to H18, as far as they concern access tokens.
func TestVerifyRefuses(t *testing.T) {
	a := newAuthority(t)
	good := a.good()
	parts := strings.Split(good, ".")
	secs := now.Unix()
	for name, tc := range map[string]struct {
		raw  string
		want error
	}{
		"nothing":                {"", token.ErrMalformed},
		"dots":                   {strings.Repeat(".", 1<<20), token.ErrTooLarge},
		"two dots":               {"..", token.ErrMalformed},
		"two parts":              {parts[0] + "." + parts[1], token.ErrMalformed},
		"four parts":             {good + "." + parts[2], token.ErrMalformed},
		"no signature":           {parts[0] + "." + parts[1] + ".", token.ErrMalformed},
		"signature of nothing":   {parts[0] + "." + parts[1] + "." + b64(string(make([]byte, 64))), token.ErrSignature},
		"signature of another":   {parts[0] + "." + parts[1] + "." + strings.Split(a.raw("t-1", "t-2"), ".")[2], token.ErrSignature},
		"claims of another":      {parts[0] + "." + b64(`{"iss":"x"}`) + "." + parts[2], token.ErrSignature},
		"padding":                {good + "=", token.ErrMalformed},
		"line break":             {parts[0] + "\n." + parts[1] + "." + parts[2], token.ErrMalformed},
		"standard base64":        {strings.Replace(good, parts[0], parts[0][:4]+"+"+parts[0][5:], 1), token.ErrMalformed},
		"a space before":         {" " + good, token.ErrMalformed},
		"JSON serialisation":     {`{"payload":"` + parts[1] + `","protected":"` + parts[0] + `","signature":"` + parts[2] + `"}`, token.ErrMalformed},
		"stray bits":             {stray(t, good), token.ErrMalformed},
		"alg none":               {a.sign("none", `{"alg":"none","kid":"ec","typ":"at+jwt"}`, "{}"), token.ErrAlgorithm},
		"alg HS256":              {a.sign("HS256", `{"alg":"HS256","kid":"ec","typ":"at+jwt"}`, "{}"), token.ErrAlgorithm},
		"alg of another key":     {a.sign("EdDSA", `{"alg":"EdDSA","kid":"ec","typ":"at+jwt"}`, "{}"), token.ErrAlgorithm},
		"alg ES256 for Ed25519":  {a.sign("ES256", `{"alg":"ES256","kid":"ed","typ":"at+jwt"}`, "{}"), token.ErrAlgorithm},
		"alg ES256 by Ed25519":   {a.sign("EdDSA", `{"alg":"ES256","kid":"ed","typ":"at+jwt"}`, "{}"), token.ErrAlgorithm},
		"EdDSA for P-256":        {a.sign("ES256", `{"alg":"EdDSA","kid":"ec","typ":"at+jwt"}`, "{}"), token.ErrAlgorithm},
		"EdDSA kid of P-256 sig": {a.sign("ES256", `{"alg":"EdDSA","kid":"ed","typ":"at+jwt"}`, "{}"), token.ErrSignature},
		"alg Ed25519":            {a.sign("EdDSA", `{"alg":"Ed25519","kid":"ed","typ":"at+jwt"}`, "{}"), token.ErrAlgorithm},
		"HS256 for Ed25519":      {a.sign("HS256", `{"alg":"HS256","kid":"ed","typ":"at+jwt"}`, "{}"), token.ErrAlgorithm},
		"alg in other case":      {a.header(`{"alg":"es256","kid":"ec","typ":"at+jwt"}`), token.ErrAlgorithm},
		"alg missing":            {a.header(`{"kid":"ec","typ":"at+jwt"}`), token.ErrAlgorithm},
		"kid missing":            {a.header(`{"alg":"ES256","typ":"at+jwt"}`), token.ErrMalformed},
		"kid null":               {a.header(`{"alg":"ES256","kid":null,"typ":"at+jwt"}`), token.ErrMalformed},
		"kid unknown":            {a.header(`{"alg":"ES256","kid":"e","typ":"at+jwt"}`), token.ErrKey},
		"kid of another key":     {a.header(`{"alg":"EdDSA","kid":"ed","typ":"at+jwt"}`), token.ErrSignature},
		"typ missing":            {a.header(`{"alg":"ES256","kid":"ec"}`), token.ErrMalformed},
		"typ JWT":                {a.header(`{"alg":"ES256","kid":"ec","typ":"JWT"}`), token.ErrMalformed},
		"typ in other case":      {a.header(`{"alg":"ES256","kid":"ec","typ":"AT+JWT"}`), token.ErrMalformed},
		"typ with application":   {a.header(`{"alg":"ES256","kid":"ec","typ":"application/at+jwt"}`), token.ErrMalformed},
		"typ of a proof":         {a.header(`{"alg":"ES256","kid":"ec","typ":"dpop+jwt"}`), token.ErrMalformed},
		"crit":                   {a.header(`{"alg":"ES256","kid":"ec","typ":"at+jwt","crit":["exp"]}`), token.ErrMalformed},
		"b64":                    {a.header(`{"alg":"ES256","kid":"ec","typ":"at+jwt","b64":true}`), token.ErrMalformed},
		"jku":                    {a.header(`{"alg":"ES256","kid":"ec","typ":"at+jwt","jku":"https://evil.test"}`), token.ErrMalformed},
		"x5u":                    {a.header(`{"alg":"ES256","kid":"ec","typ":"at+jwt","x5u":"https://evil.test"}`), token.ErrMalformed},
		"x5c":                    {a.header(`{"alg":"ES256","kid":"ec","typ":"at+jwt","x5c":["AA"]}`), token.ErrMalformed},
		"jwk":                    {a.header(`{"alg":"ES256","kid":"ec","typ":"at+jwt","jwk":{"kty":"oct","k":"AA"}}`), token.ErrMalformed},
		"header in other case":   {a.header(`{"alg":"ES256","KID":"ec","kid":"ec","typ":"at+jwt"}`), token.ErrMalformed},
		"header twice":           {a.header(`{"alg":"none","alg":"ES256","kid":"ec","typ":"at+jwt"}`), token.ErrMalformed},
		"header and more":        {a.header(goodHeader + `{}`), token.ErrMalformed},
		"header is an array":     {a.header(`["ES256"]`), token.ErrMalformed},
		"claims are no object":   {a.sign("ES256", goodHeader, `[]`), token.ErrMalformed},
		"claims are null":        {a.sign("ES256", goodHeader, `null`), token.ErrMalformed},
		"claims and more":        {a.sign("ES256", goodHeader, `{} {}`), token.ErrMalformed},
		"claims not UTF-8":       {a.raw("t-1", "\xff"), token.ErrMalformed},
		"claim twice":            {a.raw(`"sub":`, `"sub":"spiffe://acme.example/evil","sub":`), token.ErrMalformed},
		"param twice":            {a.raw(`"n":`, `"n":1,"n":`), token.ErrMalformed},
		"SUB is not sub":         {a.raw(`"sub"`, `"SUB"`), token.ErrMalformed},
		"sub missing":            {a.with(map[string]any{"sub": nil}), token.ErrMalformed},
		"client_id missing":      {a.with(map[string]any{"client_id": nil}), token.ErrMalformed},
		"jti missing":            {a.with(map[string]any{"jti": nil}), token.ErrMalformed},
		"iss missing":            {a.with(map[string]any{"iss": nil}), token.ErrMalformed},
		"iss of another":         {a.with(map[string]any{"iss": "https://evil.test"}), token.ErrIssuer},
		"iss with a slash":       {a.with(map[string]any{"iss": issuer + "/"}), token.ErrIssuer},
		"aud missing":            {a.with(map[string]any{"aud": nil}), token.ErrMalformed},
		"aud empty":              {a.with(map[string]any{"aud": ""}), token.ErrMalformed},
		"aud of another":         {a.with(map[string]any{"aud": "https://other.example"}), token.ErrAudience},
		"aud in other case":      {a.with(map[string]any{"aud": strings.ToUpper(gateway)}), token.ErrAudience},
		"aud two":                {a.with(map[string]any{"aud": []string{gateway, "https://other.example"}}), token.ErrMalformed},
		"aud none":               {a.with(map[string]any{"aud": []string{}}), token.ErrMalformed},
		"exp missing":            {a.with(map[string]any{"exp": nil}), token.ErrMalformed},
		"exp null":               {a.raw(fmt.Sprintf(`"exp":%d`, secs+60), `"exp":null`), token.ErrMalformed},
		"exp as text":            {a.with(map[string]any{"exp": fmt.Sprint(secs + 60)}), token.ErrMalformed},
		"exp a fraction":         {a.raw(fmt.Sprintf(`"exp":%d`, secs+60), fmt.Sprintf(`"exp":%d.5`, secs+60)), token.ErrMalformed},
		"exp with an exponent":   {a.raw(fmt.Sprintf(`"exp":%d`, secs+60), `"exp":1e10`), token.ErrMalformed},
		"exp beyond all":         {a.raw(fmt.Sprintf(`"exp":%d`, secs+60), `"exp":9223372036854775808`), token.ErrMalformed},
		"exp in the year 10000":  {a.with(map[string]any{"exp": int64(253402300800)}), token.ErrMalformed},
		"exp now":                {a.with(map[string]any{"exp": secs}), token.ErrExpired},
		"exp before iat":         {a.with(map[string]any{"exp": secs + 1, "iat": secs + 2}), token.ErrMalformed},
		"iat missing":            {a.with(map[string]any{"iat": nil}), token.ErrMalformed},
		"iat in 6 s":             {a.with(map[string]any{"iat": secs + 6}), token.ErrNotYetValid},
		"nbf in 6 s":             {a.with(map[string]any{"nbf": secs + 6}), token.ErrNotYetValid},
		"cnf is no object":       {a.with(map[string]any{"cnf": "key"}), token.ErrMalformed},
		"details are no list":    {a.with(map[string]any{"authorization_details": "x"}), token.ErrMalformed},
		"another authority's":    {newAuthority(t).good(), token.ErrSignature},
		"the header of a JWE":    {parts[0] + ".." + parts[1] + "." + parts[2] + ".x", token.ErrMalformed},
		"a key's own thumbprint": {a.header(`{"alg":"ES256","kid":"` + thumbprint(t, a.ec.Public()) + `","typ":"at+jwt"}`), token.ErrKey},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := a.verifier(gateway).Verify(tc.raw)
			if !errors.Is(err, tc.want) || got.Subject != "" {
				t.Fatalf("got %+v, %v; want %v", got, err, tc.want)
			}
			if reason := refusal.Reason(err); !strings.HasPrefix(reason, "token_") {
				t.Errorf("got reason %q, want a code", reason)
			}
			for part := range strings.SplitSeq(tc.raw, ".") {
				if len(part) > 8 && strings.Contains(err.Error(), part) {
					t.Errorf("got the token's bytes in %q", err)
				}
			}
		})
	}
}

func thumbprint(t *testing.T, key crypto.PublicKey) string {
	t.Helper()
	text, err := jws.Thumbprint(key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// stray sets one of the unused bits in the last character of a 64-byte signature.
func stray(t *testing.T, good string) string {
	t.Helper()
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := strings.IndexByte(alphabet, good[len(good)-1])
	if last&0xf != 0 {
		t.Fatalf("got the last character %q, want no stray bits", good[len(good)-1])
	}
	return good[:len(good)-1] + string(alphabet[last|1])
}

func TestVerifierNeedsAnAudience(t *testing.T) {
	a := newAuthority(t)
	whole := token.Config{
		Issuer: issuer, Audiences: []string{gateway}, Keys: func() token.KeySet { return a.keys }, Now: func() time.Time { return now },
	}
	for name, change := range map[string]func(*token.Config){
		"no audience":       func(c *token.Config) { c.Audiences = nil },
		"an empty list":     func(c *token.Config) { c.Audiences = []string{} },
		"an empty audience": func(c *token.Config) { c.Audiences = []string{gateway, ""} },
		"no issuer":         func(c *token.Config) { c.Issuer = "" },
		"no keys":           func(c *token.Config) { c.Keys = nil },
		"no clock":          func(c *token.Config) { c.Now = nil },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := whole
			change(&cfg)
			if _, err := token.NewVerifier(cfg); !errors.Is(err, token.ErrConfig) {
				t.Errorf("got %v, want %v", err, token.ErrConfig)
			}
		})
	}
	if _, err := token.NewIssuerVerifier(whole); !errors.Is(err, token.ErrConfig) {
		t.Errorf("an issuer with audiences: got %v, want %v", err, token.ErrConfig)
	}
	whole.Audiences = nil
	v, err := token.NewIssuerVerifier(whole)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Verify(a.good()); err != nil {
		t.Errorf("the issuer: got %v, want it accepted", err)
	}
}

func TestParse(t *testing.T) {
	a := newAuthority(t)
	other, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ec := a.public[0]
	of := func(change func(*jose.JSONWebKey)) jose.JSONWebKey { key := ec; change(&key); return key }
	for name, tc := range map[string]struct {
		jwks []byte
		ok   bool
	}{
		"as published":           {jwks(t, a.public...), true},
		"with a type of its own": {[]byte(strings.Replace(string(jwks(t, ec)), "[", `[{"kty":"new","kid":"n"},`, 1)), true},
		"one for encryption":     {jwks(t, ec, of(func(k *jose.JSONWebKey) { k.Use, k.KeyID = "enc", "e" })), true},
		"nothing":                {nil, false},
		"no JSON":                {[]byte("<html>"), false},
		"no keys":                {jwks(t), false},
		"another document":       {[]byte(`{"issuer":"x"}`), false},
		"a private key":          {jwks(t, ec, jose.JSONWebKey{Key: a.ec, KeyID: "p", Algorithm: "ES256"}), false},
		"a shared secret":        {jwks(t, ec, jose.JSONWebKey{Key: []byte("k"), KeyID: "s", Algorithm: "HS256"}), false},
		"a kid twice":            {jwks(t, ec, ec), false},
		"no kid":                 {jwks(t, of(func(k *jose.JSONWebKey) { k.KeyID = "" })), false},
		"no alg":                 {jwks(t, of(func(k *jose.JSONWebKey) { k.Algorithm = "" })), false},
		"alg of another key":     {jwks(t, of(func(k *jose.JSONWebKey) { k.Algorithm = "EdDSA" })), false},
		"P-384 as ES256":         {jwks(t, of(func(k *jose.JSONWebKey) { k.Key = other.Public() })), false},
		"for encryption":         {jwks(t, of(func(k *jose.JSONWebKey) { k.Use = "enc" })), false},
		"off the curve":          {[]byte(`{"keys":[{"kty":"EC","crv":"P-256","alg":"ES256","kid":"x","x":"AA","y":"AA"}]}`), false},
		"far too large":          {append(jwks(t, ec), make([]byte, 1<<20)...), false},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := token.Parse(tc.jwks); (err == nil) != tc.ok || err != nil && !errors.Is(err, token.ErrKeySet) {
				t.Errorf("got %v, want accepted %t", err, tc.ok)
			}
		})
	}
}

func TestBound(t *testing.T) {
	for _, tc := range []struct {
		name      string
		cnf       *token.Confirm
		presented token.Presented
		ok        bool
	}{
		{"to nothing, nothing", nil, token.Presented{}, true},
		{"to nothing, a certificate", nil, token.Presented{X5T: "c"}, true},
		{"to nothing, a proof", nil, token.Presented{JKT: "k"}, false},
		{"to something unknown", &token.Confirm{}, token.Presented{}, false},
		{"to something unknown, both", &token.Confirm{}, token.Presented{X5T: "c", JKT: "k"}, false},
		{"to a certificate, it", &token.Confirm{X5T: "c"}, token.Presented{X5T: "c"}, true},
		{"to a certificate, none", &token.Confirm{X5T: "c"}, token.Presented{}, false},
		{"to a certificate, another", &token.Confirm{X5T: "c"}, token.Presented{X5T: "d"}, false},
		{"to a certificate, a proof", &token.Confirm{X5T: "c"}, token.Presented{JKT: "c"}, false},
		{"to a certificate, it and a proof", &token.Confirm{X5T: "c"}, token.Presented{X5T: "c", JKT: "k"}, false},
		{"to a key, it", &token.Confirm{JKT: "k"}, token.Presented{JKT: "k"}, true},
		{"to a key, it and a certificate", &token.Confirm{JKT: "k"}, token.Presented{JKT: "k", X5T: "c"}, true},
		{"to a key, none", &token.Confirm{JKT: "k"}, token.Presented{X5T: "c"}, false},
		{"to a key, another", &token.Confirm{JKT: "k"}, token.Presented{JKT: "l"}, false},
		{"to both, both", &token.Confirm{X5T: "c", JKT: "k"}, token.Presented{X5T: "c", JKT: "k"}, true},
		{"to both, the key", &token.Confirm{X5T: "c", JKT: "k"}, token.Presented{JKT: "k"}, false},
		{"to both, the certificate", &token.Confirm{X5T: "c", JKT: "k"}, token.Presented{X5T: "c"}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := token.Claims{Confirm: tc.cnf}.Bound(tc.presented)
			if (err == nil) != tc.ok || err != nil && !errors.Is(err, token.ErrBinding) {
				t.Errorf("got %v, want accepted %t", err, tc.ok)
			}
		})
	}
}

// Verify only accepts what was signed, and never panics.
func FuzzVerify(f *testing.F) {
	a := newAuthority(f)
	good := a.good()
	f.Add(good)
	f.Add(a.with(map[string]any{"exp": nil}))
	f.Add(a.header(`{"alg":"ES256","kid":"ec","typ":"at+jwt","crit":["exp"]}`))
	f.Add(a.sign("none", `{"alg":"none","kid":"ec","typ":"at+jwt"}`, "{}"))
	v := a.verifier(gateway)
	f.Fuzz(func(t *testing.T, raw string) {
		_, err := v.Verify(raw)
		if err != nil {
			if refusal.Reason(err) == "internal" {
				t.Errorf("got %v, want a refusal", err)
			}
			return
		}
		if end := strings.LastIndexByte(good, '.'); !strings.HasPrefix(raw, good[:end+1]) {
			t.Errorf("accepted what was never signed: %q", raw)
		}
	})
}

// Claims that the issuer signs are read back as any other parser would read them, without loss.
func FuzzClaims(f *testing.F) {
	a := newAuthority(f)
	v := a.verifier(gateway)
	f.Add(string(marshal(f, goodClaims())))
	f.Add(`{"iss":"x","SUB":"y"}`)
	f.Fuzz(func(t *testing.T, payload string) {
		signer := *a
		signer.t = t
		claims, err := v.Verify(signer.sign("ES256", goodHeader, payload))
		if err != nil {
			return
		}
		var lax token.Claims
		d := json.NewDecoder(strings.NewReader(payload))
		d.UseNumber()
		if err := d.Decode(&lax); err != nil {
			t.Fatalf("accepted what is no JSON: %v", err)
		}
		if lax.Subject != claims.Subject && !strings.Contains(strings.ToLower(payload), `"sub"`) {
			t.Errorf("got subject %q, another reader %q", claims.Subject, lax.Subject)
		}
		if claims.Audience != gateway || claims.Issuer != issuer || claims.Expires <= now.Unix() {
			t.Errorf("accepted %+v", claims)
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	a := newAuthority(b)
	v, good := a.verifier(gateway), a.good()
	for b.Loop() {
		if _, err := v.Verify(good); err != nil {
			b.Fatal(err)
		}
	}
}

// A cached signature does not bypass checks of what may have changed since: the time and the keys.
func TestCachedSignatureIsCheckedAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(a *authority, clock *time.Time)
		want   error
	}{
		"nothing":                        {func(*authority, *time.Time) {}, nil},
		"its time is over":               {func(_ *authority, clock *time.Time) { *clock = clock.Add(time.Hour) }, token.ErrExpired},
		"the clock goes back":            {func(_ *authority, clock *time.Time) { *clock = clock.Add(-time.Hour) }, token.ErrNotYetValid},
		"another key under the same kid": {func(a *authority, _ *time.Time) { a.keys = newAuthority(t).keys }, token.ErrSignature},
		"no key left":                    {func(a *authority, _ *time.Time) { a.keys = token.KeySet{} }, token.ErrKey},
	} {
		t.Run(name, func(t *testing.T) {
			a, clock := newAuthority(t), now
			v, err := token.NewVerifier(token.Config{
				Issuer: issuer, Audiences: []string{gateway}, Keys: func() token.KeySet { return a.keys }, Now: func() time.Time { return clock },
			})
			if err != nil {
				t.Fatal(err)
			}
			raw := a.good()
			for range 2 {
				if _, err := v.Verify(raw); err != nil {
					t.Fatal(err)
				}
			}
			tc.change(a, &clock)
			if _, err := v.Verify(raw); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if _, err := v.Verify(raw[:len(raw)-12] + "AAAAAAAAAAAA"); err == nil {
				t.Error("another signature passes")
			}
		})
	}
}
