package console

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/go-chi/chi/v5"
)

// mostEvents is how many events of a time line one page has.
const mostEvents = 200

// timeline is a part of what happened, in order.
type timeline struct {
	Events []broker.Happening
	Next   string // address of what follows
}

// issuancePage is one record with all that is known of it.
type issuancePage struct {
	*broker.View

	Digest   string // of the credential, in hex
	Reported *broker.Happening
	Timeline timeline
	Proof    proof
}

// proof is what a browser checks for itself: what the log has of a record, and the keys of the log.
type proof struct {
	Receipt *audit.Receipt `json:"receipt"` // nil while the log does not prove it yet
	Keys    []string       `json:"keys"`    // none when they cannot be asked
	Shown   shown          `json:"shown"`
}

// shown is what the page says of a record, by tables that are no proof: the browser holds it to the entries.
type shown struct {
	SPIFFEID string `json:"spiffe_id"`
	Scope    string `json:"scope"`
	Task     string `json:"task"`
	Decision string `json:"decision"`
}

// issuance shows one record: what was asked, what was decided, what was made, and what became of it.
func (c *Console) issuance(r *http.Request, who *visitor) (view, error) {
	record, err := c.cfg.Broker.Get(r.Context(), chi.URLParam(r, "id"), who.Auditor)
	if err != nil {
		return view{}, err
	}
	p := issuancePage{View: record, Digest: credentialDigest(record)}
	if p.Timeline, err = c.timeline(r, who, broker.TimelineQuery{ID: record.ID}); err != nil {
		return view{}, err
	}
	for i := range p.Timeline.Events {
		if e := &p.Timeline.Events[i]; e.Calls != nil && e.ID == record.ID {
			p.Reported = e
		}
	}
	p.Proof, err = c.proof(r.Context(), record.ID)
	p.Proof.Shown = shown{SPIFFEID: record.Subject.ID.String(), Scope: record.Scope, Task: record.Task, Decision: record.Decision}
	return view{page: "issuance", title: titleOf(record), data: p}, err
}

// keyPatience is how long a page waits for the keys of the log, which Vault has.
const keyPatience = time.Second

// proof reads the proof of a record that its reader may see.
func (c *Console) proof(ctx context.Context, id string) (proof, error) {
	receipt, err := c.cfg.InclusionProofs.Receipt(ctx, id)
	switch {
	case errors.Is(err, audit.ErrNotYet), errors.Is(err, broker.ErrNotFound): // not sealed yet, or dropped for its age
		return proof{}, nil
	case err != nil:
		return proof{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, keyPatience)
	defer cancel()
	keys, err := c.cfg.LogKeys.Keys(ctx)
	if err != nil {
		c.cfg.Log.WarnContext(ctx, "log keys unavailable", "error", err)
	}
	return proof{Receipt: &receipt, Keys: keys}, nil
}

func titleOf(v *broker.View) string {
	if v.CredentialKind == "" {
		return "Request"
	}
	return "Issuance"
}

// credentialDigest is what a credential is found by; empty for what has none.
func credentialDigest(v *broker.View) string {
	if v.Minted.Digest == [32]byte{} {
		return v.ClaimsDigest
	}
	return cmp.Or(v.ClaimsDigest, hex.EncodeToString(v.Minted.Digest[:]))
}

// timeline reads a page of a time line. The place in it comes from the address.
func (c *Console) timeline(r *http.Request, who *visitor, q broker.TimelineQuery) (timeline, error) {
	name, err := listing(who, q)
	if err != nil {
		return timeline{}, err
	}
	values := r.URL.Query()
	if q.From, err = c.openPlace(values.Get("cursor"), name); err != nil {
		return timeline{}, err
	}
	q.Limit = mostEvents
	events, err := c.cfg.Broker.Timeline(r.Context(), q, who.Auditor)
	if err != nil || len(events) < mostEvents {
		return timeline{Events: events}, err
	}
	cursor, err := c.sealPlace(events[len(events)-1].Index+1, name)
	values.Set("cursor", cursor)
	next := url.URL{Path: r.URL.Path, RawQuery: values.Encode()}
	return timeline{Events: events, Next: next.String()}, err
}

// taskPage is one task of one sandbox.
type taskPage struct {
	SPIFFEID, Task string
	Alive          []broker.View
	Timeline       timeline
}

// task shows all that is recorded of one task. Without one it asks which.
func (c *Console) task(r *http.Request, who *visitor) (view, error) {
	values := r.URL.Query()
	p := taskPage{SPIFFEID: values.Get("spiffe_id"), Task: values.Get("task")}
	if p.SPIFFEID == "" && p.Task == "" {
		return view{page: "tasks", title: "Task", data: p}, nil
	}
	if !isTask(p.SPIFFEID, p.Task) {
		return view{page: "tasks", title: "Task", data: p, status: http.StatusUnprocessableEntity}, nil
	}
	var err error
	if p.Timeline, err = c.timeline(r, who, broker.TimelineQuery{SPIFFEID: p.SPIFFEID, Task: p.Task}); err != nil {
		return view{}, err
	}
	alive, err := c.cfg.Broker.List(r.Context(), broker.Query{
		SPIFFEID: p.SPIFFEID, Task: p.Task, Status: broker.StatusIssued, Limit: pageSize,
	}, who.Auditor)
	if err != nil && !errors.Is(err, broker.ErrTooBroad) {
		return view{}, err
	}
	p.Alive = alive.Records
	return view{page: "task", title: "Task", data: p}, nil
}
