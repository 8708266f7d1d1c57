package snapshot

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

func tileOf(_ []pgconn.FieldDescription, v [][]byte) (audit.Item, error) {
	return audit.Tile{
		Level: int(integer(v[0])), Number: integer(v[1]), Hashes: bytes.Clone(v[2]), Root: bytes.Clone(v[3]),
	}, nil
}

func entryOf(_ []pgconn.FieldDescription, v [][]byte) (audit.Item, error) {
	return audit.Entry{
		Index: integer(v[0]), ID: uuid.UUID(v[1]).String(), Time: moment(v[2]), Kind: string(v[3]),
		Body: bytes.Clone(v[4]), LeafHash: bytes.Clone(v[5]),
	}, nil
}

func prunedOf(_ []pgconn.FieldDescription, v [][]byte) (audit.Item, error) {
	return audit.Pruned{Index: integer(v[0]), Body: bytes.Clone(v[1])}, nil
}

func checkpointOf(_ []pgconn.FieldDescription, v [][]byte) (audit.Item, error) {
	return audit.SignedCheckpoint{Size: integer(v[0]), Root: bytes.Clone(v[1]), Time: moment(v[2]), Note: string(v[3])}, nil
}

// rowOf returns a maker of rows of a table. It writes all values of a row as text into one string, and cuts that up.
func (s *Snapshot) rowOf(table *audit.Table) maker {
	types := s.tx.Conn().TypeMap()
	return func(fields []pgconn.FieldDescription, values [][]byte) (audit.Item, error) {
		var text []byte
		ends := make([]int, len(values))
		for i, value := range values {
			var err error
			if text, err = appendText(text, types, fields[i], value); err != nil {
				return nil, fmt.Errorf("reading %s.%s: %w", table.Name, fields[i].Name, err)
			}
			ends[i] = len(text)
		}
		all, begin := string(text), 0
		row := audit.Row{Table: table, Values: make([]string, len(values))}
		for i, end := range ends {
			row.Values[i], begin = all[begin:end], end
		}
		return row, nil
	}
}

// appendText appends a value in the form of audit.Row. One verification reads a million rows, so appendText decodes binary
// types itself and not through reflection.
func appendText(text []byte, types *pgtype.Map, field pgconn.FieldDescription, value []byte) ([]byte, error) {
	if value == nil {
		return append(text, audit.Null...), nil
	}
	switch field.DataTypeOID {
	case pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID:
		return strconv.AppendInt(text, integer(value), 10), nil
	case pgtype.BoolOID:
		return strconv.AppendBool(text, value[0] != 0), nil
	case pgtype.UUIDOID:
		return append(text, uuid.UUID(value).String()...), nil
	case pgtype.TimestamptzOID:
		return moment(value).AppendFormat(text, time.RFC3339Nano), nil
	case pgtype.ByteaOID:
		return hex.AppendEncode(text, value), nil
	case pgtype.TextOID, pgtype.JSONBOID: // pgx requests jsonb as text
		return append(text, value...), nil
	case pgtype.TextArrayOID:
		var all []string
		err := types.Scan(field.DataTypeOID, field.Format, value, &all)
		return append(text, audit.Array(all)...), err
	case pgtype.ByteaArrayOID:
		var all [][]byte
		err := types.Scan(field.DataTypeOID, field.Format, value, &all)
		words := make([]string, len(all))
		for i, one := range all {
			words[i] = hex.EncodeToString(one)
		}
		return append(text, audit.Array(words)...), err
	}
	return nil, fmt.Errorf("no text for type %d", field.DataTypeOID)
}

// integer reads the binary form of a smallint, integer or bigint.
func integer(value []byte) int64 {
	switch len(value) {
	case 2:
		return int64(int16(binary.BigEndian.Uint16(value)))
	case 4:
		return int64(int32(binary.BigEndian.Uint32(value)))
	}
	return int64(binary.BigEndian.Uint64(value))
}

// moment reads the binary form of a timestamptz.
func moment(value []byte) time.Time {
	const year2000 = 946684800
	micros := integer(value)
	return time.Unix(year2000+micros/1e6, micros%1e6*1000).UTC()
}
