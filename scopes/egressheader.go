package scopes

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// HeaderUse is what an egress gateway does with a request header of the sandbox.
type HeaderUse int

// The uses of a request header. The gateway refuses a call rather than remove a header that it does not know: without the header,
// the call could do something else than its author meant. A copy without its source creates an empty object.
const (
	HeaderForwarded HeaderUse = iota + 1 // it is forwarded
	HeaderRemoved                        // it is removed, and the call means the same without it
	HeaderUnnamed                        // the call is refused, because the rule does not name the header
	HeaderForbidden                      // the call is refused, whatever the rule names
)

// UseOfHeader returns what a gateway does with a request header under a rule. The name has any case.
func (e Egress) UseOfHeader(name string) HeaderUse {
	name = strings.ToLower(name)
	switch {
	// Some hosts read an underscore, or another character, as a hyphen. So X_User could stand for X-User, which the gateway removes
	// or sets. Web servers such as nginx remove such headers too.
	case strings.ContainsFunc(name, func(c rune) bool { return c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') }):
		return HeaderRemoved
	case redirectingHeaders.has(name):
		return HeaderForbidden
	case removedHeaders.has(name), e.Send.As == SendHeader && e.Send.Name == name:
		return HeaderRemoved
	case harmlessHeaders.has(name), connectionHeaders.has(name), e.Send.As == SendAWS && awsHeaders.has(name), setOfHeaders(e.Headers).has(name):
		return HeaderForwarded
	default:
		return HeaderUnnamed
	}
}

// headerSet is a set of header names in lower case, and of prefixes of such names that end in -*.
type headerSet struct {
	names    map[string]bool
	prefixes []string // without the *
}

func (s headerSet) has(name string) bool {
	return s.names[name] || slices.ContainsFunc(s.prefixes, func(prefix string) bool { return len(name) > len(prefix) && strings.HasPrefix(name, prefix) })
}

// setOfHeaders reads names and prefixes as egress rules write them.
func setOfHeaders(items []string) headerSet {
	s := headerSet{names: make(map[string]bool, len(items))}
	for _, item := range items {
		if prefix, is := strings.CutSuffix(item, "*"); is {
			s.prefixes = append(s.prefixes, prefix)
		} else {
			s.names[item] = true
		}
	}
	return s
}

var (
	// redirectingHeaders change the method or the target of a call, which egress rules check elsewhere.
	redirectingHeaders = setOfHeaders([]string{"destination", "x-http-method", "x-http-method-override", "x-method-override"})

	// connectionHeaders concern the connection. The gateway's HTTP proxy decides which of them it repeats.
	connectionHeaders = setOfHeaders([]string{"accept-encoding", "connection", "content-length", "te", "upgrade"})

	// removedHeaders are credentials, identities, statements of proxies and connections, and what asks for a form of the response in
	// which the gateway finds no secrets.
	removedHeaders = setOfHeaders(strings.Fields(`
		authorization proxy-* cookie cookie2 x-authorization x-serverless-authorization x-ms-authorization-* x-goog-iam-authorization-token
		api-key apikey x-api-key x-apikey x-goog-api-key dd-api-key dd-application-key x-auth-key
		x-auth-token x-storage-token x-service-token x-access-token x-token private-token job-token deploy-token circle-token
		x-vault-token x-consul-token x-nomad-token x-gitlab-token x-shopify-access-token x-figma-token x-jfrog-art-api x-nuget-apikey
		x-amz-security-token x-amz-s3session-token x-github-otp npm-otp dpop signature signature-input
		remote-user x-remote-* client-cert client-cert-chain x-client-cert x-client-cert-* ssl-client-* x-ssl-* x-amzn-mtls-* x-amzn-oidc-*
		x-ms-client-principal x-ms-client-principal-* x-ms-token-aad-* x-goog-iap-jwt-assertion x-goog-authenticated-user-* cf-access-*
		forwarded x-forwarded x-forwarded-* x-original-* x-rewrite-* x-real-ip x-client-ip true-client-ip cf-connecting-ip x-cluster-client-ip
		x-host x-http-host-override proxy via max-forwards cdn-loop early-data host keep-alive trailer transfer-encoding http2-settings
		baggage accept-charset grpc-accept-encoding connect-accept-encoding`))

	// harmlessHeaders do not change what a call does, to what, or for whom. They are forwarded without being named.
	harmlessHeaders = setOfHeaders(strings.Fields(`
		accept accept-language user-agent dnt sec-gpc priority save-data upgrade-insecure-requests cache-control pragma date
		content-type content-encoding content-language content-disposition content-md5 content-digest repr-digest digest
		want-content-digest want-repr-digest want-digest expect
		if-match if-none-match if-modified-since if-unmodified-since if-range range content-range
		origin referer sec-fetch-* sec-ch-ua sec-ch-ua-* x-requested-with x-atlassian-token kbn-xsrf
		sec-websocket-key sec-websocket-version sec-websocket-extensions last-event-id
		traceparent tracestate b3 x-b3-* uber-trace-id x-cloud-trace-context x-amzn-trace-id sentry-trace elastic-apm-traceparent
		x-datadog-trace-id x-datadog-parent-id x-datadog-sampling-priority x-datadog-origin x-datadog-tags
		x-request-id request-id x-correlation-id correlation-id x-client-request-id client-request-id x-opaque-id
		idempotency-key x-idempotency-key
		x-stainless-* anthropic-version anthropic-beta anthropic-dangerous-direct-browser-access openai-beta x-app x-fern-* x-client-name
		mcp-protocol-version x-github-api-version time-zone graphql-features git-protocol
		npm-auth-type npm-command npm-in-ci npm-scope npm-session pacote-integrity pacote-pkg-id pacote-req-type pacote-version
		x-goog-api-client x-goog-fieldmask x-goog-hash x-goog-if-* x-goog-meta-* x-goog-gcs-idempotency-token x-server-timeout
		x-upload-content-length x-upload-content-type
		x-ms-version x-ms-date x-ms-client-request-id x-ms-return-client-request-id x-ms-useragent x-ms-meta-* x-ms-range
		x-elastic-client-meta x-vault-request x-terraform-version cargo-protocol x-gemfile-source kubectl-command kubectl-session stripe-version x-stripe-client-* notion-version
		grpc-encoding grpc-timeout x-grpc-web x-user-agent connect-content-encoding connect-protocol-version connect-timeout-ms`))

	// awsHeaders are forwarded too if the gateway signs the call. Where X-Amz-Target names the action, the rule's path does not: the
	// key's policy in AWS must.
	awsHeaders = setOfHeaders(strings.Fields(`
		amz-sdk-invocation-id amz-sdk-request amz-sdk-retry smithy-protocol x-amz-api-version x-amz-checksum-* x-amz-content-sha256 x-amz-date
		x-amz-decoded-content-length x-amz-expected-bucket-owner x-amz-glacier-version x-amz-max-parts x-amz-meta-* x-amz-mp-object-size
		x-amz-object-attributes x-amz-optional-object-attributes x-amz-part-number-marker x-amz-sdk-checksum-algorithm x-amz-target
		x-amz-te x-amz-trailer x-amz-user-agent x-amzn-query-mode`))
)

// anyVendor would cover the headers by which most hosts change what a call does.
const anyVendor = "x-*"

// header reads a name or a prefix in headers of a rule.
func (r *reader) header(n *yaml.Node, what string) string {
	text, ok := r.text(n, what)
	if !ok {
		return ""
	}
	name, isPrefix := strings.CutSuffix(text, "*")
	// A prefix can have a wider one among the headers that are never forwarded.
	never := func(s headerSet) bool { return s.has(name) || isPrefix && slices.Contains(s.prefixes, name) }
	switch {
	case len(text) > maxSendText:
		r.at(n, "%s %q is longer than %d bytes", what, text, maxSendText)
	case !ruleHeaderSyntax.MatchString(text):
		r.at(n, "%s %q must be the name of a header in lower case, with letters, digits and hyphens only, such as x-goog-copy-source, or the beginning of names, such as x-goog-meta-*", what, text)
	case text == anyVendor:
		r.at(n, "%s %q covers most headers of every host; name those that are meant, such as x-goog-copy-source or x-goog-*", what, text)
	case never(redirectingHeaders):
		r.at(n, "%s %q changes the method or the target of a call; use methods and paths", what, text)
	case never(removedHeaders):
		r.at(n, "%s %q carries a credential or an identity, or is for proxies and connections, and no gateway forwards it; send says how the credential is sent", what, text)
	case never(connectionHeaders):
		r.at(n, "%s %q concerns the connection, and cannot be named", what, text)
	}
	return text
}
