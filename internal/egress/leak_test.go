package egress_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"math"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/egress"
)

// keep replaces the catalogue's key in Vault. It must run before the key is first requested.
func (w *world) keep(t *testing.T, key string) {
	t.Helper()
	w.store(t, "egress", map[string]any{"key": key})
}

// A key does not come back in any form in which hosts echo what they received.
func TestEncodedSecretsAreMasked(t *testing.T) {
	w := newWorld(t)
	const key = `Kx+7/yQ&"<9 z'=*~`
	w.keep(t, key)
	inJSON := func(escape bool) string {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(escape)
		_ = e.Encode(key)
		return strings.Trim(b.String(), "\"\n")
	}
	spelled := map[string]string{
		"as it is": key, "in a query": url.QueryEscape(key), "in a path": url.PathEscape(key),
		"in lower case": strings.NewReplacer("%2B", "%2b", "%2F", "%2f", "%3C", "%3c", "%3D", "%3d", "%2A", "%2a").Replace(url.QueryEscape(key)),
		"of RFC 3986":   strings.ReplaceAll(url.QueryEscape(key), "+", "%20"),
		"of JavaScript": strings.NewReplacer("+", "%20", "%27", "'", "%2A", "*").Replace(url.QueryEscape(key)),
		"in JSON":       inJSON(true), "in plain JSON": inJSON(false), "in JSON of PHP": strings.ReplaceAll(inJSON(false), "/", `\/`),
		"in HTML": html.EscapeString(key),
		// As the encoders of other languages write this key.
		"in JSON of .NET": `Kx\u002B7/yQ\u0026\u0022\u003C9 z\u0027=*~`, "in JSON of Gson": `Kx+7/yQ\u0026\"\u003c9 z\u0027\u003d*~`,
		"in HTML of a Go template": "Kx&#43;7/yQ&amp;&#34;&lt;9 z&#39;=*~", "in HTML of Python": "Kx+7/yQ&amp;&quot;&lt;9 z&#x27;=*~",
		"in HTML of PHP": "Kx+7/yQ&amp;&quot;&lt;9 z&#039;=*~", "in HTML of Handlebars": "Kx+7/yQ&amp;&quot;&lt;9 z&#x27;&#x3D;*~",
		"in HTML of Mustache": "Kx+7&#x2F;yQ&amp;&quot;&lt;9 z&#39;&#x3D;*~",
	}
	w.host.mux.HandleFunc("/query", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Location", "/other?"+r.URL.RawQuery)
		rw.WriteHeader(http.StatusFound)
		_ = json.NewEncoder(rw).Encode(map[string]bool{"right": r.URL.Query().Get("key") == key})
		for name, text := range spelled {
			fmt.Fprintf(rw, "%s: [%s]\n", name, text)
		}
	})
	answer := w.get(t, "/query?page=2")
	if answer.status != 302 || !strings.Contains(answer.text, `"right":true`) {
		t.Fatalf("got %d %s", answer.status, answer.text)
	}
	if location := answer.header.Get("Location"); strings.ReplaceAll(location, "*", "") != "/other?key=&page=2" {
		t.Errorf("the sandbox is sent to %s", location)
	}
	for name, text := range spelled {
		if want := name + ": [" + strings.Repeat("*", len(text)) + "]"; !strings.Contains(answer.text, want) {
			t.Errorf("the key comes back %s:\n%s", name, answer.text)
		}
	}
}

// Informational responses and trailers contain no key either.
func TestInformationalResponsesAndTrailersAreMasked(t *testing.T) {
	w := newWorld(t)
	w.host.mux.HandleFunc("/key/beside", func(rw http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("X-Key")
		rw.Header().Set("Link", "</"+key+">")
		rw.WriteHeader(http.StatusEarlyHints)
		rw.Header().Set("Trailer", "X-Announced")
		_, _ = io.WriteString(rw, "served")
		_ = http.NewResponseController(rw).Flush() // otherwise the response has a length, and no trailer
		rw.Header().Set("X-Announced", key)
		rw.Header().Set(http.TrailerPrefix+"X-Late", key)
	})
	conn := w.tunnel(t, w.host.name())
	_, _ = io.WriteString(conn, "GET /key/beside HTTP/1.1\r\nHost: "+w.host.name()+"\r\nTE: trailers\r\nConnection: close\r\n\r\n")
	text, err := io.ReadAll(conn)
	if err != nil || !bytes.Contains(text, []byte("X-Late: ***")) || bytes.Contains(text, []byte(canary)) || bytes.Contains(text, []byte(" 103 ")) {
		t.Errorf("got %q, %v, want one answer without the key", text, err)
	}
}

// T12: a host cannot send a key back in the name of a field, nor a cookie in a trailer.
func TestNamesAndTrailersCarryNothing(t *testing.T) {
	w := newWorld(t)
	w.host.mux.HandleFunc("/key/named", func(rw http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("X-Key")
		rw.Header()[key] = []string{"a"}
		rw.Header()["x-"+strings.ToLower(key)+"-y"] = []string{"a"}
		rw.Header().Add("Trailer", "X-Announced, Set-Cookie, X-"+key)
		_, _ = io.WriteString(rw, "served")
		_ = http.NewResponseController(rw).Flush()
		rw.Header().Set("X-Announced", "b")
		rw.Header().Set("Set-Cookie", "session=of-the-host")
		rw.Header().Set("X-"+key, "b")
		rw.Header()[http.TrailerPrefix+"Y-"+key] = []string{"b"}
		rw.Header().Set(http.TrailerPrefix+"Set-Cookie2", "session=of-the-host")
	})
	for _, version := range []string{"h2", "http/1.1"} { // of the connection to the gateway, and so of that to the host
		answer := rawAnswer(t, w, version, "/key/named")
		if text := strings.ToLower(answer); !strings.Contains(text, "x-announced") || strings.Contains(text, strings.ToLower(canary)) || strings.Contains(text, "of-the-host") || strings.Contains(text, "cookie") {
			t.Errorf("%s: got %s", version, answer)
		}
	}
}

// rawAnswer returns the fields, the trailers and the body of a response.
func rawAnswer(t *testing.T, w *world, version, path string) string {
	t.Helper()
	client := w.proxied(t)
	transport := client.Transport.(*http.Transport)
	transport.ForceAttemptHTTP2, transport.TLSClientConfig.NextProtos = version == "h2", []string{version}
	resp, err := client.Do(request(t, "GET", w.url(path), nil))
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s %v %v %s", resp.Proto, resp.Header, resp.Trailer, body)
}

// T12: a call with the credential of a rule carries no other one in its query or as a subprotocol, and asks for no response in another
// charset.
func TestOwnCredentialsInQueriesAreRefused(t *testing.T) {
	w := newWorld(t)
	for _, query := range []string{"access_token=mine", "a=1&api%5Fkey=mine", "X-Amz-Signature=mine", "token=mine"} {
		answer := call(t, w.proxied(t), request(t, "GET", w.url("/key/echo?"+query), nil))
		if code, why := answer.problem(); answer.status != 403 || code != "egress_query" || strings.Contains(why, "mine") || len(w.host.taken()) > 0 {
			t.Errorf("%s: got %d %s", query, answer.status, answer.text)
		}
	}
	if answer := call(t, w.proxied(t), request(t, "GET", w.url("/key/echo?page_token=2"), nil)); answer.status != 200 {
		t.Errorf("got %d %s", answer.status, answer.text)
	}
	upgrade := "GET /key/socket HTTP/1.1\r\nHost: " + w.host.name() + "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" +
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: openai-insecure-api-key.mine\r\n\r\n"
	w.host.taken()
	if answer := say(t, w.tunnel(t, w.host.name()), upgrade); answer.status != 403 || !strings.Contains(answer.text, "sec-websocket-protocol") || len(w.host.taken()) > 0 {
		t.Errorf("got %d %s", answer.status, answer.text)
	}
	charset := "GET /key/echo HTTP/1.1\r\nHost: " + w.host.name() + "\r\nAccept-Charset: utf-16\r\n\r\n"
	answer := say(t, w.tunnel(t, w.host.name()), charset)
	if seen := w.host.taken(); answer.status != 200 || len(seen) != 1 || seen[0].Header.Get("Accept-Charset") != "" {
		t.Errorf("got %d %s", answer.status, answer.text)
	}
}

// Programs that turn header names into variables confuse some names with others. None of those is forwarded.
func TestAmbiguousHeaderNamesAreNotForwarded(t *testing.T) {
	w := newWorld(t)
	for _, line := range []string{
		"X_Key: mine", "x_http_method_override: mine", "X-HTTP_Method-Override: mine", "X.Api.Key: mine", "Content_Length: 1mine", "Proxy: mine",
		"X-Original-Method: mine", "X-Forwarded-Anything: mine", "X-Rewrite-Path: mine", "X-Ssl-Client-S-Dn: mine", "X-Client-Cert-Subject: mine", "Via: 1.1 mine",
	} {
		answer := say(t, w.tunnel(t, w.host.name()), "POST /key/echo HTTP/1.1\r\nHost: "+w.host.name()+"\r\n"+line+"\r\nAccept-Language: en\r\nContent-Length: 0\r\n\r\n")
		seen := w.host.taken()
		if answer.status != 200 || len(seen) != 1 || strings.Contains(header(seen[0]), "mine") || seen[0].Header.Get("Accept-Language") != "en" {
			t.Errorf("%s: got %d %s", line, answer.status, answer.text)
		}
	}
}

// A sandbox that does not read the response keeps nothing open after its task has ended.
func TestStalledReaderIsClosedWhenTheTaskEnds(t *testing.T) {
	w := newWorld(t)
	w.host.mux.HandleFunc("/key/endless", func(rw http.ResponseWriter, _ *http.Request) {
		for err := error(nil); err == nil; {
			_, err = rw.Write(make([]byte, 1<<16))
		}
	})
	conn := w.tunnel(t, w.host.name())
	_, _ = io.WriteString(conn, "GET /key/endless HTTP/1.1\r\nHost: "+w.host.name()+"\r\n\r\n")
	if _, err := io.ReadFull(conn, make([]byte, 1<<16)); err != nil {
		t.Fatal(err)
	}
	w.endTask(t)
	w.wantLog(t, `msg="egress call"`, "scope=host.key.use")
}

// A body made of beginnings of secrets takes no more memory than another body.
func TestMaskingOfPartialSecretsUsesBoundedMemory(t *testing.T) {
	secret := "e" + strings.Repeat("y", 2000)
	per := func(letter string) float64 {
		body, least := strings.Repeat(letter, 1<<20), math.Inf(1)
		for range 10 { // other goroutines of the process allocate too, so the least counts
			least = min(least, testing.AllocsPerRun(1, func() {
				if n, err := io.Copy(io.Discard, egress.Masked(strings.NewReader(body), secret)); err != nil || n != 1<<20 {
					t.Errorf("read %d, %v", n, err)
				}
			}))
		}
		return least
	}
	if got, want := per("e"), per("x"); got > want+2 {
		t.Errorf("got %v allocations, want %v", got, want)
	}
}
