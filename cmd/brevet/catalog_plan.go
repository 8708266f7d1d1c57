package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/brevet-dev/brevet/scopes/diff"
)

// CatalogPlanCmd is `brevet catalog plan`.
type CatalogPlanCmd struct {
	serverFlags
	Folder   string `arg:"" help:"Folder with the new .yaml and .cedar files." type:"path"`
	From     string `help:"Folder with the current catalogue. Default: the catalogue in force on the server." type:"path" placeholder:"FOLDER"`
	Detailed bool   `help:"Exit with 2 if there are changes." name:"detailed-exitcode"`
}

// exitChanges is the exit code if there are changes and --detailed-exitcode is set.
const exitChanges = 2

// Run compares a folder with another folder, or with the catalogue in force on the server.
func (c *CatalogPlanCmd) Run(ctx context.Context, con *console) error {
	to, err := loadFolder(c.Folder)
	if err != nil {
		return err
	}
	from, err := c.from(ctx, con)
	if err != nil {
		return err
	}
	diff := diff.Compare(from, to)
	if err := printDiff(con, diff); err != nil {
		return err
	}
	sayPolicies(con, newPolicies(from, to))
	if c.Detailed && !diff.Empty() {
		return exitError{err: errors.New("there are changes"), code: exitChanges}
	}
	return nil
}

func (c *CatalogPlanCmd) from(ctx context.Context, con *console) (*scopes.Catalogue, error) {
	if c.From != "" {
		return loadFolder(c.From)
	}
	if c.Server == "" {
		return nil, errors.New("no catalogue to compare with: set --from to a folder, or --server or BREVET_SERVER to the broker's URL")
	}
	flags := OfficialFlags(c.serverFlags)
	broker, done, err := flags.open(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	from, err := catalogueInForce(ctx, broker)
	if err != nil {
		return nil, explain(con, flags.hint(err), "")
	}
	return from, nil
}

// signs are the prefixes of changes.
var signs = map[diff.Change]string{diff.Added: "+", diff.Removed: "-", diff.Modified: "~"}

// marks say how a change affects reach. Capitals draw attention to the changes that need a review.
var marks = map[diff.Reach]string{
	diff.Widened: "  <- WIDENS REACH", diff.Narrowed: "  (narrows reach)", diff.Changed: "  <- CHANGES REACH, review",
}

type diffReport struct {
	Changes bool         `json:"changes"`
	Summary diff.Summary `json:"summary"`
	diff.Diff
}

// printDiff prints the changes between two catalogues.
func printDiff(con *console, diff diff.Diff) error {
	if con.json {
		return con.encode(diffReport{Changes: !diff.Empty(), Summary: diff.Summary(), Diff: diff})
	}
	for _, s := range diff.Scopes {
		if err := printScopeChange(con.out, s); err != nil {
			return err
		}
	}
	for _, p := range diff.Policies {
		printPolicyChange(con.out, p)
	}
	_, err := fmt.Fprintln(con.out, summary(diff))
	return err
}

func printScopeChange(out io.Writer, s diff.ScopeChange) error {
	fmt.Fprintf(out, "%s scope %s%s\n", signs[s.Change], s.Name, marks[s.Reach])
	table := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	for _, f := range s.Fields {
		value := safetext.Text(f.Old) + safetext.Text(f.New)
		if s.Change == diff.Modified {
			value = orNothing(f.Old) + " -> " + orNothing(f.New) + marks[f.Reach]
		}
		fmt.Fprintf(table, "    %s\t%s\n", safetext.Text(f.Field), value)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(out)
	return err
}

func orNothing(s string) string {
	if s == "" {
		return "(none)"
	}
	return safetext.Text(s)
}

func printPolicyChange(out io.Writer, p diff.PolicyChange) {
	fmt.Fprintf(out, "%s policy %s (%s)%s\n", signs[p.Change], p.ID, p.Effect, marks[p.Reach])
	before, after := textLines(p.Old), textLines(p.New)
	head := 0
	for head < min(len(before), len(after)) && before[head] == after[head] {
		head++
	}
	tail := 0
	for tail < min(len(before), len(after))-head && before[len(before)-1-tail] == after[len(after)-1-tail] {
		tail++
	}
	printLines(out, " ", before[:head])
	printLines(out, "-", before[head:len(before)-tail])
	printLines(out, "+", after[head:len(after)-tail])
	printLines(out, " ", before[len(before)-tail:])
	fmt.Fprintln(out)
}

func textLines(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.ReplaceAll(text, "\t", "    "), "\n")
}

func printLines(out io.Writer, sign string, lines []string) {
	for _, line := range lines {
		fmt.Fprintln(out, strings.TrimRight("    "+sign+" "+safetext.Text(strings.TrimSuffix(line, "\r")), " "))
	}
}

func summary(diff diff.Diff) string {
	s := diff.Summary()
	switch {
	case diff.Empty():
		return "No changes."
	case s.Add+s.Change+s.Remove == 0:
		return "Only comments and formatting change; scopes and policies stay the same."
	}
	line := fmt.Sprintf("%d to add, %d to change, %d to remove", s.Add, s.Change, s.Remove)
	switch s.Widened {
	case 0:
		line += "; none widens reach"
	case 1:
		line += "; 1 widens reach"
	default:
		line += fmt.Sprintf("; %d widen reach", s.Widened)
	}
	if s.Unclear > 0 {
		line += fmt.Sprintf("; %d with unclear reach", s.Unclear)
	}
	return line
}
