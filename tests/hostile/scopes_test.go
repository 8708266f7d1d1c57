package hostile_test

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha1"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
)

// valued requests a scope with a path, or a name, as a sandbox gives it. Each value is encoded as a JSON string.
func valued(values ...string) []try {
	var all []try
	for _, v := range values {
		text := string(must(json.Marshal(v)))
		all = append(all,
			undecidable(v+" for anything", `{"scope":"any.thing","params":{"value":`+text+`},"task":"`+marker+`"}`, "params.value"),
			undecidable(v+" for a path in Vault", `{"scope":"vault.note.read","params":{"name":`+text+`},"task":"`+marker+`"}`, "params.name"))
	}
	return all
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

// undecidable is a request that cannot be decided: 422.
func undecidable(name, body, detail string) try {
	return refused(name, call{body: body}, refusal{422, "invalid_request", detail})
}

func principal(value string) try {
	return undecidable(value, `{"scope":"ssh.login.open","params":{"principal":`+string(must(json.Marshal(value)))+`},"task":"`+marker+`","public_key":"x"}`, "params.principal")
}

func lookAlike(scope string) try {
	return undecidable(scope, `{"scope":"`+scope+`","task":"`+marker+`"}`, "scope")
}

// granting is a request with authorization_details.
func granting(name, form string, want refusal) try {
	return refusedBy(name, func(t *testing.T, _ *world, s *testkit.Stack) call {
		return call{
			target: "/oauth2/token", auth: "none", cert: shown(t, s, agent), body: "grant_type=client_credentials&task=" + marker + "&" + form,
			headers: []string{"Content-Type: application/x-www-form-urlencoded"},
		}
	}, want)
}

const (
	mayRead = `{"type":"git.issues.read","params":{"repo":"acme/api"}}`
	mayNot  = `{"type":"git.issues.read","params":{"repo":"acme/secret"}}`
)

var scopeRows = []row{
	{h: "H52", sent: "`../sys/seal`, `.`, `%2e%2e`", then: "422", tries: append(
		valued("../sys/seal", ".", "..", "%2e%2e", marker+"//x", marker+"/./x"), fileOutside("../a.yaml"), fileOutside("/etc/a.yaml"))},
	{h: "H53", sent: "a path with `..` in the middle", then: "422", tries: valued("x/../../auth/token/create", marker+"/../../sys/policy", `x\..\auth`)},
	{h: "H54", sent: "`+`, `*`, a leading or trailing slash", then: "422", tries: valued("+", "*", marker+"+", marker+"/*", "/"+marker, marker+"/", "/")},
	{h: "H55", sent: "two principals in one value, or none", then: "422", tries: []try{
		principal("deploy,root"), principal(""), principal("deploy root"), principal("*"), principal("deploy\nroot"),
		undecidable("a list", `{"scope":"ssh.login.open","params":{"principal":["deploy","root"]},"task":"t-1"}`, "params"),
	}},
	{h: "H56", sent: "a signing request with a different name, address or right", then: "422", tries: []try{
		signing("another common name", &x509.CertificateRequest{Subject: pkix.Name{CommonName: marker + ".evil.test"}}),
		signing("another DNS name", &x509.CertificateRequest{DNSNames: []string{"build-7.acme.test", marker + ".evil.test"}}),
		signing("an address", &x509.CertificateRequest{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}),
		signing("a SPIFFE ID", &x509.CertificateRequest{URIs: []*url.URL{{Scheme: "spiffe", Host: "acme.test", Path: "/admin"}}}),
		signing("a mail address", &x509.CertificateRequest{EmailAddresses: []string{"a@acme.test"}}),
		signing("an organisation", &x509.CertificateRequest{Subject: pkix.Name{Organization: []string{marker}}}),
		signing("the right to sign", &x509.CertificateRequest{ExtraExtensions: []pkix.Extension{
			{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 3, 1, 1, 0xff}},
		}}),
		undecidable("no request", `{"scope":"pki.cert.read","params":{"host":"build-7"},"csr":"`+marker+`","task":"t-1"}`, "csr"),
		refusedBy("a key that signed nothing", func(t *testing.T, _ *world, _ *testkit.Stack) call {
			good := requested(t, &x509.CertificateRequest{})
			return call{body: string(marshal(t, map[string]any{
				"scope": "pki.cert.read", "params": map[string]any{"host": "build-7"}, "csr": spoiltSignature(t, good), "task": "t-1",
			}))}
		}, refusal{422, "invalid_request", "csr"}),
	}},
	{h: "H57", sent: "line breaks, `#`, `?`", then: "422", tries: valued(marker+"\r\nX-Injected: 1", marker+"\n", marker+"#x", marker+"?x=1", marker+"\u2028")},
	{h: "H58", sent: "templates of other systems", then: "422", tries: valued("{{identity.entity.id}}", "${env}", "$("+marker+")", "{value}", "<%= "+marker+" %>")},
	{h: "H59", sent: "SQL", then: "422", tries: valued(marker+"'; DROP ROLE x; --", marker+"' OR 1=1", marker+`"`, "$$"+marker+"$$")},
	{h: "H60", sent: "a list in place of a string", then: "422", tries: []try{
		undecidable("a list", params(`{"repo":["acme/api"]}`), "params"),
		undecidable("an object", params(`{"repo":{"`+marker+`":1}}`), "params"),
		undecidable("null", params(`{"repo":null}`), "params"),
		undecidable("a number", params(`{"repo":7}`), "params.repo"),
		undecidable("a text for a number", `{"scope":"db.rows.read","params":{"rows":"7","fresh":true},"task":"t-1"}`, "params.rows"),
		undecidable("a text for all", params(`"`+marker+`"`), "params"),
	}},
	{h: "H61", sent: "a TTL above the limit", then: "shortened, and the answer says so", tries: []try{{"an hour", shortened}}},
	{h: "H62", sent: "several grants in one request, one of them denied", then: "400 for all", tries: []try{
		granting("two details", "authorization_details="+url.QueryEscape("["+mayRead+","+mayNot+"]"), refusal{400, "invalid_request", "authorization_details"}),
		granting("two that are good", "authorization_details="+url.QueryEscape("["+mayRead+","+mayRead+"]"), refusal{400, "invalid_request", "authorization_details"}),
		granting("two scopes", "scope=git.issues.read+vault.seal.write", refusal{400, "invalid_request", "scope"}),
		granting("a scope twice", "scope=git.issues.read&scope=vault.seal.write", refusal{400, "malformed_body", "form_repeated"}),
		granting("another scope in the details", "scope=any.thing&authorization_details="+url.QueryEscape("["+mayRead+"]"), refusal{400, "invalid_request", "authorization_details"}),
	}},
	{h: "H63", sent: "a policy that fails with an error", then: "403", tries: []try{
		deniedAsk("overflow", agent, `{"scope":"db.rows.read","params":{"rows":9000,"fresh":true},"task":"t-1"}`, "policy_error"),
	}},
	{h: "H64", sent: "no policy that permits", then: "403", tries: []try{
		deniedAsk("no policy", agent, `{"scope":"vault.seal.write","task":"t-1"}`, "forbidden"),
		deniedAsk("an unknown scope", agent, `{"scope":"git.issues.raed","params":{"repo":"acme/api"},"task":"t-1"}`, "unknown_scope"),
		denied("another sandbox", "spiffe://acme.test/nobody", issues.Scope, "no_permit"),
	}},
	{h: "H65", sent: "a permit and a forbid", then: "403", tries: []try{
		deniedAsk("a repository", agent, `{"scope":"git.issues.read","params":{"repo":"acme/secret"},"task":"t-1"}`, "forbidden"),
	}},
	{h: "H66", sent: "an approval under another catalogue", then: "409", apart: true, tries: []try{{"applied between the yes and the mint", outdated}}},
	{h: "H67", sent: "a look-alike of a scope's name", then: "422 or 403", tries: []try{
		lookAlike("Git.issues.read"), lookAlike("git.issues.read "), lookAlike(`git.issues.re\u0430d`), lookAlike(`git\uff0eissues\uff0eread`),
		lookAlike(`git.issues.\u200bread`), lookAlike("git/issues/read"), lookAlike("git..issues.read"),
		deniedAsk("of the same letters", agent, `{"scope":"git.issues.reed","params":{"repo":"acme/api"},"task":"t-1"}`, "unknown_scope"),
		undecidable("of a resource", params(`{"repo":"acme/\uff53ecret"}`), "params.repo"),
	}},
}

// fileOutside lets an admin apply a catalogue file whose path lies elsewhere.
func fileOutside(name string) try {
	return refusedBy(name+" of a catalogue", func(t *testing.T, _ *world, s *testkit.Stack) call {
		c := proposing(t, s, nil)
		c.body = string(marshal(t, openapi.CatalogueOrder{Reason: "because", Files: []openapi.CatalogueFile{{Name: name, Text: "scopes: []"}}}))
		return c
	}, refusal{422, "invalid_catalogue", "catalogue"})
}

func requested(t *testing.T, template *x509.CertificateRequest) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, template, ecKey(t))
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func signing(name string, template *x509.CertificateRequest) try {
	return refusedBy(name, func(t *testing.T, _ *world, _ *testkit.Stack) call {
		csr := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: requested(t, template)})
		return call{body: string(marshal(t, map[string]any{
			"scope": "pki.cert.read", "params": map[string]any{"host": "build-7"}, "csr": string(csr), "task": marker,
		}))}
	}, refusal{422, "invalid_request", "csr"})
}

// spoiltSignature is a certificate request signed by another key than the one that it holds.
func spoiltSignature(t *testing.T, der []byte) string {
	t.Helper()
	parsed, err := x509.ParseCertificateRequest(der)
	if err != nil {
		t.Fatal(err)
	}
	digest := sha1.Sum(parsed.RawTBSCertificateRequest)
	signature, err := ecdsa.SignASN1(rand.Reader, ecKey(t), digest[:])
	if err != nil {
		t.Fatal(err)
	}
	spoilt, err := asn1.Marshal(struct {
		Body      asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{
		asn1.RawValue{FullBytes: parsed.RawTBSCertificateRequest},
		pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 2}},
		asn1.BitString{Bytes: signature, BitLength: 8 * len(signature)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: spoilt}))
}

func shortened(t *testing.T, w *world) {
	got := call{body: asking(`,"ttl":3600`)}.send(t, w.next())
	if got.status != http.StatusCreated || !strings.Contains(got.text, `"clamped":[{"bound":"scope.max","from":3600,"to":900}]`) {
		t.Errorf("got %d %s, want 900 of 3600 seconds, and that said", got.status, got.text)
	}
	entries := w.added(t)
	if len(entries) != 1 || !strings.Contains(fmt.Sprint(entries[0].Body["decision"]), "from:3600") {
		t.Errorf("got %+v, want one entry that says so", entries)
	}
}

// outdated redeems an approval that was given before another catalogue was applied.
func outdated(t *testing.T, _ *world) {
	o := staffed
	o.SecondAdmin = false
	w := newWorld(t, o)
	sandbox, ask := w.s[0].Client(t, agent), writing("t-1")
	id := waiting(t, sandbox, ask)
	if _, err := vote(t, w.s[1].Person(t, "bob"), id, openapi.VerdictApprove); err != nil {
		t.Fatal(err)
	}
	next := changedFiles(t, catalogue, "title: Write issues", "title: Write the issues")
	if got := proposing(t, w.s[0], next).send(t, w.s[0]); got.status != http.StatusOK {
		t.Fatalf("applying: got %d %s", got.status, got.text)
	}
	for _, s := range w.s {
		w.fruitless(t, http.StatusConflict, openapi.CodeStale, func() error {
			_, err := s.Client(t, agent).Redeem(t.Context(), id, ask)
			return err
		})
	}
	if asked := w.vault.since(0); len(asked) != 0 {
		t.Errorf("Vault was asked for %v", asked)
	}
	w.check(t)
}
