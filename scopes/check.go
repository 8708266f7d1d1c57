package scopes

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ExampleResult is the outcome of one example.
type ExampleResult struct {
	Example  Example
	Got      Outcome  // or Invalid
	Decision Decision // empty if Got is Invalid; its Grant is nil
	Why      string   // the explanation, or what is wrong with the request
	Failures []string // what differs: "ttl: got 5m, want 10m"; empty if nothing does
}

// Check decides each example as Assess does.
func (c *Catalogue) Check(examples []Example) []ExampleResult {
	out := make([]ExampleResult, len(examples))
	for i, e := range examples {
		out[i] = c.check(e)
	}
	return out
}

func (c *Catalogue) check(e Example) ExampleResult {
	decide := c.Assess
	if e.Approved {
		decide = c.AssessApproved
	}
	result := ExampleResult{Example: e}
	d, err := decide(Subject{ID: e.As, Bound: e.Bound, User: e.User, Expires: e.At.Add(exampleSVID)}, e.Ask, e.At)
	var invalid *InvalidAsk
	switch {
	case errors.As(err, &invalid):
		result.Got, result.Why = Invalid, "The request is invalid: "+invalid.Error()+"."
	case err != nil:
		result.Got, result.Why = Invalid, "The caller is invalid: "+err.Error()+"."
	default:
		result.Got, result.Why, result.Decision = d.Outcome, d.Explanation, d
	}
	result.Failures = e.Want.compare(result.Got, result.Decision)
	return result
}

func (want Expectation) compare(outcome Outcome, d Decision) []string {
	var out []string
	differ := func(what, got, want string) {
		if got != want {
			out = append(out, fmt.Sprintf("%s: got %s, want %s", what, orDash(got), orDash(want)))
		}
	}
	differ("outcome", string(outcome), string(want.Outcome))
	if want.Reason != "" {
		differ("reason", d.Reason, want.Reason)
	}
	if want.TTL != 0 {
		differ("ttl", FormatDuration(d.TTL), FormatDuration(want.TTL))
	}
	if want.Policies != nil && !slices.Equal(d.Policies, want.Policies) {
		differ("policies", strings.Join(d.Policies, ", "), strings.Join(want.Policies, ", "))
	}
	if want.Narrowest != "" {
		got := NoNarrowest
		if d.Narrowest != nil {
			got = d.Narrowest.Scope
		}
		differ("narrowest", got, want.Narrowest)
	}
	return out
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
