package egress_test

import (
	"slices"
	"strings"
	"testing"
)

// namedHeaders are headers that change what a call does, or for whom. A rule can name them.
var namedHeaders = []string{
	"X-Goog-Copy-Source", "X-Ms-Copy-Source", "X-Ms-Rename-Source", "X-Oss-Copy-Source", "X-Amz-Copy-Source", "X-Copy-From", "X-Object-Manifest",
	"Impersonate-User", "Impersonate-Group", "Impersonate-Extra-Scopes", "Impersonate-Uid", "Sudo",
}

// headersOfRules has the namedHeaders as the rules of rows name them.
const headersOfRules = "x-goog-copy-source, 'x-ms-*', x-oss-copy-source, x-amz-copy-source, x-copy-from, x-object-manifest, 'impersonate-*', sudo"

// forbiddenHeaders change the method or the target of a call. No rule can name them.
var forbiddenHeaders = []string{"X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override", "Destination"}

// refusedHeaders are headers with which no call passes unless its rule names them.
var refusedHeaders = slices.Concat(namedHeaders, forbiddenHeaders, []string{"X-Unknown"})

// spellings returns ways to write the name of a header.
func spellings(name string) []string {
	mixed := []byte(strings.ToLower(name))
	for i := 1; i < len(mixed); i += 2 {
		mixed[i] = strings.ToUpper(name)[i]
	}
	return []string{name, strings.ToLower(name), strings.ToUpper(name), string(mixed)}
}

// A header that changes what a call does, or for whom, does not reach a host with a credential unless the rule names it. The call
// does not go without it either, because it would do something else.
func TestHeadersThatChangeACallAreRefused(t *testing.T) {
	r := newRows(t)
	entrances := r.entrances(t)
	for _, s := range sendings {
		for _, name := range refusedHeaders {
			for _, e := range entrances {
				t.Run(s.name+"/"+name+"/"+strings.ReplaceAll(e.proto+" by "+e.name, "/", "_"), func(t *testing.T) {
					for _, spelling := range spellings(name) {
						for _, value := range []string{"/other/secret", ""} {
							answer := e.try(t, r.at(s, "/plain"), map[string]string{spelling: value})
							code, why := answer.problem()
							if answer.status != 403 || code != "egress_header" || !strings.Contains(why, ": "+strings.ToLower(name)+"; send the call") || !strings.HasPrefix(why, s.scope()+": ") {
								t.Errorf("got %d %s with %s: %q, want it refused because of the header", answer.status, answer.text, spelling, value)
							}
							r.wantNoCall(t)
						}
					}
				})
			}
		}
		if n := r.issued(t, s.scope()); n != 0 {
			t.Errorf("%s: got %d credentials for calls that were refused", s.name, n)
		}
		for _, e := range entrances {
			if answer := e.try(t, r.at(s, "/plain"), nil); answer.status != 200 {
				t.Errorf("%s: got %d %s without the header", s.name, answer.status, answer.text)
			}
			r.one(t, s)
		}
	}
	r.wantLog(t, `msg="egress call"`, "egress_header", "x-object-manifest", "status=403")
}

// A rule that names headers lets them through with its credential, and with nothing else of the sandbox's own.
func TestHeadersThatARuleNamesAreForwarded(t *testing.T) {
	r := newRows(t)
	entrances := r.entrances(t)
	for _, s := range sendings {
		t.Run(s.name, func(t *testing.T) {
			for _, e := range entrances {
				all := map[string]string{}
				for _, name := range namedHeaders {
					for _, spelling := range spellings(name) { // one at a time
						answer := e.try(t, r.at(s, "/named"), map[string]string{spelling: "of " + name})
						if answer.status != 200 || r.one(t, s).Header.Get(name) != "of "+name {
							t.Errorf("%s by %s: got %d %s with %s, want it forwarded", e.proto, e.name, answer.status, answer.text, spelling)
						}
					}
					all[name] = "of " + name
				}
				for _, name := range []string{"Cookie", "X-Forwarded-For", "X_Sudo", "X-Api-Key", "X-Ms-Client-Principal"} {
					all[name] = "mine"
				}
				answer := e.try(t, r.at(s, "/named"), all)
				if answer.status != 200 {
					t.Fatalf("got %d %s", answer.status, answer.text)
				}
				seen := r.one(t, s)
				for _, name := range namedHeaders {
					if got := seen.Header.Get(name); got != "of "+name {
						t.Errorf("the host got %s: %q", name, got)
					}
				}
				if strings.Contains(header(seen), "mine") {
					t.Errorf("the host got\n%s", header(seen))
				}
				if s.name == "s3" { // the signature covers what S3 reads
					if got, want := signature(seen.Header.Get("Authorization")), signature(r.signedAgain(t, seen, "s3")); got != want || !strings.Contains(got, "x-amz-copy-source") {
						t.Errorf("got the signature %s, want %s", got, want)
					}
				}
				for _, name := range append(slices.Clone(forbiddenHeaders), "X-Unknown") {
					all[name] = "DELETE"
					if code, _ := e.try(t, r.at(s, "/named"), all).problem(); code != "egress_header" {
						t.Errorf("got %q with %s", code, name)
					}
					delete(all, name)
				}
				r.wantNoCall(t)
			}
		})
	}
}

// A rule that names a header allows it for its own hosts and paths only, even if another rule of the scope covers the call.
func TestHeadersThatARuleNamesAreForItsOwnHosts(t *testing.T) {
	r := newRows(t)
	for _, s := range sendings {
		first, second := r.at(s, "/named"), "https://"+r.of(s)[1].name()+"/"+s.name+"/named"
		for _, e := range r.entrances(t) {
			t.Run(s.name+"/"+strings.ReplaceAll(e.proto+" by "+e.name, "/", "_"), func(t *testing.T) {
				for _, name := range namedHeaders {
					fields := map[string]string{name: "/other/secret"}
					if answer := e.try(t, first, fields); answer.status != 200 || r.one(t, s).Header.Get(name) == "" {
						t.Errorf("got %d %s with %s at the host of the rule", answer.status, answer.text, name)
					}
					answer := e.try(t, second, fields)
					if code, _ := answer.problem(); answer.status != 403 || code != "egress_header" {
						t.Errorf("got %d %s with %s at another host, want it refused", answer.status, answer.text, name)
					}
					r.wantNoCall(t)
				}
				if answer := e.try(t, second, nil); answer.status != 200 {
					t.Errorf("got %d %s at the other host without headers", answer.status, answer.text)
				}
				r.one(t, s)
			})
		}
	}
}

// A header by which a proxy reports the target of a call reaches no host, since some hosts take it for the target. The call itself
// passes, as it was checked.
func TestTargetsThatProxiesReportAreRemoved(t *testing.T) {
	r := newRows(t)
	entrances := r.entrances(t)
	for _, s := range sendings {
		for _, name := range []string{"X-Original-URL", "X-Original-Method", "X-Rewrite-URL", "X-Forwarded-Host", "X-Forwarded-Uri"} {
			t.Run(s.name+"/"+name, func(t *testing.T) {
				for _, e := range entrances {
					for _, spelling := range spellings(name) {
						answer := e.try(t, r.at(s, "/named"), map[string]string{spelling: "/admin"})
						if answer.status != 200 {
							t.Fatalf("%s by %s: got %d %s with %s", e.proto, e.name, answer.status, answer.text, spelling)
						}
						if seen := r.one(t, s); seen.URL.Path != "/"+s.name+"/named" || strings.Contains(header(seen), "/admin") {
							t.Errorf("%s by %s: the host got %s\n%s", e.proto, e.name, seen.RequestURI, header(seen))
						}
					}
				}
			})
		}
	}
}

// A sandbox cannot have the credential removed as a header for the next hop.
func TestConnectionHeaderRemovesNoCredential(t *testing.T) {
	r := newRows(t)
	for _, s := range sendings {
		t.Run(s.name, func(t *testing.T) {
			for _, e := range r.entrances(t)[1:] { // HTTP/2 has no such header
				answer := e.try(t, r.at(s, "/plain"), map[string]string{"Connection": "Authorization, X-Key, X-Amz-Date, X-Amz-Security-Token, X-Amz-Content-Sha256, Host"})
				if answer.status != 200 {
					t.Errorf("%s by %s: got %d %s", e.proto, e.name, answer.status, answer.text)
				}
				if seen := r.one(t, s); seen.Header.Get("Connection") != "" {
					t.Errorf("%s by %s: the host got\n%s", e.proto, e.name, header(seen))
				}
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
