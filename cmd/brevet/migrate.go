package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/brevet-dev/brevet/internal/safetext"
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
	NetworkFlag
}

func (f DatabaseFlag) database(con *console) (database, error) { return f.read(con, f.DatabaseURLFile) }

// NetworkFlag is part of every command that connects to the database.
type NetworkFlag struct {
	InsecureNetwork bool `help:"Accept a database connection over a network without TLS that verifies the server's name. Others on that network can read and change the record on its way."`
}

// database is where a command connects to.
type database struct {
	url     string
	options []migrations.URLOption
}

// read reads the file of --database-url-file. It warns if --insecure-network is needed.
func (f NetworkFlag) read(con *console, path string) (database, error) {
	text, err := secret.ReadFile(path)
	if err != nil {
		return database{}, fmt.Errorf("--database-url-file: %w", err)
	}
	db := database{url: text}
	if f.InsecureNetwork {
		db.options = append(db.options, migrations.InsecureNetwork)
		hosts, err := migrations.InsecureHosts(text)
		if err != nil {
			return database{}, fmt.Errorf("--database-url-file: %w", err)
		}
		for _, host := range hosts {
			con.say("WARNING: nothing protects the connection to " + safetext.Text(host) + ": others on the network can read and change what passes")
		}
	}
	if _, err := migrations.ParseURL(db.url, db.options...); err != nil {
		return database{}, fmt.Errorf("--database-url-file: %w", err)
	}
	return db, nil
}

// MigrateUpCmd is `brevet migrate up`.
type MigrateUpCmd struct{ DatabaseFlag }

// Run applies the pending migrations.
func (c *MigrateUpCmd) Run(ctx context.Context, con *console) error {
	db, err := c.database(con)
	if err != nil {
		return err
	}
	return migrations.Up(ctx, db.url, con.say, db.options...)
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
	db, err := c.database(con)
	if err != nil {
		return err
	}
	if err := migrations.Down(ctx, db.url, db.options...); err != nil {
		return err
	}
	con.say("reverted the newest migration; `brevet migrate status` shows the rest")
	return nil
}

// MigrateStatusCmd is `brevet migrate status`.
type MigrateStatusCmd struct{ DatabaseFlag }

// Run lists the migrations.
func (c *MigrateStatusCmd) Run(ctx context.Context, con *console) error {
	db, err := c.database(con)
	if err != nil {
		return err
	}
	all, err := migrations.Status(ctx, db.url, db.options...)
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
