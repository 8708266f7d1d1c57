package console

import (
	"errors"
	"maps"
	"net/http"
	"net/url"

	"github.com/brevet-dev/brevet/broker"
	"github.com/go-chi/chi/v5"
)

// recordRoutes registers the pages that read the record.
func (c *Console) recordRoutes(mux chi.Router) {
	mux.Get("/live", c.visit(audits(c.live)))
	mux.Get("/live/rates.json", c.rates)
	mux.Get("/history", c.visit(audits(c.history)))
	mux.Get("/history/export", c.export)
	mux.Get("/issuances/{id}", c.visit(audits(c.issuance)))
	mux.Get("/tasks", c.visit(audits(c.task)))
	mux.Get("/whose", c.visit(audits(c.whose)))
}

// audits wraps a page that only auditors may see.
func audits(do func(*http.Request, *visitor) (view, error)) func(*http.Request, *visitor) (view, error) {
	return func(r *http.Request, who *visitor) (view, error) {
		if !who.Audits() {
			return view{}, errNotAllowed
		}
		return do(r, who)
	}
}

// historyPage is a search and its results.
type historyPage struct {
	search

	TooBroad   bool
	Records    []broker.View
	Query      url.Values // the search parameters without the cursor
	Next, Prev string     // addresses
}

// history searches the record. The address contains the whole search, so people can bookmark and share it.
func (c *Console) history(r *http.Request, who *visitor) (view, error) {
	values := r.URL.Query()
	p := historyPage{search: readSearch(values), Query: given(values)}
	if p.Bad {
		return pageHistory.view("Audit log", p).withStatus(http.StatusUnprocessableEntity), nil
	}
	name, err := listing(who, p.query)
	if err != nil {
		return view{}, err
	}
	place, err := c.openPlace(values.Get("cursor"), name)
	if err != nil {
		return view{}, err
	}
	p.query.Before, p.query.From = max(place, 0), max(-place, 0)
	found, err := c.cfg.Broker.List(r.Context(), p.query, who.Auditor)
	switch {
	case errors.Is(err, broker.ErrTooBroad):
		p.TooBroad = true
		return pageHistory.view("Audit log", p).withStatus(http.StatusUnprocessableEntity), nil
	case err != nil:
		return view{}, err
	}
	p.Records = found.Records
	if p.Next, err = c.further(p.Query, found.Next, name); err == nil {
		p.Prev, err = c.further(p.Query, -found.Prev, name)
	}
	return pageHistory.view("Audit log", p), err
}

// further returns the address of another page of the search, or "" for the place zero.
func (c *Console) further(query url.Values, place int64, of []byte) (string, error) {
	if place == 0 {
		return "", nil
	}
	cursor, err := c.sealPlace(place, of)
	if err != nil {
		return "", err
	}
	next := url.Values{"cursor": {cursor}}
	maps.Copy(next, query)
	return "/history?" + next.Encode(), nil
}
