package main

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/openapi"
)

// AuditUnrevokedCmd is `brevet audit unrevoked`.
type AuditUnrevokedCmd struct {
	OfficialFlags
	Limit int `help:"Maximum number of results." default:"500"`
}

// Run lists the credentials that are overdue and not confirmed as revoked. It fails if there are any, so that it can serve
// as a monitor.
func (c *AuditUnrevokedCmd) Run(ctx context.Context, con *console) error {
	if c.Limit < 1 {
		return errors.New("--limit: must be at least 1")
	}
	broker, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	records, err := collect(ctx, broker, client.Filter{Status: openapi.StatusRevoking, Limit: min(c.Limit, 500)}, c.Limit)
	if err != nil {
		return explain(con, c.hint(err), "")
	}
	return printUnrevoked(con, records, time.Now())
}

func printUnrevoked(con *console, records []openapi.Issuance, now time.Time) error {
	switch {
	case con.json:
		if err := printRecords(con, records); err != nil {
			return err
		}
	case len(records) == 0:
		_, err := fmt.Fprintln(con.out, "no overdue credentials visible to you")
		return err
	default:
		if err := printAges(con, records, now); err != nil {
			return err
		}
	}
	if len(records) == 0 {
		return nil
	}
	return exitError{err: fmt.Errorf("overdue credentials: %d; their revocation is not confirmed", len(records)), code: 1}
}

func printAges(con *console, records []openapi.Issuance, now time.Time) error {
	table := tabwriter.NewWriter(con.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "OVERDUE\tCAUSE\tBY\tKIND\tNAME\tSCOPE\tSANDBOX\tTASK\tID")
	for _, r := range records {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", spell(max(0, now.Sub(r.StatusAt)).Round(time.Second)),
			orDash(r.StatusDetail), orDash(r.EndedBy), orDash(r.Credential.Kind), orDash(r.Credential.Name), safetext.Text(r.Scope),
			safetext.Text(r.SpiffeID), safetext.Text(r.Task), r.ID)
	}
	return table.Flush()
}
