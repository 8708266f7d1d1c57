package console

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/go-chi/chi/v5"
)

// maxEvents is how many timeline events a page lists.
const maxEvents = 200

// timeline is one page of events, in order.
type timeline struct {
	Events []broker.TimelineEvent
	Next   string // address of the next page
}

// issuancePage is one record with its timeline and proof.
type issuancePage struct {
	*broker.View

	// ParentOpens says that the visitor may see Parent, which can belong to another sandbox.
	ParentOpens bool

	Digest   string // of the credential, in hex
	Reported *broker.TimelineEvent
	Timeline timeline
	Proof    proof
}

// proof contains what the browser verifies itself: the receipt of a record, and the public keys of the log.
type proof struct {
	Receipt *audit.Receipt `json:"receipt"` // nil while no checkpoint covers the record
	Keys    []string       `json:"keys"`    // empty if they are unavailable
	Shown   shown          `json:"shown"`
}

// shown contains what the page shows about a record. It comes from database tables, which prove nothing, so the browser
// compares it with the proved entries.
type shown struct {
	SPIFFEID string `json:"spiffe_id"`
	Scope    string `json:"scope"`
	Task     string `json:"task"`
	Decision string `json:"decision"`
}

// issuance shows one record: the request, the decision, the credential, and its outcome.
func (c *Console) issuance(r *http.Request, who *visitor) (view, error) {
	record, err := c.cfg.Broker.Get(r.Context(), chi.URLParam(r, "id"), who.Auditor)
	if err != nil {
		return view{}, err
	}
	p := issuancePage{View: record, Digest: credentialDigest(record)}
	if p.Timeline, err = c.timeline(r, who, broker.TimelineQuery{ID: record.ID}); err != nil {
		return view{}, err
	}
	if record.Parent != "" {
		switch _, err := c.cfg.Broker.Get(r.Context(), record.Parent, who.Auditor); {
		case err == nil:
			p.ParentOpens = true
		case !errors.Is(err, broker.ErrNotFound):
			return view{}, err
		}
	}
	for i := range p.Timeline.Events {
		if e := &p.Timeline.Events[i]; e.Calls != nil && e.ID == record.ID {
			p.Reported = e
		}
	}
	p.Proof, err = c.proof(r.Context(), record.ID)
	p.Proof.Shown = shown{SPIFFEID: record.Subject.ID.String(), Scope: record.Scope, Task: record.Task, Decision: record.Decision}
	title := "Issuance"
	if record.CredentialKind == "" {
		title = "Request"
	}
	return pageIssuance.view(title, p), err
}

// proof returns the proof of a record that the visitor may see.
func (c *Console) proof(ctx context.Context, id string) (proof, error) {
	receipt, err := c.cfg.InclusionProofs.Receipt(ctx, id)
	switch {
	case errors.Is(err, audit.ErrNotYet), errors.Is(err, broker.ErrNotFound): // not sealed yet, or pruned
		return proof{}, nil
	case err != nil:
		return proof{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second) // Vault holds the keys
	defer cancel()
	keys, err := c.cfg.LogKeys.Keys(ctx)
	if err != nil {
		c.cfg.Log.WarnContext(ctx, "log keys unavailable", "error", err)
	}
	return proof{Receipt: &receipt, Keys: keys}, nil
}

// credentialDigest returns the digest by which a credential can be found, or "" if there is no credential.
func credentialDigest(v *broker.View) string {
	if v.Minted.Digest == [32]byte{} {
		return v.ClaimsDigest
	}
	return cmp.Or(v.ClaimsDigest, hex.EncodeToString(v.Minted.Digest[:]))
}

// timeline returns one page of a timeline. The position comes from the cursor in the address.
func (c *Console) timeline(r *http.Request, who *visitor, q broker.TimelineQuery) (timeline, error) {
	name, err := listing(who, q)
	if err != nil {
		return timeline{}, err
	}
	values := r.URL.Query()
	if q.From, err = c.openPlace(values.Get("cursor"), name); err != nil {
		return timeline{}, err
	}
	q.Limit = maxEvents
	events, err := c.cfg.Broker.Timeline(r.Context(), q, who.Auditor)
	if err != nil || len(events) < maxEvents {
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
	Calls          *broker.TaskCalls // nil if nothing is reported
	CallsTooMany   bool              // counting them takes too long for a page
	Timeline       timeline
}

// callsPatience bounds the count of a task's calls for a page.
const callsPatience = 5 * time.Second

// task shows everything recorded about one task. Without parameters it shows a form that asks for the task.
func (c *Console) task(r *http.Request, who *visitor) (view, error) {
	values := r.URL.Query()
	p := taskPage{SPIFFEID: values.Get("spiffe_id"), Task: values.Get("task")}
	if p.SPIFFEID == "" && p.Task == "" {
		return pageTasks.view("Task", p), nil
	}
	if !isTask(p.SPIFFEID, p.Task) {
		return pageTasks.view("Task", p).withStatus(http.StatusUnprocessableEntity), nil
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
	counting, cancel := context.WithTimeout(r.Context(), callsPatience)
	defer cancel()
	switch calls, err := c.cfg.Broker.TaskCalls(counting, p.SPIFFEID, p.Task, who.Auditor); {
	case err == nil:
		p.Calls = &calls
	case errors.Is(err, broker.ErrTooBroad), counting.Err() != nil && r.Context().Err() == nil:
		p.CallsTooMany = true
	case !errors.Is(err, broker.ErrNotFound):
		return view{}, err
	}
	return pageTask.view("Task", p), nil
}

// whosePage is a digest and the records that contain it.
type whosePage struct {
	Digest string
	Bad    bool
	Owners []broker.View
}

// whose finds the owner of a credential by its digest. The credential itself never reaches the server: a script on the page
// computes the digest.
func (c *Console) whose(r *http.Request, who *visitor) (view, error) {
	asked := strings.TrimSpace(r.URL.Query().Get("credential"))
	p := whosePage{Digest: strings.TrimPrefix(strings.ToLower(asked), "sha256:")}
	const title = "Find a token's owner"
	if p.Digest == "" {
		return pageWhose.view(title, p), nil
	}
	digest, ok := readDigest(p.Digest)
	if !ok {
		p.Digest, p.Bad = "", true // it may be the credential itself, so do not show it again
		return pageWhose.view(title, p).withStatus(http.StatusUnprocessableEntity), nil
	}
	// There is one record, unless an earlier request for the credential failed.
	found, err := c.cfg.Broker.List(r.Context(), broker.Query{Credential: digest, Limit: 10}, who.Auditor)
	p.Owners = found.Records
	return pageWhose.view(title, p), err
}
