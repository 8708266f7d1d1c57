package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/openapi"
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
	var from *scopes.Catalogue
	open := 0
	switch {
	case c.From != "":
		from, err = loadFolder(c.From)
	case c.Server == "":
		err = errors.New("no catalogue to compare with: set --from to a folder, or --server or BREVET_SERVER to the broker's URL")
	default:
		err = call(ctx, con, OfficialFlags(c.serverFlags), func(broker *client.Client) (err error) {
			from, open, err = catalogueInForce(ctx, broker)
			return err
		})
	}
	if err != nil {
		return err
	}
	changes := diff.Compare(from, to)
	if err := printDiff(con, changes, open); err != nil {
		return err
	}
	sayPolicies(con, from, to)
	if c.Detailed && !changes.Empty() {
		return exitError{err: errors.New("there are changes"), code: exitChanges}
	}
	return nil
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
	// OpenRequests is how many requests the change would make void.
	OpenRequests int `json:"open_requests"`
	diff.Diff
}

// printDiff prints the changes between two catalogues, and how many open requests they would make void.
func printDiff(con *console, changes diff.Diff, open int) error {
	sum := changes.Summary()
	if changes.Empty() {
		open = 0
	}
	if con.json {
		return con.encode(diffReport{Changes: !changes.Empty(), Summary: sum, OpenRequests: open, Diff: changes})
	}
	for _, s := range changes.Scopes {
		fmt.Fprintf(con.out, "%s scope %s%s\n", signs[s.Change], s.Name, marks[s.Reach])
		t := newTable(con.out, "")
		for _, f := range s.Fields {
			value := f.Old + f.New
			if s.Change == diff.Modified {
				value = cmp.Or(f.Old, "(none)") + " -> " + cmp.Or(f.New, "(none)") + marks[f.Reach]
			}
			t.row("    "+f.Field, value)
		}
		fmt.Fprintln(t)
		if err := t.Flush(); err != nil {
			return err
		}
	}
	for _, p := range changes.Policies {
		fmt.Fprintf(con.out, "%s policy %s (%s)%s\n", signs[p.Change], p.ID, p.Effect, marks[p.Reach])
		printPolicyChange(con.out, textLines(p.Old), textLines(p.New))
	}
	line := fmt.Sprintf("%d to add, %d to change, %d to remove", sum.Add, sum.Change, sum.Remove)
	switch {
	case changes.Empty():
		line = "No changes."
	case sum.Add+sum.Change+sum.Remove == 0:
		line = "Only comments and formatting change; scopes and policies stay the same."
	case sum.Widened == 0:
		line += "; none widens reach"
	case sum.Widened == 1:
		line += "; 1 widens reach"
	default:
		line += fmt.Sprintf("; %d widen reach", sum.Widened)
	}
	if sum.Unclear > 0 {
		line += fmt.Sprintf("; %d with unclear reach", sum.Unclear)
	}
	if open > 0 {
		line += fmt.Sprintf("\nOpen requests that become void: %d. People can no longer approve them, and their sandboxes have to ask again.", open)
	}
	_, err := fmt.Fprintln(con.out, line)
	return err
}

// printPolicyChange prints the lines of a policy before and after a change. Lines at the beginning and the end that stay the
// same are printed once.
func printPolicyChange(out io.Writer, before, after []string) {
	most, head, tail := min(len(before), len(after)), 0, 0
	for head < most && before[head] == after[head] {
		head++
	}
	for tail < most-head && before[len(before)-1-tail] == after[len(after)-1-tail] {
		tail++
	}
	for _, part := range []struct {
		sign  string
		lines []string
	}{
		{" ", before[:head]},
		{"-", before[head : len(before)-tail]},
		{"+", after[head : len(after)-tail]},
		{" ", before[len(before)-tail:]},
	} {
		for _, line := range part.lines {
			fmt.Fprintln(out, strings.TrimRight("    "+part.sign+" "+safetext.Text(strings.TrimSuffix(line, "\r")), " "))
		}
	}
	fmt.Fprintln(out)
}

func textLines(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.ReplaceAll(text, "\t", "    "), "\n")
}

// CatalogApplyCmd is `brevet catalog apply`.
type CatalogApplyCmd struct {
	OfficialFlags
	Folder string `arg:"" help:"Folder with .yaml and .cedar files: the whole catalogue." type:"existingdir"`
	consent
	forcing
}

// CatalogRollbackCmd is `brevet catalog rollback`.
type CatalogRollbackCmd struct {
	OfficialFlags
	Version string `arg:"" help:"An earlier catalogue, as brevet catalog history lists it: its version, its digest, or the first 8 or more hex digits of the digest."`
	consent
	forcing
}

// forcing holds the flag of every command that can put a catalogue in force.
type forcing struct {
	Force bool `help:"Put the catalogue in force even if Vault lacks policies that it needs, or does not answer. The record says so."`
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
	var texts []openapi.CatalogueFile
	for _, f := range files {
		texts = append(texts, openapi.CatalogueFile{Name: f.Name, Text: string(f.Data)})
	}
	return c.change(ctx, con, func(broker *client.Client, from *scopes.Catalogue, open int) error {
		return c.replace(ctx, con, broker, swap{from, to, open, texts, c.Force})
	})
}

// Run shows what the rollback would change, and applies it.
func (c *CatalogRollbackCmd) Run(ctx context.Context, con *console) error {
	return c.change(ctx, con, func(broker *client.Client, from *scopes.Catalogue, open int) error {
		digest, err := findCatalogue(ctx, broker, c.Version)
		if err != nil {
			return err
		}
		to, files, err := keptCatalogue(ctx, broker, digest)
		if err != nil {
			return err
		}
		return c.replace(ctx, con, broker, swap{from, to, open, files, c.Force})
	})
}

// change calls do with the catalogue in force and the number of open requests. It explains an error as call does, and also prints the problems in the files.
func (f OfficialFlags) change(ctx context.Context, con *console, do func(_ *client.Client, from *scopes.Catalogue, open int) error) error {
	err := call(ctx, con, f, func(broker *client.Client) error {
		from, open, err := catalogueInForce(ctx, broker)
		if err != nil {
			return err
		}
		return do(broker, from, open)
	})
	explained, _ := errors.AsType[exitError](err)
	if problem, ok := errors.AsType[*client.Problem](explained.err); ok && !con.json {
		for _, p := range problem.Problems {
			fmt.Fprintf(con.err, "  %s\n", safetext.Text(scopes.Problem{File: p.File, Line: p.Line, What: p.What}.String()))
		}
	}
	return err
}

// swap is the replacement of one catalogue by another.
type swap struct {
	from, to *scopes.Catalogue
	open     int                     // requests that become void
	files    []openapi.CatalogueFile // of to
	force    bool
}

// replace applies a catalogue after the user has seen and confirmed its changes.
func (c consent) replace(ctx context.Context, con *console, broker *client.Client, s swap) error {
	if diff.Compare(s.from, s.to).Empty() && !con.json {
		_, err := fmt.Fprintln(con.out, "No changes: the catalogue is in force.")
		return err
	}
	if err := c.ask(con, s, "Apply"); err != nil {
		return err
	}
	change, err := broker.ApplyCatalogue(ctx, s.from.Digest(), openapi.CatalogueOrder{Files: s.files, Reason: c.Reason, Force: s.force})
	if err == nil {
		return printChange(con, change)
	}
	if _, answered := errors.AsType[*client.Problem](err); answered {
		return err
	}
	// The response was lost. The server may have applied the change.
	if now, unread := broker.Catalogue(ctx); unread == nil && now.Digest == s.to.Digest() {
		return fmt.Errorf("the response was lost, but the catalogue is in force as version %d: %w", now.Version, err)
	}
	return fmt.Errorf("the outcome is unknown: check it with brevet catalog history: %w", err)
}

// ask prints the changes and asks the user to confirm them.
func (c consent) ask(con *console, s swap, doing string) error {
	if c.Yes && con.json {
		return nil
	}
	if !c.Yes && !canConfirm(con) {
		return errors.New("confirmation requires a terminal: review with brevet catalog plan, then add --yes")
	}
	if err := printDiff(con, diff.Compare(s.from, s.to), s.open); err != nil {
		return err
	}
	sayPolicies(con, s.from, s.to)
	if !c.Yes && !confirms(con, doing) {
		return errors.New("not confirmed: nothing was changed")
	}
	return nil
}

// CatalogApproveCmd is `brevet catalog approve`.
type CatalogApproveCmd struct {
	catalogVerdict
	forcing
}

// CatalogRejectCmd is `brevet catalog reject`.
type CatalogRejectCmd struct{ catalogVerdict }

type catalogVerdict struct {
	OfficialFlags
	Version string `arg:"" name:"digest" help:"Digest of the proposed catalogue, as brevet catalog history lists it, or the first 8 or more hex digits."`
	consent
}

// Run shows what was proposed, and approves it.
func (c *CatalogApproveCmd) Run(ctx context.Context, con *console) error {
	return c.decide(ctx, con, openapi.CatalogueDecision{Verdict: openapi.CatalogueApprove, Force: c.Force}, "Approve")
}

// Run shows what was proposed, and rejects it.
func (c *CatalogRejectCmd) Run(ctx context.Context, con *console) error {
	return c.decide(ctx, con, openapi.CatalogueDecision{Verdict: openapi.CatalogueReject}, "Reject")
}

func (c *catalogVerdict) decide(ctx context.Context, con *console, decision openapi.CatalogueDecision, doing string) error {
	return c.change(ctx, con, func(broker *client.Client, from *scopes.Catalogue, open int) error {
		digest, err := findCatalogue(ctx, broker, c.Version)
		if err != nil {
			return err
		}
		to, _, err := keptCatalogue(ctx, broker, digest)
		if err != nil {
			return err
		}
		if decision.Verdict == openapi.CatalogueReject {
			open = 0
		}
		if err := c.ask(con, swap{from: from, to: to, open: open}, doing); err != nil {
			return err
		}
		decision.Reason = c.Reason
		change, err := broker.DecideCatalogue(ctx, from.Digest(), digest, decision)
		if err != nil {
			return err
		}
		return printChange(con, change)
	})
}

// CatalogHistoryCmd is `brevet catalog history`.
type CatalogHistoryCmd struct {
	OfficialFlags
	Limit int `help:"Maximum number of results." default:"20"`
}

// Run prints a table, or one JSON document per line.
func (c *CatalogHistoryCmd) Run(ctx context.Context, con *console) error {
	return call(ctx, con, c.OfficialFlags, func(broker *client.Client) error {
		changes, err := broker.CatalogueChanges(ctx, c.Limit)
		if err != nil {
			return err
		}
		if con.json {
			return encodeAll(con, changes)
		}
		t := newTable(con.out, "VERSION\tSTATE\tSINCE\tBY\tDECIDED BY\tREASON\tDIGEST")
		for _, change := range changes {
			version, since := "-", change.Time
			if change.State == openapi.CatalogueApplied {
				version = fmt.Sprint(change.Version)
			}
			if !change.DecidedAt.IsZero() {
				since = change.DecidedAt
			}
			state := string(change.State)
			if change.Forced {
				state += ", forced"
			}
			t.row(version, state, dateTime(since), change.Actor, change.Decider, short(change.Reason, 40), change.Digest)
		}
		return t.Flush()
	})
}

// catalogueInForce loads the catalogue that is in force on the server. open is the number of requests that another one would make void.
func catalogueInForce(ctx context.Context, broker *client.Client) (catalogue *scopes.Catalogue, open int, err error) {
	now, err := broker.Catalogue(ctx)
	if err != nil {
		return nil, 0, err
	}
	catalogue, err = loadServed(now.Digest, now.Files)
	return catalogue, now.OpenRequests, err
}

// The forms in which people name a catalogue. A number of 8 digits or more is the beginning of a digest.
var (
	versionSyntax = regexp.MustCompile(`^[1-9][0-9]{0,6}$`)
	digestSyntax  = regexp.MustCompile(`^(?:sha256:)?([0-9a-f]{8,64})$`)
)

// maxChanges is the largest number of changes of the catalogue that one call lists.
const maxChanges = 500

// findCatalogue returns the digest of the catalogue that a person names by its version, its digest or the beginning of that.
func findCatalogue(ctx context.Context, broker *client.Client, name string) (string, error) {
	digest := digestSyntax.FindStringSubmatch(name)
	switch {
	case digest != nil && len(digest[1]) == hex.EncodedLen(sha256.Size):
		return "sha256:" + digest[1], nil
	case digest == nil && !versionSyntax.MatchString(name):
		return "", fmt.Errorf("%s is neither the version of a catalogue nor its digest, or the first 8 or more hex digits of the digest: see brevet catalog history",
			safetext.Text(quote(name)))
	}
	changes, err := broker.CatalogueChanges(ctx, maxChanges)
	if err != nil {
		return "", err
	}
	return chooseCatalogue(changes, name)
}

// chooseCatalogue returns the digest of the only catalogue that the name fits.
func chooseCatalogue(changes []openapi.CatalogueChange, name string) (string, error) {
	digest := digestSyntax.FindStringSubmatch(name)
	var found []openapi.CatalogueChange
	for _, change := range changes {
		fits := change.State == openapi.CatalogueApplied && fmt.Sprint(change.Version) == name
		if digest != nil {
			fits = strings.HasPrefix(change.Digest, "sha256:"+digest[1])
		}
		if fits && !slices.ContainsFunc(found, func(f openapi.CatalogueChange) bool { return f.Digest == change.Digest }) {
			found = append(found, change)
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("no catalogue among the last %d changes is %s: see brevet catalog history, and name an older one by its whole digest", maxChanges, name)
	case 1:
		return found[0].Digest, nil
	default:
		var digests []string
		for _, one := range found {
			digests = append(digests, one.Digest)
		}
		return "", fmt.Errorf("%s is the beginning of several digests, write more of the one that you mean: %s", name, safetext.Text(strings.Join(digests, ", ")))
	}
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

// sayPolicies says which Vault policies must be created before the second catalogue replaces the first.
func sayPolicies(con *console, from, to *scopes.Catalogue) {
	needs := to.VaultPolicies()
	for _, had := range from.VaultPolicies() {
		needs = slices.DeleteFunc(needs, func(p scopes.VaultPolicy) bool { return p.Name == had.Name })
	}
	if con.json || os.Getenv("BREVET_DEV_STATE") != "" { // brevet dev prepares Vault itself
		return
	}
	if to.NeedsGitHub() && !from.NeedsGitHub() {
		con.say("run brevet bootstrap with --github-key first: until then, requests for scopes of kind github fail.")
	}
	for _, algorithm := range to.Algorithms() {
		if algorithm == scopes.AlgorithmES256 || slices.Contains(from.Algorithms(), algorithm) {
			continue
		}
		con.say("This catalogue is the first one that needs the key for " + algorithm + ". If Vault was prepared by an earlier version of Brevet,")
		con.say("run brevet bootstrap first: until then, requests for scopes with this algorithm fail.")
	}
	if len(needs) == 0 {
		return
	}
	con.say("Vault needs these policies. Unless it has them, run brevet bootstrap with --catalogue")
	con.say("on the new folder first: the server refuses the catalogue without them.")
	for _, p := range needs {
		con.say("  " + safetext.Text(p.Name))
	}
}

// printChange prints the result of a change. A change that waits for another admin is not a success yet: it exits with
// exitPending.
func printChange(con *console, change openapi.CatalogueChange) error {
	text := fmt.Sprintf("%s is in force as version %d", change.Digest, change.Version)
	switch change.State {
	case openapi.CatalogueProposed:
		text = fmt.Sprintf("%s is proposed. Another admin must approve it: brevet catalog approve %s", change.Digest, change.Digest)
	case openapi.CatalogueRejected:
		text = change.Digest + " is rejected"
	case openapi.CatalogueApplied, openapi.CatalogueSuperseded:
	}
	err := con.print(change, "%s\n", safetext.Text(text))
	if err == nil && change.State == openapi.CatalogueProposed {
		err = exitError{err: errors.New("approval by another admin is pending"), code: exitPending}
	}
	return err
}
