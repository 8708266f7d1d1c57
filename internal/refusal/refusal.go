// Package refusal has the errors by which a credential from outside is refused: an SVID, an ID token, an access token or a DPoP
// proof. Their texts never quote the credential.
package refusal

import "errors"

// Error is a refusal with a reason code that is stable, so that it can be recorded and searched for.
type Error struct {
	pkg, reason, text string
	kind              error
}

// New returns a refusal by a package.
func New(pkg, reason, text string) *Error { return &Error{pkg: pkg, reason: reason, text: text} }

// Of returns a refusal by a package that [errors.Is] finds to be kind, too.
func Of(kind error, pkg, reason, text string) *Error { return &Error{pkg, reason, text, kind} }

// Error tells the package and the text.
func (e *Error) Error() string { return e.pkg + ": " + e.text }

// Unwrap returns the refusal that this one is a kind of, nil for none.
func (e *Error) Unwrap() error { return e.kind }

// By tells whether err is a refusal by a package.
func By(pkg string, err error) bool {
	var e *Error
	return errors.As(err, &e) && e.pkg == pkg
}

// Reason returns the code of err for the record, "" for nil, and "internal" for an error that is no refusal.
func Reason(err error) string {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.reason
	}
	return "internal"
}
