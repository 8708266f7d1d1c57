package console

import (
	"errors"
	"net/http"
	"net/url"
	"slices"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/people"
)

// visitor is the authenticated person, and their reach in each role.
type visitor struct {
	people.Person

	Approver, Auditor, Admin broker.Reach
}

// holds reports whether a role reaches anything.
func holds(reach broker.Reach) bool { return len(reach.TrustDomains)+len(reach.Within) > 0 }

// Approves, Audits and Administers report whether the visitor holds the role anywhere. Templates use them to show only what
// is for their reader.
func (v *visitor) Approves() bool    { return v != nil && holds(v.Approver) }
func (v *visitor) Audits() bool      { return v != nil && holds(v.Auditor) }
func (v *visitor) Administers() bool { return v != nil && holds(v.Admin) }

// visitor returns the person whom the session's ID token identifies, and verifies the token again. It returns errNobody if
// there is no token or it is no longer valid.
func (c *Console) visitor(r *http.Request) (*visitor, error) {
	raw := c.sessions.GetString(r.Context(), keyIDToken)
	if raw == "" {
		return nil, errNobody
	}
	person, err := c.cfg.People.Identify(r.Context(), raw)
	switch {
	case errors.Is(err, people.ErrProviderUnavailable):
		return nil, err
	case err != nil:
		return nil, errNobody
	case !c.pace.Allow(person.ID(), c.cfg.Now()):
		return nil, errPace
	}
	return &visitor{
		Person: person, Approver: c.reach(person, people.RoleApprover), Auditor: c.reach(person, people.RoleAuditor), Admin: c.reach(person, people.RoleAdmin),
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

// visit handles a page for logged-in people. It redirects everybody else to the login, which returns to the page.
func (c *Console) visit(do func(*http.Request, *visitor) (view, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		who, err := c.visitor(r)
		if errors.Is(err, errNobody) {
			toLogin(w, r)
			return
		}
		if err != nil {
			c.fail(w, r, nil, err)
			return
		}
		v, err := do(r, who)
		if err != nil {
			c.fail(w, r, who, err)
			return
		}
		c.show(w, r, who, v)
	}
}

// done is the page to redirect to after an action, and the notice to show there.
type done struct{ to, notice string }

// act handles a form and then redirects the browser, so that reloading the page does not repeat the action.
func (c *Console) act(do func(*http.Request, *visitor) (done, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		who, err := c.visitor(r)
		if err != nil {
			c.fail(w, r, nil, err)
			return
		}
		if err := r.ParseForm(); err != nil {
			c.fail(w, r, who, errForm)
			return
		}
		d, err := do(r, who)
		if err != nil {
			c.fail(w, r, who, err)
			return
		}
		c.sessions.Put(r.Context(), keyNotice, d.notice)
		http.Redirect(w, r, d.to, http.StatusSeeOther)
	}
}

// toLogin redirects the browser to the login. A request from a script gets HX-Refresh instead, so that the page reloads: a
// login page is useless to a script.
func toLogin(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("HX-Request") != "" || r.Header.Get("Sec-Fetch-Dest") == "empty" {
		w.Header().Set("HX-Refresh", "true")
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	http.Redirect(w, r, "/login?return="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
}
