package main

import (
	"errors"
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/brevet-dev/brevet/scopes"
)

// CatalogCmd is `brevet catalog`.
type CatalogCmd struct {
	Check  CatalogCheckCmd  `cmd:"" help:"Check a folder of scopes and policies, as the server would when it loads it."`
	Schema CatalogSchemaCmd `cmd:"" help:"Print the Cedar schema that the scopes imply, for editors and policy authors."`
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
		fmt.Fprintf(con.err, "%s: problems: %d; nothing of this catalogue would be loaded\n\n", c.Folder, len(problems))
		for _, p := range problems {
			fmt.Fprintln(con.err, inert(p.String()))
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
			approval = fmt.Sprintf("%d of %s", s.Approval.Quorum, s.Approval.Group)
		}
		fmt.Fprintf(table, "%s\t%s\t%s, at most %s\t%s\t%s\n", s.Name, s.Authority, s.TTL.Default, s.TTL.Max, approval, s.Credential.Kind)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(con.out, "\n%d scopes and %d policies are sound\n%s\n",
		len(catalogue.Scopes()), len(catalogue.Policies()), catalogue.Digest())
	return err
}

// CatalogSchemaCmd is `brevet catalog schema`.
type CatalogSchemaCmd struct {
	Folder string `arg:"" help:"Folder with .yaml and .cedar files." type:"existingdir"`
}

// Run prints the schema.
func (c *CatalogSchemaCmd) Run(con *console) error {
	catalogue, err := scopes.LoadFS(os.DirFS(c.Folder))
	if err != nil {
		return fmt.Errorf("loading %s: %w", c.Folder, err)
	}
	_, err = fmt.Fprintln(con.out, catalogue.Schema())
	return err
}
