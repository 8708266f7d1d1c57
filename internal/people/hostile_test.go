package people_test

import (
	"crypto"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"
)

// badToken is a token that must be refused, and the reason.
type badToken struct {
	make   func(t testing.TB, w *world) string
	reason string
}

// with signs valid claims with changes; a nil value removes a claim.
func with(change map[string]any) func(testing.TB, *world) string {
	return func(t testing.TB, w *world) string {
		t.Helper()
		return w.token(t, merged(w.claims(), change))
	}
}

// head signs valid claims under a header with changes.
func head(change map[string]any) func(testing.TB, *world) string {
	return func(t testing.TB, w *world) string {
		t.Helper()
		return jws(t, w.key, marshal(t, merged(header(), change)), marshal(t, w.claims()))
	}
}

// at signs valid claims with one time changed, in seconds from now.
func at(claim string, seconds int64) func(testing.TB, *world) string {
	return func(t testing.TB, w *world) string {
		t.Helper()
		return with(map[string]any{claim: w.clock.Now().Unix() + seconds})(t, w)
	}
}

// raw signs a payload that a map cannot express. rest follows the beginning of valid claims.
func raw(rest string) func(testing.TB, *world) string {
	return func(t testing.TB, w *world) string {
		t.Helper()
		payload := w.raw(`{"iss":"%ISS","aud":"brevet","sub":"a","iat":%NOW` + rest)
		return jws(t, w.key, marshal(t, header()), payload)
	}
}

func rawHeader(text string) func(testing.TB, *world) string {
	return func(t testing.TB, w *world) string {
		t.Helper()
		return jws(t, w.key, []byte(text), marshal(t, w.claims()))
	}
}

// text changes the text of a valid token.
func text(change func(string) string) func(testing.TB, *world) string {
	return func(t testing.TB, w *world) string {
		t.Helper()
		return change(with(nil)(t, w))
	}
}

// underKey adds a key to the provider's key set and signs valid claims with it, under any alg.
func underKey(alg string, make func(testing.TB) crypto.Signer) func(testing.TB, *world) string {
	return func(t testing.TB, w *world) string {
		t.Helper()
		key := make(t)
		w.keys = append(w.keys, jose.JSONWebKey{Key: key.Public(), KeyID: "extra"})
		return jws(t, key, marshal(t, map[string]any{"alg": alg, "kid": "extra"}), marshal(t, w.claims()))
	}
}

func p384(t testing.TB) crypto.Signer { t.Helper(); return ecKey(t, elliptic.P384()) }
func ed(t testing.TB) crypto.Signer   { t.Helper(); return edKey(t) }
func rsaOf(bits int) func(testing.TB) crypto.Signer {
	return func(t testing.TB) crypto.Signer { t.Helper(); return rsaKey(t, bits) }
}

const (
	malformed = "id_token_malformed"
	kind      = "id_token_type"
	algorithm = "id_token_algorithm"
	headers   = "id_token_header"
	audience  = "id_token_audience"
	subject   = "id_token_subject"
	claimed   = "id_token_claims"
)

var badTokens = map[string]badToken{
	"nothing":                 {func(testing.TB, *world) string { return "" }, malformed},
	"a word":                  {func(testing.TB, *world) string { return "token" }, malformed},
	"two dots":                {func(testing.TB, *world) string { return ".." }, malformed},
	"16 KiB of dots":          {func(testing.TB, *world) string { return strings.Repeat(".", 16<<10) }, malformed},
	"1 MB":                    {func(testing.TB, *world) string { return strings.Repeat(".", 1<<20) }, "id_token_too_large"},
	"signed, over 16 KiB":     {with(map[string]any{"pad": strings.Repeat("a", 16<<10)}), "id_token_too_large"},
	"a JWE":                   {text(func(s string) string { return s + ".AA.AA" }), malformed},
	"padding":                 {text(func(s string) string { return s + "==" }), malformed},
	"CR LF inside":            {text(func(s string) string { return s[:20] + "\r\n" + s[20:] }), malformed},
	"LF at the end":           {text(func(s string) string { return s + "\n" }), malformed},
	"a space in front":        {text(func(s string) string { return " " + s }), malformed},
	"NUL":                     {text(func(s string) string { return s + "\x00" }), malformed},
	"standard alphabet":       {text(func(s string) string { return s[:len(s)-4] + "+/+/" }), malformed},
	"last bits not zero":      {text(strayBits), malformed},
	"signature removed":       {text(func(s string) string { return s[:strings.LastIndex(s, ".")+1] }), malformed},
	"signature of nothing":    {text(func(s string) string { return s[:strings.LastIndex(s, ".")+1] + b64(make([]byte, 64)) }), "id_token_signature"},
	"payload of another":      {payloadChanged, "id_token_signature"},
	"key of another":          {otherKey, "id_token_signature"},
	"alg none":                {unsigned("none"), algorithm},
	"alg None":                {unsigned("None"), algorithm},
	"HS256 with public key":   {hmacToken, algorithm},
	"no alg":                  {head(map[string]any{"alg": nil}), algorithm},
	"ES384":                   {underKey("ES384", p384), algorithm},
	"RS512":                   {underKey("RS512", rsaOf(2048)), algorithm},
	"RS256 for an EC key":     {head(map[string]any{"alg": "RS256"}), algorithm},
	"ES256 for an RSA key":    {underKey("ES256", rsaOf(2048)), algorithm},
	"EdDSA for an RSA key":    {underKey("EdDSA", rsaOf(2048)), algorithm},
	"RS256 said to be PS":     {underKey("PS256", rsaOf(2048)), "id_token_signature"},
	"RSA 1024":                {underKey("RS256", rsaOf(1024)), "id_token_key"},
	"ES256 for P-384":         {underKey("ES256", p384), "id_token_key"},
	"key for encryption":      {encryptionKey, "id_token_key"},
	"unknown key":             {head(map[string]any{"kid": "other"}), "id_token_key"},
	"no kid":                  {head(map[string]any{"kid": nil}), headers},
	"kid a number":            {head(map[string]any{"kid": 1}), malformed},
	"kid twice":               {rawHeader(`{"alg":"ES256","kid":"k1","kid":"k1"}`), malformed},
	"alg twice, escaped":      {rawHeader(`{"alg":"ES256","\u0061lg":"none","kid":"k1"}`), malformed},
	"header a list":           {rawHeader(`[]`), malformed},
	"crit":                    {head(map[string]any{"crit": []string{"exp"}}), headers},
	"empty crit":              {head(map[string]any{"crit": []string{}}), headers},
	"crit null":               {rawHeader(`{"alg":"ES256","kid":"k1","crit":null}`), headers},
	"jku":                     {head(map[string]any{"jku": "https://evil.test"}), headers},
	"jwk":                     {head(map[string]any{"jwk": map[string]any{"kty": "oct", "k": "AA"}}), headers},
	"x5u":                     {head(map[string]any{"x5u": "https://evil.test"}), headers},
	"x5c":                     {head(map[string]any{"x5c": []string{"AA"}}), headers},
	"b64":                     {head(map[string]any{"b64": false}), headers},
	"zip":                     {head(map[string]any{"zip": "DEF"}), headers},
	"nested":                  {head(map[string]any{"cty": "JWT"}), headers},
	"H94 access token":        {head(map[string]any{"typ": "at+jwt"}), kind},
	"logout token by header":  {head(map[string]any{"typ": "logout+jwt"}), kind},
	"logout token by event":   {with(map[string]any{"events": map[string]any{"http://schemas.openid.net/event/backchannel-logout": map[string]any{}}}), kind},
	"DPoP proof":              {head(map[string]any{"typ": "dpop+jwt"}), kind},
	"typ in other case":       {head(map[string]any{"typ": "jwt"}), kind},
	"typ null":                {rawHeader(`{"alg":"ES256","kid":"k1","typ":null}`), kind},
	"Keycloak's access token": {with(map[string]any{"typ": "Bearer"}), kind},
	"iss missing":             {with(map[string]any{"iss": nil}), "id_token_issuer"},
	"H97 iss of another":      {with(map[string]any{"iss": "https://evil.test"}), "id_token_issuer"},
	"iss with a slash": {func(t testing.TB, w *world) string {
		t.Helper()
		return with(map[string]any{"iss": w.issuer + "/"})(t, w)
	}, "id_token_issuer"},
	"iss in other case": {func(t testing.TB, w *world) string {
		t.Helper()
		return with(map[string]any{"iss": strings.ToUpper(w.issuer)})(t, w)
	}, "id_token_issuer"},
	"aud missing":       {with(map[string]any{"aud": nil}), audience},
	"aud empty":         {with(map[string]any{"aud": ""}), audience},
	"aud []":            {with(map[string]any{"aud": []string{}}), audience},
	"aud two":           {with(map[string]any{"aud": []string{clientID, "other"}}), audience},
	"aud ours twice":    {with(map[string]any{"aud": []string{clientID, clientID}}), audience},
	"aud other":         {with(map[string]any{"aud": "other"}), audience},
	"aud other case":    {with(map[string]any{"aud": "Brevet"}), audience},
	"aud with a space":  {with(map[string]any{"aud": clientID + " "}), audience},
	"aud object":        {with(map[string]any{"aud": map[string]any{clientID: true}}), audience},
	"azp other":         {with(map[string]any{"azp": "other"}), audience},
	"azp empty":         {with(map[string]any{"azp": ""}), audience},
	"azp a list":        {with(map[string]any{"azp": []string{clientID}}), audience},
	"azp null":          {raw(`,"exp":%EXP,"azp":null}`), audience},
	"exp 6 s ago":       {at("exp", -6), "id_token_expired"},
	"exp missing":       {with(map[string]any{"exp": nil}), malformed},
	"exp null":          {raw(`,"exp":null}`), malformed},
	"exp string":        {raw(`,"exp":"%EXP"}`), malformed},
	"exp float":         {raw(`,"exp":%EXP.5}`), malformed},
	"exp with exponent": {raw(`,"exp":%EXPe0}`), malformed},
	"exp 1e308":         {raw(`,"exp":1e308}`), malformed},
	"exp above int64":   {raw(`,"exp":9223372036854775808}`), malformed},
	"exp in year 10000": {raw(`,"exp":253402300800}`), malformed},
	"exp negative":      {raw(`,"exp":-1}`), malformed},
	"exp twice":         {raw(`,"exp":1,"exp":%EXP}`), malformed},
	"exp in other case": {raw(`,"EXP":%EXP}`), malformed},
	"auth_time float":   {with(map[string]any{"auth_time": 1.5}), malformed},
	"auth_time text":    {with(map[string]any{"auth_time": "1700000000"}), malformed},
	"auth_time in 6 s":  {at("auth_time", 6), "id_token_not_yet_valid"},
	"iat missing":       {with(map[string]any{"iat": nil}), malformed},
	"iat float":         {with(map[string]any{"iat": 1.5}), malformed},
	"iat in 6 s":        {at("iat", 6), "id_token_not_yet_valid"},
	"iat after exp": {func(t testing.TB, w *world) string {
		t.Helper()
		now := w.clock.Now().Unix()
		return with(map[string]any{"iat": now + 2, "exp": now + 1})(t, w)
	}, malformed},
	"nbf in 6 s":                {at("nbf", 6), "id_token_not_yet_valid"},
	"nbf string":                {with(map[string]any{"nbf": "0"}), malformed},
	"nbf null":                  {raw(`,"exp":%EXP,"nbf":null}`), malformed},
	"a day and a second":        {at("exp", 86401), "id_token_lifetime"},
	"older than a day":          {at("iat", -86400), "id_token_lifetime"},
	"ten years":                 {at("exp", 10*365*86400), "id_token_lifetime"},
	"sub missing":               {with(map[string]any{"sub": nil}), subject},
	"sub empty":                 {with(map[string]any{"sub": ""}), subject},
	"sub with #":                {with(map[string]any{"sub": "a#b"}), subject},
	"sub with a space":          {with(map[string]any{"sub": "a b"}), subject},
	"sub with ESC":              {with(map[string]any{"sub": "a\x1b[2J"}), subject},
	"sub with DEL":              {with(map[string]any{"sub": "a\x7f"}), subject},
	"sub not ASCII":             {with(map[string]any{"sub": "älice"}), subject},
	"sub of 256 bytes":          {with(map[string]any{"sub": strings.Repeat("a", 256)}), subject},
	"sub a number":              {with(map[string]any{"sub": 1}), malformed},
	"sub twice":                 {raw(`,"exp":%EXP,"sub":"b"}`), malformed},
	"sub twice, escaped":        {raw(`,"exp":%EXP,"s\u0075b":"b"}`), malformed},
	"sub in two cases":          {raw(`,"exp":%EXP,"SUB":"b"}`), malformed},
	"groups a string":           {with(map[string]any{"groups": "oncall"}), claimed},
	"groups an object":          {with(map[string]any{"groups": map[string]any{"a": 1}}), claimed},
	"groups null":               {raw(`,"exp":%EXP,"groups":null}`), claimed},
	"groups of numbers":         {with(map[string]any{"groups": []any{"a", 1}}), claimed},
	"groups with null":          {with(map[string]any{"groups": []any{map[string]any{}}}), claimed},
	"an empty group":            {with(map[string]any{"groups": []string{""}}), claimed},
	"a group of 256 bytes":      {with(map[string]any{"groups": []string{strings.Repeat("g", 256)}}), claimed},
	"501 groups":                {with(map[string]any{"groups": manyGroups(501)}), claimed},
	"a group with NUL":          {with(map[string]any{"groups": []string{"a", "oncall\x00"}}), claimed},
	"a group with ESC":          {with(map[string]any{"groups": []string{"\x1b[2Joncall"}}), claimed},
	"a group with a C1 control": {with(map[string]any{"groups": []string{"on\u009bcall"}}), claimed},
	"a group of two lines":      {with(map[string]any{"groups": []string{"oncall\nadmins"}}), claimed},
	"owner with NUL":            {with(map[string]any{"preferred_username": "alice\x00"}), claimed},
	"owner with DEL":            {with(map[string]any{"preferred_username": "ali\x7fce"}), claimed},
	"sub with NUL":              {with(map[string]any{"sub": "a\x00"}), subject},
	"owner too long":            {with(map[string]any{"preferred_username": strings.Repeat("a", 256)}), claimed},
	"owner a number":            {with(map[string]any{"preferred_username": 7}), malformed},
	"claims a list": {func(t testing.TB, w *world) string {
		t.Helper()
		return jws(t, w.key, marshal(t, header()), []byte("[]"))
	}, malformed},
	"trailing data":    {raw(`,"exp":%EXP}{}`), malformed},
	"bad UTF-8":        {raw(",\"exp\":%EXP,\"x\":\"\xff\"}"), malformed},
	"lone surrogate":   {raw(`,"exp":%EXP,"x":"\ud800"}`), malformed},
	"nested duplicate": {raw(`,"exp":%EXP,"x":{"a":1,"a":2}}`), malformed},
	"deep nesting":     {raw(`,"x":` + strings.Repeat("[", 8000)), malformed},
}

func manyGroups(n int) []string {
	groups := make([]string, n)
	for i := range groups {
		groups[i] = fmt.Sprintf("team-%d", i)
	}
	return groups
}

func unsigned(alg string) func(testing.TB, *world) string {
	return func(t testing.TB, w *world) string {
		t.Helper()
		return b64(marshal(t, merged(header(), map[string]any{"alg": alg}))) + "." + b64(marshal(t, w.claims())) + ".AA"
	}
}

func hmacToken(t testing.TB, w *world) string {
	t.Helper()
	public, err := x509.MarshalPKIXPublicKey(w.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	input := b64(marshal(t, merged(header(), map[string]any{"alg": "HS256"}))) + "." + b64(marshal(t, w.claims()))
	mac := hmac.New(sha256.New, public)
	mac.Write([]byte(input))
	return input + "." + b64(mac.Sum(nil))
}

func otherKey(t testing.TB, w *world) string {
	t.Helper()
	return jws(t, ecKey(t, elliptic.P256()), marshal(t, header()), marshal(t, w.claims()))
}

func payloadChanged(t testing.TB, w *world) string {
	t.Helper()
	parts := strings.Split(with(nil)(t, w), ".")
	parts[1] = b64(marshal(t, merged(w.claims(), map[string]any{"sub": "mallory"})))
	return strings.Join(parts, ".")
}

func encryptionKey(t testing.TB, w *world) string {
	t.Helper()
	token := underKey("RS256", rsaOf(2048))(t, w)
	w.keys[len(w.keys)-1].Use = "enc"
	return token
}

// strayBits changes the last character to one that decodes to the same bytes in a lax decoder.
func strayBits(s string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := strings.IndexByte(alphabet, s[len(s)-1])
	return s[:len(s)-1] + string(alphabet[last|1])
}

func pssToken(t testing.TB, w *world) string {
	t.Helper()
	key := rsaKey(t, 2048)
	w.keys = append(w.keys, jose.JSONWebKey{Key: key.Public(), KeyID: "extra"})
	input := b64(marshal(t, map[string]any{"alg": "PS256", "kid": "extra"})) + "." + b64(marshal(t, w.claims()))
	sum := sha256.Sum256([]byte(input))
	signature, err := rsa.SignPSS(rand.Reader, key, crypto.SHA256, sum[:], &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash})
	if err != nil {
		t.Fatal(err)
	}
	return input + "." + b64(signature)
}
