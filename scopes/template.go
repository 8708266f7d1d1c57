package scopes

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
)

// maxTemplate bounds a template and what it renders to, in bytes.
const maxTemplate = 1000

// place is where a template is used, which decides what may stand in it.
type place struct {
	name    string         // as messages call it
	literal *regexp.Regexp // the text between the parameters
	chars   string         // literal in words
	head    *regexp.Regexp // the text before the first parameter; nil for any
	headWhy string         // what to say when it is not
	value   *regexp.Regexp // each value, besides what its type allows; nil for any
	// whole says why a text with all its values is refused, or "".
	whole func(string) string
}

// template is a parsed text: literal, name, literal, name ... literal.
// Rendering is injective: two asks with different values in a text never make
// the same one, so that a rule about one is never passed by the other.
type template struct {
	at       *place
	literals []string // one more than names
	names    []string
}

// parseTemplate takes {param} and nothing else in braces: what other systems
// read as a template of theirs ({{identity...}}, ${env}) is refused (H58).
func parseTemplate(s string, at *place) (template, error) {
	t := template{at: at}
	rest := s
	for {
		literal, after, found := strings.Cut(rest, "{")
		if !at.literal.MatchString(literal) {
			return t, fmt.Errorf("may hold %s besides {param}", at.chars)
		}
		t.literals = append(t.literals, literal)
		if !found {
			return t, t.check()
		}
		name, after, closed := strings.Cut(after, "}")
		if !closed {
			return t, fmt.Errorf("has a { without its }")
		}
		if !paramSyntax.MatchString(name) {
			return t, fmt.Errorf("has {%s}, and in braces there may be the name of a parameter only", name)
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
			return fmt.Errorf("has {%s}{%s} with nothing between them; put a separator there", t.names[i-1], t.names[i])
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

// render fills in the values, which have passed the baseline of params.go.
func (t template) render(values map[string]any) (string, *InvalidAsk) {
	var b strings.Builder
	b.WriteString(t.literals[0])
	for i, name := range t.names {
		value, next := fmt.Sprint(values[name]), t.literals[i+1]
		if t.at.value != nil && !t.at.value.MatchString(value) {
			return "", invalid("params."+name, "cannot be part of a %s", t.at.name)
		}
		// The text after a value has to end it, or {a}/{b} could be read two ways.
		last := i == len(t.names)-1
		if !last && strings.Index(value+next, next) != len(value) {
			return "", invalid("params."+name, "must not hold %q, which separates it from %s in the %s", next, t.names[i+1], t.at.name)
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

// refuse names the parameter that made a text what it is, or all of them.
func (t template) refuse(why string) *InvalidAsk {
	if len(t.names) == 1 {
		return invalid("params."+t.names[0], "makes a %s that %s", t.at.name, why)
	}
	return invalid("params", "make a %s that %s", t.at.name, why)
}

// uses says what is wrong with the parameters that a template names, or "".
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

// canHold says whether an expression could match a text with c in it. When that
// is not plain to see it says yes.
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
