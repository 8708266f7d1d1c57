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

// order sends one order to the broker as the given caller, and prints the receipt.
func order(ctx context.Context, con *console, as connector, send func(*client.Client) (openapi.Receipt, error)) error {
	broker, done, err := as.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	receipt, err := send(broker)
	if err != nil {
		return explain(con, as.hint(err), "")
	}
	return printReceipt(con, receipt, time.Now())
}

// printReceipt prints how each credential ended. If some have not ended yet, it returns exitPending, for scripts.
func printReceipt(con *console, receipt openapi.Receipt, now time.Time) error {
	unfinished := 0
	for _, e := range receipt.Ended {
		if e.Why != "" && e.Why != whyStatic {
			unfinished++
		}
	}
	var err error
	switch {
	case con.json:
		err = con.encode(receipt)
	case len(receipt.Ended) == 0 && receipt.Time.After(now):
		_, err = fmt.Fprintf(con.out, "ends at %s\n", receipt.Time.Local().Format(time.DateTime))
	case len(receipt.Ended) == 0:
		_, err = fmt.Fprintln(con.out, "no live credentials matched")
	default:
		err = printEnded(con, receipt.Ended)
	}
	if err != nil || (unfinished == 0 && !receipt.More) {
		return err
	}
	if receipt.More {
		fmt.Fprintln(con.err, "The list is truncated: more credentials matched.")
	}
	fmt.Fprintln(con.err, "Some revocations are not confirmed yet. Brevet treats these credentials as inactive and keeps retrying: see brevet audit unrevoked.")
	return exitError{err: errors.New("some revocations are not confirmed yet"), code: exitPending}
}

// whyStatic is the reason for a static secret that has not ended: only its owner can end it.
const whyStatic = "static"

func printEnded(con *console, ended []openapi.Ended) error {
	table := tabwriter.NewWriter(con.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "STATUS\tCAUSE\tKIND\tSCOPE\tSANDBOX\tTASK\tID\tNOTE")
	for _, e := range ended {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.Status, orDash(e.Cause), orDash(e.Kind), safetext.Text(e.Scope),
			safetext.Text(e.SpiffeID), safetext.Text(e.Task), e.ID, note(e))
	}
	return table.Flush()
}

func note(e openapi.Ended) string {
	switch {
	case e.Why == whyStatic:
		return "static: rotate it where it is stored"
	case e.Why != "":
		return safetext.Text(e.Why)
	case !e.UsableUntil.IsZero():
		return "accepted offline until " + e.UsableUntil.Local().Format(time.TimeOnly)
	default:
		return "-"
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return safetext.Text(s)
}
