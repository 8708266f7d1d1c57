package devstack

import "errors"

var (
	// ErrInUse means that another process holds the state folder; the error's text holds its process id.
	ErrInUse = errors.New("state folder is in use")
	// ErrNoPostgres means that no PostgreSQL server binaries were found.
	ErrNoPostgres = errors.New("PostgreSQL is not installed")
	// ErrNoVault means that there is no Vault binary and none can be built.
	ErrNoVault = errors.New("no Vault to run")
	// ErrUntrusted means that a file or folder belongs to another user, or that another user may change it; the error's
	// text names the file or folder and the reason.
	ErrUntrusted = errors.New("not to be trusted")
	// ErrForeign means that a state folder was not made by this user on this machine.
	ErrForeign = errors.New("brevet dev of this user on this machine did not make this folder")
	// ErrClosed means that the stack is closed and starts no more servers.
	ErrClosed = errors.New("stack is closed")
	// ErrForeignID means that the caller asked for an identity outside the issuer's trust domain.
	ErrForeignID = errors.New("not an identity of this trust domain")
)
