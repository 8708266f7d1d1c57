package scopes

import (
	"fmt"
	"regexp"
	"slices"

	"go.yaml.in/yaml/v4"
)

// params reads the parameters of a scope and compiles their patterns.
func (r *reader) params(n *yaml.Node, patterns map[string]*regexp.Regexp) map[string]Param {
	out := map[string]Param{}
	if n == nil {
		return out
	}
	entries := r.entries(n, "params")
	if len(entries) > maxParams {
		r.at(n, "params: %d are too many; at most %d", len(entries), maxParams)
		return out
	}
	total := 0
	for name, def := range entries {
		if !paramSyntax.MatchString(name) || slices.Contains(cedarWords, name) {
			r.at(def, "parameter name %q must be lower-case letters, digits and _, at most 50, and not a reserved word of Cedar", name)
			continue
		}
		p, pattern := r.param(def, "params."+name)
		if pattern != nil {
			patterns[name] = pattern
		}
		out[name] = p
		total += len(name) + p.widest()
	}
	if total > maxParamBytes {
		r.at(n, "params: the longest values add up to %d bytes, and a request may have %d; lower max_length", total, maxParamBytes)
	}
	return out
}

// paramKeys lists the required keys of each type and its optional ones.
var paramKeys = map[ParamType]struct{ needs, may []string }{
	ParamString: {needs: []string{"pattern"}, may: []string{"max_length"}},
	ParamEnum:   {needs: []string{"values"}},
	ParamInt:    {needs: []string{"min", "max"}},
	ParamBool:   {},
}

func (r *reader) param(n *yaml.Node, what string) (Param, *regexp.Regexp) {
	fields := r.entries(n, what)
	if fields == nil {
		return Param{}, nil
	}
	if fields["type"] == nil {
		r.at(n, "%s: type is missing; choose string, enum, int or bool", what)
		return Param{}, nil
	}
	kind, ok := r.text(fields["type"], what+".type")
	if !ok {
		return Param{}, nil
	}
	keys, known := paramKeys[ParamType(kind)]
	if !known {
		r.at(fields["type"], "%s: type %q is unknown; choose string, enum, int or bool", what, kind)
		return Param{}, nil
	}
	r.mapping(n, what, slices.Concat([]string{"type"}, keys.needs, keys.may)...)
	for _, key := range keys.needs {
		if fields[key] == nil {
			r.at(n, "%s: %s is missing; a parameter of type %s needs it", what, key, kind)
			return Param{}, nil
		}
	}
	return r.typed(ParamType(kind), fields, what)
}

func (r *reader) typed(kind ParamType, fields map[string]*yaml.Node, what string) (Param, *regexp.Regexp) {
	p := Param{Type: kind}
	switch kind {
	case ParamString:
		p.MaxLength = defaultParamLength
		if n, ok := r.integer(fields["max_length"], what+".max_length", 1, maxParamLength); ok {
			p.MaxLength = int(n)
		}
		var pattern *regexp.Regexp
		p.Pattern, pattern = r.pattern(fields["pattern"], what+".pattern")
		return p, pattern
	case ParamEnum:
		p.Values = r.values(fields["values"], what+".values")
	case ParamInt:
		lo, okMin := r.integer(fields["min"], what+".min", -maxSafeInt, maxSafeInt)
		hi, okMax := r.integer(fields["max"], what+".max", -maxSafeInt, maxSafeInt)
		if okMin && okMax && lo > hi {
			r.at(fields["min"], "%s: min is greater than max", what)
		}
		p.Min, p.Max = lo, hi
	case ParamBool:
	}
	return p, nil
}

// pattern compiles the expression by itself before anchoring it. Otherwise a stray ) would close the anchoring group, and
// what follows it would not be anchored.
func (r *reader) pattern(n *yaml.Node, what string) (string, *regexp.Regexp) {
	text, ok := r.text(n, what)
	if !ok {
		return "", nil
	}
	if text == "" || len(text) > maxPattern {
		r.at(n, "%s must be 1 to %d bytes long", what, maxPattern)
		return text, nil
	}
	if _, err := regexp.Compile(text); err != nil {
		r.at(n, "%s is not an RE2 expression: %v", what, err)
		return text, nil
	}
	anchored, err := regexp.Compile(`^(?:` + text + `)$`)
	if err != nil {
		r.at(n, "%s cannot be anchored: %v", what, err)
		return text, nil
	}
	return text, anchored
}

func (r *reader) values(n *yaml.Node, what string) []string {
	var out []string
	items := r.list(n, what)
	if n.Kind == yaml.SequenceNode && (len(items) == 0 || len(items) > maxValues) {
		r.at(n, "%s must list 1 to %d values", what, maxValues)
		return nil
	}
	for i, item := range items {
		text, ok := r.text(item, fmt.Sprintf("%s[%d]", what, i))
		if !ok {
			continue
		}
		if why := baseline(text); why != "" {
			r.at(item, "%s: %q %s", what, text, why)
		}
		if len(text) > maxParamLength {
			r.at(item, "%s: a value is longer than %d bytes", what, maxParamLength)
		}
		if slices.Contains(out, text) {
			r.at(item, "%s: %q is listed twice", what, text)
		}
		out = append(out, text)
	}
	return out
}
