package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/brevet-dev/brevet/scopes/replay"
	"golang.org/x/sync/errgroup"
)

// maxReaders limits the connections to the database, which also serves other work.
const maxReaders = 8

// CatalogReplayCmd is `brevet catalog replay`.
type CatalogReplayCmd struct {
	Folder          string   `arg:"" help:"Folder with the new .yaml and .cedar files." type:"path"`
	Since           lookback `help:"Period to replay, such as 7d or 24h." default:"7d"`
	DatabaseURLFile string   `help:"File with the URL of an auditor's read-only connection." required:"" type:"path"`
	Top             int      `help:"Number of scopes and of sandboxes to list, in order of most changes." default:"20"`
	Detailed        bool     `help:"Exit with 2 if a decision would change." name:"detailed-exitcode"`
	NetworkFlag
}

// lookback is a period before now, which may be written in days.
type lookback time.Duration

// UnmarshalText accepts days (7d) and Go durations (24h, 90m). The duration must be positive.
func (l *lookback) UnmarshalText(text []byte) error {
	period := string(text)
	if days, ok := strings.CutSuffix(period, "d"); ok {
		n, _ := strconv.ParseInt(days, 10, 32) // 0 if it is not a number
		period = fmt.Sprint(24*n, "h")
	}
	d, err := time.ParseDuration(period)
	if err != nil || d <= 0 {
		return errors.New("must be a duration such as 7d or 24h")
	}
	*l = lookback(d)
	return nil
}

// Run decides recorded requests again with the catalogue in the folder.
func (c *CatalogReplayCmd) Run(ctx context.Context, con *console) error {
	if c.Top < 0 {
		return errors.New("--top: must be at least 0")
	}
	draft, err := loadFolder(c.Folder)
	if err != nil {
		return err
	}
	db, err := c.read(con, c.DatabaseURLFile)
	if err != nil {
		return err
	}
	since := time.Now().Add(-time.Duration(c.Since))
	replayed, err := decideAgain(ctx, newProgress(con.err), draft, db, since)
	if err != nil {
		return fmt.Errorf("replaying decisions: %w", err)
	}
	report := replayReport{Since: since.UTC().Truncate(time.Second), Report: replayed.Report(c.Top)}
	report.Changes = report.changed() > 0
	if err := printReplay(con, report); err != nil {
		return err
	}
	if c.Detailed && report.Changes {
		return exitError{err: errors.New("decisions would change"), code: exitChanges}
	}
	return nil
}

// decideAgain decides all recorded requests again, in parallel with up to maxReaders readers.
func decideAgain(ctx context.Context, p *progress, draft *scopes.Catalogue, db database, since time.Time) (*replay.Replayer, error) {
	var at replayProgress
	stop := p.follow(at.line)
	defer stop()
	readers := min(runtime.GOMAXPROCS(0), maxReaders)
	history, err := ledger.OpenHistory(ctx, db.url, since, readers, db.options...)
	if err != nil {
		return nil, err
	}
	defer history.Close()
	at.begin(history.Total())
	all := make([]*replay.Replayer, readers)
	group, ctx := errgroup.WithContext(ctx)
	for i := range all {
		all[i] = replay.New(draft)
		group.Go(func() error {
			return history.Read(ctx, func(rec replay.Recorded) {
				all[i].Add(rec)
				at.done.Add(1)
			})
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	for _, other := range all[1:] {
		all[0].Merge(other)
	}
	return all[0], nil
}

// replayProgress is the progress of a replay.
type replayProgress struct {
	counter
	began atomic.Int64 // in Unix nanoseconds, or 0 while the decisions are counted
}

func (r *replayProgress) begin(decisions int64) {
	r.of.Store(decisions)
	r.began.Store(time.Now().UnixNano())
}

func (r *replayProgress) line() string {
	began, done, of := r.began.Load(), r.done.Load(), r.of.Load()
	if began == 0 {
		return "counting recorded decisions"
	}
	line := fmt.Sprintf("replayed %d of %d decisions (%d%%)", done, of, 100*done/max(1, of))
	if done > 0 {
		left := float64(time.Now().UnixNano()-began) / float64(done) * float64(of-done)
		line += fmt.Sprintf(", about %s left", spell(time.Duration(left).Round(time.Second)))
	}
	return line
}

// shifts are in the order in which people should review them. Those that give more access come first.
var shifts = []struct {
	shift         replay.Shift
	name, meaning string
}{
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

const replayCaveat = `A change is a recorded request with a different outcome. The replay does not model how a sandbox would have reacted.
Limits, quarantines and ended tasks are taken as recorded. A request that was approved counts once, as pending approval.`

type replayReport struct {
	Changes bool      `json:"changes"`
	Since   time.Time `json:"since"`
	replay.Report
}

// changed returns how many decisions would change.
func (r replayReport) changed() int64 {
	return r.Decisions - r.Counts[replay.Unchanged] - r.Counts[replay.NotByPolicies]
}

func printReplay(con *console, r replayReport) error {
	if con.json {
		return con.encode(r)
	}
	since := dateTime(r.Since)
	if r.Decisions == 0 {
		_, err := fmt.Fprintf(con.out, "No decisions since %s.\n", since)
		return err
	}
	fmt.Fprintln(con.out, bold(con.out, fmt.Sprintf("%d of %d decisions since %s would change.", r.changed(), r.Decisions, since)))
	fmt.Fprintln(con.out)
	t := newTable(con.out, "")
	for _, s := range shifts {
		if n := r.Counts[s.shift]; n > 0 {
			t.row("  "+s.name, n, s.meaning)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if !r.Changes {
		return nil
	}
	for _, part := range []struct {
		title    string
		groups   []replay.Group
		unlisted int64
	}{
		{"By scope", r.Scopes, r.Unlisted.Scopes},
		{"By sandbox and scope", r.Sandboxes, r.Unlisted.Sandboxes},
	} {
		fmt.Fprintf(con.out, "\n%s\n", bold(con.out, part.title))
		if err := printGroups(con.out, part.groups); err != nil {
			return err
		}
		if part.unlisted > 0 {
			fmt.Fprintf(con.out, "  %s not listed; raise --top to list more\n", plural(part.unlisted, "more change", "more changes"))
		}
	}
	if r.AtLeast {
		fmt.Fprintln(con.out, "\nThere are too many groups to count exactly: the listed counts are lower bounds.")
	}
	_, err := fmt.Fprintf(con.out, "\n%s\n%s\n", replayCaveat, r.Catalogue)
	return err
}

func printGroups(out io.Writer, groups []replay.Group) error {
	for _, g := range groups {
		fmt.Fprintf(out, "  %s\n", strings.TrimSpace(safetext.Text(g.SPIFFEID)+" "+safetext.Text(g.Scope)))
		t := newTable(out, "")
		for _, s := range shifts {
			if n := g.Counts[s.shift]; n > 0 {
				t.row("    "+s.name, n, "such as "+strings.Join(g.Samples[s.shift], ", "))
			}
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return nil
}
