package migrations

import (
	"context"
	"fmt"
)

// CheckServer refuses releases of PostgreSQL, by their server_version_num, with ErrServer: those that are too old, and the minor ones
// where the rows of a MERGE beside another command are not in the transition tables of a statement's triggers
// (PostgreSQL's bug 19380). 14 has no MERGE.
func CheckServer(version int) error {
	major, minor := version/10_000, version%10_000
	mended := map[int]int{15: 16, 16: 12, 17: 8, 18: 2}[major]
	switch {
	case major < 14:
		return fmt.Errorf("%w: it is %d.%d, and has to be 14 or newer", ErrServer, major, minor)
	case minor < mended:
		return fmt.Errorf("%w: in %d.%d a MERGE can hide rows from triggers: update it to %[2]d.%[4]d or later", ErrServer, major, minor, mended)
	}
	return nil
}

func checkServer(ctx context.Context, on Querier) error {
	var version int
	if err := on.QueryRow(ctx, `SELECT current_setting('server_version_num')::int`).Scan(&version); err != nil {
		return fmt.Errorf("reading the server's version: %w", err)
	}
	return CheckServer(version)
}
