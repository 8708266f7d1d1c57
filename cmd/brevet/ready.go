package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/brevet-dev/brevet/internal/app"
	"github.com/brevet-dev/brevet/openapi"
)

// ReadyCmd is `brevet ready`: the health check for containers that have no shell and no curl.
type ReadyCmd struct {
	Config string `help:"Configuration file of the server." default:"brevet.yaml" type:"path" env:"BREVET_CONFIG"`
}

// Run fails if the server that the configuration describes does not respond, or is not ready.
func (c *ReadyCmd) Run(ctx context.Context, con *console) error {
	cfg, err := app.Load(c.Config)
	if err != nil {
		return err
	}
	health, err := app.Ready(ctx, cfg)
	if err != nil {
		return fmt.Errorf("checking the server on %s: %w", cfg.Listen, err)
	}
	if con.json {
		if err := con.encode(health); err != nil {
			return err
		}
	} else {
		for _, name := range slices.Sorted(maps.Keys(health.Checks)) {
			fmt.Fprintf(con.out, "%-11s %s\n", name, health.Checks[name])
		}
	}
	if health.Status != openapi.HealthOK {
		return exitError{err: errors.New("not ready"), code: 1}
	}
	return nil
}
