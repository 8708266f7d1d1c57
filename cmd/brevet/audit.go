package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

// AuditCmd is `brevet audit`.
type AuditCmd struct {
	List       AuditListCmd       `cmd:"" help:"List requests and credentials, newest first."`
	Whose      AuditWhoseCmd      `cmd:"" help:"Find the owner of a leaked credential."`
	Tail       AuditTailCmd       `cmd:"" help:"Show new records until Ctrl-C."`
	Task       AuditTaskCmd       `cmd:"" help:"Show the timeline of one task."`
	Calls      AuditCallsCmd      `cmd:"" help:"Show what a sandbox called during a task, as its egress gateways report it."`
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
	Status      openapi.Status    `help:"Only records in this state: ${enum}." enum:",denied,pending,approved,rejected,withdrawn,void,redeemed,intent,issued,failed,unknown,compensated,revoking,revoked,released,expired,used" default:""`
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
	return call(ctx, con, c.OfficialFlags, func(broker *client.Client) error {
		records, err := collect(ctx, broker, filter, c.Limit)
		if err != nil {
			return err
		}
		const header = "TIME\tSTATUS\tCODE\tSCOPE\tRESOURCE\tSANDBOX\tTASK\tTTL\tREASON"
		return printList(con, records, "no matching records visible to you", header, func(r openapi.Issuance) []any {
			ttl := spell(seconds(r.TTL))
			return []any{dateTime(r.Time), r.Status, r.DecisionCode, r.Scope, r.Resource, r.SpiffeID, r.Task, ttl, short(r.Reason, 40)}
		})
	})
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

// collect returns up to limit records.
func collect(ctx context.Context, broker *client.Client, f client.Filter, limit int) ([]openapi.Issuance, error) {
	f.Limit = min(limit, 500)
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

// AuditUnrevokedCmd is `brevet audit unrevoked`.
type AuditUnrevokedCmd struct {
	OfficialFlags
	Limit int `help:"Maximum number of results." default:"500"`
}

// Run lists the credentials that are overdue and not confirmed as revoked, and the tokens of GitHub that were lost on their way to
// Brevet, which nobody can revoke. It fails if there are any, so that it can serve
// as a monitor.
func (c *AuditUnrevokedCmd) Run(ctx context.Context, con *console) error {
	if c.Limit < 1 {
		return errors.New("--limit: must be at least 1")
	}
	return call(ctx, con, c.OfficialFlags, func(broker *client.Client) error {
		records, err := collect(ctx, broker, client.Filter{Status: openapi.StatusRevoking}, c.Limit)
		if err != nil {
			return err
		}
		lost, err := collect(ctx, broker, client.Filter{Status: openapi.StatusUnknown}, c.Limit)
		if err != nil {
			return err
		}
		for _, one := range lost {
			if one.Credential.Kind == scopes.KindGitHub && len(records) < c.Limit {
				records = append(records, one)
			}
		}
		return printUnrevoked(con, records, time.Now())
	})
}

func printUnrevoked(con *console, records []openapi.Issuance, now time.Time) error {
	const header = "OVERDUE\tDEAD BY\tCAUSE\tBY\tKIND\tNAME\tSCOPE\tSANDBOX\tTASK\tID"
	err := printList(con, records, "no overdue credentials visible to you", header, func(r openapi.Issuance) []any {
		overdue := spell(max(0, now.Sub(r.StatusAt)).Round(time.Second))
		kind, name := orDash(r.Credential.Kind), orDash(r.Credential.Name)
		deadBy := "-"
		if !r.Credential.UsableUntil.IsZero() {
			deadBy = dateTime(r.Credential.UsableUntil)
		}
		return []any{overdue, deadBy, orDash(r.StatusDetail), orDash(r.EndedBy), kind, name, r.Scope, r.SpiffeID, r.Task, r.ID}
	})
	if err != nil || len(records) == 0 {
		return err
	}
	return exitError{err: fmt.Errorf("overdue credentials: %d; their revocation is not confirmed", len(records)), code: 1}
}

// AuditWhoseCmd is `brevet audit whose`.
type AuditWhoseCmd struct {
	OfficialFlags
	Digest string `arg:"" optional:"" help:"SHA-256, in hex, of a token's claims, or of a password, another token or a private key; or a hashed_token of GitHub's audit log, in base64. Without it, brevet reads the credential from --file or standard input and computes the digest locally."`
	File   string `help:"File with the credential." type:"path"`
}

var hexDigest = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Run prints what was issued to whom. It fails if no record has the digest.
func (c *AuditWhoseCmd) Run(ctx context.Context, con *console) error {
	digest, err := c.digest(os.Stdin)
	if err != nil {
		return err
	}
	return call(ctx, con, c.OfficialFlags, func(broker *client.Client) error {
		page, err := broker.Page(ctx, client.Filter{Credential: digest})
		if err != nil {
			return err
		}
		if len(page.Issuances) == 0 {
			return exitError{err: fmt.Errorf("no record that you may see has the digest %s", digest), code: 1}
		}
		if con.json {
			return encodeAll(con, page.Issuances)
		}
		for _, one := range page.Issuances {
			t := newTable(con.out, "")
			for _, line := range [][2]string{
				{"sandbox", one.SpiffeID},
				{"task", one.Task},
				{"scope", one.Scope},
				{"resource", one.Resource},
				{"kind", one.Credential.Kind},
				{"name", one.Credential.Name},
				{"issued", dateTime(one.Time)},
				{"expires", dateTime(one.ExpiresAt)},
				{"status", string(one.Status)},
				{"ended by", one.EndedBy},
				{"reason", safetext.Shorten(one.Reason, 200)},
				{"id", one.ID},
			} {
				if line[1] != "" {
					t.row(line[0], line[1])
				}
			}
			if err := t.Flush(); err != nil {
				return err
			}
		}
		return nil
	})
}

func (c *AuditWhoseCmd) digest(in io.Reader) (string, error) {
	if c.Digest != "" {
		digest := strings.ToLower(strings.TrimPrefix(c.Digest, "sha256:"))
		if sum, err := base64.StdEncoding.DecodeString(c.Digest); err == nil && len(sum) == sha256.Size {
			digest = hex.EncodeToString(sum)
		}
		if c.File != "" || !hexDigest.MatchString(digest) {
			return "", errors.New("the digest must be 64 hex digits and excludes --file; pass a credential on standard input or in a file, never as an argument")
		}
		return digest, nil
	}
	if c.File != "" {
		text, err := secret.ReadFile(c.File)
		return client.DigestOf(secret.New(text)), err
	}
	data, err := io.ReadAll(io.LimitReader(in, secret.MaxFile+1))
	text := strings.TrimRight(string(data), "\r\n")
	switch {
	case err != nil:
		return "", fmt.Errorf("reading the credential: %w", err)
	case text == "" || len(data) > secret.MaxFile:
		return "", errors.New("standard input has no credential: it is empty, or larger than 64 KiB")
	}
	return client.DigestOf(secret.New(text)), nil
}

// AuditTailCmd is `brevet audit tail`.
type AuditTailCmd struct {
	OfficialFlags
	SearchFlags
	Every time.Duration `help:"Delay before a retry when the broker is unavailable." default:"5s"`
}

// Run prints a line for each new or changed record.
func (c *AuditTailCmd) Run(ctx context.Context, con *console) error {
	return call(ctx, con, c.OfficialFlags, func(broker *client.Client) error {
		watch := broker.WatchIssuances(c.filter(time.Now()))
		for {
			err := watch.Follow(ctx, func(one openapi.Issuance) error {
				return con.print(one, "%s  %-10s %s on %s by %s, task %s: %s\n", one.StatusAt.Local().Format(time.TimeOnly), one.Status,
					safetext.Text(one.Scope), short(one.Resource, 60), safetext.Text(one.SpiffeID), safetext.Text(one.Task), short(one.Reason, 60))
			})
			switch {
			case ctx.Err() != nil:
				return nil //nolint:nilerr // the user has ended the command
			case err != nil && !passes(err) && !errors.Is(err, client.ErrRateLimited):
				return err
			case err != nil:
				con.say("the record is unavailable; retrying")
			}
			if !wait.For(ctx, c.Every) {
				return nil
			}
		}
	})
}

// AuditTaskCmd is `brevet audit task`.
type AuditTaskCmd struct {
	OfficialFlags
	Task     string `arg:"" help:"Task to show."`
	SPIFFEID string `help:"Sandbox that owns the task. Default: this sandbox; required for other callers." name:"spiffe-id"`
}

// Run prints everything that is recorded of a task, oldest first.
func (c *AuditTaskCmd) Run(ctx context.Context, con *console) error {
	noOwner := fmt.Errorf("--spiffe-id: required unless a sandbox reads its own task (with --workload, if somebody is logged in); "+
		"name the owner, as in brevet audit task %s --spiffe-id spiffe://TRUST-DOMAIN/PATH", quote(c.Task))
	if c.SPIFFEID == "" && c.asPerson() {
		return noOwner
	}
	return call(ctx, con, c.OfficialFlags, func(broker *client.Client) error {
		var events []openapi.TimelineEvent
		for e, err := range broker.TaskTimeline(ctx, c.Task, c.SPIFFEID) {
			problem, ok := errors.AsType[*client.Problem](err)
			if ok && problem.Field == "spiffe_id" && c.SPIFFEID == "" && !con.json {
				return noOwner // this workload is not a sandbox
			}
			if err != nil {
				return err
			}
			events = append(events, e)
		}
		if con.json {
			return encodeAll(con, events)
		}
		t := newTable(con.out, "TIME\tEVENT\tSTATUS\tBY\tREQUEST\tDETAILS")
		for _, e := range events {
			details := []string{e.Scope, e.Resource, e.DecisionCode, e.Verdict, e.Detail, e.Note, e.Reason}
			if e.Calls != nil {
				details = append(details, plural(*e.Calls, "call", "calls")+" (self-reported)")
			}
			if e.Refused != nil && *e.Refused > 0 {
				details = append(details, fmt.Sprintf("%d refused", *e.Refused))
			}
			details = slices.DeleteFunc(details, func(part string) bool { return part == "" })
			t.row(dateTime(e.Time), e.Kind, orDash(e.Status), orDash(e.By), e.ID, short(strings.Join(details, ", "), 100))
		}
		return t.Flush()
	})
}

// AuditCallsCmd is `brevet audit calls`.
type AuditCallsCmd struct {
	OfficialFlags
	Task     string `help:"Task whose calls to show." required:""`
	SPIFFEID string `help:"Sandbox that owns the task." name:"spiffe-id" required:""`
}

// Run prints first whether calls may be missing, and then a table, or one JSON document.
func (c *AuditCallsCmd) Run(ctx context.Context, con *console) error {
	return call(ctx, con, c.OfficialFlags, func(broker *client.Client) error {
		calls, err := broker.TaskCalls(ctx, c.SPIFFEID, c.Task)
		switch {
		case errors.Is(err, client.ErrNotFound) && !con.json:
			return fmt.Errorf("nothing that you may see is recorded about calls of task %s of %s: "+
				"either no egress gateway has reported any, or the sandbox is outside your reach: %w", quote(c.Task), quote(c.SPIFFEID), err)
		case err != nil:
			return err
		case con.json:
			return con.encode(calls)
		}
		for _, line := range incomplete(calls) {
			fmt.Fprintln(con.out, line)
		}
		con.say("the calls are as the sandbox's egress gateways report them")
		const header = "FIRST\tLAST\tHOST\tMETHOD\tPATH\tSCOPE\tREFUSED\tCALLS\tSTATUSES\tSENT\tRECEIVED"
		return printList(con, calls.Calls, "no calls", header, func(r openapi.CallRow) []any {
			host := short(r.Host, 60)
			if r.Other {
				host = "(all others)"
			}
			return []any{
				dateTime(r.First), dateTime(r.Last), host, orDash(r.Method), orDash(short(r.Path, 60)), orDash(r.Scope), orDash(r.Refused),
				r.Count, statuses(r.Statuses), r.BytesIn, r.BytesOut,
			}
		})
	})
}

// incomplete says what may be missing, or nothing if nothing is.
func incomplete(calls openapi.TaskCalls) []string {
	if calls.Complete {
		return nil
	}
	lines := []string{"INCOMPLETE: the sandbox may have made more calls than these."}
	for _, s := range calls.Sessions {
		if !s.Closed {
			lines = append(lines, fmt.Sprintf("Session %s is not closed: calls after %s are not reported.", safetext.Text(s.Session), dateTime(s.ReportedUntil)))
		}
		if len(s.Missing) > 0 {
			numbers := fmt.Sprint(s.Missing)
			lines = append(lines, fmt.Sprintf("Session %s lacks its reports %s.", safetext.Text(s.Session), short(strings.Trim(numbers, "[]"), 60)))
		}
	}
	if calls.SessionsOmitted > 0 {
		lines = append(lines, plural(calls.SessionsOmitted, "further session is", "further sessions are")+" not listed.")
	}
	return lines
}

// statuses writes counts by class, such as "2xx 40, none 2".
func statuses(of map[string]int64) string {
	var parts []string
	for _, class := range slices.Sorted(maps.Keys(of)) {
		parts = append(parts, fmt.Sprintf("%s %d", class, of[class]))
	}
	return strings.Join(parts, ", ")
}

// AuditUsageCmd is `brevet audit usage`.
type AuditUsageCmd struct {
	OfficialFlags
	TrustDomain string        `help:"Only records of this trust domain."`
	Since       time.Duration `help:"Only requests of this recent period." default:"720h"`
}

// Run prints a table with the least used scopes first, or one JSON document.
func (c *AuditUsageCmd) Run(ctx context.Context, con *console) error {
	return call(ctx, con, c.OfficialFlags, func(broker *client.Client) error {
		usage, err := broker.Usage(ctx, client.UsageFilter{TrustDomain: c.TrustDomain, Since: time.Now().Add(-c.Since)})
		switch {
		case err != nil:
			return err
		case con.json:
			return con.encode(usage)
		case len(usage.Scopes) > 0:
			con.say("REPORTED, USED, CALLS and LAST USED are self-reported by the holders of the credentials")
		}
		const header = "SCOPE\tREQUESTED\tGRANTED\tDENIED\tREPORTED\tUSED\tCALLS\tLAST USED"
		return printList(con, usage.Scopes, "no requests visible to you", header, func(u openapi.ScopeUsage) []any {
			row := []any{u.Scope, u.Asked, u.Granted, u.Denied, u.Reported.Credentials}
			switch r := u.Reported; {
			case r.Credentials == 0:
				return append(row, "-", "-", "-")
			case r.LastUsedAt.IsZero():
				return append(row, r.Used, r.Calls, "never")
			default:
				return append(row, r.Used, r.Calls, dateTime(r.LastUsedAt))
			}
		})
	})
}
