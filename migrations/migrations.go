// Package migrations brings a Postgres schema to the shape that this version of Brevet needs: tables, triggers, roles and grants,
// as numbered SQL that is embedded in the binary. The first files are the baseline, one for each topic. schema.sql is the result of
// all of them, for readers.
//
// It must never run as a side effect of serving: only `brevet migrate` uses the owner's connection, and the server only checks
// the version. It must never put a connection's URL or password into an error.
package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pressly/goose/v3"
)

//go:embed 0*.sql
var files embed.FS

// Schema is the schema of a connection whose URL sets no search_path.
const Schema = "brevet"

// Migration is one numbered step.
type Migration struct {
	Version   int64     `json:"version"`
	Name      string    `json:"name"`
	Applied   bool      `json:"applied"`
	AppliedAt time.Time `json:"applied_at,omitzero"`
}

// Up creates the schema if it is absent and applies the missing migrations. Concurrent calls wait for each other. report, which
// may be nil, is called for each step.
func Up(ctx context.Context, databaseURL string, report func(line string), options ...URLOption) error {
	if report == nil {
		report = func(string) {}
	}
	cfg, err := ParseURL(databaseURL, options...)
	if err != nil {
		return err
	}
	if err := ensureSchema(ctx, cfg.ConnConfig); err != nil {
		return err
	}
	return withProvider(ctx, cfg.ConnConfig, func(p *goose.Provider) error {
		current := true
		err := patiently(ctx, report, func() error {
			done, err := p.Up(ctx)
			var partial *goose.PartialError
			if errors.As(err, &partial) {
				done = partial.Applied
			}
			for _, step := range done {
				report(fmt.Sprintf("applied %s in %s", step.Source.Path, step.Duration.Round(time.Millisecond)))
				current = false
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("migrating: %w", err)
		}
		if current {
			report("the schema is up to date")
		}
		return nil
	})
}

const (
	// lockPatience is how long a migration waits for a table. PostgreSQL detects a deadlock after a second (deadlock_timeout) and
	// makes one side fail. By then the migration has given way, so a request does not fail. Requests that arrive during the wait
	// queue behind it.
	lockPatience = "500ms"
	lockTries    = 100
	lockEvery    = time.Second
	// turnPatience is how long a migration waits for others of its schema to end.
	turnPatience = "5min"

	lockNotAvailable = "55P03"
)

// patiently retries a migration that waited too long for a lock. The failed attempt leaves nothing behind.
func patiently(ctx context.Context, report func(line string), do func() error) error {
	for try := 1; ; try++ {
		err := do()
		var refused *pgconn.PgError
		switch {
		case err == nil, !errors.As(err, &refused), refused.Code != lockNotAvailable && refused.Code != "40P01": // deadlock_detected
			return err
		case try == lockTries:
			return fmt.Errorf("%w: %w", ErrBusy, err)
		case try == 1:
			report("the tables are in use: trying again each second")
		}
		select {
		case <-time.After(lockEvery):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// Down takes back the newest applied migration. If none is applied, it returns ErrNothingApplied.
func Down(ctx context.Context, databaseURL string, options ...URLOption) error {
	all, err := Status(ctx, databaseURL, options...)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(all, func(m Migration) bool { return m.Applied }) {
		return ErrNothingApplied // goose would look for its table in a schema that may not exist
	}
	cfg, err := ParseURL(databaseURL, options...)
	if err != nil {
		return err
	}
	return withProvider(ctx, cfg.ConnConfig, func(p *goose.Provider) error {
		err := patiently(ctx, func(string) {}, func() error {
			_, err := p.Down(ctx)
			return err
		})
		if errors.Is(err, goose.ErrNoNextVersion) {
			return ErrNothingApplied
		}
		if err != nil {
			return fmt.Errorf("reverting a migration: %w", err)
		}
		return nil
	})
}

// Status lists all migrations, oldest first. It changes nothing, and does not wait for a migration that runs.
func Status(ctx context.Context, databaseURL string, options ...URLOption) ([]Migration, error) {
	cfg, err := ParseURL(databaseURL, options...)
	if err != nil {
		return nil, err
	}
	conn, err := connect(ctx, cfg.ConnConfig)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	applied := map[int64]time.Time{}
	rows, err := conn.Query(ctx, `SELECT version_id, max(tstamp) FROM goose_db_version WHERE is_applied GROUP BY version_id`)
	if err == nil {
		var version int64
		var at time.Time
		_, err = pgx.ForEachRow(rows, []any{&version, &at}, func() error {
			applied[version] = at
			return nil
		})
	}
	if err != nil && !neverMigrated(err) {
		return nil, fmt.Errorf("reading the schema's version: %w", err)
	}
	names, err := files.ReadDir(".")
	if err != nil {
		return nil, fmt.Errorf("reading the embedded migrations: %w", err)
	}
	all := make([]Migration, len(names))
	for i, file := range names {
		version, err := goose.NumericComponent(file.Name())
		if err != nil {
			return nil, fmt.Errorf("reading the version of %s: %w", file.Name(), err)
		}
		at, done := applied[version]
		all[i] = Migration{Version: version, Name: file.Name(), Applied: done, AppliedAt: at}
	}
	return all, nil
}

// neverMigrated reports whether a query found no table of versions: nothing was migrated, or this login may not look into the schema at all.
func neverMigrated(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == "42P01" // undefined_table
}

// Querier is a pool, a connection or a transaction.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Check returns ErrOutdated if the schema lacks a migration that this binary has. A newer schema passes: during a rolling upgrade
// the database is migrated first.
func Check(ctx context.Context, on Querier) error {
	names, err := files.ReadDir(".")
	if err != nil {
		return fmt.Errorf("reading the embedded migrations: %w", err)
	}
	newest := names[len(names)-1].Name()
	want, err := goose.NumericComponent(newest)
	if err != nil {
		return fmt.Errorf("reading the version of %s: %w", newest, err)
	}
	var have int64
	err = on.QueryRow(ctx, `SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied`).Scan(&have)
	if err != nil && !neverMigrated(err) {
		return fmt.Errorf("reading the schema's version: %w", err)
	}
	if have < want {
		return fmt.Errorf("%w (it is at version %d, this binary needs %d)", ErrOutdated, have, want)
	}
	return nil
}
