// Package egressrule decides which HTTP calls the egress rules of a scope allow, and which parameters a call needs.
//
// It must never allow a call that a server could read as another one than the call that was checked.
package egressrule

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/brevet-dev/brevet/scopes"
)

// Call is an HTTP call as a gateway received it, byte for byte.
type Call struct {
	Method string
	Host   string // of the Host header, with the port if there is one
	Path   string // escaped, as it was sent; everything after a ? is ignored
}

// Allowed reports whether the rules allow a call with a token that was issued for params. If not, why explains the
// refusal to the author of the call, without repeating any part of the call. Without rules no call is allowed.
//
// A path is checked exactly as it was sent. A path that some server could interpret as another one is refused, never
// normalised. So a gateway that forwards the path unchanged forwards what was checked.
func Allowed(rules []scopes.Egress, params map[string]any, call Call) (ok bool, why string) {
	if len(rules) == 0 {
		return false, "the scope has no egress rules, so no gateway accepts its tokens"
	}
	host, why := hostOf(call.Host)
	if why != "" {
		return false, why
	}
	segments, why := segmentsOf(call.Path)
	if why != "" {
		return false, why
	}
	var names, methods, paths []string
	for _, rule := range rules {
		names = append(names, rule.Hosts...)
		if !covers(rule, host) {
			continue
		}
		methods = append(methods, rule.Methods...)
		if !slices.Contains(rule.Methods, call.Method) {
			continue
		}
		paths = append(paths, rule.Paths...)
		if slices.ContainsFunc(rule.Paths, func(pattern string) bool { return pathMatches(pattern, params, segments) }) {
			return true, ""
		}
	}
	switch {
	case len(methods) == 0:
		return false, "no egress rule covers this host; the rules cover " + each(names)
	case slices.ContainsFunc(segments, hasSlash) && !slices.ContainsFunc(paths, hasSlash):
		return false, escapedWhy
	case len(paths) == 0:
		return false, "no egress rule for this host allows this method; the rules allow " + each(methods)
	default:
		return false, "no egress rule for this host and method matches this path with the parameters of the token; the rules allow " + each(paths)
	}
}

// each lists words for a message.
func each(words []string) string {
	const maxTold = 8
	words = slices.Compact(slices.Sorted(slices.Values(words)))
	if more := len(words) - maxTold; more > 0 {
		return strings.Join(words[:maxTold], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(words, ", ")
}

var portSyntax = regexp.MustCompile(`^[1-9][0-9]{0,4}$`)

// hostOf normalises a Host header to the spelling that rules use.
func hostOf(header string) (host, why string) {
	name, port, found := strings.Cut(strings.ToLower(header), ":")
	if found && !portSyntax.MatchString(port) || !scopes.IsDNSName(name) {
		return "", "the host is not a DNS name with an optional port"
	}
	if !found || port == "443" || port == "80" {
		return name, ""
	}
	return name + ":" + port, ""
}

// covers reports whether a rule is for a host.
func covers(rule scopes.Egress, host string) bool {
	return slices.ContainsFunc(rule.Hosts, func(pattern string) bool {
		below, wild := strings.CutPrefix(pattern, "*.")
		if !wild {
			return pattern == host
		}
		_, parent, found := strings.Cut(host, ".")
		return found && parent == below
	})
}

// pathMatches fills the parameters into a pattern and compares it with the path segment by segment. A value that contains
// a slash spans several segments.
func pathMatches(pattern string, params map[string]any, segments []string) bool {
	parsed, err := scopes.ParsePathPattern(pattern)
	if err != nil {
		return false
	}
	text, ok := parsed.Fill(params)
	if !ok {
		return false
	}
	want := strings.Split(strings.TrimPrefix(text, "/"), "/")
	last := len(want) - 1
	if want[last] == "**" && len(segments) > last && !slices.ContainsFunc(segments[last:], hasSlash) {
		want, segments = want[:last], segments[:last]
	}
	return slices.EqualFunc(want, segments, segmentMatches)
}

// segmentMatches compares a segment part by part between its colons. So * does not match a custom verb: some hosts read the part
// after a colon as the action, as in /v1/projects/one:setIamPolicy. Nor does it match an escaped slash, which the rule has to name:
// a host may read it as the end of the segment. No value of a parameter has a percent sign.
func segmentMatches(want, segment string) bool {
	return slices.EqualFunc(strings.Split(want, scopes.EscapedSlash), strings.Split(segment, scopes.EscapedSlash), func(want, segment string) bool {
		return slices.EqualFunc(strings.Split(want, ":"), strings.Split(segment, ":"), func(want, part string) bool {
			return want == part || want == "*" && part != ""
		})
	})
}

// hasSlash reports whether a decoded segment, or a pattern, has an escaped slash.
func hasSlash(text string) bool { return strings.Contains(text, scopes.EscapedSlash) }

const escapedWhy = "the path has an escaped control character, slash, backslash, percent sign, question mark, hash or semicolon"

// maxCallPath is the longest path of a call, in bytes as sent.
const maxCallPath = 4096

// segmentsOf splits the path of a call into segments and decodes each one once. It refuses any path that another program
// could interpret differently: if the path is decoded, cleaned or split again later, the result must be what was checked.
// An escaped slash stays escaped: both readings of it have the same parts, and a rule has to name it. A trailing slash adds an empty
// last segment.
func segmentsOf(target string) (segments []string, why string) {
	path, _, _ := strings.Cut(target, "?")
	if len(path) > maxCallPath {
		return nil, "the path is too long"
	}
	rest, ok := strings.CutPrefix(path, "/")
	if !ok {
		return nil, "the path does not begin with a slash"
	}
	segments = strings.Split(rest, "/")
	for i, segment := range segments {
		if segment == "" && i < len(segments)-1 {
			return nil, "the path has an empty segment"
		}
		if segments[i], why = decodeSegment(segment); why != "" {
			return nil, why
		}
	}
	return segments, ""
}

func decodeSegment(segment string) (decoded, why string) {
	unreserved := func(c byte) bool {
		return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0
	}
	var b strings.Builder
	for i := 0; i < len(segment); i++ {
		c := segment[i]
		if c != '%' {
			if !unreserved(c) && !strings.ContainsRune("!$&'()*+,=:@", rune(c)) {
				return "", "the path contains a character that must be escaped or is never allowed, such as a control character, a backslash, a ; or a non-ASCII character"
			}
			b.WriteByte(c)
			continue
		}
		digits := segment[i+1 : min(i+3, len(segment))]
		escaped, err := strconv.ParseUint(digits, 16, 8)
		if len(digits) != 2 || err != nil {
			return "", "the path has a % that does not begin an escape"
		}
		c = byte(escaped)
		i += 2
		if c == '/' {
			b.WriteString(scopes.EscapedSlash)
			continue
		}
		if c < ' ' || c == 0x7f || strings.ContainsRune(`\%?#;`, rune(c)) {
			return "", escapedWhy
		}
		if unreserved(c) {
			return "", "the path has an escaped letter, digit or one of - . _ ~, which must not be escaped"
		}
		b.WriteByte(c)
	}
	decoded = b.String()
	for part := range strings.SplitSeq(decoded, scopes.EscapedSlash) {
		if part == "." || part == ".." {
			return "", "the path has a . or .. segment"
		}
		if part == "" && hasSlash(decoded) {
			return "", "the path has an empty segment"
		}
	}
	if !utf8.ValidString(decoded) || strings.ContainsFunc(decoded, lookalike) {
		return "", "the path has an escape that is not UTF-8, or is a non-ASCII character other than a letter, mark or digit"
	}
	return decoded, ""
}

// lookalike reports whether a non-ASCII character is not part of any word (a letter, mark or digit). Some systems fold
// such a character to a slash or a dot.
func lookalike(c rune) bool {
	return c > unicode.MaxASCII && !unicode.In(c, unicode.L, unicode.M, unicode.Nd)
}
