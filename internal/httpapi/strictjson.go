package httpapi

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	// maxBody is the largest body, in bytes, and maxCatalogue that of one with a catalogue. The text of errTooLarge names
	// them.
	maxBody, maxCatalogue = 64 << 10, 8 << 20
	// maxDepth is how deep a body may nest.
	maxDepth = 32
	// maxTokens is how many names, values and brackets a body may have.
	maxTokens = 2000
)

func malformed(detail string) error { return &requestError{kind: errMalformedBody, detail: detail} }

// readBody returns the body's bytes once they are known to be one strict JSON object whose members are all among
// members.
func readBody(w http.ResponseWriter, r *http.Request, members map[string]bool) ([]byte, error) {
	return readBodyUpTo(w, r, members, maxBody)
}

func readBodyUpTo(w http.ResponseWriter, r *http.Request, members map[string]bool, most int64) ([]byte, error) {
	if err := checkBodyHeaders(r, "application/json", most); err != nil {
		return nil, err
	}
	body, err := readAll(w, r, most)
	if err != nil {
		return nil, err
	}
	return body, checkObject(body, members)
}

func readAll(w http.ResponseWriter, r *http.Request, most int64) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return nil, &requestError{kind: errTooLarge, detail: "body_size"}
	}
	if err != nil {
		return nil, malformed("body_incomplete")
	}
	return body, nil
}

func checkBodyHeaders(r *http.Request, wanted string, most int64) error {
	// A transfer coding is how a body is smuggled past a proxy, and a body this small has no use for one.
	if len(r.TransferEncoding) > 0 {
		return malformed("transfer_encoding")
	}
	if len(r.Header.Values("Content-Encoding")) > 0 {
		return &requestError{kind: errMediaType, detail: "content_encoding"}
	}
	types := r.Header.Values("Content-Type")
	if len(types) != 1 {
		return &requestError{kind: errMediaType, detail: "content_type"}
	}
	mediaType, params, err := mime.ParseMediaType(types[0])
	if err != nil || mediaType != wanted {
		return &requestError{kind: errMediaType, detail: "content_type"}
	}
	for name, value := range params {
		if name != "charset" || !strings.EqualFold(value, "utf-8") {
			return &requestError{kind: errMediaType, detail: "content_type"}
		}
	}
	if r.ContentLength > most {
		return &requestError{kind: errTooLarge, detail: "body_size"}
	}
	return nil
}

// checkObject accepts exactly one JSON object (RFC 7493: no duplicate names, valid UTF-8, no lone surrogates) of
// bounded depth and size, without NUL, whose own members are all in members.
func checkObject(body []byte, members map[string]bool) error {
	if !utf8.Valid(body) {
		return malformed("utf8")
	}
	d := jsontext.NewDecoder(bytes.NewReader(body))
	if d.PeekKind() != '{' {
		return malformed("not_an_object")
	}
	for tokens := 1; ; tokens++ {
		token, err := d.ReadToken()
		switch {
		case err != nil:
			return syntaxError(err)
		case d.StackDepth() == 0:
			return checkEnd(d)
		case d.StackDepth() > maxDepth:
			return malformed("too_deep")
		case tokens > maxTokens:
			return malformed("too_many_tokens")
		case token.Kind() != '"':
			continue
		}
		text := token.String()
		if strings.ContainsRune(text, 0) {
			return malformed("nul_character")
		}
		// After a member's name the object has seen an odd number of names and values.
		if _, n := d.StackIndex(d.StackDepth()); d.StackDepth() == 1 && n%2 == 1 && !members[text] {
			return malformed("unknown_member")
		}
	}
}

func checkEnd(d *jsontext.Decoder) error {
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return malformed("trailing_data")
	}
	return nil
}

func syntaxError(err error) error {
	if errors.Is(err, jsontext.ErrDuplicateName) {
		return malformed("duplicate_member")
	}
	return malformed("syntax")
}
