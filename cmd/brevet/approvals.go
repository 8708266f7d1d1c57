package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

// ApprovalsCmd is `brevet approvals`.
type ApprovalsCmd struct {
	List    ApprovalsListCmd    `cmd:"" help:"List pending approvals."`
	Show    ApprovalsShowCmd    `cmd:"" help:"Show one request and its votes."`
	Approve ApprovalsApproveCmd `cmd:"" help:"Approve one or more requests."`
	Break   ApprovalsBreakCmd   `cmd:"" name:"break-glass" help:"Approve in place of the group in an emergency. Everybody is notified."`
	Deny    ApprovalsDenyCmd    `cmd:"" help:"Deny a request. One denial closes it and revokes its credential."`
	Watch   ApprovalsWatchCmd   `cmd:"" help:"Show new pending approvals until Ctrl-C."`
}

// mostApprovals is the largest number of requests that one call lists.
const mostApprovals = 500

// ApprovalsListCmd is `brevet approvals list`.
type ApprovalsListCmd struct{ PersonFlags }

// Run prints a table, or one JSON document per line.
func (c *ApprovalsListCmd) Run(ctx context.Context, con *console) error {
	broker, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	list, err := broker.Approvals(ctx, mostApprovals)
	if err != nil {
		return explain(con, c.hint(err), "")
	}
	if list.More {
		fmt.Fprintln(con.err, "more requests are pending than are listed: decide these first, then list again")
	}
	return printApprovals(con, list.Approvals)
}

// printApprovals lists identical requests of sibling sandboxes once, with their number. A break-glass request is never
// hidden behind one without break-glass.
func printApprovals(con *console, list []openapi.ApprovalCase) error {
	if con.json {
		return encodeAll(con, list)
	}
	if len(list) == 0 {
		_, err := fmt.Fprintln(con.out, "no pending approvals")
		return err
	}
	alike := map[string]int{}
	for _, one := range list {
		alike[one.Like+alarm(one)]++
	}
	table := tabwriter.NewWriter(con.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "REQUEST\tEXPIRES IN\tWHO\tSCOPE\tRESOURCE\tVOTES")
	for _, one := range list {
		n := alike[one.Like+alarm(one)]
		if n == 0 {
			continue // listed with its siblings
		}
		alike[one.Like+alarm(one)] = 0
		who := safetext.Text(one.SpiffeID)
		if n > 1 {
			who += fmt.Sprintf(" and %d similar", n-1)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%d of %d%s\n", safetext.Text(one.ID), left(one), who, safetext.Text(one.Scope),
			shorten(safetext.Text(one.Resource), 60), one.VotesCast, one.Approval.Quorum, alarm(one))
	}
	return table.Flush()
}

// alarm marks a request for which somebody has broken glass.
func alarm(one openapi.ApprovalCase) string {
	if !one.Approval.Broken {
		return ""
	}
	return "  BREAK GLASS"
}

// standIn describes who may break glass.
func standIn(group string) string {
	if group == "" {
		return ""
	}
	return fmt.Sprintf(", or %d of %s in an emergency", scopes.BreakGlassQuorum, group)
}

// signedText says that an approval must be signed by a passkey.
func signedText(passkey string) string {
	if passkey != scopes.PasskeyRequired {
		return ""
	}
	return ", signed by a passkey"
}

func left(one openapi.ApprovalCase) string {
	return timeLeft(one.ExpiresAt)
}

// ApprovalsShowCmd is `brevet approvals show`.
type ApprovalsShowCmd struct {
	PersonFlags
	ID string `arg:"" help:"ID of the request."`
}

// Run prints the facts that a vote would approve.
func (c *ApprovalsShowCmd) Run(ctx context.Context, con *console) error {
	broker, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	one, err := broker.Approval(ctx, c.ID)
	if err != nil {
		return explain(con, c.hint(err), "")
	}
	if con.json {
		return con.encode(one)
	}
	return printCase(con.out, one)
}

// agreed holds the facts that a vote approves. It is decoded from the exact bytes whose hash the vote names.
type agreed struct {
	SPIFFEID   string         `json:"spiffe_id"`
	Thumbprint string         `json:"thumbprint"`
	JKT        string         `json:"jkt"`
	OnBehalfOf string         `json:"on_behalf_of"`
	Scope      string         `json:"scope"`
	Authority  string         `json:"authority"`
	Resource   string         `json:"resource"`
	Params     map[string]any `json:"params"`
	TTL        int64          `json:"ttl"`
	Task       string         `json:"task"`
	Audience   string         `json:"audience"`
	Catalogue  string         `json:"catalogue"`
	Group      string         `json:"group"`
	Quorum     int            `json:"quorum"`
	BreakGlass string         `json:"break_glass"`
	Expires    int64          `json:"expires"`
	Remember   string         `json:"remember"`
	Passkey    string         `json:"passkey"`
}

func agreedIn(one openapi.ApprovalCase) (agreed, error) {
	var a agreed
	if err := json.Unmarshal([]byte(one.Canonical), &a); err != nil {
		return agreed{}, fmt.Errorf("decoding the request: %w", err)
	}
	return a, nil
}

// printCase prints the facts first. It prints text from other people last and set apart, so that such text cannot look like
// a fact.
func printCase(out io.Writer, one openapi.ApprovalCase) error {
	a, err := agreedIn(one)
	if err != nil {
		return err
	}
	for _, line := range [][2]string{
		{"request", one.ID},
		{"alert", brokenText(a, one)},
		{"status", fmt.Sprintf("%s, %s, expires in %s", one.Status, plural(one.VotesCast, "vote", "votes"), left(one))},
		{"approvers", fmt.Sprintf("%d of %s", a.Quorum, a.Group) + standIn(a.BreakGlass) + signedText(a.Passkey)},
		{"sandbox", a.SPIFFEID},
		{"on behalf of", a.OnBehalfOf},
		{"task", a.Task},
		{"action", one.Title},
		{"scope", a.Scope + " (" + a.Authority + ")"},
		{"resource", a.Resource},
		{"params", paramsText(a.Params)},
		{"ttl", "at most " + spell(seconds(a.TTL))},
		{"audience", a.Audience},
		{"bound to", a.Thumbprint},
		{"key", a.JKT},
		{"policies", strings.Join(one.Policies, ", ")},
		{"catalogue", a.Catalogue},
		{"covers", coverText(a, one)},
		{"hash", one.Hash},
	} {
		if line[1] != "" {
			fmt.Fprintf(out, "%-12s %s\n", line[0], safetext.Text(line[1]))
		}
	}
	for _, v := range one.Votes {
		fmt.Fprintf(out, "%-12s %s by %s (%s), %s\n", "vote", v.Verdict, safetext.Text(v.Name), safetext.Text(v.Voter), v.Time.Local().Format(time.DateTime))
		printUntrusted(out, "note", v.Note)
	}
	printUntrusted(out, "reason given by the sandbox (unverified)", one.Reason)
	return nil
}

// brokenText says that somebody has broken glass, and what that means.
func brokenText(a agreed, one openapi.ApprovalCase) string {
	if !one.Approval.Broken {
		return ""
	}
	return fmt.Sprintf("BREAK GLASS: a member of %s approves this in place of %s", a.BreakGlass, a.Group)
}

// coverText says which approval covers the request, or whether its own approval may cover identical requests of the task
// and how many it has covered so far.
func coverText(a agreed, one openapi.ApprovalCase) string {
	switch {
	case one.Remembered != "":
		return "covered by the approval of request " + one.Remembered
	case a.Remember != "":
		return fmt.Sprintf("this request, and with --for-task also identical requests of the task (%d so far)", one.Recalled)
	default:
		return ""
	}
}

func paramsText(params map[string]any) string {
	var parts []string
	for name, value := range params {
		text, err := json.Marshal(value)
		if err == nil {
			parts = append(parts, name+"="+string(text))
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

// printUntrusted prints text from other people behind a bar on each line, so that no line of it can look like other output.
func printUntrusted(out io.Writer, whose, text string) {
	if text == "" {
		return
	}
	warning := ""
	if safetext.MixesAlphabets(text) {
		warning = "; mixes alphabets, so characters may be lookalikes"
	}
	fmt.Fprintf(out, "\n%s%s:\n", whose, warning)
	for line := range strings.SplitSeq(text, "\n") {
		fmt.Fprintf(out, "  | %s\n", safetext.Text(line))
	}
}

// ApprovalsWatchCmd is `brevet approvals watch`.
type ApprovalsWatchCmd struct {
	PersonFlags
	Every time.Duration `help:"Polling interval, if the broker cannot push events." default:"2s"`
}

// Run prints new requests until ctx ends. It prints a request once, and once more if somebody breaks glass for it.
func (c *ApprovalsWatchCmd) Run(ctx context.Context, con *console) error {
	if c.Every < time.Second {
		return errors.New("--every: must be at least 1s")
	}
	broker, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	seen := map[string]bool{}
	show := func(one openapi.ApprovalCase) error {
		news := one.ID + alarm(one)
		if seen[news] {
			return nil
		}
		seen[news] = true
		return announce(con, one)
	}
	watch, delay := broker.WatchApprovals(), time.Duration(0)
	for err = c.look(ctx, broker, show); ; err = c.follow(ctx, broker, watch, con, show) {
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !passes(err):
			return explain(con, c.hint(err), "")
		case err != nil:
			con.say("the broker is unavailable; retrying")
		}
		if !wait.For(ctx, delay) {
			return nil
		}
		delay = c.Every
	}
}

// passes reports whether a retry may succeed.
func passes(err error) bool {
	var refused *client.Problem
	var unreachable *net.OpError
	return errors.Is(err, client.ErrUnavailable) || errors.Is(err, client.ErrCutOff) ||
		errors.As(err, &unreachable) && !errors.As(err, &refused)
}

// follow prints requests as the broker pushes them. If the broker, or a proxy in between, cannot push events, follow lists
// the pending requests once.
func (c *ApprovalsWatchCmd) follow(
	ctx context.Context, broker *client.Client, watch *client.ApprovalWatch, con *console, show func(openapi.ApprovalCase) error,
) error {
	err := watch.Follow(ctx, func(e client.ApprovalEvent) error {
		switch {
		case e.More:
			con.say("more requests are pending than are shown: decide these first")
		case e.Waiting != nil:
			return show(*e.Waiting)
		}
		return nil
	})
	if errors.Is(err, client.ErrNotFound) || errors.Is(err, client.ErrAnswer) || errors.Is(err, client.ErrRateLimited) {
		return c.look(ctx, broker, show)
	}
	return err
}

// look prints the pending requests once.
func (c *ApprovalsWatchCmd) look(ctx context.Context, broker *client.Client, show func(openapi.ApprovalCase) error) error {
	list, err := broker.Approvals(ctx, mostApprovals)
	for _, one := range list.Approvals {
		if err := show(one); err != nil {
			return err
		}
	}
	return err
}

func announce(con *console, one openapi.ApprovalCase) error {
	if con.json {
		return con.encode(one)
	}
	_, err := fmt.Fprintf(con.out, "%s%s  %s on %s by %s, expires in %s\n  brevet approvals show %s\n", time.Now().Format(time.TimeOnly),
		alarm(one), safetext.Text(one.Scope), shorten(safetext.Text(one.Resource), 60), safetext.Text(one.SpiffeID), left(one), safetext.Text(one.ID))
	return err
}
