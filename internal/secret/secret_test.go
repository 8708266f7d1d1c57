package secret_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/secret"
)

// I9 and T10: whoever prints, logs or encodes a secret by mistake writes REDACTED.
func TestSecretIsNeverPrinted(t *testing.T) {
	text := secret.New("hvs.CANARY")
	encoded, err := json.Marshal(map[string]any{"a": text, "b": &text, "c": []secret.Text{text}})
	if err != nil {
		t.Fatal(err)
	}
	var logged bytes.Buffer
	slog.New(slog.NewJSONHandler(&logged, nil)).Info("x", "secret", text, "in", struct{ S secret.Text }{text})
	asText, err := text.MarshalText() // as keys of JSON objects, XML and most configuration formats do
	if err != nil {
		t.Fatal(err)
	}
	shown := []string{string(encoded), string(asText), logged.String(), fmt.Sprint(text), text.String()}
	for _, verb := range []string{"%s", "%v", "%+v", "%#v", "%q", "%x", "%d"} {
		shown = append(shown, fmt.Sprintf(verb, text), fmt.Sprintf(verb, &text), fmt.Sprintf(verb, []any{text}),
			fmt.Sprintf(verb, struct{ S secret.Text }{text}), fmt.Sprintf(verb, struct{ s secret.Text }{text}))
	}
	for _, s := range shown {
		if strings.Contains(s, "CANARY") || strings.Contains(s, fmt.Sprintf("%x", "CANARY")) {
			t.Errorf("shown: %s", s)
		}
	}
	if got := text.Reveal(); got != "hvs.CANARY" {
		t.Errorf("got %q back", got)
	}
	if got := (secret.Text{}).Reveal(); got != "" {
		t.Errorf("got %q from the zero value", got)
	}
}

func TestShaped(t *testing.T) {
	for text, want := range map[string]bool{
		"see hvs.CAESIJ0000000000000000000000 there": true, "-----BEGIN EC PRIVATE KEY-----": true,
		"eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhIn19.c2ln": true, "hvs.short": false, "close the milestone of #42": false,
	} {
		if got := secret.Shaped(text); got != want {
			t.Errorf("%q: got %t, want %t", text, got, want)
		}
	}
}
