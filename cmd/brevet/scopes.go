package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/openapi"
)

// ScopesCmd is `brevet scopes`.
type ScopesCmd struct{ CallerFlags }

// Run prints a table, or one JSON document per line.
func (c *ScopesCmd) Run(ctx context.Context, con *console) error {
	return call(ctx, con, c.CallerFlags, func(broker *client.Client) error {
		list, err := broker.Scopes(ctx)
		if err != nil {
			return err
		}
		return printList(con, list.Scopes, "this sandbox may not request any scope",
			"SCOPE\tAUTHORITY\tPARAMETERS\tTTL\tAPPROVAL\tCREDENTIAL\tTITLE", func(s openapi.OfferedScope) []any {
				credential := s.Credential
				if s.Bind != openapi.BindNone {
					credential += " (" + string(s.Bind) + ")"
				}
				ttl := ttlRange(seconds(s.TTLDefault), seconds(s.TTLMax))
				return []any{s.Name, s.Authority, paramsLine(s.Params), ttl, s.Approval, credential, short(s.Title, 60)}
			})
	})
}

// paramsLine returns the parameters and what each accepts: "repo (string), env (dev|prod)".
func paramsLine(params map[string]openapi.ScopeParam) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(params)) {
		p, accepts := params[name], params[name].Type
		switch {
		case len(p.Values) > 0:
			accepts = safetext.Shorten(strings.Join(p.Values, "|"), 40)
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
