package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/migrations"
)

// MigrateCmd is `brevet migrate`.
type MigrateCmd struct {
	Up     MigrateUpCmd     `cmd:"" default:"withargs" help:"Apply pending migrations."`
	Down   MigrateDownCmd   `cmd:"" help:"Revert the newest migration and drop its tables."`
	Status MigrateStatusCmd `cmd:"" help:"Show which migrations are applied."`
}

// DatabaseFlag names a file that holds the database URL. A URL on the command line would be visible in every process list.
type DatabaseFlag struct {
	DatabaseURLFile string `help:"File that holds the URL of the owner's connection." required:"" type:"path" env:"BREVET_DATABASE_URL_FILE"`
}

func (f DatabaseFlag) url() (string, error) { return readURL(f.DatabaseURLFile) }

// readURL reads the file of --database-url-file.
func readURL(path string) (string, error) {
	databaseURL, err := secret.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("--database-url-file: %w", err)
	}
	return databaseURL, nil
}

// MigrateUpCmd is `brevet migrate up`.
type MigrateUpCmd struct{ DatabaseFlag }

// Run applies the pending migrations.
func (c *MigrateUpCmd) Run(ctx context.Context, con *console) error {
	databaseURL, err := c.url()
	if err != nil {
		return err
	}
	return migrations.Up(ctx, databaseURL, con.say)
}

// MigrateDownCmd is `brevet migrate down`.
type MigrateDownCmd struct {
	DatabaseFlag
	Yes bool `help:"Confirm that the records in the removed tables are lost." required:""`
}

// Run reverts the newest migration.
func (c *MigrateDownCmd) Run(ctx context.Context, con *console) error {
	if !c.Yes {
		return errors.New("not confirmed: nothing was changed")
	}
	databaseURL, err := c.url()
	if err != nil {
		return err
	}
	if err := migrations.Down(ctx, databaseURL); err != nil {
		return err
	}
	con.say("reverted the newest migration; `brevet migrate status` shows the rest")
	return nil
}

// MigrateStatusCmd is `brevet migrate status`.
type MigrateStatusCmd struct{ DatabaseFlag }

// Run lists the migrations.
func (c *MigrateStatusCmd) Run(ctx context.Context, con *console) error {
	databaseURL, err := c.url()
	if err != nil {
		return err
	}
	all, err := migrations.Status(ctx, databaseURL)
	if err != nil {
		return err
	}
	if con.json {
		return con.encode(all)
	}
	t := newTable(con.out, "MIGRATION\tAPPLIED")
	for _, m := range all {
		t.row(m.Name, m.Applied)
	}
	return t.Flush()
}
