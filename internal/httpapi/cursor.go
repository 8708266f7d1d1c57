package httpapi

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/brevet-dev/brevet/broker"
)

// cursors seals the place where a page ended, or, as a negative number, where one began. A cursor is encrypted, because the place counts entries of every trust
// domain, and authenticated together with the reader and the filters, so that it continues that listing only.
type cursors struct{ aead cipher.AEAD }

var cursorText = base64.RawURLEncoding.Strict()

func newCursors(secret []byte) (*cursors, error) {
	key, err := hkdf.Key(sha256.New, secret, nil, "brevet listing cursor v1", 32)
	if err != nil {
		return nil, fmt.Errorf("deriving the cursor key: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("making the cursor cipher: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("making the cursor cipher: %w", err)
	}
	return &cursors{aead}, nil
}

func (c *cursors) seal(position int64, listing []byte) string {
	place := binary.BigEndian.AppendUint64(nil, uint64(position))
	return cursorText.EncodeToString(c.aead.Seal(nil, nil, place, listing)) //nolint:gosec // this AEAD makes its own nonces
}

// open returns the place, or errCursor for whatever seal did not make for the same listing.
func (c *cursors) open(cursor string, listing []byte) (int64, error) {
	sealed, err := cursorText.DecodeString(cursor)
	// The decoder skips line breaks; a cursor has one spelling.
	if err != nil || cursorText.EncodeToString(sealed) != cursor {
		return 0, &requestError{kind: errCursor, detail: "cursor_encoding"}
	}
	place, err := c.aead.Open(nil, nil, sealed, listing)
	if err != nil || len(place) != 8 {
		return 0, &requestError{kind: errCursor, detail: "cursor_seal"}
	}
	return int64(binary.BigEndian.Uint64(place)), nil
}

// listingOf names a listing: who reads, with which reach and filters. The page's size may change on the way.
func listingOf(reader string, q broker.Query, reach broker.Reach) ([]byte, error) {
	q.Limit, q.Before, q.From = 0, 0, 0
	name, err := json.Marshal(struct {
		Reader string
		Query  broker.Query
		Reach  broker.Reach
	}{reader, q, reach})
	if err != nil {
		return nil, fmt.Errorf("naming a listing: %w", err)
	}
	return name, nil
}
