package console

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/scopes"
	"github.com/brevet-dev/brevet/scopes/replay"
	"github.com/go-chi/chi/v5"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

const (
	// maxOffered is how many scopes the form lists. If there are more, the visitor types the name.
	maxOffered = 500
	// longSVID is the lifetime of the SVID in an explained request. It is longer than any credential, so that it does not
	// shorten one.
	longSVID = 48 * time.Hour
)

// explainView is a hypothetical request and the decision on it.
type explainView struct {
	SPIFFEID, SVID, Scope, TTL, User, Groups string
	Context                                  scopes.RequestContext
	Names                                    []string // names of scopes; nil if there are too many to list
	Params                                   []askedParam
	Wrong                                    string // error in the form or in the request
	Decision                                 *scopes.Decision
	Policies                                 []scopes.Policy
	Limits                                   []string
}

// askedParam is the form field of one scope parameter.
type askedParam struct {
	Name, Value, About string
	Values             []string // allowed values
	Number             bool
}

// explain shows the decision on a hypothetical request. It records nothing and issues nothing.
func (c *Console) explain(r *http.Request, _ *visitor) (view, error) {
	_, catalogue, err := c.inForce(r.Context())
	if err != nil {
		return view{}, err
	}
	query := r.URL.Query()
	v := explainView{
		SPIFFEID: query.Get("as"), SVID: query.Get("svid"), Scope: query.Get("scope"), TTL: query.Get("ttl"),
		Context: scopes.RequestContext{Task: "example"}, User: query.Get("user"), Groups: query.Get("groups"),
	}
	for _, field := range v.Context.Fields() {
		v.Context.Set(field.Name, cmp.Or(query.Get(field.Name), field.Value))
	}
	if all := catalogue.Scopes(); len(all) <= maxOffered {
		for _, s := range all {
			v.Names = append(v.Names, s.Name)
		}
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
	d, err := catalogue.Assess(who, scopes.Ask{Scope: v.Scope, Params: params, TTL: ttl, RequestContext: v.Context}, now)
	if invalid, ok := errors.AsType[*scopes.InvalidAsk](err); ok {
		v.Wrong = "The request is invalid: " + invalid.Error()
		return
	}
	if err != nil {
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

const (
	// replayTime and maxReplayed bound a replay, in time and in decisions. replayTime is shorter than the write timeout of a
	// response.
	replayTime  = 20 * time.Second
	maxReplayed = 500_000
	// maxGroups is how many scopes, and how many sandboxes, a replay lists.
	maxGroups = 20
)

// Past reads recorded decisions, including what only auditors may read. Its error is broker.ErrLedgerUnavailable.
type Past interface {
	// Decisions passes the decisions since the given time to visit, in the order of the record, until visit returns false or
	// ctx ends. It returns the total number of these decisions.
	Decisions(ctx context.Context, since time.Time, visit func(replay.Recorded) bool) (int64, error)
}

// replayView shows how a catalogue would have decided past requests.
type replayView struct {
	Digest string
	Since  time.Time
	Total  int64 // all decisions in the period
	// Cut is set if only some of the decisions were replayed. Until is the time of the last one that was.
	Cut    bool
	Until  time.Time
	Report replay.Report
	Shifts []shiftCount
}

type shiftCount struct {
	shiftWords

	Count int64
}

// Changed returns the number of decisions with a different outcome.
func (v replayView) Changed() int64 {
	return v.Report.Decisions - v.Report.Counts[replay.Unchanged] - v.Report.Counts[replay.NotByPolicies]
}

// shiftWords describes a shift in words.
type shiftWords struct {
	Shift         replay.Shift
	Name, Meaning string
}

// shifts are in the order of importance for review: easier access comes first.
var shifts = []shiftWords{
	{replay.NewlyAllowed, "newly allowed", "denied before, allowed now"},
	{replay.NewlyUngated, "newly ungated", "needed approval before, allowed without approval now"},
	{replay.NewlyAskable, "newly askable", "denied before, can be approved now"},
	{replay.NowLonger, "now longer", "same outcome, longer time to live"},
	{replay.NewlyDenied, "newly denied", "allowed or approvable before, denied now"},
	{replay.NewlyGated, "newly gated", "allowed before, need approval now"},
	{replay.NowShorter, "now shorter", "same outcome, shorter time to live"},
	{replay.Undecidable, "undecidable", "the draft refuses the parameters of the request"},
	{replay.NotByPolicies, "not by policies", "denied by a limit, a quarantine or the end of a task, independent of policy"},
	{replay.Unchanged, "unchanged", "same outcome"},
}

// replayProposal replays a catalogue that was proposed or applied. It requires a POST because it takes the replica's only
// replay slot, and any site can link to a GET.
func (c *Console) replayProposal(r *http.Request, _ *visitor) (view, error) {
	catalogue, err := c.catalogueOf(r.Context(), chi.URLParam(r, "digest"))
	if err != nil {
		return view{}, err
	}
	return c.replay(r, catalogue.Catalogue)
}

// replayDraft replays the draft in the form.
func (c *Console) replayDraft(r *http.Request, _ *visitor) (view, error) {
	d, err := c.readDraft(r)
	if err != nil {
		return view{}, &returning{err, "/catalogue/draft"}
	}
	loaded, err := scopes.Load(d.files)
	if err != nil {
		return view{}, &returning{errNoDraft, "/catalogue/draft"}
	}
	return c.replay(r, loaded)
}

func (c *Console) replay(r *http.Request, catalogue *scopes.Catalogue) (view, error) {
	back, known := map[string]time.Duration{"24h": 24 * time.Hour, "168h": 7 * 24 * time.Hour}[r.PostForm.Get("since")]
	if !known || c.cfg.Past == nil {
		return view{}, errForm
	}
	if !c.replaying.TryLock() {
		return view{}, errReplaying
	}
	defer c.replaying.Unlock()
	ctx, cancel := context.WithTimeout(r.Context(), replayTime)
	defer cancel()
	v := replayView{Digest: catalogue.Digest(), Since: c.cfg.Now().Add(-back)}
	again, done := replay.New(catalogue), 0
	var err error
	v.Total, err = c.cfg.Past.Decisions(ctx, v.Since, func(rec replay.Recorded) bool {
		if done == maxReplayed {
			return false
		}
		done++
		again.Add(rec)
		v.Until = rec.Time
		return true
	})
	if err != nil && (ctx.Err() == nil || v.Total == 0) {
		return view{}, err
	}
	v.Cut, v.Report = int64(done) < v.Total, again.Report(maxGroups)
	v.Shifts = shiftsOf(v.Report.Counts)
	return pageReplay.view("Replay", v), nil
}

// shiftsOf returns the shifts that occurred, with their descriptions.
func shiftsOf(counts map[replay.Shift]int64) []shiftCount {
	var all []shiftCount
	for _, s := range shifts {
		if n := counts[s.Shift]; n > 0 {
			all = append(all, shiftCount{s, n})
		}
	}
	return all
}
