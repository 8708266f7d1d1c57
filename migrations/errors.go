package migrations

import "errors"

var (
	// ErrURL means that the database URL cannot be parsed. Its text gives no details, because the URL holds a password.
	ErrURL = errors.New("the database URL is not valid")
	// ErrNetwork means that the URL allows a connection that others on the network can read and change.
	ErrNetwork = errors.New("the database URL allows a connection over a network that nothing protects")
	// ErrPasswordMethod means that the URL asks for authentication by which the server would learn the password.
	ErrPasswordMethod = errors.New("the database URL allows authentication other than SCRAM")
	// ErrOutdated means that the schema is older than the binary.
	ErrOutdated = errors.New("the database schema is outdated: run `brevet migrate` with the owner's URL")
	// ErrServer means that this release of PostgreSQL is not supported.
	ErrServer = errors.New("this release of PostgreSQL is not supported")
	// ErrBusy means that another session holds a lock that a migration needs, such as a reader of the whole record.
	ErrBusy = errors.New("the tables stayed in use for minutes: this migration changed nothing, try again")
	// ErrNothingApplied means that there is no migration to take back.
	ErrNothingApplied = errors.New("no migration has been applied")
	// ErrPassword means that a login's password is empty or not printable ASCII.
	ErrPassword = errors.New("a database password must be printable ASCII")
	// ErrPrivileged means that a login already exists and is a superuser or owns the schema, and so could rewrite the record.
	ErrPrivileged = errors.New("the role exists and is privileged: choose another name")
)
