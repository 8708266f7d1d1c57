// Package snapshot reads a whole ledger as it was at one moment, for audit.Verify: entries, tiles, checkpoints and the tables of
// the current state.
//
// The package must never leave out a row, or correct one: what it reads may have been changed by the owner of the database.
package snapshot

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/migrations"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// Snapshot reads a whole ledger as it was at one moment.
type Snapshot struct {
	conn *pgx.Conn // nil if the connection is the caller's
	tx   pgx.Tx
}

// Open connects with a login that may read the ledger, for example one of the role brevet_auditor. A standby will
// do.
func Open(ctx context.Context, databaseURL string, options ...migrations.URLOption) (*Snapshot, error) {
	pc, err := migrations.ParseURL(databaseURL, options...)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, pc.ConnConfig)
	if err != nil {
		return nil, postgres.Unavailable("connecting", err)
	}
	var tx pgx.Tx
	if err = migrations.Check(ctx, conn); err == nil {
		tx, err = conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	}
	if err == nil { // before the first read, so that nothing that the snapshot shows is dropped during it
		_, err = tx.Exec(ctx, `LOCK TABLE entries IN ACCESS SHARE MODE`)
	}
	if err != nil {
		_ = conn.Close(ctx)
		return nil, postgres.Unavailable("opening a snapshot", err)
	}
	return &Snapshot{conn, tx}, nil
}

// Of reads in a transaction, which should be REPEATABLE READ. The caller ends the transaction.
func Of(tx pgx.Tx) *Snapshot { return &Snapshot{tx: tx} }

// Close ends the snapshot.
func (s *Snapshot) Close(ctx context.Context) {
	if s.conn != nil {
		_ = s.conn.Close(ctx)
	}
}

// Items reads everything, for audit.Verify. Only one iteration may run at once.
func (s *Snapshot) Items(ctx context.Context) audit.Items {
	return func(yield func(audit.Item, error) bool) {
		if err := s.read(ctx, func(item audit.Item) bool { return yield(item, nil) }); err != nil {
			yield(nil, postgres.Unavailable("reading the ledger", err))
		}
	}
}

// read yields items until yield returns false.
func (s *Snapshot) read(ctx context.Context, yield func(audit.Item) bool) error {
	var head audit.Head
	if err := s.tx.QueryRow(ctx, `SELECT size FROM ledger_head`).Scan(&head.Size); err != nil {
		return err
	}
	if !yield(head) {
		return nil
	}
	more, err := s.query(ctx, `SELECT 0, index, body FROM entries WHERE kind = 'ledger.pruned' ORDER BY index`, prunedOf, yield)
	if err != nil || !more {
		return err
	}
	more, err = s.query(ctx, `
		SELECT number, level, number, hashes, root FROM tree_tiles WHERE level > 0 ORDER BY level DESC, number`, tileOf, yield)
	if err != nil || !more {
		return err
	}
	if more, err = s.merge(ctx, yield); err != nil || !more {
		return err
	}
	for _, table := range audit.Tables {
		more, err := s.query(ctx, `SELECT 0, `+strings.Join(table.Columns, ", ")+` FROM `+table.Name, s.rowOf(table), yield)
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// merge reads the entries side by side with the rows that belong to them.
func (s *Snapshot) merge(ctx context.Context, yield func(audit.Item) bool) (more bool, err error) {
	streams := []*stream{
		{name: "read_tiles", each: 8, make: tileOf, sql: `
			SELECT number * 256, level, number, hashes, root FROM tree_tiles WHERE level = 0 ORDER BY number`},
		{name: "read_entries", each: 1024, make: entryOf, sql: `
			SELECT index, index, id, time, kind, body, leaf_hash FROM entries ORDER BY index`},
		{name: "read_issuances", each: 1024, make: s.rowOf(audit.Issuances), sql: `
			SELECT entry_index, ` + strings.Join(audit.Issuances.Columns, ", ") + ` FROM issuances ORDER BY entry_index`},
		{name: "read_checkpoints", each: 256, make: checkpointOf, sql: `
			SELECT size - 1, size, root, time, note FROM checkpoints ORDER BY size`},
	}
	for _, st := range streams {
		if _, err := s.tx.Exec(ctx, `DECLARE `+st.name+` NO SCROLL CURSOR FOR `+st.sql); err != nil {
			return false, err
		}
	}
	for {
		var next *stream
		for _, st := range streams {
			there, err := st.fill(ctx, s.tx)
			if err != nil {
				return false, err
			}
			if there && (next == nil || st.read[0].place < next.read[0].place) {
				next = st
			}
		}
		if next == nil {
			return true, s.closeAll(ctx, streams)
		}
		item := next.read[0].item
		next.read = next.read[1:]
		if !yield(item) {
			return false, s.closeAll(ctx, streams)
		}
	}
}

func (s *Snapshot) closeAll(ctx context.Context, streams []*stream) error {
	for _, st := range streams {
		if _, err := s.tx.Exec(ctx, `CLOSE `+st.name); err != nil {
			return err
		}
	}
	return nil
}

// maker makes an item from a row's values. The row's first value, which is the item's place among the others, is not passed
// to it.
type maker func(fields []pgconn.FieldDescription, values [][]byte) (audit.Item, error)

// stream is a cursor from which rows are fetched in groups.
type stream struct {
	name, sql string
	each      int
	make      maker
	read      []placed
	ended     bool
}

type placed struct {
	place int64
	item  audit.Item
}

// fill reports whether there is a next item, and fetches rows if it has to.
func (st *stream) fill(ctx context.Context, tx pgx.Tx) (bool, error) {
	if len(st.read) > 0 || st.ended {
		return len(st.read) > 0, nil
	}
	rows, err := tx.Query(ctx, fmt.Sprintf(`FETCH %d FROM %s`, st.each, st.name))
	if err != nil {
		return false, err
	}
	defer rows.Close()
	st.read = make([]placed, 0, st.each)
	for rows.Next() {
		values := rows.RawValues()
		item, err := st.make(rows.FieldDescriptions()[1:], values[1:])
		if err != nil {
			return false, err
		}
		st.read = append(st.read, placed{integer(values[0]), item})
	}
	st.ended = len(st.read) < st.each
	return len(st.read) > 0, rows.Err()
}

// query yields the rows of a query.
func (s *Snapshot) query(ctx context.Context, sql string, make maker, yield func(audit.Item) bool) (more bool, err error) {
	rows, err := s.tx.Query(ctx, sql)
	if err != nil {
		return false, err
	}
	defer rows.Close()
	for rows.Next() {
		item, err := make(rows.FieldDescriptions()[1:], rows.RawValues()[1:])
		if err != nil {
			return false, err
		}
		if !yield(item) {
			return false, nil
		}
	}
	return true, rows.Err()
}

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
