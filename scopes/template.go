package scopes

import (
	"cmp"
	"errors"
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
	// barred is a character that value never matches, and that no pattern of a parameter may match either. Zero means a slash.
	barred rune
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
			break
		}
		name, after, closed := strings.Cut(after, "}")
		if !closed {
			return t, errors.New("has a { without a }")
		}
		if !paramSyntax.MatchString(name) {
			return t, fmt.Errorf("has {%s}, but braces may contain only the name of a parameter", name)
		}
		t.names = append(t.names, name)
		rest = after
	}
	if at.head != nil && !at.head.MatchString(t.literals[0]) {
		return t, errors.New(at.headWhy)
	}
	for i := 1; i < len(t.names); i++ {
		if t.literals[i] == "" {
			return t, fmt.Errorf("has {%s}{%s} with nothing between them; put a separator between them", t.names[i-1], t.names[i])
		}
	}
	sample := strings.Join(t.literals, "x")
	if len(sample) > maxTemplate {
		return t, fmt.Errorf("is longer than %d bytes", maxTemplate)
	}
	if why := at.whole(sample); why != "" {
		return t, errors.New(why)
	}
	return t, nil
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
	why := t.at.whole(b.String())
	if b.Len() > maxTemplate {
		why = fmt.Sprintf("is longer than %d bytes", maxTemplate)
	}
	switch {
	case why == "":
		return b.String(), nil
	case len(t.names) == 1:
		return "", invalid("params."+t.names[0], "produces a %s that %s", t.at.name, why)
	default:
		return "", invalid("params", "produce a %s that %s", t.at.name, why)
	}
}

// uses returns what is wrong with the parameters that a template names, or "".
func (t template) uses(params map[string]Param) string {
	for _, name := range t.names {
		p, ok := params[name]
		if !ok {
			known := strings.Join(sortedKeys(params), ", ")
			return fmt.Sprintf("names {%s}, which is not in params (%s)", name, cmp.Or(known, "none"))
		}
		if t.at.value == nil {
			continue
		}
		if barred := cmp.Or(t.at.barred, '/'); p.Type == ParamString && !t.at.value.MatchString(string(barred)) {
			pattern, err := syntax.Parse(p.Pattern, syntax.Perl)
			if err != nil || couldMatch(pattern, barred) {
				return fmt.Sprintf("has {%s}, whose pattern could match a %c; write one that cannot, such as [a-z0-9-]+", name, barred)
			}
		}
		for _, value := range p.Values {
			if !t.at.value.MatchString(value) {
				return fmt.Sprintf("has {%s}, whose value %s cannot be part of a %s", name, value, t.at.name)
			}
		}
	}
	return ""
}

// couldMatch reports whether an expression could match a text that contains c. If in doubt, it returns true.
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

// The places that templates fill, and what each may contain. Where a value is part of a path of Vault, it never contains a
// slash, so it stays within its own segment whatever the admin's pattern allows (H52 to H54).

var (
	kindSyntax     = regexp.MustCompile(`^[a-z][a-z0-9-]*:`)
	segmentValue   = regexp.MustCompile(`^[^/]+$`)
	subjectValue   = regexp.MustCompile(`^[A-Za-z0-9._/@-]+$`)
	dnsValue       = regexp.MustCompile(`^[a-z0-9.-]+$`)
	principalValue = regexp.MustCompile(`^[a-z0-9_-]+$`)
	firstSegment   = regexp.MustCompile(`^[A-Za-z0-9._-]+/`)
	labelSyntax    = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	allDigits      = regexp.MustCompile(`^[0-9]+$`)
	// repositorySyntax is owner/name. GitHub forbids names that end in .git, and . and .. as names.
	repositorySyntax = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,37}[A-Za-z0-9])?(_[a-z0-9]+)?/[A-Za-z0-9._-]{1,100}$`)
	repositoryValue  = regexp.MustCompile(`^[a-z0-9/._-]+$`)
	permissionValue  = regexp.MustCompile(`^(read|write|admin)$`)

	userSyntax = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,63}$`)
)

const maxDNSName = 253

// reserved lists Vault's own paths, for its configuration and its logins. No scope's credential may use them.
var reserved = []string{"sys", "auth", "identity", "cubbyhole"}

const pathHeadWhy = "must begin with the mount path of an engine, without a leading slash, and continue below it, such as secret/data/app"

var (
	// resourcePlace defines what the resource: of a scope may contain.
	resourcePlace = place{
		name: "resource", literal: regexp.MustCompile(`^[A-Za-z0-9:/._-]*$`), chars: "letters, digits and : / . _ -",
		head: kindSyntax, headWhy: "must begin with a kind and a colon, such as github:repo/",
		whole: func(s string) string {
			if slices.ContainsFunc(strings.Split(s, "/"), dotSegment) {
				return "has a . or .. segment; remove it"
			}
			return ""
		},
	}
	pathPlace = place{
		name: "path", literal: regexp.MustCompile(`^[A-Za-z0-9/._-]*$`), chars: "letters, digits and / . _ -",
		head: firstSegment, headWhy: pathHeadWhy, value: segmentValue, whole: refusePath,
	}
	// rulePlace is a path in a policy: + is one whole segment, and * at the end matches any suffix.
	rulePlace = place{
		name: "path", literal: regexp.MustCompile(`^[A-Za-z0-9/._+*-]*$`), chars: "letters, digits and / . _ - + *",
		head: firstSegment, headWhy: pathHeadWhy, value: segmentValue, whole: refuseRule,
	}
	// keyPlace is a path of Brevet's own that contains no parameters.
	keyPlace = place{name: "path", whole: refuseSegments}
	// repositoryPlace is the full name of a repository at GitHub. Its value may contain the owner. GitHub ignores the case of names, and
	// rules of a policy do not. So a value has no capitals: otherwise another spelling of a name would get past a rule for it.
	repositoryPlace = place{
		name: "repository name in lower case", literal: regexp.MustCompile(`^[A-Za-z0-9/._-]*$`), chars: "letters, digits and / . _ -",
		value: repositoryValue, whole: refuseRepository,
	}
	// permissionPlace is what an installation access token of GitHub may do with a kind of object.
	permissionPlace = place{
		name: "permission", literal: regexp.MustCompile(`^[a-z]*$`), chars: "lower-case letters",
		value: permissionValue, whole: func(text string) string {
			if text != "x" && !permissionValue.MatchString(text) { // x stands for a parameter
				return "is not read, write or admin"
			}
			return ""
		},
	}
	rolePlace = place{
		name: "role", literal: regexp.MustCompile(`^[A-Za-z0-9._-]*$`), chars: "letters, digits and . _ -",
		value: segmentValue, whole: refuseSegments,
	}
	dnsPlace = place{
		name: "DNS name", literal: regexp.MustCompile(`^[a-z0-9.-]*$`), chars: "lower-case letters, digits and . -",
		value: dnsValue, whole: refuseDNS,
	}
	principalPlace = place{
		name: "principal", literal: regexp.MustCompile(`^[a-z0-9_-]*$`), chars: "lower-case letters, digits and _ -",
		value: principalValue, whole: func(name string) string {
			if !userSyntax.MatchString(name) {
				return "is not a user name: a lower-case letter or _, then letters, digits, _ and -, at most 64"
			}
			return ""
		},
	}
	// subjectPlace is the claim sub of a token for another system. That system matches parts between colons, often with wildcards,
	// so no value contains a colon.
	subjectPlace = place{
		name: "subject", literal: regexp.MustCompile(`^[A-Za-z0-9:/._@-]*$`), chars: "letters, digits and : / . _ @ -",
		head: kindSyntax, headWhy: "must begin with a kind and a colon, such as repo:{repo}:task",
		value: subjectValue, barred: ':', whole: refuseSubject,
	}
	// dataPlace excludes what another system could take for its own template syntax.
	dataPlace = place{
		name: "text", literal: regexp.MustCompile(`^[ -#%-z|~]*$`), chars: "visible ASCII without { } $",
		whole: func(string) string { return "" },
	}
)

func dotSegment(s string) bool { return s == "." || s == ".." }

// refuseSubject refuses SPIFFE IDs: they are the subjects of access tokens, which the other system could not tell apart.
func refuseSubject(subject string) string {
	switch {
	case len(subject) > maxSubject:
		return fmt.Sprintf("is longer than %d bytes", maxSubject)
	case strings.HasPrefix(subject, "spiffe:"):
		return "is a SPIFFE ID, which only access tokens have as subject"
	case slices.ContainsFunc(strings.Split(subject, "/"), dotSegment):
		return "has a . or .. segment; remove it"
	}
	return ""
}

func refuseSegments(path string) string {
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "" || dotSegment(segment) {
			return "has an empty, . or .. segment"
		}
	}
	return ""
}

// refuseRepository accepts x, which stands for a parameter that contains the owner too.
func refuseRepository(name string) string {
	_, base, _ := strings.Cut(name, "/")
	switch {
	case name == "x":
	case !repositorySyntax.MatchString(name) || dotSegment(base) || strings.HasSuffix(base, ".git"):
		return "is not the full name of a repository, such as acme/site"
	}
	return ""
}

func refusePath(path string) string {
	switch mount, _, _ := strings.Cut(path, "/"); {
	case slices.Contains(reserved, mount):
		return "is below " + mount + "/, which Vault reserves"
	case mount == GitHubKeys, mount == GitHubTokens:
		return "is below " + mount + "/, which only credentials of kind github use"
	}
	return refuseSegments(path)
}

func refuseRule(path string) string {
	plain := strings.TrimSuffix(strings.TrimSuffix(path, "*"), "/")
	if strings.Contains(plain, "*") {
		return "has a * that is not at the end"
	}
	for segment := range strings.SplitSeq(plain, "/") {
		if strings.Contains(segment, "+") && segment != "+" {
			return "has a + that is not a whole segment"
		}
	}
	if strings.HasSuffix(path, "+*") {
		return "has a * after a +; write /+/*"
	}
	if strings.HasSuffix(path, "/") {
		return "has an empty, . or .. segment"
	}
	return refusePath(plain)
}

// IsDNSName reports whether a name is a DNS name in lower case.
func IsDNSName(name string) bool { return refuseDNS(name) == "" }

func refuseDNS(name string) string {
	if len(name) > maxDNSName {
		return "is longer than 253 bytes"
	}
	labels := strings.Split(name, ".")
	for _, label := range labels {
		if !labelSyntax.MatchString(label) {
			return "has a label that is not 1 to 63 letters, digits and inner dashes"
		}
	}
	// No top-level domain is a number: such a name would be read as an IP address.
	if allDigits.MatchString(labels[len(labels)-1]) {
		return "ends in a number"
	}
	return ""
}
