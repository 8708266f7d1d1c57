package scopes

import (
	"regexp"
	"slices"
	"strings"
)

var (
	literalSyntax = regexp.MustCompile(`^[A-Za-z0-9:/._-]*$`)
	kindSyntax    = regexp.MustCompile(`^[a-z][a-z0-9-]*:`)
)

// resourcePlace is what a scope's resource: may say.
var resourcePlace = place{
	name: "resource", literal: literalSyntax, chars: "letters, digits and : / . _ -",
	head: kindSyntax, headWhy: "must begin with what kind of thing it is, such as github:repo/",
	whole: refuseDots,
}

func refuseDots(s string) string {
	if slices.ContainsFunc(strings.Split(s, "/"), dotSegment) {
		return "has a . or .. segment; remove it"
	}
	return ""
}

func dotSegment(s string) bool { return s == "." || s == ".." }

// shape is what any rendering of a template matches. It allows any value, so
// that it never refuses what can be rendered.
func (t template) shape() *regexp.Regexp {
	quoted := make([]string, len(t.literals))
	for i, literal := range t.literals {
		quoted[i] = regexp.QuoteMeta(literal)
	}
	return regexp.MustCompile("^" + strings.Join(quoted, "(?:.+)") + "$")
}
