package egressrule

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/brevet-dev/brevet/scopes"
)

// Router finds the parameters of the credential that a call needs. It is safe for concurrent use.
type Router struct {
	rules  []scopes.Egress
	params map[string]scopes.Param
	paths  map[string]*regexp.Regexp // by path template
}

// Route is a rule that allows a call: the path of the rule that matches and the parameters with which it matches.
type Route struct {
	Path    string
	Send    scopes.Send
	Headers []string // the request headers that the rule names
	Params  map[string]any
	// Unnamed are the headers of the call that the rule does not allow, in lower case. They are the only reason not to use the
	// route.
	Unnamed []string
}

// Forwards reports whether a call on the route may have a request header, and the gateway forwards it.
func (r Route) Forwards(header string) bool {
	return scopes.Egress{Send: r.Send, Headers: r.Headers}.UseOfHeader(header) == scopes.HeaderForwarded
}

// Unusual returns the headers of a call that not every route allows, sorted and in lower case.
func Unusual(headers map[string][]string) []string {
	var out []string
	for name := range headers {
		if use := (scopes.Egress{}).UseOfHeader(name); use == scopes.HeaderUnnamed || use == scopes.HeaderForbidden {
			out = append(out, strings.ToLower(name))
		}
	}
	slices.Sort(out)
	return out
}

// NewRouter takes the egress rules and the parameters of one scope. It returns an error if the two are not from one
// catalogue.
func NewRouter(rules []scopes.Egress, params map[string]scopes.Param) (*Router, error) {
	r := &Router{rules: rules, params: params, paths: map[string]*regexp.Regexp{}}
	for _, rule := range rules {
		for _, path := range rule.Paths {
			pattern, err := scopes.ParsePathPattern(path)
			if err != nil {
				return nil, fmt.Errorf("reading an egress path: it %w", err)
			}
			if r.paths[path], err = regexp.Compile(reader(pattern, params)); err != nil {
				return nil, fmt.Errorf("reading an egress path: %w", err)
			}
		}
	}
	return r, nil
}

// Covers reports whether any rule is for the host of a call.
func (r *Router) Covers(call Call) bool {
	host, why := hostOf(call.Host)
	return why == "" && slices.ContainsFunc(r.rules, func(rule scopes.Egress) bool { return covers(rule, host) })
}

// Find returns the first rule that allows a call with these unusual headers. Its parameters are those in the path and those in
// given; the path cannot change the latter. If no rule allows the call, why says why, as Allowed would, or which parameter has no
// value. If only the headers are in the way, route is the first one that allows the call without those in Unnamed.
//
// Find checks its result with Allowed: a path that can be read in two ways allows no more than either reading.
func (r *Router) Find(call Call, unusual []string, given map[string]any) (route Route, why string) {
	host, noHost := hostOf(call.Host)
	segments, noPath := segmentsOf(call.Path)
	path := "/" + strings.Join(segments, "/")
	for _, rule := range r.rules {
		if noHost != "" || noPath != "" || !covers(rule, host) || !slices.Contains(rule.Methods, call.Method) {
			continue
		}
		for _, pattern := range rule.Paths {
			params, missing := r.read(pattern, path, given)
			if missing != "" {
				why = "the path does not contain the parameter " + missing + ", so the operator of the gateway must set it"
				continue
			}
			if params == nil {
				continue
			}
			one := scopes.Egress{Hosts: rule.Hosts, Methods: rule.Methods, Paths: []string{pattern}}
			if ok, _ := Allowed([]scopes.Egress{one}, params, call); !ok {
				continue
			}
			found := Route{Path: pattern, Send: rule.Send, Headers: rule.Headers, Params: params, Unnamed: refused(rule, unusual)}
			if len(found.Unnamed) == 0 {
				return found, ""
			}
			if route.Path == "" {
				route = found
			}
		}
	}
	if route.Path != "" {
		return route, headersWhy(route)
	}
	if why == "" {
		_, why = Allowed(r.rules, given, call)
	}
	return Route{}, why
}

// refused returns the headers with which a rule does not allow a call.
func refused(rule scopes.Egress, unusual []string) []string {
	var out []string
	for _, name := range unusual {
		if use := rule.UseOfHeader(name); use == scopes.HeaderUnnamed || use == scopes.HeaderForbidden {
			out = append(out, name)
		}
	}
	return out
}

// headersWhy explains which headers are in the way. Their names have letters, digits and hyphens only.
func headersWhy(route Route) string {
	const maxName = 64
	var unnamed, forbidden []string
	for _, name := range route.Unnamed {
		text := name
		if len(text) > maxName {
			text = text[:maxName] + "..."
		}
		if (scopes.Egress{}).UseOfHeader(name) == scopes.HeaderForbidden {
			forbidden = append(forbidden, text)
		} else {
			unnamed = append(unnamed, text)
		}
	}
	if len(forbidden) > 0 {
		return "a request header changes the method or the target of the call, and no rule can allow that: " + each(forbidden) +
			"; send the call itself with that method and target"
	}
	return "the egress rule for " + route.Path + " does not name a request header that can change what a call does or for whom: " + each(unnamed) +
		"; send the call without it, or ask an admin to add it to 'headers' of the rule"
}

// read extracts the parameters from a path. It returns nil if the pattern does not match, and the name of a parameter
// that has no value.
func (r *Router) read(pattern, path string, given map[string]any) (params map[string]any, missing string) {
	re := r.paths[pattern]
	found := re.FindStringSubmatch(path)
	if found == nil {
		return nil, ""
	}
	params = map[string]any{}
	for i, name := range re.SubexpNames() {
		name, ours := strings.CutPrefix(name, captured)
		p, known := r.params[name]
		if !ours || !known {
			continue
		}
		switch p.Type {
		case scopes.ParamInt:
			params[name] = json.Number(found[i])
		case scopes.ParamBool:
			params[name] = found[i] == "true"
		default:
			params[name] = found[i]
		}
	}
	maps.Copy(params, given)
	for _, name := range slices.Sorted(maps.Keys(r.params)) {
		if _, said := params[name]; said {
			continue
		}
		if only := r.params[name].Values; len(only) == 1 {
			params[name] = only[0]
			continue
		}
		missing = name
	}
	return params, missing
}

// captured is the prefix of group names, so a group in an admin's pattern is not mistaken for a parameter.
const captured = "brevet_"

// reader returns an expression that matches whatever a path template can render to, with one group per parameter.
func reader(pattern scopes.PathPattern, params map[string]scopes.Param) string {
	literals, names := pattern.Parts()
	var b strings.Builder
	b.WriteString("^(?s:")
	for i, name := range names {
		b.WriteString(literalReader(literals[i]))
		group := "(?P<" + captured + name + ">"
		if slices.Contains(names[:i], name) {
			group = "(?:"
		}
		b.WriteString(group + expression(params[name]) + ")")
	}
	last, deep := strings.CutSuffix(literals[len(names)], "**")
	b.WriteString(literalReader(last))
	if deep {
		b.WriteString(".*")
	}
	b.WriteString(")$")
	return b.String()
}

func literalReader(literal string) string {
	return strings.ReplaceAll(regexp.QuoteMeta(literal), `\*`, "[^/:]+")
}

// expression matches every value of the parameter as a path writes it. It may match other text too.
func expression(p scopes.Param) string {
	switch p.Type {
	case scopes.ParamString:
		return "(?:" + p.Pattern + ")"
	case scopes.ParamEnum:
		quoted := make([]string, len(p.Values))
		for i, value := range p.Values {
			quoted[i] = regexp.QuoteMeta(value)
		}
		return "(?:" + strings.Join(quoted, "|") + ")"
	case scopes.ParamInt:
		return "-?[0-9]{1," + strconv.Itoa(len("9007199254740992")) + "}"
	case scopes.ParamBool:
		return "true|false"
	}
	return "[^/]+"
}
