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
	List       AuditListCmd       `cmd:"" help:"List requests and credentials, newest first."`
	Whose      AuditWhoseCmd      `cmd:"" help:"Find the owner of a leaked credential."`
	Tail       AuditTailCmd       `cmd:"" help:"Show new records until Ctrl-C."`
	Task       AuditTaskCmd       `cmd:"" help:"Show the timeline of one task."`
	Usage      AuditUsageCmd      `cmd:"" help:"Compare granted and used credentials, by scope."`
	Unrevoked  AuditUnrevokedCmd  `cmd:"" help:"List overdue credentials that are not confirmed as revoked. Fails if there are any."`
	Checkpoint AuditCheckpointCmd `cmd:"" help:"Print the latest signed checkpoint of the log, for storage outside this system."`
	Keys       AuditKeysCmd       `cmd:"" help:"Print the public keys of the log."`
	Evidence   AuditEvidenceCmd   `cmd:"" help:"Export the evidence of one task to a file: entries, proofs and catalogues."`
	Export     AuditExportCmd     `cmd:"" help:"Export the entries of the log to a file or to other systems."`
	Verify     AuditVerifyCmd     `cmd:"" help:"Verify the integrity of the record independently of the broker."`
	Snapshot   AuditSnapshotCmd   `cmd:"" help:"Write everything that verification needs to a file."`
	Receipt    AuditReceiptCmd    `cmd:"" help:"Print the proof that an issuance is in the log."`
}

// AuditListCmd is `brevet audit list`.
type AuditListCmd struct {
	OfficialFlags
	SearchFlags
	Limit int  `help:"Maximum number of results." default:"50"`
	URL   bool `help:"Print the search as a URL instead." name:"url"`
}

// SearchFlags are the search criteria. A record must match all that are set.
type SearchFlags struct {
	SPIFFEID    string            `help:"Only records of this sandbox." name:"spiffe-id"`
	Prefix      string            `help:"Only records of sandboxes at or below this SPIFFE ID."`
	TrustDomain string            `help:"Only records of this trust domain."`
	Scope       string            `help:"Only records of this scope."`
	Task        string            `help:"Only records of this task."`
	Decision    openapi.Decision  `help:"Only records with this decision: ${enum}." enum:",allow,deny,pending" default:""`
	Status      openapi.Status    `help:"Only records in this state: ${enum}." enum:",denied,pending,approved,rejected,withdrawn,redeemed,intent,issued,failed,unknown,compensated,revoking,revoked,released,expired,used" default:""`
	Since       time.Duration     `help:"Only records of this recent period, such as 24h."`
	Words       string            `help:"Only records with all of these words in the reason."`
	Param       map[string]string `help:"Only records with this parameter, such as repo=acme/api." placeholder:"NAME=VALUE"`
	Approver    string            `help:"Only requests that this person voted on, by id."`
	OnBehalfOf  string            `help:"Only requests on behalf of this person, by id." name:"on-behalf-of"`
	Name        string            `help:"Only credentials with this name at the target, such as a database user or a serial number."`
	Group       string            `help:"Only requests that this group had to approve."`
	Code        string            `help:"Only records with this decision code, such as forbidden or break_glass."`
	Authority   string            `help:"Only records of scopes with this authority."`
	Resource    string            `help:"Only records of this resource."`
	Catalogue   string            `help:"Only records decided by the catalogue with this digest."`
	KeyID       string            `help:"Only credentials signed by this key." name:"key-id"`
}

// Run prints a table, or one JSON document per line.
func (c *AuditListCmd) Run(ctx context.Context, con *console) error {
	if c.Limit < 1 {
		return errors.New("--limit: must be at least 1")
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
		return encodeAll(con, records)
	}
	if len(records) == 0 {
		_, err := fmt.Fprintln(con.out, "no matching records visible to you")
		return err
	}
	table := tabwriter.NewWriter(con.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "TIME\tSTATUS\tCODE\tSCOPE\tRESOURCE\tSANDBOX\tTASK\tTTL\tREASON")
	for _, r := range records {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Time.Local().Format(time.DateTime), r.Status, safetext.Text(r.DecisionCode), safetext.Text(r.Scope),
			safetext.Text(r.Resource), safetext.Text(r.SpiffeID), safetext.Text(r.Task), spell(seconds(r.TTL)), shorten(safetext.Text(r.Reason), 40))
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
