package console

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/brevet-dev/brevet/broker"
)

// errCursor means that a cursor belongs to another listing or another reader.
var errCursor = errors.New("cursor belongs to another listing")

var placeText = base64.RawURLEncoding.Strict()

// listing returns the identity of a listing: the reader, their reach, and the search. A cursor of one listing is invalid in
// every other.
func listing(who *visitor, of any) ([]byte, error) {
	name, err := json.Marshal(struct {
		Reader string
		Reach  broker.Reach
		Of     any
	}{who.ID(), who.Auditor, of})
	if err != nil {
		return nil, fmt.Errorf("naming a listing: %w", err)
	}
	return name, nil
}

// sealPlace returns a cursor for an index. It is encrypted because the index counts the entries of all trust domains.
func (c *Console) sealPlace(index int64, of []byte) (string, error) {
	box, err := sealer(c.cfg.Key, "listing")
	if err != nil {
		return "", err
	}
	sealed := box.Seal(nil, nil, binary.BigEndian.AppendUint64(nil, uint64(index)), of) //nolint:gosec // this AEAD makes its own nonces
	return placeText.EncodeToString(sealed), nil
}

// openPlace returns the index in a cursor, or zero for an empty cursor. It returns errCursor if sealPlace did not make the
// cursor for the same listing (H98).
func (c *Console) openPlace(cursor string, of []byte) (int64, error) {
	if cursor == "" {
		return 0, nil
	}
	box, err := sealer(c.cfg.Key, "listing")
	if err != nil {
		return 0, err
	}
	sealed, err := placeText.DecodeString(cursor)
	if err != nil || placeText.EncodeToString(sealed) != cursor {
		return 0, errCursor
	}
	place, err := box.Open(nil, nil, sealed, of)
	if err != nil || len(place) != 8 {
		return 0, errCursor
	}
	return int64(binary.BigEndian.Uint64(place)), nil
}
