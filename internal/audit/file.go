package audit

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
)

var (
	// ErrSnapshot means that a file is not a snapshot, has a version or tables that this program does not know, or is damaged.
	ErrSnapshot = errors.New("not a snapshot of a ledger, or a damaged one")
	// ErrCutOff means that a snapshot is incomplete: its end is missing.
	ErrCutOff = errors.New("the snapshot is incomplete")
)

const (
	snapshotVersion = 1
	// maxLine bounds a line, in bytes. The longest possible line holds an entry of 64 KiB with each byte escaped.
	maxLine = 1 << 20
)

// line is one line of a snapshot. Exactly one of its fields is set.
type line struct {
	Snapshot   *header           `json:"snapshot,omitempty"`
	Head       *Head             `json:"head,omitempty"`
	Pruned     *Pruned           `json:"pruned,omitempty"`
	Tile       *Tile             `json:"tile,omitempty"`
	Entry      *entryLine        `json:"entry,omitempty"`
	Checkpoint *SignedCheckpoint `json:"checkpoint,omitempty"`
	Row        *rowLine          `json:"row,omitempty"`
	End        *trailer          `json:"end,omitempty"`
}

// header is the first line. It names the columns of each table's rows.
type header struct {
	Version int                 `json:"version"`
	Tables  map[string][]string `json:"tables"`
}

// entryLine holds the body as text, or as bytes if the body was changed into something that is not valid text.
type entryLine struct {
	Entry
	Text  string `json:"body,omitempty"`
	Bytes []byte `json:"body_bytes,omitempty"`
}

type rowLine struct {
	Table  string    `json:"table"`
	Values []*string `json:"values"`
}

// trailer is the last line. It holds the number of lines between the first line and itself.
type trailer struct {
	Lines int64 `json:"lines"`
}

// WriteSnapshot writes a ledger as lines of JSON, compressed with gzip, in the order that Verify expects. It calls progress
// for each entry; progress may be nil.
func WriteSnapshot(w io.Writer, items Items, progress func(done, of int64)) error {
	compressed, lines := gzip.NewWriter(w), int64(0)
	write := func(l line) error {
		text, err := json.Marshal(l)
		if err == nil {
			_, err = compressed.Write(append(text, '\n'))
		}
		return err
	}
	first := header{snapshotVersion, map[string][]string{}}
	for _, t := range written() {
		first.Tables[t.Name] = t.Columns
	}
	if err := write(line{Snapshot: &first}); err != nil {
		return fmt.Errorf("writing the snapshot: %w", err)
	}
	var size int64
	for item, err := range items {
		if err != nil {
			return fmt.Errorf("reading the ledger: %w", err)
		}
		if err := write(lineOf(item)); err != nil {
			return fmt.Errorf("writing the snapshot: %w", err)
		}
		lines++
		switch item := item.(type) {
		case Head:
			size = item.Size
		case Entry:
			if progress != nil {
				progress(item.Index, size)
			}
		}
	}
	err := write(line{End: &trailer{lines}})
	if err == nil {
		err = compressed.Close()
	}
	if err != nil {
		return fmt.Errorf("writing the snapshot: %w", err)
	}
	return nil
}

func written() []*Table { return append([]*Table{Issuances}, Tables...) }

func lineOf(item Item) (l line) {
	switch item := item.(type) {
	case Head:
		l.Head = &item
	case Pruned:
		l.Pruned = &item
	case Tile:
		l.Tile = &item
	case SignedCheckpoint:
		l.Checkpoint = &item
	case Entry:
		l.Entry = &entryLine{Entry: item, Text: string(item.Body)}
		if !utf8.Valid(item.Body) {
			l.Entry.Text, l.Entry.Bytes = "", item.Body
		}
	case Row:
		l.Row = &rowLine{Table: item.Table.Name, Values: make([]*string, len(item.Values))}
		for i := range item.Values {
			if item.Values[i] != Null {
				l.Row.Values[i] = &item.Values[i]
			}
		}
	}
	return l
}

// ReadSnapshot reads a snapshot that WriteSnapshot wrote. The items can be read once, and it is for Verify to judge them.
// The errors are ErrSnapshot, ErrCutOff and read errors.
func ReadSnapshot(r io.Reader) Items {
	return func(yield func(Item, error) bool) {
		if err := readSnapshot(r, func(item Item) bool { return yield(item, nil) }); err != nil {
			yield(nil, err)
		}
	}
}

func readSnapshot(r io.Reader, yield func(Item) bool) error {
	plain, err := gzip.NewReader(r)
	if err != nil {
		return named(err)
	}
	lines := bufio.NewScanner(plain)
	lines.Buffer(nil, maxLine)
	lines.Split(wholeLines)
	for n := int64(-1); lines.Scan(); n++ {
		var l line
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return fmt.Errorf("%w: line %d is not readable", ErrSnapshot, n+2)
		}
		switch {
		case n < 0:
			if l.Snapshot == nil || l.Snapshot.Version != snapshotVersion {
				return fmt.Errorf("%w: its header is not that of version %d", ErrSnapshot, snapshotVersion)
			}
			for _, t := range written() {
				if !slices.Equal(l.Snapshot.Tables[t.Name], t.Columns) {
					return fmt.Errorf("%w: the columns of its table %s differ from this program's: use the version that wrote it", ErrSnapshot, t.Name)
				}
			}
			continue
		case l.End != nil:
			if l.End.Lines != n {
				return fmt.Errorf("%w: it has %d of %d lines", ErrSnapshot, n, l.End.Lines)
			}
			// Read on to the end of the file, so that gzip verifies its checksum.
			if lines.Scan() {
				return fmt.Errorf("%w: it has data after its end", ErrSnapshot)
			}
			if err := lines.Err(); err != nil {
				return named(err)
			}
			return nil
		}
		item, err := l.item()
		if err != nil {
			return fmt.Errorf("%w: line %d %w", ErrSnapshot, n+2, err)
		}
		if !yield(item) {
			return nil
		}
	}
	if err := lines.Err(); err != nil {
		return named(err)
	}
	return ErrCutOff
}

// wholeLines drops a last line that has no newline.
func wholeLines(data []byte, atEOF bool) (advance int, line []byte, err error) {
	if end := bytes.IndexByte(data, '\n'); end >= 0 {
		return end + 1, data[:end], nil
	}
	if atEOF {
		return len(data), nil, nil
	}
	return 0, nil, nil
}

// named maps an error of a compressed file to ErrCutOff, ErrSnapshot or a read error.
func named(err error) error {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return ErrCutOff
	case errors.Is(err, bufio.ErrTooLong), errors.Is(err, gzip.ErrChecksum), errors.Is(err, gzip.ErrHeader):
		return fmt.Errorf("%w: %w", ErrSnapshot, err)
	}
	return fmt.Errorf("reading the snapshot: %w", err)
}

var errNoItem = errors.New("contains no known item")

func (l *line) item() (Item, error) {
	switch {
	case l.Head != nil:
		return *l.Head, nil
	case l.Pruned != nil:
		return *l.Pruned, nil
	case l.Tile != nil:
		return *l.Tile, nil
	case l.Checkpoint != nil:
		return *l.Checkpoint, nil
	case l.Entry != nil:
		e := l.Entry.Entry
		e.Body = bytes.Clone(l.Entry.Bytes)
		if e.Body == nil {
			e.Body = []byte(l.Entry.Text)
		}
		return e, nil
	case l.Row != nil:
		return l.Row.row()
	}
	return nil, errNoItem
}

func (l *rowLine) row() (Item, error) {
	for _, t := range written() {
		if t.Name != l.Table || len(l.Values) != len(t.Columns) {
			continue
		}
		row := Row{t, make([]string, len(l.Values))}
		for i, value := range l.Values {
			row.Values[i] = Null
			if value != nil {
				row.Values[i] = *value
			}
		}
		return row, nil
	}
	return nil, errNoItem
}
