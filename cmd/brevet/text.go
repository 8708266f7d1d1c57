package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/brevet-dev/brevet/internal/safetext"
)

// say prints a line of progress.
func (c *console) say(line string) { fmt.Fprintln(c.err, line) }

// encode prints one JSON document on one line. People may read it as well as programs, so invisible characters are written
// as JSON escapes, which mean the same.
func (c *console) encode(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(c.out, safetext.JSON(string(data)))
	return err
}

// print prints v as JSON, or else the text. Its arguments must be safe to print.
func (c *console) print(v any, format string, args ...any) error {
	if c.json {
		return c.encode(v)
	}
	_, err := fmt.Fprintf(c.out, format, args...)
	return err
}

// encodeAll prints each item as one JSON document on one line.
func encodeAll[T any](c *console, items []T) error {
	for _, item := range items {
		if err := c.encode(item); err != nil {
			return err
		}
	}
	return nil
}

// printList prints items as one JSON document per line, or as a table. Without items, it prints none instead of a table.
func printList[T any](c *console, items []T, none, header string, row func(T) []any) error {
	switch {
	case c.json:
		return encodeAll(c, items)
	case len(items) == 0:
		_, err := fmt.Fprintln(c.out, none)
		return err
	}
	t := newTable(c.out, header)
	for _, item := range items {
		t.row(row(item)...)
	}
	return t.Flush()
}

// table aligns columns.
type table struct{ *tabwriter.Writer }

// newTable starts a table. Tabs separate the names of the columns. An empty header prints nothing.
func newTable(out io.Writer, header string) table {
	t := table{tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)}
	if header != "" {
		fmt.Fprintln(t, header)
	}
	return t
}

// row prints one row. It escapes untrusted text in each cell.
func (t table) row(cells ...any) {
	texts := make([]string, len(cells))
	for i, cell := range cells {
		texts[i] = safetext.Text(fmt.Sprint(cell))
	}
	fmt.Fprintln(t, strings.Join(texts, "\t"))
}

// orDash returns a text that is safe to print, or a dash for an empty one.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return safetext.Text(s)
}

// short returns at most the given number of characters of an untrusted text, safe to print.
func short(s string, most int) string { return safetext.Shorten(safetext.Text(s), most) }

// plural returns a count with its noun: "1 entry", "2 entries".
func plural[N int | int64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n) + " " + many
}

func seconds(n int64) time.Duration { return time.Duration(n) * time.Second }

// spell writes a duration without its zero units, such as 5m instead of 5m0s.
func spell(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// timeLeft returns the time until t in whole seconds, or 0s if t is past.
func timeLeft(t time.Time) string { return spell(max(0, time.Until(t)).Round(time.Second)) }

// dateTime returns a time for people, in their zone.
func dateTime(t time.Time) string { return t.Local().Format(time.DateTime) }

// ttlRange describes the TTLs of a scope, such as "5m, at most 1h".
func ttlRange(byDefault, most time.Duration) string {
	return spell(byDefault) + ", at most " + spell(most)
}
