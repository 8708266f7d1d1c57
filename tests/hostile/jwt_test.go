package hostile_test

import (
	"crypto"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
)

// tokenMaker makes a token to send as a JWT-SVID of agent.
type tokenMaker func(t *testing.T, w *world) string

// unproven is a call with that token, which must not authenticate.
func unproven(name, detail string, token tokenMaker) try {
	return refusedBy(name, func(t *testing.T, w *world, _ *testkit.Stack) call {
		return call{auth: "Bearer " + token(t, w)}
	}, refusal{401, "unauthenticated", detail})
}

func claims(w *world) map[string]any {
	now := w.now()
	return map[string]any{"sub": agent, "aud": testkit.Audience, "iat": now.Unix(), "exp": now.Add(4 * time.Minute).Unix(), "x": marker}
}

func header(w *world) map[string]any {
	kid, _ := w.s[0].Acme.JWTKey()
	return map[string]any{"alg": "ES256", "kid": kid, "typ": "JWT"}
}

// changed returns a copy of a map with some members changed. A nil value removes a member.
func changed(base, change map[string]any) map[string]any {
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

// with signs valid claims with one changed.
func with(name string, value any) tokenMaker {
	return func(t *testing.T, w *world) string {
		t.Helper()
		return signed(t, w, nil, map[string]any{name: value})
	}
}

// under signs valid claims under a header with one member changed.
func under(name string, value any) tokenMaker {
	return func(t *testing.T, w *world) string {
		t.Helper()
		return signed(t, w, map[string]any{name: value}, nil)
	}
}

func signed(t *testing.T, w *world, head, body map[string]any) string {
	t.Helper()
	_, key := w.s[0].Acme.JWTKey()
	return jws(t, key, string(marshal(t, changed(header(w), head))), string(marshal(t, changed(claims(w), body))))
}

// at sets one time of valid claims, in seconds from the replicas' clock.
func at(claim string, seconds int64) tokenMaker {
	return func(t *testing.T, w *world) string {
		t.Helper()
		return with(claim, w.now().Unix()+seconds)(t, w)
	}
}

// raw signs claims that a map cannot express. %EXP stands for a valid expiry.
func raw(members string) tokenMaker {
	return func(t *testing.T, w *world) string {
		t.Helper()
		_, key := w.s[0].Acme.JWTKey()
		exp := fmt.Sprint(w.now().Unix() + 60)
		return jws(t, key, string(marshal(t, header(w))), strings.ReplaceAll("{"+members+"}", "%EXP", exp))
	}
}

const (
	sub = `"sub":"` + agent + `",`
	aud = `"aud":"` + testkit.Audience + `",`
)

// text changes the text of a valid token.
func text(change func(string) string) tokenMaker {
	return func(t *testing.T, w *world) string {
		t.Helper()
		return change(signed(t, w, nil, nil))
	}
}

func always(token string) tokenMaker { return func(*testing.T, *world) string { return token } }

// byKey signs with a key that is added to the bundle of acme.test for this one token.
func byKey(alg string, make func(*testing.T) crypto.Signer) tokenMaker {
	return func(t *testing.T, w *world) string {
		t.Helper()
		key := make(t)
		bundle := w.s[0].Acme.Bundle()
		if err := bundle.AddJWTAuthority("extra", key.Public()); err != nil {
			t.Fatal(err)
		}
		w.trust(t, bundle)
		input := b64(marshal(t, changed(header(w), map[string]any{"alg": alg, "kid": "extra"}))) + "." + b64(marshal(t, claims(w)))
		return input + "." + b64(signature(t, key, crypto.SHA256, input))
	}
}

// trust installs a bundle until the test ends.
func (w *world) trust(t *testing.T, bundle *spiffebundle.Bundle) {
	t.Helper()
	w.s[0].Trust(bundle)
	t.Cleanup(func() { w.s[0].Trust(w.bundle) })
}

func curve(c elliptic.Curve) func(*testing.T) crypto.Signer {
	return func(t *testing.T) crypto.Signer { t.Helper(); return keyOn(t, c) }
}

func rsaOf(bits int) func(*testing.T) crypto.Signer {
	return func(t *testing.T) crypto.Signer { t.Helper(); return rsaKey(t, bits) }
}

func edwards(t *testing.T) crypto.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

const (
	malformed = "svid_malformed"
	algorithm = "svid_algorithm"
	audience  = "svid_audience"
)

var jwtRows = []row{
	{h: "H1", sent: "`alg: none`, or no signature", then: "401", tries: []try{
		unproven("none", algorithm, unsigned("none")),
		unproven("None", algorithm, unsigned("None")),
		unproven("no signature", malformed, text(func(s string) string { return s[:strings.LastIndex(s, ".")+1] })),
		unproven("two parts", malformed, text(func(s string) string { return s[:strings.LastIndex(s, ".")] })),
		unproven("a signature of zeros", "svid_signature", text(func(s string) string { return s[:strings.LastIndex(s, ".")+1] + b64(make([]byte, 64)) })),
		unproven("of other claims", "svid_signature", otherClaims),
	}},
	{h: "H2", sent: "HMAC with a public key as secret", then: "401", tries: []try{
		unproven("DER", algorithm, hmacWith(func(der []byte) []byte { return der })),
		unproven("PEM", algorithm, hmacWith(func(der []byte) []byte {
			return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
		})),
	}},
	{h: "H3", sent: "an algorithm that does not fit the key", then: "401", tries: []try{
		unproven("RS256 for an EC key", algorithm, under("alg", "RS256")),
		unproven("ES384 for P-256", algorithm, under("alg", "ES384")),
		unproven("ES256 for RSA", algorithm, byKey("ES256", rsaOf(2048))),
		unproven("ES256 for P-384", algorithm, byKey("ES256", curve(elliptic.P384()))),
		unproven("PS256 that is RS256", "svid_signature", byKey("PS256", rsaOf(2048))),
		unproven("EdDSA", algorithm, byKey("EdDSA", edwards)),
		unproven("unknown", algorithm, under("alg", "ES256K")),
		unproven("missing", algorithm, under("alg", nil)),
	}},
	{h: "H4", sent: "no `kid`", then: "401", tries: []try{
		unproven("missing", malformed, under("kid", nil)),
		unproven("empty", malformed, under("kid", "")),
		unproven("a number", malformed, under("kid", 1)),
	}},
	{h: "H5", sent: "the `kid`, or the key, of another trust domain", then: "401", tries: []try{
		unproven("its kid", "svid_authority", func(t *testing.T, w *world) string {
			kid, _ := w.s[0].Other.JWTKey()
			return under("kid", kid)(t, w)
		}),
		unproven("its key", "svid_signature", func(t *testing.T, w *world) string {
			_, key := w.s[0].Other.JWTKey()
			return jws(t, key, string(marshal(t, header(w))), string(marshal(t, claims(w))))
		}),
		unproven("both", "svid_authority", func(t *testing.T, w *world) string {
			kid, key := w.s[0].Other.JWTKey()
			return jws(t, key, string(marshal(t, changed(header(w), map[string]any{"kid": kid}))), string(marshal(t, claims(w))))
		}),
	}},
	{h: "H6", sent: "`jku`, `x5u`, `jwk`, `x5c`, or any header beyond `alg`, `kid`, `typ`", then: "401, and nothing is fetched", tries: []try{
		unproven("jku", malformed, fetched("jku")),
		unproven("x5u", malformed, fetched("x5u")),
		unproven("jwk", malformed, under("jwk", map[string]any{"kty": "oct", "k": "AA"})),
		unproven("x5c", malformed, under("x5c", []string{"AA"})),
		unproven("x5t", malformed, under("x5t#S256", "AA")),
		unproven("unknown", malformed, under(marker, "x")),
		unproven("ALG", malformed, under("ALG", "none")),
	}},
	{h: "H7", sent: "`crit`", then: "401", tries: []try{
		unproven("exp", malformed, under("crit", []string{"exp"})),
		unproven("empty", malformed, under("crit", []string{})),
		unproven("b64", malformed, under("b64", false)),
	}},
	{h: "H8", sent: "an access token that Brevet issued itself", then: "401", tries: []try{
		unproven("a real one", malformed, func(t *testing.T, w *world) string {
			token := w.token(t, agent, issues).Secret.Reveal()
			w.added(t) // skip the entries of its own issuance
			return token
		}),
		unproven("its typ", malformed, under("typ", "at+jwt")),
		unproven("typ in other case", malformed, under("typ", "jwt")),
	}},
	{h: "H9", sent: "expired by more than 5 seconds", then: "401", tries: []try{
		unproven("6 s ago", "svid_expired", at("exp", -6)),
		unproven("59 s ago", "svid_expired", at("exp", -59)),
	}},
	{h: "H10", sent: "an expiry that is missing, not an integer, or too far in the future", then: "401", tries: []try{
		unproven("missing", malformed, with("exp", nil)),
		unproven("float", malformed, raw(sub+aud+`"exp":%EXP.5`)),
		unproven("exponent", malformed, raw(sub+aud+`"exp":%EXPe0`)),
		unproven("string", malformed, raw(sub+aud+`"exp":"%EXP"`)),
		unproven("1e308", malformed, raw(sub+aud+`"exp":1e308`)),
		unproven("2^63", malformed, raw(sub+aud+`"exp":9223372036854775808`)),
		unproven("year 10000", malformed, raw(sub+aud+`"exp":253402300800`)),
		unproven("negative", malformed, raw(sub+aud+`"exp":-1`)),
		unproven("null", malformed, raw(sub+aud+`"exp":null`)),
		unproven("twice", malformed, raw(sub+aud+`"exp":1,"exp":%EXP`)),
		unproven("two hours left", "svid_lifetime", at("exp", 7200)),
		unproven("two hours in all", "svid_lifetime", at("iat", -7200)),
	}},
	{h: "H11", sent: "not valid until at least 6 seconds from now", then: "401", tries: []try{
		// One second more, because times are truncated to seconds.
		unproven("nbf", "svid_not_yet_valid", at("nbf", 7)),
		unproven("iat", "svid_not_yet_valid", at("iat", 7)),
		unproven("nbf as text", malformed, with("nbf", "0")),
		unproven("iat as a float", malformed, with("iat", 1.5)),
	}},
	{h: "H12", sent: "an audience that is missing, empty, one of two, or not exactly the issuer", then: "401; without a configured audience the server does not start", tries: []try{
		unproven("missing", audience, with("aud", nil)),
		unproven("none", audience, with("aud", []string{})),
		unproven("two", audience, with("aud", []string{testkit.Audience, "https://else.test"})),
		unproven("ours twice", audience, with("aud", []string{testkit.Audience, testkit.Audience})),
		unproven("another", audience, with("aud", "https://else.test")),
		unproven("other case", audience, with("aud", strings.ToUpper(testkit.Audience))),
		unproven("trailing slash", audience, with("aud", testkit.Audience+"/")),
		unproven("Aud", audience, func(t *testing.T, w *world) string {
			return signed(t, w, nil, map[string]any{"aud": nil, "Aud": testkit.Audience})
		}),
		{"not configured", func(t *testing.T, w *world) {
			a, err := attest.New(attest.Config{Bundles: spiffebundle.NewSet(), TrustDomains: w.domains(), Now: time.Now})
			if err == nil || a != nil {
				t.Errorf("got %v and %v, want no attestor", a, err)
			}
		}},
	}},
	{h: "H13", sent: "a subject of another trust domain than the key's, or two subjects", then: "401", tries: []try{
		unproven("of another", "svid_authority", with("sub", foreign)),
		unproven("twice", malformed, raw(sub+`"sub":"spiffe://acme.test/admin",`+aud+`"exp":%EXP`)),
		unproven("twice, escaped", malformed, raw(sub+`"s\u0075b":"spiffe://acme.test/admin",`+aud+`"exp":%EXP`)),
		unproven("a list", malformed, with("sub", []string{agent})),
	}},
	{h: "H14", sent: "JSON serialisation, encryption, compression", then: "401", tries: []try{
		unproven("flattened", malformed, text(func(s string) string {
			parts := strings.Split(s, ".")
			return `{"protected":"` + parts[0] + `","payload":"` + parts[1] + `","signature":"` + parts[2] + `"}`
		})),
		unproven("five parts", malformed, text(func(s string) string { return s + ".AA.AA" })),
		unproven("zip", malformed, under("zip", "DEF")),
		unproven("enc", malformed, under("enc", "A256GCM")),
	}},
	{h: "H15", sent: "one megabyte of dots", then: "431, or 401 if it fits into a header", tries: []try{
		refused("1 MB", call{auth: "Bearer " + strings.Repeat(".", 1<<20)}, refusal{431, "", ""}),
		unproven("8 KB", malformed, always(strings.Repeat(".", 8<<10))),
		unproven("over 8 KB, signed", "svid_too_large", with("pad", strings.Repeat("a", 8<<10))),
		unproven("two", malformed, always("..")),
		unproven("a deep nest", malformed, func(t *testing.T, w *world) string {
			_, key := w.s[0].Acme.JWTKey()
			return jws(t, key, string(marshal(t, header(w))), strings.Repeat("[", 4000))
		}),
	}},
	{h: "H16", sent: "signed by a key for X.509-SVIDs", then: "401", tries: []try{unproven("x509-svid", "svid_authority", x509Key)}},
	{h: "H17", sent: "a DPoP proof or a one-shot token, used a second time", then: "401, or inactive, on the other replica too", tries: []try{
		{"a DPoP proof", proofTwice}, {"a token for one use", tokenTwice},
	}},
	{h: "H18", sent: "base64 that is not canonical or has line breaks", then: "401, or 400 from Go's server", tries: []try{
		unproven("last bits not zero", malformed, text(strayBits)),
		unproven("padding", malformed, text(func(s string) string { return s + "==" })),
		unproven("standard alphabet", malformed, text(func(s string) string { return s[:len(s)-4] + "+/+/" })),
		unproven("CR LF, folded", malformed, text(func(s string) string { return s[:20] + "\r\n " + s[20:] })),
		refusedBy("CR LF", func(t *testing.T, w *world, _ *testkit.Stack) call {
			return call{auth: "Bearer " + text(func(s string) string { return s[:20] + "\r\n" + s[20:] })(t, w)}
		}, refusal{400, "", ""}),
	}},
}

func unsigned(alg string) tokenMaker {
	return func(t *testing.T, w *world) string {
		t.Helper()
		return b64(marshal(t, changed(header(w), map[string]any{"alg": alg}))) + "." + b64(marshal(t, claims(w))) + ".AA"
	}
}

func otherClaims(t *testing.T, w *world) string {
	t.Helper()
	parts := strings.Split(signed(t, w, nil, nil), ".")
	parts[1] = b64(marshal(t, changed(claims(w), map[string]any{"sub": admin})))
	return strings.Join(parts, ".")
}

func hmacWith(secret func(der []byte) []byte) tokenMaker {
	return func(t *testing.T, w *world) string {
		t.Helper()
		_, key := w.s[0].Acme.JWTKey()
		der, err := x509.MarshalPKIXPublicKey(key.Public())
		if err != nil {
			t.Fatal(err)
		}
		input := b64(marshal(t, changed(header(w), map[string]any{"alg": "HS256"}))) + "." + b64(marshal(t, claims(w)))
		mac := hmac.New(sha256.New, secret(der))
		mac.Write([]byte(input))
		return input + "." + b64(mac.Sum(nil))
	}
}

// fetched names keys on a foreign server that Brevet must not call.
func fetched(name string) tokenMaker {
	return func(t *testing.T, w *world) string {
		t.Helper()
		return under(name, unvisited(t)+"/keys")(t, w)
	}
}

// x509Key signs with the key of an X.509 authority, under the kid that the bundle gives it.
func x509Key(t *testing.T, w *world) string {
	t.Helper()
	key := ecKey(t)
	ca := certify(t, authority("acme.test"), nil, key.Public(), key)
	point, err := key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	doc := fmt.Sprintf(`{"keys":[{"kty":"EC","use":"x509-svid","kid":"x","crv":"P-256","x":%q,"y":%q,"x5c":[%s]}]}`,
		b64(point[1:33]), b64(point[33:]), marshal(t, ca.Raw))
	bundle, err := spiffebundle.Parse(w.s[0].Acme.TrustDomain(), []byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	for _, root := range w.bundle.X509Authorities() {
		bundle.AddX509Authority(root)
	}
	w.trust(t, bundle)
	return jws(t, key, `{"alg":"ES256","kid":"x"}`, string(marshal(t, claims(w))))
}

// strayBits changes the last character to another that a lax decoder decodes to the same bytes.
func strayBits(s string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := strings.IndexByte(alphabet, s[len(s)-1])
	return s[:len(s)-1] + string(alphabet[last|1])
}

// proofTwice sends one DPoP proof to one replica and then to the other.
func proofTwice(t *testing.T, w *world) {
	signer, err := dpop.NewSigner(ecKey(t), w.now)
	if err != nil {
		t.Fatal(err)
	}
	send := func(s *testkit.Stack, proof string) answer {
		return call{body: `{"scope":"mail.read","task":"t-1"}`, headers: []string{"DPoP: " + proof}}.send(t, s)
	}
	ask := dpop.Request{Method: http.MethodPost, URL: testkit.Audience + "/v1/tokens"}
	prove := func() string {
		proof, err := signer.Proof(ask)
		if err != nil {
			t.Fatal(err)
		}
		return proof
	}
	ask.Nonce = send(w.s[0], prove()).header.Get(dpop.NonceHeader)
	proof := prove()
	if got := send(w.s[1], proof); got.status != http.StatusCreated {
		t.Fatalf("the first time: got %d %s", got.status, got.text)
	}
	w.added(t)
	for _, s := range w.s {
		asked := len(w.vault.since(0))
		want := refusal{401, "invalid_dpop_proof", "proof_replayed"}
		want.check(t, send(s, proof))
		want.recorded(t, w.added(t))
		if asked := w.vault.since(asked); len(asked) > 0 {
			t.Errorf("Vault was asked for %v", asked)
		}
	}
}

// tokenTwice lets a service introspect a single-use token, at one replica and then at the other.
func tokenTwice(t *testing.T, w *world) {
	token := w.token(t, agent, client.Ask{Scope: "git.issues.once", Task: "t-1"}).Secret.Reveal()
	if got := w.introspect(t, 0, token); !strings.Contains(got, `"active":true`) {
		t.Fatalf("the first time: got %s", got)
	}
	for n := range w.s {
		if got := w.introspect(t, n, token); got != inactive {
			t.Errorf("again: got %s", got)
		}
	}
}

const inactive = `{"active":false}`

// introspect sends a token to a replica's introspection endpoint as the git server.
func (w *world) introspect(t *testing.T, replica int, token string) string {
	t.Helper()
	s := w.s[replica]
	got := call{
		target: "/oauth2/introspect", auth: "Bearer " + s.JWT(t, gitServer), body: url.Values{"token": {token}}.Encode(),
		headers: []string{"Content-Type: application/x-www-form-urlencoded"},
	}.send(t, s)
	if got.status != http.StatusOK {
		t.Errorf("introspecting: got %d %s", got.status, got.text)
	}
	return got.text
}
