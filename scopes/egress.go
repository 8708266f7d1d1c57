package scopes

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Egress is a set of calls that a gateway lets pass with a credential: each of the methods, at each of the paths, on each
// of the hosts.
type Egress struct {
	Hosts   []string // lower case; "*." at the beginning is any one label; with a port unless it is 443 or 80
	Methods []string // upper case
	Paths   []string // templates, with * for one segment and ** at the end for any that follow
	Send    Send     // how an egress gateway puts the credential into such a call
	// Databases are those that an egress gateway logs in to on the hosts, with a credential of kind database. Such a rule lets no
	// call pass.
	Databases []string
}

func (e Egress) clone() Egress {
	return Egress{Hosts: slices.Clone(e.Hosts), Methods: slices.Clone(e.Methods), Paths: slices.Clone(e.Paths), Send: e.Send, Databases: slices.Clone(e.Databases)}
}

// Call is an HTTP call as a gateway received it, byte for byte.
type Call struct {
	Method string
	Host   string // of the Host header, with the port if there is one
	Path   string // escaped, as it was sent; what follows a ? is not looked at
}

// Allowed says whether rules let a call pass with a token that was issued for params; and, when they do not, why: in
// words for whoever wrote the call, which repeat nothing of it. Without rules no call passes.
//
// A path is judged as it was sent. What somebody on its way could read as another path is refused and never put right,
// so that a gateway which passes it on unchanged passes on what was judged.
func Allowed(rules []Egress, params map[string]any, call Call) (ok bool, why string) {
	if len(rules) == 0 {
		return false, "the scope has no egress rules, so its tokens pass no gateway"
	}
	host, why := hostOf(call.Host)
	if why != "" {
		return false, why
	}
	segments, why := segmentsOf(call.Path)
	if why != "" {
		return false, why
	}
	var names, methods, paths []string
	for _, rule := range rules {
		names = append(names, rule.Hosts...)
		if !slices.ContainsFunc(rule.Hosts, func(pattern string) bool { return hostMatches(pattern, host) }) {
			continue
		}
		methods = append(methods, rule.Methods...)
		if !slices.Contains(rule.Methods, call.Method) {
			continue
		}
		paths = append(paths, rule.Paths...)
		if slices.ContainsFunc(rule.Paths, func(pattern string) bool { return pathMatches(pattern, params, segments) }) {
			return true, ""
		}
	}
	return false, notAllowed(names, methods, paths)
}

// notAllowed says how far a call came.
func notAllowed(hosts, methods, paths []string) string {
	switch {
	case len(methods) == 0:
		return "no egress rule is for this host; there are some for " + each(hosts)
	case len(paths) == 0:
		return "no egress rule for this host has this method; they have " + each(methods)
	default:
		return "no egress rule for this host and method has this path with the parameters of the token; they have " + each(paths)
	}
}

// maxTold is how many of a list are told.
const maxTold = 8

func each(words []string) string {
	words = slices.Compact(slices.Sorted(slices.Values(words)))
	if more := len(words) - maxTold; more > 0 {
		return strings.Join(words[:maxTold], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(words, ", ")
}

// hostOf returns a Host header in the one spelling that rules are written in.
func hostOf(header string) (host, why string) {
	name, port, found := strings.Cut(strings.ToLower(header), ":")
	if found && !portSyntax.MatchString(port) || refuseDNS(name) != "" {
		return "", "the host is not a DNS name, with a port or without"
	}
	if !found || port == "443" || port == "80" {
		return name, ""
	}
	return name + ":" + port, ""
}

func hostMatches(pattern, host string) bool {
	below, wild := strings.CutPrefix(pattern, "*.")
	if !wild {
		return pattern == host
	}
	_, parent, found := strings.Cut(host, ".")
	return found && parent == below
}

// pathMatches compares segment by segment what the parameters make of a pattern. A value that holds a slash is several
// segments.
func pathMatches(pattern string, params map[string]any, segments []string) bool {
	t, err := parseTemplate(pattern, &egressPlace)
	if err != nil {
		return false
	}
	values, ok := t.values(params)
	if !ok {
		return false
	}
	text, bad := t.render(values)
	if bad != nil {
		return false
	}
	want := strings.Split(strings.TrimPrefix(text, "/"), "/")
	last := len(want) - 1
	if want[last] == "**" && len(segments) > last {
		want, segments = want[:last], segments[:last]
	}
	return slices.EqualFunc(want, segments, func(want, segment string) bool {
		return want == segment || want == "*" && segment != ""
	})
}

// values are those of params that t names, as they are written in a path. They were decided on once, and have been in a
// token or a record since: what could not have been accepted then is no value.
func (t template) values(params map[string]any) (map[string]any, bool) {
	out := maps.Clone(params)
	for _, name := range t.names {
		switch value := params[name].(type) {
		case string:
			if baseline(value) != "" {
				return nil, false
			}
		case bool:
		default:
			n, ok := integral(value)
			if !ok {
				return nil, false
			}
			out[name] = strconv.FormatInt(n, 10)
		}
	}
	return out, true
}
