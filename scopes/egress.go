package scopes

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Egress is a set of calls that a gateway allows with a credential: each of the methods, at each of the paths, on each of
// the hosts.
type Egress struct {
	Hosts   []string // lower case; a leading "*." matches any one label; with a port unless it is 443 or 80
	Methods []string // upper case
	Paths   []string // templates; * matches one segment or one part between colons, and ** at the end matches all remaining segments
	Send    Send     // how an egress gateway puts the credential into a call
	// Headers are request headers that an egress gateway forwards in addition to those that are harmless: names in lower case,
	// or prefixes that end in -*.
	Headers []string
	// Databases are the databases on the hosts that an egress gateway logs in to, with a credential of kind database. A
	// rule with databases allows no HTTP call.
	Databases []string
}

// Send defines how an egress gateway puts a credential into a call. The zero value sends a token as a bearer token. It is also that of a
// scope without a credential.
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

const (
	maxEgress      = 16 // rules per scope
	maxEgressItems = 32 // hosts, methods or paths per rule
	maxSendText    = 100
	maxHost        = maxDNSName + len(":65535")
	loginsExample  = "{hosts: ['db.acme.example:5432'], databases: [orders]}"
	egressExample  = "{hosts: [api.github.com], methods: [GET], paths: ['/repos/{repo}/issues']}"
)

var (
	// At least two labels must follow *. because one would be a whole top-level domain.
	hostSyntax     = regexp.MustCompile(`^(\*\.[a-z0-9-]+\.)?[a-z0-9-]+(\.[a-z0-9-]+)*(:[1-9][0-9]{0,4})?$`)
	databaseSyntax = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$`)
	methodSyntax   = regexp.MustCompile(`^[A-Z]+(-[A-Z]+)*$`)

	sendUserSyntax   = regexp.MustCompile(`^[A-Za-z0-9._@+-]{1,100}$`)
	sendHeaderSyntax = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	sendQuerySyntax  = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)
	ruleHeaderSyntax = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*(-\*)?$`)
	sendAWSSyntax    = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
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
var ofOneMember = []string{KindJWT, KindVaultToken, KindKV, KindVault, KindGitHub}

// gitHubField is the member of a credential of kind github that is the token.
const gitHubField = "token"

// refusedHeaders concern the connection, the body or the sandbox, and do not identify the caller.
var refusedHeaders = []string{
	"connection", "content-encoding", "content-length", "content-type", "cookie", "expect", "host", "keep-alive", "proxy-authorization",
	"proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
}

// senders are the kinds of credentials that a call can carry.
var senders = append(slices.Clone(ofOneMember), KindPKI)

// refusedMethods act on the connection or the proxy, not on a resource of the server.
var refusedMethods = []string{"CONNECT", "TRACE"}

// egressPlace is a path that calls through a gateway may use.
var egressPlace = place{
	name: "path", literal: regexp.MustCompile(`^([A-Za-z0-9/._~@:+,=*-]|%2f)*$`), chars: "letters, digits and / . _ ~ @ : + , = - *, and %2f for an escaped slash",
	head: regexp.MustCompile(`^/`), headWhy: "must begin with a slash, such as /repos/{repo}/issues",
	whole: refuseEgressPath,
}

// EscapedSlash is how a path of an egress rule, and a call, has a slash that separates no segments.
const EscapedSlash = "%2f"

func refuseEgressPath(path string) string {
	segments := strings.Split(strings.TrimPrefix(path, "/"), "/")
	last := len(segments) - 1
	for i, segment := range segments {
		parts := strings.Split(segment, EscapedSlash) // a host may read them as segments
		switch {
		case segment == "" && i < last, len(parts) > 1 && slices.Contains(parts, ""), slices.ContainsFunc(parts, dotSegment):
			return "has an empty, . or .. segment"
		case segment == "**" && i < last:
			return "has a ** that is not its last segment"
		case segment != "**" && slices.ContainsFunc(strings.Split(strings.Join(parts, ":"), ":"), func(part string) bool { return part != "*" && strings.Contains(part, "*") }):
			return "has a * that is not a whole segment, or a whole part between colons or escaped slashes"
		}
	}
	return ""
}

// egress reads the rules of the scope that is the mapping whole.
func (r *reader) egress(whole, n *yaml.Node, scope Scope) []Egress {
	kind, keys := scope.Credential.Kind, []string{"hosts", "methods", "paths", "headers", "send"}
	if n == nil {
		if kind == KindNone {
			r.at(whole, "egress is missing: a scope with a credential of kind none only opens the hosts of its rules; example: [%s]", egressExample)
		}
		return nil
	}
	if kind == KindDatabase {
		keys = []string{"hosts", "databases"}
	} else if kind != "" && kind != KindNone && !slices.Contains(senders, kind) {
		r.at(n, "egress requires a credential that a call can carry, of kind %s, a login, of kind database, or no credential, of kind none; remove it", either(senders))
		return nil
	}
	if scope.Credential.Federated() && scope.Credential.Federation.Exchange.As == "" {
		r.at(n, "egress with federation requires credential.federation.exchange, by which the gateway exchanges the token, such as %s", exchangeWays[0].example)
		return nil
	}
	var out []Egress
	of := "rules, such as " + egressExample + "; without egress, no gateway accepts a token of the scope"
	for i, item := range r.listOf(n, "egress", maxEgress, of) {
		rule := fmt.Sprintf("egress[%d]", i)
		fields := r.mapping(item, rule, keys...)
		if fields == nil {
			continue
		}
		items := func(key string, read func(n *yaml.Node, what string) string) []string {
			n, what := fields[key], rule+"."+key
			if n == nil {
				example := egressExample
				if key == "databases" {
					example = loginsExample
				}
				r.at(item, "%s is missing; example: %s", what, example)
				return nil
			}
			var out []string
			for i, item := range r.listOf(n, what, maxEgressItems, "items") {
				text := read(item, fmt.Sprintf("%s[%d]", what, i))
				if slices.Contains(out, text) {
					r.at(item, "%s: %q is listed twice", what, text)
				}
				out = append(out, text)
			}
			return out
		}
		if kind == KindDatabase {
			out = append(out, Egress{
				Hosts: items("hosts", func(n *yaml.Node, what string) string {
					host := r.host(n, what)
					if host != "" && (!strings.Contains(host, ":") || strings.HasPrefix(host, "*")) {
						r.at(n, "%s %q must be one host name with its port, such as db.acme.example:5432", what, host)
					}
					return host
				}),
				Databases: items("databases", func(n *yaml.Node, what string) string { return r.sendText(n, what, databaseSyntax) }),
			})
			continue
		}
		one := Egress{
			Hosts: items("hosts", r.host),
			Methods: items("methods", func(n *yaml.Node, what string) string {
				text, ok := r.text(n, what)
				if ok && (!methodSyntax.MatchString(text) || slices.Contains(refusedMethods, text)) {
					r.at(n, "%s %q must be a method in upper case, such as GET, and not %s", what, text, either(refusedMethods))
				}
				return text
			}),
			Paths: items("paths", func(n *yaml.Node, what string) string {
				path, _ := r.template(n, what, &egressPlace, scope.Params)
				return path
			}),
			Send: r.send(item, fields["send"], rule+".send", scope.Credential),
		}
		if fields["headers"] != nil {
			one.Headers = items("headers", r.header)
			if one.Send.As == SendHeader && slices.Contains(one.Headers, one.Send.Name) {
				r.at(fields["headers"], "%s.headers lists %q, which the gateway sets to the credential; remove it", rule, one.Send.Name)
			}
		}
		out = append(out, one)
	}
	return out
}

func (r *reader) host(n *yaml.Node, what string) string {
	text, ok := r.text(n, what)
	if !ok {
		return ""
	}
	name, port, _ := strings.Cut(strings.TrimPrefix(text, "*."), ":")
	switch {
	case !hostSyntax.MatchString(text) || refuseDNS(name) != "":
		r.at(n, "%s %q must be a DNS name in lower case, such as api.github.com or api.github.com:8443; a leading *. matches any one label, and at least two labels must follow it", what, text)
	case port == "443" || port == "80":
		r.at(n, "%s %q: omit :%s; a host without a port covers 443 and 80", what, text, port)
	}
	return text
}

// send reads how one rule sends the credential.
func (r *reader) send(rule, n *yaml.Node, what string, of Credential) Send {
	exchange := of.Federation.Exchange.As
	if of.Kind == KindNone {
		if n != nil {
			r.at(n, "%s cannot be used with a credential of kind none: the gateway adds nothing to a call; remove it", what)
		}
		return Send{}
	}
	if n == nil {
		if of.Kind == KindGitHub {
			return Send{As: SendBearer, Field: gitHubField}
		}
		if exchange == ExchangeAWS {
			r.at(rule, "%s is missing: it says for which service the gateway signs a call; example: {as: aws, service: s3, region: eu-central-1}", what)
		}
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
	var names []string
	for _, way := range sendWays {
		names = append(names, way.as)
	}
	as := r.oneOf(fields["as"], what+".as", names...)
	var way sendWay // empty if as is unknown
	if i := slices.Index(names, as); i >= 0 {
		way = sendWays[i]
	}
	for _, key := range []string{"name", "user", "service", "region"} {
		needed := slices.Contains(way.needs, key)
		switch {
		case needed && fields[key] == nil:
			r.at(n, "%s with as: %s requires %s", what, way.as, key)
		case !needed && fields[key] != nil:
			r.at(fields[key], "%s with as: %s does not take %s", what, way.as, key)
		}
	}
	nameSyntax := sendQuerySyntax
	if as == SendHeader {
		nameSyntax = sendHeaderSyntax
	}
	out := Send{
		As:      as,
		Name:    r.sendText(fields["name"], what+".name", nameSyntax),
		User:    r.sendText(fields["user"], what+".user", sendUserSyntax),
		Field:   r.sendText(fields["field"], what+".field", dataKeySyntax),
		Service: r.sendText(fields["service"], what+".service", sendAWSSyntax),
		Region:  r.sendText(fields["region"], what+".region", sendAWSSyntax),
	}
	if as == SendHeader && slices.Contains(refusedHeaders, out.Name) {
		r.at(fields["name"], "%s.name %q concerns the connection or the body and cannot carry a credential", what, out.Name)
	}
	// The way must suit the credential.
	field := fields["field"]
	if of.Kind == KindGitHub && field == nil {
		out.Field = gitHubField
	}
	switch {
	case way.as == "" || of.Kind == "":
	case exchange != "" && !slices.Contains(sendsOfExchange(exchange), as):
		r.at(n, "%s with as: %s cannot send what %s gives for the token; choose %s", what, as, exchange, either(sendsOfExchange(exchange)))
	case exchange == ExchangeAWS && field != nil:
		r.at(field, "%s with as: %s does not take field: it uses fixed members of the credential", what, as)
	case exchange == ExchangeAWS:
	case !slices.Contains(way.kinds, of.Kind):
		r.at(n, "%s with as: %s requires a credential of kind %s", what, as, either(way.kinds))
	case way.whole && field != nil:
		r.at(field, "%s with as: %s does not take field: it uses fixed members of the credential", what, as)
	case of.Kind == KindJWT && out.Field != "":
		r.at(field, "%s.field cannot be used with kind jwt, whose credential is the token itself", what)
	case of.Kind == KindJWT && (of.Bind == BindMTLS || of.Bind == BindDPoP):
		r.at(n, "%s cannot be used for a token with bind: %s, which only the holder of its key can use", what, of.Bind)
	case of.Kind == KindGitHub && out.Field != gitHubField:
		r.at(field, "%s.field %q is not a member of a credential of kind github; remove it", what, out.Field)
	case of.Kind != KindJWT && !way.whole && out.Field == "":
		r.at(n, "%s.field is missing: it names the member of the credential to send", what)
	}
	return out
}

// sendsOfExchange returns the ways to send the result of an exchange.
func sendsOfExchange(exchange string) []string {
	if exchange == ExchangeAWS {
		return []string{SendAWS}
	}
	return []string{SendBearer, SendHeader}
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

// PathPattern is a parsed path of an egress rule.
type PathPattern struct{ template template }

// ParsePathPattern reads a path as an egress rule writes it.
func ParsePathPattern(text string) (PathPattern, error) {
	t, err := parseTemplate(text, &egressPlace)
	return PathPattern{t}, err
}

// Parts returns the names of the parameters and the text around them, which has one item more.
func (p PathPattern) Parts() (literals, names []string) { return p.template.literals, p.template.names }

// Fill writes the parameters into the path. They were checked when the request was decided, and have been in a token or a
// record since then. If a value could not have been accepted then, Fill returns false.
func (p PathPattern) Fill(params map[string]any) (path string, ok bool) {
	values := maps.Clone(params)
	for _, name := range p.template.names {
		switch value := params[name].(type) {
		case string:
			if baseline(value) != "" {
				return "", false
			}
		case bool:
		default:
			n, ok := integral(value)
			if !ok {
				return "", false
			}
			values[name] = n
		}
	}
	path, bad := p.template.render(values)
	return path, bad == nil
}
