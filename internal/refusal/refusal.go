// Package refusal has the error type for a credential that Brevet rejects: an SVID, an ID token, an access token or a DPoP
// proof. The error texts never quote the credential.
package refusal

import "errors"

// Error is a refusal with a stable reason code, which can be recorded and searched for.
type Error struct {
	pkg, reason, text string
	kind              error
}

// New returns a refusal by the package pkg.
func New(pkg, reason, text string) *Error { return &Error{pkg: pkg, reason: reason, text: text} }

// Of returns a refusal by the package pkg that also matches kind with [errors.Is].
func Of(kind error, pkg, reason, text string) *Error { return &Error{pkg, reason, text, kind} }

// Error returns the package and the text.
func (e *Error) Error() string { return e.pkg + ": " + e.text }

// Unwrap returns the kind of the refusal, or nil if it has none.
func (e *Error) Unwrap() error { return e.kind }

// By reports whether err is a refusal by the package pkg.
func By(pkg string, err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.pkg == pkg
}

// Reason returns the code of err for the record. It returns "" for nil, and "internal" for an error that is not a refusal.
func Reason(err error) string {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.reason
	}
	return "internal"
}
