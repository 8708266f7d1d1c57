package scopes

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Router finds the parameters of the credential that a call needs. It is safe for concurrent use.
type Router struct {
	rules  []Egress
	params map[string]Param
	paths  map[string]*regexp.Regexp // by path template
}

// Route is a rule that allows a call: the path of the rule that matches and the parameters with which it matches.
type Route struct {
	Path   string
	Send   Send
	Params map[string]any
}

// NewRouter takes the egress rules and the parameters of one scope. It returns an error if the two are not from one
// catalogue.
func NewRouter(rules []Egress, params map[string]Param) (*Router, error) {
	r := &Router{rules: rules, params: params, paths: map[string]*regexp.Regexp{}}
	for _, rule := range rules {
		for _, path := range rule.Paths {
			t, err := parseTemplate(path, &egressPlace)
			if err != nil {
				return nil, fmt.Errorf("reading an egress path: it %w", err)
			}
			if r.paths[path], err = regexp.Compile(t.reader(params)); err != nil {
				return nil, fmt.Errorf("reading an egress path: %w", err)
			}
		}
	}
	return r, nil
}

// Covers reports whether any rule is for the host of a call.
func (r *Router) Covers(call Call) bool {
	host, why := hostOf(call.Host)
	return why == "" && slices.ContainsFunc(r.rules, func(rule Egress) bool { return rule.covers(host) })
}

func (e Egress) covers(host string) bool {
	return slices.ContainsFunc(e.Hosts, func(pattern string) bool { return hostMatches(pattern, host) })
}

// Find returns the first rule that allows a call. Its parameters are those in the path and those in given; the path
// cannot change the latter. If no rule allows the call, why says why, as Allowed would, or which parameter has no value.
//
// Find checks its result with Allowed: a path that can be read in two ways allows no more than either reading.
func (r *Router) Find(call Call, given map[string]any) (route Route, why string) {
	host, noHost := hostOf(call.Host)
	segments, noPath := segmentsOf(call.Path)
	path := "/" + strings.Join(segments, "/")
	for _, rule := range r.rules {
		if noHost != "" || noPath != "" || !rule.covers(host) || !slices.Contains(rule.Methods, call.Method) {
			continue
		}
		for _, pattern := range rule.Paths {
			params, missing := r.read(pattern, path, given)
			if missing != "" {
				why = "the path does not contain the parameter " + missing + ", so the operator of the gateway must set it"
				continue
			}
			one := Egress{Hosts: rule.Hosts, Methods: rule.Methods, Paths: []string{pattern}}
			if params == nil {
				continue
			}
			if ok, _ := Allowed([]Egress{one}, params, call); ok {
				return Route{Path: pattern, Send: rule.Send, Params: params}, ""
			}
		}
	}
	if why == "" {
		_, why = Allowed(r.rules, given, call)
	}
	return Route{}, why
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
		if p, known := r.params[name]; ours && known {
			params[name] = p.typed(found[i])
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

// typed converts text from a path to the parameter's type.
func (p Param) typed(text string) any {
	switch p.Type {
	case ParamInt:
		return json.Number(text)
	case ParamBool:
		return text == "true"
	case ParamString, ParamEnum:
	}
	return text
}

// captured is the prefix of group names, so a group in an admin's pattern is not mistaken for a parameter.
const captured = "brevet_"

// reader returns an expression that matches whatever a path template can render to, with one group per parameter.
func (t template) reader(params map[string]Param) string {
	var b strings.Builder
	b.WriteString("^(?s:")
	for i, name := range t.names {
		b.WriteString(segmentReader(t.literals[i]))
		group := "(?P<" + captured + name + ">"
		if slices.Contains(t.names[:i], name) {
			group = "(?:"
		}
		b.WriteString(group + params[name].expression() + ")")
	}
	last, deep := strings.CutSuffix(t.literals[len(t.names)], "**")
	b.WriteString(segmentReader(last))
	if deep {
		b.WriteString(".*")
	}
	b.WriteString(")$")
	return b.String()
}

func segmentReader(literal string) string {
	return strings.ReplaceAll(regexp.QuoteMeta(literal), `\*`, "[^/]+")
}

// expression matches every value of the parameter as a path writes it. It may match other text too.
func (p Param) expression() string {
	switch p.Type {
	case ParamString:
		return "(?:" + p.Pattern + ")"
	case ParamEnum:
		quoted := make([]string, len(p.Values))
		for i, value := range p.Values {
			quoted[i] = regexp.QuoteMeta(value)
		}
		return "(?:" + strings.Join(quoted, "|") + ")"
	case ParamInt:
		return "-?[0-9]{1," + strconv.Itoa(len("9007199254740992")) + "}"
	case ParamBool:
		return "true|false"
	}
	return "[^/]+"
}
