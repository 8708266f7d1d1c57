package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/brevet-dev/brevet/openapi"
)

// AuditTailCmd is `brevet audit tail`.
type AuditTailCmd struct {
	OfficialFlags
	SearchFlags
	Every time.Duration `help:"Delay before a retry when the broker is unavailable." default:"5s"`
}

// Run prints a line for each new or changed record.
func (c *AuditTailCmd) Run(ctx context.Context, con *console) error {
	broker, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	watch := broker.WatchIssuances(c.filter(time.Now()))
	for {
		err := watch.Follow(ctx, func(one openapi.Issuance) error { return printIssuance(con, one) })
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !passes(err) && !errors.Is(err, client.ErrRateLimited):
			return explain(con, c.hint(err), c.Task)
		case err != nil:
			con.say("the record is unavailable; retrying")
		}
		if !wait.For(ctx, c.Every) {
			return nil
		}
	}
}

func printIssuance(con *console, one openapi.Issuance) error {
	if con.json {
		return con.encode(one)
	}
	_, err := fmt.Fprintf(con.out, "%s  %-10s %s on %s by %s, task %s: %s\n", one.StatusAt.Local().Format(time.TimeOnly), one.Status,
		safetext.Text(one.Scope), shorten(safetext.Text(one.Resource), 60), safetext.Text(one.SpiffeID), safetext.Text(one.Task), shorten(safetext.Text(one.Reason), 60))
	return err
}
