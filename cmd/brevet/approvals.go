package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
	"golang.org/x/term"
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

// maxApprovals is the largest number of requests that one call lists.
const maxApprovals = 500

// ApprovalsListCmd is `brevet approvals list`.
type ApprovalsListCmd struct{ PersonFlags }

// Run prints a table, or one JSON document per line.
func (c *ApprovalsListCmd) Run(ctx context.Context, con *console) error {
	return call(ctx, con, c.PersonFlags, func(broker *client.Client) error {
		list, err := broker.Approvals(ctx, maxApprovals)
		if err != nil {
			return err
		}
		if list.More {
			con.say("more requests are pending than are listed: decide these first, then list again")
		}
		return printApprovals(con, list.Approvals)
	})
}

// printApprovals lists identical requests of sibling sandboxes once, with their number. A break-glass request is never
// hidden behind one without break-glass.
func printApprovals(con *console, list []openapi.ApprovalCase) error {
	alike := map[string]int{}
	shown := list
	if !con.json {
		shown = nil
		for _, one := range list {
			kind := one.Like + alarm(one)
			if alike[kind]++; alike[kind] == 1 {
				shown = append(shown, one)
			}
		}
	}
	const header = "REQUEST\tEXPIRES IN\tWHO\tSCOPE\tRESOURCE\tVOTES"
	return printList(con, shown, "no pending approvals", header, func(one openapi.ApprovalCase) []any {
		who := one.SpiffeID
		if n := alike[one.Like+alarm(one)]; n > 1 {
			who += fmt.Sprintf(" and %d similar", n-1)
		}
		votes := fmt.Sprintf("%d of %d%s", one.VotesCast, one.Approval.Quorum, alarm(one))
		return []any{one.ID, timeLeft(one.ExpiresAt), who, one.Scope, short(one.Resource, 60), votes}
	})
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

// ApprovalsShowCmd is `brevet approvals show`.
type ApprovalsShowCmd struct {
	PersonFlags
	ID string `arg:"" help:"ID of the request."`
}

// Run prints the facts that a vote would approve.
func (c *ApprovalsShowCmd) Run(ctx context.Context, con *console) error {
	return call(ctx, con, c.PersonFlags, func(broker *client.Client) error {
		one, err := broker.Approval(ctx, c.ID)
		if err != nil {
			return err
		}
		if con.json {
			return con.encode(one)
		}
		return printCase(con.out, one)
	})
}

// printCase prints the facts first. It prints text from other people last and set apart, so that such text cannot look like
// a fact.
func printCase(out io.Writer, one openapi.ApprovalCase) error {
	a, err := approval.Canonical(one.Canonical).Shown()
	if err != nil {
		return err
	}
	alert := ""
	if one.Approval.Broken {
		alert = fmt.Sprintf("BREAK GLASS: a member of %s approves this in place of %s", a.BreakGlass, a.Group)
	}
	covers := ""
	switch {
	case one.Remembered != "":
		covers = "covered by the approval of request " + one.Remembered
	case a.Remember != "":
		covers = fmt.Sprintf("this request, and with --for-task also identical requests of the task (%d so far)", one.Recalled)
	}
	var params []string
	for name, value := range a.Params {
		if text, err := json.Marshal(value); err == nil {
			params = append(params, name+"="+string(text))
		}
	}
	slices.Sort(params)
	lines := [][2]string{
		{"request", one.ID},
		{"alert", alert},
		{"status", fmt.Sprintf("%s, %s, expires in %s", one.Status, plural(one.VotesCast, "vote", "votes"), timeLeft(one.ExpiresAt))},
		{"approvers", fmt.Sprintf("%d of %s", a.Quorum, a.Group) + standIn(a.BreakGlass) + signedText(a.Passkey)},
		{"sandbox", a.SPIFFEID},
		{"on behalf of", a.User},
	}
	for _, field := range a.Fields() {
		lines = append(lines, [2]string{strings.ToLower(field.Label()), field.Value})
	}
	for _, line := range append(lines, [][2]string{
		{"action", one.Title},
		{"scope", a.Scope + " (" + a.Authority + ")"},
		{"resource", a.Resource},
		{"params", strings.Join(params, " ")},
		{"ttl", "at most " + spell(seconds(a.TTL))},
		{"audience", a.Audience},
		{"subject", a.FederatedSubject},
		{"repositories", a.Repositories},
		{"permissions", a.Permissions},
		{"exchange", a.Exchange},
		{"opens hosts", a.Opens},
		{"bound to", a.Thumbprint},
		{"key", a.JKT},
		{"policies", strings.Join(one.Policies, ", ")},
		{"catalogue", a.Catalogue},
		{"covers", covers},
		{"hash", one.Hash},
	}...) {
		if line[1] != "" {
			fmt.Fprintf(out, "%-12s %s\n", line[0], safetext.Text(line[1]))
		}
	}
	for _, v := range one.Votes {
		fmt.Fprintf(out, "%-12s %s by %s (%s), %s\n", "vote", v.Verdict, safetext.Text(v.Name), safetext.Text(v.Voter), dateTime(v.Time))
		printUntrusted(out, "note", v.Note)
	}
	printUntrusted(out, "reason given by the sandbox (unverified)", one.Reason)
	return nil
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
	return call(ctx, con, c.PersonFlags, func(broker *client.Client) error { return c.watch(ctx, con, broker) })
}

func (c *ApprovalsWatchCmd) watch(ctx context.Context, con *console, broker *client.Client) error {
	seen := map[string]bool{}
	show := func(one openapi.ApprovalCase) error {
		news := one.ID + alarm(one)
		if seen[news] {
			return nil
		}
		seen[news] = true
		return con.print(one, "%s%s  %s on %s by %s, expires in %s\n  brevet approvals show %s\n", time.Now().Format(time.TimeOnly), alarm(one),
			safetext.Text(one.Scope), short(one.Resource, 60), safetext.Text(one.SpiffeID), timeLeft(one.ExpiresAt), safetext.Text(one.ID))
	}
	look := func() error {
		list, err := broker.Approvals(ctx, maxApprovals)
		for _, one := range list.Approvals {
			if err := show(one); err != nil {
				return err
			}
		}
		return err
	}
	events, delay := broker.WatchApprovals(), time.Duration(0)
	for err := look(); ; {
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the user has ended the command
		case err != nil && !passes(err):
			return err
		case err != nil:
			con.say("the broker is unavailable; retrying")
		}
		if !wait.For(ctx, delay) {
			return nil
		}
		delay = c.Every
		err = events.Follow(ctx, func(e client.ApprovalEvent) error {
			switch {
			case e.More:
				con.say("more requests are pending than are shown: decide these first")
			case e.Waiting != nil:
				return show(*e.Waiting)
			}
			return nil
		})
		// If the broker, or a proxy in between, cannot push events, list the pending requests again.
		if errors.Is(err, client.ErrNotFound) || errors.Is(err, client.ErrAnswer) || errors.Is(err, client.ErrRateLimited) {
			err = look()
		}
	}
}

// passes reports whether a retry may succeed.
func passes(err error) bool {
	_, unreachable := errors.AsType[*net.OpError](err)
	_, refused := errors.AsType[*client.Problem](err)
	return errors.Is(err, client.ErrUnavailable) || errors.Is(err, client.ErrCutOff) || unreachable && !refused
}

// voteCommand holds the flags of both verdicts.
type voteCommand struct {
	PersonFlags
	IDs  []string `arg:"" name:"id" help:"IDs of the requests."`
	Like bool     `help:"Also vote on identical pending requests of sibling sandboxes."`
	Note string   `help:"Reason for the record, in one sentence."`
	Yes  bool     `help:"Do not ask for confirmation." short:"y"`
}

// ApprovalsApproveCmd is `brevet approvals approve`.
type ApprovalsApproveCmd struct {
	voteCommand
	ForTask bool `help:"Also approve identical requests for the rest of the task, if the scope allows it." name:"for-task"`
}

// Run shows each request, and approves it.
func (c *ApprovalsApproveCmd) Run(ctx context.Context, con *console) error {
	vote := saying(openapi.VerdictApprove)
	if c.ForTask {
		vote = (*client.Client).VoteForTask
	}
	return c.cast(ctx, con, openapi.VerdictApprove, vote)
}

// ApprovalsDenyCmd is `brevet approvals deny`.
type ApprovalsDenyCmd struct{ voteCommand }

// Run shows each request, and denies it.
func (c *ApprovalsDenyCmd) Run(ctx context.Context, con *console) error {
	return c.cast(ctx, con, openapi.VerdictDeny, saying(openapi.VerdictDeny))
}

// ApprovalsBreakCmd is `brevet approvals break-glass`.
type ApprovalsBreakCmd struct {
	PersonFlags
	ID   string `arg:"" help:"ID of the request."`
	Note string `help:"Reason why the request cannot wait for the group." required:""`
	Yes  bool   `help:"Do not ask for confirmation." short:"y"`
}

// Run shows the request, and approves it in place of its group.
func (c *ApprovalsBreakCmd) Run(ctx context.Context, con *console) error {
	one := voteCommand{PersonFlags: c.PersonFlags, IDs: []string{c.ID}, Note: c.Note, Yes: c.Yes}
	return one.cast(ctx, con, openapi.VerdictBreakGlass, saying(openapi.VerdictBreakGlass))
}

// voting sends a vote on the request that was shown, with a note.
type voting func(*client.Client, context.Context, openapi.ApprovalCase, string) (openapi.ApprovalCase, error)

func saying(verdict openapi.Verdict) voting {
	return func(broker *client.Client, ctx context.Context, shown openapi.ApprovalCase, note string) (openapi.ApprovalCase, error) {
		return broker.Vote(ctx, shown, verdict, note)
	}
}

// cast shows each request, asks for confirmation, and votes on exactly what it has shown.
func (b *voteCommand) cast(ctx context.Context, con *console, verdict openapi.Verdict, vote voting) error {
	return call(ctx, con, b.PersonFlags, func(broker *client.Client) error {
		cases, err := b.requests(ctx, broker)
		if err != nil {
			return err
		}
		for _, one := range cases {
			if err := unsignable(one, verdict); err != nil {
				return err
			}
			if !b.Yes {
				if !canConfirm(con) {
					return errors.New("confirmation requires a terminal: review with brevet approvals show, then add --yes")
				}
				if err := printCase(con.err, one); err != nil {
					return err
				}
				doing := map[openapi.Verdict]string{
					openapi.VerdictApprove: "Approve", openapi.VerdictDeny: "Deny",
					openapi.VerdictBreakGlass: "Notify everybody and break glass to approve",
				}
				if !confirms(con, doing[verdict]) {
					return errors.New("not confirmed: no vote was sent")
				}
			}
			after, err := vote(broker, ctx, one, b.Note)
			if err == nil {
				err = printVoted(con, after)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// requests reads the requests to vote on. A vote names exactly what was read here.
func (b *voteCommand) requests(ctx context.Context, broker *client.Client) ([]openapi.ApprovalCase, error) {
	var cases []openapi.ApprovalCase
	for _, id := range b.IDs {
		one, err := broker.Approval(ctx, id)
		if err != nil {
			return nil, err
		}
		cases = append(cases, one)
	}
	if !b.Like {
		return cases, nil
	}
	list, err := broker.Approvals(ctx, maxApprovals)
	if err != nil {
		return nil, err
	}
	for _, one := range list.Approvals {
		named := slices.ContainsFunc(cases, func(c openapi.ApprovalCase) bool { return c.ID == one.ID })
		if !named && slices.ContainsFunc(cases, func(c openapi.ApprovalCase) bool { return c.Like == one.Like }) {
			cases = append(cases, one)
		}
	}
	return cases, nil
}

// canConfirm reports whether the user can answer a question.
func canConfirm(con *console) bool { return !con.json && term.IsTerminal(int(os.Stdin.Fd())) }

// confirms asks the user to confirm what was shown, and reports whether the answer is "yes".
func confirms(con *console, doing string) bool {
	fmt.Fprintf(con.err, "\n%s this? Type yes: ", doing)
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	return err == nil && strings.TrimSpace(line) == "yes"
}

func printVoted(con *console, after openapi.ApprovalCase) error {
	id, group := safetext.Text(after.ID), safetext.Text(after.Approval.Group)
	if !after.Approval.Broken {
		return con.print(after, "%s is %s: %d of %d of %s have voted\n", id, after.Status, after.VotesCast, after.Approval.Quorum, group)
	}
	broken := 0
	for _, v := range after.Votes {
		if v.Verdict == openapi.VerdictBreakGlass {
			broken++
		}
	}
	return con.print(after, "%s is %s; BREAK GLASS: %d of %d of %s have voted in place of %s\n", id, after.Status,
		broken, scopes.BreakGlassQuorum, safetext.Text(after.Approval.BreakGlass), group)
}

// unsignable returns an error if the verdict must be signed by a passkey, which the command line cannot do. A denial never
// needs one.
func unsignable(one openapi.ApprovalCase, verdict openapi.Verdict) error {
	if verdict == openapi.VerdictDeny {
		return nil
	}
	a, err := approval.Canonical(one.Canonical).Shown()
	if err != nil || a.Passkey != scopes.PasskeyRequired {
		return err
	}
	return fmt.Errorf("an approval of %s must be signed by a passkey: open the request in the console", safetext.Text(one.ID))
}
