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

// Checkpoint is the size of a log at some time, and the root of the tree over so many entries.
type Checkpoint struct {
	// Origin names the log, for good: no two logs have the same.
	Origin string
	tlog.Tree
}

var (
	// ErrCheckpoint is of a text that is no checkpoint.
	ErrCheckpoint = errors.New("no checkpoint as in c2sp.org/tlog-checkpoint")
	// ErrUnsigned is of a checkpoint that no known key has signed.
	ErrUnsigned = errors.New("no known key of the log has signed the checkpoint")
)

// String is the text that is signed. Without an origin, or with one of several lines, it is not one that can be read back.
func (c Checkpoint) String() string {
	return fmt.Sprintf("%s\n%d\n%s\n", c.Origin, c.N, base64.StdEncoding.EncodeToString(c.Hash[:]))
}

// ParseCheckpoint reads the text of a checkpoint. Lines after the third are extensions: this log has none, so it takes
// none.
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
	if c.String() != text { // a size or a root has one spelling
		return Checkpoint{}, ErrCheckpoint
	}
	return c, nil
}

// OpenCheckpoint reads a signed checkpoint of the log that origin names. The error is ErrUnsigned unless one of the
// keys has signed it.
func OpenCheckpoint(signed []byte, origin string, keys note.Verifiers) (Checkpoint, error) {
	opened, err := note.Open(signed, keys)
	var unverified *note.UnverifiedNoteError
	var invalid *note.InvalidSignatureError
	switch {
	case errors.As(err, &unverified), errors.As(err, &invalid):
		if name, _, _ := strings.Cut(string(signed), "\n"); name != origin {
			return Checkpoint{}, fmt.Errorf("%w: it is of the log %q, not %q", ErrUnsigned, name, origin)
		}
		return Checkpoint{}, ErrUnsigned
	case err != nil:
		return Checkpoint{}, ErrCheckpoint
	}
	c, err := ParseCheckpoint(opened.Text)
	if err == nil && c.Origin != origin {
		err = fmt.Errorf("%w: it is of the log %q, not %q", ErrUnsigned, c.Origin, origin)
	}
	return c, err
}
