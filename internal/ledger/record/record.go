// Package record has what the packages of the ledger share about records: the canonical form of an entry, ids, the bounds of
// pages, rows of records, and conditions that bind a query to a reach.
//
// The package must never widen a reach that it does not understand. It sends no query.
package record

import (
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
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
