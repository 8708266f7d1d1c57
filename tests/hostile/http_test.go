package hostile_test

import (
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/testkit"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// asking returns a request body with additional members.
func asking(members string) string {
	return `{"scope":"git.issues.read","params":{"repo":"acme/api"},"task":"` + marker + `"` + members + `}`
}

// params returns a request body with these parameters.
func params(text string) string {
	return `{"scope":"git.issues.read","params":` + text + `,"task":"` + marker + `"}`
}

// unread is a call whose body cannot be parsed: 400.
func unread(name, body, detail string) try {
	return refused(name, call{body: body}, refusal{400, "malformed_body", detail})
}

func headed(name, value string, want refusal) try {
	return refused(name, call{headers: []string{value}, body: asking("")}, want)
}

func elsewhere(target, detail string) try {
	return refused(target, call{target: target}, refusal{404, "not_found", detail})
}

func hosted(host string) try {
	return refused(host, call{host: host}, refusal{421, "misdirected", "host"})
}

func wronglyTimed(ttl string) try {
	return refused(ttl, call{body: asking(`,"ttl":` + ttl)}, refusal{422, "invalid_request", "ttl"})
}

func methodOf(method string) try {
	return refused(method, call{method: method}, refusal{405, "method_not_allowed", "method"})
}

func overriding(header string) try {
	return refused(header, call{method: "GET", headers: []string{header + ": POST"}}, refusal{405, "method_not_allowed", "method"})
}

func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"%d":0`, i)
	}
	return params("{" + b.String()[1:] + "}")
}

const chunked = "%x\r\n%s\r\n0\r\n\r\n"

var byGo = func(status int) refusal { return refusal{status, "", ""} }

var httpRows = []row{
	{h: "H36", sent: "a key twice", then: "400", tries: []try{
		unread("a member", asking(`,"task":"`+marker+`"`), "duplicate_member"),
		unread("a parameter", params(`{"repo":"acme/api","repo":"`+marker+`"}`), "duplicate_member"),
		unread("escaped", asking(`,"t\u0061sk":"x"`), "duplicate_member"),
	}},
	{h: "H37", sent: "a key in a different case", then: "400", tries: []try{
		unread("Scope", `{"Scope":"git.issues.read","task":"`+marker+`"}`, "unknown_member"),
		unread("TTL", asking(`,"TTL":60`), "unknown_member"),
	}},
	{h: "H38", sent: "an unknown key", then: "400", tries: []try{
		unread("one", asking(`,"`+marker+`":1`), "unknown_member"),
		unread("another's identity", asking(`,"spiffe_id":"`+admin+`"`), "unknown_member"),
	}},
	{h: "H39", sent: "data after the JSON", then: "400", tries: []try{
		unread("an object", asking("")+"{}", "trailing_data"),
		unread("a word", asking("")+marker, "trailing_data"),
	}},
	{h: "H40", sent: "nesting of 33 levels, too many keys", then: "400; 413 for 100,000 keys, because the body is too long", tries: []try{
		unread("33 levels", params(strings.Repeat(`{"a":`, 33)+"1"+strings.Repeat("}", 33)), "too_deep"),
		unread("33 lists", params(strings.Repeat("[", 33)+strings.Repeat("]", 33)), "too_deep"),
		unread("too many keys", manyKeys(5_000), "too_many_tokens"),
		refused("100,000 keys", call{body: manyKeys(100_000)}, refusal{413, "too_large", "body_size"}),
	}},
	{h: "H41", sent: "over 64 KiB, or over 8 MiB for a catalogue", then: "413", tries: []try{
		refused("a byte more", call{body: asking(strings.Repeat(" ", 64<<10))}, refusal{413, "too_large", "body_size"}),
		refused("10 GB, so it says", call{body: asking(""), length: "10000000000"}, refusal{413, "too_large", "body_size"}),
		refusedBy("a catalogue", func(t *testing.T, w *world, s *testkit.Stack) call {
			c := proposing(t, s, nil)
			c.body = "{" + strings.Repeat(" ", 8<<20) + "}"
			return c
		}, refusal{413, "too_large", "body_size"}),
	}},
	{h: "H42", sent: "compressed", then: "415", tries: []try{
		refusedBy("gzip", func(*testing.T, *world, *testkit.Stack) call {
			return call{headers: []string{"Content-Encoding: gzip"}, body: gzipped(goodBody)}
		}, refusal{415, "unsupported_media_type", "content_encoding"}),
		headed("identity", "Content-Encoding: identity", refusal{415, "unsupported_media_type", "content_encoding"}),
		headed("a form", "Content-Type: application/x-www-form-urlencoded", refusal{415, "unsupported_media_type", "content_type"}),
		headed("UTF-16", "Content-Type: application/json; charset=utf-16", refusal{415, "unsupported_media_type", "content_type"}),
	}},
	{h: "H43", sent: "two lengths, chunks, invalid line ends", then: "400, or 501", tries: []try{
		refused("chunks and a length", call{headers: []string{"Transfer-Encoding: chunked"}, body: fmt.Sprintf(chunked, len(goodBody), goodBody)}, refusal{400, "malformed_body", "transfer_encoding"}),
		refused("chunks", call{headers: []string{"Transfer-Encoding: chunked"}, length: "none", body: fmt.Sprintf(chunked, len(goodBody), goodBody)}, refusal{400, "malformed_body", "transfer_encoding"}),
		refused("a chunk of bare LF", call{headers: []string{"Transfer-Encoding: chunked"}, length: "none", body: "1\n{\n0\n\n"}, refusal{400, "malformed_body", "transfer_encoding"}),
		refused("two lengths", call{headers: []string{"Content-Length: 1"}}, byGo(400)),
		refused("a length with a sign", call{length: "+5"}, byGo(400)),
		refused("an unknown coding", call{headers: []string{"Transfer-Encoding: " + marker}, length: "none"}, byGo(501)),
		refused("a space before a colon", call{headers: []string{"X-A : b"}}, byGo(400)),
		refused("a bare CR", call{headers: []string{"X-A: b\rX-B: c"}}, byGo(400)),
		{"a call behind a call", smuggled},
	}},
	{h: "H44", sent: "NUL, invalid UTF-8, lone surrogates", then: "400", tries: []try{
		unread("NUL", asking(`,"reason":"\u0000"`), "nul_character"),
		unread("a raw NUL", asking(",\"reason\":\"\x00\""), "syntax"),
		unread("UTF-8", asking(",\"reason\":\"\xff\""), "utf8"),
		unread("overlong", asking(",\"reason\":\"\xc0\xaf\""), "utf8"),
		unread("a lone surrogate", asking(`,"reason":"\ud800"`), "syntax"),
		unread("a surrogate, encoded", asking(",\"reason\":\"\xed\xa0\x80\""), "utf8"),
	}},
	{h: "H45", sent: "a TTL of 0, -1, 1.5, \"60\", 1e400, 2⁶³", then: "422", tries: []try{
		wronglyTimed("0"), wronglyTimed("-1"), wronglyTimed("1.5"), wronglyTimed(`"60"`), wronglyTimed("1e400"),
		wronglyTimed("9223372036854775808"), wronglyTimed("9223372036854775807"), wronglyTimed("null"), wronglyTimed("[60]"),
	}},
	{h: "H46", sent: "TRACE, a method in a header", then: "405", tries: []try{
		methodOf("TRACE"), methodOf("DELETE"), methodOf("OPTIONS"), methodOf("BREW"),
		overriding("X-HTTP-Method-Override"), overriding("X-HTTP-Method"), overriding("X-Method-Override"),
	}},
	{h: "H47", sent: "a different spelling of a path", then: "404, never a redirect", tries: []try{
		elsewhere("//v1/tokens", "path_form"), elsewhere("/v1//tokens", "path_form"), elsewhere("/v1/tokens/", "path_form"),
		elsewhere("/v1/./tokens", "path_form"), elsewhere("/v1/x/../tokens", "path_form"), elsewhere("/x/..;/v1/tokens", "path"),
		elsewhere("/v1%2ftokens", "path_form"), elsewhere("/v1/%74okens", "path_form"), elsewhere("/v1/tokens%00", "path_form"),
		elsewhere("/v1/tokens;a=b", "path"), elsewhere("/v1/Tokens", "path"), elsewhere("/v1/"+marker, "path"),
	}},
	{h: "H48", sent: "another Host", then: "421", tries: []try{
		hosted("evil.example"), hosted("127.0.0.1.evil.example"), hosted(marker), hosted("127.0.0.2"), hosted("localhost"),
		refused("in the target", call{target: "https://evil.example/v1/tokens"}, refusal{421, "misdirected", "host"}),
	}},
	{h: "H49", sent: "10,000 cookies or parameters", then: "431 or 400", tries: []try{
		refused("cookies", call{headers: []string{"Cookie: " + strings.Repeat("a=b; ", 10_000)}}, byGo(431)),
		refused("parameters", call{target: "/v1/tokens?" + strings.Repeat("a=b&", 10_000)}, byGo(431)),
		refused("2,000 parameters", call{target: "/v1/tokens?" + strings.Repeat("a=b&", 2_000)}, refusal{400, "invalid_parameter", "query_unknown"}),
	}},
	{h: "H50", sent: "one byte at long intervals", then: "the connection is closed", apart: true, tries: []try{{"at three places", slowly}}},
	{h: "H51", sent: "HTTP/2 streams opened and reset at once", then: "other callers are served; at most 50 entries per second", apart: true, tries: []try{{"3 seconds of it", rapidReset}}},
}

func gzipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, text)
	_ = z.Close()
	return b.String()
}

// smuggled sends one call whose body is another call. It must get exactly one answer.
func smuggled(t *testing.T, w *world) {
	s := w.next()
	inner := call{}.bytes(t, s)
	c := call{headers: []string{"Transfer-Encoding: chunked"}, length: fmt.Sprint(len(inner)), body: "0\r\n\r\n" + inner}
	refusal{400, "malformed_body", "transfer_encoding"}.of(t, w, c, s) // a call to Vault would show that the inner call was executed
	w.hush(t)
}

// slowly stops in the middle of a call, at three places in parallel.
func slowly(t *testing.T, _ *world) {
	w := newWorld(t, staffed)
	s := w.s[0]
	whole := call{}.bytes(t, s)
	head := strings.Index(whole, "\r\n\r\n")
	for name, at := range map[string]int{"before a byte": 0, "in the headers": head - 20, "in the body": head + 10} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, s, "http/1.1")
			_ = conn.SetDeadline(time.Now().Add(15 * time.Second))
			if _, err := io.WriteString(conn, whole[:at]); err != nil {
				t.Fatal(err)
			}
			var late net.Error
			if _, err := io.Copy(io.Discard, conn); errors.As(err, &late) && late.Timeout() { // ends when the server closes
				t.Error("the connection is still open after 15 s")
			}
		})
	}
	t.Cleanup(func() {
		if asked := w.vault.since(0); len(asked) != 0 {
			t.Errorf("Vault was asked for %v", asked)
		}
	})
}

func connect(t *testing.T, s *testkit.Stack, protocol string) *tls.Conn {
	t.Helper()
	cfg := showing(s, *shown(t, s, agent))
	cfg.NextProtos = []string{protocol}
	conn, err := (&tls.Dialer{NetDialer: &net.Dialer{Timeout: patience}, Config: cfg}).DialContext(t.Context(), "tcp", s.Addr)
	if err != nil {
		t.Fatalf("connecting: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*tls.Conn)
}

// rapidReset opens and resets streams as fast as it can, while other clients are served.
func rapidReset(t *testing.T, _ *world) {
	w := newWorld(t, staffed)
	s := w.s[0]
	conn := connect(t, s, "h2")
	start := time.Now()
	_ = conn.SetDeadline(start.Add(3 * time.Second))
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	streams := make(chan int)
	go func() { streams <- reset(http2.NewFramer(conn, nil), s.Addr) }()
	for range 5 {
		if got := (call{auth: "Bearer " + s.JWT(t, twin)}).send(t, s); got.status != http.StatusForbidden {
			t.Errorf("another caller: got %d %s, want its denial", got.status, got.text)
		}
	}
	if sent := <-streams; sent < 1000 {
		t.Fatalf("only %d streams were reset: that is no flood", sent)
	}
	refusals, seconds := 0, int(time.Since(start)/time.Second)+2
	for _, e := range w.added(t) {
		if e.Kind == "call.refused" {
			refusals++
		}
	}
	if refusals > 50*seconds {
		t.Errorf("got %d entries in %d s, want at most 50 each second", refusals, seconds)
	}
	if asked := w.vault.since(0); len(asked) != 0 {
		t.Errorf("Vault was asked for %v", asked)
	}
}

// reset opens and resets streams until the connection ends, and returns how many.
func reset(framer *http2.Framer, host string) int {
	if framer.WriteSettings() != nil {
		return 0
	}
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, f := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "https"},
		{Name: ":authority", Value: host},
		{Name: ":path", Value: "/v1/tokens"},
		{Name: "content-type", Value: "application/json"},
	} {
		_ = encoder.WriteField(f)
	}
	headers := block.Bytes()
	for n := 0; ; n++ {
		id := uint32(2*n + 1)
		err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: headers, EndHeaders: true})
		if err != nil || framer.WriteRSTStream(id, http2.ErrCodeCancel) != nil {
			return n
		}
	}
}
