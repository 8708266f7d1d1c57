package tamper_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/jackc/pgx/v5"
)

type tx = pgx.Tx

// atATime is how many rows are edited at once. Each edit must be found.
const atATime = 40

// edits has an expression that changes a value of each type.
var edits = map[string]string{
	"text": "coalesce(%s, '') || 'x'", "uuid": "gen_random_uuid()", "boolean": "NOT %s",
	"smallint": "coalesce(%s, 0) + 1", "integer": "coalesce(%s, 0) + 1", "bigint": "coalesce(%s, 0) + 1",
	"timestamp with time zone": "coalesce(%s, now()) + interval '1 microsecond'", "bytea": `coalesce(%s, '') || '\x00'`,
	"jsonb": `%s || '{"depth": 1}'`, "_text": "array_append(%s, 'x')", "_bytea": `array_append(%s, '\x00')`,
}

// ofTables edits every column of every row that is derived from entries, and removes and duplicates the rows.
func ofTables(w *world) (todo []tampering) {
	w.knowsTables()
	for _, table := range append([]*audit.Table{audit.Issuances}, audit.Tables...) {
		var rows int
		w.must(w.conn.QueryRow(w.t.Context(), `SELECT count(*) FROM `+table.Name).Scan(&rows))
		if rows == 0 {
			w.t.Fatalf("nothing is in %s", table.Name)
		}
		w.knowsColumns(table)
		most := rows
		if !*all {
			most = 1
		}
		for from := 0; from < most; from += atATime {
			s := some{table, from, min(atATime, rows-from)}
			for _, column := range table.Columns {
				todo = append(todo, edited(s, column, w.kindOf(table, column)))
			}
			todo = append(todo, rowsRemoved(s))
			if table != audit.Catalogues { // a duplicate of the files makes no difference
				todo = append(todo, rowsRepeated(s), rowsInvented(s, w.kindOf(table, table.Columns[0])))
			}
		}
	}
	return todo
}

// noRecord are the tables that auditors do not read: they serve the broker's operation, or another party signs them.
var noRecord = []string{
	"cosignatures", "deployment", "dpop_seen", "goose_db_version", "rate_limits", "replicas", "sessions", "sweeper_term",
	"webhook_notices", "webhooks",
}

// knowsTables fails the test if there is a table that neither list names.
func (w *world) knowsTables() {
	w.t.Helper()
	known := slices.Clone(noRecord)
	for _, table := range copied {
		known = append(known, table.Name)
	}
	slices.Sort(known)
	got := w.names(`SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema() AND table_type = 'BASE TABLE'`)
	if !slices.Equal(got, known) {
		w.t.Fatalf("got the tables %v, want %v: what is new is a record, or no record", got, known)
	}
}

// knowsColumns fails the test if the table has a column that auditors do not read, since such a column could hold anything.
func (w *world) knowsColumns(table *audit.Table) {
	w.t.Helper()
	got := w.names(`SELECT column_name FROM information_schema.columns WHERE table_schema = current_schema() AND table_name = $1`, table.Name)
	if want := slices.Sorted(slices.Values(table.Columns)); !slices.Equal(got, want) {
		w.t.Fatalf("%s has the columns %v, auditors read %v", table.Name, got, want)
	}
}

func (w *world) names(sql string, args ...any) []string {
	w.t.Helper()
	rows, err := w.conn.Query(w.t.Context(), sql, args...)
	w.must(err)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	w.must(err)
	slices.Sort(names)
	return names
}

// kindOf returns the type of a column.
func (w *world) kindOf(table *audit.Table, column string) (kind string) {
	w.t.Helper()
	w.must(w.conn.QueryRow(w.t.Context(), `
		SELECT CASE data_type WHEN 'ARRAY' THEN udt_name ELSE data_type END FROM information_schema.columns
		WHERE table_schema = current_schema() AND table_name = $1 AND column_name = $2`, table.Name, column).Scan(&kind))
	if edits[kind] == "" {
		w.t.Fatalf("no edit of %s.%s, which is of type %s", table.Name, column, kind)
	}
	return kind
}

// some selects rows of a table by position.
type some struct {
	table      *audit.Table
	from, many int
}

func (s some) chosen() string {
	return fmt.Sprintf(`ctid = ANY (ARRAY(SELECT ctid FROM %s ORDER BY %s OFFSET %d LIMIT %d))`,
		s.table.Name, s.order(), s.from, s.many)
}

func (s some) order() string {
	keys := s.table.Columns[:s.table.Key]
	if s.named() {
		keys = append([]string{"entry_index"}, keys...)
	}
	return strings.Join(keys, ", ")
}

func (s some) named() bool { return slices.Contains(s.table.Columns, "entry_index") }

// entries returns the entries that the rows name now.
func (s some) entries(w *world, tx pgx.Tx) (all []int64, err error) {
	name := "-1"
	switch {
	case s.named():
		name = "entry_index"
	case s.table == audit.Catalogues:
		name = "(SELECT min(c.entry_index) FROM catalogue_changes AS c WHERE c.digest = catalogues.digest)"
	case s.table == audit.CatalogueHead:
		name = "(SELECT c.entry_index FROM catalogue_changes AS c WHERE c.id = catalogue_head.change)"
	}
	rows, err := tx.Query(w.t.Context(), `SELECT `+name+`::bigint FROM `+s.table.Name+` WHERE `+s.chosen())
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}

// act runs a statement on the rows, and computes the expected findings for each.
func (s some) act(name, sql string, of func(index int64) []audit.Finding) tampering {
	wanted := sync.Map{} // by world
	return tampering{
		name: fmt.Sprintf("%s, %d rows from %d", name, s.many, s.from), cases: s.many,
		do: func(w *world, tx pgx.Tx) error {
			indexes, err := s.entries(w, tx)
			if err != nil {
				return err
			}
			var all []audit.Finding
			for _, index := range indexes {
				all = append(all, of(index)...)
			}
			wanted.Store(w, all)
			return statement(sql+` WHERE `+s.chosen())(w, tx)
		},
		want: func(w *world, r audit.Report) string {
			all, _ := wanted.Load(w)
			return exactly(r.Findings, all.([]audit.Finding))
		},
	}
}

// edited changes a column of type kind.
func edited(s some, column, kind string) tampering {
	name := s.table.Name + "." + column
	to := strings.ReplaceAll(edits[kind], "%s", column)
	return s.act(name, `UPDATE `+s.table.Name+` SET `+column+` = `+to, func(index int64) []audit.Finding {
		missing := audit.Finding{Code: audit.ProjectionMissing, Index: index, Where: s.table.Name}
		files := audit.Finding{Code: audit.ProjectionDiffers, Index: index, Where: "catalogues.contents"}
		switch {
		case s.table == audit.Catalogues && column == "digest":
			files.Index = -1
			return []audit.Finding{missing, files}
		case s.table == audit.Catalogues:
			return []audit.Finding{files}
		case s.table != audit.Issuances && slices.Contains(s.table.Columns[:s.table.Key], column):
			extra := audit.Finding{Code: audit.ProjectionExtra, Index: index, Where: s.table.Name}
			if !s.named() {
				extra.Index = -1
			}
			return []audit.Finding{missing, extra}
		}
		return []audit.Finding{{Code: audit.ProjectionDiffers, Index: index, Where: name}}
	})
}

func rowsRemoved(s some) tampering {
	return s.act("rows of "+s.table.Name+" removed", `DELETE FROM `+s.table.Name, func(index int64) []audit.Finding {
		return []audit.Finding{{Code: audit.ProjectionMissing, Index: index, Where: s.table.Name}}
	})
}

func rowsRepeated(s some) tampering {
	sql := `INSERT INTO ` + s.table.Name + ` SELECT * FROM ` + s.table.Name
	return s.act("rows of "+s.table.Name+" repeated", sql, func(index int64) []audit.Finding {
		if !s.named() {
			index = -1
		}
		return []audit.Finding{{Code: audit.ProjectionExtra, Index: index, Where: s.table.Name}}
	})
}

// rowsInvented adds copies of existing rows under another name. kind is the type of the column that names them.
func rowsInvented(s some, kind string) tampering {
	columns := strings.Join(s.table.Columns, ", ")
	values := slices.Clone(s.table.Columns)
	values[0] = strings.ReplaceAll(edits[kind], "%s", values[0])
	sql := `INSERT INTO ` + s.table.Name + ` (` + columns + `) SELECT ` + strings.Join(values, ", ") + ` FROM ` + s.table.Name
	return s.act("rows of "+s.table.Name+" invented", sql, func(index int64) []audit.Finding {
		if !s.named() {
			index = -1
		}
		return []audit.Finding{{Code: audit.ProjectionExtra, Index: index, Where: s.table.Name}}
	})
}

// exactly wants these findings and no others.
func exactly(got, want []audit.Finding) string {
	brief := func(all []audit.Finding) (lines []string) {
		for _, f := range all {
			lines = append(lines, fmt.Sprintf("%s at %d: %s", f.Code, f.Index, f.Where))
		}
		slices.Sort(lines)
		return lines
	}
	if slices.Equal(brief(got), brief(want)) {
		return ""
	}
	return fmt.Sprintf("got %s, want %d: %s", told(got), len(want), cmp.Or(strings.Join(brief(want)[:min(4, len(want))], "; "), "nothing"))
}
