package migrations

import "errors"

var (
	// ErrURL means that the database URL cannot be parsed. Its text gives no details, because the URL holds a password.
	ErrURL = errors.New("the database URL is not valid")
	// ErrOutdated means that the schema is older than the binary.
	ErrOutdated = errors.New("the database schema is outdated: run `brevet migrate` with the owner's URL")
	// ErrServer means that this release of PostgreSQL cannot guard the record.
	ErrServer = errors.New("this release of PostgreSQL cannot guard the record")
	// ErrBusy means that another session holds a lock that a migration needs, such as a reader of the whole record.
	ErrBusy = errors.New("others have worked on what is to change for minutes: nothing was changed by this migration, try again")
	// ErrNothingApplied means that there is no migration to take back.
	ErrNothingApplied = errors.New("no migration is applied")
	// ErrPassword means that a login's password is empty or not printable ASCII.
	ErrPassword = errors.New("a database password must be printable ASCII")
	// ErrPrivileged means that a login already exists and is a superuser or owns the schema, and so could rewrite the record.
	ErrPrivileged = errors.New("the login exists and is privileged: choose another name")
)
