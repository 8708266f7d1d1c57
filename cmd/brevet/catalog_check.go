package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/scopes"
)

// CatalogTestCmd is `brevet catalog test`.
type CatalogTestCmd struct {
	Folder string `arg:"" help:"Folder with .yaml and .cedar files, and examples in .test.yaml files." type:"existingdir"`
}

type examplesReport struct {
	OK        bool            `json:"ok"`
	Catalogue string          `json:"catalogue"`
	Examples  []exampleReport `json:"examples"`
}

type exampleReport struct {
	Name      string         `json:"name"`
	File      string         `json:"file"`
	Line      int            `json:"line"`
	OK        bool           `json:"ok"`
	Outcome   scopes.Outcome `json:"outcome"`
	Reason    string         `json:"reason,omitzero"`
	TTL       int64          `json:"ttl,omitzero"` // seconds
	Policies  []string       `json:"policies,omitempty"`
	Narrowest string         `json:"narrowest,omitzero"`
	Why       string         `json:"why"`
	Failures  []string       `json:"failures,omitempty"`
}

// Run decides every example. It fails if one has a result other than the expected one.
func (c *CatalogTestCmd) Run(con *console) error {
	catalogue, err := loadFolder(c.Folder)
	if err != nil {
		return err
	}
	examples, err := scopes.ReadExamplesFS(os.DirFS(c.Folder))
	if err != nil {
		return folderError("reading the examples of", c.Folder, err)
	}
	if len(examples) == 0 {
		return fmt.Errorf("%s has no examples: add a file whose name ends in .test.yaml", c.Folder)
	}
	results := catalogue.Check(examples)
	failed := 0
	for _, result := range results {
		if len(result.Failures) > 0 {
			failed++
		}
	}
	if con.json {
		err = con.encode(reportExamples(catalogue, results, failed))
	} else {
		err = printExamples(con, results, failed)
	}
	if err == nil && failed > 0 {
		return quietly(errors.New("some examples failed"))
	}
	return err
}

func reportExamples(catalogue *scopes.Catalogue, results []scopes.ExampleResult, failed int) examplesReport {
	report := examplesReport{OK: failed == 0, Catalogue: catalogue.Digest()}
	for _, r := range results {
		e := exampleReport{
			Name: r.Example.Name, File: r.Example.File, Line: r.Example.Line, OK: len(r.Failures) == 0,
			Outcome: r.Got, Reason: r.Decision.Reason, TTL: int64(r.Decision.TTL.Seconds()), Policies: r.Decision.Policies,
			Why: r.Why, Failures: r.Failures,
		}
		if r.Decision.Narrowest != nil {
			e.Narrowest = r.Decision.Narrowest.Scope
		}
		report.Examples = append(report.Examples, e)
	}
	return report
}

func printExamples(con *console, results []scopes.ExampleResult, failed int) error {
	for _, r := range results {
		if len(r.Failures) == 0 {
			fmt.Fprintf(con.out, "ok    %s\n", safetext.Text(r.Example.Name))
			continue
		}
		fmt.Fprintf(con.out, "FAIL  %s (%s:%d)\n", safetext.Text(r.Example.Name), r.Example.File, r.Example.Line)
		for _, failure := range r.Failures {
			fmt.Fprintf(con.out, "      %s\n", safetext.Text(failure))
		}
		fmt.Fprintf(con.out, "      %s\n", safetext.Text(r.Why))
	}
	_, err := fmt.Fprintf(con.out, "\n%d of %d examples passed\n", len(results)-failed, len(results))
	return err
}
