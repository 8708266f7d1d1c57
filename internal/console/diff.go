package console

import (
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/aymanbagabas/go-udiff"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/brevet-dev/brevet/scopes/diff"
)

const (
	// mostVersions is how many catalogue changes a page lists.
	mostVersions = 100
	// mostLines and mostDiff bound the file diffs on a page, in lines and in bytes.
	mostLines = 1000
	mostDiff  = 48 << 10
	// contextLines is the number of unchanged lines around a change.
	contextLines = 3
)

// versions lists the catalogue changes and their states.
func (c *Console) versions(r *http.Request, who *visitor) (view, error) {
	if err := c.readsCatalogue(who); err != nil {
		return view{}, err
	}
	changes, err := c.cfg.Broker.CatalogueChanges(r.Context(), mostVersions)
	if err != nil {
		return view{}, err
	}
	return pageVersions.view("Catalogue versions", changes), nil
}

// diff shows how two catalogues differ.
func (c *Console) diff(r *http.Request, who *visitor) (view, error) {
	if err := c.readsCatalogue(who); err != nil {
		return view{}, err
	}
	query := r.URL.Query()
	d, err := c.compare(r, query.Get("from"), query.Get("to"))
	return pageDiff.view("Catalogue diff", d), err
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

// unreadable reports whether err means that this version of Brevet cannot load a catalogue.
func unreadable(err error) bool {
	var problems scopes.Problems
	return errors.As(err, &problems)
}

// diffView shows how two catalogues differ: the effect of the change, and the files.
type diffView struct {
	From, To string
	// Unread is set if this version of Brevet cannot load one of the catalogues. Then only the files are compared.
	Unread  bool
	Plan    diff.Diff
	Summary diff.Summary
	// Vault lists the Vault policies that the new catalogue needs and the old one did not.
	Vault []string
	Files []fileDiff
}

func (d *diffView) plan(before, after *scopes.Catalogue) {
	d.Plan = diff.Compare(before, after)
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

// Layout reports whether only comments and layout differ.
func (d diffView) Layout() bool { return d.Summary.Add+d.Summary.Change+d.Summary.Remove == 0 }

// Same reports whether the catalogues are identical.
func (d diffView) Same() bool { return len(d.Files) == 0 }

// reaches describes how a change affects access. It marks the changes to review closely.
var reaches = map[diff.Reach]string{
	diff.Widened: "widens reach", diff.Narrowed: "narrows reach", diff.Changed: "changes reach, review closely", diff.Same: "",
}

// fileDiff is one file that differs.
type fileDiff struct {
	Name  string
	Lines []diffLine
	Cut   bool // more lines follow
}

// diffLine is one line of a diff. Sign is "+", "-" or a space, or "@" where lines are left out.
type diffLine struct{ Sign, Text string }

// diffFiles compares files with the same name.
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

// room is the number of lines and bytes that a page has left for diffs.
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

// textDiff compares two versions of one policy.
func textDiff(before, after string) fileDiff {
	room := room{lines: mostLines, bytes: mostDiff}
	return room.diff("", before, after)
}
