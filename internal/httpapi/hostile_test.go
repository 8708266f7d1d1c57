package httpapi_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/testkit"
)

// canary is in the input of every row, and must not be in the response.
const canary = "zqcanary"

// hostile is a call that is refused before anything is decided.
type hostile struct {
	name   string
	call   wire
	status int
	code   string
	// detail is the cause in the ledger entry; "" if net/http answers by itself, without a record.
	detail string
}

func ask(members string) string {
	return `{"scope":"git.issues.read","params":{"repo":"acme/api"},"task":"` + canary + `"` + members + `}`
}

func params(text string) string {
	return `{"scope":"git.issues.read","params":` + text + `,"task":"` + canary + `"}`
}

func repo(value string) string { return params(`{"repo":"` + value + `"}`) }

// TestHostileCalls sends each call over real TLS to a server with a real ledger and Vault. Each is refused with a fixed problem
// that repeats none of the input, causes no signature, and leaves exactly one entry.
func TestHostileCalls(t *testing.T) {
	t.Parallel()
	fixed := func(rows func() []hostile) func(*testing.T, *testkit.Stack) []hostile {
		return func(*testing.T, *testkit.Stack) []hostile { return rows() }
	}
	for _, group := range []struct {
		name string
		rows func(*testing.T, *testkit.Stack) []hostile
	}{
		{"who", whoRows},
		{"body", fixed(bodyRows)},
		{"ttl", fixed(ttlRows)},
		{"secrets", fixed(secretRows)},
		{"params", fixed(paramRows)},
		{"http", fixed(httpRows)},
		{"headers", fixed(headerRows)},
		{"reading", fixed(readingRows)},
		{"endings", endingRows},
	} {
		t.Run(group.name, func(t *testing.T) {
			t.Parallel()
			// The ledger records at most 50 refusals each second, so the clock advances with every call.
			var calls atomic.Int64
			now := func() time.Time { return time.Now().Add(time.Duration(calls.Load()) * 30 * time.Millisecond) }
			s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue, Now: now, Admins: []string{admin}})
			for _, row := range group.rows(t, s) {
				t.Run(row.name, func(t *testing.T) {
					calls.Add(1)
					row.check(t, s)
				})
			}
			s.DB.Check(t)
			if got := s.Signings(t); got != 0 {
				t.Errorf("Vault was asked for %d signatures in all, want none", got)
			}
		})
	}
}

func (h hostile) check(t *testing.T, s *testkit.Stack) {
	before, signings := entriesOf(t, s), s.Signings(t)
	h.call.headers = append(h.call.headers, "X-Canary: "+canary)
	got := h.call.send(t, s)
	if got.status != h.status || got.code != h.code {
		t.Errorf("got %d %s, want %d %s\n%s", got.status, got.code, h.status, h.code, got.text)
	}
	if strings.Contains(strings.ToLower(got.text), canary) || strings.Contains(fmt.Sprint(got.header), canary) {
		t.Errorf("the answer repeats the input:\n%v\n%s", got.header, got.text)
	}
	if n := s.Signings(t) - signings; n != 0 {
		t.Errorf("Vault was asked for %d signatures, want none", n)
	}
	added := entriesOf(t, s)
	if added.skip(before); len(added.requests) != 0 {
		t.Errorf("got %+v recorded, want no request", added.requests)
	}
	entries := added.refusals
	if h.detail == "" {
		if len(entries) != 0 {
			t.Errorf("got %+v, want no entry", entries)
		}
		return
	}
	if len(entries) != 1 {
		t.Fatalf("got %d entries, want 1: %+v", len(entries), entries)
	}
	if e := entries[0].Body; e["code"] != h.code || e["detail"] != h.detail || e["remote"] != "127.0.0.1" {
		t.Errorf("the entry says %v, want code %s and detail %s", e, h.code, h.detail)
	}
	if text := fmt.Sprint(entries[0]); strings.Contains(strings.ToLower(text), canary) {
		t.Errorf("the entry repeats the input: %s", text)
	}
	h.checkHeaders(t, got.header)
}

func (h hostile) checkHeaders(t *testing.T, got http.Header) {
	t.Helper()
	want := map[string]string{"Cache-Control": "no-store", "Content-Type": "application/problem+json", "X-Content-Type-Options": "nosniff"}
	if h.status == http.StatusUnauthorized {
		want["Www-Authenticate"] = "Bearer"
	}
	for name, value := range want {
		if got.Get(name) != value {
			t.Errorf("got %s: %q, want %q", name, got.Get(name), value)
		}
	}
	if len(got.Get("Request-Id")) != 36 || got.Get("Location") != "" {
		t.Errorf("got Request-Id %q and Location %q", got.Get("Request-Id"), got.Get("Location"))
	}
}

func whoRows(t *testing.T, s *testkit.Stack) []hostile {
	refused := func(name, auth, detail string, headers ...string) hostile {
		return hostile{name, wire{auth: auth, headers: headers}, 401, "unauthenticated", detail}
	}
	asB := refused("H30 mTLS as A with a JWT for B", "Bearer "+s.JWT(t, twin), "identity_mismatch")
	asB.call.svid = s.X509(t, agent)
	unsure := refused("mTLS with another scheme", "Basic "+canary, "authorization_malformed")
	unsure.call.svid = s.X509(t, agent)
	return []hostile{
		asB, unsure,
		refused("no SVID", "none", "no_identity"),
		refused("H29 identity in headers", "none", "no_identity",
			"X-Forwarded-Client-Cert: By="+canary+";URI="+agent, "X-SPIFFE-ID: "+agent, "X-Real-IP: 10.0.0.1",
			"X-Forwarded-For: 10.0.0.1", "Forwarded: for=10.0.0.1", "X-Request-Id: "+canary),
		refused("H1 alg none", "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJzcGlmZmU6Ly9hY21lLnRlc3QvYWdlbnRzL2EifQ.", "svid_malformed"),
		refused("H18 a malformed token", "Bearer "+canary, "svid_malformed"),
		refused("a token of another trust domain's making", "Bearer "+mixed(t, s), "svid_signature"),
		refused("two Authorization headers", "Bearer "+s.JWT(t, agent), "authorization_malformed", "Authorization: Bearer "+canary),
		refused("an empty token", "Bearer ", "authorization_malformed"),
		refused("Basic", "Basic "+canary, "authorization_malformed"),
		{"H91 a page of another site", wire{headers: []string{"Origin: https://" + canary + ".example", "Sec-Fetch-Site: cross-site"}, body: ask("")}, 403, "not_allowed", "cross_origin"},
		{"H91 an old browser", wire{headers: []string{"Origin: https://" + canary + ".example"}, body: ask("")}, 403, "not_allowed", "cross_origin"},
		{"H91 a form of another site", wire{
			target: "/oauth2/token", auth: "none", svid: s.X509(t, agent), body: "grant_type=client_credentials&scope=git.read",
			headers: []string{"Origin: https://" + canary + ".example", "Sec-Fetch-Site: same-site", "Content-Type: application/x-www-form-urlencoded"},
		}, 403, "not_allowed", "cross_origin"},
		{"H91 a frame", wire{headers: []string{"Sec-Fetch-Dest: iframe"}, body: ask("")}, 403, "not_allowed", "cross_origin"},
		{"H15 1 MB of dots", wire{auth: "Bearer " + strings.Repeat(".", 1<<20)}, 431, "", ""},
	}
}

// mixed returns the header and claims of one token with the signature of another.
func mixed(t *testing.T, s *testkit.Stack) string {
	one, other := strings.Split(s.JWT(t, agent), "."), strings.Split(s.JWT(t, twin), ".")
	return one[0] + "." + one[1] + "." + other[2]
}

func bodyRows() []hostile {
	bad := func(name, body, detail string) hostile {
		return hostile{name, wire{body: body}, 400, "malformed_body", detail}
	}
	header := func(name, value string, status int, code, detail string) hostile {
		return hostile{name, wire{headers: []string{value}, body: ask("")}, status, code, detail}
	}
	keys := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,"%d":0`, i)
		}
		return params("{" + b.String()[1:] + "}")
	}
	return []hostile{
		bad("H36 duplicate key", ask(`,"task":"`+canary+`"`), "duplicate_member"),
		bad("H36 duplicate parameter", params(`{"repo":"acme/api","repo":"`+canary+`"}`), "duplicate_member"),
		bad("H37 Scope", `{"Scope":"git.issues.read","task":"`+canary+`"}`, "unknown_member"),
		bad("H38 unknown field", ask(`,"`+canary+`":1`), "unknown_member"),
		bad("H38 an identity in the body", ask(`,"spiffe_id":"`+twin+`"`), "unknown_member"),
		bad("H39 trailing JSON", ask("")+ask(""), "trailing_data"),
		bad("H40 depth 33", params(strings.Repeat("[", 32)+strings.Repeat("]", 32)), "too_deep"),
		bad("H40 many keys", keys(5000), "too_many_tokens"),
		{"H40 10^5 keys", wire{body: keys(100_000)}, 413, "too_large", "body_size"},
		{"H41 one byte over 64 KiB", wire{body: ask(strings.Repeat(" ", 64<<10+1-len(ask(""))))}, 413, "too_large", "body_size"},
		{"H41 10 GB announced", wire{body: ask(""), length: "10000000000"}, 413, "too_large", "body_size"},
		header("H42 gzip", "Content-Encoding: gzip", 415, "unsupported_media_type", "content_encoding"),
		header("form", "Content-Type: application/x-www-form-urlencoded", 415, "unsupported_media_type", "content_type"),
		header("another charset", "Content-Type: application/json; charset=utf-16", 415, "unsupported_media_type", "content_type"),
		header("two types", "Content-Type: application/json\r\nContent-Type: text/plain", 415, "unsupported_media_type", "content_type"),
		header("JSON of another kind", "Content-Type: application/merge-patch+json", 415, "unsupported_media_type", "content_type"),
		bad("H44 NUL", ask(`,"reason":"`+canary+`\u0000"`), "nul_character"),
		bad("H44 invalid UTF-8", ask(",\"reason\":\""+canary+"\xff\""), "utf8"),
		bad("H44 lone surrogate", ask(`,"reason":"`+canary+`\udfff"`), "syntax"),
		bad("no JSON", canary, "not_an_object"),
		bad("array", "["+ask("")+"]", "not_an_object"),
	}
}

func ttlRows() []hostile {
	var rows []hostile
	for _, ttl := range []string{"0", "-1", "1.5", `"60"`, "1e400", "-1e400", "9223372036854775808", "9223372036854775807", "1e2", "null", "true", "[60]", "31536001"} {
		rows = append(rows, hostile{"H45 ttl " + ttl, wire{body: ask(`,"ttl":` + ttl)}, 422, "invalid_request", "ttl"})
	}
	return rows
}

// secretRows are secrets in a free text, sent by mistake.
func secretRows() []hostile {
	var rows []hostile
	for name, text := range map[string]string{
		"a JWT":         "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl",
		"a private key": "-----BEGIN EC PRIVATE KEY-----",
		"a Vault token": "hvs.CAESIJ0123456789abcdefghij",
		"an AWS key":    "AKIAIOSFODNN7EXAMPLE",
		"a GitHub key":  "ghp_0123456789abcdefghijABCDEFGHIJ",
	} {
		rows = append(rows, hostile{
			"H82 " + name, wire{body: ask(`,"reason":"` + canary + " " + text + `"`)}, 422, "invalid_request", "reason_secret",
		})
	}
	return rows
}

func paramRows() []hostile {
	var rows []hostile
	refused := func(name, body, detail string) {
		rows = append(rows, hostile{name, wire{body: body}, 422, "invalid_request", detail})
	}
	for _, value := range []string{
		"../sys/seal", ".", "..", "%2e%2e", canary + "/../../auth/token/create", canary + "//x", canary + "/./x",
		canary + "+", canary + "*", "/" + canary, canary + "/", canary + `\r\nX-Injected: 1`, canary + `\n`,
		canary + "#x", canary + "?x=1", "{{identity.entity.id}}" + canary, "${env}" + canary, "$(" + canary + ")",
		canary + `\"; DROP TABLE entries; --`, canary + "' OR 1=1", canary + ",root", canary + " x", canary + `\u202e`,
		canary + `\uff0fx`, canary + `\u200b`, "-" + canary, "", strings.Repeat(canary, 13), "ACME/" + canary,
	} {
		refused("H52-H58 repo "+value, repo(value), "params.repo")
	}
	refused("H60 array for string", params(`{"repo":["acme/api"]}`), "params")
	refused("H60 object for string", params(`{"repo":{"acme":"api"}}`), "params")
	refused("null for string", params(`{"repo":null}`), "params")
	refused("number for string", params(`{"repo":7}`), "params.repo")
	refused("missing", params(`{}`), "params.repo")
	refused("unknown", params(`{"repo":"acme/api","ZQcanary":1}`), "params")
	refused("params is a list", params(`["repo"]`), "params")
	refused("too many", params(`{`+strings.TrimSuffix(many(33), ",")+`}`), "params")
	refused("H55 two principals", `{"scope":"ssh.login.open","params":{"principal":"deploy,root"},"task":"`+canary+`"}`, "params.principal")
	refused("H55 no principal", `{"scope":"ssh.login.open","params":{"principal":""},"task":"`+canary+`"}`, "params.principal")
	counted := func(n string) string {
		return `{"scope":"db.rows.read","params":{"rows":` + n + `,"fresh":true},"task":"` + canary + `"}`
	}
	for _, n := range []string{"0", "9001", "1.5", "1e3", "9007199254740993", `"7"`, "true"} {
		refused("rows "+n, counted(n), "params.rows")
	}
	refused("rows 1e400", counted("1e400"), "params")
	for _, scope := range []string{"Git.issues.read", "git.issues.read ", `git.issues.re\u0430d`, `git\uff0eissues\uff0eread`, "git/issues", "../" + canary} {
		refused("H67 scope "+scope, `{"scope":"`+scope+`","task":"`+canary+`"}`, "scope")
	}
	refused("scope is a number", `{"scope":7,"task":"`+canary+`"}`, "scope")
	refused("no scope", `{"task":"`+canary+`"}`, "scope")
	refused("no task", `{"scope":"git.issues.read","params":{"repo":"acme/api"}}`, "task")
	refused("task with a line break", `{"scope":"git.issues.read","task":"`+canary+`\nx"}`, "task")
	refused("reason of 1001 bytes", ask(`,"reason":"`+strings.Repeat("é", 500)+`x"`), "reason")
	refused("reason is an object", ask(`,"reason":{"text":"`+canary+`"}`), "reason")
	return rows
}

func many(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"p%d":1,`, i)
	}
	return b.String()
}

func httpRows() []hostile {
	var rows []hostile
	for _, method := range []string{"TRACE", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"} {
		rows = append(rows, hostile{"H46 " + method, wire{method: method}, 405, "method_not_allowed", "method"})
	}
	for _, header := range []string{"X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"} {
		rows = append(rows, hostile{"H46 " + header, wire{method: "GET", headers: []string{header + ": POST"}}, 405, "method_not_allowed", "method"})
	}
	for target, detail := range map[string]string{
		"//v1/tokens": "path_form", "/v1//tokens": "path_form", "/v1/tokens/": "path_form", "/v1/./tokens": "path_form",
		"/v1/x/../tokens": "path_form", "/x/..;/v1/tokens": "path", "/v1%2ftokens": "path_form", "/v1/%74okens": "path_form",
		"/v1/tokens%00": "path_form", "/v1/tokens%20": "path_form", "/V1/../v1/tokens": "path_form", "/v1/tokens;a=b": "path",
		"/v1/tokens.json": "path", "/v1/Tokens": "path", "/v1/" + canary: "path", `/v1/tokens\`: "path_form",
	} {
		rows = append(rows, hostile{"H47 " + target, wire{target: target}, 404, "not_found", detail})
	}
	for _, host := range []string{"evil.example", "127.0.0.1.evil.example", canary, "127.0.0.2", "localhost"} {
		rows = append(rows, hostile{"H48 " + host, wire{host: host}, 421, "misdirected", "host"})
	}
	return append(rows,
		hostile{"H48 absolute target elsewhere", wire{target: "https://evil.example/v1/tokens"}, 421, "misdirected", "host"},
		hostile{"H43 chunked and a length", wire{headers: []string{"Transfer-Encoding: chunked"}, body: chunked}, 400, "malformed_body", "transfer_encoding"},
		hostile{"H43 chunked", wire{headers: []string{"Transfer-Encoding: chunked"}, length: "none", body: chunked}, 400, "malformed_body", "transfer_encoding"},
		hostile{"H43 bare-LF chunk", wire{headers: []string{"Transfer-Encoding: chunked"}, length: "none", body: "1\n{\n0\n\n"}, 400, "malformed_body", "transfer_encoding"},
		hostile{"H43 two lengths", wire{headers: []string{"Content-Length: 1"}}, 400, "", ""},
		hostile{"H43 an unknown coding", wire{headers: []string{"Transfer-Encoding: " + canary}, length: "none"}, 501, "", ""},
		hostile{"H43 a space before the colon", wire{headers: []string{"X-A : b"}}, 400, "", ""},
		hostile{"H49 10k cookies", wire{headers: []string{"Cookie: " + strings.Repeat("a=b; ", 10_000)}}, 431, "", ""},
		hostile{"H49 10k query keys", wire{target: "/v1/tokens?" + strings.Repeat("a=b&", 10_000)}, 431, "", ""},
		hostile{"H49 2k query keys", wire{target: "/v1/tokens?" + strings.Repeat("a=b&", 2_000)}, 400, "invalid_parameter", "query_unknown"},
	)
}

var chunked = fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(goodBody), goodBody)

func headerRows() []hostile {
	var rows []hostile
	for _, key := range []string{"", `""`, strings.Repeat("k", 256), `"` + canary, canary + "\tx", `"a"b"`, `"a\b"`, canary + "é"} {
		detail := "idempotency_key"
		if key == "" {
			detail = "parameter_header"
		}
		rows = append(rows, hostile{"Idempotency-Key " + key, wire{headers: []string{"Idempotency-Key: " + key}}, 400, "invalid_parameter", detail})
	}
	return append(rows,
		hostile{"two keys", wire{headers: []string{"Idempotency-Key: a", "Idempotency-Key: " + canary}}, 400, "invalid_parameter", "parameter_form"},
		hostile{"no SVID and two keys", wire{auth: "none", headers: []string{"Idempotency-Key: a", "Idempotency-Key: b"}}, 401, "unauthenticated", "no_identity"},
	)
}

func readingRows() []hostile {
	var rows []hostile
	bad := func(query, detail string) {
		rows = append(rows, hostile{query, wire{method: "GET", target: "/v1/issuances?" + query}, 400, "invalid_parameter", detail})
	}
	for _, limit := range []string{"-1", "0", "501", "1000000000", "1.5", canary, ""} {
		detail := "parameter_query"
		if limit == "1.5" || limit == canary || limit == "" {
			detail = "parameter_form"
		}
		bad("limit="+limit, detail)
	}
	bad(canary+"=1", "query_unknown")
	bad("Scope=a.b", "query_unknown")
	bad("scope=a.b&scope="+canary, "parameter_form")
	bad("cursor=a&cursor="+canary, "parameter_form")
	bad("scope=%zz", "query_encoding")
	bad("task=%ff", "query_encoding")
	bad("scope=a.b;task="+canary, "query_encoding")
	bad("since=yesterday", "parameter_form")
	bad("decision="+canary, "parameter_query")
	bad("status=gone", "parameter_query")
	bad("task=%00", "query_encoding")
	bad("spiffe_id=spiffe://ACME.test/x", "parameter_query")
	bad("spiffe_id=spiffe://acme.test", "parameter_query")
	bad("spiffe_id_prefix="+canary, "parameter_query")
	bad("trust_domain=spiffe://acme.test/x", "parameter_query")
	bad("since=2030-01-02T00:00:00Z&until=2030-01-01T00:00:00Z", "parameter_query")
	rows = append(rows, hostile{"H98 forged cursor", wire{method: "GET", target: "/v1/issuances?cursor=" + canary}, 400, "invalid_cursor", "cursor_seal"})
	rows = append(rows, hostile{"H98 a cursor that is no base64", wire{method: "GET", target: "/v1/issuances?cursor=%2b" + canary}, 400, "invalid_cursor", "cursor_encoding"})
	for _, id := range []string{canary, "1", "%2e%2e", "019a9f4e-6a34-7cc1-8a4f-3a1b7c0d9e21", "019A9F4E-6A34-7CC1-8A4F-3A1B7C0D9E21", "{019a9f4e-6a34-7cc1-8a4f-3a1b7c0d9e21}", "'OR'1'='1"} {
		detail := "id"
		if strings.ContainsAny(id, "%{'") {
			detail = "path_form"
		}
		for _, path := range []string{"/v1/issuances/", "/v1/requests/"} {
			rows = append(rows, hostile{path + id, wire{method: "GET", target: path + id}, 404, "not_found", detail})
		}
	}
	return rows
}
