package console

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/go-chi/chi/v5"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

const (
	keyReceipt = "receipt"
	// orderTimeout bounds what was ordered, which is carried out whether or not the browser waits.
	orderTimeout = 25 * time.Second
	// mostHit is up to how many credentials are counted that an order would end, mostListed how many a page lists.
	mostHit, mostListed = 500, 50
	// mostReceipt is how many bytes of a session a receipt takes, of 64 KiB.
	mostReceipt = 32 << 10
)

var (
	errConfirmation = errors.New("confirmation does not match")
	errSelection    = errors.New("invalid selection")
)

// kindOfOrder is something that admins can order, in words.
type kindOfOrder struct {
	Title, Does, Button, Done string
	// of reads what the order is about, and do carries it out.
	of func(url.Values) (broker.Selector, error)
	do func(*broker.Broker, context.Context, broker.Revocation) (broker.Receipt, error)
}

var ordersByName = map[string]kindOfOrder{
	"task": {
		"End a task", "Revokes every credential of the task and denies its later requests. This cannot be undone; the sandbox can continue with another task.", "End the task", "The task has ended.",
		taskOf, func(b *broker.Broker, ctx context.Context, o broker.Revocation) (broker.Receipt, error) {
			return b.EndTask(ctx, broker.TaskEnd{Actor: o.Actor, SPIFFEID: o.Target.SPIFFEID, Task: o.Target.Task, Reason: o.Reason})
		},
	},
	"revoke": {
		"Revoke credentials", "Revokes all matching credentials now. Sandboxes can request new ones: to prevent that, end the task or quarantine the sandbox.", "Revoke", "The matching credentials are revoked.",
		selected, (*broker.Broker).Revoke,
	},
	"quarantine": {
		"Quarantine", "Revokes every credential of this sandbox or path, and denies its requests until the quarantine is lifted.", "Quarantine", "The quarantine is in effect.",
		pathOf, func(b *broker.Broker, ctx context.Context, o broker.Revocation) (broker.Receipt, error) {
			return b.Quarantine(ctx, broker.Confinement{Actor: o.Actor, SPIFFEID: nameOf(o.Target), Reach: o.Reach, Reason: o.Reason})
		},
	},
	"lift": {
		"Lift a quarantine", "Lets this sandbox or path request credentials again, subject to policy. Revoked credentials stay revoked.", "Lift the quarantine", "The quarantine is lifted.",
		pathOf, func(b *broker.Broker, ctx context.Context, o broker.Revocation) (broker.Receipt, error) {
			return broker.Receipt{}, b.Unquarantine(ctx, broker.Confinement{Actor: o.Actor, SPIFFEID: nameOf(o.Target), Reach: o.Reach, Reason: o.Reason})
		},
	},
}

// endingRoutes are of what admins end.
func (c *Console) endingRoutes(mux chi.Router) {
	mux.Get("/endings/receipt", c.visit(c.receipt))
	mux.Get("/endings/{order}", c.visit(c.beforeOrder))
	mux.Post("/endings/{order}", c.act(c.order))
}

// selected is what a revocation is about.
func selected(values url.Values) (broker.Selector, error) {
	s := broker.Selector{
		ID: values.Get("id"), SPIFFEID: values.Get("spiffe_id"), SPIFFEIDPrefix: values.Get("spiffe_id_prefix"),
		TrustDomain: values.Get("trust_domain"), Task: values.Get("task"), Scope: values.Get("scope"),
	}
	for _, id := range []string{s.SPIFFEID, s.SPIFFEIDPrefix} {
		if _, err := spiffeid.FromString(id); id != "" && err != nil {
			return s, errSelection
		}
	}
	if _, err := spiffeid.TrustDomainFromString(s.TrustDomain); s.TrustDomain != "" && err != nil || s == (broker.Selector{}) {
		return s, errSelection
	}
	return s, nil
}

// taskOf is the one task of one sandbox.
func taskOf(values url.Values) (broker.Selector, error) {
	s := broker.Selector{SPIFFEID: values.Get("spiffe_id"), Task: values.Get("task")}
	if !isTask(s.SPIFFEID, s.Task) {
		return s, errSelection
	}
	return s, nil
}

// isTask tells whether a task of a sandbox can be called so.
func isTask(sandbox, task string) bool {
	id, err := spiffeid.FromString(sandbox)
	return err == nil && id.Path() != "" && task != "" && len(task) <= 128
}

// pathOf is a sandbox, or a path or trust domain above some.
func pathOf(values url.Values) (broker.Selector, error) {
	id := values.Get("spiffe_id")
	if _, err := spiffeid.FromString(id); err != nil {
		return broker.Selector{}, errSelection
	}
	return broker.Confined(id), nil
}

// toType is what whoever orders something has to type: the name that the selection goes by, or the end of an id, which is the
// same for few and can be typed on a phone.
func toType(s broker.Selector) string {
	const enough = 8
	return cmp.Or(s.ID[max(0, len(s.ID)-enough):], nameOf(s))
}

// nameOf is what a selection goes by.
func nameOf(s broker.Selector) string {
	if s.TrustDomain != "" && s == (broker.Selector{TrustDomain: s.TrustDomain}) {
		return "spiffe://" + s.TrustDomain
	}
	return cmp.Or(s.ID, s.Task, s.SPIFFEID, s.SPIFFEIDPrefix, s.Scope)
}

// covered tells whether an order's target is within an admin's reach as a whole. What a revocation reaches, it ends; the others
// are of one name.
func covered(order string, s broker.Selector, reach broker.Reach) bool {
	switch order {
	case "task":
		return reach.Covers(s.SPIFFEID)
	case "quarantine", "lift":
		return reach.Covers(nameOf(s))
	}
	return true
}

// orderPage says what an order would do, before it is given.
type orderPage struct {
	kindOfOrder

	Order    string
	Selector broker.Selector
	Name     string
	ToType   string
	Fields   url.Values // what selects it
	Hit      []broker.LiveCredential
	Count    int
	More     bool // than are counted
	Standing *broker.Quarantine
}

// Lifts and Ends are for the page: the one has nothing to end.
func (p orderPage) Lifts() bool { return p.Order == "lift" }

// Possible tells whether there is anything to be done.
func (p orderPage) Possible() bool {
	switch p.Order {
	case "revoke":
		return p.Count > 0
	case "lift":
		return p.Standing != nil
	}
	return true
}

// beforeOrder shows what an order would hit, and asks for it to be typed.
func (c *Console) beforeOrder(r *http.Request, who *visitor) (view, error) {
	name, values := chi.URLParam(r, "order"), selection(r.URL.Query())
	kind, known := ordersByName[name]
	switch {
	case !who.Administers():
		return view{}, errNotAllowed
	case !known:
		return view{}, broker.ErrNotFound
	case len(values) == 0:
		return view{page: "select", title: kind.Title, data: orderPage{kindOfOrder: kind, Order: name}}, nil
	}
	target, err := kind.of(values)
	if err != nil {
		return view{}, err
	}
	if !covered(name, target, who.Admin) {
		return view{}, broker.ErrNotFound
	}
	p := orderPage{kindOfOrder: kind, Order: name, Selector: target, Name: nameOf(target), ToType: toType(target), Fields: values}
	if err := c.hits(r.Context(), &p, who.Admin); err != nil {
		return view{}, err
	}
	return view{page: "order", title: kind.Title, data: p}, nil
}

// hits finds what an order would end, and the quarantine that stands.
func (c *Console) hits(ctx context.Context, p *orderPage, reach broker.Reach) error {
	standing, err := c.cfg.Broker.Quarantines(ctx, reach)
	if err != nil {
		return err
	}
	for _, q := range standing {
		if q.SPIFFEID == p.Name {
			p.Standing = &q
		}
	}
	if p.Lifts() {
		return nil
	}
	if p.Hit, err = c.cfg.Broker.Holding(ctx, p.Selector, reach, mostHit+1); err != nil {
		return err
	}
	p.More = len(p.Hit) > mostHit
	p.Count = min(len(p.Hit), mostHit)
	p.Hit = p.Hit[:min(p.Count, mostListed)]
	return nil
}

// order carries out what an admin has typed the name of.
func (c *Console) order(r *http.Request, who *visitor) (done, error) {
	name := chi.URLParam(r, "order")
	kind, known := ordersByName[name]
	switch {
	case !who.Administers():
		return done{}, errNotAllowed
	case !known:
		return done{}, broker.ErrNotFound
	}
	target, err := kind.of(r.PostForm)
	if err != nil {
		return done{}, err
	}
	if !covered(name, target, who.Admin) {
		return done{}, broker.ErrNotFound
	}
	reason := strings.TrimSpace(r.PostForm.Get("reason"))
	if err := checkOrder(r, target, reason); err != nil {
		return done{}, &returning{err, r.URL.Path + "?" + selection(r.PostForm).Encode()}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), orderTimeout)
	defer cancel()
	receipt, err := kind.do(c.cfg.Broker, ctx, broker.Revocation{
		Actor: broker.PersonActor(who.Person), Target: target, Reach: who.Admin, Reason: reason,
	})
	if err != nil {
		return done{}, err
	}
	if name == "lift" {
		return done{"/live", kind.Done}, nil
	}
	return done{"/endings/receipt", kind.Done}, c.keepReceipt(r.Context(), kind.Title+": "+nameOf(target), receipt)
}

// checkOrder tells whether the name was typed, and why.
func checkOrder(r *http.Request, target broker.Selector, reason string) error {
	confirmed := r.PostForm["confirmation"]
	switch {
	case len(confirmed) != 1 || strings.TrimSpace(confirmed[0]) != toType(target):
		return errConfirmation
	case reason == "" || len(r.PostForm["reason"]) != 1:
		return errForm
	}
	return checkText(reason)
}

// selectors are the names in links and forms that say what an order is about.
var selectors = []string{"id", "spiffe_id", "spiffe_id_prefix", "trust_domain", "task", "scope"}

// selection is the part of a link or of a form that says what an order is about. No link fills in the rest of the form: who
// gives the order types that.
func selection(values url.Values) url.Values {
	kept := url.Values{}
	for _, name := range selectors {
		if value := values.Get(name); value != "" {
			kept.Set(name, value)
		}
	}
	return kept
}

// receiptPage is what an order did.
type receiptPage struct {
	About   string
	Receipt broker.Receipt
	Dead    int
	Open    int // that are not over yet
	Offline int // that who does not ask may still accept
	Cut     bool
}

// keepReceipt keeps what an order did for the page that the browser is sent to.
func (c *Console) keepReceipt(ctx context.Context, about string, receipt broker.Receipt) error {
	p := receiptPage{About: about, Cut: receipt.More || len(receipt.Ended) > mostListed}
	for _, e := range receipt.Ended {
		switch {
		case e.Why != "":
			p.Open++
		case !e.UsableUntil.IsZero():
			p.Offline++
		default:
			p.Dead++
		}
	}
	receipt.Ended = receipt.Ended[:min(len(receipt.Ended), mostListed)]
	p.Receipt = receipt
	data, err := p.pack()
	if err != nil {
		return fmt.Errorf("keeping a receipt: %w", err)
	}
	c.sessions.Put(ctx, keyReceipt, data)
	return nil
}

// pack writes as much of a receipt as a session has room for: names can be long, and what was done is to be said in any case.
func (p receiptPage) pack() ([]byte, error) {
	for {
		data, err := json.Marshal(p)
		if err != nil || len(data) <= mostReceipt || len(p.Receipt.Ended) == 0 {
			return data, err
		}
		p.Cut, p.Receipt.Ended = true, p.Receipt.Ended[:len(p.Receipt.Ended)/2]
	}
}

// receipt shows what the last order did.
func (c *Console) receipt(r *http.Request, who *visitor) (view, error) {
	if !who.Administers() {
		return view{}, errNotAllowed
	}
	data := c.sessions.GetBytes(r.Context(), keyReceipt)
	if data == nil {
		return view{}, broker.ErrNotFound
	}
	var p receiptPage
	if err := json.Unmarshal(data, &p); err != nil {
		return view{}, fmt.Errorf("reading a receipt: %w", err)
	}
	return view{page: "receipt", title: "Revocation receipt", data: p}, nil
}
