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
	"github.com/go-chi/chi/v5"
)

// A page of the catalogue lists at most this many scopes and policies. The search finds the others.
const (
	mostScopes   = 100
	mostPolicies = 50
)

var digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

func (c *Console) catalogueRoutes(mux chi.Router) {
	mux.Get("/catalogue", c.visit(c.catalogue))
	mux.Get("/catalogue/scopes/{name}", c.visit(c.scope))
	mux.Get("/catalogue/versions", c.visit(c.versions))
	mux.Get("/catalogue/diff", c.visit(c.diff))
}

// readsCatalogue returns nil if the visitor is auditor or admin in every trust domain. A catalogue concerns all of them, as
// at the API.
func (c *Console) readsCatalogue(who *visitor) error {
	return c.overAll(slices.Concat(who.Admin.TrustDomains, who.Auditor.TrustDomains))
}

// changesCatalogue returns nil if the visitor is admin in every trust domain.
func (c *Console) changesCatalogue(who *visitor) error { return c.overAll(who.Admin.TrustDomains) }

func (c *Console) overAll(domains []string) error {
	for _, domain := range c.cfg.TrustDomains {
		if !slices.Contains(domains, domain) {
			return errNotAllowed
		}
	}
	return nil
}

// mostShelved is how many parsed catalogues are cached. A miss costs only the time to parse.
const mostShelved = 4

// shelf caches the most recently loaded catalogues. The zero value is ready to use.
type shelf struct {
	mu sync.Mutex
	of []*shelved
}

// shelved is one parsed catalogue with its files.
type shelved struct {
	*scopes.Catalogue

	files  []scopes.File
	worded sync.Once
	in     map[string][]scopes.FieldChange
}

// fields returns the definition of a scope, field by field, in words.
func (s *shelved) fields(name string) []scopes.FieldChange {
	s.worded.Do(func() {
		s.in = map[string][]scopes.FieldChange{}
		for _, one := range scopes.Plan(nil, s.Catalogue).Scopes {
			s.in[one.Name] = one.Fields
		}
	})
	return s.in[name]
}

func (s *shelf) find(digest string) *shelved {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.of, func(one *shelved) bool { return one.Digest() == digest })
	if i < 0 {
		return nil
	}
	return s.of[i]
}

func (s *shelf) put(one *shelved) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of = append([]*shelved{one}, s.of...)[:min(len(s.of)+1, mostShelved)]
}

// catalogueOf returns a catalogue that was proposed or applied. If its files do not load, it returns them with the error of
// scopes.Load.
func (c *Console) catalogueOf(ctx context.Context, digest string) (*shelved, error) {
	if !digestForm.MatchString(digest) {
		return nil, broker.ErrNotFound
	}
	if one := c.catalogues.find(digest); one != nil {
		return one, nil
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
	c.catalogues.put(one)
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
	Changes                                       bool // whether the reader may change it
}

type authorityView struct {
	Authority scopes.Authority
	Scopes    []*scopes.Scope
}

// catalogue shows the scopes and policies in force.
func (c *Console) catalogue(r *http.Request, who *visitor) (view, error) {
	if err := c.readsCatalogue(who); err != nil {
		return view{}, err
	}
	head, catalogue, err := c.inForce(r.Context())
	if err != nil {
		return view{}, err
	}
	v := catalogueView{
		Head: head, Words: r.URL.Query().Get("q"), AllPolicies: len(catalogue.Policies()), Changes: c.changesCatalogue(who) == nil,
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
		case listed == mostScopes:
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
		case len(v.Policies) == mostPolicies:
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
	changes, err := c.cfg.Broker.CatalogueChanges(ctx, mostVersions)
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
	Fields   []scopes.FieldChange
	Policies []scopes.Policy
	More     int
	Scope    *scopes.Scope
}

// scope shows one scope in force.
func (c *Console) scope(r *http.Request, who *visitor) (view, error) {
	if err := c.readsCatalogue(who); err != nil {
		return view{}, err
	}
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
	if v.More = len(v.Policies) - mostPolicies; v.More > 0 {
		v.Policies = v.Policies[:mostPolicies]
	}
	return pageScope.view(name, v), nil
}

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
	Plan    scopes.Diff
	Summary scopes.DiffSummary
	// Vault lists the Vault policies that the new catalogue needs and the old one did not.
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

// Layout reports whether only comments and layout differ.
func (d diffView) Layout() bool { return d.Summary.Add+d.Summary.Change+d.Summary.Remove == 0 }

// Same reports whether the catalogues are identical.
func (d diffView) Same() bool { return len(d.Files) == 0 }

// reaches describes how a change affects access. It marks the changes to review closely.
var reaches = map[scopes.Reach]string{
	scopes.Widened: "widens reach", scopes.Narrowed: "narrows reach", scopes.Changed: "changes reach, review closely", scopes.Same: "",
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
