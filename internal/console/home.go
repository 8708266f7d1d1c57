package console

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"golang.org/x/sync/errgroup"
)

const (
	// mostSummed is how many pending requests, and how many denials, the dashboard lists.
	mostSummed = 5
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
		reads.Go(func() (err error) {
			p.Approvals, err = c.sumApprovals(r, who)
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
	if c.changesCatalogue(who) == nil {
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

// sumApprovals counts the requests that wait for the visitor. A broken glass comes before older requests.
func (c *Console) sumApprovals(r *http.Request, who *visitor) (*approvalsSummary, error) {
	asks, more, err := c.waiting(r, who)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(asks, func(a, b ask) int {
		switch {
		case a.Broken == b.Broken:
			return a.Time.Compare(b.Time)
		case a.Broken:
			return -1
		}
		return 1
	})
	return &approvalsSummary{Count: len(asks), More: more, Oldest: asks[:min(len(asks), mostSummed)]}, nil
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
		s.Day = sumRates(rates)
		switch {
		case rates.From.IsZero():
			s.From = c.cfg.Now() // nothing is counted yet
		case rates.From.Sub(s.Since) > summedBy:
			s.From = rates.From
		}
		return err
	})
	reads.Go(func() error {
		found, err := c.cfg.Broker.List(ctx, broker.Query{Decision: "deny", Since: s.Since, Limit: mostSummed}, reach)
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

// sumRates adds up the steps of rates.
func sumRates(rates broker.Rates) broker.Rate {
	var sum broker.Rate
	for _, step := range rates.Steps {
		sum.Issued += step.Issued
		sum.Denied += step.Denied
		sum.Pending += step.Pending
		sum.Ended += step.Ended
	}
	return sum
}
