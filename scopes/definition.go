package scopes

import (
	"fmt"
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

	maxDuration                          = 24 * time.Hour // for every duration in a catalogue
	minTTL                               = time.Second
	minApprovalWait, defaultApprovalWait = time.Minute, 10 * time.Minute

	maxLimits      = 6 // a rate and a live count for each per
	maxLimitCount  = 1_000_000
	minLimitWindow = time.Second
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
	d.scope.Name = "(no name)"
	if fields["name"] == nil {
		r.at(n, "scope: name is missing")
	} else if name, ok := r.text(fields["name"], "name"); ok {
		if len(name) > maxName || !nameSyntax.MatchString(name) {
			r.at(fields["name"], "scope name %q must be two or more lower-case words separated by dots, such as github.issues.read, and at most %d bytes", name, maxName)
		}
		d.scope.Name = name
	}
	r.where = "scope " + d.scope.Name + ": "
	defer func() { r.where = "" }()
	for _, key := range []string{"title", "authority", "resource", "ttl", "credential"} {
		if fields[key] == nil {
			r.at(n, "%s is missing", key)
		}
	}
	title, ok := r.text(fields["title"], "title")
	invisible := func(c rune) bool {
		return !unicode.IsPrint(c) || unicode.In(c, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
	}
	// People approve based on the title, so nothing in it may hide or reorder text.
	if ok && (strings.TrimSpace(title) == "" || len(title) > maxTitle || strings.ContainsFunc(title, invisible)) {
		r.at(fields["title"], "title must be one line of visible text, at most %d bytes", maxTitle)
	}
	d.scope.Title = title
	authority, ok := r.text(fields["authority"], "authority")
	if d.scope.Authority = Authority(authority); ok && d.scope.Authority.Rank() < 0 {
		r.at(fields["authority"], "authority %q is unknown; choose read, draft, write, delete, payment or permission", authority)
	}
	d.scope.Params = r.params(fields["params"], d.patterns)
	d.scope.Resource, d.resource = r.template(fields["resource"], "resource", &resourcePlace, d.scope.Params)
	var quoted []string
	for _, literal := range d.resource.literals {
		quoted = append(quoted, regexp.QuoteMeta(literal))
	}
	d.shape = regexp.MustCompile("^" + strings.Join(quoted, "(?:.+)") + "$") // with any values
	d.scope.TTL = r.ttl(fields["ttl"])
	d.scope.Approval = r.approval(fields["approval"])
	d.scope.Limits = r.limits(fields["limits"])
	before := len(*r.problems)
	d.scope.Credential, d.recipe = r.credential(fields["credential"], d.scope.Params)
	if a := d.scope.Approval; a != nil && a.BreakGlass != "" && d.scope.Credential.Static {
		r.at(fields["approval"], "approval.break_glass cannot be used with a static credential: a break-glass credential ends after %s, and Brevet cannot revoke a static one", FormatDuration(BreakGlassTTL))
	}
	if d.scope.Credential.Kind == KindGitHub && d.scope.TTL.Max > GitHubTokenLife {
		r.at(fields["ttl"], "ttl.max (%s) is longer than %s, the life of every installation access token of GitHub", FormatDuration(d.scope.TTL.Max), FormatDuration(GitHubTokenLife))
	}
	r.checkMinTTL(fields["credential"], d.scope)
	if len(*r.problems) == before && fields["credential"] != nil {
		switch d.scope.Credential.Kind {
		case KindJWT, KindNone:
		case KindVaultToken:
			r.checkTokenPolicies(fields["credential"], d)
		default:
			d.recipe.policy = d.wrapperPolicy()
		}
	}
	d.scope.Egress = r.egress(n, fields["egress"], d.scope)
	d.action, d.parents = actionOf(d.scope)
	return d
}

// checkMinTTL refuses a scope whose own times are shorter than what the other system gives.
func (r *reader) checkMinTTL(n *yaml.Node, s Scope) {
	shortest, a := s.Credential.MinTTL, s.Approval
	switch {
	case shortest > s.TTL.Default && s.TTL.Default > 0:
		r.at(n, "credential.min_ttl (%s) is longer than ttl.default (%s)", FormatDuration(shortest), FormatDuration(s.TTL.Default))
	case a != nil && a.BreakGlass != "" && shortest > BreakGlassTTL:
		r.at(n, "credential.min_ttl (%s) is longer than a break-glass credential lives (%s)", FormatDuration(shortest), FormatDuration(BreakGlassTTL))
	}
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

var limitPers = []string{PerSandbox, PerTask, PerTrustDomain}

func (r *reader) limits(n *yaml.Node) []Limit {
	if n == nil {
		return nil
	}
	items := r.list(n, "limits")
	if len(items) > maxLimits {
		r.at(n, "limits: at most %d are allowed", maxLimits)
	}
	var limits []Limit
	for _, item := range items {
		fields := r.mapping(item, "limit", "per", "count", "window", "live")
		if fields == nil {
			continue
		}
		live := fields["live"] != nil
		rate, part := fields["count"] != nil && fields["window"] != nil, fields["count"] != nil || fields["window"] != nil
		if fields["per"] == nil || live == part || part && !rate {
			r.at(item, "a limit needs per, and either count and window or live, such as {per: sandbox, count: 60, window: 1h} or {per: sandbox, live: 5}")
			continue
		}
		per, okPer := r.text(fields["per"], "limit.per")
		if okPer && !slices.Contains(limitPers, per) {
			r.at(fields["per"], "limit.per %q is unknown; choose %s", per, strings.Join(limitPers, ", "))
		}
		most, okLive := r.integer(fields["live"], "limit.live", 1, maxLimitCount)
		count, okCount := r.integer(fields["count"], "limit.count", 1, maxLimitCount)
		window, okWindow := r.duration(fields["window"], "limit.window", minLimitWindow)
		if !okPer || !okLive && (!okCount || !okWindow) {
			continue
		}
		// A rate and a live count for the same per are separate limits.
		if slices.ContainsFunc(limits, func(l Limit) bool { return l.Per == per && (l.Live > 0) == live }) {
			r.at(item, "limits: per %s is listed twice; remove one", per)
		}
		limits = append(limits, Limit{Per: per, Count: int(count), Window: window, Live: int(most)})
	}
	return limits
}

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
	p := Param{Type: ParamType(kind)}
	switch p.Type {
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
		var okMin, okMax bool
		p.Min, okMin = r.integer(fields["min"], what+".min", -maxSafeInt, maxSafeInt)
		p.Max, okMax = r.integer(fields["max"], what+".max", -maxSafeInt, maxSafeInt)
		if okMin && okMax && p.Min > p.Max {
			r.at(fields["min"], "%s: min is greater than max", what)
		}
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
	for i, item := range r.listOf(n, what, maxValues, "values") {
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

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
