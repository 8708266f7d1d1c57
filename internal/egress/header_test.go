package egress_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// way is a way to send a credential: the URL of a call that needs it, and the scope that has it.
type way struct{ name, url, scope, named string }

// ways returns one call for each way. Each named URL is of a rule that names the headers in namedHeaders.
func (w *world) ways(g *guarded) []way {
	var all []way
	for name, path := range map[string]string{
		"header": "/key/x", "basic": "/basic", "query": "/query", "bearer": "/bearer", "s3": "/s3/a", "lambda": "/lambda/a", "token": "/token",
	} {
		scope := map[bool]string{true: "host.key.use", false: "host." + name + ".use"}[name == "header"]
		all = append(all, way{name, w.url(path), scope, w.url("/named/" + name)})
	}
	return append(all, way{"certificate", g.at("/client/x"), "host.client.use", g.at("/named/x")})
}

// A header that changes what a call does, or for whom, does not reach a host with a credential unless the rule names it. The call
// does not go without it either, because it would do something else.
func TestHeadersThatChangeACallAreRefused(t *testing.T) {
	w, g := newGuardedWorld(t)
	sandbox := w.proxied(t)
	for _, way := range w.ways(g) {
		for _, name := range append([]string{"X-HTTP-Method-Override", "Destination", "X-Unknown"}, namedHeaders...) {
			t.Run(way.name+"/"+name, func(t *testing.T) {
				req := request(t, "GET", way.url, nil)
				req.Header.Set(name, "/other/secret")
				answer := call(t, sandbox, req)
				code, why := answer.problem()
				if answer.status != 403 || code != "egress_header" || !strings.Contains(why, ": "+strings.ToLower(name)+"; send the call") || !strings.HasPrefix(why, way.scope+": ") {
					t.Errorf("got %d %s, want it refused because of %s", answer.status, answer.text, name)
				}
				if seen := append(w.host.taken(), g.taken()...); len(seen) != 0 {
					t.Errorf("the host got %s\n%s", seen[0].RequestURI, header(seen[0]))
				}
			})
		}
		if n := w.issued(t, way.scope); n != 0 {
			t.Errorf("%s: got %d credentials for calls that were refused", way.name, n)
		}
		if answer := call(t, sandbox, request(t, "GET", way.url, nil)); answer.status != 200 {
			t.Errorf("%s: got %d %s without the header", way.name, answer.status, answer.text)
		}
		w.host.taken()
		g.taken()
	}
	w.wantLog(t, `msg="egress call"`, "egress_header", "x-object-manifest", "status=403")
}

// A rule that names headers lets them through with its credential, and with nothing else of the sandbox's own.
func TestHeadersThatARuleNamesAreForwarded(t *testing.T) {
	w, g := newGuardedWorld(t)
	for _, way := range w.ways(g) {
		t.Run(way.name, func(t *testing.T) {
			req := request(t, "GET", way.named, nil)
			for _, name := range namedHeaders {
				req.Header.Set(name, "of "+name)
			}
			for _, name := range []string{"Cookie", "X-Forwarded-For", "X_Sudo", "X-Api-Key", "X-Ms-Client-Principal"} {
				req.Header.Set(name, "mine")
			}
			answer := call(t, w.proxied(t), req)
			seen := append(w.host.taken(), g.taken()...)
			if answer.status != 200 || len(seen) != 1 {
				t.Fatalf("got %d %s and %d calls", answer.status, answer.text, len(seen))
			}
			for _, name := range namedHeaders {
				if got := seen[0].Header.Get(name); got != "of "+name {
					t.Errorf("the host got %s: %q", name, got)
				}
			}
			if strings.Contains(header(seen[0]), "mine") {
				t.Errorf("the host got\n%s", header(seen[0]))
			}
			if way.name == "s3" { // the signature covers what S3 reads
				if got, want := signature(seen[0].Header.Get("Authorization")), signature(w.signedAgain(t, seen[0], "s3")); got != want || !strings.Contains(got, "x-amz-copy-source") {
					t.Errorf("got the signature %s, want %s", got, want)
				}
			}
			req.Header.Set("X-Http-Method", "DELETE")
			if code, _ := call(t, w.proxied(t), req).problem(); code != "egress_header" {
				t.Errorf("got %q with another method in a header", code)
			}
		})
	}
}

// Of the scopes for one path, a call gets the one whose rule names its headers, even if another one has less authority.
func TestHeadersSelectTheScope(t *testing.T) {
	w := newWorld(t)
	for header, want := range map[string]string{"Accept": "Bearer ", "X-Select-Copy": "Basic "} {
		req := request(t, "GET", w.url("/bearer"), nil)
		req.Header.Set(header, "a")
		answer := call(t, w.proxied(t), req)
		seen := w.host.taken()
		if answer.status != 200 || len(seen) != 1 || !strings.HasPrefix(seen[0].Header.Get("Authorization"), want) || seen[0].Header.Get(header) != "a" {
			t.Errorf("%s: got %d %s and %d calls, want one with %s", header, answer.status, answer.text, len(seen), want)
		}
	}
}

// The headers that common clients send pass without being named.
func TestHeadersOfCommonClientsPass(t *testing.T) {
	w := newWorld(t)
	for _, tc := range []struct{ client, path, headers string }{
		{"a browser's fetch", "/bearer", `Accept: */*|Accept-Language: *|Sec-Fetch-Mode: cors|User-Agent: node|Origin: https://a.test|Referer: https://a.test/b`},
		{"conditions and ranges", "/bearer", `If-Match: "a"|If-None-Match: "b"|If-Modified-Since: Tue, 24 Nov 2026 00:00:00 GMT|If-Unmodified-Since: Tue, 24 Nov 2026 00:00:00 GMT|If-Range: "a"|Range: bytes=0-1|Cache-Control: no-cache|Pragma: no-cache`},
		{"content", "/bearer", `Content-Type: application/json|Content-Language: en|Content-Disposition: inline|Content-Range: bytes 0-1/2|Content-Md5: 1B2M2Y8AsgTpgAmY7PhCfg==|Content-Digest: sha-256=:x:`},
		{"tracing", "/bearer", `Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01|Tracestate: a=b|X-B3-Traceid: a|Sentry-Trace: a-b-1|X-Cloud-Trace-Context: a/1|X-Amzn-Trace-Id: Root=1|X-Request-Id: a`},
		{"git", "/key/x", `User-Agent: git/2.39.5|Accept: application/x-git-upload-pack-result|Content-Type: application/x-git-upload-pack-request|Git-Protocol: version=2|Pragma: no-cache`},
		{"npm", "/key/x", `Npm-Command: install|Npm-Session: a|Npm-In-Ci: true|Npm-Auth-Type: web|Npm-Scope: @a|Pacote-Version: 18.0.6|Pacote-Req-Type: packument|Pacote-Pkg-Id: registry:a|Pacote-Integrity: sha512-a`},
		{"the GitHub CLI", "/token", `Accept: application/vnd.github+json|X-Github-Api-Version: 2022-11-28|Time-Zone: Europe/Berlin|Graphql-Features: merge_queue|User-Agent: GitHub CLI 2.60.0`},
		{
			"the OpenAI SDK", "/bearer", `X-Stainless-Lang: python|X-Stainless-Package-Version: 1.99.0|X-Stainless-Os: Linux|X-Stainless-Arch: x64|X-Stainless-Runtime: CPython|X-Stainless-Runtime-Version: 3.11.7|` +
				`X-Stainless-Async: false|X-Stainless-Retry-Count: 0|X-Stainless-Read-Timeout: 600|X-Stainless-Helper-Method: stream|X-Stainless-Poll-Helper: true|Openai-Beta: assistants=v2|Idempotency-Key: a`,
		},
		{"the Anthropic SDK", "/key/x", `Anthropic-Version: 2023-06-01|Anthropic-Beta: tools|Anthropic-Dangerous-Direct-Browser-Access: true|X-App: cli|X-Stainless-Timeout: 600`},
		{"Google's libraries", "/bearer", `X-Goog-Api-Client: gl-go/1.26|X-Goog-Gcs-Idempotency-Token: a|X-Goog-Hash: crc32c=a|X-Goog-If-Generation-Match: 0|X-Goog-Meta-A: b|X-Upload-Content-Type: text/plain|X-Upload-Content-Length: 5|X-Server-Timeout: 60`},
		{"Azure's libraries", "/bearer", `X-Ms-Version: 2025-05-05|X-Ms-Date: Tue, 24 Nov 2026 00:00:00 GMT|X-Ms-Client-Request-Id: a|X-Ms-Return-Client-Request-Id: true|X-Ms-Range: bytes=0-1|X-Ms-Meta-A: b`},
		{"kubectl", "/token", `Kubectl-Command: kubectl get|Kubectl-Session: a|Accept: application/json;as=Table;v=v1;g=meta.k8s.io,application/json`},
		{"the Vault CLI", "/bearer", `X-Vault-Request: true`},
		{"a Stripe library", "/bearer", `Stripe-Version: 2025-01-27.acacia|X-Stripe-Client-User-Agent: {}|X-Stripe-Client-Telemetry: {}|Idempotency-Key: a`},
		{"gRPC", "/token", `Content-Type: application/grpc|Te: trailers|Grpc-Timeout: 1S|Grpc-Encoding: identity`},
		{
			"an AWS SDK, for an object", "/s3/a", `Amz-Sdk-Invocation-Id: a|Amz-Sdk-Request: attempt=1; max=3|X-Amz-User-Agent: aws-sdk-js/3|X-Amz-Sdk-Checksum-Algorithm: CRC32|X-Amz-Checksum-Crc32: AAAAAA==|` +
				`X-Amz-Checksum-Mode: ENABLED|X-Amz-Expected-Bucket-Owner: 111122223333|X-Amz-Meta-A: b|X-Amz-Object-Attributes: ETag`,
		},
		{"an AWS SDK, for an action", "/lambda/a", `Amz-Sdk-Invocation-Id: a|Amz-Sdk-Request: attempt=1|X-Amz-Target: DynamoDB_20120810.GetItem|Content-Type: application/x-amz-json-1.0|X-Amzn-Query-Mode: true|X-Amz-Api-Version: 2015-03-31|Smithy-Protocol: rpc-v2-cbor`},
	} {
		t.Run(strings.ReplaceAll(tc.client, " ", "_"), func(t *testing.T) {
			req := request(t, "POST", w.url(tc.path), strings.NewReader("hello"))
			for field := range strings.SplitSeq(tc.headers, "|") {
				name, value, _ := strings.Cut(field, ": ")
				req.Header.Set(name, value)
			}
			answer := call(t, w.proxied(t), req)
			seen := w.host.taken()
			if answer.status != 200 || len(seen) != 1 {
				t.Fatalf("got %d %s and %d calls", answer.status, answer.text, len(seen))
			}
			for name := range req.Header {
				if got, want := seen[0].Header.Get(name), req.Header.Get(name); got != want {
					t.Errorf("the host got %s: %q, want %q", name, got, want)
				}
			}
		})
	}
}

// A header after the body reaches no host.
func TestRequestTrailersAreDropped(t *testing.T) {
	w := newWorld(t)
	var trailer http.Header
	w.host.mux.HandleFunc("/key/trailer", func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		trailer = r.Trailer.Clone()
	})
	answer := say(t, w.tunnel(t, w.host.name()), "POST /key/trailer HTTP/1.1\r\nHost: "+w.host.name()+"\r\nTransfer-Encoding: chunked\r\nTrailer: Sudo\r\n\r\n2\r\nhi\r\n0\r\nSudo: root\r\n\r\n")
	if answer.status != 200 || len(trailer) != 0 {
		t.Errorf("got %d %s, and the host got %v", answer.status, answer.text, trailer)
	}
}
