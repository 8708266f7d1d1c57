// Package record has what the packages of the ledger share about records: the canonical form of an entry, ids, the bounds of
// pages, rows of records, and conditions that bind a query to a reach.
//
// The package must never widen a reach that it does not understand. It sends no query.
package record

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/brevet-dev/brevet/broker"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/mod/sumdb/tlog"
)

const (
	// MaxPage is the largest number of records on a page, and MaxPageBytes bounds the size of a page.
	MaxPage      = 500
	MaxPageBytes = 1 << 20
)

// ErrPageSize means that a page size is out of range. A page of records has 1 to 500.
var ErrPageSize = errors.New("page size is out of range")

// ParseID parses an id. It accepts only the canonical form, so a record has one name.
func ParseID(id string) (uuid.UUID, error) {
	parsed, err := uuid.Parse(id)
	if err == nil && parsed.String() != id {
		err = errors.New("not in canonical form")
	}
	return parsed, err
}

// OptionalID parses an id. It returns nil if the text is empty, and not ok if the text is no id.
func OptionalID(id string) (parsed *uuid.UUID, ok bool) {
	if id == "" {
		return nil, true
	}
	found, err := ParseID(id)
	return &found, err == nil
}

// Unmatchable reports whether one of the filters holds NUL or invalid UTF-8. No text in Postgres does, so nothing
// matches such a filter.
func Unmatchable(filters ...string) bool {
	return slices.ContainsFunc(filters, func(s string) bool {
		return strings.ContainsRune(s, 0) || !utf8.ValidString(s)
	})
}

// ScanHash reads a row that is the hash of a leaf.
func ScanHash(row pgx.CollectableRow) (hash tlog.Hash, err error) {
	var raw []byte
	err = row.Scan(&raw)
	copy(hash[:], raw)
	return hash, err
}

// BodyVersion is the version of the form of bodies.
const BodyVersion = 1

const maxBody = 64 << 10

// Header begins the body of each entry.
type Header struct {
	Version int       `json:"version"` // BodyVersion
	Kind    string    `json:"kind"`
	ID      string    `json:"id"`
	Time    time.Time `json:"time"`
}

// ErrUnrecordable means that the ledger cannot hold this record, now or later.
var ErrUnrecordable = errors.New("record cannot be kept")

// ErrTooLarge means that the body of the entry exceeds its limit. It wraps ErrUnrecordable.
var ErrTooLarge = fmt.Errorf("%w: it is larger than %d bytes", ErrUnrecordable, maxBody)

// Stored returns the time as Postgres keeps it: in UTC and in whole microseconds.
func Stored(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// numbers writes a json.Number with the text that the decoder kept.
var numbers = json.WithMarshalers(json.MarshalToFunc(func(enc *jsontext.Encoder, n stdjson.Number) error {
	return enc.WriteValue(jsontext.Value(n))
}))

// Encode returns the body of an entry and its leaf hash. The body is in RFC 8785 form, except that integers keep all their
// digits. Encode refuses, for this record alone, what Postgres would refuse for the whole batch.
func Encode(body any) (canonical []byte, leaf tlog.Hash, err error) {
	encoded, err := json.Marshal(body, numbers, json.Deterministic(true), jsontext.CanonicalizeRawFloats(true))
	if err != nil {
		return nil, leaf, fmt.Errorf("%w: it has no JSON form", ErrUnrecordable) // leave out the cause: it quotes the record
	}
	value := jsontext.Value(encoded)
	// The encoder writes strings and numbers as RFC 8785 does. It keeps the order of the fields of a struct.
	if _, ok := inOrder(value, 0); !ok {
		if err := value.Canonicalize(jsontext.CanonicalizeRawInts(false)); err != nil {
			return nil, leaf, fmt.Errorf("%w: it has no canonical JSON form", ErrUnrecordable)
		}
	}
	if len(value) > maxBody {
		return nil, leaf, ErrTooLarge
	}
	if holdsNUL(value) {
		return nil, leaf, fmt.Errorf("%w: it holds a NUL character", ErrUnrecordable)
	}
	return value, tlog.RecordHash(value), nil
}

// inOrder reports whether the members of every object in a value are in the order of RFC 8785, and where the value ends. The text is
// what the encoder has written: valid and without blanks. inOrder is false for names whose order it does not know: with escapes, or
// with characters beyond ASCII.
func inOrder(text []byte, at int) (end int, ok bool) {
	switch text[at] {
	case '"':
		return quoted(text, at), true
	case '{', '[':
		object, last := text[at] == '{', []byte(nil)
		for at++; text[at] != '}' && text[at] != ']'; {
			if object {
				colon := quoted(text, at)
				name := text[at+1 : colon-1]
				for _, c := range name {
					if c == '\\' || c >= utf8.RuneSelf {
						return 0, false
					}
				}
				if last != nil && bytes.Compare(last, name) >= 0 {
					return 0, false
				}
				last, at = name, colon+1
			}
			if at, ok = inOrder(text, at); !ok {
				return 0, false
			}
			if text[at] == ',' {
				at++
			}
		}
		return at + 1, true
	}
	for at < len(text) && text[at] != ',' && text[at] != ']' && text[at] != '}' {
		at++
	}
	return at, true
}

// quoted returns where the string that begins at a position ends.
func quoted(text []byte, at int) int {
	for {
		at++
		at += bytes.IndexByte(text[at:], '"')
		escapes := 0
		for text[at-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return at + 1
		}
	}
}

// holdsNUL reports whether canonical JSON holds a NUL. Once escaped backslashes are removed, a NUL can have only one form.
func holdsNUL(canonical []byte) bool {
	null := []byte(`\u0000`)
	return bytes.Contains(canonical, null) && bytes.Contains(bytes.ReplaceAll(canonical, []byte(`\\`), nil), null)
}

// ReachesNothing reports whether nothing is within a reach.
func ReachesNothing(r broker.Reach) bool {
	return r.Subject == "" && len(r.TrustDomains) == 0 && len(r.Within) == 0 && !r.All
}

// Within returns the condition that a row's spiffe_id is within reach, and adds its arguments to args. trustDomain is the
// expression for the row's trust domain. Each path is a separate condition, since only then is each a range of an index: all
// IDs below a path lie between "path/" and "path0", because "0" is the byte after "/".
func Within(r broker.Reach, trustDomain string, args pgx.NamedArgs) string {
	var either []string
	if len(r.TrustDomains) > 0 {
		args["reach_domains"] = r.TrustDomains
		either = append(either, trustDomain+" = ANY (@reach_domains::text[])")
	}
	for i, prefix := range r.Within {
		if _, err := spiffeid.FromString(prefix); err != nil {
			continue // everything is below "spiffe:"
		}
		name := fmt.Sprintf("reach_within_%d", i)
		args[name] = prefix
		either = append(either, Below(name))
	}
	limited := len(r.TrustDomains)+len(r.Within) > 0
	var all []string
	if r.Subject != "" {
		args["reach_subject"] = r.Subject
		all = append(all, "spiffe_id = @reach_subject::text")
	}
	switch {
	case len(either) > 0:
		all = append(all, "("+strings.Join(either, " OR ")+")")
	case limited || r.Subject == "" && !r.All:
		return "false"
	}
	return strings.Join(append(all, "true"), " AND ")
}

// Below returns the condition that a row's spiffe_id is the named argument or below it. All IDs below a path lie between
// "path/" and "path0", because "0" is the byte after "/".
func Below(name string) string {
	return fmt.Sprintf("(spiffe_id = @%[1]s::text OR (spiffe_id >= @%[1]s::text || '/' AND spiffe_id < @%[1]s::text || '0'))", name)
}
