// Package postgres checks the servers that the ledger writes to, and describes errors of the database.
//
// The package must never let an error contain a connection's URL or a record's contents, and never call a server safe that
// could lose what it has confirmed.
package postgres

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/brevet-dev/brevet/broker"
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

var (
	// ErrWentBack means that the database no longer holds what this replica has seen in it, or what a checkpoint was signed
	// for. It may be an older backup, a standby that was behind, or have a changed entry. Nothing is issued then, since
	// revocations and approvals may be missing too.
	ErrWentBack = errors.New("the database is not the one that the checkpoints were signed for")
	// ErrUnsafe means that the server's settings let it forget what it has confirmed, that its release cannot guard the
	// record, or that it cannot be written to.
	ErrUnsafe = errors.New("postgres is not safe to write to")
)

// Unavailable wraps an error of the database, so that its text may be logged. If a cause could quote addresses, values or
// statements, Unavailable keeps only a general description of it.
func Unavailable(doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrUnsafe), errors.Is(err, ErrWentBack), errors.Is(err, migrations.ErrOutdated), errors.Is(err, migrations.ErrServer):
		return fmt.Errorf("%s: %w: %w", doing, broker.ErrLedgerUnavailable, err)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%s: %w: %w", doing, broker.ErrLedgerUnavailable, context.Canceled)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: %w: %w", doing, broker.ErrLedgerUnavailable, context.DeadlineExceeded)
	case Full(err):
		return fmt.Errorf("%s: %w: %s", doing, broker.ErrLedgerFull, Reason(err))
	}
	return fmt.Errorf("%s: %w: %s", doing, broker.ErrLedgerUnavailable, Reason(err))
}

// diskFull is the SQLSTATE disk_full.
const diskFull = "53100"

// Full reports whether the server answered that its disk is full.
func Full(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == diskFull
}

// shortages names the conditions of SQLSTATE class 53, insufficient resources.
var shortages = map[string]string{
	diskFull: "disk full", "53200": "out of memory", "53300": "too many connections", "53400": "configuration limit exceeded",
}

// Reason returns what may be logged about an error of the database.
func Reason(err error) string {
	var (
		refused *pgconn.PgError
		number  syscall.Errno
		lookup  *net.DNSError
		trust   *tls.CertificateVerificationError
	)
	switch {
	case errors.As(err, &refused):
		text := "postgres answered SQLSTATE " + refused.Code
		if shortage := shortages[refused.Code]; shortage != "" {
			text += " (" + shortage + ")"
		}
		if refused.ConstraintName != "" {
			text += " for " + refused.ConstraintName
		}
		return text
	case errors.As(err, &trust):
		return "the certificate of postgres is not trusted"
	case errors.As(err, &lookup):
		return "the host of postgres is not found"
	case errors.As(err, &number):
		return number.Error()
	}
	if advice := migrations.Refusal(err); advice != "" {
		return advice
	}
	return "the connection to postgres broke"
}

// Collect reads all rows of a query. err is the error of the query.
func Collect[T any](rows pgx.Rows, err error, scan pgx.RowToFunc[T]) ([]T, error) {
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}

// CollectOne is Collect for a query that yields at most one row. It returns pgx.ErrNoRows if there is none.
func CollectOne[T any](rows pgx.Rows, err error, scan pgx.RowToFunc[T]) (T, error) {
	if err != nil {
		var none T
		return none, err
	}
	return pgx.CollectExactlyOneRow(rows, scan)
}
