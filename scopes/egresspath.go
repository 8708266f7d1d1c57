package scopes

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxCallPath is the longest path of a call, in bytes as sent.
const maxCallPath = 4096

// segmentsOf splits the path of a call into segments and decodes each one once. It refuses any path that another program
// could interpret differently: if the path is decoded, cleaned or split again later, the result must be what was checked.
// A trailing slash adds an empty last segment.
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
		if i+2 >= len(segment) || !isHex(segment[i+1]) || !isHex(segment[i+2]) {
			return "", "the path has a % that does not begin an escape"
		}
		c = fromHex(segment[i+1])<<4 | fromHex(segment[i+2])
		i += 2
		if c < ' ' || c == 0x7f || strings.ContainsRune(`/\%?#;`, rune(c)) {
			return "", "the path has an escaped control character, slash, backslash, percent sign, question mark, hash or semicolon"
		}
		if unreserved(c) {
			return "", "the path has an escaped letter, digit or one of - . _ ~, which must not be escaped"
		}
		b.WriteByte(c)
	}
	if decoded = b.String(); dotSegment(decoded) {
		return "", "the path has a . or .. segment"
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

func unreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func fromHex(c byte) byte {
	switch {
	case c >= 'a':
		return c - 'a' + 10
	case c >= 'A':
		return c - 'A' + 10
	default:
		return c - '0'
	}
}
