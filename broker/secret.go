package broker

import (
	"fmt"
	"log/slog"
)

const redacted = "REDACTED"

// Secret holds the bytes of a credential. Whatever prints, logs or encodes it shows REDACTED.
type Secret struct {
	// A pointer, because fmt cannot call methods on an unexported field that holds a Secret: it would print the
	// string, and prints an address instead.
	value *string
}

// NewSecret wraps a value that must not be seen.
func NewSecret(value string) Secret { return Secret{&value} }

// Reveal returns the bytes, empty for the zero Secret. The server calls it in one place, when the answer is written.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

func (Secret) String() string               { return redacted }
func (Secret) GoString() string             { return redacted }
func (Secret) Format(f fmt.State, _ rune)   { _, _ = f.Write([]byte(redacted)) }
func (Secret) LogValue() slog.Value         { return slog.StringValue(redacted) }
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }
