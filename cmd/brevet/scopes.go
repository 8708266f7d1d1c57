package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/openapi"
)

// ScopesCmd is `brevet scopes`.
type ScopesCmd struct{ CallerFlags }

// Run prints a table, or one JSON document per line.
func (c *ScopesCmd) Run(ctx context.Context, con *console) error {
	broker, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	list, err := broker.Scopes(ctx)
	if err != nil {
		return explain(con, c.hint(err), "")
	}
	if con.json {
		return encodeAll(con, list.Scopes)
	}
	if len(list.Scopes) == 0 {
		_, err := fmt.Fprintln(con.out, "this sandbox may not request any scope")
		return err
	}
	table := tabwriter.NewWriter(con.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "SCOPE\tAUTHORITY\tPARAMETERS\tTTL\tAPPROVAL\tCREDENTIAL\tTITLE")
	for _, scope := range list.Scopes {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", safetext.Text(scope.Name), safetext.Text(scope.Authority), paramsLine(scope.Params),
			ttlRange(seconds(scope.TTLDefault), seconds(scope.TTLMax)), safetext.Text(string(scope.Approval)),
			credentialLine(scope), shorten(safetext.Text(scope.Title), 60))
	}
	return table.Flush()
}

// paramsLine returns the parameters and what each accepts: "repo (string), env (dev|prod)".
func paramsLine(params map[string]openapi.ScopeParam) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(params)) {
		p, accepts := params[name], params[name].Type
		switch {
		case len(p.Values) > 0:
			accepts = shorten(strings.Join(p.Values, "|"), 40)
		case p.Min != nil && p.Max != nil:
			accepts = fmt.Sprintf("%d..%d", *p.Min, *p.Max)
		}
		all = append(all, safetext.Text(name+" ("+accepts+")"))
	}
	if len(all) == 0 {
		return "-"
	}
	return strings.Join(all, ", ")
}

func credentialLine(scope openapi.OfferedScope) string {
	if scope.Bind == openapi.BindNone {
		return safetext.Text(scope.Credential)
	}
	return safetext.Text(scope.Credential + " (" + string(scope.Bind) + ")")
}
