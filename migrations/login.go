package migrations

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The group roles that the migrations grant rights to. A login gets its rights through membership.
const (
	BrokerRole  = "brevet_broker"  // appends entries and moves requests forward
	AuditorRole = "brevet_auditor" // reads
)

// EnsureLogin creates the user if it is absent, sets its password and makes it a member of the group. It sends the server only
// the SCRAM verifier, not the password: statements end up in logs.
func EnsureLogin(ctx context.Context, databaseURL, user, group, password string, options ...URLOption) error {
	cfg, err := ParseURL(databaseURL, options...)
	if err != nil {
		return err
	}
	verifier, err := scramVerifier(password)
	if err != nil {
		return err
	}
	conn, err := connect(ctx, cfg.ConnConfig)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if err := refusePrivileged(ctx, conn, user); err != nil {
		return err
	}
	for range loginTries {
		if err = grantLogin(ctx, conn, user, group, verifier); !collided(err) {
			break
		}
	}
	return err
}

// loginTries bounds the attempts to change a role that other sessions change too. Each failure means that one of them has succeeded.
const loginTries = 100

func grantLogin(ctx context.Context, conn *pgx.Conn, user, group, verifier string) error {
	name := pgx.Identifier{user}.Sanitize()
	_, err := conn.Exec(ctx, `CREATE ROLE `+name)
	if err != nil && !exists(err) {
		return fmt.Errorf("creating the role: %w", err)
	}
	// The verifier has no character that a literal would have to escape.
	if _, err := conn.Exec(ctx, `ALTER ROLE `+name+` LOGIN INHERIT PASSWORD '`+verifier+`'`); err != nil {
		return fmt.Errorf("setting the password: %w", err)
	}
	if user == group {
		return nil
	}
	if _, err := conn.Exec(ctx, `GRANT `+pgx.Identifier{group}.Sanitize()+` TO `+name); err != nil && !exists(err) {
		return fmt.Errorf("granting %s: %w", group, err)
	}
	return nil
}

// collided reports whether another session changed the same role at the same instant. PostgreSQL has only its code for internal errors
// and a text for that: "tuple concurrently updated".
func collided(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == "XX000" && strings.HasPrefix(refused.Message, "tuple concurrently")
}

// refusePrivileged returns ErrPrivileged if the user is the owner or a superuser, neither of which may become the broker's login.
func refusePrivileged(ctx context.Context, conn *pgx.Conn, user string) error {
	var privileged bool
	err := conn.QueryRow(ctx, `
		SELECT coalesce(bool_or(r.rolsuper OR pg_has_role(r.oid, n.nspowner, 'MEMBER')), false)
		FROM pg_roles AS r, pg_namespace AS n
		WHERE r.rolname = $1 AND n.nspname = current_schema()`, user).Scan(&privileged)
	if err != nil {
		return fmt.Errorf("looking up the role: %w", err)
	}
	if privileged {
		return ErrPrivileged
	}
	return nil
}

// scramVerifier returns what Postgres stores for a password (RFC 5803). Printable ASCII is its own SASLprep form.
func scramVerifier(password string) (string, error) {
	const iterations = 4096 // as in Postgres itself
	if password == "" {
		return "", ErrPassword
	}
	for _, c := range []byte(password) {
		if c < ' ' || c > '~' {
			return "", ErrPassword
		}
	}
	salt := make([]byte, 16)
	_, _ = rand.Read(salt) // never fails
	salted, err := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	if err != nil {
		return "", fmt.Errorf("deriving the password's verifier: %w", err)
	}
	sign := func(what string) []byte {
		mac := hmac.New(sha256.New, salted)
		mac.Write([]byte(what))
		return mac.Sum(nil)
	}
	stored := sha256.Sum256(sign("Client Key"))
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", iterations, encode(salt), encode(stored[:]), encode(sign("Server Key"))), nil
}
