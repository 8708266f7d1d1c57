package console

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/scopes"
	"github.com/brevet-dev/brevet/scopes/replay"
	"github.com/go-chi/chi/v5"
)

const (
	// replayTime and mostReplayed bound a replay, in time and in decisions. replayTime is shorter than the write timeout of a
	// response.
	replayTime   = 20 * time.Second
	mostReplayed = 500_000
	// mostGroups is how many scopes, and how many sandboxes, a replay lists.
	mostGroups = 20
)

var errReplaying = errors.New("replay in progress")

// Past reads recorded decisions, including what only auditors may read. Its error is broker.ErrLedgerUnavailable.
type Past interface {
	// Decisions passes the decisions since the given time to visit, in the order of the record, until visit returns false or
	// ctx ends. It returns the total number of these decisions.
	Decisions(ctx context.Context, since time.Time, visit func(replay.Recorded) bool) (int64, error)
}

func (c *Console) replayRoutes(mux chi.Router) {
	mux.Post("/catalogue/replay", c.look(c.replayDraft))
	mux.Post("/catalogue/proposals/{digest}/replay", c.look(c.replayProposal))
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

// spans are the periods that a replay can cover.
var spans = map[string]time.Duration{"24h": 24 * time.Hour, "168h": 7 * 24 * time.Hour}

// replays returns nil if the visitor may replay: an admin who is also an auditor, because a replay reads decisions of all
// sandboxes.
func (c *Console) replays(who *visitor) error {
	if err := c.changesCatalogue(who); err != nil {
		return err
	}
	return c.overAll(who.Auditor.TrustDomains)
}

// replayProposal replays a catalogue that was proposed or applied. It requires a POST because it takes the replica's only
// replay slot, and any site can link to a GET.
func (c *Console) replayProposal(r *http.Request, who *visitor) (view, error) {
	if err := c.replays(who); err != nil {
		return view{}, err
	}
	catalogue, err := c.catalogueOf(r.Context(), chi.URLParam(r, "digest"))
	if err != nil {
		return view{}, err
	}
	return c.replay(r, catalogue.Catalogue, r.PostForm.Get("since"))
}

// replayDraft replays the draft in the form.
func (c *Console) replayDraft(r *http.Request, who *visitor) (view, error) {
	if err := c.replays(who); err != nil {
		return view{}, err
	}
	d, err := c.readDraft(r)
	if err != nil {
		return view{}, &returning{err, "/catalogue/draft"}
	}
	loaded, err := scopes.Load(d.files)
	if err != nil {
		return view{}, &returning{errNoDraft, "/catalogue/draft"}
	}
	return c.replay(r, loaded, r.PostForm.Get("since"))
}

// replaying limits the replica to one replay at a time, to spare the database.
type replaying struct{ sync.Mutex }

func (c *Console) replay(r *http.Request, catalogue *scopes.Catalogue, span string) (view, error) {
	back, known := spans[span]
	if !known || c.cfg.Past == nil {
		return view{}, errForm
	}
	if !c.replayer.TryLock() {
		return view{}, errReplaying
	}
	defer c.replayer.Unlock()
	v, err := c.replayAll(r.Context(), catalogue, back)
	return pageReplay.view("Replay", v), err
}

func (c *Console) replayAll(ctx context.Context, catalogue *scopes.Catalogue, back time.Duration) (replayView, error) {
	v := replayView{Digest: catalogue.Digest(), Since: c.cfg.Now().Add(-back)}
	ctx, cancel := context.WithTimeout(ctx, replayTime)
	defer cancel()
	again, done := replay.New(catalogue), 0
	var err error
	v.Total, err = c.cfg.Past.Decisions(ctx, v.Since, func(rec replay.Recorded) bool {
		if done == mostReplayed {
			return false
		}
		done++
		again.Add(rec)
		v.Until = rec.Time
		return true
	})
	if err != nil && (ctx.Err() == nil || v.Total == 0) {
		return v, err
	}
	v.Cut, v.Report = int64(done) < v.Total, again.Report(mostGroups)
	v.Shifts = shiftsOf(v.Report.Counts)
	return v, nil
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
