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

// cursors seals positions in a listing: where a page ended or, as a negative number, where one began. A cursor is encrypted,
// because a position counts entries of every trust domain. It is authenticated together with the reader and the filters, so it
// continues that listing only.
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

// open returns the position, or errCursor for a cursor that seal did not create for the same listing.
func (c *cursors) open(cursor string, listing []byte) (int64, error) {
	sealed, err := cursorText.DecodeString(cursor)
	// The decoder skips line breaks, but only one spelling of a cursor is valid.
	if err != nil || cursorText.EncodeToString(sealed) != cursor {
		return 0, &requestError{kind: errCursor, detail: "cursor_encoding"}
	}
	place, err := c.aead.Open(nil, nil, sealed, listing)
	if err != nil || len(place) != 8 {
		return 0, &requestError{kind: errCursor, detail: "cursor_seal"}
	}
	return int64(binary.BigEndian.Uint64(place)), nil
}

// listingOf identifies a listing by its reader, reach and filters. The size of a page may change between pages.
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
