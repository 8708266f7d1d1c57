package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/openapi"
)

// AuditTaskCmd is `brevet audit task`.
type AuditTaskCmd struct {
	OfficialFlags
	Task     string `arg:"" help:"Task to show."`
	SPIFFEID string `help:"Sandbox that owns the task. Default: this sandbox; required for other callers." name:"spiffe-id"`
}

// Run prints everything that is recorded of a task, oldest first.
func (c *AuditTaskCmd) Run(ctx context.Context, con *console) error {
	if c.SPIFFEID == "" && c.asPerson() {
		return c.nobodys()
	}
	broker, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	var events []openapi.TimelineEvent
	for e, err := range broker.TaskTimeline(ctx, c.Task, c.SPIFFEID) {
		var problem *client.Problem
		if errors.As(err, &problem) && problem.Field == "spiffe_id" && c.SPIFFEID == "" && !con.json {
			return c.nobodys() // this workload is not a sandbox
		}
		if err != nil {
			return explain(con, c.hint(err), c.Task)
		}
		events = append(events, e)
	}
	return printTimeline(con, events)
}

// nobodys returns the error for a caller that has no tasks and did not name the owner of the task.
func (c *AuditTaskCmd) nobodys() error {
	return fmt.Errorf(
		"--spiffe-id: required unless a sandbox reads its own task; name the owner, as in brevet audit task %s --spiffe-id spiffe://TRUST-DOMAIN/PATH", quote(c.Task),
	)
}

func printTimeline(con *console, events []openapi.TimelineEvent) error {
	if con.json {
		return encodeAll(con, events)
	}
	table := tabwriter.NewWriter(con.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "TIME\tEVENT\tSTATUS\tBY\tREQUEST\tDETAILS")
	for _, e := range events {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", e.Time.Local().Format(time.DateTime), safetext.Text(e.Kind), orDash(safetext.Text(e.Status)),
			orDash(safetext.Text(e.By)), safetext.Text(e.ID), shorten(safetext.Text(aboutOf(e)), 100))
	}
	return table.Flush()
}

// aboutOf returns the other fields of an event as one line.
func aboutOf(e openapi.TimelineEvent) string {
	var parts []string
	for _, part := range []string{e.Scope, e.Resource, e.DecisionCode, e.Verdict, e.Detail, e.Note, e.Reason} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	if e.Calls != nil {
		parts = append(parts, plural(*e.Calls, "call", "calls")+" (self-reported)")
	}
	return strings.Join(parts, ", ")
}
