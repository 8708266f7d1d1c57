package scopes

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
)

// maxTemplate is the maximum length of a template and of its rendered text, in bytes.
const maxTemplate = 1000

// place is where a template is used. It determines what the template may contain.
type place struct {
	name    string         // its name in messages
	literal *regexp.Regexp // the text between the parameters
	chars   string         // literal in words
	head    *regexp.Regexp // the text before the first parameter; nil for any
	headWhy string         // the message if head does not match
	value   *regexp.Regexp // each value, in addition to its type's rules; nil for any
	// whole returns why a fully rendered text is refused, or "".
	whole func(string) string
}

// template is a parsed text: literal, name, literal, name ... literal. Rendering is injective: requests with different
// values never render to the same text, so a request cannot get past a rule that was written for another one.
type template struct {
	at       *place
	literals []string // one more than names
	names    []string
}

// parseTemplate accepts {param} and nothing else in braces. It rejects what other systems would read as their own
// templates ({{identity...}}, ${env}) (H58).
func parseTemplate(s string, at *place) (template, error) {
	t := template{at: at}
	rest := s
	for {
		literal, after, found := strings.Cut(rest, "{")
		if !at.literal.MatchString(literal) {
			return t, fmt.Errorf("may contain only {param} and %s", at.chars)
		}
		t.literals = append(t.literals, literal)
		if !found {
			return t, t.check()
		}
		name, after, closed := strings.Cut(after, "}")
		if !closed {
			return t, fmt.Errorf("has a { without a }")
		}
		if !paramSyntax.MatchString(name) {
			return t, fmt.Errorf("has {%s}, but braces may contain only the name of a parameter", name)
		}
		t.names = append(t.names, name)
		rest = after
	}
}

func (t template) check() error {
	if t.at.head != nil && !t.at.head.MatchString(t.literals[0]) {
		return fmt.Errorf("%s", t.at.headWhy)
	}
	for i := 1; i < len(t.names); i++ {
		if t.literals[i] == "" {
			return fmt.Errorf("has {%s}{%s} with nothing between them; put a separator between them", t.names[i-1], t.names[i])
		}
	}
	sample := strings.Join(t.literals, "x")
	if len(sample) > maxTemplate {
		return fmt.Errorf("is longer than %d bytes", maxTemplate)
	}
	if why := t.at.whole(sample); why != "" {
		return fmt.Errorf("%s", why)
	}
	return nil
}

// render fills in the values, which must have passed the baseline check in params.go.
func (t template) render(values map[string]any) (string, *InvalidAsk) {
	var b strings.Builder
	b.WriteString(t.literals[0])
	for i, name := range t.names {
		value, next := fmt.Sprint(values[name]), t.literals[i+1]
		if t.at.value != nil && !t.at.value.MatchString(value) {
			return "", invalid("params."+name, "cannot be part of a %s", t.at.name)
		}
		// The separator after a value must not occur in it, or {a}/{b} could be read in two ways.
		last := i == len(t.names)-1
		if !last && strings.Index(value+next, next) != len(value) {
			return "", invalid("params."+name, "must not contain %q, which separates it from %s in the %s", next, t.names[i+1], t.at.name)
		}
		b.WriteString(value)
		b.WriteString(next)
	}
	if b.Len() > maxTemplate {
		return "", t.refuse(fmt.Sprintf("is longer than %d bytes", maxTemplate))
	}
	if why := t.at.whole(b.String()); why != "" {
		return "", t.refuse(why)
	}
	return b.String(), nil
}

// refuse names the parameter that made the text invalid, or all of them if there are several.
func (t template) refuse(why string) *InvalidAsk {
	if len(t.names) == 1 {
		return invalid("params."+t.names[0], "produces a %s that %s", t.at.name, why)
	}
	return invalid("params", "produce a %s that %s", t.at.name, why)
}

// uses returns what is wrong with the parameters that a template names, or "".
func (t template) uses(params map[string]Param) string {
	for _, name := range t.names {
		p, ok := params[name]
		if !ok {
			return fmt.Sprintf("names {%s}, which is not in params (%s)", name, orNone(sortedKeys(params)))
		}
		if t.at.value == nil {
			continue
		}
		if p.Type == ParamString && !t.at.value.MatchString("/") && canHold(p.Pattern, '/') {
			return fmt.Sprintf("has {%s}, whose pattern could match a /; write one that cannot, such as [a-z0-9-]+", name)
		}
		for _, value := range p.Values {
			if !t.at.value.MatchString(value) {
				return fmt.Sprintf("has {%s}, whose value %s cannot be part of a %s", name, value, t.at.name)
			}
		}
	}
	return ""
}

// canHold reports whether an expression could match a text that contains c. If in doubt, it returns true.
func canHold(pattern string, c rune) bool {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	return err != nil || couldMatch(parsed, c)
}

func couldMatch(re *syntax.Regexp, c rune) bool {
	switch re.Op {
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return true
	case syntax.OpLiteral:
		return slices.Contains(re.Rune, c)
	case syntax.OpCharClass:
		for i := 0; i+1 < len(re.Rune); i += 2 {
			if re.Rune[i] <= c && c <= re.Rune[i+1] {
				return true
			}
		}
		return false
	default:
		return slices.ContainsFunc(re.Sub, func(sub *syntax.Regexp) bool { return couldMatch(sub, c) })
	}
}
