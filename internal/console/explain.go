package console

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/scopes"
	"github.com/go-chi/chi/v5"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

const (
	// mostOffered is how many scopes the form lists. If there are more, the visitor types the name.
	mostOffered = 500
	// longSVID is the lifetime of the SVID in an explained request. It is longer than any credential, so that it does not
	// shorten one.
	longSVID = 48 * time.Hour
)

func (c *Console) explainRoutes(mux chi.Router) { mux.Get("/catalogue/explain", c.visit(c.explain)) }

// explainView is a hypothetical request and the decision on it.
type explainView struct {
	SPIFFEID, SVID, Scope, TTL, Task, User, Groups string
	Names                                          []string // names of scopes; nil if there are too many to list
	Params                                         []askedParam
	Wrong                                          string // error in the form or in the request
	Decision                                       *scopes.Decision
	Policies                                       []scopes.Policy
	Limits                                         []string
}

// askedParam is the form field of one scope parameter.
type askedParam struct {
	Name, Value, About string
	Values             []string // allowed values
	Number             bool
}

// explain shows the decision on a hypothetical request. It records nothing and issues nothing.
func (c *Console) explain(r *http.Request, who *visitor) (view, error) {
	if err := c.readsCatalogue(who); err != nil {
		return view{}, err
	}
	_, catalogue, err := c.inForce(r.Context())
	if err != nil {
		return view{}, err
	}
	query := r.URL.Query()
	v := explainView{
		SPIFFEID: query.Get("as"), SVID: query.Get("svid"), Scope: query.Get("scope"), TTL: query.Get("ttl"), Task: query.Get("task"),
		User: query.Get("user"), Groups: query.Get("groups"),
	}
	if v.Task == "" {
		v.Task = "example"
	}
	for _, s := range catalogue.Scopes() {
		v.Names = append(v.Names, s.Name)
	}
	if len(v.Names) > mostOffered {
		v.Names = nil
	}
	asked := map[string]any{}
	if s, known := catalogue.Scope(v.Scope); known {
		v.Params = paramFields(s, query.Get)
		asked = v.asked()
	}
	if query.Get("explain") != "" {
		v.assess(catalogue.Catalogue, asked, c.cfg.Now())
	}
	return pageExplain.view("Explain a decision", v), nil
}

// paramFields returns the form fields of a scope's parameters.
func paramFields(s *scopes.Scope, given func(string) string) []askedParam {
	var all []askedParam
	for _, name := range sortedKeys(s.Params) {
		p := s.Params[name]
		field := askedParam{Name: name, Value: given("p." + name), Values: p.Values}
		switch p.Type {
		case scopes.ParamString:
			field.About = "text that matches " + p.Pattern + ", at most " + strconv.Itoa(p.MaxLength) + " bytes"
		case scopes.ParamEnum:
			field.About = "one of the listed values"
		case scopes.ParamInt:
			field.Number, field.About = true, "an integer from "+strconv.FormatInt(p.Min, 10)+" to "+strconv.FormatInt(p.Max, 10)
		case scopes.ParamBool:
			field.Values, field.About = []string{"true", "false"}, "true or false"
		}
		all = append(all, field)
	}
	return all
}

// asked returns the parameters as in a request. An invalid integer stays text, so that the scope's own error describes it.
func (v *explainView) asked() map[string]any {
	params := map[string]any{}
	for _, p := range v.Params {
		params[p.Name] = p.Value
		switch n, err := strconv.ParseInt(p.Value, 10, 64); {
		case p.Number && err == nil:
			params[p.Name] = n
		case slices.Equal(p.Values, []string{"true", "false"}):
			params[p.Name] = p.Value == "true"
		}
	}
	return params
}

func (v *explainView) assess(catalogue *scopes.Catalogue, params map[string]any, now time.Time) {
	id, err := spiffeid.FromString(v.SPIFFEID)
	if err != nil || id.Path() == "" {
		v.Wrong = "The sandbox must be a SPIFFE ID with a path, such as spiffe://acme.example/agents/a."
		return
	}
	var ttl time.Duration
	if v.TTL != "" {
		if ttl, err = time.ParseDuration(v.TTL); err != nil || ttl <= 0 {
			v.Wrong = "The time to live must be a duration such as 90s, 5m or 1h."
			return
		}
	}
	who := scopes.Subject{ID: id, Bound: v.SVID != "jwt", Expires: now.Add(longSVID)}
	if v.User != "" {
		who.User = &scopes.User{ID: v.User, Groups: strings.FieldsFunc(v.Groups, func(r rune) bool { return r == ',' || r == ' ' })}
	}
	d, err := catalogue.Assess(who, scopes.Ask{Scope: v.Scope, Params: params, TTL: ttl, Task: v.Task}, now)
	var invalid *scopes.InvalidAsk
	switch {
	case errors.As(err, &invalid):
		v.Wrong = "The request is invalid: " + invalid.Error()
		return
	case err != nil:
		v.Wrong = "The sandbox is missing."
		return
	}
	v.Decision = &d
	for _, id := range d.Policies {
		if p, ok := catalogue.Policy(id); ok {
			v.Policies = append(v.Policies, p)
		}
	}
	if d.Scope != nil {
		for _, limit := range d.Scope.Limits {
			v.Limits = append(v.Limits, limit.String())
		}
	}
}
