package scopes

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	maxParamLength     = 1000
	defaultParamLength = 200
	// maxParamBytes bounds the parameters of one request, names and values together. A record stores them several times,
	// and even a sandbox that may get nothing can fill the record with requests.
	maxParamBytes = 4 << 10
	maxSafeInt    = 1 << 53 // a larger JSON number is not exact in every program
)

// baselineSyntax is what any string value may contain, whatever the admin's pattern allows: letters, digits and . _ - / :
// @. It excludes everything that other systems interpret: blanks and line breaks, Vault's glob and path characters (+ *),
// percent escapes, query and fragment characters (? # &), template characters ({ } $), quotes, list separators (, ;), and
// all non-ASCII characters, including look-alikes.
var baselineSyntax = regexp.MustCompile(`^[A-Za-z0-9._/:@-]+$`)

var paramSyntax = regexp.MustCompile(`^[a-z][a-z0-9_]{0,49}$`)

// baseline returns why a string value is unsafe to forward, or "".
func baseline(s string) string {
	if s == "" {
		return "must not be empty"
	}
	if !baselineSyntax.MatchString(s) {
		return "may contain only letters, digits and . _ - / : @"
	}
	// A command would take a leading dash for an option.
	if s[0] == '-' {
		return "must not begin with -"
	}
	for segment := range strings.SplitSeq(s, "/") {
		if segment == "" || dotSegment(segment) {
			return "must not contain an empty, . or .. segment"
		}
	}
	return ""
}

// accept checks the parameters of a request and returns them with one Go type per parameter type: string, int64 or bool.
func (d *definition) accept(raw map[string]any) (map[string]any, *InvalidAsk) {
	for _, name := range sortedKeys(raw) {
		if _, ok := d.scope.Params[name]; ok {
			continue
		}
		field, takes := "params", "no parameters"
		if paramSyntax.MatchString(name) {
			field += "." + name
		}
		if len(d.scope.Params) > 0 {
			takes = strings.Join(sortedKeys(d.scope.Params), ", ")
		}
		return nil, invalid(field, "is unknown; this scope takes %s", takes)
	}
	out := make(map[string]any, len(d.scope.Params))
	for _, name := range sortedKeys(d.scope.Params) {
		value, given := raw[name]
		if !given {
			return nil, invalid("params."+name, "is required")
		}
		canonical, why := d.scope.Params[name].canonical(value, d.patterns[name])
		if why != "" {
			return nil, invalid("params."+name, "%s", why)
		}
		out[name] = canonical
	}
	return out, nil
}

// widest returns the maximum length of a value in bytes.
func (p Param) widest() int {
	if p.Type == ParamString {
		return p.MaxLength
	}
	widest := len("-9007199254740992")
	for _, value := range p.Values {
		widest = max(widest, len(value))
	}
	return widest
}

// canonical returns the value in its Go type, or why it is refused.
func (p Param) canonical(value any, pattern *regexp.Regexp) (any, string) {
	switch p.Type {
	case ParamString, ParamEnum:
		s, ok := value.(string)
		switch {
		case !ok:
			return nil, "must be a string"
		case p.Type == ParamEnum && !slices.Contains(p.Values, s):
			return nil, "must be one of " + strings.Join(p.Values, ", ")
		case p.Type == ParamEnum:
			return s, ""
		// Check the length first: neither expression should process a megabyte.
		case len(s) > p.MaxLength:
			return nil, fmt.Sprintf("must be at most %d bytes long", p.MaxLength)
		}
		if why := baseline(s); why != "" {
			return nil, why
		}
		if !pattern.MatchString(s) {
			return nil, "must match " + p.Pattern
		}
		return s, ""
	case ParamInt:
		n, ok := integral(value)
		if !ok || n < p.Min || n > p.Max {
			return nil, fmt.Sprintf("must be a whole number from %d to %d", p.Min, p.Max)
		}
		return n, ""
	case ParamBool:
		b, ok := value.(bool)
		if !ok {
			return nil, "must be true or false"
		}
		return b, ""
	default:
		return nil, "has an unknown type"
	}
}

// integral accepts the Go types in which JSON decoders return a whole number.
func integral(value any) (int64, bool) {
	var n int64
	switch v := value.(type) {
	case json.Number:
		// ParseInt also accepts +1, which JSON does not allow.
		parsed, err := strconv.ParseInt(string(v), 10, 64)
		if err != nil || strings.HasPrefix(string(v), "+") {
			return 0, false
		}
		n = parsed
	case float64:
		if v != math.Trunc(v) || math.Abs(v) > maxSafeInt {
			return 0, false
		}
		n = int64(v)
	case int64:
		n = v
	case int:
		n = int64(v)
	default:
		return 0, false
	}
	return n, n >= -maxSafeInt && n <= maxSafeInt
}
