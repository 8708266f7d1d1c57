package scopes

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrNoSubject means that Decide was called without a usable SPIFFE ID. It is a mistake of the code that calls Decide,
// never of the sandbox: without a subject there is no decision.
var ErrNoSubject = errors.New("no subject: a SPIFFE ID with a path is required")

// Problem is one mistake in a catalogue: where it is and how to fix it.
type Problem struct {
	File string // empty if the mistake is not in a single file
	Line int    // 0 when unknown
	What string
}

// String returns "file:line: what", as compilers write it.
func (p Problem) String() string {
	switch {
	case p.File == "":
		return p.What
	case p.Line == 0:
		return p.File + ": " + p.What
	default:
		return fmt.Sprintf("%s:%d: %s", p.File, p.Line, p.What)
	}
}

// Problems lists every mistake that Load found, ordered by file and line.
type Problems []Problem //nolint:errname // a list that people read, an error only because Load returns it

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

func (ps *Problems) add(file string, line int, format string, args ...any) {
	*ps = append(*ps, Problem{File: file, Line: line, What: fmt.Sprintf(format, args...)})
}

// err returns nil if there are no problems. A nil Problems stored in an error would not equal nil.
func (ps Problems) err() error {
	if len(ps) == 0 {
		return nil
	}
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	return ps
}

// InvalidAsk means that the request itself is malformed, so there is nothing to decide. It never contains a value from
// the request.
type InvalidAsk struct { //nolint:errname // named for the ask, as the answer to it is
	Field string // scope, task, ttl, csr, public_key, params or params.<name>
	Why   string
}

func (e *InvalidAsk) Error() string { return e.Field + " " + e.Why }

func invalid(field, format string, args ...any) *InvalidAsk {
	return &InvalidAsk{Field: field, Why: fmt.Sprintf(format, args...)}
}
