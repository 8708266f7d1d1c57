// Package secret holds the one type that a credential travels in.
//
// It must never show its content by any way but Reveal.
package secret

import (
	"fmt"
	"log/slog"
)

const redacted = "REDACTED"

// Text holds the bytes of a credential. Whatever prints, logs or encodes it shows REDACTED.
type Text struct {
	// A pointer, because fmt cannot call methods on an unexported field that holds a Text: it would print the string,
	// and prints an address instead.
	value *string
}

// New wraps a value that must not be seen.
func New(value string) Text { return Text{&value} }

// Reveal returns the bytes, empty for the zero Text. A program calls it in one place.
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
