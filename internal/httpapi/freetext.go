package httpapi

import "github.com/brevet-dev/brevet/internal/secret"

// checkText bounds somebody's free text, in bytes, and keeps secrets out of it (H82).
func checkText(field, text string) error {
	switch {
	case len(text) > maxReason:
		return &requestError{kind: errInvalid, field: field, detail: field}
	case secret.Shaped(text):
		return &requestError{
			kind: errInvalid, field: field, detail: field + "_secret",
			why: "It holds what looks like a secret, and records are kept for good. It was not kept. Say it without.",
		}
	}
	return nil
}
