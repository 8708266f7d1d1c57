package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/openapi"
)

// QuarantineCmd is `brevet quarantine`.
type QuarantineCmd struct {
	Add    QuarantineAddCmd    `cmd:"" help:"Quarantine a sandbox or all below a SPIFFE ID: deny requests and revoke credentials."`
	List   QuarantineListCmd   `cmd:"" help:"List active quarantines."`
	Remove QuarantineRemoveCmd `cmd:"" help:"Lift a quarantine. Revoked credentials stay revoked."`
}

// QuarantineAddCmd is `brevet quarantine add`.
type QuarantineAddCmd struct {
	OfficialFlags
	SPIFFEID string `arg:"" name:"spiffe-id" help:"A SPIFFE ID, which includes all IDs below it, or spiffe:// and a trust domain."`
	Reason   string `help:"Reason for the record, in one sentence." required:""`
}

// Run adds the quarantine and prints what happened to each credential.
func (c *QuarantineAddCmd) Run(ctx context.Context, con *console) error {
	return order(ctx, con, c.OfficialFlags, func(broker *client.Client) (openapi.Receipt, error) {
		return broker.Quarantine(ctx, c.SPIFFEID, c.Reason)
	})
}

// QuarantineRemoveCmd is `brevet quarantine remove`.
type QuarantineRemoveCmd struct {
	OfficialFlags
	SPIFFEID string `arg:"" name:"spiffe-id" help:"The SPIFFE ID exactly as it was added."`
	Reason   string `help:"Reason for the record, in one sentence."`
}

// Run lifts the quarantine.
func (c *QuarantineRemoveCmd) Run(ctx context.Context, con *console) error {
	broker, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err := broker.Unquarantine(ctx, c.SPIFFEID, c.Reason); err != nil {
		return explain(con, c.hint(err), "")
	}
	if con.json {
		return con.encode(map[string]any{"spiffe_id": c.SPIFFEID, "lifted": true})
	}
	_, err = fmt.Fprintf(con.out, "%s is no longer in quarantine\n", safetext.Text(c.SPIFFEID))
	return err
}

// QuarantineListCmd is `brevet quarantine list`.
type QuarantineListCmd struct{ OfficialFlags }

// Run prints a table, or one JSON document per line.
func (c *QuarantineListCmd) Run(ctx context.Context, con *console) error {
	broker, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	standing, err := broker.Quarantines(ctx)
	if err != nil {
		return explain(con, c.hint(err), "")
	}
	return printQuarantines(con, standing)
}

func printQuarantines(con *console, standing []openapi.Quarantine) error {
	if con.json {
		return encodeAll(con, standing)
	}
	if len(standing) == 0 {
		_, err := fmt.Fprintln(con.out, "no quarantined sandboxes")
		return err
	}
	table := tabwriter.NewWriter(con.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "SPIFFE ID\tSINCE\tBY\tREASON")
	for _, q := range standing {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", safetext.Text(q.SpiffeID), q.Since.Local().Format(time.DateTime), safetext.Text(q.Actor), shorten(safetext.Text(q.Reason), 60))
	}
	return table.Flush()
}
