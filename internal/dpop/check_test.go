package dpop_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/jws"
	"github.com/brevet-dev/brevet/internal/refusal"
	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"
)

const address = "https://brevet.acme.example/v1/tokens"

var now = time.Date(2026, 9, 21, 10, 0, 0, 0, time.UTC)

func clock() time.Time { return now }

// The proofs of RFC 9449, and the key that signed them.
const (
	rfcKey   = "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"
	rfcToken = "Kz~8mXK1EalYznwH-LC-1fBAo.4Ljp~zsPE_NeO.gxU"

	rfcTokenRequest = "eyJ0eXAiOiJkcG9wK2p3dCIsImFsZyI6IkVTMjU2IiwiandrIjp7Imt0eSI6Ik" +
		"VDIiwieCI6Imw4dEZyaHgtMzR0VjNoUklDUkRZOXpDa0RscEJoRjQyVVFVZldWQVdCR" +
		"nMiLCJ5IjoiOVZFNGpmX09rX282NHpiVFRsY3VOSmFqSG10NnY5VERWclUwQ2R2R1JE" +
		"QSIsImNydiI6IlAtMjU2In19.eyJqdGkiOiItQndDM0VTYzZhY2MybFRjIiwiaHRtIj" +
		"oiUE9TVCIsImh0dSI6Imh0dHBzOi8vc2VydmVyLmV4YW1wbGUuY29tL3Rva2VuIiwia" +
		"WF0IjoxNTYyMjYyNjE2fQ.2-GxA6T8lP4vfrg8v-FdWP0A0zdrj8igiMLvqRMUvwnQg" +
		"4PtFLbdLXiOSsX0x7NVY-FNyJK70nfbV37xRZT3Lg"

	rfcResourceRequest = "eyJ0eXAiOiJkcG9wK2p3dCIsImFsZyI6IkVTMjU2IiwiandrIjp7Imt0eSI6Ik" +
		"VDIiwieCI6Imw4dEZyaHgtMzR0VjNoUklDUkRZOXpDa0RscEJoRjQyVVFVZldWQVdCR" +
		"nMiLCJ5IjoiOVZFNGpmX09rX282NHpiVFRsY3VOSmFqSG10NnY5VERWclUwQ2R2R1JE" +
		"QSIsImNydiI6IlAtMjU2In19.eyJqdGkiOiJlMWozVl9iS2ljOC1MQUVCIiwiaHRtIj" +
		"oiR0VUIiwiaHR1IjoiaHR0cHM6Ly9yZXNvdXJjZS5leGFtcGxlLm9yZy9wcm90ZWN0Z" +
		"WRyZXNvdXJjZSIsImlhdCI6MTU2MjI2MjYxOCwiYXRoIjoiZlVIeU8ycjJaM0RaNTNF" +
		"c05yV0JiMHhXWG9hTnk1OUlpS0NBcWtzbVFFbyJ9.2oW9RP35yRqzhrtNP86L-Ey71E" +
		"OptxRimPPToA1plemAgR6pxHF8y6-yqyVnmcw6Fy1dqd-jfxSYoMxhAJpLjA"
)

func TestRFC9449ProofsAreAccepted(t *testing.T) {
	for _, tc := range []struct {
		name, proof string
		want        dpop.Expected
	}{
		{
			"token request", rfcTokenRequest,
			dpop.Expected{Method: "POST", URLs: []string{"https://server.example.com/token"}, Now: time.Unix(1562262616, 0)},
		},
		{
			"resource request", rfcResourceRequest,
			dpop.Expected{
				Method: "GET", URLs: []string{"https://resource.example.org/protectedresource"}, Now: time.Unix(1562262618, 0), Token: rfcToken,
				Thumbprint: rfcKey,
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := dpop.Check([]string{tc.proof}, tc.want)
			if err != nil || got.Thumbprint != rfcKey {
				t.Fatalf("got %+v, %v; want it accepted from %s", got, err, rfcKey)
			}
			tc.want.Now = now
			if _, err := dpop.Check([]string{tc.proof}, tc.want); !errors.Is(err, dpop.ErrTime) {
				t.Errorf("years later: got %v, want %v", err, dpop.ErrTime)
			}
		})
	}
}

// workload makes proofs, both as a client does and as no honest client would.
type workload struct {
	t   testing.TB
	key *ecdsa.PrivateKey
	*dpop.Signer
}

func newWorkload(t testing.TB) workload {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := dpop.NewSigner(key, clock)
	if err != nil {
		t.Fatal(err)
	}
	return workload{t, key, signer}
}

func (w workload) proof(r dpop.Request) string {
	w.t.Helper()
	proof, err := w.Proof(r)
	if err != nil {
		w.t.Fatal(err)
	}
	return proof
}

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func b64(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

func (w workload) header() map[string]any {
	return map[string]any{"typ": "dpop+jwt", "alg": "ES256", "jwk": w.jwk()}
}

func (w workload) jwk() map[string]any {
	var members map[string]any
	if err := json.Unmarshal(marshal(w.t, jose.JSONWebKey{Key: w.key.Public()}), &members); err != nil {
		w.t.Fatal(err)
	}
	return members
}

func goodClaims() map[string]any {
	return map[string]any{"jti": "one", "htm": "POST", "htu": address, "iat": now.Unix()}
}

// sign makes a JWS of any bytes.
func (w workload) sign(header, payload string) string {
	w.t.Helper()
	input := b64(header) + "." + b64(payload)
	signature, err := jwt.SigningMethodES256.Sign(input, w.key)
	if err != nil {
		w.t.Fatal(err)
	}
	return input + "." + b64(string(signature))
}

func changed(base, change map[string]any) map[string]any {
	maps.Copy(base, change)
	maps.DeleteFunc(base, func(_ string, v any) bool { return v == nil })
	return base
}

func (w workload) with(change map[string]any) string {
	return w.sign(string(marshal(w.t, w.header())), string(marshal(w.t, changed(goodClaims(), change))))
}

func (w workload) head(change map[string]any) string {
	return w.sign(string(marshal(w.t, changed(w.header(), change))), string(marshal(w.t, goodClaims())))
}

func (w workload) withKey(change map[string]any) string {
	return w.head(map[string]any{"jwk": changed(w.jwk(), change)})
}

// under returns a good proof by a key of another kind.
func under(t *testing.T, method jwt.SigningMethod, key crypto.Signer) string {
	t.Helper()
	return signedAs(t, method.Alg(), method, key)
}

// named returns a good proof by an Ed25519 key, with the given name of the algorithm.
func named(t *testing.T, algorithm string, key ed25519.PrivateKey) string {
	t.Helper()
	return signedAs(t, algorithm, jwt.SigningMethodEdDSA, key)
}

func ed25519Key(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func signedAs(t *testing.T, algorithm string, method jwt.SigningMethod, key crypto.Signer) string {
	t.Helper()
	header := map[string]any{"typ": "dpop+jwt", "alg": algorithm, "jwk": jose.JSONWebKey{Key: key.Public()}}
	input := b64(string(marshal(t, header))) + "." + b64(string(marshal(t, goodClaims())))
	signature, err := method.Sign(input, key)
	if err != nil {
		t.Fatal(err)
	}
	return input + "." + b64(string(signature))
}

func generate(t *testing.T, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func expected() dpop.Expected {
	return dpop.Expected{Method: "POST", URLs: []string{address}, Now: now}
}

// H1 to H18 for proofs; H6 for the key that a proof contains.
func TestCheckRefuses(t *testing.T) {
	w := newWorkload(t)
	good := w.with(nil)
	parts := strings.Split(good, ".")
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	private := string(marshal(t, jose.JSONWebKey{Key: w.key}))
	secs := now.Unix()
	for name, tc := range map[string]struct {
		proof string
		want  error
	}{
		"nothing":                 {"", dpop.ErrMalformed},
		"dots":                    {strings.Repeat(".", 1<<16), dpop.ErrMalformed},
		"two in one value":        {good + "," + good, dpop.ErrMalformed},
		"a space":                 {" " + good, dpop.ErrMalformed},
		"two parts":               {parts[0] + "." + parts[1], dpop.ErrMalformed},
		"a line break":            {parts[0] + "\n." + parts[1] + "." + parts[2], dpop.ErrMalformed},
		"padding":                 {good + "==", dpop.ErrMalformed},
		"too large":               {w.with(map[string]any{"pad": strings.Repeat("x", 8<<10)}), dpop.ErrMalformed},
		"signature of another":    {parts[0] + "." + parts[1] + "." + strings.Split(w.with(map[string]any{"jti": "two"}), ".")[2], dpop.ErrSignature},
		"signature of zeros":      {parts[0] + "." + parts[1] + "." + b64(string(make([]byte, 64))), dpop.ErrSignature},
		"signature in DER":        {parts[0] + "." + parts[1] + "." + b64("\x30\x06\x02\x01\x01\x02\x01\x01"), dpop.ErrSignature},
		"key of another":          {w.head(map[string]any{"jwk": newWorkload(t).jwk()}), dpop.ErrSignature},
		"typ missing":             {w.head(map[string]any{"typ": nil}), dpop.ErrMalformed},
		"typ JWT":                 {w.head(map[string]any{"typ": "JWT"}), dpop.ErrMalformed},
		"typ of an access token":  {w.head(map[string]any{"typ": "at+jwt"}), dpop.ErrMalformed},
		"typ in other case":       {w.head(map[string]any{"typ": "DPoP+JWT"}), dpop.ErrMalformed},
		"alg missing":             {w.head(map[string]any{"alg": nil}), dpop.ErrAlgorithm},
		"alg none":                {w.head(map[string]any{"alg": "none"}), dpop.ErrAlgorithm},
		"alg HS256":               {w.head(map[string]any{"alg": "HS256"}), dpop.ErrAlgorithm},
		"alg HS256 with its key":  {w.head(map[string]any{"alg": "HS256", "jwk": map[string]any{"kty": "oct", "k": "AA"}}), dpop.ErrAlgorithm},
		"alg RS256":               {under(t, jwt.SigningMethodRS256, rsaKey), dpop.ErrAlgorithm},
		"alg PS256":               {under(t, jwt.SigningMethodPS256, rsaKey), dpop.ErrAlgorithm},
		"alg ES512":               {under(t, jwt.SigningMethodES512, generate(t, elliptic.P521())), dpop.ErrAlgorithm},
		"alg of another curve":    {w.head(map[string]any{"alg": "ES384"}), dpop.ErrKey},
		"alg of another type":     {w.head(map[string]any{"alg": "EdDSA"}), dpop.ErrKey},
		"Ed25519 of another type": {w.head(map[string]any{"alg": "Ed25519"}), dpop.ErrKey},
		"alg Ed448":               {named(t, "Ed448", ed25519Key(t)), dpop.ErrAlgorithm},
		"RSA key as ES256":        {w.head(map[string]any{"jwk": jose.JSONWebKey{Key: rsaKey.Public()}}), dpop.ErrKey},
		"kid":                     {w.head(map[string]any{"kid": "x"}), dpop.ErrMalformed},
		"crit":                    {w.head(map[string]any{"crit": []string{"iat"}}), dpop.ErrMalformed},
		"b64":                     {w.head(map[string]any{"b64": false}), dpop.ErrMalformed},
		"jku":                     {w.head(map[string]any{"jku": "https://evil.test"}), dpop.ErrMalformed},
		"x5u":                     {w.head(map[string]any{"x5u": "https://evil.test"}), dpop.ErrMalformed},
		"x5c":                     {w.head(map[string]any{"x5c": []string{"AA"}}), dpop.ErrMalformed},
		"header twice":            {w.sign(strings.Replace(string(marshal(t, w.header())), `"alg"`, `"alg":"none","alg"`, 1), string(marshal(t, goodClaims()))), dpop.ErrMalformed},
		"JWK in other case":       {w.sign(strings.Replace(string(marshal(t, w.header())), `"jwk"`, `"JWK"`, 1), string(marshal(t, goodClaims()))), dpop.ErrMalformed},
		"no jwk":                  {w.head(map[string]any{"jwk": nil}), dpop.ErrKey},
		"jwk null":                {w.sign(`{"typ":"dpop+jwt","alg":"ES256","jwk":null}`, string(marshal(t, goodClaims()))), dpop.ErrKey},
		"jwk is text":             {w.head(map[string]any{"jwk": "x"}), dpop.ErrKey},
		"jwk is private":          {w.sign(`{"typ":"dpop+jwt","alg":"ES256","jwk":`+private+`}`, string(marshal(t, goodClaims()))), dpop.ErrKey},
		"jwk with d":              {w.withKey(map[string]any{"d": "AA"}), dpop.ErrKey},
		"jwk with an empty d":     {w.withKey(map[string]any{"d": ""}), dpop.ErrKey},
		"jwk with p":              {w.withKey(map[string]any{"p": "AA"}), dpop.ErrKey},
		"jwk with k":              {w.withKey(map[string]any{"k": "AA"}), dpop.ErrKey},
		"jwk with x5c":            {w.withKey(map[string]any{"x5c": []string{"AA"}}), dpop.ErrKey},
		"jwk with x5u":            {w.withKey(map[string]any{"x5u": "https://evil.test"}), dpop.ErrKey},
		"jwk off the curve":       {w.withKey(map[string]any{"x": b64(strings.Repeat("\x01", 32)), "y": b64(strings.Repeat("\x02", 32))}), dpop.ErrKey},
		"jwk at infinity":         {w.withKey(map[string]any{"x": b64(strings.Repeat("\x00", 32)), "y": b64(strings.Repeat("\x00", 32))}), dpop.ErrKey},
		"jwk too short":           {w.withKey(map[string]any{"x": "AA"}), dpop.ErrKey},
		"jwk too long":            {w.withKey(map[string]any{"x": b64("\x00" + strings.Repeat("\x01", 32))}), dpop.ErrKey},
		"jwk without y":           {w.withKey(map[string]any{"y": nil}), dpop.ErrKey},
		"jwk of another curve":    {w.withKey(map[string]any{"crv": "P-384"}), dpop.ErrKey},
		"jwk of an unknown curve": {w.withKey(map[string]any{"crv": "secp256k1"}), dpop.ErrKey},
		"jwk of another type":     {w.withKey(map[string]any{"kty": "OKP"}), dpop.ErrKey},
		"jwk twice":               {w.sign(strings.Replace(string(marshal(t, w.header())), `"kty"`, `"kty":"oct","kty"`, 1), string(marshal(t, goodClaims()))), dpop.ErrMalformed},
		"claims are no object":    {w.sign(string(marshal(t, w.header())), `[]`), dpop.ErrMalformed},
		"claim twice":             {w.sign(string(marshal(t, w.header())), `{"htm":"GET",`+string(marshal(t, goodClaims()))[1:]), dpop.ErrMalformed},
		"jti missing":             {w.with(map[string]any{"jti": nil}), dpop.ErrMalformed},
		"jti empty":               {w.with(map[string]any{"jti": ""}), dpop.ErrMalformed},
		"jti a number":            {w.with(map[string]any{"jti": 1}), dpop.ErrMalformed},
		"jti too long":            {w.with(map[string]any{"jti": strings.Repeat("x", 257)}), dpop.ErrMalformed},
		"htm missing":             {w.with(map[string]any{"htm": nil}), dpop.ErrMethod},
		"htm of another":          {w.with(map[string]any{"htm": "GET"}), dpop.ErrMethod},
		"htm in other case":       {w.with(map[string]any{"htm": "post"}), dpop.ErrMethod},
		"HTM":                     {w.with(map[string]any{"htm": nil, "HTM": "POST"}), dpop.ErrMethod},
		"htu missing":             {w.with(map[string]any{"htu": nil}), dpop.ErrURL},
		"htu of another host":     {w.with(map[string]any{"htu": "https://evil.test/v1/tokens"}), dpop.ErrURL},
		"htu of another path":     {w.with(map[string]any{"htu": "https://brevet.acme.example/v1/token"}), dpop.ErrURL},
		"htu of a longer path":    {w.with(map[string]any{"htu": address + "/"}), dpop.ErrURL},
		"htu of another case":     {w.with(map[string]any{"htu": "https://brevet.acme.example/V1/tokens"}), dpop.ErrURL},
		"htu of another scheme":   {w.with(map[string]any{"htu": "http://brevet.acme.example/v1/tokens"}), dpop.ErrURL},
		"htu of another port":     {w.with(map[string]any{"htu": "https://brevet.acme.example:8443/v1/tokens"}), dpop.ErrURL},
		"htu with a user":         {w.with(map[string]any{"htu": "https://brevet.acme.example@evil.test/v1/tokens"}), dpop.ErrURL},
		"htu with our user":       {w.with(map[string]any{"htu": "https://x@brevet.acme.example/v1/tokens"}), dpop.ErrURL},
		"htu with dots":           {w.with(map[string]any{"htu": "https://brevet.acme.example/v1/x/../tokens"}), dpop.ErrURL},
		"htu with escaped dots":   {w.with(map[string]any{"htu": "https://brevet.acme.example/v1/x/%2e%2e/tokens"}), dpop.ErrURL},
		"htu with an escaped /":   {w.with(map[string]any{"htu": "https://brevet.acme.example/v1%2ftokens"}), dpop.ErrURL},
		"htu with two slashes":    {w.with(map[string]any{"htu": "https://brevet.acme.example//v1/tokens"}), dpop.ErrURL},
		"htu with a final dot":    {w.with(map[string]any{"htu": "https://brevet.acme.example./v1/tokens"}), dpop.ErrURL},
		"htu is a path":           {w.with(map[string]any{"htu": "/v1/tokens"}), dpop.ErrURL},
		"htu is a list":           {w.with(map[string]any{"htu": []string{address}}), dpop.ErrMalformed},
		"iat missing":             {w.with(map[string]any{"iat": nil}), dpop.ErrMalformed},
		"iat as text":             {w.with(map[string]any{"iat": fmt.Sprint(secs)}), dpop.ErrMalformed},
		"iat a fraction":          {w.with(map[string]any{"iat": float64(secs) + 0.5}), dpop.ErrMalformed},
		"iat negative":            {w.with(map[string]any{"iat": -1}), dpop.ErrMalformed},
		"iat in 6 s":              {w.with(map[string]any{"iat": secs + 6}), dpop.ErrTime},
		"iat 61 s ago":            {w.with(map[string]any{"iat": secs - 61}), dpop.ErrTime},
		"ath where no token is":   {w.with(map[string]any{"ath": "x"}), dpop.ErrToken},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := dpop.Check([]string{tc.proof}, expected())
			if !errors.Is(err, tc.want) || got != (dpop.Proof{}) {
				t.Fatalf("got %+v, %v; want %v", got, err, tc.want)
			}
			if reason := refusal.Reason(err); !strings.HasPrefix(reason, "proof_") {
				t.Errorf("got reason %q, want a code", reason)
			}
			for part := range strings.SplitSeq(tc.proof, ".") {
				if len(part) > 8 && strings.Contains(err.Error(), part) {
					t.Errorf("got the proof's bytes in %q", err)
				}
			}
		})
	}
	if _, err := dpop.Check(nil, expected()); !errors.Is(err, dpop.ErrMissing) {
		t.Errorf("none: got %v, want %v", err, dpop.ErrMissing)
	}
	if _, err := dpop.Check([]string{good, good}, expected()); !errors.Is(err, dpop.ErrMalformed) {
		t.Errorf("two: got %v, want %v", err, dpop.ErrMalformed)
	}
}

func TestCheckAccepts(t *testing.T) {
	w := newWorkload(t)
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, proof := range map[string]string{
		"plain":                   w.with(nil),
		"ES384":                   under(t, jwt.SigningMethodES384, generate(t, elliptic.P384())),
		"EdDSA":                   under(t, jwt.SigningMethodEdDSA, ed),
		"Ed25519 (RFC 9864)":      named(t, "Ed25519", ed),
		"5 s early":               w.with(map[string]any{"iat": now.Unix() + 5}),
		"60 s late":               w.with(map[string]any{"iat": now.Unix() - 60}),
		"a query and a fragment":  w.with(map[string]any{"htu": address + "?a=b#c"}),
		"the default port":        w.with(map[string]any{"htu": "https://brevet.acme.example:443/v1/tokens"}),
		"host in other case":      w.with(map[string]any{"htu": "HTTPS://Brevet.ACME.example/v1/tokens"}),
		"a needless escape":       w.with(map[string]any{"htu": "https://brevet.acme.example/v1/%74okens"}),
		"an unknown claim":        w.with(map[string]any{"sub": "x"}),
		"a nonce nobody asks for": w.with(map[string]any{"nonce": "x"}),
		"what a key may say":      w.withKey(map[string]any{"kid": "x", "alg": "ES256", "use": "sig", "key_ops": []string{"verify"}, "ext": true}),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := dpop.Check([]string{proof}, expected())
			if err != nil {
				t.Fatal(err)
			}
			if got.Thumbprint == "" || got.Until.Before(now) || got.Until.After(now.Add(70*time.Second)) {
				t.Errorf("got %+v", got)
			}
		})
	}
	got, err := dpop.Check([]string{w.with(nil)}, expected())
	want, _ := jws.Thumbprint(w.key.Public())
	if err != nil || got.Thumbprint != want || got.Thumbprint != w.Thumbprint() {
		t.Errorf("got %s, %v; want %s", got.Thumbprint, err, want)
	}
}

func TestProofIsBoundToOneTokenAndKey(t *testing.T) {
	w, other := newWorkload(t), newWorkload(t)
	proof := w.proof(dpop.Request{Method: "GET", URL: address + "?q=1", Token: "token"})
	for _, tc := range []struct {
		name   string
		change func(*dpop.Expected)
		want   error
	}{
		{"as made", func(*dpop.Expected) {}, nil},
		{"for its key", func(e *dpop.Expected) { e.Thumbprint = w.Thumbprint() }, nil},
		{"another key", func(e *dpop.Expected) { e.Thumbprint = other.Thumbprint() }, dpop.ErrBinding},
		{"another token", func(e *dpop.Expected) { e.Token = "tokem" }, dpop.ErrToken},
		{"no token", func(e *dpop.Expected) { e.Token = "" }, dpop.ErrToken},
		{"another method", func(e *dpop.Expected) { e.Method = "HEAD" }, dpop.ErrMethod},
		{"another query", func(e *dpop.Expected) { e.URLs[0] += "?q=2" }, nil},
		{"one of two addresses", func(e *dpop.Expected) { e.URLs = []string{"https://other.example/v1/tokens", address} }, nil},
		{"no address", func(e *dpop.Expected) { e.URLs = nil }, dpop.ErrURL},
		{"a relative expected URL", func(e *dpop.Expected) { e.URLs = []string{"/v1/tokens"} }, dpop.ErrURL},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := dpop.Expected{Method: "GET", URLs: []string{address}, Now: now, Token: "token"}
			tc.change(&want)
			if _, err := dpop.Check([]string{proof}, want); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
	if _, err := dpop.Check([]string{w.proof(dpop.Request{Method: "POST", URL: address})}, dpop.Expected{
		Method: "POST", URLs: []string{address}, Now: now, Token: "token",
	}); !errors.Is(err, dpop.ErrToken) {
		t.Errorf("a proof for no token: got %v, want %v", err, dpop.ErrToken)
	}
}

func TestSignerRefusesUnsupportedKeys(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]crypto.Signer{"RSA": rsaKey, "P-521": generate(t, elliptic.P521()), "none": nil} {
		if _, err := dpop.NewSigner(key, clock); !errors.Is(err, dpop.ErrConfig) {
			t.Errorf("%s: got %v, want %v", name, err, dpop.ErrConfig)
		}
	}
	w := newWorkload(t)
	if _, err := w.Proof(dpop.Request{Method: "GET", URL: "brevet.acme.example"}); !errors.Is(err, dpop.ErrURL) {
		t.Errorf("no address: got %v, want %v", err, dpop.ErrURL)
	}
	one, two := w.proof(dpop.Request{Method: "GET", URL: address}), w.proof(dpop.Request{Method: "GET", URL: address})
	first, err := dpop.Check([]string{one}, dpop.Expected{Method: "GET", URLs: []string{address}, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	if second, err := dpop.Check([]string{two}, dpop.Expected{Method: "GET", URLs: []string{address}, Now: now}); err != nil ||
		first.Digest == second.Digest {
		t.Errorf("got one digest for two proofs, %v", err)
	}
}

func TestNonces(t *testing.T) {
	shared := []byte(strings.Repeat("k", 32))
	one, err := dpop.NewNonces(shared)
	if err != nil {
		t.Fatal(err)
	}
	replica, _ := dpop.NewNonces(shared)
	other, _ := dpop.NewNonces([]byte(strings.Repeat("l", 32)))
	w := newWorkload(t)
	for _, tc := range []struct {
		name, nonce string
		ok          bool
	}{
		{"none", "", false},
		{"made up", "AAAAAAAAAAAAAAAAAAAAAA", false},
		{"of now", one.At(now), true},
		{"of another replica", replica.At(now), true},
		{"of a replica 5 s ahead", replica.At(now.Add(5 * time.Second)), true},
		{"of 2 min ago", one.At(now.Add(-2 * time.Minute)), true},
		{"of 4 min ago", one.At(now.Add(-4 * time.Minute)), false},
		{"of 2 min ahead", one.At(now.Add(2 * time.Minute)), false},
		{"of another deployment", other.At(now), false},
		{"with a character more", one.At(now) + "A", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := expected()
			want.Nonces = one
			_, err := dpop.Check([]string{w.proof(dpop.Request{Method: "POST", URL: address, Nonce: tc.nonce})}, want)
			if (err == nil) != tc.ok || err != nil && !errors.Is(err, dpop.ErrNonce) {
				t.Errorf("got %v, want accepted %t", err, tc.ok)
			}
		})
	}
	want := expected()
	want.Nonces = one
	if _, err := dpop.Check([]string{w.with(map[string]any{"htm": "GET"})}, want); !errors.Is(err, dpop.ErrMethod) {
		t.Errorf("a proof that lacks more than a nonce: got %v, want %v", err, dpop.ErrMethod)
	}
	if _, err := dpop.NewNonces(shared[:31]); !errors.Is(err, dpop.ErrConfig) {
		t.Errorf("a short key: got %v, want %v", err, dpop.ErrConfig)
	}
}

func TestReplayCacheRefusesUsedProofs(t *testing.T) {
	w, m := newWorkload(t), dpop.NewReplayCache(20)
	use := func(id string, at time.Time) error {
		want := expected()
		want.Now = at
		p, err := dpop.Check([]string{w.with(map[string]any{"jti": id, "iat": at.Unix()})}, want)
		if err != nil {
			t.Fatal(err)
		}
		return m.Use(p, at)
	}
	for _, step := range []struct {
		id   string
		at   time.Duration
		want error
	}{
		{"a", 0, nil},
		{"a", 0, dpop.ErrReplayed},
		{"b", time.Second, nil},
		{"c", 2 * time.Second, dpop.ErrCrowded},
		{"a", 2 * time.Second, dpop.ErrReplayed},
		{"c", 63 * time.Second, nil},
		{"d", 63 * time.Second, nil},
		{"c", 64 * time.Second, dpop.ErrReplayed},
	} {
		if err := use(step.id, now.Add(step.at)); !errors.Is(err, step.want) {
			t.Errorf("%s after %s: got %v, want %v", step.id, step.at, err, step.want)
		}
	}
	// Each key gets its tenth until the cache is full.
	at := now.Add(64 * time.Second)
	for i := range 18 {
		p := dpop.Proof{Thumbprint: fmt.Sprint(i), Digest: [32]byte{byte(i)}, Until: at}
		if err := m.Use(p, at); err != nil {
			t.Errorf("another key: got %v", err)
		}
	}
	if err := m.Use(dpop.Proof{Digest: [32]byte{99}}, at); err == nil || refusal.Reason(err) == "internal" {
		t.Errorf("got %v, want it refused by name", err)
	}
}

// Check only accepts what the key signed, and never panics.
func FuzzCheck(f *testing.F) {
	w := newWorkload(f)
	good := w.with(nil)
	f.Add(good)
	f.Add(rfcTokenRequest)
	f.Add(w.head(map[string]any{"jwk": nil}))
	f.Add(w.withKey(map[string]any{"d": "AA"}))
	f.Fuzz(func(t *testing.T, proof string) {
		got, err := dpop.Check([]string{proof}, dpop.Expected{Method: "POST", URLs: []string{address}, Now: now, Thumbprint: w.Thumbprint()})
		if err != nil {
			if refusal.Reason(err) == "internal" {
				t.Errorf("got %v, want a refusal", err)
			}
			return
		}
		if got.Thumbprint != w.Thumbprint() || !strings.HasPrefix(proof, good[:strings.LastIndexByte(good, '.')+1]) {
			t.Errorf("accepted what was never signed: %q", proof)
		}
	})
}

// Two URLs are the same only if no server would distinguish them.
func FuzzURL(f *testing.F) {
	w := newWorkload(f)
	for _, htu := range []string{address, address + "?q", "https://brevet.acme.example/v1/%74okens", "https://BREVET.acme.example:443/v1/tokens#x"} {
		f.Add(htu)
	}
	f.Fuzz(func(t *testing.T, htu string) {
		payload, err := json.Marshal(changed(goodClaims(), map[string]any{"htu": htu}))
		if err != nil {
			return
		}
		signer := w
		signer.t = t
		_, err = dpop.Check([]string{signer.sign(string(marshal(t, signer.header())), string(payload))}, expected())
		if err == nil && !strings.HasPrefix(strings.ToLower(htu), "https://brevet.acme.example") {
			t.Errorf("accepted %q", htu)
		}
	})
}

func BenchmarkCheck(b *testing.B) {
	w := newWorkload(b)
	proof, want := []string{w.with(nil)}, expected()
	for b.Loop() {
		if _, err := dpop.Check(proof, want); err != nil {
			b.Fatal(err)
		}
	}
}
