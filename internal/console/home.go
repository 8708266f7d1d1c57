package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"golang.org/x/sync/errgroup"
)

const (
	// maxSummed is how many pending requests, and how many denials, the dashboard lists.
	maxSummed = 5
	// summedOver is the period of the figures on the dashboard, in steps of summedBy.
	summedOver, summedBy = 24 * time.Hour, 30 * time.Minute
)

// homePage is the dashboard of one person. Each part is nil if the person lacks the role for it.
type homePage struct {
	Approvals *approvalsSummary // for approvers
	Record    *recordSummary    // for auditors
	Health    *systemView       // for auditors and admins
	// Proposals are catalogues that wait for another admin. They are for admins who may decide them.
	Proposals []broker.CatalogueChange
}

// approvalsSummary counts the requests that wait for one approver.
type approvalsSummary struct {
	Count  int
	More   bool  // more than Count wait
	Oldest []ask // the first ones, oldest first
}

// recordSummary sums up what an auditor may see.
type recordSummary struct {
	Live        broker.Group
	TooBroad    bool // there are too many live credentials to count
	Quarantines int
	Since       time.Time
	// Day counts the decisions and revocations since Since, 24 hours ago.
	Day broker.Rate
	// From is the time from which Day is complete, if this replica has not counted the whole day yet. It is zero otherwise.
	From    time.Time
	Denials []broker.View // the last ones, newest first
}

// home shows the dashboard. It reads the parts at the same time, and no part that the visitor may not see.
func (c *Console) home(r *http.Request, who *visitor) (view, error) {
	var p homePage
	reads, ctx := errgroup.WithContext(r.Context())
	if who.Approves() {
		reads.Go(func() error {
			asks, more, err := c.waiting(r, who)
			slices.SortStableFunc(asks, func(a, b ask) int { // a broken glass comes before older requests
				switch {
				case a.Broken == b.Broken:
					return a.Time.Compare(b.Time)
				case a.Broken:
					return -1
				}
				return 1
			})
			p.Approvals = &approvalsSummary{Count: len(asks), More: more, Oldest: asks[:min(len(asks), maxSummed)]}
			return err
		})
	}
	if who.Audits() {
		p.Record = &recordSummary{Since: c.cfg.Now().Add(-summedOver)}
		c.sumRecord(ctx, reads, who.Auditor, p.Record)
	}
	if who.Audits() || who.Administers() {
		reads.Go(func() error {
			health := c.health(ctx, who)
			p.Health = &health
			return nil
		})
	}
	if c.changesCatalogue(who) {
		reads.Go(func() error {
			head, err := c.cfg.Broker.CatalogueHead(ctx)
			if err == nil {
				p.Proposals, err = c.openProposals(ctx, head)
			}
			return err
		})
	}
	err := reads.Wait() // before p is copied
	return pageHome.view("Dashboard", p), err
}

// sumRecord fills in s. A search that takes too long leaves its part empty: the dashboard must not fail because of it.
func (c *Console) sumRecord(ctx context.Context, reads *errgroup.Group, reach broker.Reach, s *recordSummary) {
	reads.Go(func() error {
		counts, err := c.liveTotals.within(reach).read(ctx, c.cfg.Now, func(ctx context.Context) (broker.LiveCounts, error) {
			return c.cfg.Broker.LiveCounts(ctx, reach)
		})
		if errors.Is(err, broker.ErrTooBroad) {
			s.TooBroad, err = true, nil
		}
		s.Live = counts.Total
		return err
	})
	reads.Go(func() error {
		rates, err := c.cfg.Broker.Rates(ctx, s.Since, summedBy, reach)
		for _, step := range rates.Steps {
			s.Day.Issued += step.Issued
			s.Day.Denied += step.Denied
			s.Day.Pending += step.Pending
			s.Day.Ended += step.Ended
		}
		switch {
		case rates.From.IsZero():
			s.From = c.cfg.Now() // nothing is counted yet
		case rates.From.Sub(s.Since) > summedBy:
			s.From = rates.From
		}
		return err
	})
	reads.Go(func() error {
		found, err := c.cfg.Broker.List(ctx, broker.Query{Decision: "deny", Since: s.Since, Limit: maxSummed}, reach)
		if errors.Is(err, broker.ErrTooBroad) {
			err = nil
		}
		s.Denials = found.Records
		return err
	})
	reads.Go(func() error {
		all, err := c.cfg.Broker.Quarantines(ctx, reach)
		s.Quarantines = len(all)
		return err
	})
}

// lately caches the last answer of a slow call, including an error. All visitors within three seconds get the same answer.
// The zero value is ready to use.
type lately[T any] struct {
	mu    sync.Mutex
	asked time.Time
	value T
	err   error
}

// read returns the cached answer, or calls fetch if that is too old. The call continues if the caller disconnects, because
// other callers wait for it.
func (l *lately[T]) read(ctx context.Context, now func() time.Time, fetch func(context.Context) (T, error)) (T, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if since := now().Sub(l.asked); since < 0 || since >= 3*time.Second {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), healthTimeout)
		defer cancel()
		l.value, l.err = fetch(ctx)
		l.asked = now()
	}
	return l.value, l.err
}

// liveTotals caches live counts by reach: the dashboards of many people refresh by themselves. The zero value is ready to use.
type liveTotals struct {
	mu sync.Mutex
	of map[string]*lately[broker.LiveCounts]
}

// within returns the cache of one reach. It remembers 64.
func (l *liveTotals) within(reach broker.Reach) *lately[broker.LiveCounts] {
	key := fmt.Sprintf("%#v", reach)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of[key] == nil {
		if l.of == nil || len(l.of) >= 64 {
			l.of = map[string]*lately[broker.LiveCounts]{}
		}
		l.of[key] = &lately[broker.LiveCounts]{}
	}
	return l.of[key]
}

// livePage shows the live credentials, the recent rates and the quarantines.
type livePage struct {
	broker.LiveCounts

	TooBroad    bool
	Window      string
	Rates       []broker.Rate // newest first
	Step        time.Duration
	Quarantines []broker.Quarantine
}

// live counts the live credentials. A script reloads the page every few seconds while it is visible.
func (c *Console) live(r *http.Request, who *visitor) (view, error) {
	p := livePage{Window: windowOf(r.URL.Query())}
	reads, ctx := errgroup.WithContext(r.Context())
	reads.Go(func() (err error) {
		if p.LiveCounts, err = c.cfg.Broker.LiveCounts(ctx, who.Auditor); errors.Is(err, broker.ErrTooBroad) {
			p.TooBroad, err = true, nil
		}
		return err
	})
	reads.Go(func() error {
		found, err := c.ratesOf(ctx, p.Window, who.Auditor)
		p.Rates, p.Step = slices.Clone(found.Steps), found.Step
		slices.Reverse(p.Rates)
		return err
	})
	reads.Go(func() (err error) {
		p.Quarantines, err = c.cfg.Broker.Quarantines(ctx, who.Auditor)
		return err
	})
	return pageLive.view("Live credentials", &p), reads.Wait()
}

// windowOf returns the period of the rates: "hour", or "day" if the address says so.
func windowOf(values url.Values) string {
	if values.Get("window") == "day" {
		return "day"
	}
	return "hour"
}

func (c *Console) ratesOf(ctx context.Context, window string, reach broker.Reach) (broker.Rates, error) {
	if window == "day" {
		return c.cfg.Broker.Rates(ctx, c.cfg.Now().Add(-24*time.Hour), 30*time.Minute, reach)
	}
	return c.cfg.Broker.Rates(ctx, c.cfg.Now().Add(-time.Hour), time.Minute, reach)
}

// rates returns the data for the chart of the live page, column by column.
func (c *Console) rates(w http.ResponseWriter, r *http.Request, who *visitor) error {
	found, err := c.ratesOf(r.Context(), windowOf(r.URL.Query()), who.Auditor)
	if err != nil {
		return err
	}
	out := map[string][]int64{"times": {}, "issued": {}, "denied": {}, "pending": {}, "ended": {}}
	for _, step := range found.Steps {
		for name, n := range map[string]int64{
			"times": step.Start.Unix(), "issued": step.Issued, "denied": step.Denied, "pending": step.Pending, "ended": step.Ended,
		} {
			out[name] = append(out[name], n)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out) // the client may have disconnected
	return nil
}

// profile is the visitor's own identity and roles.
type profile struct {
	Name, ID     string
	Groups       []string
	Began, Ends  time.Time     // of the session
	Idle, Recent time.Duration // how long it lasts without activity, and how long after a login a change is possible
	Roles        []role
}

// role is the name of a role, and where the person holds it.
type role struct {
	Name  string
	Where []string
}

func roleOf(name string, reach broker.Reach) role {
	o := role{Name: name}
	for _, domain := range reach.TrustDomains {
		o.Where = append(o.Where, "spiffe://"+domain)
	}
	o.Where = append(o.Where, reach.Within...)
	return o
}

// you shows the visitor's own profile.
func (c *Console) you(_ *http.Request, who *visitor) (view, error) {
	return pageYou.view("Profile", profile{
		Name: who.Name(), ID: who.ID(), Groups: who.Groups(), Began: who.Began, Ends: who.Ends, Idle: c.cfg.SessionIdle, Recent: c.cfg.LoginMaxAge,
		Roles: []role{roleOf("Approver", who.Approver), roleOf("Auditor", who.Auditor), roleOf("Admin", who.Admin)},
	}), nil
}
