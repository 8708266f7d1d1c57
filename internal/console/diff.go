package console

import (
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/aymanbagabas/go-udiff"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/scopes"
)

const (
	// mostVersions is how many changes of the catalogue a page lists.
	mostVersions = 100
	// mostLines and mostDiff bound what a page shows of files that differ: in lines, and in bytes.
	mostLines = 1000
	mostDiff  = 48 << 10
	// contextLines are shown around what differs.
	contextLines = 3
)

// versions shows what became of catalogues.
func (c *Console) versions(r *http.Request, who *visitor) (view, error) {
	if err := c.readsCatalogue(who); err != nil {
		return view{}, err
	}
	changes, err := c.cfg.Broker.CatalogueChanges(r.Context(), mostVersions)
	if err != nil {
		return view{}, err
	}
	return view{page: "versions", title: "Catalogue versions", data: changes}, nil
}

// diff shows how two catalogues differ.
func (c *Console) diff(r *http.Request, who *visitor) (view, error) {
	if err := c.readsCatalogue(who); err != nil {
		return view{}, err
	}
	query := r.URL.Query()
	d, err := c.compare(r, query.Get("from"), query.Get("to"))
	return view{page: "diff", title: "Catalogue diff", data: d}, err
}

func (c *Console) compare(r *http.Request, from, to string) (diffView, error) {
	before, err := c.catalogueOf(r.Context(), from)
	unread := unreadable(err)
	if err != nil && !unread {
		return diffView{}, err
	}
	after, err := c.catalogueOf(r.Context(), to)
	if unreadable(err) {
		err, unread = nil, true
	}
	if err != nil {
		return diffView{}, err
	}
	d := diffView{From: from, To: to, Unread: unread, Files: diffFiles(before.files, after.files)}
	if !unread {
		d.plan(before.Catalogue, after.Catalogue)
	}
	return d, nil
}

// unreadable tells whether a catalogue of the past is none to this version.
func unreadable(err error) bool {
	var problems scopes.Problems
	return errors.As(err, &problems)
}

// diffView is how two catalogues differ: what that does, and the files.
type diffView struct {
	From, To string
	// Unread is set when this version cannot read one of them, so that only the files are shown.
	Unread  bool
	Plan    scopes.Diff
	Summary scopes.DiffSummary
	// Vault lists the policies that Vault needs for it and that the catalogue before did without.
	Vault []string
	Files []fileDiff
}

func (d *diffView) plan(before, after *scopes.Catalogue) {
	d.Plan = scopes.Plan(before, after)
	d.Summary = d.Plan.Summary()
	had := map[string]bool{}
	for _, p := range before.VaultPolicies() {
		had[p.Name] = true
	}
	for _, p := range after.VaultPolicies() {
		if !had[p.Name] {
			d.Vault = append(d.Vault, p.Name)
		}
	}
}

// Layout tells whether only comments and layout differ.
func (d diffView) Layout() bool { return d.Summary.Add+d.Summary.Change+d.Summary.Remove == 0 }

// Same tells whether nothing differs at all.
func (d diffView) Same() bool { return len(d.Files) == 0 }

// reaches say what a change does to what can be had. The ones to look at are marked.
var reaches = map[scopes.Reach]string{
	scopes.Widened: "widens reach", scopes.Narrowed: "narrows reach", scopes.Changed: "changes reach, review closely", scopes.Same: "",
}

// fileDiff is one file that differs.
type fileDiff struct {
	Name  string
	Lines []diffLine
	Cut   bool // there is more
}

// diffLine is one line of a file. Sign is +, - or a space, and @ where lines are left out.
type diffLine struct{ Sign, Text string }

// diffFiles compares files by their names.
func diffFiles(before, after []scopes.File) []fileDiff {
	old, now, names := map[string]string{}, map[string]string{}, map[string]bool{}
	for _, f := range before {
		old[f.Name], names[f.Name] = string(f.Data), true
	}
	for _, f := range after {
		now[f.Name], names[f.Name] = string(f.Data), true
	}
	room := room{lines: mostLines, bytes: mostDiff}
	var all []fileDiff
	for _, name := range sortedKeys(names) {
		if old[name] == now[name] {
			continue
		}
		all = append(all, room.diff(name, old[name], now[name]))
	}
	return all
}

// room is what a page still has for lines.
type room struct{ lines, bytes int }

func (o *room) diff(name, before, after string) fileDiff {
	f := fileDiff{Name: name}
	unified, err := udiff.ToUnifiedDiff(name, name, before, udiff.Strings(before, after), contextLines)
	if err != nil {
		f.Cut = true
		return f
	}
	for i, hunk := range unified.Hunks {
		if i > 0 || hunk.FromLine > 1 {
			f.Lines = append(f.Lines, diffLine{"@", "from line " + strconv.Itoa(hunk.ToLine)})
		}
		for _, line := range hunk.Lines {
			o.lines--
			o.bytes -= len(line.Content)
			if o.lines < 0 || o.bytes < 0 {
				f.Cut = true
				return f
			}
			f.Lines = append(f.Lines, diffLine{signOf(line.Kind), strings.TrimRight(line.Content, "\r\n")})
		}
	}
	return f
}

func signOf(kind udiff.OpKind) string {
	switch kind {
	case udiff.Insert:
		return "+"
	case udiff.Delete:
		return "-"
	case udiff.Equal:
		return " "
	}
	return " "
}

// textDiff compares two texts of one policy.
func textDiff(before, after string) fileDiff {
	room := room{lines: mostLines, bytes: mostDiff}
	return room.diff("", before, after)
}

// outcomes say what became of a change.
var outcomes = map[broker.CatalogueState]string{
	broker.CatalogueProposed: "pending: needs another admin", broker.CatalogueApplied: "applied", broker.CatalogueRejected: "rejected",
	broker.CatalogueSuperseded: "superseded by another change",
}
