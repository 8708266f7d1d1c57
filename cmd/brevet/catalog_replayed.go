package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/scopes"
)

// shifts are in the order in which people should review them. Those that give more access come first.
var shifts = []struct {
	shift         scopes.Shift
	name, meaning string
}{
	{scopes.NewlyAllowed, "newly allowed", "were denied; would be allowed"},
	{scopes.NewlyUngated, "newly ungated", "required approval; would be allowed without it"},
	{scopes.NewlyAskable, "newly askable", "were denied; people could approve them"},
	{scopes.NowLonger, "now longer", "same decision with a longer TTL"},
	{scopes.NewlyDenied, "newly denied", "were allowed or required approval; would be denied"},
	{scopes.NewlyGated, "newly gated", "were allowed; would require approval"},
	{scopes.NowShorter, "now shorter", "same decision with a shorter TTL"},
	{scopes.Undecidable, "undecidable", "would be invalid: the draft rejects their parameters"},
	{scopes.NotByPolicies, "not by policies", "were denied by a limit, a quarantine or the end of a task; would still be denied"},
	{scopes.Unchanged, "unchanged", "same decision"},
}

const replayCaveat = `A change is a recorded request that the draft would have decided differently at that time. The replay cannot know what a
sandbox would have done after a different decision, or which requests would have followed. It takes limits, quarantines
and ends of tasks as recorded. A request that people approved counts once, as a request that required approval.`

type replayReport struct {
	Changes bool      `json:"changes"`
	Since   time.Time `json:"since"`
	scopes.Replay
}

// changed returns how many decisions would change.
func (r replayReport) changed() int64 {
	return r.Decisions - r.Counts[scopes.Unchanged] - r.Counts[scopes.NotByPolicies]
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
		groups   []scopes.ReplayGroup
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

func printShifts(out io.Writer, counts map[scopes.Shift]int64) error {
	table := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	for _, s := range shifts {
		if n := counts[s.shift]; n > 0 {
			fmt.Fprintf(table, "  %s\t%d\t%s\n", s.name, n, s.meaning)
		}
	}
	return table.Flush()
}

func printGroups(out io.Writer, groups []scopes.ReplayGroup) error {
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
