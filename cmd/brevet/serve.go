package main

import (
	"context"
	"errors"
	"time"

	"github.com/brevet-dev/brevet/internal/app"
)

// ServeCmd is `brevet serve`.
type ServeCmd struct {
	Config string `help:"Configuration file (docs/configuration.md)." default:"brevet.yaml" type:"path" env:"BREVET_CONFIG"`
}

// Run serves until ctx ends, and then for the lame-duck time.
func (c *ServeCmd) Run(ctx context.Context, con *console) error {
	if err := closed(); err != nil {
		return err
	}
	cfg, err := app.Load(c.Config)
	if err != nil {
		return err
	}
	log, err := app.NewLogger(cfg.Log, con.err)
	if err != nil {
		return err
	}
	return serve(ctx, cfg, app.Process{Log: log}, func(string) {})
}

// serve runs the broker until ctx ends, with the clock and the version of this program.
func serve(ctx context.Context, cfg app.Config, in app.Process, ready func(address string)) error {
	collectLess(ctx)
	in.Now, in.Version = time.Now, version()
	return app.Serve(ctx, cfg, in, ready)
}

// ended returns nil if ctx was canceled, because that is how a service is asked to stop.
func ended(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil
	}
	return err
}
