package console

import (
	"context"
	"errors"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/go-chi/chi/v5"
)

const (
	// maxProblems is how many problems of a draft a page lists.
	maxProblems = 100
	// maxEdited is the largest file that can be edited in a page, in bytes.
	maxEdited = 100 << 10
	// wordToApply is the word that an admin types to confirm a change of the catalogue.
	wordToApply = "apply"
)

// draft is a proposed catalogue: the files of the base catalogue with some files changed and some removed. Pages carry only
// the differences.
type draft struct {
	Base    string
	Changed []draftFile
	Gone    []string
	files   []scopes.File
}

type draftFile struct{ Name, Text string }

// editView is the form in which a draft starts.
type editView struct {
	Base     string
	Names    []string
	Editing  string
	Text     string
	TooLarge bool
}

// draft shows the form in which a draft starts.
func (c *Console) draft(r *http.Request, _ *visitor) (view, error) {
	head, files, err := c.cfg.Broker.CatalogueInForce(r.Context())
	if err != nil {
		return view{}, err
	}
	v := editView{Base: head.Digest, Editing: r.URL.Query().Get("file")}
	for _, f := range files {
		v.Names = append(v.Names, f.Name)
		if f.Name != v.Editing {
			continue
		}
		if v.TooLarge = len(f.Data) > maxEdited; !v.TooLarge {
			v.Text = string(f.Data)
		}
	}
	return pageDraft.view("Catalogue draft", v), nil
}

// readDraft reads a draft from a form: its base, and the files that are changed, added or removed.
func (c *Console) readDraft(r *http.Request) (draft, error) {
	d := draft{Base: r.PostFormValue("base"), Gone: r.PostForm["gone"]}
	if !digestForm.MatchString(d.Base) {
		return d, errNoDraft
	}
	before, err := c.cfg.Broker.CatalogueFiles(r.Context(), d.Base)
	if err != nil {
		return d, err
	}
	uploaded, err := uploads(r, before)
	if err != nil {
		return d, err
	}
	names, texts := r.PostForm["name"], r.PostForm["text"]
	if len(names) != len(texts) || len(names) > scopes.MaxFiles {
		return d, errForm
	}
	now := map[string]string{}
	if r.PostForm.Get("all") == "" || len(uploaded) == 0 {
		for _, f := range before {
			now[f.Name] = string(f.Data)
		}
	}
	for i, name := range names {
		if name != "" {
			now[name] = unixLines(texts[i])
		}
	}
	for _, f := range uploaded {
		now[f.Name] = f.Text
	}
	for _, name := range d.Gone {
		delete(now, name)
	}

	// The draft consists of the differences from the base.
	was := map[string]string{}
	d.Gone = nil
	for _, f := range before {
		was[f.Name] = string(f.Data)
		if _, kept := now[f.Name]; !kept {
			d.Gone = append(d.Gone, f.Name)
		}
	}
	for _, name := range sortedKeys(now) {
		d.files = append(d.files, scopes.File{Name: name, Data: []byte(now[name])})
		if text, known := was[name]; !known || text != now[name] {
			d.Changed = append(d.Changed, draftFile{name, now[name]})
		}
	}
	return d, nil
}

// unixLines converts line endings to LF, as in catalogues: browsers end every line of a text field with CR LF.
func unixLines(text string) string { return strings.ReplaceAll(text, "\r\n", "\n") }

// uploads returns the files that came with a form. Browsers do not send folders, so an uploaded file replaces the file with
// the same base name in any folder of the base catalogue.
func uploads(r *http.Request, before []scopes.File) ([]draftFile, error) {
	if r.MultipartForm == nil {
		return nil, nil
	}
	var all []draftFile
	for _, header := range r.MultipartForm.File["upload"] {
		if header.Filename == "" {
			continue
		}
		file, err := header.Open()
		if err != nil {
			return nil, errForm
		}
		data, err := io.ReadAll(io.LimitReader(file, maxBody))
		_ = file.Close() // it was only read
		if err != nil || len(all) == scopes.MaxFiles {
			return nil, errForm
		}
		name := header.Filename
		if i := slices.IndexFunc(before, func(f scopes.File) bool { return path.Base(f.Name) == name }); i >= 0 {
			name = before[i].Name
		}
		all = append(all, draftFile{name, unixLines(string(data))})
	}
	return all, nil
}

// draftView shows what a draft would do, or its problems.
type draftView struct {
	draft

	Digest   string
	Problems scopes.Problems
	More     int // number of problems that are not listed
	Diff     diffView
	Vote     bool // whether another admin has to approve
	Open     int  // number of requests that become void
}

// checkDraft shows what a draft would do. It changes nothing.
func (c *Console) checkDraft(r *http.Request, _ *visitor) (view, error) {
	d, err := c.readDraft(r)
	if err != nil {
		return view{}, &returning{err, "/catalogue/draft"}
	}
	v := draftView{draft: d, Vote: c.cfg.Broker.NeedsSecondAdmin()}
	loaded, err := scopes.Load(d.files)
	switch {
	case errors.As(err, &v.Problems):
		if v.More = len(v.Problems) - maxProblems; v.More > 0 {
			v.Problems = v.Problems[:maxProblems]
		}
		return pageDraftRefused.view("Invalid draft", v).withStatus(http.StatusUnprocessableEntity), nil
	case err != nil:
		return view{}, err
	}
	base, err := c.catalogueOf(r.Context(), d.Base)
	if err != nil && !unreadable(err) {
		return view{}, err
	}
	open, failed := c.cfg.Broker.OpenRequests(r.Context())
	if failed != nil {
		return view{}, failed
	}
	v.Digest, v.Open = loaded.Digest(), open
	v.Diff = diffView{From: d.Base, To: v.Digest, Unread: unreadable(err), Files: diffFiles(base.files, d.files)}
	if !v.Diff.Unread {
		v.Diff.plan(base.Catalogue, loaded)
	}
	return pageDraftChecked.view("Effect of the draft", v), nil
}

// consent returns the reason from the form. It returns errConfirm if the form does not contain the confirmation word,
// errNoReason if it gives no reason, and the errors of checkText.
func consent(r *http.Request, word string) (reason string, err error) {
	reason = strings.TrimSpace(r.PostForm.Get("reason"))
	switch {
	case strings.TrimSpace(r.PostForm.Get("confirm")) != word:
		return "", errConfirm
	case reason == "":
		return "", errNoReason
	}
	return reason, checkText(reason)
}

// apply applies or proposes a draft. Its digest must equal that of the draft that the admin reviewed.
func (c *Console) apply(r *http.Request, who *visitor) (done, error) {
	reason, err := consent(r, wordToApply)
	if err != nil {
		return done{}, &returning{err, "/catalogue/draft"}
	}
	d, err := c.readDraft(r)
	if err != nil {
		return done{}, &returning{err, "/catalogue/draft"}
	}
	loaded, err := scopes.Load(d.files)
	if err != nil || loaded.Digest() != r.PostForm.Get("digest") {
		return done{}, &returning{errNoDraft, "/catalogue/draft"}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), orderTimeout)
	defer cancel()
	change, err := c.cfg.Broker.ApplyCatalogue(ctx, broker.CatalogueOrder{
		Actor: broker.PersonActor(who.Person).ID(), Base: d.Base, Files: d.files, Reason: reason, Force: r.PostForm.Get("force") != "",
	})
	switch {
	case unreadable(err):
		return done{}, &returning{errNoDraft, "/catalogue/draft"}
	case err != nil:
		return done{}, &returning{err, "/catalogue/draft"}
	case change.State == broker.CatalogueProposed:
		return done{"/catalogue", "Proposed. The draft takes effect when another admin approves it."}, nil
	}
	return done{"/catalogue", "Applied: the catalogue is in force, and every new decision uses it."}, nil
}

// proposalView is a proposal, and how it differs from the catalogue in force.
type proposalView struct {
	Change broker.CatalogueChange
	Base   string // digest of the catalogue in force
	Own    bool   // whether the reader is the proposer
	Decide bool   // whether the reader may decide
	Open   int    // number of requests that become void
	Diff   diffView
}

// proposal shows a catalogue that waits for another admin.
func (c *Console) proposal(r *http.Request, who *visitor) (view, error) {
	head, _, err := c.inForce(r.Context())
	if err != nil && !unreadable(err) {
		return view{}, err
	}
	open, err := c.openProposals(r.Context(), head)
	if err != nil {
		return view{}, err
	}
	i := slices.IndexFunc(open, func(change broker.CatalogueChange) bool { return change.Digest == chi.URLParam(r, "digest") })
	if i < 0 {
		return view{}, &returning{broker.ErrNotFound, "/catalogue/versions"}
	}
	v := proposalView{
		Change: open[i], Base: head.Digest, Own: open[i].Actor == broker.PersonActor(who.Person).ID(), Decide: c.changesCatalogue(who),
	}
	if v.Open, err = c.cfg.Broker.OpenRequests(r.Context()); err != nil {
		return view{}, err
	}
	v.Diff, err = c.compare(r, head.Digest, open[i].Digest)
	return pageProposal.view("Catalogue proposal", v), err
}

// decideProposal handles an admin's vote on a proposal.
func (c *Console) decideProposal(r *http.Request, who *visitor) (done, error) {
	if !c.changesCatalogue(who) { // opens says who may read it
		return done{}, errNotAllowed
	}
	digest := chi.URLParam(r, "digest")
	back := "/catalogue/proposals/" + digest
	if !digestForm.MatchString(digest) {
		return done{}, broker.ErrNotFound
	}
	verdict := broker.CatalogueVerdict{Actor: broker.PersonActor(who.Person).ID(), Digest: digest, Base: r.PostForm.Get("base")}
	word, notice := "", "Rejected: the catalogue in force is unchanged."
	switch r.PostForm.Get("verdict") {
	case "approve":
		verdict.Force = r.PostForm.Get("force") != ""
		verdict.Verdict, word, notice = approval.Approve, wordToApply, "Approved: the catalogue is in force, and every new decision uses it."
	case "reject":
		verdict.Verdict = approval.Deny
	default:
		return done{}, &returning{errForm, back}
	}
	var err error
	if verdict.Reason, err = consent(r, word); err != nil {
		return done{}, &returning{err, back}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), orderTimeout)
	defer cancel()
	if _, err := c.cfg.Broker.DecideCatalogue(ctx, verdict); err != nil {
		return done{}, &returning{err, back}
	}
	return done{"/catalogue", notice}, nil
}
