package console

import (
	"cmp"
	"context"
	"encoding/json"
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
	// orderTimeout bounds an order, which runs to its end even if the browser disconnects.
	orderTimeout = 25 * time.Second
	// maxHit is the largest number of affected credentials that an order page counts. maxListed is how many credentials a
	// page lists.
	maxHit, maxListed = 500, 50
	// maxReceipt is the largest size of a receipt in a session, in bytes. A session holds 64 KiB.
	maxReceipt = 32 << 10
)

// kindOfOrder describes one kind of order that admins can give.
type kindOfOrder struct {
	Title, Does, Button, Done string
	// of reads the target of the order, and do carries the order out.
	of func(url.Values) (broker.Selector, error)
	do func(*broker.Broker, context.Context, broker.Revocation) (broker.Receipt, error)
}

var ordersByName = map[string]kindOfOrder{
	"task": {
		"End a task", "Revokes every credential of the task and denies its later requests. This cannot be undone; the sandbox can continue with another task.", "End the task", "The task has ended.",
		func(values url.Values) (broker.Selector, error) {
			s := broker.Selector{SPIFFEID: values.Get("spiffe_id"), Task: values.Get("task")}
			if !isTask(s.SPIFFEID, s.Task) {
				return s, errSelection
			}
			return s, nil
		},
		func(b *broker.Broker, ctx context.Context, o broker.Revocation) (broker.Receipt, error) {
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
			return b.Quarantine(ctx, broker.QuarantineOrder{Actor: o.Actor, SPIFFEID: nameOf(o.Target), Reach: o.Reach, Reason: o.Reason})
		},
	},
	"lift": {
		"Lift a quarantine", "Lets this sandbox or path request credentials again, subject to policy. Revoked credentials stay revoked.", "Lift the quarantine", "The quarantine is lifted.",
		pathOf, func(b *broker.Broker, ctx context.Context, o broker.Revocation) (broker.Receipt, error) {
			return broker.Receipt{}, b.Unquarantine(ctx, broker.QuarantineOrder{Actor: o.Actor, SPIFFEID: nameOf(o.Target), Reach: o.Reach, Reason: o.Reason})
		},
	},
}

// selected returns the selector of a revocation.
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

// isTask reports whether sandbox is a SPIFFE ID with a path and task is a valid task name.
func isTask(sandbox, task string) bool {
	id, err := spiffeid.FromString(sandbox)
	return err == nil && id.Path() != "" && task != "" && len(task) <= 128
}

// pathOf returns the selector of a sandbox, a path prefix or a trust domain.
func pathOf(values url.Values) (broker.Selector, error) {
	id := values.Get("spiffe_id")
	if _, err := spiffeid.FromString(id); err != nil {
		return broker.Selector{}, errSelection
	}
	return broker.Confined(id), nil
}

// toType returns the text that the admin has to type to confirm an order: the name of the selection or, for a single
// credential, the end of its id. That end is short enough to type on a phone, and few ids share it.
func toType(s broker.Selector) string {
	return cmp.Or(s.ID[max(0, len(s.ID)-8):], nameOf(s))
}

// nameOf returns the display name of a selection.
func nameOf(s broker.Selector) string {
	if s.TrustDomain != "" && s == (broker.Selector{TrustDomain: s.TrustDomain}) {
		return "spiffe://" + s.TrustDomain
	}
	return cmp.Or(s.ID, s.Task, s.SPIFFEID, s.SPIFFEIDPrefix, s.Scope)
}

// targetOf returns the kind of an order and its target, which must lie entirely within the admin's reach. A revocation needs no
// such check: it ends only the credentials within reach. The other orders name one target.
func targetOf(order string, values url.Values, who *visitor) (kindOfOrder, broker.Selector, error) {
	kind, known := ordersByName[order]
	if !known {
		return kind, broker.Selector{}, broker.ErrNotFound
	}
	s, err := kind.of(values)
	if err != nil {
		return kind, s, err
	}
	if order == "task" && !who.Admin.Covers(s.SPIFFEID) ||
		(order == "quarantine" || order == "lift") && !who.Admin.Covers(nameOf(s)) {
		return kind, s, broker.ErrNotFound
	}
	return kind, s, nil
}

// orderPage shows what an order would do, before the admin gives it.
type orderPage struct {
	kindOfOrder

	Order    string
	Selector broker.Selector
	Name     string
	ToType   string
	Fields   url.Values // the parameters that select the target
	Hit      []broker.LiveCredential
	Count    int
	More     bool // more than Count match
	Existing *broker.Quarantine
}

// Lifts reports whether the order lifts a quarantine, which ends no credentials.
func (p orderPage) Lifts() bool { return p.Order == "lift" }

// Possible reports whether the order would have any effect.
func (p orderPage) Possible() bool {
	switch p.Order {
	case "revoke":
		return p.Count > 0
	case "lift":
		return p.Existing != nil
	}
	return true
}

// beforeOrder shows which credentials an order would end, and asks the admin to type the confirmation.
func (c *Console) beforeOrder(r *http.Request, who *visitor) (view, error) {
	name, values := chi.URLParam(r, "order"), selection(r.URL.Query())
	if kind, known := ordersByName[name]; known && len(values) == 0 {
		return pageSelect.view(kind.Title, orderPage{kindOfOrder: kind, Order: name}), nil
	}
	kind, target, err := targetOf(name, values, who)
	if err != nil {
		return view{}, err
	}
	p := orderPage{kindOfOrder: kind, Order: name, Selector: target, Name: nameOf(target), ToType: toType(target), Fields: values}
	standing, err := c.cfg.Broker.Quarantines(r.Context(), who.Admin)
	if err != nil {
		return view{}, err
	}
	for _, q := range standing {
		if q.SPIFFEID == p.Name {
			p.Existing = &q
		}
	}
	if !p.Lifts() {
		if p.Hit, err = c.cfg.Broker.Holding(r.Context(), target, who.Admin, maxHit+1); err != nil {
			return view{}, err
		}
		p.More = len(p.Hit) > maxHit
		p.Count = min(len(p.Hit), maxHit)
		p.Hit = p.Hit[:min(p.Count, maxListed)]
	}
	return pageOrder.view(kind.Title, p), nil
}

// order carries out an order that the admin has confirmed by typing the name of its target.
func (c *Console) order(r *http.Request, who *visitor) (done, error) {
	name := chi.URLParam(r, "order")
	kind, target, err := targetOf(name, r.PostForm, who)
	if err != nil {
		return done{}, err
	}
	confirmed, reason := r.PostForm["confirmation"], strings.TrimSpace(r.PostForm.Get("reason"))
	switch {
	case len(confirmed) != 1 || strings.TrimSpace(confirmed[0]) != toType(target):
		err = errConfirmation
	case reason == "" || len(r.PostForm["reason"]) != 1:
		err = errForm
	default:
		err = checkText(reason)
	}
	if err != nil {
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
		to := "/"
		if c.opens(who, "/live") {
			to = "/live"
		}
		return done{to, kind.Done}, nil
	}
	return done{"/endings/receipt", kind.Done}, c.keepReceipt(r.Context(), kind.Title+": "+nameOf(target), receipt)
}

// selection returns only the parameters that select the target of an order. A link must not fill in the rest of the form:
// the admin types the confirmation and the reason.
func selection(values url.Values) url.Values {
	kept := url.Values{}
	for _, name := range []string{"id", "spiffe_id", "spiffe_id_prefix", "trust_domain", "task", "scope"} {
		if value := values.Get(name); value != "" {
			kept.Set(name, value)
		}
	}
	return kept
}

// receiptPage shows the effect of an order.
type receiptPage struct {
	About   string
	Receipt broker.Receipt
	Dead    int
	Open    int // not ended yet
	Offline int // a service that verifies them offline may still accept these
	Cut     bool
}

// keepReceipt stores the effect of an order in the session, for the page that the browser goes to next.
func (c *Console) keepReceipt(ctx context.Context, about string, receipt broker.Receipt) error {
	p := receiptPage{About: about, Cut: receipt.More || len(receipt.Ended) > maxListed}
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
	receipt.Ended = receipt.Ended[:min(len(receipt.Ended), maxListed)]
	p.Receipt = receipt
	data, err := json.Marshal(p)
	// Names can be long, and the page must show the totals in any case, so drop listed credentials until the rest fits.
	for err == nil && len(data) > maxReceipt && len(p.Receipt.Ended) > 0 {
		p.Cut, p.Receipt.Ended = true, p.Receipt.Ended[:len(p.Receipt.Ended)/2]
		data, err = json.Marshal(p)
	}
	if err != nil {
		return fmt.Errorf("keeping a receipt: %w", err)
	}
	c.sessions.Put(ctx, keyReceipt, data)
	return nil
}

// receipt shows the effect of the last order.
func (c *Console) receipt(r *http.Request, _ *visitor) (view, error) {
	data := c.sessions.GetBytes(r.Context(), keyReceipt)
	if data == nil {
		return view{}, broker.ErrNotFound
	}
	var p receiptPage
	if err := json.Unmarshal(data, &p); err != nil {
		return view{}, fmt.Errorf("reading a receipt: %w", err)
	}
	return pageReceipt.view("Revocation receipt", p), nil
}
