package egress

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/brevet-dev/brevet/scopes/egressrule"
)

// rulesKept is how long a change of the catalogue may take to reach the gateway.
const rulesKept = 10 * time.Second

// rulebook caches the scopes that the sandbox may request, with the egress rules of each.
type rulebook struct {
	broker *client.Client
	now    func() time.Time
	only   map[string]map[string]any // see SandboxConfig.Scopes

	mu   sync.Mutex
	read time.Time
	last *edition
}

// edition is the set of rules that Brevet returned at one time, with a cache of the matches found with it.
type edition struct {
	pages []page

	mu    sync.Mutex
	found map[egressrule.Call]match
}

// maxFound bounds memory, because the sandbox decides which calls there are.
const maxFound = 1000

// page is one scope with its egress rules.
type page struct {
	scope  openapi.OfferedScope
	router *egressrule.Router
}

// match is the scope and the parameters of the credential that a call needs.
type match struct {
	scope openapi.OfferedScope
	route egressrule.Route
}

// find returns the scope and the parameters that a call with these unusual headers needs. If several scopes match, it takes the
// one with the least authority, then one with a credential, then the first by name.
func (b *rulebook) find(ctx context.Context, call egressrule.Call, unusual []string) (match, error) {
	now, err := b.current(ctx)
	if err != nil {
		return match{}, err
	}
	usual := len(unusual) == 0 // only such calls are cached, because the names of headers can be long
	now.mu.Lock()
	m, known := now.found[call]
	now.mu.Unlock()
	if usual && known {
		return m, nil
	}
	code, why := codeNoRule, "no scope that this sandbox may request has an egress rule for this host"
	var near []string
	for _, p := range now.pages {
		if !p.router.Covers(call) {
			continue
		}
		route, reason := p.router.Find(call, unusual, b.only[p.scope.Name])
		if reason == "" && !usual {
			return match{p.scope, route}, nil
		}
		if reason == "" {
			now.mu.Lock()
			defer now.mu.Unlock()
			if len(now.found) >= maxFound {
				clear(now.found)
			}
			now.found[call] = match{p.scope, route}
			return now.found[call], nil
		}
		// A scope that lacks only a header is nearest.
		if lacksHeader := len(route.Unnamed) > 0; len(near) == 0 || lacksHeader && code == codeNoRule {
			why = p.scope.Name + ": " + reason
			if lacksHeader {
				code = codeHeader
			}
		}
		near = append(near, p.scope.Name)
	}
	return match{}, &refusal{code: code, explanation: why, scopes: near}
}

// login finds the scope for a database, and its host. If several scopes match, it takes the one that the user names, or else
// the first in the order that find uses.
func (b *rulebook) login(ctx context.Context, user, database string) (match, string, error) {
	now, err := b.current(ctx)
	if err != nil {
		return match{}, "", err
	}
	var found match
	var host string
	for _, p := range now.pages {
		for _, rule := range p.scope.Egress {
			if !slices.Contains(rule.Databases, database) || host != "" && p.scope.Name != user {
				continue
			}
			params := map[string]any{} // never nil
			maps.Copy(params, b.only[p.scope.Name])
			found = match{p.scope, egressrule.Route{Send: scopes.Send{Field: "password"}, Params: params}}
			host = rule.Hosts[0]
			break
		}
	}
	if host == "" {
		return match{}, "", &refusal{code: codeNoRule, explanation: "no scope that this sandbox may request has an egress rule for this database"}
	}
	return found, host, nil
}

// current returns the rules, and reads them again if they are older than rulesKept.
func (b *rulebook) current(ctx context.Context) (*edition, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := b.now(); b.last != nil && now.Sub(b.read) < rulesKept {
		return b.last, nil
	}
	// Other callers wait for these rules too, so the first caller must not cancel the read when it leaves.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askWithin)
	defer cancel()
	began := b.now()
	list, err := b.broker.Scopes(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	pages := []page{}
	for _, scope := range list.Scopes {
		if _, listed := b.only[scope.Name]; b.only != nil && !listed || len(scope.Egress) == 0 {
			continue
		}
		if scope.Bind != openapi.BindNone {
			continue // the gateway can't use a token that is bound to a key
		}
		if router, err := routerOf(scope); err == nil {
			pages = append(pages, page{scope, router})
		}
	}
	slices.SortStableFunc(pages, func(a, b page) int {
		rankA, rankB := scopes.Authority(a.scope.Authority).Rank(), scopes.Authority(b.scope.Authority).Rank()
		return cmp.Or(cmp.Compare(rankA, rankB), cmp.Compare(openness(a.scope), openness(b.scope)), cmp.Compare(a.scope.Name, b.scope.Name))
	})
	b.last, b.read = &edition{pages: pages, found: map[egressrule.Call]match{}}, began
	return b.last, nil
}

// openness is 1 for a scope without a credential, and else 0: of two scopes for a call, the one with a credential comes first.
func openness(scope openapi.OfferedScope) int {
	if scope.Credential == scopes.KindNone {
		return 1
	}
	return 0
}

func routerOf(scope openapi.OfferedScope) (*egressrule.Router, error) {
	rules := make([]scopes.Egress, len(scope.Egress))
	for i, rule := range scope.Egress {
		rules[i] = scopes.Egress{
			Hosts: rule.Hosts, Methods: rule.Methods, Paths: rule.Paths, Headers: rule.Headers, Databases: rule.Databases,
			Send: scopes.Send{
				As: string(rule.Send.As), Name: rule.Send.Name, User: rule.Send.User, Field: rule.Send.Field,
				Service: rule.Send.Service, Region: rule.Send.Region,
			},
		}
	}
	params := make(map[string]scopes.Param, len(scope.Params))
	for name, p := range scope.Params {
		params[name] = scopes.Param{Type: scopes.ParamType(p.Type), Pattern: p.Pattern, Values: p.Values}
	}
	return egressrule.NewRouter(rules, params)
}
