package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/scopes"
)

// CatalogCmd is `brevet catalog`.
type CatalogCmd struct {
	Check    CatalogCheckCmd    `cmd:"" help:"Check a folder of scopes and policies as the server does."`
	Test     CatalogTestCmd     `cmd:"" help:"Decide the example requests in a folder and compare the results with the expected ones."`
	Plan     CatalogPlanCmd     `cmd:"" help:"Show which scopes and policies a folder changes, and whether it widens reach."`
	Apply    CatalogApplyCmd    `cmd:"" help:"Apply the catalogue in a folder to the server."`
	History  CatalogHistoryCmd  `cmd:"" help:"List the catalogue versions on the server, newest first."`
	Rollback CatalogRollbackCmd `cmd:"" help:"Apply an earlier catalogue again."`
	Approve  CatalogApproveCmd  `cmd:"" help:"Approve a catalogue that another admin proposed."`
	Reject   CatalogRejectCmd   `cmd:"" help:"Reject a proposed catalogue."`
	Replay   CatalogReplayCmd   `cmd:"" help:"Decide recent requests again with a folder and show which decisions change."`
	Explain  CatalogExplainCmd  `cmd:"" help:"Decide one request with a folder and explain the decision."`
	Schema   CatalogSchemaCmd   `cmd:"" help:"Print a schema for editors and policy authors."`
}

// CatalogCheckCmd is `brevet catalog check`.
type CatalogCheckCmd struct {
	Folder string `arg:"" help:"Folder with .yaml and .cedar files." type:"existingdir"`
}

type checkReport struct {
	OK       bool           `json:"ok"`
	Digest   string         `json:"digest,omitempty"`
	Scopes   int            `json:"scopes"`
	Policies int            `json:"policies"`
	Problems []checkProblem `json:"problems,omitempty"`
}

type checkProblem struct {
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"`
	What string `json:"what"`
}

// Run loads the catalogue and reports every problem at once.
func (c *CatalogCheckCmd) Run(con *console) error {
	catalogue, err := scopes.LoadFS(os.DirFS(c.Folder))
	var problems scopes.Problems
	if err != nil && !errors.As(err, &problems) {
		return fmt.Errorf("reading %s: %w", c.Folder, err)
	}
	report := checkReport{OK: err == nil}
	for _, p := range problems {
		report.Problems = append(report.Problems, checkProblem(p))
	}
	if err == nil {
		report.Digest, report.Scopes, report.Policies = catalogue.Digest(), len(catalogue.Scopes()), len(catalogue.Policies())
	}
	if con.json {
		if encodeErr := con.encode(report); encodeErr != nil {
			return encodeErr
		}
		return quietly(err)
	}
	if err != nil {
		fmt.Fprintf(con.err, "%s: problems: %d; the catalogue cannot be loaded\n\n", c.Folder, len(problems))
		for _, p := range problems {
			fmt.Fprintln(con.err, safetext.Text(p.String()))
		}
		return quietly(err)
	}
	return printCatalogue(con, catalogue)
}

func quietly(err error) error {
	if err == nil {
		return nil
	}
	return exitError{err: err, code: 1}
}

func printCatalogue(con *console, catalogue *scopes.Catalogue) error {
	table := tabwriter.NewWriter(con.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "SCOPE\tAUTHORITY\tTTL\tAPPROVAL\tCREDENTIAL")
	for _, s := range catalogue.Scopes() {
		approval := "-"
		if s.Approval != nil {
			approval = fmt.Sprintf("%d of %s", s.Approval.Quorum, s.Approval.Group) + standIn(s.Approval.BreakGlass) + signedText(s.Approval.Passkey)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", s.Name, s.Authority, ttlRange(s.TTL.Default, s.TTL.Max), approval, s.Credential.Kind)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(con.out, "\nvalid: %s and %s\n%s\n",
		plural(len(catalogue.Scopes()), "scope", "scopes"), plural(len(catalogue.Policies()), "policy", "policies"), catalogue.Digest())
	return err
}

// CatalogSchemaCmd is `brevet catalog schema`.
type CatalogSchemaCmd struct {
	For    string `help:"Schema to print: ${enum}. The schema for policies is Cedar, generated from the scopes of a folder; the others are JSON Schema." enum:"policies,scopes,examples" default:"policies"`
	Folder string `arg:"" optional:"" help:"Folder with .yaml and .cedar files, for the schema of policies." type:"existingdir"`
}

// Run prints the schema.
func (c *CatalogSchemaCmd) Run(con *console) error {
	var schema string
	switch {
	case c.For == "scopes":
		schema = string(scopes.ScopesSchema())
	case c.For == "examples":
		schema = string(scopes.ExamplesSchema())
	case c.Folder == "":
		return errors.New("--for policies: requires a folder with scopes")
	default:
		catalogue, err := loadFolder(c.Folder)
		if err != nil {
			return err
		}
		schema = catalogue.Schema() + "\n"
	}
	_, err := io.WriteString(con.out, schema)
	return err
}

// loadFolder loads the catalogue in a folder.
func loadFolder(folder string) (*scopes.Catalogue, error) {
	catalogue, err := scopes.LoadFS(os.DirFS(folder))
	if err != nil {
		return nil, folderError("loading", folder, err)
	}
	return catalogue, nil
}

// folderError lists every problem in a folder, one per line. Reviewers of a catalogue need the details, because they did
// not write it.
func folderError(doing, folder string, err error) error {
	var problems scopes.Problems
	if !errors.As(err, &problems) {
		return fmt.Errorf("%s %s: %w", doing, folder, err)
	}
	lines := make([]string, len(problems))
	for i, p := range problems {
		lines[i] = safetext.Text(p.String())
	}
	return fmt.Errorf("%s %s:\n%s", doing, folder, strings.Join(lines, "\n"))
}
