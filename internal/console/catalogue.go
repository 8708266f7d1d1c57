package console

import (
	"context"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/brevet-dev/brevet/scopes/diff"
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
	Fields   []diff.FieldChange
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
