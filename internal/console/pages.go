package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"mime"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/go-chi/chi/v5"
)

// visitor is the authenticated person, and their reach in each role.
type visitor struct {
	people.Person
	lifetime

	Approver, Auditor, Admin broker.Reach
}

// holds reports whether a role reaches anything.
func holds(reach broker.Reach) bool { return len(reach.TrustDomains)+len(reach.Within) > 0 }

// Approves, Audits and Administers report whether the visitor holds the role anywhere. Templates use them to show only what
// is for their reader.
func (v *visitor) Approves() bool    { return v != nil && holds(v.Approver) }
func (v *visitor) Audits() bool      { return v != nil && holds(v.Auditor) }
func (v *visitor) Administers() bool { return v != nil && holds(v.Admin) }

// visitor returns the person of the session, and verifies their ID token again. It returns errNobody if there is no session, it
// has ended, or the provider no longer has the key of the token, and errPace with a visitor without roles if the person sends too
// many requests.
func (c *Console) visitor(r *http.Request) (*visitor, error) {
	raw, lasts, err := c.session(r)
	if err != nil {
		return nil, err
	}
	person, err := c.cfg.People.IdentifyAt(r.Context(), raw, lasts.Began)
	switch {
	case errors.Is(err, people.ErrProviderUnavailable):
		return nil, err
	case err != nil:
		return nil, errNobody
	case !c.pace.Allow(person.ID(), c.cfg.Now()):
		return &visitor{Person: person}, errPace // the refusal is theirs, and not that of a stranger
	}
	return &visitor{
		Person: person, lifetime: lasts, Approver: c.reach(person, people.RoleApprover), Auditor: c.reach(person, people.RoleAuditor), Admin: c.reach(person, people.RoleAdmin),
	}, nil
}

// reach returns the reach of a person in a role, within the trust domains that Brevet serves.
func (c *Console) reach(who people.Person, role people.Role) broker.Reach {
	within := c.cfg.Broker.Within(who, role)
	if !slices.Contains(within, people.Everywhere) {
		return broker.ReachOf(within)
	}
	var all []string
	for _, domain := range c.cfg.TrustDomains {
		all = append(all, "spiffe://"+domain)
	}
	return broker.ReachOf(all)
}

// opens reports whether the roles of the visitor open the page at a path, here and on every link. If the page is about a sandbox,
// or a path or trust domain, about is its SPIFFE ID, and the role has to reach it. A page that opens does not list is for nobody.
func (c *Console) opens(who *visitor, path string, about ...string) bool {
	within := func(reach broker.Reach) bool {
		return holds(reach) && !slices.ContainsFunc(about, func(id string) bool { return !reach.Covers(id) })
	}
	path, _, _ = strings.Cut(path, "?")
	section, rest, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch section {
	case "", "you", "session", "reference":
		return who != nil
	case "approvals":
		return who.Approves()
	case "live", "history", "issuances", "tasks", "whose", "ledger":
		return who != nil && within(who.Auditor)
	case "endings":
		return who != nil && within(who.Admin)
	case "system":
		return who.Audits() || who.Administers()
	case "catalogue":
		switch {
		case who == nil:
			return false
		case rest == "replay", strings.HasPrefix(rest, "proposals/") && strings.HasSuffix(rest, "/replay"):
			return c.replays(who)
		case rest == "draft", rest == "apply":
			return c.changesCatalogue(who)
		}
		return c.readsCatalogue(who)
	}
	return false
}

// serve is authenticated, for visitors who may open the page.
func (c *Console) serve(nobody http.HandlerFunc, do func(http.ResponseWriter, *http.Request, *visitor) error) http.HandlerFunc {
	return c.authenticated(nobody, func(w http.ResponseWriter, r *http.Request, who *visitor) error {
		if !c.opens(who, r.URL.Path) {
			return errNotAllowed
		}
		return do(w, r, who)
	})
}

// authenticated identifies the visitor and calls do. nobody answers a request without a session. do returns an error only if it
// has written nothing; then the visitor gets its page.
func (c *Console) authenticated(nobody http.HandlerFunc, do func(http.ResponseWriter, *http.Request, *visitor) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		who, err := c.visitor(r)
		if errors.Is(err, errNobody) {
			nobody(w, r)
			return
		}
		if err == nil {
			err = do(w, r, who)
		}
		if err != nil {
			c.fail(w, r, who, err)
		}
	}
}

// refuseNobody says that a login is required, and keeps the form of the request for its person.
func (c *Console) refuseNobody(w http.ResponseWriter, r *http.Request) {
	c.needLogin(w, r, nil, errNobody)
}

// visit handles a page for logged-in people. It redirects everybody else to the login, which returns to the page.
func (c *Console) visit(do func(*http.Request, *visitor) (view, error)) http.HandlerFunc {
	return c.serve(toLogin, func(w http.ResponseWriter, r *http.Request, who *visitor) error {
		v, err := do(r, who)
		if err == nil {
			c.show(w, r, who, v)
		}
		return err
	})
}

// look handles a form that changes nothing: it shows a page about the submitted data.
func (c *Console) look(do func(*http.Request, *visitor) (view, error)) http.HandlerFunc {
	return c.serve(c.refuseNobody, func(w http.ResponseWriter, r *http.Request, who *visitor) error {
		if ready, err := c.receive(w, r, who); !ready {
			return err
		}
		v, err := do(r, who)
		if err == nil {
			c.show(w, r, who, v)
		}
		return err
	})
}

// done is the page to redirect to after an action, and the notice to show there.
type done struct{ to, notice string }

// act handles a form that changes something, which requires a recent login. It then redirects the browser, so that reloading the
// page does not repeat the action.
func (c *Console) act(do func(*http.Request, *visitor) (done, error)) http.HandlerFunc {
	return c.serve(c.refuseNobody, func(w http.ResponseWriter, r *http.Request, who *visitor) error {
		if !c.recent(who) {
			c.needLogin(w, r, who, errOldSession)
			return nil
		}
		if ready, err := c.receive(w, r, who); !ready {
			return err
		}
		d, err := do(r, who)
		if err != nil {
			return err
		}
		c.sessions.Put(r.Context(), keyNotice, d.notice)
		http.Redirect(w, r, d.to, http.StatusSeeOther)
		return nil
	})
}

// toLogin redirects the browser to the login. A script gets a status instead, and the page stays as it is: a person may be typing
// in it, and a page that logs in by itself would never end.
func toLogin(w http.ResponseWriter, r *http.Request) {
	if !inPerson(r) {
		w.Header().Set("HX-Reswap", "none")
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	http.Redirect(w, r, "/login?return="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
}

//go:embed templates
var templates embed.FS

// view names a page and holds its data. A zero status is 200. pageOf makes views.
type view struct {
	page, title string
	data        any
	status      int
}

// pageOf is the name of a page. Its template expects data of type T: html/template checks fields only when it executes, so
// the compiler checks the type here, and a test executes every branch of every template with that type.
type pageOf[T any] string

// The pages, by the name of their template.
const (
	pageHome              pageOf[homePage]                 = "home"
	pageYou               pageOf[profile]                  = "you"
	pagePasskeys          pageOf[passkeysPage]             = "passkeys"
	pageApprovals         pageOf[inbox]                    = "approvals"
	pageApproval          pageOf[*ask]                     = "approval"
	pageLive              pageOf[*livePage]                = "live"
	pageHistory           pageOf[historyPage]              = "history"
	pageIssuance          pageOf[issuancePage]             = "issuance"
	pageTasks             pageOf[taskPage]                 = "tasks"
	pageTask              pageOf[taskPage]                 = "task"
	pageWhose             pageOf[whosePage]                = "whose"
	pageSelect            pageOf[orderPage]                = "select"
	pageOrder             pageOf[orderPage]                = "order"
	pageReceipt           pageOf[receiptPage]              = "receipt"
	pageCatalogue         pageOf[catalogueView]            = "catalogue"
	pageScope             pageOf[scopeView]                = "scope"
	pageVersions          pageOf[[]broker.CatalogueChange] = "versions"
	pageDiff              pageOf[diffView]                 = "diff"
	pageDraft             pageOf[editView]                 = "draft"
	pageDraftRefused      pageOf[draftView]                = "draft-refused"
	pageDraftChecked      pageOf[draftView]                = "draft-checked"
	pageProposal          pageOf[proposalView]             = "proposal"
	pageReplay            pageOf[replayView]               = "replay"
	pageExplain           pageOf[explainView]              = "explain"
	pageLedger            pageOf[ledgerView]               = "ledger"
	pageSystem            pageOf[systemView]               = "system"
	pageReference         pageOf[*reference]               = "reference"
	pageReferenceTag      pageOf[referenceTag]             = "reference-tag"
	pageReferenceTypes    pageOf[[]shape]                  = "reference-types"
	pageReferenceProblems pageOf[[]problemsOf]             = "reference-problems"
	pageTrouble           pageOf[troublePage]              = "trouble"
	pageKept              pageOf[keptForm]                 = "kept"
	pageSignedOut         pageOf[struct{}]                 = "signed-out"
)

// view returns the view of the page with its data.
func (p pageOf[T]) view(title string, data T) view {
	return view{page: string(p), title: title, data: data}
}

// withStatus returns the view with another status than 200.
func (v view) withStatus(status int) view {
	v.status = status
	return v
}

// framed is the data of the layout.
type framed struct {
	Page, Title, Section string
	Who                  *visitor
	Notice               string
	Data                 any
	Now                  time.Time
	Person               string // identifies the reader to kept forms
	Warn                 int    // how many seconds before the end of the session a script warns

	opens func(who *visitor, path string, about ...string) bool
}

// Opens reports whether the reader's roles open the page at a path. Templates link to a page only if it does.
func (f framed) Opens(path string, about ...any) bool {
	ids := make([]string, len(about))
	for i, one := range about {
		ids[i] = fmt.Sprint(one)
	}
	return f.opens(f.Who, path, ids...)
}

// parsePages parses each page together with the layout and the shared parts.
func (c *Console) parsePages() (map[string]*template.Template, error) {
	shared, err := template.New("layout").Funcs(c.functions()).ParseFS(templates, "templates/layout.html", "templates/parts/*.html")
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	names, err := fs.Glob(templates, "templates/pages/*.html")
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	pages := map[string]*template.Template{}
	for _, name := range names {
		one, err := shared.Clone()
		if err == nil {
			one, err = one.ParseFS(templates, name)
		}
		if err != nil {
			return nil, fmt.Errorf("console: %w", err)
		}
		pages[strings.TrimSuffix(path.Base(name), ".html")] = one
	}
	return pages, nil
}

// show renders a page and then writes it, so that a failed template never sends half a page.
func (c *Console) show(w http.ResponseWriter, r *http.Request, who *visitor, v view) {
	section, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch section { // paths outside of the navigation belong to one of its sections
	case "issuances", "tasks", "whose":
		section = "history"
	case "endings":
		section = "live"
	}
	f := framed{Page: v.page, Title: v.title, Section: section, Who: who, Data: v.data, Now: c.cfg.Now(), opens: c.opens}
	if who != nil {
		f.Person, f.Warn = c.nameless(who.Person), int(min(warnBefore, c.cfg.SessionIdle/4).Seconds())
		f.Notice = c.sessions.PopString(r.Context(), keyNotice)
	}
	var body bytes.Buffer
	err := errors.New("no such page")
	if p := c.pages[v.page]; p != nil {
		err = p.ExecuteTemplate(&body, "layout.html", f)
	}
	if err != nil {
		c.cfg.Log.ErrorContext(r.Context(), "page rendering failed", "page", v.page, "error", err)
		http.Error(w, mishap.Title+". "+mishap.Means+" "+mishap.Next, http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if v.status != 0 {
		w.WriteHeader(v.status)
	}
	_, _ = w.Write(body.Bytes()) // the client may have disconnected
}

//go:embed static
var files embed.FS

// asset is one file, plain and compressed with gzip.
type asset struct {
	hash, kind    string
	plain, packed []byte
}

// staticPath is the beginning of the paths of scripts and styles.
const staticPath = "/static/"

// static serves the scripts and styles. The address of each contains its digest, so that browsers can cache it forever.
type static struct{ assets map[string]asset }

func newStatic() (*static, error) {
	s := &static{assets: map[string]asset{}}
	err := fs.WalkDir(files, "static", func(name string, entry fs.DirEntry, err error) error {
		kind := mime.TypeByExtension(path.Ext(name))
		if err != nil || entry.IsDir() || kind == "" {
			return err
		}
		plain, err := files.ReadFile(name)
		if err != nil {
			return err
		}
		var packed bytes.Buffer
		w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
		if err == nil {
			_, err = w.Write(plain)
		}
		if err == nil {
			err = w.Close()
		}
		sum := sha256.Sum256(plain)
		s.assets[path.Base(name)] = asset{hex.EncodeToString(sum[:8]), kind, plain, packed.Bytes()}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("console: packing scripts and styles: %w", err)
	}
	return s, nil
}

// address returns the path of a file.
func (s *static) address(name string) (string, error) {
	a, ok := s.assets[name]
	if !ok {
		return "", fmt.Errorf("there is no file %q", name)
	}
	return staticPath + a.hash + "/" + name, nil
}

func (s *static) serve(w http.ResponseWriter, r *http.Request) {
	hash, name, _ := strings.Cut(chi.URLParam(r, "*"), "/")
	a, ok := s.assets[name]
	if !ok || a.hash != hash {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", a.kind)
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("Vary", "Accept-Encoding")
	body := a.plain
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		body = a.packed
	}
	_, _ = w.Write(body) // the client may have disconnected
}
