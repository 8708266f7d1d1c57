package audit

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Checkpoint is the size of a log at some time, and the root of the tree over that many entries.
type Checkpoint struct {
	// Origin names the log permanently: no two logs have the same origin.
	Origin string
	tlog.Tree
}

var (
	// ErrCheckpoint means that a text is not a checkpoint.
	ErrCheckpoint = errors.New("not a checkpoint (c2sp.org/tlog-checkpoint)")
	// ErrUnsigned means that no known key has signed the checkpoint.
	ErrUnsigned = errors.New("no known key of the log has signed the checkpoint")
)

// String returns the text that is signed. If the origin is empty or has several lines, the text cannot be parsed back.
func (c Checkpoint) String() string {
	return fmt.Sprintf("%s\n%d\n%s\n", c.Origin, c.N, base64.StdEncoding.EncodeToString(c.Hash[:]))
}

// ParseCheckpoint reads the text of a checkpoint. Lines after the third are extensions. This log has none, so
// ParseCheckpoint returns ErrCheckpoint for a text with extensions.
func ParseCheckpoint(text string) (Checkpoint, error) {
	lines := strings.Split(text, "\n")
	if len(lines) != 4 || lines[0] == "" || lines[3] != "" {
		return Checkpoint{}, ErrCheckpoint
	}
	size, err := strconv.ParseInt(lines[1], 10, 64)
	if err != nil || size < 0 {
		return Checkpoint{}, ErrCheckpoint
	}
	root, err := tlog.ParseHash(lines[2])
	if err != nil {
		return Checkpoint{}, ErrCheckpoint
	}
	c := Checkpoint{lines[0], tlog.Tree{N: size, Hash: root}}
	if c.String() != text { // a size or a root has only one spelling
		return Checkpoint{}, ErrCheckpoint
	}
	return c, nil
}

// OpenCheckpoint reads a signed checkpoint of the log that origin names. It returns ErrUnsigned unless one of the keys has
// signed the checkpoint.
func OpenCheckpoint(signed []byte, origin string, keys note.Verifiers) (Checkpoint, error) {
	opened, err := note.Open(signed, keys)
	var unverified *note.UnverifiedNoteError
	var invalid *note.InvalidSignatureError
	switch {
	case errors.As(err, &unverified), errors.As(err, &invalid):
		if name, _, _ := strings.Cut(string(signed), "\n"); name != origin {
			return Checkpoint{}, fmt.Errorf("%w: it belongs to the log %q, not %q", ErrUnsigned, name, origin)
		}
		return Checkpoint{}, ErrUnsigned
	case err != nil:
		return Checkpoint{}, ErrCheckpoint
	}
	c, err := ParseCheckpoint(opened.Text)
	if err == nil && c.Origin != origin {
		err = fmt.Errorf("%w: it belongs to the log %q, not %q", ErrUnsigned, c.Origin, origin)
	}
	return c, err
}

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
		raw, err := base64.StdEncoding.DecodeString(s.Base64)
		if err != nil || len(raw) < idSize+timeSize {
			continue // it was not verified
		}
		if made := time.Unix(int64(binary.BigEndian.Uint64(raw[idSize:])), 0).UTC(); made.After(last) {
			last = made
		}
	}
	return names, last, nil
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

// ErrNotYet means that an entry is in the log but no checkpoint covers it yet. One does within a second or two.
var ErrNotYet = errors.New("no checkpoint covers it yet")

// ErrTooLarge means that a task has more entries than a receipt can hold.
var ErrTooLarge = errors.New("it has more entries than a receipt can hold")

// ErrReceipt means that a receipt does not prove what it claims.
var ErrReceipt = errors.New("the receipt is not valid")

// Receipt proves that entries of one issuance, or of one task, are in a log. To verify it, the reader needs only the log's
// public key. It does not prove that there are no other entries: that takes the whole log.
type Receipt struct {
	Version int `json:"version"` // 1
	// Issuance is the id of an issuance. Approves is the id of the request that people approved for it, if there is one.
	Issuance string `json:"issuance,omitempty"`
	Approves string `json:"approves,omitempty"`
	// SPIFFEID and Task name a task in place of an issuance.
	SPIFFEID string `json:"spiffe_id,omitempty"`
	Task     string `json:"task,omitempty"`
	// Checkpoint is a signed checkpoint that covers all the entries.
	Checkpoint string         `json:"checkpoint"`
	Entries    []ReceiptEntry `json:"entries"`
}

// LogEntry is one entry, byte for byte.
type LogEntry struct {
	Index int64  `json:"index"`
	Body  string `json:"body"`
}

// ReceiptEntry is one entry, byte for byte, with the proof that it is in the tree of the checkpoint (RFC 6962, 2.1.1).
type ReceiptEntry struct {
	Index int64            `json:"index"`
	Body  string           `json:"body"`
	Proof tlog.RecordProof `json:"proof"`
}

// Verify returns the checkpoint if one of the log's keys proves everything that the receipt claims, whatever the log's name
// was at that time. Otherwise it returns ErrReceipt or an error as of [OpenCheckpoint].
func (r Receipt) Verify(keys note.Verifiers) (Checkpoint, error) {
	if keys == nil {
		return Checkpoint{}, ErrUnsigned
	}
	c, err := Config{Keys: keys}.Open(r.Checkpoint)
	if err != nil {
		return Checkpoint{}, err
	}
	if r.Version != 1 || len(r.Entries) == 0 {
		return Checkpoint{}, fmt.Errorf("%w: it has no entries, or an unknown version", ErrReceipt)
	}
	before, known := int64(-1), map[string]bool{r.Issuance: r.Issuance != "", r.Approves: r.Approves != ""}
	for _, e := range r.Entries {
		switch {
		case !r.concerns(e, known):
			return Checkpoint{}, fmt.Errorf("%w: entry %d does not belong to it", ErrReceipt, e.Index)
		case e.Index <= before:
			return Checkpoint{}, fmt.Errorf("%w: entry %d is out of order", ErrReceipt, e.Index)
		case e.Index >= c.N || tlog.CheckRecord(e.Proof, c.N, c.Hash, e.Index, tlog.RecordHash([]byte(e.Body))) != nil:
			return Checkpoint{}, fmt.Errorf("%w: entry %d is not in the log in this form", ErrReceipt, e.Index)
		}
		before = e.Index
	}
	return c, nil
}

// concerns reports whether an entry belongs to the receipt's issuance or task: it has a known id, it begins a request of
// the task, or it ends the task. It adds the id of such an entry to known.
func (r Receipt) concerns(e ReceiptEntry, known map[string]bool) bool {
	var body struct {
		ID      string `json:"id"`
		Subject struct {
			SPIFFEID string `json:"spiffe_id"`
		} `json:"subject"`
		Request struct {
			Task string `json:"task"`
		} `json:"request"`
		Target struct {
			SPIFFEID string `json:"spiffe_id"`
			Task     string `json:"task"`
		} `json:"target"`
	}
	if json.Unmarshal([]byte(e.Body), &body) != nil || body.ID == "" {
		return false
	}
	if r.Task != "" && (body.Subject.SPIFFEID == r.SPIFFEID && body.Request.Task == r.Task ||
		body.Target.SPIFFEID == r.SPIFFEID && body.Target.Task == r.Task) {
		known[body.ID] = true
	}
	return known[body.ID]
}
