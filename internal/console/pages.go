package console

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
)

//go:embed templates
var templates embed.FS

// page is the template of one page, combined with the layout.
type page struct{ *template.Template }

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
}

// parsePages parses each page together with the layout and the shared parts.
func (c *Console) parsePages() (map[string]*page, error) {
	shared, err := template.New("layout").Funcs(c.functions()).Funcs(termFunctions).ParseFS(templates, "templates/layout.html", "templates/parts/*.html")
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	names, err := fs.Glob(templates, "templates/pages/*.html")
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	pages := map[string]*page{}
	for _, name := range names {
		one, err := shared.Clone()
		if err == nil {
			one, err = one.ParseFS(templates, name)
		}
		if err != nil {
			return nil, fmt.Errorf("console: %w", err)
		}
		pages[strings.TrimSuffix(path.Base(name), ".html")] = &page{one}
	}
	return pages, nil
}

// sectionOf is the section of the navigation that a path outside of it belongs to.
var sectionOf = map[string]string{"issuances": "history", "tasks": "history", "whose": "history", "endings": "live"}

// show renders a page and then writes it, so that a failed template never sends half a page.
func (c *Console) show(w http.ResponseWriter, r *http.Request, who *visitor, v view) {
	section, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if of, ok := sectionOf[section]; ok {
		section = of
	}
	f := framed{Page: v.page, Title: v.title, Section: section, Who: who, Data: v.data, Now: c.cfg.Now()}
	if who != nil {
		f.Notice = c.sessions.PopString(r.Context(), keyNotice)
	}
	var body bytes.Buffer
	p, known := c.pages[v.page]
	err := errors.New("no such page")
	if known {
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
