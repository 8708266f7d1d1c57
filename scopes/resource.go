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

// resourcePlace defines what the resource: of a scope may contain.
var resourcePlace = place{
	name: "resource", literal: literalSyntax, chars: "letters, digits and : / . _ -",
	head: kindSyntax, headWhy: "must begin with a kind and a colon, such as github:repo/",
	whole: refuseDots,
}

func refuseDots(s string) string {
	if slices.ContainsFunc(strings.Split(s, "/"), dotSegment) {
		return "has a . or .. segment; remove it"
	}
	return ""
}

func dotSegment(s string) bool { return s == "." || s == ".." }

// shape returns an expression that every rendering of the template matches. It allows any value, so it never rejects
// something that can be rendered.
func (t template) shape() *regexp.Regexp {
	quoted := make([]string, len(t.literals))
	for i, literal := range t.literals {
		quoted[i] = regexp.QuoteMeta(literal)
	}
	return regexp.MustCompile("^" + strings.Join(quoted, "(?:.+)") + "$")
}
