package console

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"golang.org/x/sync/errgroup"
)

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
func (c *Console) rates(w http.ResponseWriter, r *http.Request) {
	who, err := c.visitor(r)
	if errors.Is(err, errNobody) {
		toLogin(w, r)
		return
	}
	if err == nil && !who.Audits() {
		err = errNotAllowed
	}
	var found broker.Rates
	if err == nil {
		found, err = c.ratesOf(r.Context(), windowOf(r.URL.Query()), who.Auditor)
	}
	if err != nil {
		c.fail(w, r, who, err)
		return
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
}
