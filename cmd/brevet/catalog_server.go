package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/brevet-dev/brevet/scopes/diff"
	"golang.org/x/term"
)

// CatalogApplyCmd is `brevet catalog apply`.
type CatalogApplyCmd struct {
	OfficialFlags
	Folder string `arg:"" help:"Folder with .yaml and .cedar files: the whole catalogue." type:"existingdir"`
	consent
}

// CatalogRollbackCmd is `brevet catalog rollback`.
type CatalogRollbackCmd struct {
	OfficialFlags
	Digest string `arg:"" help:"Digest of an earlier catalogue, as brevet catalog history lists it."`
	consent
}

// consent holds the flags of every command that changes the catalogue.
type consent struct {
	Reason string `help:"Reason for the record, in one sentence." required:""`
	Yes    bool   `help:"Do not ask for confirmation." short:"y"`
}

// Run shows what the folder would change, and applies it.
func (c *CatalogApplyCmd) Run(ctx context.Context, con *console) error {
	to, err := loadFolder(c.Folder)
	if err != nil {
		return err
	}
	files, err := scopes.ReadFS(os.DirFS(c.Folder))
	if err != nil {
		return folderError("reading", c.Folder, err)
	}
	broker, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	from, err := catalogueInForce(ctx, broker)
	if err == nil {
		err = c.replace(ctx, con, broker, swap{from, to, filesOf(files)})
	}
	return explainCatalogue(con, c.hint(err))
}

// Run shows what the rollback would change, and applies it.
func (c *CatalogRollbackCmd) Run(ctx context.Context, con *console) error {
	broker, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	from, err := catalogueInForce(ctx, broker)
	if err != nil {
		return explainCatalogue(con, c.hint(err))
	}
	to, files, err := keptCatalogue(ctx, broker, c.Digest)
	if err == nil {
		err = c.replace(ctx, con, broker, swap{from, to, files})
	}
	return explainCatalogue(con, c.hint(err))
}

// swap is the replacement of one catalogue by another.
type swap struct {
	from, to *scopes.Catalogue
	files    []openapi.CatalogueFile // of to
}

// replace applies a catalogue after the user has seen and confirmed its changes.
func (c consent) replace(ctx context.Context, con *console, broker *client.Client, s swap) error {
	diff := diff.Compare(s.from, s.to)
	if diff.Empty() && !con.json {
		_, err := fmt.Fprintln(con.out, "No changes: the catalogue is in force.")
		return err
	}
	if err := c.ask(con, s, "Apply"); err != nil {
		return err
	}
	change, err := broker.ApplyCatalogue(ctx, s.from.Digest(), openapi.CatalogueOrder{Files: s.files, Reason: c.Reason})
	if err != nil {
		return lost(ctx, broker, s.to.Digest(), err)
	}
	return printChange(con, change)
}

// lost describes a change whose response was lost. The server may have applied it.
func lost(ctx context.Context, broker *client.Client, digest string, err error) error {
	var problem *client.Problem
	if errors.As(err, &problem) {
		return err
	}
	if now, unread := broker.Catalogue(ctx); unread == nil && now.Digest == digest {
		return fmt.Errorf("the response was lost, but the catalogue is in force as version %d: %w", now.Version, err)
	}
	return fmt.Errorf("the outcome is unknown: check it with brevet catalog history: %w", err)
}

// ask prints the changes and asks the user to confirm them.
func (c consent) ask(con *console, s swap, doing string) error {
	if c.Yes && con.json {
		return nil
	}
	if !c.Yes && (con.json || !term.IsTerminal(int(os.Stdin.Fd()))) {
		return errors.New("confirmation requires a terminal: review with brevet catalog plan, then add --yes")
	}
	if err := printDiff(con, diff.Compare(s.from, s.to)); err != nil {
		return err
	}
	sayPolicies(con, newPolicies(s.from, s.to))
	if c.Yes {
		return nil
	}
	fmt.Fprintf(con.err, "\n%s this? Type yes: ", doing)
	if !saidYes() {
		return errors.New("not confirmed: nothing was changed")
	}
	return nil
}

// CatalogApproveCmd is `brevet catalog approve`.
type CatalogApproveCmd struct{ catalogVerdict }

// CatalogRejectCmd is `brevet catalog reject`.
type CatalogRejectCmd struct{ catalogVerdict }

type catalogVerdict struct {
	OfficialFlags
	Digest string `arg:"" help:"Digest of the proposed catalogue, as brevet catalog history lists it."`
	consent
}

// Run shows what was proposed, and approves it.
func (c *CatalogApproveCmd) Run(ctx context.Context, con *console) error {
	return c.decide(ctx, con, openapi.CatalogueApprove, "Approve")
}

// Run shows what was proposed, and rejects it.
func (c *CatalogRejectCmd) Run(ctx context.Context, con *console) error {
	return c.decide(ctx, con, openapi.CatalogueReject, "Reject")
}

func (c *catalogVerdict) decide(ctx context.Context, con *console, verdict openapi.CatalogueVerdict, doing string) error {
	broker, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	from, err := catalogueInForce(ctx, broker)
	if err != nil {
		return explainCatalogue(con, c.hint(err))
	}
	to, _, err := keptCatalogue(ctx, broker, c.Digest)
	if err == nil {
		err = c.ask(con, swap{from: from, to: to}, doing)
	}
	var change openapi.CatalogueChange
	if err == nil {
		change, err = broker.DecideCatalogue(ctx, from.Digest(), c.Digest, openapi.CatalogueDecision{Verdict: verdict, Reason: c.Reason})
	}
	if err != nil {
		return explainCatalogue(con, c.hint(err))
	}
	return printChange(con, change)
}

// CatalogHistoryCmd is `brevet catalog history`.
type CatalogHistoryCmd struct {
	OfficialFlags
	Limit int `help:"Maximum number of results." default:"20"`
}

// Run prints a table, or one JSON document per line.
func (c *CatalogHistoryCmd) Run(ctx context.Context, con *console) error {
	broker, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	changes, err := broker.CatalogueChanges(ctx, c.Limit)
	if err != nil {
		return explain(con, c.hint(err), "")
	}
	if con.json {
		return encodeAll(con, changes)
	}
	table := tabwriter.NewWriter(con.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "VERSION\tSTATE\tSINCE\tBY\tDECIDED BY\tREASON\tDIGEST")
	for _, change := range changes {
		version := "-"
		if change.State == openapi.CatalogueApplied {
			version = fmt.Sprint(change.Version)
		}
		since := change.Time
		if !change.DecidedAt.IsZero() {
			since = change.DecidedAt
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", version, change.State, since.Local().Format(time.DateTime),
			safetext.Text(change.Actor), safetext.Text(change.Decider), shorten(safetext.Text(change.Reason), 40), safetext.Text(change.Digest))
	}
	return table.Flush()
}

// catalogueInForce loads the catalogue that is in force on the server.
func catalogueInForce(ctx context.Context, broker *client.Client) (*scopes.Catalogue, error) {
	now, err := broker.Catalogue(ctx)
	if err != nil {
		return nil, err
	}
	return loadServed(now.Digest, now.Files)
}

func keptCatalogue(ctx context.Context, broker *client.Client, digest string) (*scopes.Catalogue, []openapi.CatalogueFile, error) {
	files, err := broker.CatalogueFiles(ctx, digest)
	if err != nil {
		return nil, nil, err
	}
	catalogue, err := loadServed(digest, files)
	return catalogue, files, err
}

// loadServed loads files that came from the server. It returns an error if they do not have the given digest, because the
// server applies a catalogue by its digest.
func loadServed(digest string, files []openapi.CatalogueFile) (*scopes.Catalogue, error) {
	var all []scopes.File
	for _, f := range files {
		all = append(all, scopes.File{Name: f.Name, Data: []byte(f.Text)})
	}
	catalogue, err := scopes.Load(all)
	switch {
	case err != nil:
		return nil, fmt.Errorf("this version of brevet cannot load the server's catalogue %s (use the server's version): %s", safetext.Text(digest), safetext.Text(err.Error()))
	case catalogue.Digest() != digest:
		return nil, fmt.Errorf("the server returned the files of catalogue %s instead of %s", catalogue.Digest(), safetext.Text(digest))
	}
	return catalogue, nil
}

func filesOf(files []scopes.File) []openapi.CatalogueFile {
	var out []openapi.CatalogueFile
	for _, f := range files {
		out = append(out, openapi.CatalogueFile{Name: f.Name, Text: string(f.Data)})
	}
	return out
}

// newPolicies returns the names of the Vault policies that one catalogue needs and the other did not.
func newPolicies(from, to *scopes.Catalogue) []string {
	had, needs := map[string]bool{}, []string(nil)
	for _, p := range from.VaultPolicies() {
		had[p.Name] = true
	}
	for _, p := range to.VaultPolicies() {
		if !had[p.Name] {
			needs = append(needs, p.Name)
		}
	}
	return needs
}

// sayPolicies says which Vault policies must be created before the catalogue is applied.
func sayPolicies(con *console, policies []string) {
	if len(policies) == 0 || con.json {
		return
	}
	con.say("Vault needs additional policies. Run brevet bootstrap with --catalogue on the new")
	con.say("folder first: until then, requests for these scopes fail.")
	for _, name := range policies {
		con.say("  " + safetext.Text(name))
	}
}

// printChange prints the result of a change. A change that waits for another admin is not a success yet: it exits with
// exitPending.
func printChange(con *console, change openapi.CatalogueChange) error {
	waits := change.State == openapi.CatalogueProposed
	if con.json {
		if err := con.encode(change); err != nil {
			return err
		}
	} else {
		text := fmt.Sprintf("%s is in force as version %d", change.Digest, change.Version)
		switch change.State {
		case openapi.CatalogueProposed:
			text = fmt.Sprintf("%s is proposed. Another admin must approve it: brevet catalog approve %s", change.Digest, change.Digest)
		case openapi.CatalogueRejected:
			text = change.Digest + " is rejected"
		case openapi.CatalogueApplied, openapi.CatalogueSuperseded:
		}
		if _, err := fmt.Fprintln(con.out, safetext.Text(text)); err != nil {
			return err
		}
	}
	if waits {
		return exitError{err: errors.New("approval by another admin is pending"), code: exitPending}
	}
	return nil
}

// explainCatalogue does what explain does, and also prints the problems in the files.
func explainCatalogue(con *console, err error) error {
	var problem *client.Problem
	explained := explain(con, err, "")
	if errors.As(err, &problem) && !con.json {
		for _, p := range problem.Problems {
			fmt.Fprintf(con.err, "  %s\n", safetext.Text(scopes.Problem{File: p.File, Line: p.Line, What: p.What}.String()))
		}
	}
	return explained
}
