package scopes

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/cedar-policy/cedar-go"
	"go.yaml.in/yaml/v4"
)

const (
	maxName     = 100
	maxTitle    = 200
	maxPattern  = 500
	maxAudience = 500
	maxParams   = 32
	maxValues   = 100
	maxQuorum   = 10
)

const (
	maxDuration                          = 24 * time.Hour // for every duration in a catalogue
	minTTL                               = time.Second
	minApprovalWait, defaultApprovalWait = time.Minute, 10 * time.Minute
)

var (
	nameSyntax  = regexp.MustCompile(`^[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_-]*)+$`)
	groupSyntax = regexp.MustCompile(`^[a-z][a-z0-9-]{0,63}$`)
)

// cedarWords cannot follow a dot in a policy, so they are not allowed as parameter names.
var cedarWords = []string{"true", "false", "if", "then", "else", "in", "is", "like", "has"}

// definition is a scope with what Decide needs, compiled once.
type definition struct {
	scope    Scope
	patterns map[string]*regexp.Regexp
	resource template
	shape    *regexp.Regexp // every resource of the scope matches it
	recipe   recipe
	action   cedar.EntityUID
	parents  cedar.EntityUIDSet // every action group that contains the scope
	file     string
	line     int
}

// scope reads one entry of scopes:. The result is only valid if nothing was reported while reading it.
func (r *reader) scope(n *yaml.Node) *definition {
	r.where = ""
	d := &definition{file: r.file, line: n.Line, patterns: map[string]*regexp.Regexp{}}
	fields := r.mapping(n, "scope", "name", "title", "authority", "params", "resource", "ttl", "approval", "limits", "credential", "egress")
	if fields == nil {
		return nil
	}
	d.scope.Name = r.name(n, fields["name"])
	r.where = "scope " + d.scope.Name + ": "
	defer func() { r.where = "" }()
	for _, key := range []string{"title", "authority", "resource", "ttl", "credential"} {
		if fields[key] == nil {
			r.at(n, "%s is missing", key)
		}
	}
	d.scope.Title = r.title(fields["title"])
	d.scope.Authority = r.authority(fields["authority"])
	d.scope.Params = r.params(fields["params"], d.patterns)
	d.scope.Resource, d.resource = r.template(fields["resource"], "resource", &resourcePlace, d.scope.Params)
	d.shape = d.resource.shape()
	d.scope.TTL = r.ttl(fields["ttl"])
	d.scope.Approval = r.approval(fields["approval"])
	d.scope.Limits = r.limits(fields["limits"])
	before := len(*r.problems)
	d.scope.Credential, d.recipe = r.credential(fields["credential"], d.scope.Params)
	if a := d.scope.Approval; a != nil && a.BreakGlass != "" && d.scope.Credential.Static {
		r.at(fields["approval"], "approval.break_glass cannot be used with a static credential: a break-glass credential ends after %s, and Brevet cannot revoke a static one", FormatDuration(BreakGlassTTL))
	}
	if len(*r.problems) == before && fields["credential"] != nil {
		r.policiesOf(fields["credential"], d)
	}
	d.scope.Egress = r.egress(fields["egress"], d.scope)
	d.action, d.parents = actionOf(d.scope)
	return d
}

func (r *reader) name(scope, n *yaml.Node) string {
	if n == nil {
		r.at(scope, "scope: name is missing")
		return "(no name)"
	}
	name, ok := r.text(n, "name")
	if !ok {
		return "(no name)"
	}
	if len(name) > maxName || !nameSyntax.MatchString(name) {
		r.at(n, "scope name %q must be two or more lower-case words separated by dots, such as github.issues.read, and at most %d bytes", name, maxName)
	}
	return name
}

func (r *reader) title(n *yaml.Node) string {
	title, ok := r.text(n, "title")
	invisible := func(c rune) bool {
		return !unicode.IsPrint(c) || unicode.In(c, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
	}
	// People approve based on the title, so nothing in it may hide or reorder text.
	if ok && (strings.TrimSpace(title) == "" || len(title) > maxTitle || strings.ContainsFunc(title, invisible)) {
		r.at(n, "title must be one line of visible text, at most %d bytes", maxTitle)
	}
	return title
}

func (r *reader) authority(n *yaml.Node) Authority {
	text, ok := r.text(n, "authority")
	if ok && Authority(text).Rank() < 0 {
		r.at(n, "authority %q is unknown; choose read, draft, write, delete, payment or permission", text)
	}
	return Authority(text)
}

func (r *reader) ttl(n *yaml.Node) TTL {
	if n == nil {
		return TTL{}
	}
	fields := r.mapping(n, "ttl", "default", "max")
	if fields == nil {
		return TTL{}
	}
	if fields["default"] == nil || fields["max"] == nil {
		r.at(n, "ttl needs default and max, such as {default: 5m, max: 15m}")
	}
	def, okDefault := r.duration(fields["default"], "ttl.default", minTTL)
	limit, okMax := r.duration(fields["max"], "ttl.max", minTTL)
	if okDefault && okMax && def > limit {
		r.at(n, "ttl.default (%s) is longer than ttl.max (%s)", FormatDuration(def), FormatDuration(limit))
	}
	return TTL{Default: def, Max: limit}
}

func (r *reader) approval(n *yaml.Node) *Approval {
	if n == nil {
		return nil
	}
	a := &Approval{Quorum: 1, Expires: defaultApprovalWait}
	fields := r.mapping(n, "approval", "group", "quorum", "expires", "remember", "break_glass", "passkey")
	if fields == nil {
		return nil
	}
	if fields["group"] == nil {
		r.at(n, "approval needs a group, such as {group: oncall}")
	}
	a.Group = r.group(fields["group"], "approval.group")
	a.BreakGlass = r.group(fields["break_glass"], "approval.break_glass")
	if a.BreakGlass != "" && a.BreakGlass == a.Group {
		r.at(fields["break_glass"], "approval.break_glass must differ from approval.group: it approves when that group does not respond")
	}
	if quorum, ok := r.integer(fields["quorum"], "approval.quorum", 1, maxQuorum); ok {
		a.Quorum = int(quorum)
	}
	if wait, ok := r.duration(fields["expires"], "approval.expires", minApprovalWait); ok {
		a.Expires = wait
	}
	a.Remember = r.either(fields["remember"], "approval.remember", RememberNever, RememberTask)
	a.Passkey = r.either(fields["passkey"], "approval.passkey", PasskeyNever, PasskeyRequired)
	return a
}

// either reads one of two words. The first one is the default.
func (r *reader) either(n *yaml.Node, what, usual, other string) string {
	if n == nil {
		return usual
	}
	word, ok := r.text(n, what)
	if ok && word != usual && word != other {
		r.at(n, "%s %q must be %s or %s", what, word, usual, other)
	}
	return word
}

func (r *reader) group(n *yaml.Node, what string) string {
	group, ok := r.text(n, what)
	if ok && !groupSyntax.MatchString(group) {
		r.at(n, "%s %q must be lower-case letters, digits and dashes, at most 64", what, group)
	}
	return group
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
