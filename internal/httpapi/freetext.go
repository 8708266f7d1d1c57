package httpapi

import "github.com/brevet-dev/brevet/internal/secret"

// checkText limits the length of a caller's free text in bytes, and refuses text that contains a secret (H82).
func checkText(field, text string) error {
	switch {
	case len(text) > maxReason:
		return &requestError{kind: errInvalid, field: field, detail: field}
	case secret.Shaped(text):
		return &requestError{
			kind: errInvalid, field: field, detail: field + "_secret",
			why: "The text appears to contain a secret, and records are permanent. It was not stored. Send it without the secret.",
		}
	}
	return nil
}
