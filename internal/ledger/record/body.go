package record

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/mod/sumdb/tlog"
)

// BodyVersion is the version of the form of bodies.
const BodyVersion = 1

const maxBody = 64 << 10

// ErrUnrecordable means that the ledger cannot hold this record, now or later.
var ErrUnrecordable = errors.New("record cannot be kept")

// Stored returns the time as Postgres keeps it: in UTC and in whole microseconds.
func Stored(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// numbers writes a json.Number with the text that the decoder kept.
var numbers = json.WithMarshalers(json.MarshalToFunc(func(enc *jsontext.Encoder, n stdjson.Number) error {
	return enc.WriteValue(jsontext.Value(n))
}))

// Encode returns the body of an entry and its leaf hash. The body is in RFC 8785 form, except that integers keep all their
// digits. Encode refuses, for this record alone, what Postgres would refuse for the whole batch.
func Encode(body any) (canonical []byte, leaf tlog.Hash, err error) {
	encoded, err := json.Marshal(body, numbers)
	if err != nil {
		return nil, leaf, fmt.Errorf("%w: it has no JSON form", ErrUnrecordable) // leave out the cause: it quotes the record
	}
	value := jsontext.Value(encoded)
	if err := value.Canonicalize(jsontext.CanonicalizeRawInts(false)); err != nil {
		return nil, leaf, fmt.Errorf("%w: it has no canonical JSON form", ErrUnrecordable)
	}
	if len(value) > maxBody {
		return nil, leaf, fmt.Errorf("%w: it is larger than %d bytes", ErrUnrecordable, maxBody)
	}
	if holdsNUL(value) {
		return nil, leaf, fmt.Errorf("%w: it holds a NUL character", ErrUnrecordable)
	}
	return value, tlog.RecordHash(value), nil
}

// holdsNUL reports whether canonical JSON holds a NUL. Once escaped backslashes are removed, a NUL can have only one form.
func holdsNUL(canonical []byte) bool {
	null := []byte(`\u0000`)
	return bytes.Contains(canonical, null) && bytes.Contains(bytes.ReplaceAll(canonical, []byte(`\\`), nil), null)
}
