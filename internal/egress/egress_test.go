package egress_test

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/openapi"
)

// The gateway sends the credential as the rule says, whatever the sandbox sends itself, and the credential does not come back.
func TestGatewayInjectsCredentials(t *testing.T) {
	w := newWorld(t)
	for _, tc := range []struct{ path, name, want string }{
		{"/key/echo", "X-Key", canary},
		{"/basic", "Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte("bot:"+canary))},
		{"/bearer", "Authorization", "Bearer " + canary},
		{"/query", "", ""},
		{"/token", "Authorization", "Bearer eyJ"},
	} {
		req := request(t, "GET", w.url(tc.path)+"?a=1&key=mine", nil)
		for _, name := range []string{
			"Authorization", "Cookie", "Proxy-Authorization", "X-Api-Key", "X_Key", "X-Forwarded-For", "X-Serverless-Authorization", "X-Vault-Token", "DPoP", "X-Remote-Group",
			"X-Original-URL", "Via", "Baggage", "Grpc-Accept-Encoding",
		} {
			req.Header.Set(name, "mine")
		}
		if tc.name != "" {
			req.Header.Set(tc.name, "mine")
		}
		answer := call(t, w.proxied(t), req)
		if answer.status != 200 || answer.proto != "HTTP/2.0" {
			t.Fatalf("%s: got %d %s by %s", tc.path, answer.status, answer.text, answer.proto)
		}
		seen := w.host.taken()
		if len(seen) != 1 || strings.Contains(header(seen[0]), "mine") {
			t.Fatalf("%s: the host got\n%s\nwant one call with nothing of the sandbox's own", tc.path, header(seen[0]))
		}
		if got := seen[0].Header.Get(tc.name); tc.name != "" && !strings.HasPrefix(got, tc.want) {
			t.Errorf("%s: the host got %q, want %q", tc.path, got, tc.want)
		}
		if want := map[bool]string{true: "a=1&key=" + canary, false: "a=1&key=mine"}[tc.path == "/query"]; seen[0].URL.RawQuery != want {
			t.Errorf("%s: the host got the query %q, want %q", tc.path, seen[0].URL.RawQuery, want)
		}
		if strings.Contains(answer.text, canary) || answer.header.Get("Set-Cookie") != "" || strings.Contains(answer.header.Get("X-Seen"), canary) {
			t.Errorf("%s: the sandbox got %v %s", tc.path, answer.header, answer.text)
		}
	}
	if log := w.log.String(); strings.Contains(log, canary) || !strings.Contains(log, "path=/key/**") || !strings.Contains(log, "sandbox="+agent) ||
		!strings.Contains(log, "scope=host.query.use") || !strings.Contains(log, "issuance=") {
		t.Errorf("got the log\n%s", log)
	}
}

// One credential serves many calls, however they arrive.
func TestOneCredentialServesManyCalls(t *testing.T) {
	w := newWorld(t)
	plain := &http.Client{}
	base := request(t, "GET", "http://"+w.addr+"/"+w.host.name()+"/key/x%20y?q=1", nil)
	base.SetBasicAuth("brevet", password)
	absolute := request(t, "GET", "http://"+w.addr+"/", nil)
	absolute.URL.Opaque, absolute.Host = w.url("/key/x%20y?q=1"), w.host.name()
	absolute.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(":"+password)))
	for name, answer := range map[string]got{
		"CONNECT":          call(t, w.proxied(t), request(t, "GET", w.url("/key/x%20y?q=1"), nil)),
		"base URL":         call(t, plain, base),
		"its own socket":   call(t, w.alone(), request(t, "GET", "http://egress/"+w.host.name()+"/key/x%20y?q=1", nil)),
		"the request line": call(t, plain, absolute),
	} {
		seen := w.host.taken()
		if answer.status != 200 || answer.text != "served" {
			t.Errorf("%s: got %d %s", name, answer.status, answer.text)
		}
		for _, r := range seen {
			if r.RequestURI != "/key/x%20y?q=1" || r.Header.Get("X-Key") != canary || r.Header.Get("Authorization") != "" {
				t.Errorf("%s: the host got %s\n%s", name, r.RequestURI, header(r))
			}
		}
	}
	if n := w.issued(t, "host.key.use"); n != 1 {
		t.Errorf("got %d credentials, want 1", n)
	}
}

// The path's parameters go into the request for a credential, and the sandbox sees the policy's denial.
func TestPathParametersAreRequested(t *testing.T) {
	w := newWorld(t)
	if answer := w.get(t, "/repos/acme/api/issues"); answer.status != 200 {
		t.Errorf("got %d %s", answer.status, answer.text)
	}
	page, err := w.broker.Page(t.Context(), client.Filter{Scope: "host.repo.read"})
	if err != nil || len(page.Issuances) != 1 || page.Issuances[0].Params["repo"] != "acme/api" || page.Issuances[0].Params["env"] != "dev" || page.Issuances[0].Task != task {
		t.Fatalf("got %+v, %v", page.Issuances, err)
	}
	answer := w.get(t, "/repos/evil/api/issues")
	var p openapi.Problem
	if err := json.Unmarshal([]byte(answer.text), &p); err != nil || answer.status != 403 || p.Code != openapi.CodeDenied || len(p.Policies) != 1 || p.Policies[0] != "acme-only" {
		t.Errorf("got %d %s, want what policy says", answer.status, answer.text)
	}
	if len(w.host.taken()) != 1 {
		t.Error("what was denied has reached the host")
	}
	// Repeated attempts do not fill the record.
	for range 20 {
		w.get(t, "/repos/evil/api/issues")
	}
	if n := w.issued(t, "host.repo.read"); n > 6 {
		t.Errorf("got %d records of one denial", n)
	}
}

// A call that waits for approval says so, and passes once people have approved it.
func TestCallPassesOnceApproved(t *testing.T) {
	w := newWorld(t)
	var told struct {
		Code    string
		Waiting struct{ ID, Group string }
	}
	for range 2 { // the second call waits for the same request
		answer := w.get(t, "/approved")
		if err := json.Unmarshal([]byte(answer.text), &told); err != nil || answer.status != 403 || told.Code != "egress_pending" || told.Waiting.Group != "oncall" {
			t.Fatalf("got %d %s, want it to wait", answer.status, answer.text)
		}
	}
	if n := w.issued(t, "host.approved.use"); n != 1 {
		t.Errorf("people are asked %d times, want 1", n)
	}
	bob := w.stack.Person(t, "bob")
	shown, err := bob.Approval(t.Context(), told.Waiting.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bob.Vote(t.Context(), shown, openapi.VerdictApprove, ""); err != nil {
		t.Fatal(err)
	}
	if answer := w.get(t, "/approved"); answer.status != 200 {
		t.Errorf("got %d %s after the yes", answer.status, answer.text)
	}
}

// A gateway that stops withdraws its pending requests.
func TestStoppedGatewayWithdrawsPendingRequests(t *testing.T) {
	w := newWorld(t)
	w.get(t, "/approved")
	w.gateway.Close(t.Context())
	page, err := w.broker.Page(t.Context(), filterOf("host.approved.use"))
	if err != nil || len(page.Issuances) != 1 || page.Issuances[0].Status != openapi.StatusWithdrawn {
		t.Errorf("got %+v, %v, want it withdrawn", page.Issuances, err)
	}
}

// When the task ends, calls in progress break off and the next call is refused, both within a second.
func TestTaskEndStopsCalls(t *testing.T) {
	w := newWorld(t)
	events := w.events(t)
	socket := w.webSocket(t)
	w.endTask(t)
	stop := w.stopwatch(t)
	for name, conn := range map[string]io.Reader{"events": events, "WebSocket": socket} {
		ended := make(chan error, 1)
		go func() {
			_, err := io.Copy(io.Discard, conn)
			ended <- err
		}()
		within(t, "the end of the "+name, ended)
	}
	answer := w.get(t, "/key/echo")
	stop("the end of what is under way, and a refusal")
	if code, _ := answer.problem(); answer.status != 403 || code != "denied" {
		t.Errorf("got %d %s, want it refused", answer.status, answer.text)
	}
}

// A revoked credential is not used a second later, and the gateway requests another one.
func TestRevokedCredentials(t *testing.T) {
	w := newWorld(t)
	w.get(t, "/token")
	token := w.host.taken()[0].Header.Get("Authorization")
	if _, err := w.stack.Client(t, admin).Revoke(t.Context(), client.Selection{SPIFFEID: agent}, "leaked"); err != nil {
		t.Fatal(err)
	}
	stop := w.stopwatch(t)
	for deadline := time.Now().Add(patience); ; {
		w.get(t, "/token")
		if seen := w.host.taken(); len(seen) == 1 && seen[0].Header.Get("Authorization") != token {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for another credential than the one that is revoked", patience)
		}
	}
	stop("a call with another credential")
	if _, err := w.stack.Client(t, admin).Quarantine(t.Context(), agent, "odd"); err != nil {
		t.Fatal(err)
	}
	stop = w.stopwatch(t)
	for deadline := time.Now().Add(patience); w.get(t, "/token").status == 200; {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for a sandbox in quarantine to be refused", patience)
		}
	}
	stop("the refusal of a sandbox in quarantine")
}

func (w *world) events(t *testing.T) io.Reader {
	t.Helper()
	resp, err := w.proxied(t).Do(request(t, "GET", w.url("/key/events"), nil))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	lines := bufio.NewReader(resp.Body)
	if line, err := lines.ReadString('\n'); err != nil || line != "data: one\n" {
		t.Fatalf("got %q, %v, want the first event at once", line, err)
	}
	return lines
}

func (w *world) webSocket(t *testing.T) io.Reader {
	t.Helper()
	conn := w.tunnel(t, w.host.name())
	_, _ = io.WriteString(conn, "GET /key/socket HTTP/1.1\r\nHost: "+w.host.name()+"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Origin: https://agent.test\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"+
		"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n")
	reader := bufio.NewReader(conn)
	resp, err := http.ReadResponse(reader, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("got %v, %v, want a WebSocket", resp, err)
	}
	_, _ = io.WriteString(conn, "hello\n")
	if line, err := reader.ReadString('\n'); err != nil || line != "hello\n" {
		t.Fatalf("got %q, %v through the WebSocket", line, err)
	}
	return reader
}
