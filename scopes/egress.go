package scopes

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Egress is a set of calls that a gateway allows with a credential: each of the methods, at each of the paths, on each of
// the hosts.
type Egress struct {
	Hosts   []string // lower case; a leading "*." matches any one label; with a port unless it is 443 or 80
	Methods []string // upper case
	Paths   []string // templates; * matches one segment, and ** at the end matches all remaining ones
	Send    Send     // how an egress gateway puts the credential into a call
	// Databases are the databases on the hosts that an egress gateway logs in to, with a credential of kind database. A
	// rule with databases allows no HTTP call.
	Databases []string
}

func (e Egress) clone() Egress {
	return Egress{Hosts: slices.Clone(e.Hosts), Methods: slices.Clone(e.Methods), Paths: slices.Clone(e.Paths), Send: e.Send, Databases: slices.Clone(e.Databases)}
}

// Call is an HTTP call as a gateway received it, byte for byte.
type Call struct {
	Method string
	Host   string // of the Host header, with the port if there is one
	Path   string // escaped, as it was sent; everything after a ? is ignored
}

// Allowed reports whether the rules allow a call with a token that was issued for params. If not, why explains the
// refusal to the author of the call, without repeating any part of the call. Without rules no call is allowed.
//
// A path is checked exactly as it was sent. A path that some server could interpret as another one is refused, never
// normalised. So a gateway that forwards the path unchanged forwards what was checked.
func Allowed(rules []Egress, params map[string]any, call Call) (ok bool, why string) {
	if len(rules) == 0 {
		return false, "the scope has no egress rules, so no gateway accepts its tokens"
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

// notAllowed explains which part of the call no rule matched.
func notAllowed(hosts, methods, paths []string) string {
	switch {
	case len(methods) == 0:
		return "no egress rule covers this host; the rules cover " + each(hosts)
	case len(paths) == 0:
		return "no egress rule for this host allows this method; the rules allow " + each(methods)
	default:
		return "no egress rule for this host and method matches this path with the parameters of the token; the rules allow " + each(paths)
	}
}

// maxTold is the most items of a list that a message names.
const maxTold = 8

func each(words []string) string {
	words = slices.Compact(slices.Sorted(slices.Values(words)))
	if more := len(words) - maxTold; more > 0 {
		return strings.Join(words[:maxTold], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(words, ", ")
}

// hostOf normalises a Host header to the spelling that rules use.
func hostOf(header string) (host, why string) {
	name, port, found := strings.Cut(strings.ToLower(header), ":")
	if found && !portSyntax.MatchString(port) || refuseDNS(name) != "" {
		return "", "the host is not a DNS name with an optional port"
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

// pathMatches fills the parameters into a pattern and compares it with the path segment by segment. A value that contains
// a slash spans several segments.
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

// values returns a copy of params in which the parameters that t names are written as in a path. The values were checked
// when the request was decided, and have been in a token or a record since then. If a value could not have been accepted
// then, values returns false.
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
