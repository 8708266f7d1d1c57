package scopes

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"go.yaml.in/yaml/v4"
)

// MaxExamples is the maximum number of examples for one catalogue.
const MaxExamples = 10_000

// Example is one request and its expected decision: a unit test of scopes and policies.
type Example struct {
	Name     string
	File     string
	Line     int
	As       spiffeid.ID
	Bound    bool // presents an X.509-SVID over mTLS, not a JWT-SVID
	User     *User
	Ask      Ask
	Approved bool // people have approved it
	At       time.Time
	Want     Expectation
}

// Expectation is what an example expects of the decision. An empty field matches anything.
type Expectation struct {
	Outcome   Outcome // or Invalid
	Reason    string
	TTL       time.Duration
	Policies  []string // exactly these, in any order; nil for any
	Narrowest string   // the scope of the request that would pass, or NoNarrowest
}

// NoNarrowest is the Expectation.Narrowest that requires that no request would pass.
const NoNarrowest = "none"

const (
	exampleTask = "example" // used if an example sets none
	// exampleSVID is the lifetime of an example's SVID. It is long enough to bound nothing.
	exampleSVID = 2 * maxDuration
)

// exampleTime is the time of an example that sets none.
var exampleTime = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// ReadExamplesFS reads the examples below the root of fsys.
func ReadExamplesFS(fsys fs.FS) ([]Example, error) {
	files, err := readFS(fsys, isExampleFile)
	if err != nil {
		return nil, err
	}
	return ReadExamples(files)
}

// ReadExamples reads example tables, in any order. If anything is wrong, the error is Problems with every mistake found.
// The examples are sorted by the name of their file.
func ReadExamples(files []File) ([]Example, error) {
	var problems Problems
	var out []Example
	first := map[string]Example{}
	for _, f := range slices.SortedFunc(slices.Values(files), func(a, b File) int { return strings.Compare(a.Name, b.Name) }) {
		if len(f.Data) > MaxScopeFile {
			problems.add(f.Name, 0, "is larger than %d KiB; split it", MaxScopeFile>>10)
			continue
		}
		r := &reader{file: f.Name, top: "examples", problems: &problems}
		for _, n := range r.items(f.Data) {
			e, ok := r.example(n)
			if !ok {
				continue
			}
			if twin, twice := first[e.Name]; twice {
				problems.add(e.File, e.Line, "example %q is defined twice; the first is at %s:%d", e.Name, twin.File, twin.Line)
			} else {
				first[e.Name] = e
			}
			out = append(out, e)
		}
	}
	if len(out) > MaxExamples {
		problems.add("", 0, "%d examples are too many; at most %d", len(out), MaxExamples)
	}
	if err := problems.err(); err != nil {
		return nil, err
	}
	return out, nil
}

func (r *reader) example(n *yaml.Node) (Example, bool) {
	r.where = ""
	known := slices.Concat([]string{"name", "as", "svid", "scope", "params", "ttl"}, contextNames, []string{"user", "approved", "at", "want"})
	fields := r.mapping(n, "example", known...)
	if fields == nil {
		return Example{}, false
	}
	defer func() { r.where = "" }()
	e := Example{File: r.file, Line: n.Line, At: exampleTime, Ask: Ask{RequestContext: RequestContext{Task: exampleTask}}}
	for _, key := range []string{"name", "as", "scope", "want"} {
		if fields[key] == nil {
			r.at(n, "example: %s is missing", key)
			return e, false
		}
	}
	e.Name, _ = r.text(fields["name"], "example: name")
	if strings.TrimSpace(e.Name) == "" || len(e.Name) > maxTitle {
		r.at(fields["name"], "example: name must be 1 to %d bytes of text", maxTitle)
	}
	r.where = "example " + strconv.Quote(e.Name) + ": "
	if as, ok := r.text(fields["as"], "as"); ok {
		var err error
		if e.As, err = spiffeid.FromString(as); err != nil || e.As.Path() == "" || len(as) > maxSPIFFEID {
			r.at(fields["as"], "as %q is not a SPIFFE ID with a path, such as spiffe://acme.example/research/r-1", as)
		}
	}
	e.Bound = r.oneOf(fields["svid"], "svid", "x509", "jwt") == "x509"
	e.Ask.Scope, _ = r.text(fields["scope"], "scope")
	e.Ask.Params = r.askParams(fields["params"])
	e.Ask.TTL, _ = r.duration(fields["ttl"], "ttl", minTTL)
	for _, name := range contextNames {
		if value, ok := r.text(fields[name], name); ok {
			e.Ask.Set(name, value)
		}
	}
	e.User = r.user(fields["user"])
	e.Approved = r.flag(fields["approved"], "approved")
	// YAML may already have recognised the value as a timestamp, so use its text.
	if n := fields["at"]; n != nil {
		at, err := time.Parse(time.RFC3339, n.Value)
		if n.Kind != yaml.ScalarNode || err != nil {
			r.at(n, "at must be a time such as 2030-01-01T12:00:00Z")
		}
		e.At = at
	}
	e.Want = r.expectation(fields["want"])
	return e, true
}

// user reads the person whom the sandbox acts for.
func (r *reader) user(n *yaml.Node) *User {
	if n == nil {
		return nil
	}
	fields := r.mapping(n, "user", "id", "groups")
	if fields == nil {
		return nil
	}
	u := &User{}
	u.ID, _ = r.text(fields["id"], "user.id")
	if u.ID == "" {
		r.at(n, "user needs an id, such as https://login.acme.example#alice")
	}
	if fields["groups"] != nil {
		u.Groups = r.texts(fields["groups"], "user.groups")
	}
	return u
}

func (r *reader) texts(n *yaml.Node, what string) []string {
	var out []string
	for i, item := range r.list(n, what) {
		if text, ok := r.text(item, fmt.Sprintf("%s[%d]", what, i)); ok {
			out = append(out, text)
		}
	}
	return out
}

// askParams returns the parameters of a request in the types that Decide accepts.
func (r *reader) askParams(n *yaml.Node) map[string]any {
	out := map[string]any{}
	if n == nil {
		return out
	}
	for name, value := range r.entries(n, "params") {
		number, err := strconv.ParseInt(value.Value, 10, 64)
		switch {
		case value.Kind == yaml.ScalarNode && value.ShortTag() == "!!str":
			out[name] = value.Value
		case value.Kind == yaml.ScalarNode && value.ShortTag() == "!!int" && err == nil:
			out[name] = number
		case value.Kind == yaml.ScalarNode && value.ShortTag() == "!!bool":
			out[name] = r.flag(value, name)
		default:
			r.at(value, "params.%s must be text, a whole number, true or false", name)
		}
	}
	return out
}

// expectation reads either one word or a mapping with more fields.
func (r *reader) expectation(n *yaml.Node) Expectation {
	outcome := func(n *yaml.Node, what string) Outcome {
		return Outcome(r.oneOf(n, what, string(Allow), string(Deny), string(Pending), string(Invalid)))
	}
	if n.Kind == yaml.ScalarNode {
		return Expectation{Outcome: outcome(n, "want")}
	}
	fields := r.mapping(n, "want", "outcome", "reason", "ttl", "policies", "narrowest")
	if fields == nil {
		return Expectation{}
	}
	if fields["outcome"] == nil {
		r.at(n, "want needs an outcome, such as {outcome: deny, reason: no_permit}")
		return Expectation{}
	}
	want := Expectation{Outcome: outcome(fields["outcome"], "want.outcome")}
	want.Reason, _ = r.text(fields["reason"], "want.reason")
	want.TTL, _ = r.duration(fields["ttl"], "want.ttl", minTTL)
	want.Narrowest, _ = r.text(fields["narrowest"], "want.narrowest")
	if fields["policies"] != nil {
		want.Policies = append([]string{}, r.texts(fields["policies"], "want.policies")...)
		slices.Sort(want.Policies)
	}
	return want
}

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
		decide := c.Assess
		if e.Approved {
			decide = c.AssessApproved
		}
		result := ExampleResult{Example: e, Got: Invalid}
		d, err := decide(Subject{ID: e.As, Bound: e.Bound, User: e.User, Expires: e.At.Add(exampleSVID)}, e.Ask, e.At)
		if invalid, ok := errors.AsType[*InvalidAsk](err); ok {
			result.Why = "The request is invalid: " + invalid.Error() + "."
		} else if err != nil {
			result.Why = "The caller is invalid: " + err.Error() + "."
		} else {
			result.Got, result.Why, result.Decision = d.Outcome, d.Explanation, d
		}
		result.Failures = e.Want.compare(result.Got, result.Decision)
		out[i] = result
	}
	return out
}

func (want Expectation) compare(outcome Outcome, d Decision) []string {
	var out []string
	differ := func(what, got, want string) {
		if got != want {
			out = append(out, fmt.Sprintf("%s: got %s, want %s", what, cmp.Or(got, "-"), cmp.Or(want, "-")))
		}
	}
	differ("outcome", string(outcome), string(want.Outcome))
	if want.Reason != "" {
		differ("reason", d.Reason, want.Reason)
	}
	if want.TTL != 0 {
		got := ""
		if d.TTL != 0 {
			got = FormatDuration(d.TTL)
		}
		differ("ttl", got, FormatDuration(want.TTL))
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
