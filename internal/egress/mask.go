package egress

import (
	"bytes"
	"encoding/json"
	"html"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/brevet-dev/brevet/internal/secret"
)

const (
	// shortest is the least length, in bytes, of a secret that is masked. A shorter one would match in any text.
	shortest = 8
	// maskAtOnce is how many bytes of a body are searched at once.
	maskAtOnce = 32 << 10
)

// mask replaces secrets in responses by their value. The replacement has the same length, so an announced length stays right.
type mask struct{ secrets, stars, lower []string }

// spellings returns the forms in which hosts echo a secret: as it is, and escaped for URLs (such as in the Location of a
// redirect), for JSON, and for HTML.
func spellings(text string) []secret.Text {
	all := []string{text, html.EscapeString(text)}
	query := url.QueryEscape(text)
	component := strings.ReplaceAll(query, "+", "%20")
	for _, one := range []string{query, component, inScripts.Replace(component), url.PathEscape(text)} {
		all = append(all, one, escape.ReplaceAllStringFunc(one, strings.ToLower))
	}
	for _, program := range programs {
		all = append(all, program.Replace(text))
	}
	quoted, _ := json.Marshal(text) // a string always encodes
	for _, one := range []string{inJSON.Replace(text), string(quoted[1 : len(quoted)-1])} {
		all = append(all, one, strings.ReplaceAll(one, "/", `\/`))
	}
	slices.Sort(all)
	var out []secret.Text
	for _, one := range slices.Compact(all) {
		out = append(out, secret.New(one))
	}
	return out
}

var (
	escape = regexp.MustCompile(`%[0-9A-F]{2}`)
	// inScripts undoes the escapes that encodeURIComponent does not make.
	inScripts = strings.NewReplacer("%21", "!", "%27", "'", "%28", "(", "%29", ")", "%2A", "*")
	// inJSON makes only the escapes that JSON requires. json.Marshal also escapes for HTML.
	inJSON = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\t", `\t`)
	// programs escape as common encoders do that escape more than is required, such as the + / and = of base64: System.Text.Json of
	// .NET and Gson of Java in JSON, and html/template of Go, Python, PHP, Handlebars and Mustache in HTML.
	programs = []*strings.Replacer{
		strings.NewReplacer(`\`, `\\`, "\t", `\t`, "+", `\u002B`, "&", `\u0026`, `"`, `\u0022`, "<", `\u003C`, ">", `\u003E`, "'", `\u0027`, "`", `\u0060`),
		strings.NewReplacer(`\`, `\\`, "\t", `\t`, `"`, `\"`, "=", `\u003d`, "&", `\u0026`, "<", `\u003c`, ">", `\u003e`, "'", `\u0027`),
		strings.NewReplacer("+", "&#43;", "&", "&amp;", `"`, "&#34;", "<", "&lt;", ">", "&gt;", "'", "&#39;"),
		strings.NewReplacer("&", "&amp;", `"`, "&quot;", "<", "&lt;", ">", "&gt;", "'", "&#x27;"),
		strings.NewReplacer("&", "&amp;", `"`, "&quot;", "<", "&lt;", ">", "&gt;", "'", "&#039;"),
		strings.NewReplacer("&", "&amp;", `"`, "&quot;", "<", "&lt;", ">", "&gt;", "'", "&#x27;", "=", "&#x3D;", "`", "&#x60;"),
		strings.NewReplacer("&", "&amp;", `"`, "&quot;", "<", "&lt;", ">", "&gt;", "'", "&#39;", "=", "&#x3D;", "`", "&#x60;", "/", "&#x2F;"),
	}
)

func newMask(texts []secret.Text) mask {
	var m mask
	for _, text := range texts {
		if s := text.Reveal(); len(s) >= shortest {
			m.secrets, m.stars, m.lower = append(m.secrets, s), append(m.stars, strings.Repeat("*", len(s))), append(m.lower, strings.ToLower(s))
		}
	}
	return m
}

func (m mask) text(s string) string {
	for i, one := range m.secrets {
		s = strings.ReplaceAll(s, one, m.stars[i])
	}
	return s
}

// header masks the values of fields, and removes the fields that have a secret as a part of their name. Names have no case.
func (m mask) header(h http.Header) {
	for name, values := range h {
		folded := strings.ToLower(name)
		if slices.ContainsFunc(m.lower, func(one string) bool { return strings.Contains(folded, one) }) {
			delete(h, name)
			continue
		}
		for i, value := range values {
			values[i] = m.text(value)
		}
	}
}

// body returns a reader of b with the secrets masked, which calls ended once b is read. length is -1 if unknown.
func (m mask) body(b io.ReadCloser, length int64, ended func()) io.ReadCloser {
	if len(m.secrets) == 0 {
		return &plainBody{b, ended}
	}
	atOnce := maskAtOnce
	if length >= 0 && length < maskAtOnce {
		atOnce = int(length) + 1 // one more byte, to read EOF
	}
	return &maskedBody{ReadCloser: b, mask: m, atOnce: atOnce, ended: ended}
}

type plainBody struct {
	io.ReadCloser
	ended func()
}

func (b *plainBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.ended()
	}
	return n, err
}

type maskedBody struct {
	io.ReadCloser
	mask   mask
	atOnce int // how many bytes of the body are read at once
	ended  func()

	room  []byte // the buffer that holds chunk
	chunk []byte // bytes that are read and not yet returned
	clean int    // how many bytes of chunk can be returned
	err   error
}

func (b *maskedBody) Read(p []byte) (int, error) {
	for b.clean == 0 && b.err == nil {
		b.fill()
	}
	if b.clean == 0 {
		return 0, b.err
	}
	n := copy(p, b.chunk[:b.clean])
	b.chunk, b.clean = b.chunk[n:], b.clean-n
	return n, nil
}

// fill reads more of the body, and holds back an end that may be the start of a secret.
func (b *maskedBody) fill() {
	if need := len(b.chunk) + b.atOnce; len(b.room) < need {
		room := make([]byte, need)
		copy(room, b.chunk)
		b.room = room
	} else {
		copy(b.room, b.chunk)
	}
	n, err := b.ReadCloser.Read(b.room[len(b.chunk):])
	b.chunk, b.err = b.room[:len(b.chunk)+n], err
	begun := 0
	for i, one := range b.mask.secrets {
		for rest := b.chunk; ; {
			at := bytes.Index(rest, []byte(one))
			if at < 0 {
				break
			}
			rest = rest[at+copy(rest[at:], b.mask.stars[i]):]
		}
		begun = max(begun, begins(b.chunk, one))
	}
	if b.clean = len(b.chunk) - begun; err != nil {
		b.clean = len(b.chunk)
		b.ended()
	}
}

// begins returns how many bytes at the end of chunk are the start of one.
func begins(chunk []byte, one string) int {
	tail := chunk[max(0, len(chunk)-len(one)+1):]
	for {
		at := bytes.IndexByte(tail, one[0])
		if at < 0 {
			return 0
		}
		tail = tail[at:]
		if one[:len(tail)] == string(tail) { // this conversion does not allocate
			return len(tail)
		}
		tail = tail[1:]
	}
}
