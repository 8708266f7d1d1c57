package audit

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

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
