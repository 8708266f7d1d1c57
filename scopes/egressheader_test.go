package scopes_test

import (
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/scopes"
)

// ways has a rule for each way to send a credential.
var ways = map[string]scopes.Send{
	"by default": {}, "bearer": {As: scopes.SendBearer, Field: "key"}, "basic": {As: scopes.SendBasic, User: "bot"}, "header": {As: scopes.SendHeader, Name: "x-key"},
	"query": {As: scopes.SendQuery, Name: "key"}, "aws": {As: scopes.SendAWS, Service: "s3"}, "certificate": {As: scopes.SendCertificate},
}

// T12: a gateway removes a header only if the call means the same without it, and refuses a call with a header that it does not know.
func TestUseOfHeaders(t *testing.T) {
	for want, names := range map[scopes.HeaderUse]string{
		scopes.HeaderForwarded: `Accept Accept-Encoding Content-Type Content-Length User-Agent If-Match Range Traceparent X-Stainless-Lang Anthropic-Version OpenAI-Beta
			X-GitHub-Api-Version Git-Protocol Sec-WebSocket-Key Connection Upgrade TE`,
		scopes.HeaderRemoved: `Authorization AUTHORIZATION Proxy-Authorization Cookie X-Api-Key Private-Token X-Vault-Token X-Serverless-Authorization DPoP X-Forwarded-For
			X-Forwarded-Client-Cert X-Original-URL X-Remote-User X-Remote-Group Host Keep-Alive Transfer-Encoding Trailer Via X_User X.User X-Amz-Security-Token Grpc-Accept-Encoding Accept-Charset`,
		scopes.HeaderUnnamed: `X-Goog-Copy-Source X-Ms-Copy-Source X-Ms-Rename-Source X-Oss-Copy-Source X-Amz-Copy-Source X-Copy-From X-Object-Manifest X-Goog-User-Project
			Impersonate-User Impersonate-Group Impersonate-Extra-Scopes Impersonate-Uid Sudo OpenAI-Organization OpenAI-Project Stripe-Account X-Auth-Email X-Vault-Namespace X-Goog-Acl
			X-Amz-Acl Depth Prefer Sec-WebSocket-Protocol X-A X- X-Stainless- Traceparent-`,
		scopes.HeaderForbidden: `X-HTTP-Method-Override X-HTTP-Method X-Method-Override Destination`,
	} {
		for name := range strings.FieldsSeq(names) {
			for way, send := range ways {
				if got := (scopes.Egress{Send: send}).UseOfHeader(name); got != want {
					t.Errorf("%s, sent %s: got %d, want %d", name, way, got, want)
				}
			}
		}
	}
	for _, name := range []string{"X-Amz-Target", "X-Amz-Date", "X-Amz-Meta-A", "X-Amz-Checksum-Crc32", "Amz-Sdk-Invocation-Id"} {
		for way, send := range ways {
			want := map[bool]scopes.HeaderUse{true: scopes.HeaderForwarded, false: scopes.HeaderUnnamed}[way == "aws"]
			if got := (scopes.Egress{Send: send}).UseOfHeader(name); got != want {
				t.Errorf("%s, sent %s: got %d, want %d", name, way, got, want)
			}
		}
	}
	if got := (scopes.Egress{Send: ways["header"]}).UseOfHeader("X-Key"); got != scopes.HeaderRemoved {
		t.Errorf("the header that carries the credential: got %d", got)
	}
}

// A rule permits the headers that it names, and neither a credential nor another method, whatever it names.
func TestRulesNameHeaders(t *testing.T) {
	rule := scopes.Egress{
		Headers: []string{"sudo", "x-goog-*", "impersonate-*", "authorization", "proxy-*", "x-forwarded-*", "x-http-*", "host"},
		Send:    scopes.Send{As: scopes.SendHeader, Name: "x-goog-key"},
	}
	for want, names := range map[scopes.HeaderUse]string{
		scopes.HeaderForwarded: "Sudo SUDO X-Goog-Copy-Source Impersonate-User Impersonate-Extra-Scopes",
		scopes.HeaderUnnamed:   "Sudo-User X-Goog X-Goog- Ximpersonate-User X-Ms-Copy-Source",
		scopes.HeaderRemoved:   "Authorization Proxy-Authorization X-Forwarded-For Host X-Goog-Api-Key X-Goog-Key X_Goog_Copy_Source X-Goog-Iap-Jwt-Assertion",
		scopes.HeaderForbidden: "X-HTTP-Method-Override",
	} {
		for name := range strings.FieldsSeq(names) {
			if got := rule.UseOfHeader(name); got != want {
				t.Errorf("%s: got %d, want %d", name, got, want)
			}
		}
	}
}
