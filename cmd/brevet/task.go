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
	End TaskEndCmd `cmd:"" help:"End a task and revoke every credential issued for it."`
}

// TaskEndCmd is `brevet task end`.
type TaskEndCmd struct {
	OfficialFlags
	Task     string    `arg:"" help:"Task to end. Later requests for it are denied."`
	SPIFFEID string    `help:"Sandbox that owns the task, for orchestrators and admins. Default: this sandbox." name:"spiffe-id"`
	At       time.Time `help:"Time of the end (RFC 3339, such as 2026-01-02T15:04:05Z). Default: now."`
	Reason   string    `help:"Reason for the record, in one sentence."`
}

// Run ends the task and prints what happened to each credential.
func (c *TaskEndCmd) Run(ctx context.Context, con *console) error {
	if c.asPerson() && c.SPIFFEID == "" {
		return errors.New("--spiffe-id: required for people, to name the owner of the task; a sandbox sets --workload-api instead")
	}
	return order(ctx, con, c.OfficialFlags, func(broker *client.Client) (openapi.Receipt, error) {
		return broker.EndTask(ctx, c.Task, client.TaskEnd{SPIFFEID: c.SPIFFEID, At: c.At, Reason: c.Reason})
	})
}
