package egress_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/brevet-dev/brevet/internal/egress"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"pgregory.net/rapid"
)

var basic = "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("brevet:"+password)) + "\r\n"

// dial connects to the gateway's port.
func (w *world) dial(t *testing.T) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return conn
}

// tunnel opens a TLS connection to what the sandbox takes for the host.
func (w *world) tunnel(t *testing.T, target string) net.Conn {
	t.Helper()
	name, _, _ := net.SplitHostPort(target)
	conn, err := w.tunnelTo(t, target, name)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func (w *world) tunnelTo(t *testing.T, target, serverName string, protocols ...string) (net.Conn, error) {
	t.Helper()
	conn := w.dial(t)
	fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n%s\r\n", target, target, basic)
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodConnect})
	if err != nil || resp.StatusCode != 200 {
		return nil, fmt.Errorf("got %v, %w, want a tunnel", resp, err)
	}
	cfg := w.trust()
	cfg.ServerName, cfg.NextProtos = serverName, protocols
	secured := tls.Client(conn, cfg)
	return secured, secured.HandshakeContext(t.Context())
}

// say sends text unchanged, and reads one response.
func say(t *testing.T, conn net.Conn, text string) got {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return got{text: err.Error()}
	}
	defer func() { _ = resp.Body.Close() }()
	body, _ := io.ReadAll(resp.Body)
	return got{resp.StatusCode, resp.Header, string(body), resp.Proto}
}

// Each attempt to bypass the rules gets the expected refusal, and nothing reaches the host.
func TestRuleBypassesAreRefused(t *testing.T) {
	w := newWorld(t)
	host := w.host.name()
	inTunnel := func(text string) func(*testing.T) got {
		return func(t *testing.T) got { return say(t, w.tunnel(t, host), text) }
	}
	atDoor := func(text string) func(*testing.T) got {
		return func(t *testing.T) got { return say(t, w.dial(t), text) }
	}
	get := func(path string, lines ...string) string {
		return "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n" + strings.Join(lines, "") + "\r\n"
	}
	other := func(target string) func(*testing.T) got {
		return func(t *testing.T) got { return call(t, w.proxied(t), request(t, "GET", "https://"+target, nil)) }
	}
	for _, tc := range []struct {
		name   string
		try    func(*testing.T) got
		status int
		code   string
	}{
		{"a host of no rule", other("evil.test/key/echo"), 403, "egress_no_rule"},
		{"another port", other("example.com/key/echo"), 403, "egress_no_rule"},
		{"a port without TLS", other("example.com:80/key/echo"), 403, "egress_plaintext"},
		{"a path of no rule", other(host + "/other"), 403, "egress_no_rule"},
		{"a method of no rule", func(t *testing.T) got {
			t.Helper()
			return call(t, w.proxied(t), request(t, "DELETE", w.url("/key/echo"), nil))
		}, 403, "egress_no_rule"},
		{"a way up", inTunnel(get("/key/../other")), 403, "egress_no_rule"},
		{"an escaped way up", inTunnel(get("/key/%2e%2e/other")), 403, "egress_no_rule"},
		{"an escaped slash", inTunnel(get("/key%2fecho")), 403, "egress_no_rule"},
		{"two slashes", inTunnel(get("//key/echo")), 403, "egress_no_rule"},
		{"all of the host", inTunnel("OPTIONS * HTTP/1.1\r\nHost: " + host + "\r\n\r\n"), 403, "egress_no_rule"},
		{"a smuggled Host", inTunnel("GET /key/echo HTTP/1.1\r\nHost: evil.test\r\n\r\n"), 421, "egress_misdirected"},
		{"two Hosts", inTunnel("GET /key/echo HTTP/1.1\r\nHost: " + host + "\r\nHost: evil.test\r\n\r\n"), 400, ""},
		{"another host in the request line", inTunnel(get("https://evil.test/key/echo")), 421, "egress_misdirected"},
		{"a tunnel in the tunnel", inTunnel("CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n"), 421, "egress_misdirected"},
		{"both lengths, of one call", inTunnel("POST /other HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /key/echo HTTP/1.1\r\n"), 403, "egress_no_rule"},
		{"two lengths", inTunnel("POST /key/body HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n12345"), 400, ""},
		{"an unknown coding", inTunnel("POST /key/body HTTP/1.1\r\nHost: " + host + "\r\nTransfer-Encoding: xchunked\r\n\r\n"), 501, ""},
		{"another protocol", inTunnel(get("/key/socket", "Connection: Upgrade\r\nUpgrade: h2c\r\n")), 403, "egress_upgrade"},
		{"a WebSocket of no rule", inTunnel(get("/other", "Connection: Upgrade\r\nUpgrade: websocket\r\n")), 403, "egress_no_rule"},
		{"a header that never ends", inTunnel(get("/key/echo", "X-A: "+strings.Repeat("a", 100<<10)+"\r\n")), 431, ""},
		{"a body that is too large", inTunnel("POST /key/body HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: 10000000000\r\n\r\n"), 413, "egress_too_large"},
		{"a signature of its own in each chunk", inTunnel("PUT /s3/a HTTP/1.1\r\nHost: " + host + "\r\nx-amz-content-sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD\r\nContent-Length: 0\r\n\r\n"), 400, "egress_signed"},
		{"another object in a header", inTunnel("PUT /s3/a HTTP/1.1\r\nHost: " + host + "\r\nx-AMZ-copy-source: /s3/other\r\nContent-Length: 0\r\n\r\n"), 403, "egress_header"},
		{"another user in a header", inTunnel(get("/key/echo", "iMpErSoNaTe-uSeR: root\r\n")), 403, "egress_header"},
		{"another user in a header for the next hop", inTunnel(get("/key/echo", "Connection: sudo\r\nSudo: root\r\n")), 403, "egress_header"},
		{"another user in an empty header", inTunnel(get("/key/echo", "Sudo:\r\n")), 403, "egress_header"},
		{"another method in a header", inTunnel(get("/key/echo", "X-HTTP-Method-Override: DELETE\r\n")), 403, "egress_header"},
		{"a header with a space", inTunnel(get("/key/echo", "Sudo : root\r\n")), 400, ""},
		{"a header of a path of no rule", inTunnel(get("/other", "Sudo: root\r\n")), 403, "egress_no_rule"},
		{"a presigned URL of no rule", other(host + "/other?" + presigned), 403, "egress_no_rule"},
		{"an address of no host", other("inner.test/"), 403, "egress_address"},
		{"an address", atDoor("CONNECT 169.254.169.254:443 HTTP/1.1\r\nHost: 169.254.169.254\r\n" + basic + "\r\n"), 403, "egress_no_rule"},
		{"a token that is bound", other(host + "/bound"), 403, "egress_no_rule"},
		{"a scope that the gateway is not to use", other(host + "/unlisted"), 403, "egress_no_rule"},
		{"a member that is not there", other(host + "/lost"), 502, "egress_unfit"},
		{"what policy denies", other(host + "/refused"), 403, "denied"},
		{"without TLS", atDoor("GET http://" + host + "/key/echo HTTP/1.1\r\nHost: " + host + "\r\n" + basic + "\r\n"), 403, "egress_plaintext"},
		{"one host in the line, another in the header", atDoor("GET https://evil.test/key/echo HTTP/1.1\r\nHost: " + host + "\r\n" + basic + "\r\n"), 403, "egress_no_rule"},
		{"a user in the line", atDoor("GET https://a:b@" + host + "/key/echo HTTP/1.1\r\nHost: " + host + "\r\n" + basic + "\r\n"), 421, "egress_misdirected"},
		{"no port to connect to", atDoor("CONNECT example.com HTTP/1.1\r\nHost: example.com\r\n" + basic + "\r\n"), 421, "egress_misdirected"},
		{"no password", atDoor("CONNECT " + host + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n"), 407, ""},
		{"no password, by a base URL", atDoor("GET /" + host + "/key/echo HTTP/1.1\r\nHost: " + w.addr + "\r\n\r\n"), 401, ""},
		{"the password of another gateway", atDoor("GET https://" + host + "/key/echo HTTP/1.1\r\nHost: " + host + "\r\nProxy-Authorization: Basic YTpi\r\n\r\n"), 407, ""},
		{"a base URL without a host", atDoor("GET //key/echo HTTP/1.1\r\nHost: " + w.addr + "\r\nAuthorization" + strings.TrimPrefix(basic, "Proxy-Authorization") + "\r\n"), 403, "egress_no_rule"},
	} {
		t.Run(strings.ReplaceAll(tc.name, " ", "_"), func(t *testing.T) {
			answer := tc.try(t)
			code, _ := answer.problem()
			if answer.status != tc.status || code != tc.code {
				t.Errorf("got %d %s, want %d %s", answer.status, answer.text, tc.status, tc.code)
			}
			if seen := w.host.taken(); len(seen) != 0 {
				t.Errorf("the host got %s %s", seen[0].Method, seen[0].RequestURI)
			}
		})
	}
}

// Over HTTP/2, a sandbox can put a blank into the target of a call. No HTTP/1 host gets a request line that it could split elsewhere.
func TestBlankInTheTargetIsRefused(t *testing.T) {
	w := newWorld(t)
	conn := w.dial(t)
	fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n%s\r\n", w.host.name(), basic)
	if resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodConnect}); err != nil || resp.StatusCode != 200 {
		t.Fatalf("got %v, %v, want a tunnel", resp, err)
	}
	cfg := w.trust()
	cfg.ServerName, cfg.NextProtos = "example.com", []string{"h2"}
	secured := tls.Client(conn, cfg)
	_, _ = io.WriteString(secured, http2.ClientPreface)
	frames := http2.NewFramer(secured, secured)
	frames.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", w.host.name()}, {":path", "/key/echo?a HTTP/1.0"}} {
		_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	if err := errors.Join(frames.WriteSettings(), frames.WriteHeaders(http2.HeadersFrameParam{
		StreamID: 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true,
	})); err != nil {
		t.Fatal(err)
	}
	for {
		frame, err := frames.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if answer, ok := frame.(*http2.MetaHeadersFrame); ok {
			if got := answer.PseudoValue("status"); got != "403" {
				t.Errorf("got %s, want 403", got)
			}
			break
		}
	}
	if seen := w.host.taken(); len(seen) != 0 {
		t.Errorf("the host got %s", seen[0].RequestURI)
	}
}

// The server name in the TLS handshake must be the host of the tunnel.
func TestServerNameMustMatchTheTunnelHost(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"evil.test", "sub.example.com"} {
		if _, err := w.tunnelTo(t, w.host.name(), name); err == nil {
			t.Errorf("%s: got a certificate in a tunnel to %s", name, w.host.name())
		}
	}
	// The right name gets a certificate that the client trusts.
	if _, err := w.tunnelTo(t, w.host.name(), "example.com"); err != nil {
		t.Errorf("got %v", err)
	}
}

// A redirect goes back to the sandbox. If the sandbox follows it, the new call has no credential.
func TestRedirects(t *testing.T) {
	w := newWorld(t)
	answer := w.get(t, "/key/away")
	location, err := url.Parse(answer.header.Get("Location"))
	if err != nil || answer.status != 302 || location.Host != "elsewhere.test" || strings.Contains(location.RawQuery, canary) {
		t.Errorf("got %d to %s, want it passed back without the key", answer.status, location)
	}
	if n := len(w.host.taken()); n != 1 {
		t.Errorf("the host got %d calls, want 1", n)
	}
}

// Bodies pass unchanged in both directions.
func TestBodies(t *testing.T) {
	w := newWorld(t)
	body := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // 4 MiB
	sum := sha256.Sum256(body)
	want := fmt.Sprintf("%d %s", len(body), hex.EncodeToString(sum[:]))
	for name, reader := range map[string]io.Reader{"of a known length": bytes.NewReader(body), "in chunks": io.MultiReader(bytes.NewReader(body))} {
		answer := call(t, w.proxied(t), request(t, "POST", w.url("/key/body"), reader))
		if answer.text != want {
			t.Errorf("%s: got %d %s, want %s", name, answer.status, answer.text, want)
		}
	}
	// The sandbox gets the events while the call is still in progress.
	w.events(t)
}

// When Brevet can't be reached, no call begins, and calls in progress soon end.
func TestNoCallBeginsWithoutBrevet(t *testing.T) {
	w := newWorld(t)
	if answer := w.get(t, "/key/echo"); answer.status != 200 {
		t.Fatalf("got %d %s", answer.status, answer.text)
	}
	events := w.events(t)
	w.stack.CloseServer()
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, events)
		ended <- err
	}()
	stop := w.stopwatch(t)
	answer := w.get(t, "/key/echo")
	pace := time.Tick(10 * time.Millisecond) // stay below the limits of tunnels and calls
	for deadline := time.Now().Add(patience); answer.status == 200 && time.Now().Before(deadline); {
		<-pace
		answer = w.get(t, "/key/echo")
	}
	stop("the refusal of a call")
	if code, _ := answer.problem(); answer.status != 503 || code != "egress_unavailable" {
		t.Errorf("got %d %s, want 503", answer.status, answer.text)
	}
	within(t, "the end of events without Brevet", ended)
}

// Closing a gateway ends the credentials that it held.
func TestClosedGatewayReleasesItsCredentials(t *testing.T) {
	w := newWorld(t)
	w.get(t, "/token")
	token := strings.TrimPrefix(w.host.taken()[0].Header.Get("Authorization"), "Bearer ")
	w.gateway.Close(t.Context())
	page, err := w.broker.Page(t.Context(), filterOf("host.token.use"))
	w.wantLog(t, `msg="egress credential ended"`, "calls=1")
	if err != nil || len(page.Issuances) != 1 || page.Issuances[0].Status != "released" || token == "" {
		t.Errorf("got %+v, %v, want it released", page.Issuances, err)
	}
}

// Over mutual TLS, a caller gets what its own SVID allows, if the gateway holds that identity, and nothing else.
func TestCallerGetsWhatItsSVIDAllows(t *testing.T) {
	w := newWorld(t)
	const proxy, other = "spiffe://acme.test/gateway", "spiffe://acme.test/agents/b"
	lookup := func(id string) *egress.Sandbox {
		if id == agent {
			return w.sandbox
		}
		return nil
	}
	cfg := tlsconfig.MTLSServerConfig(w.stack.X509(t, proxy), w.stack.Acme.Bundle(), tlsconfig.AuthorizeAny())
	cfg.SessionTicketsDisabled = true
	now, trusted := &atomic.Int64{}, w.stack.Acme.Bundle()
	l := listen(t, "tcp", "127.0.0.1:0")
	serve(t, w.gateway, tls.NewListener(l, cfg), egress.Proven(trusted, func() time.Time { return time.Now().Add(time.Duration(now.Load())) }, lookup))
	// tunnelled opens a tunnel as id. It returns a function that makes one call through the tunnel.
	tunnelled := func(id string) (func(path string) got, error) {
		conn, err := tls.Dial("tcp", l.Addr().String(), tlsconfig.MTLSClientConfig(w.stack.X509(t, id), w.stack.Acme.Bundle(), tlsconfig.AuthorizeAny()))
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { _ = conn.Close() })
		fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", w.host.name())
		resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodConnect})
		if err != nil || resp.StatusCode != 200 {
			return nil, fmt.Errorf("got %v, %w", resp, err)
		}
		_ = resp.Body.Close()
		trust := w.trust()
		trust.ServerName = "example.com"
		inner := tls.Client(conn, trust)
		return func(path string) got {
			return say(t, inner, "GET "+path+" HTTP/1.1\r\nHost: "+w.host.name()+"\r\n\r\n")
		}, nil
	}
	get, err := tunnelled(agent)
	if err != nil {
		t.Fatal(err)
	}
	if answer := get("/key/echo"); answer.status != 200 {
		t.Errorf("got %d %s", answer.status, answer.text)
	}
	if _, err := tunnelled(other); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("another sandbox: got %v, want 403", err)
	}
	authorities := trusted.X509Authorities()
	trusted.SetX509Authorities(nil)
	if answer := get("/key/echo"); answer.status != 403 {
		t.Errorf("got %d %s after its authority was taken out of the bundle", answer.status, answer.text)
	}
	trusted.SetX509Authorities(authorities)
	now.Store(int64(48 * time.Hour))
	if answer := get("/key/echo"); answer.status != 403 {
		t.Errorf("got %d %s after the SVID has expired on the connection", answer.status, answer.text)
	}
}

// A name that resolves to another address on the second lookup is refused because of that address.
func TestDNSRebindingIsRefused(t *testing.T) {
	w := newWorld(t)
	target := "https://rebound.test" + w.host.name()[strings.Index(w.host.name(), ":"):] + "/x"
	for i, want := range []string{"egress_upstream", "egress_address", "egress_address"} { // the first call reaches a host with another name
		answer := call(t, w.proxied(t), request(t, "GET", target, nil))
		if code, _ := answer.problem(); code != want {
			t.Errorf("call %d: got %d %s, want %s", i+1, answer.status, answer.text, want)
		}
	}
}

// A caller that sends too slowly is cut off, and blocks no other caller.
func TestSlowCallers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slow := map[string]net.Conn{"a header": w.dial(t), "a body": w.tunnel(t, w.host.name())}
	_, _ = io.WriteString(slow["a header"], "CONNECT "+w.host.name()+" HTTP/1.1\r\nHost: x\r\nX-")
	_, _ = io.WriteString(slow["a body"], "POST /key/body HTTP/1.1\r\nHost: "+w.host.name()+"\r\nContent-Length: 100\r\n\r\n0123")
	began := time.Now()
	for name, conn := range slow {
		_ = conn.SetDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s is waited for after %s", name, time.Since(began))
		}
	}
	if answer := w.get(t, "/key/echo"); answer.status != 200 {
		t.Errorf("got %d %s", answer.status, answer.text)
	}
}

// A sandbox that calls one host too often is throttled.
func TestCallsAreRateLimited(t *testing.T) {
	w := newWorld(t)
	w.perSecond = 1
	w.open(t)
	var codes []string
	for range 3 {
		answer := w.get(t, "/key/echo")
		code, _ := answer.problem()
		codes = append(codes, code)
	}
	if strings.Join(codes, " ") != "  egress_too_many" {
		t.Errorf("got %q, want two calls to pass", codes)
	}
}

// A sandbox may have a limited number of tunnels open. Beyond it, the gateway refuses a new tunnel until another one closes.
func TestConcurrentTunnelsAreLimited(t *testing.T) {
	w := newWorld(t)
	w.perSecond = 10000
	w.open(t)
	connect := func() (net.Conn, int) {
		conn := w.dial(t)
		fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n%s\r\n", w.host.name(), basic)
		resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodConnect})
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return conn, resp.StatusCode
	}
	var tunnels []net.Conn
	for range egress.MaxTunnels {
		conn, status := connect()
		if status != 200 {
			t.Fatalf("got %d for tunnel %d", status, len(tunnels))
		}
		tunnels = append(tunnels, conn)
	}
	if _, status := connect(); status != 429 {
		t.Errorf("got %d, want no tunnel more", status)
	}
	base := request(t, "GET", "http://"+w.addr+"/"+w.host.name()+"/key/echo", nil)
	base.SetBasicAuth("brevet", password)
	if answer := call(t, &http.Client{}, base); answer.status != 200 {
		t.Errorf("got %d %s by a base URL, want it to pass", answer.status, answer.text)
	}
	_ = tunnels[0].Close()
	status := 0
	for deadline := time.Now().Add(patience); status != 200 && time.Now().Before(deadline); {
		_, status = connect()
	}
	if status != 200 {
		t.Errorf("waited %s for room for a tunnel after one was closed, got %d", patience, status)
	}
}

// Two sandboxes of one gateway share neither a credential nor a connection.
func TestSandboxesShareNoCredential(t *testing.T) {
	w := newWorld(t)
	const other = "spiffe://acme.test/agents/b"
	second, err := w.gateway.Sandbox(egress.SandboxConfig{ID: other, Task: "other-1", Broker: w.stack.Client(t, other)})
	if err != nil {
		t.Fatal(err)
	}
	l := listen(t, "tcp", "127.0.0.1:0")
	serve(t, w.gateway, l, egress.Alone(second))
	w.get(t, "/token")
	call(t, &http.Client{}, request(t, "GET", "http://"+l.Addr().String()+"/"+w.host.name()+"/token", nil))
	seen := w.host.taken()
	if len(seen) != 2 || seen[0].Header.Get("Authorization") == seen[1].Header.Get("Authorization") || seen[0].RemoteAddr == seen[1].RemoteAddr {
		t.Errorf("got %d calls with the same token or connection", len(seen))
	}
	if n := w.issued(t, "host.token.use"); n != 1 {
		t.Errorf("got %d credentials of the first, want 1", n)
	}
	w.endTask(t)
	if answer := call(t, &http.Client{}, request(t, "GET", "http://"+l.Addr().String()+"/"+w.host.name()+"/token", nil)); answer.status != 200 {
		t.Errorf("got %d %s after the end of another's task", answer.status, answer.text)
	}
}

// No secret is in what the sandbox reads, however the response is split into pieces, and nothing else changes.
func TestSecretsAreMaskedInResponses(t *testing.T) {
	const first, second = "aabaabaac-SECRET", "QUFCQUFCQUFDLVNFQ1JFVA=="
	pieces := rapid.SliceOf(rapid.SampledFrom([]string{first, second, "aab", "aabaabaac", "-SECRET", "SECRET", "x", "\n", "QUFC", first[:15], second[3:]}))
	rapid.Check(t, func(rt *rapid.T) {
		text := strings.Join(pieces.Draw(rt, "text"), "")
		var body io.Reader = strings.NewReader(text)
		if rapid.Bool().Draw(rt, "slowly") {
			body = iotest.OneByteReader(body)
		}
		read, err := io.ReadAll(egress.Masked(body, first, second))
		want := strings.ReplaceAll(strings.ReplaceAll(text, first, strings.Repeat("*", len(first))), second, strings.Repeat("*", len(second)))
		if err != nil || string(read) != want {
			rt.Errorf("got %q, %v, want %q", read, err, want)
		}
	})
	if got, err := io.ReadAll(egress.Masked(strings.NewReader("a key"), "key")); err != nil || string(got) != "a key" {
		t.Errorf("got %q, %v: what is too short to be a secret is found in any text", got, err)
	}
}

func TestInvalidConfigurationIsRefused(t *testing.T) {
	if _, err := egress.New(egress.Config{Log: slog.New(slog.DiscardHandler), Now: time.Now}); err == nil {
		t.Error("got a gateway that lets no call pass")
	}
	g, err := egress.New(egress.Config{CallsPerSecond: 1, Log: slog.New(slog.DiscardHandler), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close(context.WithoutCancel(t.Context()))
	if _, err := g.Sandbox(egress.SandboxConfig{ID: agent}); err == nil {
		t.Error("got a sandbox without a task and without a broker")
	}
}
