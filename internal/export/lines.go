package export

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"
)

// Format is an output format.
type Format string

// The formats. All except CSV and Parquet write one JSON object per line.
const (
	NDJSON      Format = "ndjson"      // {"index":…, "entry":…}
	CSV         Format = "csv"         // RFC 4180, with a header
	Parquet     Format = "parquet"     // Apache Parquet
	CloudEvents Format = "cloudevents" // CloudEvents 1.0 in its JSON form
	OCSF        Format = "ocsf"        // OCSF 1.3, class Authorize Session (3003)
)

// Writer writes events in one format. Flush ends a batch: it passes everything written so far to the underlying writer,
// but does not end the file. Close ends the file, but does not close the underlying writer.
type Writer interface {
	Write(e Event) error
	Flush() error
	Close() error
}

// NewWriter returns a writer for a format. source names the log, such as brevet.example/ledger.
func NewWriter(w io.Writer, format Format, source string) (Writer, error) {
	switch format {
	case NDJSON:
		return &lines{w, asEntry}, nil
	case CloudEvents:
		return &lines{w, func(e Event) (any, error) { return cloudEvent(e, source), nil }}, nil
	case OCSF:
		return &lines{w, func(e Event) (any, error) { return authorizeSession(e, source), nil }}, nil
	case CSV:
		return newTable(w)
	case Parquet:
		return newColumnar(w), nil
	}
	return nil, fmt.Errorf("%q is not an export format", format)
}

// lines writes one JSON object per line.
type lines struct {
	w    io.Writer
	form func(Event) (any, error)
}

func (l *lines) Write(e Event) error {
	object, err := l.form(e)
	if err != nil {
		return err
	}
	var line bytes.Buffer
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(object); err != nil {
		return fmt.Errorf("entry %d: %w", e.Index, err)
	}
	_, err = l.w.Write(line.Bytes())
	return err
}

func (l *lines) Flush() error { return nil }
func (l *lines) Close() error { return nil }

func asEntry(e Event) (any, error) {
	return struct {
		Index int64           `json:"index"`
		Entry json.RawMessage `json:"entry"`
	}{e.Index, json.RawMessage(e.Body)}, nil
}

// columns are the names of the fields of [Event], in order. CSV has all of them but the body.
var columns = func() (names []string) {
	for field := range reflect.TypeFor[Event]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("parquet"), ",")
		names = append(names, name)
	}
	return names
}()

// text returns the field of a column as text.
func (e Event) text(column int) string {
	switch value := reflect.ValueOf(e).Field(column).Interface().(type) {
	case int64:
		return strconv.FormatInt(value, 10)
	case time.Time:
		return timeText(value)
	case []string:
		return strings.Join(value, " ")
	default:
		return fmt.Sprint(value)
	}
}

func timeText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// table writes CSV.
type table struct{ csv *csv.Writer }

func newTable(w io.Writer) (*table, error) {
	t := &table{csv.NewWriter(w)}
	names := slices.DeleteFunc(slices.Clone(columns), func(name string) bool { return name == "body" })
	return t, t.csv.Write(names)
}

func (t *table) Write(e Event) error {
	var row []string
	for i, name := range columns {
		if name != "body" {
			row = append(row, inert(e.text(i)))
		}
	}
	return t.csv.Write(row)
}

func (t *table) Flush() error {
	t.csv.Flush()
	return t.csv.Error()
}

func (t *table) Close() error { return t.Flush() }

// inert keeps a spreadsheet from treating a cell as a formula (H78). If the cell begins like one, also after characters
// that spreadsheets skip, inert puts an apostrophe before it.
func inert(cell string) string {
	rest := strings.TrimLeft(cell, " \t\r\n\v\f\u00a0\ufeff\"'")
	if rest != "" && strings.ContainsAny(rest[:1], "=+-@|%") || strings.HasPrefix(rest, "\uff1d") || strings.HasPrefix(rest, "\uff0b") ||
		strings.HasPrefix(rest, "\uff0d") || strings.HasPrefix(rest, "\uff20") || strings.ContainsAny(cell[:min(1, len(cell))], "\t\r\n") {
		return "'" + cell
	}
	return cell
}

// columnar writes Parquet. Each batch becomes a row group. Without Close the file is invalid.
type columnar struct {
	w *parquet.GenericWriter[Event]
}

func newColumnar(w io.Writer) *columnar {
	schema := parquet.NewSchema("record", parquet.SchemaOf(Event{}))
	return &columnar{parquet.NewGenericWriter[Event](w, schema, parquet.Compression(&parquet.Zstd))}
}

func (c *columnar) Write(e Event) error {
	_, err := c.w.Write([]Event{e})
	return err
}

func (c *columnar) Flush() error { return c.w.Flush() }
func (c *columnar) Close() error { return c.w.Close() }
