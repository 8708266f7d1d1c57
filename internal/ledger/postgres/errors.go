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
	"github.com/jackc/pgx/v5/pgconn"
)

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
	}
	return fmt.Errorf("%s: %w: %s", doing, broker.ErrLedgerUnavailable, Reason(err))
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
	return "the connection to postgres broke"
}
