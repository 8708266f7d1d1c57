package main

import (
	"context"
	"errors"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/openapi"
)

// ReleaseCmd is `brevet release`.
type ReleaseCmd struct {
	CallerFlags
	ID string `arg:"" help:"ID of the issuance, as brevet request printed it."`
}

// Run releases one credential of the sandbox in which this command runs.
func (c *ReleaseCmd) Run(ctx context.Context, con *console) error {
	return order(ctx, con, c.CallerFlags, func(broker *client.Client) (openapi.Receipt, error) { return broker.Release(ctx, c.ID) })
}

// RevokeCmd is `brevet revoke`.
type RevokeCmd struct {
	OfficialFlags
	ID          string `help:"This issuance only." name:"id"`
	Task        string `help:"Credentials of this task."`
	SPIFFEID    string `help:"Credentials of this sandbox." name:"spiffe-id"`
	Prefix      string `help:"Credentials of sandboxes at or below this SPIFFE ID."`
	TrustDomain string `help:"Credentials of this trust domain."`
	Scope       string `help:"Credentials of this scope."`
	Catalogue   string `help:"Credentials that the catalogue with this digest allowed."`
	Reason      string `help:"Reason for the record, in one sentence." required:""`
}

// Run revokes the credentials that match all given flags.
func (c *RevokeCmd) Run(ctx context.Context, con *console) error {
	which := client.Selection{
		ID: c.ID, Task: c.Task, SPIFFEID: c.SPIFFEID, SPIFFEIDPrefix: c.Prefix, TrustDomain: c.TrustDomain,
		Scope: c.Scope, Catalogue: c.Catalogue,
	}
	if which == (client.Selection{}) {
		return errors.New("no credentials selected: set at least one of --id, --task, --spiffe-id, --prefix, --trust-domain, --scope and --catalogue; a credential must match all that you set")
	}
	return order(ctx, con, c.OfficialFlags, func(broker *client.Client) (openapi.Receipt, error) {
		return broker.Revoke(ctx, which, c.Reason)
	})
}

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
	if c.WorkloadAPI != "" { // a command of sandboxes, which people use for the tasks of others
		c.Workload = true
	}
	if c.asPerson() && c.SPIFFEID == "" {
		return errors.New("--spiffe-id: required for people, to name the owner of the task; a sandbox sets --workload-api instead")
	}
	return order(ctx, con, c.OfficialFlags, func(broker *client.Client) (openapi.Receipt, error) {
		return broker.EndTask(ctx, c.Task, client.TaskEnd{SPIFFEID: c.SPIFFEID, At: c.At, Reason: c.Reason})
	})
}

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
	return call(ctx, con, c.OfficialFlags, func(broker *client.Client) error {
		if err := broker.Unquarantine(ctx, c.SPIFFEID, c.Reason); err != nil {
			return err
		}
		lifted := map[string]any{"spiffe_id": c.SPIFFEID, "lifted": true}
		return con.print(lifted, "%s is no longer in quarantine\n", safetext.Text(c.SPIFFEID))
	})
}

// QuarantineListCmd is `brevet quarantine list`.
type QuarantineListCmd struct{ OfficialFlags }

// Run prints a table, or one JSON document per line.
func (c *QuarantineListCmd) Run(ctx context.Context, con *console) error {
	return call(ctx, con, c.OfficialFlags, func(broker *client.Client) error {
		standing, err := broker.Quarantines(ctx)
		if err != nil {
			return err
		}
		return printList(con, standing, "no quarantined sandboxes", "SPIFFE ID\tSINCE\tBY\tREASON", func(q openapi.Quarantine) []any {
			return []any{q.SpiffeID, dateTime(q.Since), q.Actor, short(q.Reason, 60)}
		})
	})
}

// order sends one order to the broker as the given caller, and prints the receipt.
func order(ctx context.Context, con *console, as connector, send func(*client.Client) (openapi.Receipt, error)) error {
	return call(ctx, con, as, func(broker *client.Client) error {
		receipt, err := send(broker)
		if err != nil {
			return err
		}
		return printReceipt(con, receipt, time.Now())
	})
}

// whyStatic is the reason for a static secret that has not ended: only its owner can end it.
const whyStatic = "static"

// printReceipt prints how each credential ended. If some have not ended yet, it returns exitPending, for scripts.
func printReceipt(con *console, receipt openapi.Receipt, now time.Time) error {
	none := "no live credentials matched"
	if receipt.Time.After(now) {
		none = "ends at " + dateTime(receipt.Time)
	}
	unfinished := receipt.More
	for _, e := range receipt.Ended {
		unfinished = unfinished || e.Why != "" && e.Why != whyStatic
	}
	var err error
	if con.json {
		err = con.encode(receipt)
	} else {
		err = printList(con, receipt.Ended, none, "STATUS\tCAUSE\tKIND\tSCOPE\tSANDBOX\tTASK\tID\tNOTE", func(e openapi.Ended) []any {
			note := orDash(e.Why)
			switch {
			case e.Why == whyStatic:
				note = "static: rotate it where it is stored"
			case e.Why != "" && !e.UsableUntil.IsZero():
				note += ", may be accepted until " + e.UsableUntil.Local().Format(time.TimeOnly)
			case e.Why == "" && !e.UsableUntil.IsZero():
				note = "accepted offline until " + e.UsableUntil.Local().Format(time.TimeOnly)
			}
			return []any{e.Status, orDash(e.Cause), orDash(e.Kind), e.Scope, e.SpiffeID, e.Task, e.ID, note}
		})
	}
	if err != nil || !unfinished {
		return err
	}
	if receipt.More {
		con.say("The list is truncated: more credentials matched.")
	}
	con.say("Some revocations are not confirmed yet. Brevet treats these credentials as inactive and keeps retrying: see brevet audit unrevoked.")
	return exitError{err: errors.New("some revocations are not confirmed yet"), code: exitPending}
}
