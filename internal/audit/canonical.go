package audit

import (
	"bytes"
	"slices"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// canonical reports whether a text is JSON as in RFC 8785, except that integers keep all their digits. It walks over the
// text, which takes a fraction of the time of rewriting it. It rewrites a text only if the walk does not accept it, such as
// the rare texts with fractions.
func canonical(text []byte) bool {
	w := walk{text: text}
	if w.value(0) && w.at == len(text) {
		return true
	}
	value := jsontext.Value(bytes.Clone(text))
	return value.Canonicalize(jsontext.CanonicalizeRawInts(false)) == nil && bytes.Equal(value, text)
}

// walk accepts only text that is certainly canonical. It stops at the first part that may not be.
type walk struct {
	text []byte
	at   int
}

const maxDepth = 100

func (w *walk) next() byte {
	if w.at < len(w.text) {
		return w.text[w.at]
	}
	return 0
}

func (w *walk) take(c byte) bool {
	if w.next() != c {
		return false
	}
	w.at++
	return true
}

func (w *walk) value(depth int) bool {
	switch c := w.next(); {
	case depth > maxDepth:
		return false
	case c == '{':
		return w.object(depth)
	case c == '[':
		return w.array(depth)
	case c == '"':
		return w.quoted()
	case c == '-' || c >= '0' && c <= '9':
		return w.integer()
	}
	for _, word := range []string{"true", "false", "null"} {
		if bytes.HasPrefix(w.text[w.at:], []byte(word)) {
			w.at += len(word)
			return true
		}
	}
	return false
}

// object requires names in the order of their UTF-16 code units, each once.
func (w *walk) object(depth int) bool {
	w.at++
	if w.take('}') {
		return true
	}
	var before []byte
	for first := true; ; first = false {
		begin := w.at
		if !w.quoted() {
			return false
		}
		name := w.text[begin+1 : w.at-1]
		if !first && !ordered(before, name) || !w.take(':') || !w.value(depth+1) {
			return false
		}
		before = name
		if !w.take(',') {
			return w.take('}')
		}
	}
}

func (w *walk) array(depth int) bool {
	w.at++
	if w.take(']') {
		return true
	}
	for {
		if !w.value(depth + 1) {
			return false
		}
		if !w.take(',') {
			return w.take(']')
		}
	}
}

// integer does not accept fractions, exponents and negative zeros.
func (w *walk) integer() bool {
	negative := w.take('-')
	begin := w.at
	for c := w.next(); c >= '0' && c <= '9'; c = w.next() {
		w.at++
	}
	digits := w.at - begin
	if digits == 0 || w.text[begin] == '0' && (digits > 1 || negative) {
		return false
	}
	c := w.next()
	return c != '.' && c != 'e' && c != 'E'
}

// quoted accepts a string that escapes only what must be escaped, in the shortest way.
func (w *walk) quoted() bool {
	if !w.take('"') {
		return false
	}
	for w.at < len(w.text) {
		switch c := w.text[w.at]; {
		case c == '"':
			w.at++
			return true
		case c == '\\':
			if !w.escape() {
				return false
			}
		case c < ' ':
			return false
		case c < utf8.RuneSelf:
			w.at++
		default:
			r, size := utf8.DecodeRune(w.text[w.at:])
			if r == utf8.RuneError && size == 1 {
				return false
			}
			w.at += size
		}
	}
	return false
}

// escape accepts the escapes of one letter, and for other control characters the escape of four lowercase digits.
func (w *walk) escape() bool {
	rest := w.text[w.at:]
	if len(rest) > 1 && bytes.IndexByte([]byte(`"\bfnrt`), rest[1]) >= 0 {
		w.at += 2
		return true
	}
	const hex = "0123456789abcdef"
	if len(rest) < 6 || !bytes.HasPrefix(rest, []byte(`\u00`)) || rest[4] != '0' && rest[4] != '1' {
		return false
	}
	low := bytes.IndexByte([]byte(hex), rest[5])
	w.at += 6
	return low >= 0 && (rest[4] == '1' || bytes.IndexByte([]byte("\b\f\n\r\t"), byte(low)) < 0)
}

// ordered reports whether a name comes before another. It returns false for names with escapes, which need the slow way.
func ordered(a, b []byte) bool {
	if bytes.IndexByte(a, '\\') >= 0 || bytes.IndexByte(b, '\\') >= 0 {
		return false
	}
	if beyondASCII := func(c byte) bool { return c >= utf8.RuneSelf }; slices.ContainsFunc(a, beyondASCII) || slices.ContainsFunc(b, beyondASCII) {
		return slices.Compare(utf16.Encode([]rune(string(a))), utf16.Encode([]rune(string(b)))) < 0
	}
	return bytes.Compare(a, b) < 0
}
