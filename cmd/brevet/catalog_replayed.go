package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/scopes/replay"
)

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
	since := r.Since.Local().Format(time.DateTime)
	if r.Decisions == 0 {
		_, err := fmt.Fprintf(con.out, "No decisions since %s.\n", since)
		return err
	}
	fmt.Fprintln(con.out, bold(con.out, fmt.Sprintf("%d of %d decisions since %s would change.", r.changed(), r.Decisions, since)))
	fmt.Fprintln(con.out)
	if err := printShifts(con.out, r.Counts); err != nil {
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

func printShifts(out io.Writer, counts map[replay.Shift]int64) error {
	table := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	for _, s := range shifts {
		if n := counts[s.shift]; n > 0 {
			fmt.Fprintf(table, "  %s\t%d\t%s\n", s.name, n, s.meaning)
		}
	}
	return table.Flush()
}

func printGroups(out io.Writer, groups []replay.Group) error {
	for _, g := range groups {
		fmt.Fprintf(out, "  %s\n", strings.TrimSpace(safetext.Text(g.SPIFFEID)+" "+safetext.Text(g.Scope)))
		table := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
		for _, s := range shifts {
			if n := g.Counts[s.shift]; n > 0 {
				fmt.Fprintf(table, "    %s\t%d\tsuch as %s\n", s.name, n, safetext.Text(strings.Join(g.Samples[s.shift], ", ")))
			}
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	return nil
}
