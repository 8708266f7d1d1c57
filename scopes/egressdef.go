package scopes

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

const (
	maxEgress      = 16 // rules per scope
	maxEgressItems = 32 // hosts, methods or paths per rule
	maxHost        = maxDNSName + len(":65535")
	loginsExample  = "{hosts: ['db.acme.example:5432'], databases: [orders]}"
	egressExample  = "{hosts: [api.github.com], methods: [GET], paths: ['/repos/{repo}/issues']}"
)

var (
	// At least two labels must follow *. because one would be a whole top-level domain.
	hostSyntax     = regexp.MustCompile(`^(\*\.[a-z0-9-]+\.)?[a-z0-9-]+(\.[a-z0-9-]+)*(:[1-9][0-9]{0,4})?$`)
	portSyntax     = regexp.MustCompile(`^[1-9][0-9]{0,4}$`)
	databaseSyntax = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$`)
	methodSyntax   = regexp.MustCompile(`^[A-Z]+(-[A-Z]+)*$`)
)

// refusedMethods act on the connection or the proxy, not on a resource of the server.
var refusedMethods = []string{"CONNECT", "TRACE"}

// egressPlace is a path that calls through a gateway may use.
var egressPlace = place{
	name: "path", literal: regexp.MustCompile(`^[A-Za-z0-9/._~@:+,=*-]*$`), chars: "letters, digits and / . _ ~ @ : + , = - *",
	head: regexp.MustCompile(`^/`), headWhy: "must begin with a slash, such as /repos/{repo}/issues",
	whole: refuseEgressPath,
}

func refuseEgressPath(path string) string {
	segments := strings.Split(strings.TrimPrefix(path, "/"), "/")
	last := len(segments) - 1
	for i, segment := range segments {
		switch {
		case segment == "" && i < last, dotSegment(segment):
			return "has an empty, . or .. segment"
		case segment == "**" && i < last:
			return "has a ** that is not its last segment"
		case strings.Contains(segment, "*") && segment != "*" && segment != "**":
			return "has a * that is not a whole segment"
		}
	}
	return ""
}

func (r *reader) egress(n *yaml.Node, of Scope) []Egress {
	if n == nil {
		return nil
	}
	kind := of.Credential.Kind
	if kind != "" && kind != KindDatabase && !slices.Contains(senders, kind) {
		r.at(n, "egress requires a credential that a call can carry, of kind %s, or a login, of kind database; remove it", either(senders))
		return nil
	}
	items := r.list(n, "egress")
	if n.Kind == yaml.SequenceNode && (len(items) == 0 || len(items) > maxEgress) {
		r.at(n, "egress must list 1 to %d rules, such as %s; without egress, no gateway accepts a token of the scope", maxEgress, egressExample)
		return nil
	}
	var out []Egress
	for i, item := range items {
		what := fmt.Sprintf("egress[%d]", i)
		if kind == KindDatabase {
			out = append(out, r.logins(item, what))
			continue
		}
		fields := r.mapping(item, what, "hosts", "methods", "paths", "send")
		if fields == nil {
			continue
		}
		out = append(out, Egress{
			Hosts:   r.egressItems(item, fields, what+".hosts", r.host),
			Methods: r.egressItems(item, fields, what+".methods", r.method),
			Paths: r.egressItems(item, fields, what+".paths", func(n *yaml.Node, what string) string {
				path, _ := r.template(n, what, &egressPlace, of.Params)
				return path
			}),
			Send: r.send(item, fields["send"], what+".send", of.Credential),
		})
	}
	return out
}

// logins reads an egress rule for databases.
func (r *reader) logins(n *yaml.Node, what string) Egress {
	fields := r.mapping(n, what, "hosts", "databases")
	if fields == nil {
		return Egress{}
	}
	return Egress{
		Hosts: r.egressItems(n, fields, what+".hosts", func(n *yaml.Node, what string) string {
			host := r.host(n, what)
			if host != "" && (!strings.Contains(host, ":") || strings.HasPrefix(host, "*")) {
				r.at(n, "%s %q must be one host name with its port, such as db.acme.example:5432", what, host)
			}
			return host
		}),
		Databases: r.egressItems(n, fields, what+".databases", func(n *yaml.Node, what string) string {
			return r.sendText(n, what, databaseSyntax)
		}),
	}
}

// egressItems reads one list of a rule.
func (r *reader) egressItems(rule *yaml.Node, fields map[string]*yaml.Node, what string, read func(*yaml.Node, string) string) []string {
	_, key, _ := strings.Cut(what, ".")
	n := fields[key]
	if n == nil {
		example := egressExample
		if key == "databases" {
			example = loginsExample
		}
		r.at(rule, "%s is missing; example: %s", what, example)
		return nil
	}
	items := r.list(n, what)
	if n.Kind == yaml.SequenceNode && (len(items) == 0 || len(items) > maxEgressItems) {
		r.at(n, "%s must list 1 to %d items", what, maxEgressItems)
		return nil
	}
	var out []string
	for i, item := range items {
		text := read(item, fmt.Sprintf("%s[%d]", what, i))
		if slices.Contains(out, text) {
			r.at(item, "%s: %q is listed twice", what, text)
		}
		out = append(out, text)
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

func (r *reader) method(n *yaml.Node, what string) string {
	text, ok := r.text(n, what)
	if ok && (!methodSyntax.MatchString(text) || slices.Contains(refusedMethods, text)) {
		r.at(n, "%s %q must be a method in upper case, such as GET, and not %s", what, text, either(refusedMethods))
	}
	return text
}
