package scopes

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Send defines how an egress gateway puts a credential into a call. The zero value sends a token as a bearer token.
type Send struct {
	As      string // one of the Send constants
	Name    string // the header's name, in lower case, or the key of the query
	User    string // basic: the user name, which is not secret
	Field   string // the member of the credential that is the secret; empty for a JWT, and if As implies the members
	Service string // aws: the service that a call is signed for, such as s3
	Region  string // aws: the region of that service
}

// The ways to put a credential into a call.
const (
	SendBearer      = "bearer"      // Authorization: Bearer
	SendBasic       = "basic"       // Authorization: Basic, as the password of a user
	SendHeader      = "header"      // a separate header
	SendQuery       = "query"       // a key of the query
	SendAWS         = "aws"         // AWS Signature Version 4 by the members access_key, secret_key and optionally session_token
	SendCertificate = "certificate" // the client certificate of the connection, from the members certificate and private_key
)

// sendWay is one way as a catalogue writes it.
type sendWay struct {
	as    string
	needs []string // its keys, in addition to as and field
	whole bool     // it uses several members with fixed names, so it takes no field
	kinds []string // the kinds of credentials that it supports
}

// sendWays is in the order in which messages list the ways.
var sendWays = []sendWay{
	{SendBearer, nil, false, ofOneMember},
	{SendBasic, []string{"user"}, false, ofOneMember},
	{SendHeader, []string{"name"}, false, ofOneMember},
	{SendQuery, []string{"name"}, false, ofOneMember},
	{SendAWS, []string{"service", "region"}, true, []string{KindKV, KindVault}},
	{SendCertificate, nil, true, []string{KindPKI, KindKV, KindVault}},
}

// ofOneMember are the kinds of credentials that can be sent as one member.
var ofOneMember = []string{KindJWT, KindVaultToken, KindKV, KindVault}

func wayOf(as string) sendWay {
	i := slices.IndexFunc(sendWays, func(way sendWay) bool { return way.as == as })
	if i < 0 {
		return sendWay{}
	}
	return sendWays[i]
}

func sendNames() []string {
	var names []string
	for _, way := range sendWays {
		names = append(names, way.as)
	}
	return names
}

const maxSendText = 100

var (
	sendUserSyntax   = regexp.MustCompile(`^[A-Za-z0-9._@+-]{1,100}$`)
	sendHeaderSyntax = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	sendQuerySyntax  = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)
	sendAWSSyntax    = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
)

// refusedHeaders concern the connection, the body or the sandbox, and do not identify the caller.
var refusedHeaders = []string{
	"connection", "content-encoding", "content-length", "content-type", "cookie", "expect", "host", "keep-alive", "proxy-authorization",
	"proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
}

// senders are the kinds of credentials that a call can carry.
var senders = append(slices.Clone(ofOneMember), KindPKI)

// words describes how s differs from a rule without send.
func (s Send) words() string {
	var b strings.Builder
	switch {
	case s == Send{}:
		return ""
	case s.Name != "":
		fmt.Fprintf(&b, " with %s %s", s.As, s.Name)
	case s.User != "":
		fmt.Fprintf(&b, " with %s for %s", s.As, s.User)
	case s.Service != "":
		fmt.Fprintf(&b, " with %s for %s in %s", s.As, s.Service, s.Region)
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
			example := "{as: header, name: x-api-key, field: key}"
			if of.Kind == KindPKI {
				example = "{as: certificate}"
			}
			r.at(rule, "%s is missing: it defines how a credential of kind %s is sent; example: %s", what, of.Kind, example)
		}
		return Send{}
	}
	fields := r.mapping(n, what, "as", "name", "user", "field", "service", "region")
	if fields == nil {
		return Send{}
	}
	out := Send{As: r.oneOf(fields["as"], what+".as", sendNames()...)}
	r.sendKeys(n, fields, what, wayOf(out.As))
	out.Name = r.sendName(fields["name"], what+".name", out.As)
	out.User = r.sendText(fields["user"], what+".user", sendUserSyntax)
	out.Field = r.sendText(fields["field"], what+".field", dataKeySyntax)
	out.Service = r.sendText(fields["service"], what+".service", sendAWSSyntax)
	out.Region = r.sendText(fields["region"], what+".region", sendAWSSyntax)
	r.sendOf(n, fields["field"], what, sending{out, of})
	return out
}

// sendKeys reports keys that the way does not take, and keys that it needs but lacks.
func (r *reader) sendKeys(n *yaml.Node, fields map[string]*yaml.Node, what string, way sendWay) {
	for _, key := range []string{"name", "user", "service", "region"} {
		needed := slices.Contains(way.needs, key)
		switch {
		case needed && fields[key] == nil:
			r.at(n, "%s with as: %s requires %s", what, way.as, key)
		case !needed && fields[key] != nil:
			r.at(fields[key], "%s with as: %s does not take %s", what, way.as, key)
		}
	}
}

// sending is a credential with the way it is sent.
type sending struct {
	send Send
	of   Credential
}

// sendOf checks that the way suits the credential.
func (r *reader) sendOf(n, field *yaml.Node, what string, s sending) {
	way := wayOf(s.send.As)
	switch {
	case way.as == "" || s.of.Kind == "":
	case !slices.Contains(way.kinds, s.of.Kind):
		r.at(n, "%s with as: %s requires a credential of kind %s", what, way.as, either(way.kinds))
	case way.whole && field != nil:
		r.at(field, "%s with as: %s does not take field: it uses fixed members of the credential", what, way.as)
	case s.of.Kind == KindJWT && s.send.Field != "":
		r.at(field, "%s.field cannot be used with kind jwt, whose credential is the token itself", what)
	case s.of.Kind == KindJWT && (s.of.Bind == BindMTLS || s.of.Bind == BindDPoP):
		r.at(n, "%s cannot be used for a token with bind: %s, which only the holder of its key can use", what, s.of.Bind)
	case s.of.Kind != KindJWT && !way.whole && field == nil:
		r.at(n, "%s.field is missing: it names the member of the credential to send", what)
	}
}

func (r *reader) sendName(n *yaml.Node, what, as string) string {
	if as != SendHeader {
		return r.sendText(n, what, sendQuerySyntax)
	}
	name := r.sendText(n, what, sendHeaderSyntax)
	if slices.Contains(refusedHeaders, name) {
		r.at(n, "%s %q concerns the connection or the body and cannot carry a credential", what, name)
	}
	return name
}

func (r *reader) sendText(n *yaml.Node, what string, syntax *regexp.Regexp) string {
	if n == nil {
		return ""
	}
	text, ok := r.text(n, what)
	switch {
	case !ok:
	case !syntax.MatchString(text):
		r.at(n, "%s %q must match %s", what, text, syntax)
	case len(text) > maxSendText:
		r.at(n, "%s %q is longer than %d bytes", what, text, maxSendText)
	}
	return text
}

func sendSchema() object {
	var ways []object
	for _, way := range sendWays {
		name := matching(sendQuerySyntax)
		if way.as == SendHeader {
			name = matching(sendHeaderSyntax)
		}
		name["maxLength"] = maxSendText
		properties := object{"as": object{"const": way.as}}
		if !way.whole {
			properties["field"] = described("The member of the credential to send. Not for a JWT.", matching(dataKeySyntax))
		}
		for _, key := range way.needs {
			properties[key] = object{
				"name": name, "user": matching(sendUserSyntax),
				"service": described("The AWS service that calls are signed for, such as s3.", matching(sendAWSSyntax)),
				"region":  described("The AWS region of the service, such as eu-central-1.", matching(sendAWSSyntax)),
			}[key]
		}
		ways = append(ways, closed(append([]string{"as"}, way.needs...), properties))
	}
	return object{"oneOf": ways}
}
