package ledger

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// rolledBack reports whether nothing of the statement can have been committed: it was not sent, or the server answered it
// with an error. A server that ends the session may have committed before.
func rolledBack(err error) bool {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return refused.SeverityUnlocalized == "ERROR"
	}
	return pgconn.SafeToRetry(err)
}

// aboutData reports whether the server refused the contents of a record. Class 22 is data exception, class 23 integrity
// constraint violation.
func aboutData(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && (strings.HasPrefix(refused.Code, "22") || strings.HasPrefix(refused.Code, "23"))
}
