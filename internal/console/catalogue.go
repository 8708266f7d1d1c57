package console

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/aymanbagabas/go-udiff"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/brevet-dev/brevet/scopes/diff"
	"github.com/go-chi/chi/v5"
)

// A page of the catalogue lists at most this many scopes and policies. The search finds the others.
const (
	maxScopes   = 100
	maxPolicies = 50
)

var digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// readsCatalogue reports whether the visitor is auditor or admin in every trust domain. A catalogue concerns all of them, as at
// the API.
func (c *Console) readsCatalogue(who *visitor) bool {
	return c.overAll(slices.Concat(who.Admin.TrustDomains, who.Auditor.TrustDomains))
}

// changesCatalogue reports whether the visitor is admin in every trust domain.
func (c *Console) changesCatalogue(who *visitor) bool { return c.overAll(who.Admin.TrustDomains) }

// replays reports whether the visitor may replay: an admin who is also an auditor, because a replay reads decisions of all
// sandboxes.
func (c *Console) replays(who *visitor) bool {
	return c.overAll(who.Admin.TrustDomains) && c.overAll(who.Auditor.TrustDomains)
}

func (c *Console) overAll(domains []string) bool {
	return !slices.ContainsFunc(c.cfg.TrustDomains, func(domain string) bool { return !slices.Contains(domains, domain) })
}

// shelf caches the last four catalogues that were loaded. A miss costs only the time to parse. The zero value is ready to use.
type shelf struct {
	mu sync.Mutex
	of []*shelved
}

// shelved is one parsed catalogue with its files.
type shelved struct {
	*scopes.Catalogue

	files  []scopes.File
	worded sync.Once
	in     map[string][]diff.FieldChange
}

// fields returns the definition of a scope, field by field, in words.
func (s *shelved) fields(name string) []diff.FieldChange {
	s.worded.Do(func() {
		s.in = map[string][]diff.FieldChange{}
		for _, one := range diff.Compare(nil, s.Catalogue).Scopes {
			s.in[one.Name] = one.Fields
		}
	})
	return s.in[name]
}

// catalogueOf returns a catalogue that was proposed or applied. If its files do not load, it returns them with the error of
// scopes.Load.
func (c *Console) catalogueOf(ctx context.Context, digest string) (*shelved, error) {
	if !digestForm.MatchString(digest) {
		return nil, broker.ErrNotFound
	}
	c.catalogues.mu.Lock()
	known := c.catalogues.of // never modified, only replaced
	c.catalogues.mu.Unlock()
	if i := slices.IndexFunc(known, func(one *shelved) bool { return one.Digest() == digest }); i >= 0 {
		return known[i], nil
	}
	files, err := c.cfg.Broker.CatalogueFiles(ctx, digest)
	if err != nil {
		return nil, err
	}
	loaded, err := scopes.Load(files)
	if err != nil {
		return &shelved{files: files}, err
	}
	one := &shelved{Catalogue: loaded, files: files}
	c.catalogues.mu.Lock()
	defer c.catalogues.mu.Unlock()
	c.catalogues.of = append([]*shelved{one}, c.catalogues.of...)[:min(len(c.catalogues.of)+1, 4)]
	return one, nil
}

// inForce returns the catalogue in force. It asks the ledger only for the current version: the files come from the cache if
// possible.
func (c *Console) inForce(ctx context.Context) (broker.CatalogueVersion, *shelved, error) {
	head, err := c.cfg.Broker.CatalogueHead(ctx)
	if err != nil {
		return head, nil, err
	}
	one, err := c.catalogueOf(ctx, head.Digest)
	return head, one, err
}

// catalogueView shows the catalogue in force, or the part of it that matches the search words.
type catalogueView struct {
	Head        broker.CatalogueVersion
	Words       string
	Authorities []authorityView
	Policies    []scopes.Policy
	// Scopes and AllPolicies are totals. MoreScopes and MorePolicies count the matches that are not listed.
	Scopes, AllPolicies, MoreScopes, MorePolicies int
	Open                                          []broker.CatalogueChange
}

type authorityView struct {
	Authority scopes.Authority
	Scopes    []*scopes.Scope
}

// catalogue shows the scopes and policies in force.
func (c *Console) catalogue(r *http.Request, _ *visitor) (view, error) {
	head, catalogue, err := c.inForce(r.Context())
	if err != nil {
		return view{}, err
	}
	v := catalogueView{
		Head: head, Words: r.URL.Query().Get("q"), AllPolicies: len(catalogue.Policies()),
	}
	if v.Open, err = c.openProposals(r.Context(), head); err != nil {
		return view{}, err
	}
	v.list(catalogue.Catalogue)
	return pageCatalogue.view("Catalogue", v), nil
}

// list adds the matching scopes and policies, up to the limits of a page.
func (v *catalogueView) list(catalogue *scopes.Catalogue) {
	groups := map[scopes.Authority]*authorityView{}
	all := catalogue.Scopes()
	v.Scopes = len(all)
	listed := 0
	for _, s := range all {
		switch {
		case !hasWords(v.Words, s.Name, s.Title, string(s.Authority)):
			continue
		case listed == maxScopes:
			v.MoreScopes++
			continue
		case groups[s.Authority] == nil:
			groups[s.Authority] = &authorityView{Authority: s.Authority}
		}
		listed++
		groups[s.Authority].Scopes = append(groups[s.Authority].Scopes, s)
	}
	for _, g := range groups {
		v.Authorities = append(v.Authorities, *g)
	}
	slices.SortFunc(v.Authorities, func(a, b authorityView) int { return a.Authority.Rank() - b.Authority.Rank() })
	for _, id := range catalogue.Policies() {
		p, _ := catalogue.Policy(id)
		switch {
		case !hasWords(v.Words, p.ID, p.Text, p.File):
		case len(v.Policies) == maxPolicies:
			v.MorePolicies++
		default:
			v.Policies = append(v.Policies, p)
		}
	}
}

// hasWords reports whether every word occurs in at least one of the texts. Case does not matter.
func hasWords(words string, texts ...string) bool {
	all := strings.ToLower(strings.Join(texts, "\n"))
	for word := range strings.FieldsSeq(strings.ToLower(words)) {
		if !strings.Contains(all, word) {
			return false
		}
	}
	return true
}

// openProposals returns the proposals that wait for another admin.
func (c *Console) openProposals(ctx context.Context, head broker.CatalogueVersion) ([]broker.CatalogueChange, error) {
	changes, err := c.cfg.Broker.CatalogueChanges(ctx, maxVersions)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(changes, func(change broker.CatalogueChange) bool {
		return change.State != broker.CatalogueProposed || change.Version <= head.Version
	}), nil
}

// scopeView is one scope, and the policies that may apply to it.
type scopeView struct {
	Digest   string
	Fields   []diff.FieldChange
	Policies []scopes.Policy
	More     int
	Scope    *scopes.Scope
}

// scope shows one scope in force.
func (c *Console) scope(r *http.Request, _ *visitor) (view, error) {
	_, catalogue, err := c.inForce(r.Context())
	if err != nil {
		return view{}, err
	}
	name := chi.URLParam(r, "name")
	found, ok := catalogue.Scope(name)
	if !ok {
		return view{}, broker.ErrNotFound
	}
	v := scopeView{Digest: catalogue.Digest(), Fields: catalogue.fields(name), Policies: catalogue.PoliciesAbout(name), Scope: found}
	if v.More = len(v.Policies) - maxPolicies; v.More > 0 {
		v.Policies = v.Policies[:maxPolicies]
	}
	return pageScope.view(name, v), nil
}

const (
	// maxVersions is how many catalogue changes a page lists.
	maxVersions = 100
	// maxLines and maxDiff bound the file diffs on a page, in lines and in bytes.
	maxLines = 1000
	maxDiff  = 48 << 10
	// contextLines is the number of unchanged lines around a change.
	contextLines = 3
)

// versions lists the catalogue changes and their states.
func (c *Console) versions(r *http.Request, _ *visitor) (view, error) {
	changes, err := c.cfg.Broker.CatalogueChanges(r.Context(), maxVersions)
	return pageVersions.view("Catalogue versions", changes), err
}

// diff shows how two catalogues differ.
func (c *Console) diff(r *http.Request, _ *visitor) (view, error) {
	query := r.URL.Query()
	d, err := c.compare(r, query.Get("from"), query.Get("to"))
	return pageDiff.view("Catalogue diff", d), err
}

func (c *Console) compare(r *http.Request, from, to string) (diffView, error) {
	before, err := c.catalogueOf(r.Context(), from)
	if err != nil && !unreadable(err) {
		return diffView{}, err
	}
	after, problem := c.catalogueOf(r.Context(), to)
	if problem != nil && !unreadable(problem) {
		return diffView{}, problem
	}
	d := diffView{From: from, To: to, Unread: err != nil || problem != nil, Files: diffFiles(before.files, after.files)}
	if !d.Unread {
		d.plan(before.Catalogue, after.Catalogue)
	}
	return d, nil
}

// unreadable reports whether err means that this version of Brevet cannot load a catalogue.
func unreadable(err error) bool {
	_, ok := errors.AsType[scopes.Problems](err)
	return ok
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
	texts := map[string][2]string{}
	for _, f := range before {
		texts[f.Name] = [2]string{string(f.Data), ""}
	}
	for _, f := range after {
		texts[f.Name] = [2]string{texts[f.Name][0], string(f.Data)}
	}
	room := room{lines: maxLines, bytes: maxDiff}
	var all []fileDiff
	for _, name := range sortedKeys(texts) {
		if old, now := texts[name][0], texts[name][1]; old != now {
			all = append(all, room.diff(name, old, now))
		}
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
			sign := map[udiff.OpKind]string{udiff.Insert: "+", udiff.Delete: "-", udiff.Equal: " "}[line.Kind]
			f.Lines = append(f.Lines, diffLine{sign, strings.TrimRight(line.Content, "\r\n")})
		}
	}
	return f
}
