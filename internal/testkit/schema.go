package testkit

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

// Schema describes every object in the current schema of conn, one line each.
func Schema(t testing.TB, conn *pgx.Conn) []string {
	t.Helper()
	rows, err := conn.Query(t.Context(), `
		WITH ours AS (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
		SELECT format('%s %s %s', c.relkind, c.relname, c.relacl) FROM pg_class AS c, ours WHERE c.relnamespace = ours.oid
		UNION ALL
		SELECT format('column %s.%s %s %s %s %s %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
			a.attnotnull, a.attcollation::regcollation, pg_get_expr(d.adbin, d.adrelid), a.attacl)
		FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid JOIN ours ON ours.oid = c.relnamespace
			LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
		WHERE a.attnum > 0 AND NOT a.attisdropped
		UNION ALL
		SELECT format('view %s %s', viewname, definition) FROM pg_views WHERE schemaname = current_schema()
		UNION ALL
		SELECT format('constraint %s %s', conname, pg_get_constraintdef(pg_constraint.oid))
		FROM pg_constraint, ours WHERE connamespace = ours.oid
		UNION ALL
		SELECT format('index %s', indexdef) FROM pg_indexes WHERE schemaname = current_schema()
		UNION ALL
		SELECT format('trigger %s %s', c.relname, pg_get_triggerdef(t.oid))
		FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid JOIN ours ON ours.oid = c.relnamespace
		WHERE NOT t.tgisinternal
		UNION ALL
		SELECT format('function %s %s %s', proname, proacl, pg_get_functiondef(pg_proc.oid))
		FROM pg_proc, ours WHERE pronamespace = ours.oid
		UNION ALL
		SELECT format('schema %s', nspacl) FROM pg_namespace WHERE nspname = current_schema()
		ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return lines
}
