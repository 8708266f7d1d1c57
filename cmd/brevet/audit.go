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

// AuditCmd is `brevet audit`.
type AuditCmd struct {
	List       AuditListCmd       `cmd:"" help:"List what was decided and issued, newest first."`
	Whose      AuditWhoseCmd      `cmd:"" help:"Tell whose a credential is that somebody has found."`
	Tail       AuditTailCmd       `cmd:"" help:"Show what is recorded, as it comes, until Ctrl-C."`
	Task       AuditTaskCmd       `cmd:"" help:"Show all that is recorded of one task, in order."`
	Usage      AuditUsageCmd      `cmd:"" help:"Compare what was granted with what was used, by scope."`
	Unrevoked  AuditUnrevokedCmd  `cmd:"" help:"List what should be dead and is not known to be. Fails when there is any."`
	Checkpoint AuditCheckpointCmd `cmd:"" help:"Print the last signed checkpoint of the log, to be kept where nobody here can reach it."`
	Keys       AuditKeysCmd       `cmd:"" help:"Print the public keys of the log."`
	Evidence   AuditEvidenceCmd   `cmd:"" help:"Put the evidence of one task into a file: entries, proofs, catalogues."`
	Export     AuditExportCmd     `cmd:"" help:"Write the entries of the log for other systems: to a file, or pushed on."`
	Verify     AuditVerifyCmd     `cmd:"" help:"Tell whether the record is whole, trusting nobody."`
	Snapshot   AuditSnapshotCmd   `cmd:"" help:"Write all that verifying takes to a file, to verify it elsewhere."`
	Receipt    AuditReceiptCmd    `cmd:"" help:"Print the proof that an issuance is in the log."`
}

// AuditListCmd is `brevet audit list`.
type AuditListCmd struct {
	OfficialFlags
	SearchFlags
	Limit int  `help:"How many at the most." default:"50"`
	URL   bool `help:"Print the search as a URL instead, to keep or to pass on." name:"url"`
}

// SearchFlags say what is searched for. All that is given has to match.
type SearchFlags struct {
	SPIFFEID    string            `help:"Only of this sandbox." name:"spiffe-id"`
	Prefix      string            `help:"Only of sandboxes at or below this SPIFFE ID."`
	TrustDomain string            `help:"Only of this trust domain."`
	Scope       string            `help:"Only of this scope."`
	Task        string            `help:"Only of this task."`
	Decision    openapi.Decision  `help:"Only with this decision: ${enum}." enum:",allow,deny,pending" default:""`
	Status      openapi.Status    `help:"Only in this state: ${enum}." enum:",denied,pending,approved,rejected,withdrawn,redeemed,intent,issued,failed,unknown,compensated,revoking,revoked,released,expired,used" default:""`
	Since       time.Duration     `help:"Only of the last while, such as 24h."`
	Words       string            `help:"Only with all of these words in the reason."`
	Param       map[string]string `help:"Only with this parameter, such as repo=acme/api." placeholder:"NAME=VALUE"`
	Approver    string            `help:"Only what this person, by id, has voted on."`
	OnBehalfOf  string            `help:"Only what was asked on behalf of this person, by id." name:"on-behalf-of"`
	Name        string            `help:"Only what the far side knows by this, such as a database user or a serial number."`
	Group       string            `help:"Only what this group was asked for."`
	Code        string            `help:"Only decided for this reason, such as forbidden, or break_glass."`
	Authority   string            `help:"Only of scopes of this authority."`
	Resource    string            `help:"Only on this resource."`
	Catalogue   string            `help:"Only decided by the catalogue with this digest."`
	KeyID       string            `help:"Only signed by this key." name:"key-id"`
}

// Run prints a table, or one JSON document a line.
func (c *AuditListCmd) Run(ctx context.Context, con *console) error {
	if c.Limit < 1 {
		return errors.New("--limit: at least 1")
	}
	filter := c.filter(time.Now())
	if c.URL {
		_, err := fmt.Fprintln(con.out, strings.TrimSuffix(c.Server, "/")+"/v1/issuances?"+filter.Values().Encode())
		return err
	}
	broker, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	filter.Limit = min(c.Limit, 500)
	records, err := collect(ctx, broker, filter, c.Limit)
	if err != nil {
		return explain(con, c.hint(err), c.Task)
	}
	return printRecords(con, records)
}

func (f SearchFlags) filter(now time.Time) client.Filter {
	out := client.Filter{
		SPIFFEID: f.SPIFFEID, SPIFFEIDPrefix: f.Prefix, TrustDomain: f.TrustDomain, Scope: f.Scope, Task: f.Task,
		Decision: f.Decision, Status: f.Status, Words: f.Words, Params: f.Param, Approver: f.Approver, OnBehalfOf: f.OnBehalfOf, Name: f.Name,
		Group: f.Group, DecisionCode: f.Code, Authority: f.Authority, Resource: f.Resource, Catalogue: f.Catalogue,
		KeyID: f.KeyID,
	}
	if f.Since > 0 {
		out.Since = now.Add(-f.Since)
	}
	return out
}

func collect(ctx context.Context, broker *client.Client, f client.Filter, limit int) ([]openapi.Issuance, error) {
	var records []openapi.Issuance
	for record, err := range broker.Issuances(ctx, f) {
		if err != nil {
			return nil, err
		}
		if records = append(records, record); len(records) == limit {
			break
		}
	}
	return records, nil
}

func printRecords(con *console, records []openapi.Issuance) error {
	if con.json {
		for _, record := range records {
			if err := con.encode(record); err != nil {
				return err
			}
		}
		return nil
	}
	if len(records) == 0 {
		_, err := fmt.Fprintln(con.out, "nothing is recorded that matches, or that you may see")
		return err
	}
	table := tabwriter.NewWriter(con.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "TIME\tSTATUS\tCODE\tSCOPE\tRESOURCE\tSANDBOX\tTASK\tTTL\tREASON")
	for _, r := range records {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Time.Local().Format(time.DateTime), r.Status, safetext.Text(r.DecisionCode), safetext.Text(r.Scope),
			safetext.Text(r.Resource), safetext.Text(r.SpiffeID), safetext.Text(r.Task), seconds(r.TTL), shorten(safetext.Text(r.Reason), 40))
	}
	return table.Flush()
}

func shorten(s string, most int) string {
	runes := []rune(s)
	if len(runes) <= most {
		return s
	}
	return string(runes[:most-1]) + "…"
}
