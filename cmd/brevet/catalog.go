package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/internal/app"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
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
	Config string `help:"Configuration file of the server, to warn about approval groups that none of its roles names." type:"existingfile" placeholder:"FILE"`
}

type checkReport struct {
	OK       bool                       `json:"ok"`
	Digest   string                     `json:"digest,omitempty"`
	Scopes   int                        `json:"scopes"`
	Policies int                        `json:"policies"`
	Problems []openapi.CatalogueProblem `json:"problems,omitempty"`
	Warnings []string                   `json:"warnings,omitempty"`
}

// Run loads the catalogue and reports every problem at once.
func (c *CatalogCheckCmd) Run(con *console) error {
	catalogue, err := scopes.LoadFS(os.DirFS(c.Folder))
	problems, broken := errors.AsType[scopes.Problems](err)
	if err != nil && !broken {
		return fmt.Errorf("reading %s: %w", c.Folder, err)
	}
	report := checkReport{OK: !broken}
	for _, p := range problems {
		report.Problems = append(report.Problems, openapi.CatalogueProblem(p))
	}
	if !broken {
		report.Digest, report.Scopes, report.Policies = catalogue.Digest(), len(catalogue.Scopes()), len(catalogue.Policies())
		if report.Warnings, err = c.unknownGroups(catalogue); err != nil {
			return err
		}
	}
	switch {
	case con.json:
		if encodeErr := con.encode(report); encodeErr != nil {
			return encodeErr
		}
	case broken:
		fmt.Fprintf(con.err, "%s: problems: %d; the catalogue cannot be loaded\n\n", c.Folder, len(problems))
		for _, p := range problems {
			fmt.Fprintln(con.err, safetext.Text(p.String()))
		}
	default:
		t := newTable(con.out, "SCOPE\tAUTHORITY\tTTL\tAPPROVAL\tCREDENTIAL")
		for _, s := range catalogue.Scopes() {
			approval := "-"
			if a := s.Approval; a != nil {
				approval = fmt.Sprintf("%d of %s", a.Quorum, a.Group) + standIn(a.BreakGlass) + signedText(a.Passkey)
			}
			t.row(s.Name, s.Authority, ttlRange(s.TTL.Default, s.TTL.Max), approval, s.Credential.Kind)
		}
		for _, warning := range report.Warnings {
			con.say("warning: " + safetext.Text(warning))
		}
		fmt.Fprintf(t, "\nvalid: %s and %s\n%s\n", plural(report.Scopes, "scope", "scopes"), plural(report.Policies, "policy", "policies"), report.Digest)
		return t.Flush()
	}
	if broken {
		err = exitError{err: err, code: 1}
	}
	return err
}

// unknownGroups returns a warning for each group of approvers that no role in the server's configuration names. Its members may still
// be approvers by another group, so this is not a mistake.
func (c *CatalogCheckCmd) unknownGroups(catalogue *scopes.Catalogue) (warnings []string, err error) {
	if c.Config == "" {
		return nil, nil
	}
	cfg, err := app.Load(c.Config)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{"": true}
	if cfg.People != nil {
		for _, role := range cfg.People.Roles {
			known[role.Group] = true
		}
	}
	for _, s := range catalogue.Scopes() {
		if s.Approval == nil {
			continue
		}
		for key, group := range map[string]string{"approval.group": s.Approval.Group, "approval.break_glass": s.Approval.BreakGlass} {
			if !known[group] {
				warnings = append(warnings, fmt.Sprintf("scope %s: %s: no role in people.roles of %s names the group %s: check its name. "+
					"Its members can vote only if another group makes them approvers", s.Name, key, c.Config, group))
			}
		}
	}
	slices.Sort(warnings)
	return warnings, nil
}

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
	results, failed := catalogue.Check(examples), 0
	report := examplesReport{Catalogue: catalogue.Digest()}
	for _, r := range results {
		e := exampleReport{
			Name: r.Example.Name, File: r.Example.File, Line: r.Example.Line, OK: len(r.Failures) == 0,
			Outcome: r.Got, Reason: r.Decision.Reason, TTL: int64(r.Decision.TTL.Seconds()), Policies: r.Decision.Policies,
			Why: r.Why, Failures: r.Failures,
		}
		if r.Decision.Narrowest != nil {
			e.Narrowest = r.Decision.Narrowest.Scope
		}
		if !e.OK {
			failed++
		}
		report.Examples = append(report.Examples, e)
	}
	report.OK = failed == 0
	if con.json {
		err = con.encode(report)
	} else {
		err = printExamples(con, results, failed)
	}
	if err == nil && failed > 0 {
		err = exitError{err: errors.New("some examples failed"), code: 1}
	}
	return err
}

func printExamples(con *console, results []scopes.ExampleResult, failed int) error {
	for _, r := range results {
		if len(r.Failures) == 0 {
			fmt.Fprintf(con.out, "ok    %s\n", safetext.Text(r.Example.Name))
			continue
		}
		fmt.Fprintf(con.out, "FAIL  %s (%s:%d)\n", safetext.Text(r.Example.Name), r.Example.File, r.Example.Line)
		for _, line := range append(r.Failures, r.Why) {
			fmt.Fprintf(con.out, "      %s\n", safetext.Text(line))
		}
	}
	_, err := fmt.Fprintf(con.out, "\n%d of %d examples passed\n", len(results)-failed, len(results))
	return err
}

// CatalogExplainCmd is `brevet catalog explain`.
type CatalogExplainCmd struct {
	Folder string        `arg:"" help:"Folder with .yaml and .cedar files." type:"existingdir"`
	Scope  string        `arg:"" help:"Scope to request, such as github.issues.read."`
	Params []string      `arg:"" optional:"" help:"Scope parameters, as name=value. The scope says whether a value is a text, a number or a boolean."`
	As     string        `help:"SPIFFE ID of the sandbox." required:"" placeholder:"spiffe://..."`
	SVID   string        `help:"SVID type: ${enum}." enum:"x509,jwt" default:"x509" name:"svid"`
	TTL    time.Duration `help:"Time to live of the credential. Default: that of the scope."`
	Task   string        `help:"Task of the credential." default:"example"`
	User   string        `help:"Person on whose behalf the sandbox makes the request, as issuer#sub." placeholder:"ID"`
	Groups []string      `help:"Groups of --user, separated by commas." name:"user-groups"`
}

type explainReport struct {
	Outcome     scopes.Outcome        `json:"outcome"`
	Reason      string                `json:"reason"`
	Explanation string                `json:"explanation"`
	SPIFFEID    string                `json:"spiffe_id"`
	OnBehalfOf  string                `json:"on_behalf_of,omitzero"`
	Scope       string                `json:"scope"`
	Resource    string                `json:"resource,omitzero"`
	TTL         int64                 `json:"ttl"` // seconds
	Clamped     []openapi.Clamp       `json:"clamped,omitempty"`
	Policies    []explainPolicy       `json:"policies,omitempty"`
	Limits      []string              `json:"limits,omitempty"`
	Approval    *explainApproval      `json:"approval,omitempty"`
	Narrowest   *openapi.NarrowestAsk `json:"narrowest,omitempty"`
	NearMisses  []explainMiss         `json:"near_misses,omitempty"`
	Catalogue   string                `json:"catalogue"`
}

type explainPolicy struct {
	ID     string `json:"id"`
	Effect string `json:"effect"`
	File   string `json:"file"`
	Line   int    `json:"line"`
	Text   string `json:"text"`
}

// explainMiss is a permit of which only a condition does not hold.
type explainMiss struct {
	ID     string   `json:"id"`
	File   string   `json:"file"`
	Line   int      `json:"line"`
	Fields []string `json:"fields"`
	Failed string   `json:"failed"`
}

type explainApproval struct {
	Group   string `json:"group"`
	Quorum  int    `json:"quorum"`
	Expires int64  `json:"expires"` // seconds
	Glass   string `json:"break_glass,omitzero"`
	Passkey string `json:"passkey,omitzero"` // "required"
}

// Run decides the request and prints the policies that determined the decision. A denial is not an error.
func (c *CatalogExplainCmd) Run(con *console) error {
	catalogue, err := loadFolder(c.Folder)
	if err != nil {
		return err
	}
	id, err := spiffeid.FromString(c.As)
	if err != nil {
		return fmt.Errorf("--as: %w", err)
	}
	params, err := parseParams(c.Params)
	if err != nil {
		return err
	}
	scope, known := catalogue.Scope(c.Scope)
	settle(params, func(name string) scopes.ParamType {
		if !known {
			return scopes.ParamString
		}
		return scope.Params[name].Type
	})
	now := time.Now()
	// An SVID that lives longer than any credential limits none.
	who := scopes.Subject{ID: id, Bound: c.SVID == "x509", Expires: now.Add(48 * time.Hour)}
	if c.User != "" {
		who.User = &scopes.User{ID: c.User, Groups: c.Groups}
	}
	d, err := catalogue.Assess(who, scopes.Ask{Scope: c.Scope, Params: params, TTL: c.TTL, RequestContext: scopes.RequestContext{Task: c.Task}}, now)
	if _, invalid := errors.AsType[*scopes.InvalidAsk](err); invalid {
		return fmt.Errorf("the request is invalid: %w", err)
	}
	if err != nil {
		return fmt.Errorf("deciding the request: %w", err)
	}
	report := explainReport{
		Outcome: d.Outcome, Reason: d.Reason, Explanation: d.Explanation, SPIFFEID: c.As, OnBehalfOf: c.User, Scope: c.Scope, Resource: d.Resource,
		TTL: int64(d.TTL.Seconds()), Catalogue: d.Catalogue,
	}
	for _, clamp := range d.Clamps {
		report.Clamped = append(report.Clamped, openapi.Clamp{Bound: clamp.Bound, From: int64(clamp.From.Seconds()), To: int64(clamp.To.Seconds())})
	}
	for _, id := range d.Policies {
		if p, ok := catalogue.Policy(id); ok {
			report.Policies = append(report.Policies, explainPolicy(p))
		}
	}
	if d.Scope != nil {
		for _, limit := range d.Scope.Limits {
			report.Limits = append(report.Limits, limit.String())
		}
	}
	if a := d.Approval; a != nil {
		report.Approval = &explainApproval{Group: a.Group, Quorum: a.Quorum, Expires: int64(a.Expires.Seconds()), Glass: a.BreakGlass}
		if a.Passkey == scopes.PasskeyRequired {
			report.Approval.Passkey = a.Passkey
		}
	}
	if n := d.Narrowest; n != nil {
		report.Narrowest = &openapi.NarrowestAsk{Scope: n.Scope, Params: n.Params, TTL: int64(n.TTL.Seconds()), Context: n.Stated()}
	}
	for _, miss := range d.NearMisses {
		p, _ := catalogue.Policy(miss.Policy)
		report.NearMisses = append(report.NearMisses, explainMiss{miss.Policy, p.File, p.Line, miss.Fields, miss.Failed})
	}
	if con.json {
		return con.encode(report)
	}
	return c.print(con, report)
}

func (c *CatalogExplainCmd) print(con *console, r explainReport) error {
	fmt.Fprintf(con.out, "%s: %s\n\n", r.Outcome, safetext.Text(r.Explanation))
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(con.out, "  %-12s %s\n", name, safetext.Text(value))
		}
	}
	line("sandbox", r.SPIFFEID+map[string]string{"x509": ", by X.509-SVID over mutual TLS", "jwt": ", by JWT-SVID"}[c.SVID])
	line("on behalf of", r.OnBehalfOf)
	line("scope", r.Scope)
	line("resource", r.Resource)
	if r.TTL > 0 {
		line("ttl", spell(seconds(r.TTL)))
	}
	for _, clamp := range r.Clamped {
		line("shortened", fmt.Sprintf("from %s to %s by %s", spell(seconds(clamp.From)), spell(seconds(clamp.To)), clamp.Bound))
	}
	for _, limit := range r.Limits {
		line("limit", limit+", checked at request time")
	}
	if a := r.Approval; a != nil {
		rule := fmt.Sprintf("%d of %s within %s", a.Quorum, a.Group, spell(seconds(a.Expires)))
		line("approval", rule+standIn(a.Glass)+signedText(a.Passkey))
	}
	if r.Narrowest != nil {
		line("would pass", commandLine(*r.Narrowest))
	}
	for _, p := range r.Policies {
		fmt.Fprintf(con.out, "\n%s:%d: %s %s\n", p.File, p.Line, p.Effect, p.ID)
		for _, text := range textLines(p.Text) {
			fmt.Fprintf(con.out, "    %s\n", safetext.Text(strings.TrimSuffix(text, "\r")))
		}
	}
	for _, miss := range r.NearMisses {
		fmt.Fprintf(con.out, "\n%s:%d: permit %s would apply, but this does not hold:\n", miss.File, miss.Line, miss.ID)
		for _, text := range textLines(miss.Failed) {
			fmt.Fprintf(con.out, "    %s\n", safetext.Text(text))
		}
	}
	if len(r.Policies)+len(r.NearMisses) == 0 {
		fmt.Fprintln(con.out, "\nNo policy applies.")
	}
	return nil
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
	problems, ok := errors.AsType[scopes.Problems](err)
	if !ok {
		return fmt.Errorf("%s %s: %w", doing, folder, err)
	}
	lines := make([]string, len(problems))
	for i, p := range problems {
		lines[i] = safetext.Text(p.String())
	}
	return fmt.Errorf("%s %s:\n%s", doing, folder, strings.Join(lines, "\n"))
}
