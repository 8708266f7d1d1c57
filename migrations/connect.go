package migrations

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

// ParseURL parses a connection URL. Without a search_path the connection uses Schema. The URL need not have everything: a service
// file and the PG... variables of the environment supply the rest, so ParseURL judges the result and not the text.
//
// Every host must be on this machine, or have TLS that verifies the server's name. The server must prove with SCRAM that it knows
// the password, and never learns it. The error is ErrURL, or wraps ErrNetwork or ErrPasswordMethod.
func ParseURL(databaseURL string, options ...URLOption) (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(databaseURL) //nolint:forbidigo // the checks follow
	if err != nil {
		return nil, ErrURL // the cause quotes the URL
	}
	var rules urlRules
	for _, option := range options {
		option(&rules)
	}
	if exposed := exposedHosts(&cfg.ConnConfig.Config); len(exposed) > 0 && !rules.insecureNetwork {
		return nil, exposed[0].refusal()
	}
	if err := requireSCRAM(&cfg.ConnConfig.Config); err != nil {
		return nil, err
	}
	keepLocalhost(&cfg.ConnConfig.Config)
	params := cfg.ConnConfig.RuntimeParams
	if params["search_path"] == "" {
		params["search_path"] = Schema
	}
	if params["application_name"] == "" {
		params["application_name"] = "brevet"
	}
	return cfg, nil
}

// ensureSchema creates the first schema of the search_path, where all tables go.
func ensureSchema(ctx context.Context, cfg *pgx.ConnConfig) error {
	conn, err := connect(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if err := CheckServer(ctx, conn); err != nil {
		return err
	}
	var current *string
	var wanted string
	err = conn.QueryRow(ctx, `
		SELECT current_schema(), (parse_ident(split_part(
			replace(current_setting('search_path'), '"$user"', quote_ident(current_user)), ',', 1)))[1]`,
	).Scan(&current, &wanted)
	if err != nil {
		return fmt.Errorf("reading the search_path: %w", err)
	}
	if current != nil && *current == wanted {
		return nil
	}
	_, err = conn.Exec(ctx, `CREATE SCHEMA IF NOT EXISTS `+pgx.Identifier{wanted}.Sanitize())
	if exists(err) {
		return nil // another process created it at the same instant
	}
	if err != nil {
		return fmt.Errorf("creating the schema %s: %w", wanted, err)
	}
	return nil
}

// exists reports whether the object to create already exists. The codes are duplicate_schema, duplicate_object, and
// unique_violation in the catalogue when two processes create it at once.
func exists(err error) bool {
	var refused *pgconn.PgError
	if !errors.As(err, &refused) {
		return false
	}
	return refused.Code == "42P06" || refused.Code == "42710" || refused.Code == "23505"
}

// withProvider runs f on a provider with one connection, which holds the schema's lock from the moment it opens: goose's own locker comes
// too late, because Provider.Up looks for pending migrations, and creates its table, before it takes that lock. Schemas do not wait for
// each other.
func withProvider(ctx context.Context, cfg *pgx.ConnConfig, f func(*goose.Provider) error) error {
	lockID := int64(crc32.ChecksumIEEE([]byte("brevet/" + cfg.RuntimeParams["search_path"])))
	db := stdlib.OpenDB(*cfg, stdlib.OptionAfterConnect(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, fmt.Sprintf(`
			SET LOCAL statement_timeout = 0; SET lock_timeout = '%s'; SELECT pg_advisory_lock(%d); SET lock_timeout = '%s'`,
			turnPatience, lockID, lockPatience))
		var refused *pgconn.PgError
		if errors.As(err, &refused) && refused.Code == lockNotAvailable {
			return fmt.Errorf("%w: another migration of this schema has not ended: %w", ErrBusy, err)
		}
		return err
	}))
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1)
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("reading the embedded migrations: %w", err)
	}
	if err := db.PingContext(ctx); err != nil {
		return fmt.Errorf("taking the lock for migrations: %w", err)
	}
	return f(provider)
}
