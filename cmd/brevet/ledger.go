package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/internal/ledger/retention"
)

// LedgerCmd is `brevet ledger`.
type LedgerCmd struct {
	Prune LedgerPruneCmd `cmd:"" help:"Drop entries older than a date, as the owner of the database. The remaining log still verifies."`
}

// LedgerPruneCmd is `brevet ledger prune`.
type LedgerPruneCmd struct {
	DatabaseFlag
	Before time.Time `help:"Date, such as 2026-01-01; entries from this date on are kept." format:"2006-01-02" required:""`
	DryRun bool      `help:"Show what would be dropped, without dropping it."`
}

// pruneReport says which old partitions were dropped, or would be.
type pruneReport struct {
	DryRun  bool                  `json:"dry_run"`
	Dropped []retention.Dropped   `json:"dropped"`
	Would   []retention.Partition `json:"would_drop"`
	// Stays is the first partition that is not dropped.
	Stays *retention.Partition `json:"stays"`
}

// Run drops the old partitions one by one, each as a whole, and says which one stays and why.
func (c *LedgerPruneCmd) Run(ctx context.Context, con *console) error {
	if c.Before.After(time.Now()) {
		return errors.New("--before: must be a date in the past")
	}
	db, err := c.database(con)
	if err != nil {
		return err
	}
	r, err := retention.Open(ctx, db.url, db.options...)
	if errors.Is(err, retention.ErrNotOwner) {
		err = fmt.Errorf("%w: use the URL of the owner, as for brevet migrate", err)
	}
	if err != nil {
		return fmt.Errorf("--database-url-file: %w", err)
	}
	defer r.Close(context.WithoutCancel(ctx))
	report, err := c.prune(ctx, con, r)
	if con.json {
		return errors.Join(con.encode(report), err)
	}
	t := newTable(con.out, "ENTRIES\tRESULT")
	for _, d := range report.Dropped {
		t.row(fmt.Sprintf("%d to %d", d.First, d.Beyond-1),
			fmt.Sprintf("dropped %d; %d entries remain up to here; recorded in entry %d", d.Entries, d.Left, d.Index))
	}
	for _, p := range report.Would {
		t.row(fmt.Sprintf("%d to %d", p.First, p.Beyond-1), "would be dropped")
	}
	if p := report.Stays; p != nil {
		t.row(fmt.Sprintf("%d to %d", p.First, p.Beyond-1), "kept: "+p.Stays)
	}
	return errors.Join(t.Flush(), err)
}

func (c *LedgerPruneCmd) prune(ctx context.Context, con *console, r *retention.Pruner) (pruneReport, error) {
	report := pruneReport{DryRun: c.DryRun, Dropped: []retention.Dropped{}, Would: []retention.Partition{}}
	var doing atomic.Pointer[string]
	says := func(line string) { doing.Store(&line) }
	says("checking old entries")
	stop := newProgress(con.err).follow(func() string { return *doing.Load() })
	defer stop()
	old, err := r.Old(ctx, c.Before)
	if err != nil {
		return report, err
	}
	for _, p := range old {
		switch {
		case p.Stays != "":
			report.Stays = &p
		case c.DryRun:
			report.Would = append(report.Would, p)
		default:
			done, err := r.Drop(ctx, p, c.Before, says)
			if err != nil {
				return report, err
			}
			report.Dropped = append(report.Dropped, done)
		}
	}
	return report, nil
}
