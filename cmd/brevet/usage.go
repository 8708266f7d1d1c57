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

// AuditUsageCmd is `brevet audit usage`.
type AuditUsageCmd struct {
	OfficialFlags
	TrustDomain string        `help:"Only records of this trust domain."`
	Since       time.Duration `help:"Only requests of this recent period." default:"720h"`
}

// Run prints a table with the least used scopes first, or one JSON document.
func (c *AuditUsageCmd) Run(ctx context.Context, con *console) error {
	return c.consult(ctx, con, func(broker *client.Client) error {
		usage, err := broker.Usage(ctx, client.UsageFilter{TrustDomain: c.TrustDomain, Since: time.Now().Add(-c.Since)})
		if err != nil {
			return err
		}
		return printUsage(con, usage)
	})
}

func printUsage(con *console, usage openapi.Usage) error {
	if con.json {
		return con.encode(usage)
	}
	if len(usage.Scopes) == 0 {
		_, err := fmt.Fprintln(con.out, "no requests visible to you")
		return err
	}
	con.say("REPORTED, USED, CALLS and LAST USED are self-reported by the holders of the credentials")
	table := tabwriter.NewWriter(con.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "SCOPE\tREQUESTED\tGRANTED\tDENIED\tREPORTED\tUSED\tCALLS\tLAST USED")
	for _, u := range usage.Scopes {
		used, calls, last := "-", "-", "-"
		if r := u.Reported; r.Credentials > 0 {
			used, calls, last = fmt.Sprint(r.Used), fmt.Sprint(r.Calls), "never"
			if !r.LastUsedAt.IsZero() {
				last = r.LastUsedAt.Local().Format(time.DateTime)
			}
		}
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%s\t%s\t%s\n", safetext.Text(u.Scope), u.Asked, u.Granted, u.Denied, u.Reported.Credentials, used, calls, last)
	}
	return table.Flush()
}
