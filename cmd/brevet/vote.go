package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
	"golang.org/x/term"
)

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
	if c.ForTask {
		return c.cast(ctx, con, openapi.VerdictApprove, (*client.Client).VoteForTask)
	}
	return c.cast(ctx, con, openapi.VerdictApprove, saying(openapi.VerdictApprove))
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

func (b *voteCommand) cast(ctx context.Context, con *console, verdict openapi.Verdict, vote voting) error {
	broker, done, err := b.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	cases, err := b.requests(ctx, broker)
	if err != nil {
		return explain(con, b.hint(err), "")
	}
	for _, one := range cases {
		if err := unsignable(one, verdict); err != nil {
			return err
		}
		if !b.Yes {
			if err := confirm(con, one, verdict); err != nil {
				return err
			}
		}
		after, err := vote(broker, ctx, one, b.Note)
		if err != nil {
			return explain(con, b.hint(err), "")
		}
		if err := printVoted(con, after); err != nil {
			return err
		}
	}
	return nil
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
	list, err := broker.Approvals(ctx, mostApprovals)
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

// confirm shows a request and asks the voter to confirm the vote. Without a terminal, the vote requires --yes.
func confirm(con *console, one openapi.ApprovalCase, verdict openapi.Verdict) error {
	if !term.IsTerminal(int(os.Stdin.Fd())) || con.json {
		return errors.New("confirmation requires a terminal: review with brevet approvals show, then add --yes")
	}
	if err := printCase(con.err, one); err != nil {
		return err
	}
	fmt.Fprintf(con.err, "\n%s this? Type yes: ", map[openapi.Verdict]string{
		openapi.VerdictApprove: "Approve", openapi.VerdictDeny: "Deny",
		openapi.VerdictBreakGlass: "Notify everybody and break glass to approve",
	}[verdict])
	if !saidYes() {
		return errors.New("not confirmed: no vote was sent")
	}
	return nil
}

// saidYes reads one line from standard input and reports whether it is "yes".
func saidYes() bool {
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	return err == nil && strings.TrimSpace(line) == "yes"
}

func printVoted(con *console, after openapi.ApprovalCase) error {
	if con.json {
		return con.encode(after)
	}
	if after.Approval.Broken {
		_, err := fmt.Fprintf(con.out, "%s is %s; BREAK GLASS: %d of %d of %s have voted in place of %s\n", safetext.Text(after.ID), after.Status,
			brokenBy(after), scopes.BreakGlassQuorum, safetext.Text(after.Approval.BreakGlass), safetext.Text(after.Approval.Group))
		return err
	}
	_, err := fmt.Fprintf(con.out, "%s is %s: %d of %d of %s have voted\n",
		safetext.Text(after.ID), after.Status, after.VotesCast, after.Approval.Quorum, safetext.Text(after.Approval.Group))
	return err
}

// brokenBy counts the break-glass votes.
func brokenBy(one openapi.ApprovalCase) int {
	n := 0
	for _, v := range one.Votes {
		if v.Verdict == openapi.VerdictBreakGlass {
			n++
		}
	}
	return n
}
