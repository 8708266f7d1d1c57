// Package secret has the one type that holds a credential.
//
// It must never reveal the credential except through Reveal.
package secret

import (
	"fmt"
	"log/slog"
)

const redacted = "REDACTED"

// Text holds the bytes of a credential. Printing, logging or encoding it yields REDACTED.
type Text struct {
	// A pointer, because fmt can't call methods on an unexported field that holds a Text. With a string, fmt would print the
	// secret; with a pointer, it prints an address.
	value *string
}

// New wraps a value that must stay secret.
func New(value string) Text { return Text{&value} }

// Reveal returns the credential, or "" for the zero Text. A program should call it in one place only.
func (t Text) Reveal() string {
	if t.value == nil {
		return ""
	}
	return *t.value
}

func (Text) String() string               { return redacted }
func (Text) GoString() string             { return redacted }
func (Text) Format(f fmt.State, _ rune)   { _, _ = f.Write([]byte(redacted)) }
func (Text) LogValue() slog.Value         { return slog.StringValue(redacted) }
func (Text) MarshalText() ([]byte, error) { return []byte(redacted), nil }
func (Text) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }
