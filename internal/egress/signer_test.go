package egress_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/egress"
)

// signedAgain signs a call that the host got again with curl, and returns curl's Authorization header.
func (w *world) signedAgain(t *testing.T, r *http.Request, service string) string {
	t.Helper()
	return w.signedWith(t, r, service, awsKey+":"+awsSecret)
}

// signedWith is signedAgain with another key: its id, a colon and the secret.
func (w *world) signedWith(t *testing.T, r *http.Request, service, key string) string {
	t.Helper()
	_, fields, _ := strings.Cut(r.Header.Get("Authorization"), "SignedHeaders=")
	fields, _, _ = strings.Cut(fields, ",")
	path := r.URL.EscapedPath()
	if service != "s3" {
		path = strings.ReplaceAll(path, "%", "%25") // curl signs the path as given, and of the services only S3 does so
	}
	if r.URL.RawQuery != "" {
		path += "?" + r.URL.RawQuery
	}
	args := []string{
		"-sS", "-k", "--noproxy", "*", "--path-as-is", "-X", r.Method, "--resolve", w.host.name() + ":127.0.0.1",
		"--aws-sigv4", "aws:amz:eu-central-1:" + service, "-u", key,
	}
	for field := range strings.SplitSeq(fields, ";") {
		if field != "host" {
			args = append(args, "-H", field+": "+strings.Join(r.Header.Values(field), ","))
		}
	}
	if out, err := exec.CommandContext(t.Context(), "curl", append(args, w.url(path))...).CombinedOutput(); err != nil {
		t.Fatalf("curl: %s%v", out, err)
	}
	seen := w.host.taken()
	if len(seen) != 1 || signature(seen[0].Header.Get("Authorization")) == "" {
		t.Fatalf("the host got %d calls of curl's, want one that is signed", len(seen))
	}
	return seen[0].Header.Get("Authorization")
}

// presigned is the query of a URL that the sandbox signed itself.
const presigned = "X-Amz-Credential=mine&X-Amz-Signature=mine&X-Amz-Date=mine&x-amz-security-token=mine&AWSAccessKeyId=mine"

// The gateway signs a call as curl does, whatever the sandbox has signed itself.
func TestCallsAreSigned(t *testing.T) {
	w := newWorld(t)
	empty := sha256.Sum256(nil)
	hello := sha256.Sum256([]byte("hello"))
	for _, tc := range []struct{ name, method, target, body, service, path, query, payload string }{
		{"an object", "GET", "/s3/a/b", "", "s3", "/s3/a/b", "", "UNSIGNED-PAYLOAD"},
		{"an object with odd letters", "GET", "/s3/a%20b/c=d:e,f+g(h)/%C3%BC*~", "", "s3", "/s3/a%20b/c%3Dd%3Ae%2Cf%2Bg%28h%29/%C3%BC%2A~", "", "UNSIGNED-PAYLOAD"},
		{"a list", "GET", "/s3/?prefix=a/b&list-type=2&delimiter=%2F&a=x+y", "", "s3", "/s3/", "a=x%20y&delimiter=%2F&list-type=2&prefix=a%2Fb", "UNSIGNED-PAYLOAD"},
		{"a part of an upload", "PUT", "/s3/a?partNumber=1&uploadId=x", "hello", "s3", "/s3/a", "partNumber=1&uploadId=x", "UNSIGNED-PAYLOAD"},
		{"the beginning of an upload", "POST", "/s3/a?uploads", "", "s3", "/s3/a", "uploads=", "UNSIGNED-PAYLOAD"},
		{"another service", "GET", "/lambda/functions", "", "lambda", "/lambda/functions", "", hex.EncodeToString(empty[:])},
		{"another service with a body", "POST", "/lambda/functions", "hello", "lambda", "/lambda/functions", "", hex.EncodeToString(hello[:])},
		{
			"another service with odd letters", "POST", "/lambda/a%20b/c=d:e?z=1&b=%C3%BC&b=a%2Fb&b=a-b", "hello", "lambda", "/lambda/a%20b/c%3Dd%3Ae",
			"b=%C3%BC&b=a%2Fb&b=a-b&z=1", hex.EncodeToString(hello[:]),
		},
	} {
		for _, way := range []string{"in a tunnel", "by a base URL"} {
			t.Run(strings.ReplaceAll(tc.name+" "+way, " ", "_"), func(t *testing.T) {
				query := "?"
				if strings.Contains(tc.target, "?") {
					query = "&"
				}
				target, sandbox := w.url(tc.target+query+presigned), w.proxied(t)
				if way == "by a base URL" {
					target, sandbox = strings.Replace(target, "https://", "http://egress/", 1), w.alone()
				}
				req := request(t, tc.method, target, strings.NewReader(tc.body))
				for _, name := range []string{"Authorization", "X-Amz-Date", "X-Amz-Security-Token", "X-Amz-Content-Sha256", "X-Amz-S3session-Token", "Date"} {
					req.Header.Set(name, "mine")
				}
				req.Header.Set("Content-Type", "text/plain;  charset=utf-8")
				req.Header.Set("X-Amz-Meta-A", "one")
				answer := call(t, sandbox, req)
				seen := w.host.taken()
				if answer.status != 200 || len(seen) != 1 {
					t.Fatalf("got %d %s", answer.status, answer.text)
				}
				got := seen[0]
				if answer.text != fmt.Sprintf("%d %s", len(tc.body), tc.body) || got.URL.EscapedPath() != tc.path || got.URL.RawQuery != tc.query {
					t.Errorf("the host got %s and %q, want %s?%s", got.RequestURI, answer.text, tc.path, tc.query)
				}
				if strings.Contains(header(got), "mine") || got.Header.Get("X-Amz-Security-Token") != awsSession || got.Header.Get("X-Amz-Content-Sha256") != tc.payload {
					t.Errorf("the host got\n%s", header(got))
				}
				if want := w.signedAgain(t, got, tc.service); signature(got.Header.Get("Authorization")) != signature(want) {
					t.Errorf("got %s, want what curl makes of it: %s", got.Header.Get("Authorization"), want)
				}
			})
		}
	}
	if n := w.issued(t, "host.s3.use"); n != 1 {
		t.Errorf("got %d credentials, want 1", n)
	}
}

// A permanent key has no session token, and a secret that is not a key signs nothing.
func TestPermanentKeySignsWithoutASessionToken(t *testing.T) {
	for name, tc := range map[string]struct {
		members map[string]any
		code    string
	}{
		"of a user":       {map[string]any{"access_key": awsKey, "secret_key": awsSecret, "security_token": nil}, ""},
		"without an id":   {map[string]any{"secret_key": awsSecret}, "egress_unfit"},
		"without a key":   {map[string]any{"access_key": awsKey}, "egress_unfit"},
		"in two lines":    {map[string]any{"access_key": awsKey + "\r\nX-A: b", "secret_key": awsSecret}, "egress_unfit"},
		"of older Vaults": {map[string]any{"access_key": awsKey, "secret_key": awsSecret, "security_token": awsSession}, ""},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			w := newWorld(t)
			w.store(t, "egress-aws", tc.members)
			answer := w.get(t, "/s3/a")
			if code, _ := answer.problem(); code != tc.code {
				t.Fatalf("got %d %s, want %q", answer.status, answer.text, tc.code)
			}
			seen := w.host.taken()
			if tc.code != "" {
				if len(seen) != 0 {
					t.Error("the call has reached the host")
				}
				return
			}
			session, _ := tc.members["security_token"].(string)
			if got := seen[0].Header.Get("X-Amz-Security-Token"); got != session {
				t.Errorf("the host got the session %q, want %q", got, session)
			}
			if want := w.signedAgain(t, seen[0], "s3"); signature(seen[0].Header.Get("Authorization")) != signature(want) {
				t.Errorf("got %s, want %s", seen[0].Header.Get("Authorization"), want)
			}
		})
	}
}

var signed = regexp.MustCompile(`SignedHeaders=([^,]+), ?Signature=([0-9a-f]{64})$`)

func signature(authorization string) string {
	return strings.Join(signed.FindStringSubmatch(authorization), " ")
}

// A key, its session token and the signature are masked in responses, also in the form in which S3 reports a mismatch.
func TestSignaturesAreMaskedInResponses(t *testing.T) {
	w := newWorld(t)
	var sent string
	w.host.mux.HandleFunc("/s3/echo", func(rw http.ResponseWriter, r *http.Request) {
		sent = signature(r.Header.Get("Authorization"))[len(signature(r.Header.Get("Authorization")))-64:]
		rw.Header().Set("X-Seen", r.Header.Get("Authorization"))
		rw.WriteHeader(http.StatusForbidden)
		fmt.Fprintf(rw, "<AWSAccessKeyId>%s</AWSAccessKeyId><SignatureProvided>%s</SignatureProvided><CanonicalRequest>%s</CanonicalRequest><CanonicalRequestBytes>% x</CanonicalRequestBytes>",
			awsKey, sent, header(r), header(r))
	})
	answer := w.get(t, "/s3/echo")
	all := answer.text + header(&http.Request{Header: answer.header}) + w.log.String()
	if answer.status != 403 || len(sent) != 64 {
		t.Fatalf("got %d %s", answer.status, answer.text)
	}
	for _, secret := range []string{awsKey, awsSecret, awsSession, sent, fmt.Sprintf("% x", awsSession), fmt.Sprintf("% x", awsKey)} {
		if strings.Contains(all, secret) {
			t.Errorf("%q comes back:\n%s", secret, all)
		}
	}
	if !strings.Contains(answer.text, "<AWSAccessKeyId>"+strings.Repeat("*", len(awsKey))+"</AWSAccessKeyId>") {
		t.Errorf("got %s", answer.text)
	}
}

// A call whose own signature the gateway can't replace is refused with a helpful text, and does not reach the host.
func TestUnsignableCallsAreRefused(t *testing.T) {
	w := newWorld(t)
	large := bytes.Repeat([]byte("x"), 10<<20+1)
	with := func(name, value string) map[string]string { return map[string]string{name: value} }
	for _, tc := range []struct {
		name, method, path string
		body               io.Reader
		headers            map[string]string
		status             int
		code, words        string
	}{
		{"signed chunks", "PUT", "/s3/a", strings.NewReader("5;chunk-signature=x\r\n"), with("X-Amz-Content-Sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"), 400, "egress_signed", "payload_signing_enabled"},
		{"signed chunks with a trailer", "PUT", "/s3/a", strings.NewReader("5\r\n"), with("X-Amz-Content-Sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"), 400, "egress_signed", "over HTTPS"},
		{"chunks that say nothing", "PUT", "/s3/a", strings.NewReader("5\r\n"), with("Content-Encoding", "gzip, AWS-chunked"), 400, "egress_signed", "chunk"},
		{"chunks for another service", "POST", "/lambda/a", strings.NewReader("5\r\n"), with("X-Amz-Content-Sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"), 400, "egress_signed", "chunk"},
		{"a form", "POST", "/s3/a", strings.NewReader("x"), with("Content-Type", "Multipart/Form-Data; boundary=x"), 400, "egress_signed", "PUT"},
		{"a copy", "PUT", "/s3/a", nil, with("X-Amz-Copy-Source", "/other/secret"), 403, "egress_header", "x-amz-copy-source; send the call without it"},
		{"a copy of nothing", "PUT", "/s3/a", nil, with("X-Amz-Copy-Source", ""), 403, "egress_header", "x-amz-copy-source; send the call without it"},
		{"a copy by another vendor's name", "PUT", "/s3/a", nil, with("X-Oss-Copy-Source", "/other/secret"), 403, "egress_header", "x-oss-copy-source; send the call without it"},
		{"a rename by another vendor's name", "PUT", "/s3/a", nil, with("X-Any-Rename-Source", "/other/secret"), 403, "egress_header", "x-any-rename-source; send the call without it"},
		{"a large body", "POST", "/lambda/a", bytes.NewReader(large), nil, 413, "egress_too_large", "at most 10 MiB"},
		{"a large body of no known length", "POST", "/lambda/a", io.MultiReader(bytes.NewReader(large)), nil, 413, "egress_too_large", "at most 10 MiB"},
	} {
		t.Run(strings.ReplaceAll(tc.name, " ", "_"), func(t *testing.T) {
			req := request(t, tc.method, w.url(tc.path), tc.body)
			for name, value := range tc.headers {
				req.Header.Set(name, value)
			}
			answer := call(t, w.proxied(t), req)
			code, explanation := answer.problem()
			if answer.status != tc.status || code != tc.code || !strings.Contains(explanation, tc.words) {
				t.Errorf("got %d %s, want %d %s with %q", answer.status, answer.text, tc.status, tc.code, tc.words)
			}
			if seen := w.host.taken(); len(seen) != 0 {
				t.Errorf("the host got %s %s", seen[0].Method, seen[0].RequestURI)
			}
		})
	}
	for name, headers := range map[string]map[string]string{
		"as large as can be": nil,
		"unsigned chunks":    {"X-Amz-Content-Sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER", "Content-Encoding": "aws-chunked", "X-Amz-Trailer": "x-amz-checksum-crc32"},
	} {
		path := map[bool]string{true: "/lambda/a", false: "/s3/a"}[headers == nil]
		req := request(t, "PUT", w.url(path), bytes.NewReader(large[:10<<20]))
		for field, value := range headers {
			req.Header.Set(field, value)
		}
		if answer := call(t, w.proxied(t), req); answer.status != 200 || !strings.HasPrefix(answer.text, "10485760 ") {
			t.Errorf("%s: got %d %.100s", name, answer.status, answer.text)
		}
		if seen := w.host.taken(); len(seen) != 1 || headers != nil && seen[0].Header.Get("X-Amz-Content-Sha256") != headers["X-Amz-Content-Sha256"] {
			t.Errorf("%s: got %d calls", name, len(seen))
		}
	}
}

// store writes a secret to Vault. It must run before the secret is first requested.
func (w *world) store(t testing.TB, name string, members map[string]any) {
	t.Helper()
	if _, err := w.stack.Vault(t).Logical().WriteWithContext(context.WithoutCancel(t.Context()), "secret/data/"+name, map[string]any{"data": members}); err != nil {
		t.Fatal(err)
	}
}

// A body that is read whole takes room until its call is over, and not only until the response begins.
func TestBufferedBodiesCountUntilTheCallEnds(t *testing.T) {
	w := newWorld(t)
	begun, end := make(chan struct{}), make(chan struct{})
	w.host.mux.HandleFunc("/lambda/slow", func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_ = http.NewResponseController(rw).Flush()
		close(begun)
		<-end
	})
	resp, err := w.proxied(t).Do(request(t, "POST", w.url("/lambda/slow"), strings.NewReader("hello")))
	if err != nil {
		t.Fatal(err)
	}
	within(t, "the call to reach the host", begun)
	if egress.HasAllRoom(w.sandbox) {
		t.Error("the room is given back while the answer is on its way")
	}
	close(end)
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	w.gateway.Close(t.Context())
	w.wantLog(t, `msg="egress call"`, "host="+w.host.name(), "status=200")
	if !egress.HasAllRoom(w.sandbox) {
		t.Error("the room is not given back")
	}
}

// If a credential ends while the body still arrives, the gateway does not wait for the body, and signs nothing.
func TestSigningStopsWhenTheCredentialEnds(t *testing.T) {
	w := newWorld(t)
	body, more := io.Pipe()
	got, read := make(chan error, 1), make(chan struct{})
	once := sync.OnceFunc(func() { close(read) })
	go func() {
		resp, err := w.alone().Do(request(t, "POST", "http://egress/"+w.host.name()+"/lambda/a", body)) // over HTTP/1, where only a read deadline interrupts a read
		if err == nil {
			defer func() { _ = resp.Body.Close() }()
			if text, _ := io.ReadAll(resp.Body); !strings.Contains(string(text), "egress_ended") {
				err = fmt.Errorf("got %d %s", resp.StatusCode, text)
			}
		}
		got <- err
	}()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for tick := time.NewTicker(10 * time.Millisecond); ; <-tick.C {
			if _, err := more.Write([]byte("x")); err != nil {
				return
			}
			if w.issued(t, "host.lambda.use") > 0 {
				once()
			}
		}
	}()
	within(t, "a credential for the body", read)
	w.endTask(t)
	within(t, "the answer", got)
	_ = body.Close()
	within(t, "the end of the body", ended)
	if seen := w.host.taken(); len(seen) != 0 {
		t.Error("the call has reached the host")
	}
}
