package httpapi

import (
	"net/http"
	"strings"
)

// maxIdempotencyKey is the maximum length of a key in characters, without quotes.
const maxIdempotencyKey = 255

// idempotencyKey reads the value of the header: printable ASCII, or the same as a string of RFC 8941 (in double quotes, with a
// backslash before quotes and backslashes). Both spellings are the same key. It returns "" if the caller sent no key.
func idempotencyKey(r *http.Request) (string, error) {
	bad := &requestError{kind: errParameter, field: "Idempotency-Key", detail: "idempotency_key"}
	values := r.Header.Values("Idempotency-Key")
	if len(values) == 0 {
		return "", nil
	}
	key := values[0]
	if strings.HasPrefix(key, `"`) {
		unquoted, ok := unquote(key)
		if !ok {
			return "", bad
		}
		key = unquoted
	}
	if len(values) > 1 || key == "" || len(key) > maxIdempotencyKey {
		return "", bad
	}
	for i := range len(key) {
		if key[i] < ' ' || key[i] > '~' {
			return "", bad
		}
	}
	return key, nil
}

func unquote(s string) (string, bool) {
	if len(s) < 2 || !strings.HasSuffix(s, `"`) {
		return "", false
	}
	var b strings.Builder
	inner := s[1 : len(s)-1]
	for i := 0; i < len(inner); i++ {
		switch inner[i] {
		case '"':
			return "", false
		case '\\':
			i++
			if i == len(inner) || (inner[i] != '"' && inner[i] != '\\') {
				return "", false
			}
		}
		b.WriteByte(inner[i])
	}
	return b.String(), true
}
