package migrations

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// CheckServer returns ErrServer for releases of PostgreSQL that must not be written to. These are releases that are too old, and
// minor releases where the rows of a MERGE beside another command are missing from the transition tables of a statement's
// triggers (PostgreSQL's bug 19380). 14 has no MERGE.
func CheckServer(ctx context.Context, on Querier) error {
	var version int
	err := on.QueryRow(ctx, `SELECT current_setting('server_version_num')::int`, pgx.QueryExecModeExec).Scan(&version)
	if err != nil {
		return fmt.Errorf("reading the server's version: %w", err)
	}
	return checkVersion(version)
}

func checkVersion(version int) error {
	major, minor := version/10_000, version%10_000
	mended := map[int]int{15: 16, 16: 12, 17: 8, 18: 2}[major]
	switch {
	case major < 14:
		return fmt.Errorf("%w: it is %d.%d and must be 14 or newer", ErrServer, major, minor)
	case minor < mended:
		return fmt.Errorf("%w: in %d.%d, MERGE can hide rows from triggers: update it to %[2]d.%[4]d or later", ErrServer, major, minor, mended)
	}
	return nil
}
