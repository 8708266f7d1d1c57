package audit

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/mod/sumdb/note"
)

const (
	// cosignatureV1 is the type of an Ed25519 key for cosignatures (c2sp.org/tlog-cosignature).
	cosignatureV1 = 0x04
	// idSize and timeSize are the lengths of the parts before a signature, in bytes.
	idSize, timeSize = 4, 8
)

var (
	// ErrCosigner means that a text is not a witness's key.
	ErrCosigner = errors.New("not an Ed25519 witness key (c2sp.org/tlog-cosignature)")
	// ErrCosignature means that a note has a cosignature that its witness did not make.
	ErrCosignature = errors.New("a cosignature does not verify")
)

// Cosigner is the public key of a witness. It implements [note.Verifier].
type Cosigner struct {
	name string
	id   uint32
	key  ed25519.PublicKey
}

// ParseCosigner reads a key in the form of c2sp.org/signed-note: name+id+base64.
func ParseCosigner(text string) (*Cosigner, error) {
	name, rest, _ := strings.Cut(text, "+")
	id, encoded, _ := strings.Cut(rest, "+")
	key, err := base64.StdEncoding.Strict().DecodeString(encoded)
	switch {
	case name == "" || !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsSpace):
		return nil, fmt.Errorf("%w: it has no name", ErrCosigner)
	case err != nil || len(key) != 1+ed25519.PublicKeySize || key[0] != cosignatureV1:
		return nil, fmt.Errorf("%w: it has another type, or is damaged", ErrCosigner)
	}
	sum := sha256.Sum256(append([]byte(name+"\n"), key...))
	if id != fmt.Sprintf("%x", sum[:idSize]) {
		return nil, fmt.Errorf("%w: its id does not match the key", ErrCosigner)
	}
	return &Cosigner{name, binary.BigEndian.Uint32(sum[:]), key[1:]}, nil
}

// Name implements [note.Verifier].
func (c *Cosigner) Name() string { return c.name }

// KeyHash implements [note.Verifier].
func (c *Cosigner) KeyHash() uint32 { return c.id }

// Verify implements [note.Verifier]. The signature begins with the time when it was made, in seconds.
func (c *Cosigner) Verify(msg, signature []byte) bool {
	if len(signature) != timeSize+ed25519.SignatureSize {
		return false
	}
	made := binary.BigEndian.Uint64(signature)
	signed := fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s", made, msg)
	return made <= math.MaxInt64 && ed25519.Verify(c.key, signed, signature[timeSize:])
}

// Cosigned returns the names of the keys of the witnesses that have cosigned a checkpoint, and the time of the last
// cosignature. It does not check the log's own signature: [OpenCheckpoint] does.
func Cosigned(signed []byte, witnesses ...*Cosigner) (names []string, last time.Time, err error) {
	var known []note.Verifier
	for _, w := range witnesses {
		known = append(known, w)
	}
	opened, err := note.Open(signed, note.VerifierList(known...))
	var unverified *note.UnverifiedNoteError
	var invalid *note.InvalidSignatureError
	switch {
	case errors.As(err, &unverified):
		return nil, time.Time{}, nil
	case errors.As(err, &invalid):
		return nil, time.Time{}, fmt.Errorf("%w: %s", ErrCosignature, invalid.Name)
	case err != nil:
		return nil, time.Time{}, ErrCheckpoint
	}
	for _, s := range opened.Sigs {
		names = append(names, s.Name)
		if made := madeAt(s); made.After(last) {
			last = made
		}
	}
	return names, last, nil
}

// madeAt returns the time in a verified cosignature.
func madeAt(s note.Signature) time.Time {
	raw, err := base64.StdEncoding.DecodeString(s.Base64)
	if err != nil || len(raw) < idSize+timeSize {
		return time.Time{} // it was not verified
	}
	return time.Unix(int64(binary.BigEndian.Uint64(raw[idSize:])), 0).UTC()
}

// Cosignature returns the line that the witness has made for a checkpoint. The other lines may come from anybody. It
// returns ErrCosignature if lines contains no valid one.
func (c *Cosigner) Cosignature(signed, lines []byte) (string, error) {
	whole := append(bytes.Clone(signed), lines...)
	opened, err := note.Open(whole, note.VerifierList(c))
	if err != nil {
		return "", fmt.Errorf("%w: %s", ErrCosignature, c.name)
	}
	return fmt.Sprintf("— %s %s\n", opened.Sigs[0].Name, opened.Sigs[0].Base64), nil
}
