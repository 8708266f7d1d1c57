package egress

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

// rulesKept is how long a change of the catalogue may take to reach the gateway.
const rulesKept = 10 * time.Second

// rulebook holds what the sandbox may ask for, with the calls that each scope is for.
type rulebook struct {
	broker *client.Client
	now    func() time.Time
	only   map[string]map[string]any // as SandboxConfig.Scopes

	mu   sync.Mutex
	read time.Time
	last *edition
}

// edition is what Brevet has said at one time, and what calls were found to need by that.
type edition struct {
	pages []page

	mu    sync.Mutex
	found map[scopes.Call]match
}

// mostFound bounds the memory: which calls there are is for the sandbox to say.
const mostFound = 1000

// page is one scope.
type page struct {
	scope  openapi.OfferedScope
	router *scopes.Router
}

// match is the scope and the parameters that a call needs.
type match struct {
	scope openapi.OfferedScope
	route scopes.Route
}

// find returns what a call needs a credential for. Of several scopes it is the one of the least authority, then the first by
// name.
func (b *rulebook) find(ctx context.Context, call scopes.Call) (match, error) {
	now, err := b.current(ctx)
	if err != nil {
		return match{}, err
	}
	if m, known := now.cached(call); known {
		return m, nil
	}
	why := "no scope that this sandbox may ask for has an egress rule for this host"
	var near []string
	for _, p := range now.pages {
		if !p.router.Covers(call) {
			continue
		}
		route, reason := p.router.Find(call, b.only[p.scope.Name])
		if reason == "" {
			return now.keep(call, match{p.scope, route}), nil
		}
		if len(near) == 0 {
			why = p.scope.Name + ": " + reason
		}
		near = append(near, p.scope.Name)
	}
	return match{}, &refusal{code: codeNoRule, explanation: why, scopes: near}
}

// cached returns what the same call needed a moment ago.
func (e *edition) cached(call scopes.Call) (match, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	m, known := e.found[call]
	return m, known
}

func (e *edition) keep(call scopes.Call, m match) match {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.found) >= mostFound {
		clear(e.found)
	}
	e.found[call] = m
	return m
}

// current reads the rules again when they are old.
func (b *rulebook) current(ctx context.Context) (*edition, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := b.now(); b.last != nil && now.Sub(b.read) < rulesKept {
		return b.last, nil
	}
	// Whoever waits for the rules is not to have them broken off by who asked first.
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
			continue // a token that is bound to a key is of no use to a gateway
		}
		if router, err := scopes.NewRouter(rulesOf(scope), paramsOf(scope)); err == nil {
			pages = append(pages, page{scope, router})
		}
	}
	slices.SortStableFunc(pages, func(a, b page) int {
		return cmp.Or(cmp.Compare(rank(a.scope), rank(b.scope)), cmp.Compare(a.scope.Name, b.scope.Name))
	})
	b.last, b.read = &edition{pages: pages, found: map[scopes.Call]match{}}, began
	return b.last, nil
}

func rank(scope openapi.OfferedScope) int { return scopes.Authority(scope.Authority).Rank() }

func rulesOf(scope openapi.OfferedScope) []scopes.Egress {
	rules := make([]scopes.Egress, len(scope.Egress))
	for i, rule := range scope.Egress {
		rules[i] = scopes.Egress{
			Hosts: rule.Hosts, Methods: rule.Methods, Paths: rule.Paths, Databases: rule.Databases,
			Send: scopes.Send{
				As: string(rule.Send.As), Name: rule.Send.Name, User: rule.Send.User, Field: rule.Send.Field,
				Service: rule.Send.Service, Region: rule.Send.Region,
			},
		}
	}
	return rules
}

func paramsOf(scope openapi.OfferedScope) map[string]scopes.Param {
	params := make(map[string]scopes.Param, len(scope.Params))
	for name, p := range scope.Params {
		params[name] = scopes.Param{Type: scopes.ParamType(p.Type), Pattern: p.Pattern, Values: p.Values}
	}
	return params
}
