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
)

//go:embed templates
var templates embed.FS

// page is the template of one page, combined with the layout.
type page struct{ *template.Template }

// view names a page and holds its data. A zero status is 200.
type view struct {
	page, title string
	data        any
	status      int
}

// framed is the data of the layout.
type framed struct {
	Title, Section string
	Who            *visitor
	Notice         string
	Data           any
	Now            time.Time
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

// show renders a page and then writes it, so that a failed template never sends half a page.
func (c *Console) show(w http.ResponseWriter, r *http.Request, who *visitor, v view) {
	section, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	f := framed{Title: v.title, Section: section, Who: who, Data: v.data, Now: c.cfg.Now()}
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
