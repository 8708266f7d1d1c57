package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// report holds the results of a run.
type report struct {
	Connections int
	// Introspect is a gateway's introspection, Revoke a revocation, and BusyRevoke a revocation while gateways introspect.
	Introspect, Revoke, BusyRevoke figures
	// Memory is the broker's peak memory, in bytes.
	Memory int64
	// Between is the number of issues and logins between the two comparisons of tokens.
	Between map[string]int

	// atFirst holds the loads of tokens on fresh servers, and loads holds all later ones.
	atFirst, loads map[string][]load
}

// These are the names for one caller's issues, and for issues at half of the highest rate.
const alone, half = "issue, one caller", "issue, half load"

// figures are the figures of one load. Times are in microseconds.
type figures struct {
	Rate      float64          `json:"rate"`
	P50       int64            `json:"p50_us"`
	P99       int64            `json:"p99_us"`
	P999      int64            `json:"p999_us"`
	Failed    int              `json:"failed"`
	Processor map[string]int64 `json:"processor_us"`
}

func figuresOf(l load) figures {
	f := figures{
		Rate: l.rate(), P50: l.at(0.5).Microseconds(), P99: l.at(0.99).Microseconds(), P999: l.at(0.999).Microseconds(),
		Failed: l.failed, Processor: map[string]int64{},
	}
	for _, part := range parts {
		f.Processor[part] = l.each(part).Microseconds()
	}
	return f
}

// Targets that are compared run in turn. Database logins come last: what is compared with a login at Vault, which creates
// three files, must not depend on the files that database logins leave, or on the deletion of those files.
var (
	tokens = []string{"issue", "login", "issue-eddsa", "issue-jwt", "sign"}
	logins = []string{"dynamic-long", "dynamic", "creds"}
)

// ratio returns the ratios of the rates of two targets, one for each round, sorted.
func ratio(loads map[string][]load, ours, theirs string) []float64 {
	return ratioOf(loads, load.rate, ours, theirs)
}

func ratioOf(loads map[string][]load, figure func(load) float64, ours, theirs string) []float64 {
	var all []float64
	for i, l := range loads[ours] {
		all = append(all, figure(l)/figure(loads[theirs][i]))
	}
	slices.Sort(all)
	return all
}

func p99(l load) float64 { return float64(l.at(0.99)) }

var ratios = [][2]string{{"issue", "login"}, {"issue-eddsa", "login"}, {"issue-jwt", "login"}, {"issue", "sign"}, {"dynamic", "creds"}, {"dynamic-long", "creds"}}

// print writes the table, the servers' processor time, and the ratios as the last line.
func (r *report) print(out io.Writer) {
	table := newTable(out)
	for _, name := range tokens {
		r.row(table, name+", at first", figuresOf(median(r.atFirst, name)))
	}
	for _, name := range slices.Concat(tokens, []string{alone, half}, logins) {
		r.row(table, name, figuresOf(median(r.loads, name)))
	}
	r.row(table, "introspect", r.Introspect)
	r.row(table, "revoke, one caller", r.Revoke)
	r.row(table, "revoke, while all introspect", r.BusyRevoke)
	_ = table.Flush()
	slower := ratioOf(r.loads, p99, half, alone)
	fmt.Fprintf(out, "the broker held %d MiB at most; p99 at half load is %.1f times that of one caller (%.1f to %.1f)\n",
		r.Memory>>20, slower[len(slower)/2], slower[0], slower[len(slower)-1])
	r.ratios(out, r.atFirst, ", at first")
	fmt.Fprintf(out, "and when %d more were issued and %d logins made:\n", r.Between["issue"], r.Between["login"])
	r.ratios(out, r.loads, "")
	processorLine(out, r.loads, "issue", "login", "dynamic-long", "dynamic", "creds", "issue-eddsa")
	middle := func(ours, theirs string) float64 { all := ratio(r.loads, ours, theirs); return all[len(all)/2] }
	fmt.Fprintf(out, "ratio issue/login=%.2f issue/sign=%.2f dynamic/creds=%.2f issue-eddsa/login=%.2f\n",
		middle("issue", "login"), middle("issue", "sign"), middle("dynamic", "creds"), middle("issue-eddsa", "login"))
}

// printLogins writes what concerns database logins.
func (r *report) printLogins(out io.Writer) {
	table := newTable(out)
	for _, name := range logins {
		r.row(table, name, figuresOf(median(r.loads, name)))
	}
	_ = table.Flush()
	r.ratios(out, r.loads, "")
	processorLine(out, r.loads, logins...)
}

// processorLine writes the servers' processor time for each success, in microseconds: of all servers together, and in brackets of each.
// Other load on the machine changes it less than it changes rates.
func processorLine(out io.Writer, loads map[string][]load, names ...string) {
	fmt.Fprint(out, "cpu")
	for _, name := range names {
		var each []string
		for _, part := range serverParts {
			if us := middle(loads[name], func(l load) int64 { return l.each(part).Microseconds() }); us > 0 {
				each = append(each, fmt.Sprintf("%s:%d", part, us))
			}
		}
		fmt.Fprintf(out, " %s=%d(%s)", name, middle(loads[name], onServers), strings.Join(each, ","))
	}
	fmt.Fprintln(out)
}

// onServers returns the processor time of all servers for each success of a load, in microseconds.
func onServers(l load) (us int64) {
	for _, part := range serverParts {
		us += l.each(part).Microseconds()
	}
	return us
}

// newTable returns a table with its heading.
func newTable(out io.Writer) *tabwriter.Writer {
	table := tabwriter.NewWriter(out, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "asked for\t/s\tp50\tp99\tp99.9\tfailed\tµs each:")
	for _, part := range parts {
		fmt.Fprintf(table, "\t%s", part)
	}
	fmt.Fprintln(table, "\t")
	return table
}

// ratios writes the ratios of the targets that these loads contain.
func (r *report) ratios(out io.Writer, loads map[string][]load, when string) {
	for _, pair := range ratios {
		if all := ratio(loads, pair[0], pair[1]); len(all) > 0 {
			fmt.Fprintf(out, "%s/%s%s, in %d rounds: %.2f at least, %.2f median, %.2f at most\n",
				pair[0], pair[1], when, len(all), all[0], all[len(all)/2], all[len(all)-1])
		}
	}
}

func (r *report) row(out io.Writer, name string, f figures) {
	fmt.Fprintf(out, "%s\t%.0f\t%s\t%s\t%s\t%d\t", name, f.Rate, shown(f.P50), shown(f.P99), shown(f.P999), f.Failed)
	for _, part := range parts {
		fmt.Fprintf(out, "\t%d", f.Processor[part])
	}
	fmt.Fprintln(out, "\t")
}

// shown converts microseconds to a rounded duration.
func shown(us int64) time.Duration {
	return (time.Duration(us) * time.Microsecond).Round(10 * time.Microsecond)
}

// median returns the round of a target with the median rate. For the half load, whose rate is fixed, it uses p99.
func median(loads map[string][]load, name string) load {
	figure := load.rate
	if name == half {
		figure = p99
	}
	all := slices.SortedFunc(slices.Values(loads[name]), func(a, b load) int { return cmp.Compare(figure(a), figure(b)) })
	return all[len(all)/2]
}

// all returns the data to save: every round of every target.
func (r *report) all() map[string]any {
	rounds := func(of map[string][]load) map[string][]figures {
		all := map[string][]figures{}
		for name, loads := range of {
			for _, l := range loads {
				all[name] = append(all[name], figuresOf(l))
			}
		}
		return all
	}
	of := map[string][]float64{}
	for _, pair := range ratios {
		of[pair[0]+"/"+pair[1]] = ratio(r.loads, pair[0], pair[1])
	}
	return map[string]any{
		"connections": r.Connections, "at_first": rounds(r.atFirst), "between": r.Between, "rounds": rounds(r.loads), "ratios": of,
		"introspect": r.Introspect, "revoke": r.Revoke, "busy_revoke": r.BusyRevoke, "memory_bytes": r.Memory,
	}
}
