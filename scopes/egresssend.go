package scopes

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Send says how an egress gateway puts a credential into a call. The zero value sends a token as a bearer token.
type Send struct {
	As    string // one of the Send constants
	Name  string // of the header, in lower case, or of the key in the query
	User  string // basic: the user's name, which is no secret
	Field string // the member of the credential that is the secret; empty for a JWT
}

// The ways in which a credential goes into a call.
const (
	SendBearer = "bearer" // Authorization: Bearer
	SendBasic  = "basic"  // Authorization: Basic, as the password of a user
	SendHeader = "header" // a header of its own
	SendQuery  = "query"  // a key of the query
)

// sendNeeds are the keys that each way takes, besides as and field.
var sendNeeds = map[string][]string{SendBearer: nil, SendBasic: {"user"}, SendHeader: {"name"}, SendQuery: {"name"}}

const maxSendText = 100

var (
	sendUserSyntax   = regexp.MustCompile(`^[A-Za-z0-9._@+-]{1,100}$`)
	sendHeaderSyntax = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	sendQuerySyntax  = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)
)

// refusedHeaders are about the connection, the body or the sandbox, and not about who calls.
var refusedHeaders = []string{
	"connection", "content-encoding", "content-length", "content-type", "cookie", "expect", "host", "keep-alive", "proxy-authorization",
	"proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
}

// senders are the kinds of which one member can be sent with a call.
var senders = []string{KindJWT, KindVaultToken, KindKV, KindVault}

// words is how it differs from what a rule without send does.
func (s Send) words() string {
	var b strings.Builder
	switch {
	case s == Send{}:
		return ""
	case s.Name != "":
		fmt.Fprintf(&b, " with %s %s", s.As, s.Name)
	case s.User != "":
		fmt.Fprintf(&b, " with %s for %s", s.As, s.User)
	default:
		fmt.Fprintf(&b, " with %s", s.As)
	}
	if s.Field != "" {
		fmt.Fprintf(&b, " of %s", s.Field)
	}
	return b.String()
}

// send reads how one rule sends the credential.
func (r *reader) send(rule, n *yaml.Node, what string, of Credential) Send {
	if n == nil {
		if of.Kind != "" && of.Kind != KindJWT {
			r.at(rule, "%s is missing: it says how a credential of kind %s is sent, such as {as: header, name: x-api-key, field: key}", what, of.Kind)
		}
		return Send{}
	}
	fields := r.mapping(n, what, "as", "name", "user", "field")
	if fields == nil {
		return Send{}
	}
	out := Send{As: r.oneOf(fields["as"], what+".as", SendBearer, SendBasic, SendHeader, SendQuery)}
	for _, key := range []string{"name", "user"} {
		needed := slices.Contains(sendNeeds[out.As], key)
		switch {
		case needed && fields[key] == nil:
			r.at(n, "%s as %s needs %s", what, out.As, key)
		case !needed && fields[key] != nil:
			r.at(fields[key], "%s as %s takes no %s", what, out.As, key)
		}
	}
	out.Name = r.sendName(fields["name"], what+".name", out.As)
	out.User = r.sendText(fields["user"], what+".user", sendUserSyntax)
	out.Field = r.sendText(fields["field"], what+".field", dataKeySyntax)
	switch {
	case of.Kind == KindJWT && out.Field != "":
		r.at(fields["field"], "%s.field is not for kind jwt, whose credential is the token", what)
	case of.Kind == KindJWT && (of.Bind == BindMTLS || of.Bind == BindDPoP):
		r.at(n, "%s is not for a token with bind: %s, which only the holder of its key can send", what, of.Bind)
	case of.Kind != "" && of.Kind != KindJWT && fields["field"] == nil:
		r.at(n, "%s.field is missing: it says which member of the credential is sent", what)
	}
	return out
}

func (r *reader) sendName(n *yaml.Node, what, as string) string {
	if as != SendHeader {
		return r.sendText(n, what, sendQuerySyntax)
	}
	name := r.sendText(n, what, sendHeaderSyntax)
	if slices.Contains(refusedHeaders, name) {
		r.at(n, "%s %q is about the connection or the body, and no credential", what, name)
	}
	return name
}

func (r *reader) sendText(n *yaml.Node, what string, syntax *regexp.Regexp) string {
	if n == nil {
		return ""
	}
	text, ok := r.text(n, what)
	if ok && (len(text) > maxSendText || !syntax.MatchString(text)) {
		r.at(n, "%s %q must match %s, in at most %d bytes", what, text, syntax, maxSendText)
	}
	return text
}

func sendSchema() object {
	field := matching(dataKeySyntax)
	ways := make([]object, 0, len(sendNeeds))
	for _, as := range []string{SendBearer, SendBasic, SendHeader, SendQuery} {
		name := matching(sendQuerySyntax)
		if as == SendHeader {
			name = matching(sendHeaderSyntax)
		}
		name["maxLength"] = maxSendText
		properties := object{"as": object{"const": as}, "field": described("The member of the credential; none for a JWT.", field)}
		for _, key := range sendNeeds[as] {
			properties[key] = object{"name": name, "user": matching(sendUserSyntax)}[key]
		}
		needs := append([]string{"as"}, sendNeeds[as]...)
		ways = append(ways, closed(needs, properties))
	}
	return object{"oneOf": ways}
}
