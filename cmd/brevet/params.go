package main

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

// loose is the text of a parameter written as name=text, if the text can also be a number or a boolean. Only the scope says
// which of them is meant.
type loose string

// looseSyntax matches the texts that a number or a boolean can have. Any other text is a string for every scope.
var looseSyntax = regexp.MustCompile(`^(?:-?(?:0|[1-9][0-9]*)|true|false)$`)

// as returns the value as the type that a scope declares. A text that does not fit the type stays a text, which the broker
// refuses by the parameter's name.
func (l loose) as(declared scopes.ParamType) any {
	isBool := l == "true" || l == "false"
	switch {
	case declared == scopes.ParamBool && isBool:
		return l == "true"
	case declared == scopes.ParamInt && !isBool:
		return json.Number(l)
	default:
		return string(l)
	}
}

// parseParams reads name=text and name:=JSON. It returns a text that can also be a number or a boolean as [loose].
func parseParams(args []string) (map[string]any, error) {
	params := make(map[string]any, len(args))
	for _, arg := range args {
		name, text, ok := strings.Cut(arg, "=")
		if !ok || name == "" || name == ":" {
			return nil, fmt.Errorf("parameter %q is neither name=text nor name:=JSON", arg)
		}
		var value any = text
		if looseSyntax.MatchString(text) {
			value = loose(text)
		}
		if typed, isJSON := strings.CutSuffix(name, ":"); isJSON {
			name = typed
			// Numbers stay as they were written, because none may be rounded before the decision.
			decoder := json.NewDecoder(strings.NewReader(text))
			decoder.UseNumber()
			if err := decoder.Decode(&value); err != nil || decoder.More() {
				return nil, fmt.Errorf("parameter %s: %q is not one JSON value", name, text)
			}
		}
		if _, twice := params[name]; twice {
			return nil, fmt.Errorf("parameter %s is given twice", name)
		}
		params[name] = value
	}
	return params, nil
}

// settle replaces the loose values of a scope's parameters.
func settle(params map[string]any, declared func(name string) scopes.ParamType) {
	for name, value := range params {
		if text, ok := value.(loose); ok {
			params[name] = text.as(declared(name))
		}
	}
}

// scopeParams are the parameters for one scope.
type scopeParams struct {
	scope  string
	params map[string]any
}

func (p scopeParams) isLoose() bool {
	for _, value := range p.params {
		if _, ok := value.(loose); ok {
			return true
		}
	}
	return false
}

// settleParams replaces loose values as the broker's scopes declare the parameters. It calls the broker only if there are
// loose values. The values for a scope that the broker does not offer stay texts: the broker says what is wrong.
func settleParams(ctx context.Context, broker *client.Client, all ...scopeParams) error {
	if !slices.ContainsFunc(all, scopeParams.isLoose) {
		return nil
	}
	list, err := broker.Scopes(ctx)
	if err != nil {
		return err
	}
	for _, one := range all {
		var declared map[string]openapi.ScopeParam
		if at := slices.IndexFunc(list.Scopes, func(s openapi.OfferedScope) bool { return s.Name == one.scope }); at >= 0 {
			declared = list.Scopes[at].Params
		}
		settle(one.params, func(name string) scopes.ParamType { return scopes.ParamType(declared[name].Type) })
	}
	return nil
}
