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
	{scopes.NewlyAllowed, "newly allowed", "were denied, and would be allowed"},
	{scopes.NewlyUngated, "newly ungated", "waited for a person, and would be allowed without one"},
	{scopes.NewlyAskable, "newly askable", "were denied, and a person could approve them"},
	{scopes.NowLonger, "now longer", "would be as before, for a longer time"},
	{scopes.NewlyDenied, "newly denied", "were allowed, or waited for a person, and would be denied"},
	{scopes.NewlyGated, "newly gated", "were allowed, and a person would have to approve them"},
	{scopes.NowShorter, "now shorter", "would be as before, for a shorter time"},
	{scopes.Undecidable, "undecidable", "would not be asks any more: the draft refuses their parameters"},
	{scopes.NotByPolicies, "not by policies", "were denied by a limit, a quarantine or the end of a task; would be again"},
	{scopes.Unchanged, "unchanged", "would be answered as before"},
}

const replayCaveat = `A change is an ask on the record that the draft would have answered otherwise, then. What a sandbox would have done with
that answer, and what it would have asked next, is not known. Limits, quarantines and ends of tasks are taken as they
were. An ask that people approved counts once, as one that waited.`

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
	bold := func(text string) string {
		if !colourful(con.out) {
			return text
		}
		return "\x1b[1m" + text + "\x1b[0m"
	}
	fmt.Fprintln(con.out, bold(fmt.Sprintf("%d of %d decisions since %s would change.", r.changed(), r.Decisions, since)))
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
		fmt.Fprintf(con.out, "\n%s\n", bold(part.title))
		if err := printGroups(con.out, part.groups); err != nil {
			return err
		}
		if part.unlisted > 0 {
			fmt.Fprintf(con.out, "  %d more changes are not listed; --top=N lists more\n", part.unlisted)
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
