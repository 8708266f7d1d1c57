package attest_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
)

// badToken is a token that must be rejected, with the reason.
type badToken struct {
	make   func(t testing.TB, w *world) string
	reason string
}

// with signs valid claims with some changed; a nil value removes one.
func with(change map[string]any) func(testing.TB, *world) string {
	return func(t testing.TB, w *world) string {
		t.Helper()
		return w.acme.token(t, merged(w.acme.claims("/agents/a", w.clock.Now()), change))
	}
}

// head signs valid claims under a header with some members changed.
func head(change map[string]any) func(testing.TB, *world) string {
	return func(t testing.TB, w *world) string {
		t.Helper()
		payload := marshal(t, w.acme.claims("/agents/a", w.clock.Now()))
		return jws(t, w.acme.jwtKey, marshal(t, merged(w.acme.header(), change)), payload)
	}
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

// at signs valid claims with one time moved, in seconds from now.
func at(claim string, seconds int64) func(testing.TB, *world) string {
	return func(t testing.TB, w *world) string {
		t.Helper()
		return with(map[string]any{claim: w.clock.Now().Unix() + seconds})(t, w)
	}
}

// raw signs a payload that a map cannot express: %NOW and %EXP stand for valid times.
func raw(payload string) func(testing.TB, *world) string {
	return func(t testing.TB, w *world) string {
		t.Helper()
		now := w.clock.Now().Unix()
		payload := strings.NewReplacer("%NOW", fmt.Sprint(now), "%EXP", fmt.Sprint(now+60)).Replace(payload)
		return jws(t, w.acme.jwtKey, marshal(t, w.acme.header()), []byte(payload))
	}
}

// rawHeader signs valid claims under a header that a map cannot express.
func rawHeader(header string) func(testing.TB, *world) string {
	return func(t testing.TB, w *world) string {
		t.Helper()
		return jws(t, w.acme.jwtKey, []byte(header), marshal(t, w.acme.claims("/agents/a", w.clock.Now())))
	}
}

// text changes the text of a valid token.
func text(change func(string) string) func(testing.TB, *world) string {
	return func(t testing.TB, w *world) string {
		t.Helper()
		return change(with(nil)(t, w))
	}
}

// underKey adds a key to the bundle of acme.test and signs valid claims with it, under any alg.
func underKey(alg string, hash crypto.Hash, make func(testing.TB) crypto.Signer) func(testing.TB, *world) string {
	return func(t testing.TB, w *world) string {
		t.Helper()
		key := make(t)
		bundle := w.acme.bundle()
		if err := bundle.AddJWTAuthority("extra", key.Public()); err != nil {
			t.Fatal(err)
		}
		w.bundles.Add(bundle)
		header := marshal(t, map[string]any{"alg": alg, "kid": "extra"})
		input := b64(header) + "." + b64(marshal(t, w.acme.claims("/agents/a", w.clock.Now())))
		return input + "." + b64(signature(t, key, hash, input))
	}
}

func curve(c elliptic.Curve) func(testing.TB) crypto.Signer {
	return func(t testing.TB) crypto.Signer {
		t.Helper()
		key, err := ecdsa.GenerateKey(c, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
}

func rsaOf(bits int) func(testing.TB) crypto.Signer {
	return func(t testing.TB) crypto.Signer { t.Helper(); return rsaKey(t, bits) }
}

const goodHeader = `"alg":"ES256","kid":"acme.test-key"`

var badTokens = map[string]badToken{
	"H1 none":                  {unsigned("none"), "svid_algorithm"},
	"H1 None":                  {unsigned("None"), "svid_algorithm"},
	"H1 signature removed":     {text(func(s string) string { return s[:strings.LastIndex(s, ".")+1] }), "svid_malformed"},
	"H1 two parts":             {text(func(s string) string { return s[:strings.LastIndex(s, ".")] }), "svid_malformed"},
	"H1 signature of nothing":  {text(func(s string) string { return s[:strings.LastIndex(s, ".")+1] + b64(make([]byte, 64)) }), "svid_signature"},
	"H2 HMAC with public key":  {hmacToken, "svid_algorithm"},
	"H3 RS256 for EC key":      {head(map[string]any{"alg": "RS256"}), "svid_algorithm"},
	"H3 ES384 for P-256 key":   {head(map[string]any{"alg": "ES384"}), "svid_algorithm"},
	"H3 ES256 for RSA key":     {underKey("ES256", crypto.SHA256, rsaOf(2048)), "svid_algorithm"},
	"H3 ES256 for P-384 key":   {underKey("ES256", crypto.SHA256, curve(elliptic.P384())), "svid_algorithm"},
	"H3 RS256 said to be PS":   {underKey("PS256", crypto.SHA256, rsaOf(2048)), "svid_signature"},
	"H3 EdDSA":                 {edToken, "svid_algorithm"},
	"H3 unknown":               {head(map[string]any{"alg": "ES256K"}), "svid_algorithm"},
	"H3 no alg":                {head(map[string]any{"alg": nil}), "svid_algorithm"},
	"H4 no kid":                {head(map[string]any{"kid": nil}), "svid_malformed"},
	"H4 empty kid":             {head(map[string]any{"kid": ""}), "svid_malformed"},
	"H4 kid is a number":       {head(map[string]any{"kid": 1}), "svid_malformed"},
	"H5 kid of another domain": {head(map[string]any{"kid": "other.test-key"}), "svid_authority"},
	"H5 signed by another":     {signedByOtherKey, "svid_signature"},
	"H6 jku":                   {head(map[string]any{"jku": "https://evil.test"}), "svid_malformed"},
	"H6 x5u":                   {head(map[string]any{"x5u": "https://evil.test"}), "svid_malformed"},
	"H6 jwk":                   {head(map[string]any{"jwk": map[string]any{"kty": "oct", "k": "AA"}}), "svid_malformed"},
	"H6 x5c":                   {head(map[string]any{"x5c": []string{"AA"}}), "svid_malformed"},
	"H6 x5t":                   {head(map[string]any{"x5t#S256": "AA"}), "svid_malformed"},
	"H6 unknown header":        {head(map[string]any{"foo": "bar"}), "svid_malformed"},
	"H6 header in other case":  {head(map[string]any{"ALG": "none"}), "svid_malformed"},
	"H7 crit":                  {head(map[string]any{"crit": []string{"exp"}}), "svid_malformed"},
	"H7 empty crit":            {head(map[string]any{"crit": []string{}}), "svid_malformed"},
	"H7 b64":                   {head(map[string]any{"b64": false}), "svid_malformed"},
	"H8 our own access token":  {head(map[string]any{"typ": "at+jwt"}), "svid_malformed"},
	"H8 typ in other case":     {head(map[string]any{"typ": "jwt"}), "svid_malformed"},
	"H8 typ empty":             {head(map[string]any{"typ": ""}), "svid_malformed"},
	"H8 typ null":              {rawHeader(`{` + goodHeader + `,"typ":null}`), "svid_malformed"},
	"H9 exp 6 s ago":           {at("exp", -6), "svid_expired"},
	"H9 exp 59 s ago":          {at("exp", -59), "svid_expired"},
	"H10 exp missing":          {with(map[string]any{"exp": nil}), "svid_malformed"},
	"H10 exp null":             {raw(`{"sub":"spiffe://acme.test/a","aud":"` + audience + `","exp":null}`), "svid_malformed"},
	"H10 exp float":            {raw(`{"sub":"spiffe://acme.test/a","aud":"` + audience + `","exp":%EXP.5}`), "svid_malformed"},
	"H10 exp with exponent":    {raw(`{"sub":"spiffe://acme.test/a","aud":"` + audience + `","exp":%EXPe0}`), "svid_malformed"},
	"H10 exp 1e308":            {raw(`{"sub":"spiffe://acme.test/a","aud":"` + audience + `","exp":1e308}`), "svid_malformed"},
	"H10 exp above int64":      {raw(`{"sub":"spiffe://acme.test/a","aud":"` + audience + `","exp":9223372036854775808}`), "svid_malformed"},
	"H10 exp in year 10000":    {raw(`{"sub":"spiffe://acme.test/a","aud":"` + audience + `","exp":253402300800}`), "svid_malformed"},
	"H10 exp negative":         {raw(`{"sub":"spiffe://acme.test/a","aud":"` + audience + `","exp":-1}`), "svid_malformed"},
	"H10 exp string":           {raw(`{"sub":"spiffe://acme.test/a","aud":"` + audience + `","exp":"%EXP"}`), "svid_malformed"},
	"H10 exp true":             {raw(`{"sub":"spiffe://acme.test/a","aud":"` + audience + `","exp":true}`), "svid_malformed"},
	"H10 exp twice":            {raw(`{"sub":"spiffe://acme.test/a","aud":"` + audience + `","exp":1,"exp":%EXP}`), "svid_malformed"},
	"H10 5 min 6 s left":       {at("exp", 306), "svid_lifetime"},
	"H10 two hours left":       {at("exp", 7200), "svid_lifetime"},
	"H10 ten years left":       {at("exp", 10*365*86400), "svid_lifetime"},
	"H10 two hours in all":     {at("iat", -7200), "svid_lifetime"},
	"H11 nbf in 6 s":           {at("nbf", 6), "svid_not_yet_valid"},
	"H11 iat in 6 s":           {at("iat", 6), "svid_not_yet_valid"},
	"H11 nbf string":           {with(map[string]any{"nbf": "0"}), "svid_malformed"},
	"H11 iat float":            {with(map[string]any{"iat": 1.5}), "svid_malformed"},
	"H11 nbf null":             {raw(`{"sub":"spiffe://acme.test/a","aud":"` + audience + `","exp":%EXP,"nbf":null}`), "svid_malformed"},
	"H12 aud missing":          {with(map[string]any{"aud": nil}), "svid_audience"},
	"H12 aud null":             {raw(`{"sub":"spiffe://acme.test/a","aud":null,"exp":%EXP}`), "svid_audience"},
	"H12 aud empty string":     {with(map[string]any{"aud": ""}), "svid_audience"},
	"H12 aud []":               {with(map[string]any{"aud": []string{}}), "svid_audience"},
	"H12 aud two":              {with(map[string]any{"aud": []string{audience, "https://else.test"}}), "svid_audience"},
	"H12 aud ours twice":       {with(map[string]any{"aud": []string{audience, audience}}), "svid_audience"},
	"H12 aud other":            {with(map[string]any{"aud": "https://else.test"}), "svid_audience"},
	"H12 aud other case":       {with(map[string]any{"aud": strings.ToUpper(audience)}), "svid_audience"},
	"H12 aud trailing slash":   {with(map[string]any{"aud": audience + "/"}), "svid_audience"},
	"H12 aud with a space":     {with(map[string]any{"aud": " " + audience}), "svid_audience"},
	"H12 aud object":           {with(map[string]any{"aud": map[string]any{audience: true}}), "svid_audience"},
	"H12 aud nested":           {with(map[string]any{"aud": []any{[]any{audience}}}), "svid_audience"},
	"H12 aud list of a number": {with(map[string]any{"aud": []any{1}}), "svid_audience"},
	"H12 Aud only":             {with(map[string]any{"aud": nil, "Aud": audience}), "svid_audience"},
	"H13 sub of another":       {with(map[string]any{"sub": "spiffe://other.test/a"}), "svid_authority"},
	"H13 sub twice":            {raw(`{"sub":"spiffe://acme.test/a","sub":"spiffe://acme.test/b","aud":"` + audience + `","exp":%EXP}`), "svid_malformed"},
	"H13 sub twice, escaped":   {raw(`{"sub":"spiffe://acme.test/a","s\u0075b":"spiffe://acme.test/b","aud":"` + audience + `","exp":%EXP}`), "svid_malformed"},
	"H13 sub missing":          {with(map[string]any{"sub": nil}), "spiffe_id_invalid"},
	"H13 SUB only":             {with(map[string]any{"sub": nil, "SUB": "spiffe://acme.test/a"}), "spiffe_id_invalid"},
	"H13 sub a list":           {with(map[string]any{"sub": []string{"spiffe://acme.test/a"}}), "svid_malformed"},
	"H13 kid twice":            {rawHeader(`{` + goodHeader + `,"kid":"acme.test-key"}`), "svid_malformed"},
	"H14 JSON, flattened":      {flattened, "svid_malformed"},
	"H14 JWE":                  {text(func(s string) string { return s + ".AA.AA" }), "svid_malformed"},
	"H14 zip":                  {head(map[string]any{"zip": "DEF"}), "svid_malformed"},
	"H14 enc":                  {head(map[string]any{"enc": "A256GCM"}), "svid_malformed"},
	"H15 1 MB of dots":         {func(testing.TB, *world) string { return strings.Repeat(".", 1<<20) }, "svid_too_large"},
	"H15 8 KiB of dots":        {func(testing.TB, *world) string { return strings.Repeat(".", 8<<10) }, "svid_malformed"},
	"H15 signed, over 8 KiB":   {with(map[string]any{"pad": strings.Repeat("a", 8<<10)}), "svid_too_large"},
	"H15 two dots":             {func(testing.TB, *world) string { return ".." }, "svid_malformed"},
	"H15 deep nesting":         {raw(strings.Repeat("[", 4000)), "svid_malformed"},
	"H16 x509-svid key":        {x509Key, "svid_authority"},
	"H18 last bits not zero":   {text(straySignatureBits), "svid_malformed"},
	"H18 padding":              {text(func(s string) string { return s + "==" }), "svid_malformed"},
	"H18 CR LF inside":         {text(func(s string) string { return s[:20] + "\r\n" + s[20:] }), "svid_malformed"},
	"H18 LF at the end":        {text(func(s string) string { return s + "\n" }), "svid_malformed"},
	"H18 space in front":       {text(func(s string) string { return " " + s }), "svid_malformed"},
	"H18 standard alphabet":    {text(func(s string) string { return strings.Replace(s, s[len(s)-4:], "+/+/", 1) }), "svid_malformed"},
	"H18 NUL":                  {text(func(s string) string { return s + "\x00" }), "svid_malformed"},
	"H27 RSA 1024":             {underKey("RS256", crypto.SHA256, rsaOf(1024)), "svid_weak_key"},
	"H27 RSA with SHA-1":       {underKey("RS1", crypto.SHA1, rsaOf(2048)), "svid_algorithm"},
	"H34 domain with a suffix": {with(map[string]any{"sub": "spiffe://acme.test.evil/a"}), "unknown_trust_domain"},
	"domain with a bundle only": {func(t testing.TB, w *world) string {
		t.Helper()
		return w.evil.token(t, w.evil.claims("/a", w.clock.Now()))
	}, "unknown_trust_domain"},
	"payload changed":        {payloadChanged, "svid_signature"},
	"claims are a list":      {raw(`[]`), "svid_malformed"},
	"claims are null":        {raw(`null`), "spiffe_id_invalid"},
	"trailing data":          {raw(`{"sub":"spiffe://acme.test/a","aud":"` + audience + `","exp":%EXP}{}`), "svid_malformed"},
	"bad UTF-8":              {raw("{\"sub\":\"spiffe://acme.test/a\",\"aud\":\"" + audience + "\",\"exp\":%EXP,\"x\":\"\xff\"}"), "svid_malformed"},
	"lone surrogate":         {raw(`{"sub":"spiffe://acme.test/a","aud":"` + audience + `","exp":%EXP,"x":"\ud800"}`), "svid_malformed"},
	"nested duplicate":       {raw(`{"sub":"spiffe://acme.test/a","aud":"` + audience + `","exp":%EXP,"x":{"a":1,"a":2}}`), "svid_malformed"},
	"an empty token":         {func(testing.TB, *world) string { return "" }, "svid_malformed"},
	"a word":                 {func(testing.TB, *world) string { return "token" }, "svid_malformed"},
	"an encoded certificate": {func(_ testing.TB, w *world) string { return b64(w.acme.ca.Raw) }, "svid_malformed"},
}

func unsigned(alg string) func(testing.TB, *world) string {
	return func(t testing.TB, w *world) string {
		t.Helper()
		header := marshal(t, merged(w.acme.header(), map[string]any{"alg": alg}))
		return b64(header) + "." + b64(marshal(t, w.acme.claims("/agents/a", w.clock.Now()))) + ".AA"
	}
}

func hmacToken(t testing.TB, w *world) string {
	t.Helper()
	public, err := x509.MarshalPKIXPublicKey(w.acme.jwtKey.Public())
	if err != nil {
		t.Fatal(err)
	}
	header := marshal(t, merged(w.acme.header(), map[string]any{"alg": "HS256"}))
	input := b64(header) + "." + b64(marshal(t, w.acme.claims("/agents/a", w.clock.Now())))
	mac := hmac.New(sha256.New, public)
	mac.Write([]byte(input))
	return input + "." + b64(mac.Sum(nil))
}

func edToken(t testing.TB, w *world) string {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	bundle := w.acme.bundle()
	if err := bundle.AddJWTAuthority("extra", public); err != nil {
		t.Fatal(err)
	}
	w.bundles.Add(bundle)
	input := b64(marshal(t, map[string]any{"alg": "EdDSA", "kid": "extra"})) + "." +
		b64(marshal(t, w.acme.claims("/agents/a", w.clock.Now())))
	return input + "." + b64(ed25519.Sign(private, []byte(input)))
}

func signedByOtherKey(t testing.TB, w *world) string {
	t.Helper()
	return jws(t, w.other.jwtKey, marshal(t, w.acme.header()), marshal(t, w.acme.claims("/agents/a", w.clock.Now())))
}

func payloadChanged(t testing.TB, w *world) string {
	t.Helper()
	parts := strings.Split(with(nil)(t, w), ".")
	parts[1] = b64(marshal(t, w.acme.claims("/agents/b", w.clock.Now())))
	return strings.Join(parts, ".")
}

func flattened(t testing.TB, w *world) string {
	t.Helper()
	parts := strings.Split(with(nil)(t, w), ".")
	return string(marshal(t, map[string]any{"protected": parts[0], "payload": parts[1], "signature": parts[2]}))
}

// straySignatureBits changes the last character to one that a lax decoder decodes to the same bytes.
func straySignatureBits(s string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := strings.IndexByte(alphabet, s[len(s)-1])
	return s[:len(s)-1] + string(alphabet[last|1])
}

// x509Key signs with the key of an X.509 authority, under the kid that the bundle document gives it.
func x509Key(t testing.TB, w *world) string {
	t.Helper()
	key := ecKey(t)
	ca := sign(t, w.acme.caTemplate(), nil, key.Public(), key)
	point, err := key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	doc := fmt.Sprintf(`{"keys":[{"kty":"EC","use":"x509-svid","kid":"x","crv":"P-256","x":%q,"y":%q,"x5c":[%s]}]}`,
		b64(point[1:33]), b64(point[33:]), marshal(t, ca.Raw))
	bundle, err := spiffebundle.Parse(w.acme.td, []byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	w.bundles.Add(bundle)
	header := marshal(t, map[string]any{"alg": "ES256", "kid": "x"})
	return jws(t, key, header, marshal(t, w.acme.claims("/agents/a", w.clock.Now())))
}
