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
	// shortest is the length, in bytes, from which on a secret is masked: a shorter one would be found in any text.
	shortest = 8
	// maskAtOnce is how much of a body is looked at in one go.
	maskAtOnce = 32 << 10
)

// mask hides secrets in what a host answers, by their value. What it puts in their place is as long, so that no length that
// was announced is wrong.
type mask struct{ secrets, stars []string }

// spellings are the ways in which hosts write what they were sent: as it is, and escaped for URLs, such as in the Location of a
// redirect, for JSON, and for HTML.
func spellings(text string) []secret.Text {
	all := []string{text, html.EscapeString(text)}
	query := url.QueryEscape(text)
	component := strings.ReplaceAll(query, "+", "%20")
	for _, one := range []string{query, component, inScripts.Replace(component), url.PathEscape(text)} {
		all = append(all, one, escape.ReplaceAllStringFunc(one, strings.ToLower))
	}
	quoted, _ := json.Marshal(text) // a text always can be
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
	// inScripts is what encodeURIComponent leaves as it is.
	inScripts = strings.NewReplacer("%21", "!", "%27", "'", "%28", "(", "%29", ")", "%2A", "*")
	// inJSON is what has to be escaped; json.Marshal does more, for HTML.
	inJSON = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\t", `\t`)
)

func newMask(texts []secret.Text) mask {
	var m mask
	for _, text := range texts {
		if s := text.Reveal(); len(s) >= shortest {
			m.secrets, m.stars = append(m.secrets, s), append(m.stars, strings.Repeat("*", len(s)))
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

func (m mask) header(h http.Header) {
	for _, values := range h {
		for i, value := range values {
			values[i] = m.text(value)
		}
	}
}

// body returns what is read from b with the secrets masked, and trailers with them, once b is read. length is -1 when it is not known.
func (m mask) body(b io.ReadCloser, length int64, trailer func() http.Header) io.ReadCloser {
	if len(m.secrets) == 0 {
		return b
	}
	atOnce := maskAtOnce
	if length >= 0 && length < maskAtOnce {
		atOnce = int(length) + 1 // one more, to meet the end
	}
	return &maskedBody{ReadCloser: b, mask: m, atOnce: atOnce, trailer: trailer}
}

type maskedBody struct {
	io.ReadCloser
	mask    mask
	atOnce  int // how much of the body is read in one go
	trailer func() http.Header

	room  []byte // where chunk lies
	chunk []byte // what is read and not given out
	clean int    // how much of chunk can be given out
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

// fill reads on, and keeps back what may be the beginning of a secret.
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
		b.mask.header(b.trailer())
	}
}

// begins is how many bytes at the end of chunk are the beginning of one.
func begins(chunk []byte, one string) int {
	tail := chunk[max(0, len(chunk)-len(one)+1):]
	for {
		at := bytes.IndexByte(tail, one[0])
		if at < 0 {
			return 0
		}
		tail = tail[at:]
		if one[:len(tail)] == string(tail) { // which takes no memory
			return len(tail)
		}
		tail = tail[1:]
	}
}
