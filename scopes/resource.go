package scopes

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

const maxResource = 1000

var (
	literalSyntax = regexp.MustCompile(`^[A-Za-z0-9:/._-]*$`)
	kindSyntax    = regexp.MustCompile(`^[a-z][a-z0-9-]*:`)
)

// template is a parsed resource: literal, name, literal, name ... literal.
// Rendering is injective: two asks with different values in the resource never
// name the same one, so that a rule about one is never passed by the other.
type template struct {
	literals []string // one more than names
	names    []string
	shape    *regexp.Regexp // what any rendering matches
}

func parseTemplate(s string) (template, error) {
	var t template
	rest := s
	for {
		literal, after, found := strings.Cut(rest, "{")
		if !literalSyntax.MatchString(literal) {
			return t, fmt.Errorf("may hold letters, digits and : / . _ - besides {param}")
		}
		t.literals = append(t.literals, literal)
		if !found {
			t.shape = t.compileShape()
			return t, t.check()
		}
		name, after, closed := strings.Cut(after, "}")
		if !closed {
			return t, fmt.Errorf("has a { without its }")
		}
		t.names = append(t.names, name)
		rest = after
	}
}

func (t template) check() error {
	if !kindSyntax.MatchString(t.literals[0]) {
		return fmt.Errorf("must begin with what kind of thing it is, such as github:repo/")
	}
	for i := 1; i < len(t.names); i++ {
		if t.literals[i] == "" {
			return fmt.Errorf("has {%s}{%s} with nothing between them; put a separator there", t.names[i-1], t.names[i])
		}
	}
	sample := strings.Join(t.literals, "x")
	if slices.ContainsFunc(strings.Split(sample, "/"), dotSegment) {
		return fmt.Errorf("has a . or .. segment; remove it")
	}
	if len(sample) > maxResource {
		return fmt.Errorf("is longer than %d bytes", maxResource)
	}
	return nil
}

func dotSegment(s string) bool { return s == "." || s == ".." }

// render fills in the values, which have passed the baseline of params.go.
func (t template) render(values map[string]any) (string, *InvalidAsk) {
	var b strings.Builder
	b.WriteString(t.literals[0])
	for i, name := range t.names {
		value, next := fmt.Sprint(values[name]), t.literals[i+1]
		// The text after a value has to end it, or {a}/{b} could be read two ways.
		last := i == len(t.names)-1
		if !last && strings.Index(value+next, next) != len(value) {
			return "", invalid("params."+name, "must not hold %q, which separates it from %s in the resource", next, t.names[i+1])
		}
		b.WriteString(value)
		b.WriteString(next)
	}
	if b.Len() > maxResource {
		return "", invalid("params", "make a resource name longer than %d bytes", maxResource)
	}
	return b.String(), nil
}

// compileShape allows any value, so that it never refuses what can be rendered.
func (t template) compileShape() *regexp.Regexp {
	quoted := make([]string, len(t.literals))
	for i, literal := range t.literals {
		quoted[i] = regexp.QuoteMeta(literal)
	}
	return regexp.MustCompile("^" + strings.Join(quoted, "(?:.+)") + "$")
}
