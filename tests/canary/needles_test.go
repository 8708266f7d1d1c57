package canary_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"log/slog"
	"math/big"
	"net/url"
	"strconv"
	"strings"
	"testing"
)

// spellings are the forms in which a secret may have been written: as it is, in base64 at any offset of the encoded text, in hex,
// URL-encoded, and as Go prints keys and bytes (%v as decimal numbers, slog in quotes).
func spellings(secret string) map[string]string {
	all := map[string]string{
		"as it is": secret, "hex": hex.EncodeToString([]byte(secret)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(secret))),
		"URL": url.QueryEscape(secret), "%": percent(secret),
		"number": decimal(secret), "bytes": listed(secret),
	}
	if in := quoted(secret); in != secret {
		all["quoted"] = in
	}
	for name, encoding := range map[string]*base64.Encoding{"base64": base64.RawStdEncoding, "base64url": base64.RawURLEncoding} {
		for before := range 3 {
			all[fmt.Sprintf("%s+%d", name, before)] = inside(encoding, secret, before)
		}
	}
	return all
}

// decimal returns a private key's number in decimal.
func decimal(secret string) string { return new(big.Int).SetBytes([]byte(secret)).String() }

func listed(secret string) string { return strings.Trim(fmt.Sprintf("%d", []byte(secret)), "[]") }

func quoted(secret string) string {
	in := strconv.Quote(secret)
	return in[1 : len(in)-1]
}

func percent(secret string) string {
	var out strings.Builder
	for _, b := range []byte(secret) {
		fmt.Fprintf(&out, "%%%02X", b)
	}
	return out.String()
}

// inside returns the part of a base64 encoding that depends only on the secret, when the secret comes after that many bytes.
func inside(encoding *base64.Encoding, secret string, before int) string {
	encoded := encoding.EncodeToString([]byte(strings.Repeat("\x00", before) + secret))
	return encoded[(before*8+5)/6 : (before+len(secret))*8/6]
}

// written returns a text that holds the secret in every spelling, between other text.
func written(secret string) string {
	longer := "-" + secret + "-"
	parts := []string{secret, hex.EncodeToString([]byte(longer)), strings.ToUpper(hex.EncodeToString([]byte(longer))), url.QueryEscape(longer), percent(secret)}
	parts = append(parts, decimal(secret), fmt.Sprintf("%d", []byte(longer)), strconv.Quote(longer))
	for before := range 3 {
		text := []byte(strings.Repeat("x", before) + secret + "yz")
		parts = append(parts, base64.StdEncoding.EncodeToString(text), base64.URLEncoding.EncodeToString(text))
	}
	return strings.Join(parts, " ")
}

// hay searches for many needles at once. At each position it compares two bytes first, and then six.
type hay struct {
	starts [1 << 16]bool
	by     map[[6]byte][]needle
}

type needle struct{ of, spelling, text string }

func lookFor(secrets map[string]string) *hay {
	h := &hay{by: map[[6]byte][]needle{}}
	for of, secret := range secrets {
		for spelling, text := range spellings(secret) {
			start := [6]byte([]byte(text))
			h.starts[int(start[0])<<8|int(start[1])] = true
			h.by[start] = append(h.by[start], needle{of, spelling, text})
		}
	}
	return h
}

// in adds to found the needles in a text, and returns found.
func (h *hay) in(text []byte, found map[needle]bool) map[needle]bool {
	for i := 0; i+6 <= len(text); i++ {
		if !h.starts[int(text[i])<<8|int(text[i+1])] {
			continue
		}
		for _, n := range h.by[[6]byte(text[i:i+6])] {
			if bytes.HasPrefix(text[i:], []byte(n.text)) {
				found[n] = true
			}
		}
	}
	return found
}

// Every spelling of a secret is found wherever it stands, and nothing is found in a text without it.
func TestSpellings(t *testing.T) {
	for secret, other := range map[string]string{
		"correct/horse+battery=staple":   "correct/horse+battery=stable",
		"\xa5\xf1\"raw\x00bytes\x07\xfe": "\xa5\xf1\"row\x00bytes\x07\xfe",
	} {
		h := lookFor(map[string]string{"it": secret})
		want := len(spellings(secret))
		for before := range 7 {
			if got := len(h.in([]byte(strings.Repeat("A", before)+written(secret)), map[needle]bool{})); got != want {
				t.Errorf("found %d spellings of %d", got, want)
			}
		}
		if got := h.in([]byte(written(other)), map[needle]bool{}); len(got) != 0 {
			t.Errorf("found %v where there is none", got)
		}
	}
}

// A private key is found in the form in which Go itself prints it.
func TestPrintedKeys(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	number, err := key.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	h := lookFor(map[string]string{"it": string(number)})
	var log bytes.Buffer
	to := slog.New(slog.NewTextHandler(&log, nil))
	for name, print := range map[string]func(){
		"key in slog":        func() { to.Info("x", "key", key) },
		"bytes in slog":      func() { to.Info("x", "key", number) },
		"text in slog":       func() { to.Info("x", "key", string(number)) },
		"key as %v":          func() { fmt.Fprintf(&log, "%v", key) },
		"bytes as %v":        func() { fmt.Fprintf(&log, "%v", number) },
		"bytes as %x":        func() { fmt.Fprintf(&log, "%x", number) },
		"text as %q":         func() { fmt.Fprintf(&log, "%q", number) },
		"number as a number": func() { fmt.Fprint(&log, new(big.Int).SetBytes(number)) },
	} {
		log.Reset()
		print()
		if len(h.in(log.Bytes(), map[needle]bool{})) == 0 {
			t.Errorf("%s: not found in %d bytes", name, log.Len())
		}
	}
}
