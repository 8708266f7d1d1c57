package console

import (
	"errors"
	"net/http"
	"net/url"
	"slices"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/people"
)

// visitor is who looks at a page, and how far they get in each of the roles.
type visitor struct {
	people.Person

	Approver, Auditor, Admin broker.Reach
}

// holds tells whether a role reaches anything.
func holds(reach broker.Reach) bool { return len(reach.TrustDomains)+len(reach.Within) > 0 }

// Approves, Audits and Administers are for pages, which show what is for their reader.
func (v *visitor) Approves() bool    { return v != nil && holds(v.Approver) }
func (v *visitor) Audits() bool      { return v != nil && holds(v.Auditor) }
func (v *visitor) Administers() bool { return v != nil && holds(v.Admin) }

// visitor is whoever the session's ID token proves, now. errNobody when there is none, or none any more.
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
	case !c.pace.Allows(person.ID(), c.cfg.Now()):
		return nil, errPace
	}
	return &visitor{
		Person: person, Approver: c.reach(person, people.RoleApprover), Auditor: c.reach(person, people.RoleAuditor), Admin: c.reach(person, people.RoleAdmin),
	}, nil
}

// reach is how far somebody gets in a role, in the trust domains that are served.
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

// visit answers with a page for whoever is logged in, and sends everybody else to log in and come back.
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

// done is where to go on after something was done, and what to say there.
type done struct{ to, notice string }

// act does what a form asks for, and sends the browser on: loading a page again never does it twice.
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

// toLogin sends a browser to log in. What a script asks for gets no page of a login: the script's page is to be loaded again.
func toLogin(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("HX-Request") != "" || r.Header.Get("Sec-Fetch-Dest") == "empty" {
		w.Header().Set("HX-Refresh", "true")
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	http.Redirect(w, r, "/login?return="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
}

// home is the first page that is for its reader.
func (c *Console) home(_ *http.Request, who *visitor) (view, error) {
	return view{page: "home", title: "Dashboard"}, nil
}
