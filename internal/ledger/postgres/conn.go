// Package postgres checks the servers that the ledger writes to, and describes errors of the database.
//
// The package must never let an error contain a connection's URL or a record's contents, and never call a server safe that
// could lose what it has confirmed.
package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/brevet-dev/brevet/migrations"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// warning marks a connection on which the server has warned. If an operator cancels a commit's wait for its standby,
// Postgres reports success, with a warning that the commit may be lost.
const warning = "brevet.warning"

// NoteWarning is the OnNotice of connections that write. Warned then reports what it has noted.
func NoteWarning(conn *pgconn.PgConn, notice *pgconn.Notice) {
	if notice.SeverityUnlocalized == "WARNING" {
		conn.CustomData()[warning] = true
	}
}

var errWarned = errors.New("postgres warned about the commit")

// Warned returns an error if the server has warned on a connection whose OnNotice is NoteWarning.
func Warned(conn *pgx.Conn) error {
	if conn.PgConn().CustomData()[warning] != nil {
		return errWarned
	}
	return nil
}

// CheckDurable returns ErrUnsafe if the server could lose what it has confirmed. It runs on each new connection that must go to
// the primary, because after a failover the next server may be configured differently.
func CheckDurable(ctx context.Context, conn *pgx.Conn) error {
	if err := migrations.CheckServer(ctx, conn); errors.Is(err, migrations.ErrServer) {
		return fmt.Errorf("%w: %w", ErrUnsafe, err)
	} else if err != nil {
		return err
	}
	var fsync, pages, commit, standby bool
	err := conn.QueryRow(ctx, `
		SELECT current_setting('fsync') = 'on',
			current_setting('full_page_writes') = 'on', current_setting('synchronous_commit') <> 'off', pg_is_in_recovery()`,
		pgx.QueryExecModeExec).Scan(&fsync, &pages, &commit, &standby)
	switch {
	case err != nil:
		return err
	case !fsync:
		return fmt.Errorf("%w: fsync is off", ErrUnsafe)
	case !pages:
		return fmt.Errorf("%w: full_page_writes is off", ErrUnsafe)
	case !commit:
		return fmt.Errorf("%w: synchronous_commit is off", ErrUnsafe)
	case standby:
		return fmt.Errorf("%w: it is a standby", ErrUnsafe)
	}
	return nil
}
