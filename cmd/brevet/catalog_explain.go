package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// CatalogExplainCmd is `brevet catalog explain`.
type CatalogExplainCmd struct {
	Folder string        `arg:"" help:"Folder with .yaml and .cedar files." type:"existingdir"`
	Scope  string        `arg:"" help:"Scope to request, such as github.issues.read."`
	Params []string      `arg:"" optional:"" help:"Scope parameters: name=text, or name:=JSON for numbers and booleans."`
	As     string        `help:"SPIFFE ID of the sandbox." required:"" placeholder:"spiffe://..."`
	SVID   string        `help:"SVID type: ${enum}." enum:"x509,jwt" default:"x509" name:"svid"`
	TTL    time.Duration `help:"Time to live of the credential. Default: that of the scope."`
	Task   string        `help:"Task of the credential." default:"example"`
	User   string        `help:"Person on whose behalf the sandbox makes the request, as issuer#sub." placeholder:"ID"`
	Groups []string      `help:"Groups of --user, separated by commas." name:"user-groups"`
}

// longSVID is the lifetime of the SVID in an explained request. It is longer than any credential's, so it never limits one.
const longSVID = 48 * time.Hour

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
	Catalogue   string                `json:"catalogue"`
}

type explainPolicy struct {
	ID     string `json:"id"`
	Effect string `json:"effect"`
	File   string `json:"file"`
	Line   int    `json:"line"`
	Text   string `json:"text"`
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
	now := time.Now()
	who := scopes.Subject{ID: id, Bound: c.SVID == "x509", Expires: now.Add(longSVID)}
	if c.User != "" {
		who.User = &scopes.User{ID: c.User, Groups: c.Groups}
	}
	d, err := catalogue.Assess(who, scopes.Ask{Scope: c.Scope, Params: params, TTL: c.TTL, Task: c.Task}, now)
	var invalid *scopes.InvalidAsk
	switch {
	case errors.As(err, &invalid):
		return fmt.Errorf("the request is invalid: %w", err)
	case err != nil:
		return fmt.Errorf("deciding the request: %w", err)
	}
	report := c.report(catalogue, d)
	if con.json {
		return con.encode(report)
	}
	return c.print(con, report)
}

func (c *CatalogExplainCmd) report(catalogue *scopes.Catalogue, d scopes.Decision) explainReport {
	report := explainReport{
		Outcome: d.Outcome, Reason: d.Reason, Explanation: d.Explanation, SPIFFEID: c.As, OnBehalfOf: c.User, Scope: c.Scope, Resource: d.Resource,
		TTL: int64(d.TTL.Seconds()), Catalogue: d.Catalogue,
	}
	for _, clamp := range d.Clamps {
		report.Clamped = append(report.Clamped, openapi.Clamp{
			Bound: clamp.Bound, From: int64(clamp.From.Seconds()), To: int64(clamp.To.Seconds()),
		})
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
		report.Narrowest = &openapi.NarrowestAsk{Scope: n.Scope, Params: n.Params, TTL: int64(n.TTL.Seconds())}
	}
	return report
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
		line("approval", fmt.Sprintf("%d of %s within %s", a.Quorum, a.Group, spell(seconds(a.Expires)))+standIn(a.Glass)+signedText(a.Passkey))
	}
	if r.Narrowest != nil {
		line("would pass", commandLine(*r.Narrowest, c.Task))
	}
	for _, p := range r.Policies {
		fmt.Fprintf(con.out, "\n%s:%d: %s %s\n", p.File, p.Line, p.Effect, p.ID)
		for _, text := range textLines(p.Text) {
			fmt.Fprintf(con.out, "    %s\n", safetext.Text(strings.TrimSuffix(text, "\r")))
		}
	}
	if len(r.Policies) == 0 {
		fmt.Fprintln(con.out, "\nNo policy applies.")
	}
	return nil
}
