package main

import (
	"context"
	"errors"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/openapi"
)

// TaskCmd is `brevet task`.
type TaskCmd struct {
	End TaskEndCmd `cmd:"" help:"End a task, and every credential that was issued for it."`
}

// TaskEndCmd is `brevet task end`.
type TaskEndCmd struct {
	OfficialFlags
	Task     string    `arg:"" help:"The task to end. Nothing is issued for it afterwards."`
	SPIFFEID string    `help:"The sandbox whose task it is, for orchestrators and admins. Default: the sandbox this runs in." name:"spiffe-id"`
	At       time.Time `help:"End it then (RFC 3339, such as 2026-01-02T15:04:05Z). Default: now."`
	Reason   string    `help:"Why, in a sentence, for whoever reads the record."`
}

// Run ends the task and prints what became of each credential.
func (c *TaskEndCmd) Run(ctx context.Context, con *console) error {
	if c.asPerson() && c.SPIFFEID == "" {
		return errors.New("--spiffe-id: say whose task it is, since people have none of their own; a sandbox gives --workload-api instead")
	}
	return order(ctx, con, c.OfficialFlags, func(broker *client.Client) (openapi.Receipt, error) {
		return broker.EndTask(ctx, c.Task, client.TaskEnd{SPIFFEID: c.SPIFFEID, At: c.At, Reason: c.Reason})
	})
}
